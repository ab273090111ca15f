//! How long a pod waits before it is tried again.
//!
//! Upstream: pkg/scheduler/backend/queue/backoff_queue.go (v1.36)

use std::time::Duration;

use jiff::Timestamp;

use super::pod::{QueuedPod, nanos};

const SECOND: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    initial: i64,
    max: i64,
    /// Expiry is a whole second, and all pods of one second come back together.
    whole_seconds: bool,
}

impl Backoff {
    pub(super) fn new(initial: Duration, max: Duration, whole_seconds: bool) -> Backoff {
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        Backoff {
            initial: nanos(initial),
            max: nanos(max),
            whole_seconds,
        }
    }

    /// Doubles with every count until it reaches the maximum.
    fn duration(&self, count: u32) -> i64 {
        let shift = count - 1;
        if self.initial > self.max.checked_shr(shift).unwrap_or(0) {
            self.max
        } else {
            self.initial << shift
        }
    }

    /// In nanoseconds since 1970. None: the pod need not wait.
    pub(super) fn expiry(&self, pod: &QueuedPod) -> Option<i64> {
        let count = match pod.consecutive_errors {
            0 => pod.unschedulable_count,
            errors => errors,
        };
        if self.max == 0 || count == 0 {
            return None;
        }
        Some(self.align(nanos(pod.timestamp).saturating_add(self.duration(count))))
    }

    fn align(&self, at: i64) -> i64 {
        if self.whole_seconds {
            at - at.rem_euclid(SECOND)
        } else {
            at
        }
    }

    /// The second (or the moment) of the expiry has to be over.
    pub(super) fn is_over(&self, expiry: i64, now: Timestamp) -> bool {
        expiry < self.align(nanos(now))
    }

    /// The first moment at which it is over.
    pub(super) fn over_at(&self, expiry: i64) -> Timestamp {
        let at = expiry.saturating_add(if self.whole_seconds { SECOND } else { 1 });
        Timestamp::from_nanosecond(i128::from(at)).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        let b = Backoff::new(second, second * 10, true);
        let got: Vec<i64> = [1, 2, 3, 4, 5, 6, 64, 65, 1000].map(|c| b.duration(c) / SECOND).into();
        assert_eq!(got, [1, 2, 4, 8, 10, 10, 10, 10, 10]);
        assert_eq!(Backoff::new(ms(1), ms(1), true).duration(7), 1_000_000);
    }

    #[test]
    fn is_over_when_its_second_is() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let exact = Backoff::new(Duration::from_secs(1), Duration::from_secs(10), false);
        let windows = Backoff {
            whole_seconds: true,
            ..exact
        };
        let expiry = windows.align(nanos(at(11_400)));
        assert_eq!(expiry, nanos(at(11_000)));
        assert!(!windows.is_over(expiry, at(11_999)));
        assert!(windows.is_over(expiry, at(12_000)));
        assert_eq!(windows.over_at(expiry), at(12_000));
        let expiry = exact.align(nanos(at(11_400)));
        assert!(!exact.is_over(expiry, at(11_400)));
        assert!(exact.is_over(expiry, exact.over_at(expiry)));
    }
}
