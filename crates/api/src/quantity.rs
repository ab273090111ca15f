//! Resource quantities: "100m", "1.5Gi", "2e3". A quantity is a fixed-point number (nine decimal places) that remembers
//! the unit family it was written in, and is written again in that family with the largest unit that needs no fraction.
//!
//! Upstream: apimachinery/pkg/api/resource (v1.36). Beyond ±1.7e29 units numbers saturate here.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A fixed-point number with the unit family it was written in. Compares by value.
#[derive(Clone, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The text it was parsed from, if that counts as canonical though it may not be what we would write ("1.500").
    text: Option<Box<str>>,
}

/// The unit family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// n u m k M G T P E
    DecimalSI,
    /// Ki Mi Gi Ti Pi Ei
    BinarySI,
    /// e3
    DecimalExponent,
}

/// Why a text is no quantity, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Number,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

crate::errors_as_text!(QuantityError);

const NANO: i128 = 1_000_000_000;
/// Binary quantities end here.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A quantity's text taken apart.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point without leading zeros, "0" if there are none.
    whole: &'a str,
    fraction: &'a str,
    /// There is at least one digit.
    digits: bool,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_of = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits_of(rest));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits_of(rest)),
        None => ("", rest),
    };
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if !exponent.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    let digits = !whole.is_empty() || !fraction.is_empty();
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    Ok(Parts {
        negative,
        whole,
        fraction,
        digits,
        suffix,
    })
}

/// What a suffix multiplies by: the base (10 or 2) and its exponent.
fn unit(suffix: &str) -> Option<(u32, i32, Format)> {
    if let Some(i) = DECIMAL_SUFFIXES.iter().position(|s| *s == suffix) {
        return Some((10, i as i32 * 3 - 9, Format::DecimalSI));
    }
    if let Some(i) = BINARY_SUFFIXES.iter().position(|s| *s == suffix) {
        return Some((2, i as i32 * 10, Format::BinarySI));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
    let exponent = exponent.clamp(i32::MIN as i64 / 2, i32::MAX as i64 / 2) as i32;
    Some((10, exponent, Format::DecimalExponent))
}

/// `digits` × 10^scale × factor in nanos, rounded up, saturating.
fn nanos_of(whole: &str, fraction: &str, scale: i32, factor: i128) -> i128 {
    let mut mantissa: i128 = 0;
    let mut scale = i64::from(scale) + 9;
    let mut inexact = false;
    for (i, b) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let in_fraction = i >= whole.len();
        match mantissa
            .checked_mul(10)
            .and_then(|m| m.checked_add(i128::from(b - b'0')))
        {
            // Digits that no longer fit only matter as "a bit more".
            Some(m) if !inexact => {
                mantissa = m;
                scale -= i64::from(in_fraction);
            }
            _ => {
                inexact = true;
                scale += i64::from(!in_fraction);
            }
        }
    }
    // The factor is a power of two and may overflow while the result would not: only for absurdly long fractions.
    let mut value = mantissa.saturating_mul(factor);
    if value == 0 {
        return 0;
    }
    if scale >= 0 {
        for _ in 0..scale.min(40) {
            value = value.saturating_mul(10);
        }
        return value;
    }
    let mut rest = inexact;
    for _ in 0..(-scale).min(40) {
        rest |= value % 10 != 0;
        value /= 10;
    }
    value + i128::from(rest)
}

