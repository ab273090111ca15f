//! When a CronJob should have started last, and when it starts next.
//!
//! A local time that the clocks skip is skipped, one that they show twice counts twice: so does cron's library upstream.
// Upstream: pkg/controller/cronjob/utils.go (v1.36)

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use orlop_api::batch::cron_schedule::Schedule;

use crate::objects::CronJob;

/// More starts missed than this is worth a warning.
const MANY: i64 = 100;

/// A schedule in its time zone.
#[derive(Clone, Debug)]
pub(super) struct Times {
    schedule: Schedule,
    zone: TimeZone,
}

/// Why it can't be told when there should be starts.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScheduleError {
    #[error("unknown time zone {0}")]
    UnknownZone(String),
    #[error("{0}")]
    Unparseable(String),
    /// There is no time that the schedule is for. Upstream says it in these words.
    #[error("time difference between two schedules is less than 1 second")]
    Never,
}

/// A time at which there should have been a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub at: Timestamp,
    /// So many starts were missed before it that something must be wrong.
    pub many_missed: bool,
}

/// The CronJob's zone; none has it run by `local`.
pub(super) fn zone(name: Option<&str>, local: &TimeZone) -> Result<TimeZone, ScheduleError> {
    match name {
        None => Ok(local.clone()),
        Some("") => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name).map_err(|_| ScheduleError::UnknownZone(name.to_string())),
    }
}

impl Times {
    /// A schedule may begin with a zone of its own (`TZ=Europe/Berlin 0 8 * * *`): not supported, but obeyed.
    pub(super) fn parse(schedule: &str, zone: &TimeZone) -> Result<Times, ScheduleError> {
        let own = ["TZ=", "CRON_TZ="]
            .iter()
            .find_map(|prefix| schedule.strip_prefix(prefix));
        let (zone, fields) = match own {
            None => (zone.clone(), schedule),
            Some(rest) => {
                let (name, fields) = rest.split_once(' ').unwrap_or((rest, ""));
                let zone = TimeZone::get(name);
                let zone = zone.map_err(|_| {
                    ScheduleError::Unparseable(format!("provided bad location {name}: unknown time zone {name}"))
                })?;
                (zone, fields.trim())
            }
        };
        let schedule = Schedule::parse(fields).map_err(|error| ScheduleError::Unparseable(error.to_string()))?;
        Ok(Times { schedule, zone })
    }

    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next_after(after, &self.zone)
    }

    /// The last time up to now at which there should have been a start, if there was one since the last start.
    pub(super) fn due(&self, cron: &CronJob, now: Timestamp) -> Result<Option<Due>, ScheduleError> {
        let mut since = last_start(cron);
        if let Some(deadline) = cron.spec.starting_deadline_seconds {
            let window = SignedDuration::from_secs(deadline);
            since = since.max(now.checked_sub(window).unwrap_or(Timestamp::MIN));
        }
        self.last_between(since, now)
    }

    /// From now until the next start.
    pub(super) fn wait(&self, cron: &CronJob, now: Timestamp) -> Option<Duration> {
        let since = last_start(cron);
        let base = match self.last_between(since, now) {
            Ok(Some(due)) => due.at,
            Ok(None) => since,
            Err(_) => now,
        };
        let next = self.next(base).filter(|next| *next > now).or_else(|| self.next(now))?;
        next.duration_since(now).try_into().ok()
    }

    fn last_between(&self, since: Timestamp, now: Timestamp) -> Result<Option<Due>, ScheduleError> {
        let first = self.next(since).ok_or(ScheduleError::Never)?;
        if first > now {
            return Ok(None);
        }
        let Some(second) = self.next(first).filter(|second| *second <= now) else {
            return Ok(Some(Due {
                at: first,
                many_missed: false,
            }));
        };
        let step = second.as_second() - first.as_second();
        let missed = (now.as_second() - first.as_second()) / step.max(1) + 1;
        // Not every step of a schedule is as long as its first one: look back further and further until there is a start.
        let mut back = step.max(60);
        let mut at = second;
        loop {
            let from = now
                .checked_sub(SignedDuration::from_secs(back))
                .unwrap_or(first)
                .max(first);
            if let Some(next) = self.next(self.aligned(from, first, step)).filter(|next| *next <= now) {
                at = at.max(next);
                break;
            }
            if from == first {
                break;
            }
            back = back.saturating_mul(2);
        }
        while let Some(next) = self.next(at).filter(|next| *next <= now) {
            at = next;
        }
        Ok(Some(Due {
            at,
            many_missed: missed > MANY,
        }))
    }

    /// `@every` counts from where it began, so a look back must hit one of its steps.
    fn aligned(&self, from: Timestamp, first: Timestamp, step: i64) -> Timestamp {
        match self.schedule {
            Schedule::Fields(_) => from,
            Schedule::Every(_) => {
                let steps = (from.as_second() - first.as_second()).div_euclid(step.max(1));
                let whole = SignedDuration::from_secs(steps.saturating_mul(step));
                first.checked_add(whole).unwrap_or(first)
            }
        }
    }
}

