//! Timestamps as Kubernetes reads and writes them: RFC 3339, UTC, whole seconds (Time) or microseconds (MicroTime).
//! The zero time (the first second of year 1) is "no time": null.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

const TIME_LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const MICRO_TIME_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
/// 0001-01-01T00:00:00Z
const ZERO_SECONDS: i64 = -62_135_596_800;

/// A text that is no time, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TimeError(String);

/// Reads a Time. None: the zero time.
pub(crate) fn parse_time(text: &str) -> Result<Option<Timestamp>, TimeError> {
    let at = parse(text, TIME_LAYOUT).ok_or_else(|| TimeError(refusal(text, TIME_LAYOUT)))?;
    Ok(unless_zero(at))
}

/// Already as we would write it: no time zone to convert from, no fraction, a day that every month has, not year 1.
pub(crate) fn is_plain_time(text: &str) -> bool {
    let t = text.as_bytes();
    let two = |i: usize| (t[i].wrapping_sub(b'0') as u32) * 10 + t[i + 1].wrapping_sub(b'0') as u32;
    t.len() == 20
        && t.iter()
            .zip(b"0000-00-00T00:00:00Z")
            .all(|(a, b)| if *b == b'0' { a.is_ascii_digit() } else { a == b })
        && !text.starts_with("000")
        && (1..=12).contains(&two(5))
        && (1..=28).contains(&two(8))
        && two(11) < 24
        && two(14) < 60
        && two(17) < 60
}

/// Reads a MicroTime: six decimals, no more, no fewer.
pub(crate) fn parse_micro_time(text: &str) -> Result<Option<Timestamp>, TimeError> {
    let at = parse(text, MICRO_TIME_LAYOUT).ok_or_else(|| TimeError(refusal(text, MICRO_TIME_LAYOUT)))?;
    Ok(unless_zero(at))
}

pub(crate) fn unless_zero(at: Timestamp) -> Option<Timestamp> {
    (at.as_second() != ZERO_SECONDS || at.subsec_nanosecond() != 0).then_some(at)
}

/// Why a text is no time, as Go says it: the part of the layout at which reading stopped, and what stood there.
fn refusal(text: &str, layout: &str) -> String {
    let parts = [
        "2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05", ".000000", "Z07:00",
    ];
    let mut rest = text;
    for part in parts.into_iter().filter(|p| layout.contains(".0") || *p != ".000000") {
        let stops = || format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {part:?}");
        if part == "Z07:00" {
            return stops();
        }
        // A fraction may follow the seconds even where the layout has none.
        if part == "05" && !layout.contains(".0") {
            let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
            if digits >= 2 {
                rest = &rest[digits..];
                continue;
            }
        }
        let fits = rest.len() >= part.len()
            && rest
                .bytes()
                .zip(part.bytes())
                .all(|(r, p)| if p.is_ascii_digit() { r.is_ascii_digit() } else { r == p });
        if !fits {
            return stops();
        }
        rest = &rest[part.len()..];
    }
    format!("parsing time {text:?}: out of range")
}

pub(crate) fn time_text(at: Timestamp) -> String {
    let d = Offset::UTC.to_datetime(at);
    let mut text = String::with_capacity(20);
    if d.year() < 0 {
        text.push('-');
    }
    let mut put = |n: u16, after: &str| {
        for digit in [n / 10, n % 10] {
            text.push(char::from(b'0' + digit as u8));
        }
        text.push_str(after);
    };
    let year = d.year().unsigned_abs();
    put(year / 100, "");
    put(year % 100, "-");
    let rest = [
        (d.month(), "-"),
        (d.day(), "T"),
        (d.hour(), ":"),
        (d.minute(), ":"),
        (d.second(), "Z"),
    ];
    rest.into_iter()
        .for_each(|(n, after)| put(n.unsigned_abs().into(), after));
    text
}

pub(crate) fn micro_time_text(at: Timestamp) -> String {
    let mut text = time_text(at);
    let micros = Offset::UTC.to_datetime(at).subsec_nanosecond() / 1000;
    text.truncate(text.len() - 1);
    format!("{text}.{micros:06}Z")
}