/// The quantity, and whether the text is its canonical form.
fn parse(text: &str) -> Result<(Quantity, bool), QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let parts = split(text)?;
    let (base, exponent, mut format) = unit(parts.suffix).ok_or(QuantityError::Suffix)?;
    let (scale, factor) = if base == 10 {
        (exponent, 1)
    } else {
        (0, 1i128 << exponent)
    };
    let mut nanos = nanos_of(parts.whole, parts.fraction, scale, factor);

    // Short numbers take Kubernetes' fast road, on which some spellings are kept as they are.
    let point = scale.saturating_sub(parts.fraction.len() as i32);
    let digits = (parts.whole.len() + parts.fraction.len()) as i32;
    let short = point >= -9
        && match format {
            Format::BinarySI => parts.fraction.is_empty() && digits + exponent * 3 / 10 < 15,
            _ => digits <= 18,
        };
    let mut kept = false;
    if short {
        kept = match format {
            Format::BinarySI => (nanos / NANO / factor) & 7 != 0,
            _ => {
                let mut tail = parts.whole.bytes().chain(parts.fraction.bytes()).rev().take(3);
                let thousands = digits >= 3 && tail.all(|b| b == b'0');
                point % 3 == 0 && !thousands && !parts.whole.starts_with('0')
            }
        };
    } else {
        if !parts.digits {
            return Err(QuantityError::Number);
        }
        if format == Format::BinarySI {
            nanos = nanos.min(MAX_BINARY);
            if nanos > 0 && nanos < NANO {
                format = Format::DecimalSI;
            }
        }
    }
    if parts.negative {
        nanos = -nanos;
    }
    // Nearly always what is kept is what we would write anyway; then there is nothing to remember.
    let plain = parts.fraction.is_empty()
        && text.len() == usize::from(parts.negative) + parts.whole.len() + parts.suffix.len()
        && format != Format::DecimalExponent
        && nanos.unsigned_abs() < i128::MAX as u128;
    let quantity = Quantity {
        nanos,
        format,
        text: (kept && !plain).then(|| text.into()),
    };
    Ok((quantity, kept))
}

impl Quantity {
    pub const ZERO: Quantity = Quantity {
        nanos: 0,
        format: Format::DecimalSI,
        text: None,
    };

    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        parse(text).map(|(quantity, _)| quantity)
    }

    /// The canonical form of a text, which mostly is that text.
    pub(crate) fn canonical_text(text: &str) -> Result<Cow<'_, str>, QuantityError> {
        Ok(match parse(text)? {
            (_, true) => Cow::Borrowed(text),
            (quantity, false) => Cow::Owned(quantity.canonical()),
        })
    }

    pub fn from_i64(value: i64, format: Format) -> Quantity {
        Quantity {
            nanos: i128::from(value) * NANO,
            format,
            text: None,
        }
    }

    pub fn from_milli(value: i64, format: Format) -> Quantity {
        Quantity {
            nanos: i128::from(value) * (NANO / 1000),
            format,
            text: None,
        }
    }

    pub fn from_nanos(nanos: i128, format: Format) -> Quantity {
        Quantity {
            nanos,
            format,
            text: None,
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The form Kubernetes writes: the family it was parsed in, the largest unit without a fraction.
    pub fn canonical(&self) -> String {
        if let Some(text) = &self.text {
            return text.to_string();
        }
        if self.nanos == 0 {
            return "0".to_string();
        }
        let whole = self.nanos / NANO;
        if self.format == Format::BinarySI && self.nanos % NANO == 0 && whole.unsigned_abs() >= 1024 {
            let (number, times) = strip_factors(whole, 1024, BINARY_SUFFIXES.len() - 1);
            return format!("{number}{}", BINARY_SUFFIXES[times]);
        }
        if self.format == Format::DecimalExponent {
            let (number, times) = strip_factors(self.nanos, 1000, usize::MAX);
            return match times as i32 * 3 - 9 {
                0 => number.to_string(),
                exponent => format!("{number}e{exponent}"),
            };
        }
        let (number, times) = strip_factors(self.nanos, 1000, DECIMAL_SUFFIXES.len() - 1);
        format!("{number}{}", DECIMAL_SUFFIXES[times])
    }

    fn scaled(&self, unit: i128) -> i64 {
        let (whole, rest) = (self.nanos / unit, self.nanos % unit);
        let rounded = whole + rest.signum();
        rounded.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Whole units, rounded up (away from zero), saturating: what `Value()` gives in Go.
    pub fn value(&self) -> i64 {
        self.scaled(NANO)
    }

    /// Thousandths, rounded up, saturating: `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        self.scaled(NANO / 1000)
    }

    /// Billionths, exactly.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// A whole number of units: nothing after the point.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Adds in place; zero takes over the other's family.
    pub fn add(&mut self, other: &Quantity) {
        self.combine(self.nanos.saturating_add(other.nanos), other);
    }

    /// Subtracts in place; zero takes over the other's family.
    pub fn sub(&mut self, other: &Quantity) {
        self.combine(self.nanos.saturating_sub(other.nanos), other);
    }

    fn combine(&mut self, nanos: i128, other: &Quantity) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos = nanos;
        self.text = None;
    }

    /// Multiplies in place.
    pub fn mul(&mut self, factor: i64) {
        self.nanos = self.nanos.saturating_mul(i128::from(factor));
        self.text = None;
    }

    pub fn neg(&mut self) {
        self.nanos = self.nanos.saturating_neg();
        self.text = None;
    }
}

