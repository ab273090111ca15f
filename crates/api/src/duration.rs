//! Durations in Go's notation: "1h30m0s", "1.5s", "100ms".

/// A text that is no duration; says what Go says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time: invalid duration {0:?}")]
pub struct DurationError(String);

crate::errors_as_text!(DurationError);

/// Nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    parse(text).ok_or_else(|| DurationError(text.to_string()))
}

fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (whole, fraction) = rest[..number].split_once('.').unwrap_or((&rest[..number], ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        rest = &rest[number..];
        let word = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit: u64 = match &rest[..word] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        rest = &rest[word..];
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // Beyond 18 decimals nothing is left of any unit.
        let fraction = &fraction[..fraction.len().min(18)];
        let part = match fraction.parse::<u128>() {
            Ok(digits) => (u128::from(unit) * digits / 10u128.pow(fraction.len() as u32)) as u64,
            Err(_) => 0,
        };
        total = whole.checked_mul(unit)?.checked_add(part)?.checked_add(total)?;
    }
    match negative {
        true if total <= 1 << 63 => Some((total as i64).wrapping_neg()),
        false => i64::try_from(total).ok(),
        true => None,
    }
}

/// `1m30s`, `2m0s`, `1.5ms`, `0s`.
pub fn duration_text(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".to_string();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    if n < 1_000_000_000 {
        let (unit, name) = match n {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return format!("{sign}{}{name}", decimal(n, unit));
    }
    let (seconds, rest) = (n / 1_000_000_000, n % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let tail = decimal(seconds % 60 * 1_000_000_000 + rest, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{tail}s"),
        (0, m) => format!("{sign}{m}m{tail}s"),
        (h, m) => format!("{sign}{h}h{m}m{tail}s"),
    }
}

/// n / unit without trailing zeros; unit is a power of ten.
fn decimal(n: u64, unit: u64) -> String {
    let (whole, rest) = (n / unit, n % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{rest:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_read_as_go_writes_them() {
        for (text, want) in [
            ("0", "0s"),
            ("90m", "1h30m0s"),
            ("1.5s", "1.5s"),
            ("100ms", "100ms"),
            ("1500us", "1.5ms"),
            ("1ns", "1ns"),
            ("-1m1s", "-1m1s"),
            ("1h0.001s", "1h0m0.001s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("1.0000000000000000000000001s", "1s"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
        ] {
            assert_eq!(duration_text(parse_duration(text).unwrap()), want, "{text}");
        }
        for text in [
            "",
            "1",
            "s",
            ".s",
            "1d",
            "1..5s",
            "-",
            "99999999999h",
            "1 s",
            "ä",
            "99999999999999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn writing_and_reading_keeps_the_value(nanos: i64) {
            prop_assert_eq!(parse_duration(&duration_text(nanos)), Ok(nanos));
        }

        #[test]
        fn any_text_is_read_or_refused(text in r"[-+.0-9hmsnuµ]{0,30}") {
            let _ = parse_duration(&text);
        }
    }
}
