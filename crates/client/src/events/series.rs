//! Repetitions of an event become a series: the first is written, the second turns it into a series of two, later ones
//! are only counted. The count is written again when the series has been quiet for six minutes, and every half hour.
//! Upstream: client-go tools/events.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Event, EventApi, EventNames, Report, Source};

/// A series that is quiet for so long is over; an event repeated after so long is a new one.
pub(super) const SERIES_IDLE: Duration = Duration::from_secs(6 * 60);
/// Events remembered so that their repetitions are known for such. Without a bound, a busy scheduler would remember
/// millions; the oldest are forgotten first, and their repetitions are new events.
const REMEMBERED_MAX: usize = 1 << 16;

/// What is remembered of an event. A single one can be written again from its repetition.
enum SeenEvent {
    Once { name: Box<str>, at: Timestamp },
    Series(Box<Report>),
}

#[derive(Default)]
pub(super) struct SeriesKeeper {
    /// By the hash of all that makes two events the same. Counts are for people: that two of a few ten thousand share
    /// one of 2⁶⁴ hashes does not matter.
    seen: HashMap<u64, SeenEvent>,
    /// Keys by the time they were first seen (series: or last looked at); may hold some that are gone.
    order: VecDeque<(u64, Timestamp)>,
    hasher: RandomState,
}

impl SeriesKeeper {
    /// What to write, if anything.
    pub(super) fn observe(
        &mut self,
        source: Arc<Source>,
        event: Event,
        at: Timestamp,
        names: &mut EventNames,
    ) -> Option<Report> {
        self.forget(at);
        let key = self.key(&source, &event);
        match self.seen.get_mut(&key) {
            Some(SeenEvent::Series(report)) => {
                report.count = report.count.saturating_add(1);
                report.last = at;
                None
            }
            Some(SeenEvent::Once { name, at: first }) => {
                let report = Report {
                    source,
                    event,
                    name: name.clone(),
                    first: *first,
                    last: at,
                    count: 2,
                };
                self.seen.insert(key, SeenEvent::Series(Box::new(report.clone())));
                Some(report)
            }
            None => {
                let name = names.next(&event.regarding.name, at);
                let once = SeenEvent::Once { name: name.clone(), at };
                self.seen.insert(key, once);
                self.order.push_back((key, at));
                Some(Report {
                    source,
                    event,
                    name,
                    first: at,
                    last: at,
                    count: 1,
                })
            }
        }
    }

    /// Series that are over, with their last count; with `refresh` the running ones, too.
    pub(super) fn sweep(&mut self, now: Timestamp, refresh: bool) -> Vec<Report> {
        self.forget(now);
        let mut reports = vec![];
        self.seen.retain(|_, seen| {
            let SeenEvent::Series(report) = seen else { return true };
            let over = is_old(report.last, now);
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
                Some(SeenEvent::Once { at: first, .. }) if *first == at => drop(self.seen.remove(&key)),
                // A series ends by a sweep, unless there is no room for it.
                Some(SeenEvent::Series(_)) if full => drop(self.seen.remove(&key)),
                Some(SeenEvent::Series(_)) => self.order.push_back((key, now)),
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
        let notes_matter = matches!(source.api, EventApi::EventsV1 { notes_matter: true, .. });
        let note = notes_matter.then_some(note);
        self.hasher
            .hash_one((kind, action, reason, source, regarding, related, note))
    }
}

fn is_old(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) > SERIES_IDLE.try_into().expect("six minutes are a duration")
}
