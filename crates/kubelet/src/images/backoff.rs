//! Back-off of failed pulls, by pod and image. Pure.
//!
//! Upstream: client-go util/flowcontrol Backoff: reset after twice the maximum.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

#[derive(Clone, Debug)]
struct Entry {
    delay: Duration,
    failed: Timestamp,
    error: String,
}

#[derive(Clone, Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    /// Bounded: entries of long ago leave at each failure.
    entries: BTreeMap<(String, String), Entry>,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff {
            first,
            most,
            entries: BTreeMap::new(),
        }
    }

    /// How long there is still to wait, and what went wrong the last time.
    pub(super) fn waiting(&self, uid: &str, image: &str, now: Timestamp) -> Option<(Duration, &str)> {
        let entry = self.entries.get(&(uid.to_string(), image.to_string()))?;
        let left = entry.delay.checked_sub(since(entry.failed, now))?;
        (!left.is_zero()).then_some((left, entry.error.as_str()))
    }

    /// A pull failed; returns how long to wait.
    pub(super) fn failed(&mut self, uid: &str, image: &str, error: String, now: Timestamp) -> Duration {
        let stale = self.most.saturating_mul(2);
        self.entries.retain(|_, entry| since(entry.failed, now) <= stale);
        let key = (uid.to_string(), image.to_string());
        let delay = match self.entries.get(&key) {
            Some(entry) => entry.delay.saturating_mul(2).min(self.most),
            None => self.first,
        };
        let failed = now;
        self.entries.insert(key, Entry { delay, failed, error });
        delay
    }

    pub(super) fn forget_pod(&mut self, uid: &str) {
        self.entries.retain(|(pod, _), _| pod != uid);
    }
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_most_and_forgets() {
        let second = Duration::from_secs(1);
        let mut now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut backoff = Backoff::new(10 * second, 300 * second);
        assert_eq!(backoff.waiting("u", "i", now), None);
        let mut delays = Vec::new();
        for _ in 0..7 {
            let delay = backoff.failed("u", "i", "why".into(), now);
            assert_eq!(backoff.waiting("u", "i", now + delay - second), Some((second, "why")));
            assert_eq!(backoff.waiting("u", "i", now + delay), None);
            assert_eq!(backoff.waiting("v", "i", now), None);
            delays.push(delay.as_secs());
            now += delay;
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        now += 601 * second;
        assert_eq!(backoff.failed("u", "i", String::new(), now), 10 * second);
        backoff.forget_pod("u");
        assert!(backoff.entries.is_empty());
    }
}
