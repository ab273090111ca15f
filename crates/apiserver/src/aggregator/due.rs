//! When what is to be done again: each key is worked on by one at a time, again after a while, after failures sooner and
//! sooner less. Pure: the time is given.

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_base::clock::Shift;
use tokio::time::Instant;

/// How long to wait between two times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// After a success.
    pub every: Duration,
    /// After the first failure; doubled with each further one.
    pub retry_first: Duration,
    pub retry_max: Duration,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    failures: u32,
    running: bool,
}

#[derive(Debug)]
pub(crate) struct Due<K> {
    pace: Pace,
    entries: BTreeMap<K, Entry>,
}

impl<K: Ord + Clone> Due<K> {
    pub(crate) fn new(pace: Pace) -> Due<K> {
        Due {
            pace,
            entries: BTreeMap::new(),
        }
    }

    /// The key is due now; if it is being worked on, once more after that.
    pub(crate) fn touch(&mut self, key: &K, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_insert(Entry {
            at: now,
            failures: 0,
            running: false,
        });
        entry.at = now;
        entry.failures = 0;
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }

    /// A key that is due and that nobody works on. The caller does, until `done`.
    pub(crate) fn start(&mut self, now: Instant) -> Option<K> {
        let due = self.entries.iter_mut().find(|(_, e)| !e.running && e.at <= now);
        due.map(|(key, entry)| {
            entry.running = true;
            // Whoever touches it meanwhile brings it forward again.
            entry.at = now.later(self.pace.every);
            key.clone()
        })
    }

    /// `began` is the time of its `start`.
    pub(crate) fn done(&mut self, key: &K, worked: bool, began: Instant, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = false;
        if entry.at != began.later(self.pace.every) {
            return;
        }
        if worked {
            entry.failures = 0;
            entry.at = now.later(self.pace.every);
        } else {
            let wait = self.pace.retry_first.saturating_mul(1 << entry.failures.min(20));
            entry.failures += 1;
            entry.at = now.later(wait.min(self.pace.retry_max));
        }
    }

    /// When the next key is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.values().filter(|e| !e.running).map(|e| e.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_later_and_later() {
        let pace = Pace {
            every: Duration::from_secs(30),
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(5),
        };
        let mut due = Due::new(pace);
        let mut now = Instant::now();
        due.touch(&"a", now);
        for seconds in [1, 2, 4, 5, 5] {
            let began = now;
            assert_eq!(due.start(now), Some("a"));
            assert_eq!((due.start(now), due.next()), (None, None));
            due.done(&"a", false, began, now);
            let next = due.next().unwrap();
            assert_eq!(next, now.later(Duration::from_secs(seconds)));
            now = next;
        }
        assert_eq!(due.start(now), Some("a"));
        due.done(&"a", true, now, now);
        assert_eq!(due.next(), Some(now.later(pace.every)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_meanwhile_is_looked_at_again() {
        let pace = Pace {
            every: Duration::from_secs(30),
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(5),
        };
        let (mut due, now) = (Due::new(pace), Instant::now());
        due.touch(&1, now);
        assert_eq!(due.start(now), Some(1));
        due.touch(&1, now);
        assert_eq!(due.start(now), None);
        due.done(&1, true, now, now);
        assert_eq!(due.start(now), Some(1));
        due.retain(|_| false);
        due.done(&1, true, now, now);
        assert_eq!(due.next(), None);
    }
}
