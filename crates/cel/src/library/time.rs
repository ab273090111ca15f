//! Timestamps and durations.
//!
//! Upstream: cel-go/common/types/{timestamp,duration}.go.

use super::{Body, Outcome, no_overload};
use crate::program::EvalError;
use crate::value::{Text, Value};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};
use orlop_api::duration::DurationError;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("getFullYear", |args| part(args, |at| i64::from(at.year()), None)),
    ("getMonth", |args| part(args, |at| i64::from(at.month()) - 1, None)),
    ("getDayOfYear", |args| {
        part(args, |at| i64::from(at.day_of_year()) - 1, None)
    }),
    ("getDayOfMonth", |args| part(args, |at| i64::from(at.day()) - 1, None)),
    ("getDate", |args| part(args, |at| i64::from(at.day()), None)),
    ("getDayOfWeek", |args| {
        part(args, |at| i64::from(at.weekday().to_sunday_zero_offset()), None)
    }),
    ("getHours", |args| {
        part(args, |at| i64::from(at.hour()), Some(3_600_000_000_000))
    }),
    ("getMinutes", |args| {
        part(args, |at| i64::from(at.minute()), Some(60_000_000_000))
    }),
    ("getSeconds", |args| {
        part(args, |at| i64::from(at.second()), Some(1_000_000_000))
    }),
    ("getMilliseconds", |args| {
        part(args, |at| i64::from(at.millisecond()), Some(1_000_000))
    }),
];

/// A point in time, and the offset of the zone that it was written in.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub(crate) at: Timestamp,
    offset_seconds: i32,
}

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Time {
        Time { at, offset_seconds: 0 }
    }
}

impl Time {
    /// The first time that there is, which counts as none.
    pub(crate) fn is_zero(&self) -> bool {
        self.at.as_nanosecond() == i128::from(*SECONDS.start()) * 1_000_000_000
    }
}

/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

fn overflow() -> EvalError {
    EvalError::new("timestamp overflow")
}

/// The timestamp, if it is one of CEL's.
pub(crate) fn in_range(time: Time) -> Result<Time, EvalError> {
    let seconds = time.at.as_nanosecond().div_euclid(1_000_000_000);
    let inside = i64::try_from(seconds).is_ok_and(|seconds| SECONDS.contains(&seconds));
    if inside { Ok(time) } else { Err(overflow()) }
}

pub(crate) fn of_seconds(seconds: i64) -> Result<Time, EvalError> {
    let at = SECONDS.contains(&seconds).then(|| Timestamp::from_second(seconds).ok());
    at.flatten().map(Time::from).ok_or_else(overflow)
}

/// So many nanoseconds later.
pub(crate) fn after(time: &Time, nanos: i128) -> Result<Time, EvalError> {
    let sum = time.at.as_nanosecond().checked_add(nanos);
    let at = sum.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok());
    in_range(Time {
        at: at.ok_or_else(overflow)?,
        offset_seconds: time.offset_seconds,
    })
}

/// RFC 3339, with the T and zone that Go wants.
pub(crate) fn parse_timestamp(text: &str) -> Option<Time> {
    let bytes = text.as_bytes();
    let shape = bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[13] == b':' && bytes[16] == b':';
    let zone = text.ends_with('Z') || bytes.get(bytes.len().wrapping_sub(3)) == Some(&b':');
    if !shape || !zone || text.contains('[') {
        return None;
    }
    with_offset(text)
}

/// A time with `Z` or an offset at its end.
fn with_offset(text: &str) -> Option<Time> {
    let at: Timestamp = text.parse().ok()?;
    let tail = text.get(text.len().checked_sub(6)?..)?;
    let offset_seconds = match (tail.as_bytes()[0], tail[1..].split_once(':')) {
        (sign @ (b'+' | b'-'), Some((hours, minutes))) => {
            let seconds = hours.parse::<i32>().ok()? * 3600 + minutes.parse::<i32>().ok()? * 60;
            if sign == b'-' { -seconds } else { seconds }
        }
        _ => 0,
    };
    Some(Time { at, offset_seconds })
}

/// What schemas call `date` or `date-time`.
pub(crate) fn parse_date_or_time(text: &str) -> Option<Time> {
    if text.len() == 10 {
        let date: jiff::civil::Date = text.parse().ok()?;
        return date.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp().into());
    }
    with_offset(&text.to_ascii_uppercase())
}

/// What schemas call `duration`: as Go writes them, or a number and the name of a unit (`3 days`).
pub(crate) fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let plain = orlop_api::duration::parse_duration(text);
    if plain.is_ok() {
        return plain;
    }
    let number_end = text.trim().find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c)));
    let Some(end) = number_end else {
        return plain;
    };
    let (number, unit) = text.trim().split_at(end);
    let unit: f64 = match unit.trim().to_lowercase().trim_end_matches('s') {
        "n" | "nano" | "nanosecond" => 1.0,
        "u" | "µ" | "micro" | "microsecond" => 1e3,
        "m" | "milli" | "millisecond" => 1e6,
        "" | "sec" | "second" => 1e9,
        "min" | "minute" => 60e9,
        "h" | "hr" | "hour" => 3600e9,
        "d" | "day" => 86_400e9,
        "w" | "wk" | "week" => 7.0 * 86_400e9,
        _ => return plain,
    };
    match number.parse::<f64>() {
        Ok(number) if (number * unit).abs() < i64::MAX as f64 => Ok((number * unit) as i64),
        _ => plain,
    }
}

pub(crate) fn timestamp_text(time: &Time) -> String {
    match Offset::from_seconds(time.offset_seconds) {
        Ok(offset) if time.offset_seconds != 0 => time.at.display_with_offset(offset).to_string(),
        _ => time.at.to_string(),
    }
}

/// Seconds, with as many decimals as they have, and an s.
pub(crate) fn duration_text(nanos: i64) -> String {
    let seconds = (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}

/// `+HH:MM`, `-HH:MM`, `HH:MM` or a name of the time zone database.
fn zone(text: &Text<'_>) -> Result<TimeZone, EvalError> {
    let Some((hours, minutes)) = text.split_once(':') else {
        if text.is_empty() || text.as_str() == "UTC" {
            return Ok(TimeZone::UTC);
        }
        return TimeZone::get(text).map_err(|_| EvalError::new(format!("unknown time zone {}", text.as_str())));
    };
    let invalid = |part: &str| EvalError::new(format!("strconv.Atoi: parsing \"{part}\": invalid syntax"));
    let hour: i32 = hours.parse().map_err(|_| invalid(hours))?;
    let minute: i32 = minutes.parse().map_err(|_| invalid(minutes))?;
    let minute = if hours.starts_with('-') { -minute } else { minute };
    let seconds = hour
        .checked_mul(3600)
        .zip(minute.checked_mul(60))
        .and_then(|(h, m)| h.checked_add(m));
    let offset = seconds.and_then(|seconds| Offset::from_seconds(seconds).ok());
    offset.map(TimeZone::fixed).ok_or_else(|| invalid(hours))
}

/// A part of a timestamp, or, with its unit, of a duration.
fn part<'a>(args: &[Value<'a>], of: fn(&Zoned) -> i64, unit: Option<i64>) -> Outcome<'a> {
    let at = match (args, unit) {
        ([Value::Timestamp(time)], _) => time.at.to_zoned(TimeZone::UTC),
        ([Value::Timestamp(time), Value::String(name)], _) => time.at.to_zoned(zone(name)?),
        ([Value::Duration(nanos)], Some(unit)) => return Ok(Value::Int(nanos / unit)),
        _ => return no_overload(),
    };
    Ok(Value::Int(of(&at)))
}
