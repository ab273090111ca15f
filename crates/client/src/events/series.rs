//! Repetitions of an event become a series: the first is written, the second turns it into a series of two, later ones
//! are only counted. The count is written again when the series has been quiet for six minutes, and every half hour.
//! Upstream: client-go tools/events.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::names;

use super::{Event, Source};

/// A series that is quiet for so long is over; an event repeated after so long is a new one.
pub(super) const SERIES_IDLE: Duration = Duration::from_secs(6 * 60);
/// Events remembered so that their repetitions are known for such. Without a bound, a busy scheduler would remember
/// millions; the oldest are forgotten first, and their repetitions are new events.
const REMEMBERED_MAX: usize = 1 << 16;

/// An event as it is to stand in the cluster.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub source: Arc<Source>,
    pub event: Event,
    pub name: Box<str>,
    pub at: Timestamp,
    pub series: Option<Series>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Series {
    pub count: u32,
    pub last: Timestamp,
}

impl Report {
    pub fn namespace(&self) -> &str {
        match self.event.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }
}

/// What is remembered of an event. A single one can be written again from its repetition.
enum Seen {
    Once { name: Box<str>, at: Timestamp },
    Series(Box<Report>),
}

#[derive(Default)]
pub(super) struct Aggregator {
    /// By the hash of all that makes two events the same. Counts are for people: that two of a few ten thousand share
    /// one of 2⁶⁴ hashes does not matter.
    seen: HashMap<u64, Seen>,
    /// Keys by the time they were first seen (series: or last looked at); may hold some that are gone.
    order: VecDeque<(u64, Timestamp)>,
    hasher: RandomState,
    last_nanosecond: i128,
}

impl Aggregator {
    /// What to write, if anything.
    pub fn observe(&mut self, source: Arc<Source>, event: Event, at: Timestamp) -> Option<Report> {
        self.forget(at);
        let key = self.key(&source, &event);
        match self.seen.get_mut(&key) {
            Some(Seen::Series(report)) => {
                let series = report.series.as_mut().expect("a series has a count");
                series.count = series.count.saturating_add(1);
                series.last = at;
                None
            }
            Some(Seen::Once { name, at: first }) => {
                let report = Report {
                    source,
                    event,
                    name: name.clone(),
                    at: *first,
                    series: Some(Series { count: 2, last: at }),
                };
                self.seen.insert(key, Seen::Series(Box::new(report.clone())));
                Some(report)
            }
            None => {
                let name = self.name(&event.regarding.name, at);
                let once = Seen::Once { name: name.clone(), at };
                self.seen.insert(key, once);
                self.order.push_back((key, at));
                Some(Report {
                    source,
                    event,
                    name,
                    at,
                    series: None,
                })
            }
        }
    }

    /// Series that are over, with their last count; with `refresh` the running ones, too.
    pub fn sweep(&mut self, now: Timestamp, refresh: bool) -> Vec<Report> {
        self.forget(now);
        let mut reports = vec![];
        self.seen.retain(|_, seen| {
            let Seen::Series(report) = seen else { return true };
            let over = report.series.as_ref().is_none_or(|series| is_old(series.last, now));
            if over || refresh {
                reports.push((**report).clone());
            }
            !over
        });
        reports
    }

    /// Drops single events that are too old to be repeated, and the oldest of too many.
    fn forget(&mut self, now: Timestamp) {
        while let Some((key, at)) = self.order.front().copied() {
            let full = self.order.len() >= REMEMBERED_MAX;
            if !full && !is_old(at, now) {
                return;
            }
            self.order.pop_front();
            match self.seen.get(&key) {
                Some(Seen::Once { at: first, .. }) if *first == at => drop(self.seen.remove(&key)),
                // A series ends by a sweep, unless there is no room for it.
                Some(Seen::Series(_)) if full => drop(self.seen.remove(&key)),
                Some(Seen::Series(_)) => self.order.push_back((key, now)),
                _ => {}
            }
        }
    }

    fn key(&self, source: &Source, event: &Event) -> u64 {
        let Event {
            regarding,
            related,
            kind,
            reason,
            action,
            note,
        } = event;
        let note = source.notes_matter.then_some(note);
        self.hasher
            .hash_one((kind, action, reason, source, regarding, related, note))
    }

    /// Unique by its time, which therefore never stands still. Upstream: `<object>.<nanoseconds, hexadecimal>`.
    fn name(&mut self, object: &str, at: Timestamp) -> Box<str> {
        self.last_nanosecond = at.as_nanosecond().max(self.last_nanosecond + 1);
        let name = format!("{object}.{:x}", self.last_nanosecond);
        match names::dns_subdomain(&name).is_empty() {
            true => name.into(),
            false => uuid::Uuid::new_v4().to_string().into(),
        }
    }
}

fn is_old(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) > SERIES_IDLE.try_into().expect("six minutes are a duration")
}
