//! How long a set waits before it replaces a pod that failed on a node: a node that refuses a pod would otherwise get a new
//! one at once, and again.
// Upstream: client-go flowcontrol.Backoff, as the DaemonSet controller uses it (v1.36)

use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

const FIRST: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(15 * 60);
const SWEEP: Duration = Duration::from_secs(60);

/// A set of this uid and generation, on a node: a changed set gets a fresh start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BackoffKey {
    pub uid: String,
    pub generation: i64,
    pub node: String,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    waits: FxHashMap<BackoffKey, Wait>,
    swept: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    long: Duration,
    since: Timestamp,
}

impl Wait {
    fn passed(&self, now: Timestamp) -> Duration {
        now.duration_since(self.since).try_into().unwrap_or_default()
    }

    /// After twice the longest wait, what failed before does not count any more.
    fn is_past(&self, now: Timestamp) -> bool {
        self.passed(now) > MAX.saturating_mul(2)
    }
}

impl Failures {
    /// How long a failed pod is still left alone.
    pub(super) fn left(&self, place: &BackoffKey, now: Timestamp) -> Option<Duration> {
        let wait = self.waits.get(place).filter(|wait| !wait.is_past(now))?;
        wait.long.checked_sub(wait.passed(now)).filter(|left| !left.is_zero())
    }

    /// A failed pod is being replaced; the next one waits twice as long.
    pub(super) fn replaced(&mut self, place: BackoffKey, now: Timestamp) {
        if now.duration_since(self.swept).unsigned_abs() > SWEEP {
            self.swept = now;
            self.waits.retain(|_, wait| !wait.is_past(now));
        }
        let before = self.waits.get(&place).filter(|wait| !wait.is_past(now));
        let long = before.map_or(FIRST, |wait| wait.long.saturating_mul(2).min(MAX));
        self.waits.insert(place, Wait { long, since: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_waits_twice_as_long() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let place = BackoffKey {
            uid: "u".into(),
            generation: 1,
            node: "n".into(),
        };
        let mut failures = Failures::default();
        assert_eq!(failures.left(&place, at(0)), None);
        failures.replaced(place.clone(), at(0));
        assert_eq!(failures.left(&place, at(0)), Some(Duration::from_secs(1)));
        assert_eq!(failures.left(&place, at(1)), None);
        failures.replaced(place.clone(), at(1));
        assert_eq!(failures.left(&place, at(2)), Some(Duration::from_secs(1)));
        let mut now = 3;
        for _ in 0..12 {
            failures.replaced(place.clone(), at(now));
            now += failures.left(&place, at(now)).unwrap().as_secs();
        }
        failures.replaced(place.clone(), at(now));
        assert_eq!(failures.left(&place, at(now)), Some(MAX));
        let other = BackoffKey {
            generation: 2,
            ..place.clone()
        };
        assert_eq!(failures.left(&other, at(now)), None);
        // Long after, it is as if nothing had been; and nothing is kept.
        let late = now + 2 * MAX.as_secs() + 1;
        failures.replaced(other, at(late));
        assert_eq!((failures.left(&place, at(late)), failures.waits.len()), (None, 1));
    }
}