/// The last start, or the beginning of all.
fn last_start(cron: &CronJob) -> Timestamp {
    let created = cron.metadata.creation_timestamp;
    cron.status
        .last_schedule_time
        .or(created)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn cron(last: &str, deadline: Option<i64>) -> CronJob {
        let value = json!({"metadata": {"creationTimestamp": last}, "spec": {"startingDeadlineSeconds": deadline}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_due() {
        let far = "2026-01-01T00:00:00Z";
        for (schedule, last, deadline, now, wanted) in [
            ("0 * * * *", "2026-03-01T10:30:00Z", None, "2026-03-01T10:59:59Z", None),
            (
                "0 * * * *",
                "2026-03-01T10:30:00Z",
                None,
                "2026-03-01T11:00:00Z",
                Some(("2026-03-01T11:00:00Z", false)),
            ),
            ("0 * * * *", "2026-03-01T11:00:00Z", None, "2026-03-01T11:59:00Z", None),
            (
                "0 * * * *",
                "2026-03-01T10:30:00Z",
                None,
                "2026-03-01T14:30:00Z",
                Some(("2026-03-01T14:00:00Z", false)),
            ),
            (
                "* * * * *",
                "2026-03-01T10:00:00Z",
                None,
                "2026-03-01T11:40:30Z",
                Some(("2026-03-01T11:40:00Z", false)),
            ),
            (
                "* * * * *",
                "2026-03-01T10:00:00Z",
                None,
                "2026-03-01T11:41:30Z",
                Some(("2026-03-01T11:41:00Z", true)),
            ),
            (
                "* * * * *",
                far,
                Some(200),
                "2026-03-01T11:41:30Z",
                Some(("2026-03-01T11:41:00Z", false)),
            ),
            ("0 * * * *", far, Some(60), "2026-03-01T11:41:30Z", None),
            // Two starts close together, then none for a day: the second is the one that counts.
            (
                "0,1 0 * * *",
                "2026-02-28T12:00:00Z",
                None,
                "2026-03-01T12:00:00Z",
                Some(("2026-03-01T00:01:00Z", true)),
            ),
            (
                "0 0 1 1 *",
                "2020-06-01T00:00:00Z",
                None,
                "2026-03-01T00:00:00Z",
                Some(("2026-01-01T00:00:00Z", false)),
            ),
            (
                "@every 7m",
                "2026-03-01T10:00:00Z",
                None,
                "2026-03-01T10:30:00Z",
                Some(("2026-03-01T10:28:00Z", false)),
            ),
            ("TZ=Asia/Tokyo 0 9 * * *", far, None, "2026-01-01T12:00:00Z", None),
            (
                "CRON_TZ=Asia/Tokyo 0 9 * * *",
                far,
                None,
                "2026-01-02T12:00:00Z",
                Some(("2026-01-02T00:00:00Z", false)),
            ),
        ] {
            let times = Times::parse(schedule, &TimeZone::UTC).unwrap();
            let due = times.due(&cron(last, deadline), now.parse().unwrap()).unwrap();
            let wanted = wanted.map(|(at, many_missed)| Due {
                at: at.parse().unwrap(),
                many_missed,
            });
            assert_eq!(due, wanted, "{schedule} after {last} at {now}");
        }
        let never = Times::parse("0 0 30 2 *", &TimeZone::UTC).unwrap();
        assert!(never.due(&cron(far, None), orlop_base::Clock::System.now()).is_err());
        assert_eq!(never.wait(&cron(far, None), orlop_base::Clock::System.now()), None);
        assert!(Times::parse("TZ=Mars/Base 0 9 * * *", &TimeZone::UTC).is_err());
    }

    #[test]
    fn how_long_to_wait() {
        for (schedule, last, now, wanted) in [
            ("0 * * * *", "2026-03-01T10:30:00Z", "2026-03-01T10:59:00Z", 60),
            ("0 * * * *", "2026-03-01T10:30:00Z", "2026-03-01T11:10:00Z", 50 * 60),
            // Counted from the last start, however often one looks.
            ("@every 90s", "2026-03-01T10:00:00Z", "2026-03-01T10:00:50Z", 40),
            ("@every 90s", "2026-03-01T10:00:00Z", "2026-03-01T10:04:00Z", 30),
        ] {
            let times = Times::parse(schedule, &TimeZone::UTC).unwrap();
            let wait = times.wait(&cron(last, None), now.parse().unwrap()).unwrap();
            assert_eq!(wait.as_secs(), wanted, "{schedule} after {last} at {now}");
        }
    }

    /// The text of a field, and the values that it means; none if it means all.
    fn field(min: i8, max: i8) -> impl Strategy<Value = (String, Option<BTreeSet<i8>>)> {
        let part = prop_oneof![
            (min..=max).prop_map(|n| (n.to_string(), BTreeSet::from([n]))),
            (min..=max, min..=max).prop_map(|(a, b)| {
                let (low, high) = (a.min(b), a.max(b));
                (format!("{low}-{high}"), (low..=high).collect())
            }),
            (min..=max, 1i8..20)
                .prop_map(move |(n, step)| { (format!("{n}/{step}"), (n..=max).step_by(step as usize).collect()) }),
            (2i8..20).prop_map(move |step| (format!("*/{step}"), (min..=max).step_by(step as usize).collect())),
        ];
        let list = prop::collection::vec(part, 1..3).prop_map(|parts: Vec<(String, BTreeSet<i8>)>| {
            let text: Vec<String> = parts.iter().map(|(text, _)| text.clone()).collect();
            (
                text.join(","),
                Some(parts.into_iter().flat_map(|(_, set)| set).collect()),
            )
        });
        prop_oneof![Just(("*".to_string(), None)), list]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// The same as going through all minutes and asking the local clock.
        #[test]
        fn next_is_the_first_minute_that_matches(
            minute in field(0, 59), hour in field(0, 23), day in field(1, 31), month in field(1, 12), weekday in field(0, 6),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu"]),
            // All of 2026: clocks change in it.
            start in 1_767_225_600i64..1_798_761_600,
        ) {
            let zone = TimeZone::get(zone).unwrap();
            let text = format!("{} {} {} {} {}", minute.0, hour.0, day.0, month.0, weekday.0);
            let times = Times::parse(&text, &zone).unwrap();
            let has = |set: &Option<BTreeSet<i8>>, value: i8| set.as_ref().is_none_or(|set| set.contains(&value));
            let matches = |at: Timestamp| {
                let local = zone.to_datetime(at);
                let (in_month, in_week) = (has(&day.1, local.day()), has(&weekday.1, local.weekday().to_sunday_zero_offset()));
                let either = day.1.is_some() && weekday.1.is_some();
                let on_day = if either { in_month || in_week } else { in_month && in_week };
                has(&minute.1, local.minute()) && has(&hour.1, local.hour()) && on_day && has(&month.1, local.month())
            };
            let after = Timestamp::from_second(start).unwrap();
            let minutes = (1..40 * 1440).map(|n| Timestamp::from_second((start.div_euclid(60) + n) * 60).unwrap());
            let end = Timestamp::from_second(start + 39 * 86400).unwrap();
            let found = times.next(after).filter(|at| *at < end);
            prop_assert_eq!(found, minutes.take_while(|at| *at < end).find(|at| matches(*at)), "{}", text);
        }

        /// The last start is one, is not after now, and there is none between.
        #[test]
        fn due_is_the_last_one(minute in field(0, 59), hour in field(0, 23), since in 0i64..1_000_000, gap in 0i64..1_000_000) {
            let times = Times::parse(&format!("{} {} * * *", minute.0, hour.0), &TimeZone::UTC).unwrap();
            let (since, now) = (Timestamp::from_second(since).unwrap(), Timestamp::from_second(since + gap).unwrap());
            match times.last_between(since, now).unwrap() {
                None => prop_assert!(times.next(since).unwrap() > now),
                Some(due) => {
                    prop_assert!(since < due.at && due.at <= now);
                    prop_assert!(times.next(due.at).unwrap() > now);
                    prop_assert_eq!(times.next(due.at.checked_sub(SignedDuration::from_secs(1)).unwrap()), Some(due.at));
                }
            }
        }
    }
}
