//! When a CronJob runs: the five fields of cron, or a word such as `@daily`.
//!
//! The language is that of github.com/robfig/cron v3, which Kubernetes uses: `?` is `*`, `7` is no Sunday, `N/step` runs
//! from N to the end, and a day counts if the day of the month or of the week matches when both are restricted.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::duration::parse_duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Fields(Box<Fields>),
    /// `@every 90s`: this long after the last time, in whole seconds.
    Every(Duration),
}

/// One bit per value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minute: Set,
    hour: Set,
    day: Set,
    month: Set,
    weekday: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    bits: u64,
    /// Written as `*` or `?`, so it restricts nothing.
    any: bool,
}

impl Set {
    fn has(self, value: i8) -> bool {
        self.bits >> value & 1 == 1
    }
}

struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTE: Bounds = Bounds {
    min: 0,
    max: 59,
    names: &[],
};
const HOUR: Bounds = Bounds {
    min: 0,
    max: 23,
    names: &[],
};
const DAY: Bounds = Bounds {
    min: 1,
    max: 31,
    names: &[],
};
const MONTH: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
const WEEKDAY: Bounds = Bounds {
    min: 0,
    max: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// A schedule that can't be read, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

crate::errors_as_text!(ScheduleError);

impl Schedule {
    /// Reads a schedule without a time zone: `TZ=…` in front of it is not for here.
    pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
        Schedule::parse_text(text).map_err(ScheduleError)
    }

    fn parse_text(text: &str) -> Result<Schedule, String> {
        if text.is_empty() {
            return Err("empty spec string".to_string());
        }
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ => text,
        };
        if let Some(period) = fields.strip_prefix("@every ") {
            let nanos = parse_duration(period).map_err(|e| format!("failed to parse duration {fields}: {e}"))?;
            let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(0);
            return Ok(Schedule::Every(Duration::from_secs(seconds.max(1))));
        }
        if fields.starts_with('@') {
            return Err(format!("unrecognized descriptor: {fields}"));
        }
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts.as_slice() else {
            return Err(format!(
                "expected exactly 5 fields, found {}: [{}]",
                parts.len(),
                parts.join(" ")
            ));
        };
        Ok(Schedule::Fields(Box::new(Fields {
            minute: parse_field(minute, &MINUTE)?,
            hour: parse_field(hour, &HOUR)?,
            day: parse_field(day, &DAY)?,
            month: parse_field(month, &MONTH)?,
            weekday: parse_field(weekday, &WEEKDAY)?,
        })))
    }

    /// The first time after `after`; none if there is none within five years. A local time that the clocks skip is
    /// skipped, one that they show twice counts twice.
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(period) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*period).ok()
            }
            Schedule::Fields(fields) => fields.next_after(after, zone),
        }
    }
}

impl Fields {
    fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minute = after.as_second().div_euclid(60) + 1;
        let mut at = Timestamp::from_second(minute * 60).ok()?;
        let last_year = zone.to_datetime(at).year() + 5;
        loop {
            let local = zone.to_datetime(at);
            if local.year() > last_year {
                return None;
            }
            if !self.has_day(local.date()) {
                let tomorrow = local.date().tomorrow().ok()?;
                at = zone.to_timestamp(tomorrow.at(0, 0, 0, 0)).ok()?;
            } else if !self.hour.has(local.hour()) {
                at = at.checked_add((60 - i64::from(local.minute())).minutes()).ok()?;
            } else if !self.minute.has(local.minute()) {
                at = at.checked_add(1.minute()).ok()?;
            } else {
                return Some(at);
            }
        }
    }

    fn has_day(&self, date: Date) -> bool {
        if !self.month.has(date.month()) {
            return false;
        }
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        if self.day.any || self.weekday.any {
            day && weekday
        } else {
            day || weekday
        }
    }
}

/// A list of ranges.
fn parse_field(text: &str, bounds: &Bounds) -> Result<Set, String> {
    let mut set = Set { bits: 0, any: false };
    for range in text.split(',').filter(|r| !r.is_empty()) {
        let part = parse_range(range, bounds)?;
        set.bits |= part.bits;
        set.any |= part.any;
    }
    Ok(set)
}

/// `*`, `n`, `n-m`, each with `/step` or without.
fn parse_range(range: &str, bounds: &Bounds) -> Result<Set, String> {
    let (span, step) = match range.split('/').collect::<Vec<_>>().as_slice() {
        [span] => (*span, None),
        [span, step] => (*span, Some(parse_number(step)?)),
        _ => return Err(format!("too many slashes: {range}")),
    };
    let ends: Vec<&str> = span.split('-').collect();
    let star = matches!(ends[0], "*" | "?");
    let (start, end) = match ends.as_slice() {
        _ if star => (bounds.min, bounds.max),
        [one] => {
            let n = parse_value(one, bounds)?;
            (n, if step.is_some() { bounds.max } else { n })
        }
        [low, high] => (parse_value(low, bounds)?, parse_value(high, bounds)?),
        _ => return Err(format!("too many hyphens: {range}")),
    };
    let step_by = step.unwrap_or(1);
    if start < bounds.min {
        let min = bounds.min;
        return Err(format!("beginning of range ({start}) below minimum ({min}): {range}"));
    }
    if end > bounds.max {
        let max = bounds.max;
        return Err(format!("end of range ({end}) above maximum ({max}): {range}"));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {range}"
        ));
    }
    if step_by == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    let bits = (start..=end)
        .step_by(step_by as usize)
        .fold(0, |bits, n| bits | 1u64 << n);
    Ok(Set {
        bits,
        any: star && step_by == 1,
    })
}