/// Divides by `base` as long as it goes, at most `most` times.
fn strip_factors(mut number: i128, base: i128, most: usize) -> (i128, usize) {
    let mut times = 0;
    while times < most && number % base == 0 {
        number /= base;
        times += 1;
    }
    (number, times)
}

impl Default for Quantity {
    fn default() -> Self {
        Quantity::ZERO
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical())
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Quantity::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn canonical_form_keeps_the_family() {
        for (text, want) in [
            ("0", "0"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1500m", "1500m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1024Ki", "1Mi"),
            ("1536Ki", "1536Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            ("1.0001Ki", "1024102400u"),
            ("0.0001Ki", "102400u"),
            ("2e3", "2e3"),
            ("2E3", "2E3"),
            ("12e1", "120"),
            ("1.5e3", "1500"),
            ("1e-3", "1e-3"),
            ("1e-10", "1e-9"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("-1.5", "-1500m"),
            ("+5", "+5"),
            ("1.500", "1.500"),
            ("1000.00", "1k"),
            ("1.000", "1"),
            ("007", "007"),
            ("0.500", "500m"),
            ("100Mi", "100Mi"),
            ("9Ei", "9223372036854775807"),
            ("4Ei", "4Ei"),
            ("2E", "2E"),
            ("2000E", "2000E"),
            ("1M", "1M"),
            ("123456789012345678901", "123456789012345678901"),
            (".5", "500m"),
            ("5.", "5."),
            ("00", "0"),
        ] {
            assert_eq!(q(text).canonical(), want, "{text}");
        }
    }

    #[test]
    fn wrong_text_is_refused_with_the_reason() {
        for (text, want) in [
            ("", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("ten", QuantityError::Format),
            ("--1", QuantityError::Suffix),
            ("1i", QuantityError::Suffix),
            ("1Mib", QuantityError::Format),
            ("1mi", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1m3", QuantityError::Suffix),
            (".e-10", QuantityError::Number),
            ("1ä", QuantityError::Format),
        ] {
            assert_eq!(Quantity::parse(text).unwrap_err(), want, "{text}");
        }
    }

    #[test]
    fn values_round_away_from_zero_and_saturate() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1500m", 2, 1500),
            ("-1500m", -2, -1500),
            ("1n", 1, 1),
            ("1Gi", 1 << 30, (1 << 30) * 1000),
            ("1e50", i64::MAX, i64::MAX),
            ("-1e2000000000", i64::MIN, i64::MIN),
            ("1e-2000000000", 1, 1),
        ] {
            assert_eq!((q(text).value(), q(text).milli_value()), (value, milli), "{text}");
        }
    }

    #[test]
    fn sums_keep_the_first_family_unless_zero() {
        let mut sum = Quantity::ZERO;
        sum.add(&q("1Gi"));
        assert_eq!(sum.canonical(), "1Gi");
        sum.add(&q("1k"));
        assert_eq!(sum.canonical(), "1073742824");
        sum.sub(&q("1000"));
        assert_eq!(sum.canonical(), "1Gi");
        sum.neg();
        assert_eq!(sum.canonical(), "-1Gi");
        assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
        assert_eq!(Quantity::from_milli(1500, Format::DecimalSI).canonical(), "1500m");
        assert_eq!(Quantity::from_i64(2048, Format::BinarySI).canonical(), "2Ki");
    }

    proptest! {
        #[test]
        fn writing_and_reading_keeps_the_value(
            text in r"[-+]?[0-9]{0,12}(\.[0-9]{0,10})?(|n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2}|E[0-9]{1,2})"
        ) {
            if let Ok(one) = Quantity::parse(&text) {
                let two = Quantity::parse(&one.canonical()).unwrap();
                prop_assert_eq!(&one, &two);
                prop_assert_eq!(one.canonical(), two.canonical());
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in r"[-+.0-9eEinumkKMGTP]{0,60}|\PC*") {
            if let Ok(one) = Quantity::parse(&text) {
                prop_assert_eq!(&Quantity::parse(&one.canonical()).unwrap(), &one);
            }
        }
    }
}