/// `digits` decimal digits at the start of `text`.
fn number(text: &mut &[u8], digits: usize) -> Option<i32> {
    if text.len() < digits {
        return None;
    }
    let (head, rest) = text.split_at(digits);
    *text = rest;
    head.iter()
        .try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i32::from(b - b'0')))
}

fn skip(text: &mut &[u8], byte: u8) -> Option<()> {
    let (first, rest) = text.split_first()?;
    *text = rest;
    (*first == byte).then_some(())
}

fn parse(text: &str, layout: &str) -> Option<Timestamp> {
    let t = &mut text.as_bytes();
    let year = number(t, 4)?;
    skip(t, b'-')?;
    let month = number(t, 2)?;
    skip(t, b'-')?;
    let day = number(t, 2)?;
    skip(t, b'T')?;
    let hour = number(t, 2)?;
    skip(t, b':')?;
    let minute = number(t, 2)?;
    skip(t, b':')?;
    let second = number(t, 2)?;
    let nanos = fraction(t, layout == MICRO_TIME_LAYOUT)?;
    let offset = offset(t)?;
    if !t.is_empty() || second > 59 {
        return None;
    }
    let date = Date::new(year as i16, month as i8, day as i8).ok()?;
    let time = Time::new(hour as i8, minute as i8, second as i8, nanos).ok()?;
    let at = Offset::UTC.to_timestamp(DateTime::from_parts(date, time)).ok()?;
    at.checked_sub(SignedDuration::from_secs(offset)).ok()
}

/// The part after the point, in nanoseconds: exactly six digits, or any number and even no point.
fn fraction(t: &mut &[u8], six: bool) -> Option<i32> {
    if !matches!(t.first(), Some(b'.' | b',')) {
        return (!six).then_some(0);
    }
    *t = &t[1..];
    let digits = t.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 || (six && digits != 6) {
        return None;
    }
    let mut head = &t[..digits.min(9)];
    let length = head.len();
    let value = number(&mut head, length)?;
    *t = &t[digits..];
    Some(value * 10i32.pow(9 - length as u32))
}

/// East of UTC, in seconds.
fn offset(t: &mut &[u8]) -> Option<i64> {
    let (first, rest) = t.split_first()?;
    *t = rest;
    let sign = match first {
        b'Z' => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = number(t, 2)?;
    skip(t, b':')?;
    let minutes = number(t, 2)?;
    (hours <= 24 && minutes < 60).then_some(sign * i64::from(hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_out_in_utc() {
        for (text, want) in [
            ("2024-02-29T23:59:59Z", "2024-02-29T23:59:59Z"),
            ("2024-01-01T01:30:00+02:30", "2023-12-31T23:00:00Z"),
            ("2024-01-01T00:00:00.999999999Z", "2024-01-01T00:00:00Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "none"),
        ] {
            assert!(!is_plain_time(text) || text == want, "{text}");
            let got = parse_time(text).unwrap().map_or("none".to_string(), time_text);
            assert_eq!(got, want, "{text}");
        }
        let micro = parse_micro_time("2024-01-01T00:00:00.000120+01:00").unwrap().unwrap();
        assert_eq!(micro_time_text(micro), "2023-12-31T23:00:00.000120Z");
        let before = parse_micro_time("1969-12-31T23:59:59.500000Z").unwrap().unwrap();
        assert_eq!(micro_time_text(before), "1969-12-31T23:59:59.500000Z");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "today",
            "2024-01-01",
            "2024-01-01 00:00:00Z",
            "2024-02-30T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00Zz",
            "2024-01-01T00:00:00+0100",
            "2024-13-01T00:00:00Z",
            "ä024-01-01T00:00:00Z",
        ] {
            assert!(parse_time(text).is_err() && !is_plain_time(text), "{text}");
        }
        assert!(parse_micro_time("2024-01-01T00:00:00Z").is_err());
        assert!(parse_micro_time("2024-01-01T00:00:00.1234567Z").is_err());
    }
}