/// A number, or the name of a month or a weekday.
fn parse_value(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let named = bounds.names.iter().position(|name| text.eq_ignore_ascii_case(name));
    match named {
        Some(i) => Ok(bounds.min + i as u32),
        None => parse_number(text),
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(n) if n < 0 => Err(format!("negative number ({n}) not allowed: {text}")),
        // Beyond any bound; no need to tell how far.
        Ok(n) => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let found = Schedule::parse(schedule)
            .unwrap()
            .next_after(after.parse().unwrap(), &zone);
        found.map_or("never".to_string(), |t| t.to_string())
    }

    #[test]
    fn the_next_time() {
        for (schedule, after, wanted) in [
            ("* * * * *", "2026-03-01T10:00:00Z", "2026-03-01T10:01:00Z"),
            ("* * * * *", "2026-03-01T10:00:59.5Z", "2026-03-01T10:01:00Z"),
            ("*/15 * * * *", "2026-03-01T10:46:00Z", "2026-03-01T11:00:00Z"),
            ("5/20 * * * *", "2026-03-01T10:26:00Z", "2026-03-01T10:45:00Z"),
            ("0 3 * * *", "2026-03-01T03:00:00Z", "2026-03-02T03:00:00Z"),
            ("30 4 29 2 *", "2026-03-01T00:00:00Z", "2028-02-29T04:30:00Z"),
            ("0 0 31 4 *", "2026-03-01T00:00:00Z", "never"),
            ("0 0 * * mon-fri", "2026-03-06T12:00:00Z", "2026-03-09T00:00:00Z"),
            ("0 0 13 * FRI", "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"),
            ("0 0 13 * ?", "2026-03-01T00:00:00Z", "2026-03-13T00:00:00Z"),
            ("0 0 1 jan,JUL *", "2026-03-01T00:00:00Z", "2026-07-01T00:00:00Z"),
            ("@yearly", "2026-03-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@monthly", "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"),
            ("@weekly", "2026-03-02T00:00:00Z", "2026-03-08T00:00:00Z"),
            ("@midnight", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"),
            ("@hourly", "2026-03-02T00:00:00Z", "2026-03-02T01:00:00Z"),
            ("@every 1h30m", "2026-03-02T00:00:00.25Z", "2026-03-02T01:30:00Z"),
            ("@every 1ms", "2026-03-02T00:00:00Z", "2026-03-02T00:00:01Z"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), wanted, "{schedule}");
        }
    }

    #[test]
    fn when_clocks_change() {
        // In Berlin 02:00 to 03:00 is left out on 29 March 2026, and comes twice on 25 October.
        for (schedule, after, wanted) in [
            ("30 2 * * *", "2026-03-28T02:00:00Z", "2026-03-30T00:30:00Z"),
            ("30 * * * *", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"),
            ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            ("0 0 * * *", "2026-10-25T12:00:00Z", "2026-10-25T23:00:00Z"),
        ] {
            assert_eq!(
                next(schedule, after, "Europe/Berlin"),
                wanted,
                "{schedule} after {after}"
            );
        }
    }

    #[test]
    fn what_is_refused() {
        for (schedule, wanted) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("1 2 3 4 5 6", "expected exactly 5 fields, found 6: [1 2 3 4 5 6]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * 13 *", "end of range (13) above maximum (12): 13"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            (
                "a * * * *",
                "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            ("@often", "unrecognized descriptor: @often"),
            (
                "@every x",
                "failed to parse duration @every x: time: invalid duration \"x\"",
            ),
        ] {
            let error = Schedule::parse(schedule).unwrap_err();
            assert_eq!(error.to_string(), wanted, "{schedule}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-*/?,0-9a-z@ ]{0,24}") {
            let _ = Schedule::parse(&text);
        }

        #[test]
        fn the_next_time_is_later_and_matches(minute in 0u32..60, hour in 0u32..24, day in 1u32..29, after in 0i64..2_000_000_000) {
            let schedule = Schedule::parse(&format!("{minute} {hour} {day} * *")).unwrap();
            let after = Timestamp::from_second(after).unwrap();
            let found = schedule.next_after(after, &TimeZone::UTC).unwrap();
            let local = TimeZone::UTC.to_datetime(found);
            prop_assert!(found > after && found.as_second() - after.as_second() <= 31 * 86400);
            prop_assert_eq!((local.minute() as u32, local.hour() as u32, local.day() as u32), (minute, hour, day));
        }
    }
}
