//! Wall-clock time, injectable. Deciding code takes `now` as a parameter; shells ask a `Clock` for it.
//!
//! The plain `+` and `-` of times panic when the result is out of range, and how far to go is often a number from a
//! client (a grace period, a deadline, a lease's duration). [`Shift`] goes as far as there is time; clippy refuses the
//! operators (clippy.toml).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use jiff::{SignedDuration, Timestamp};

/// Moments that can be moved without regard to their range: beyond its ends they stay at the end.
pub trait Shift: Sized {
    fn later(self, by: Duration) -> Self;
    fn earlier(self, by: Duration) -> Self;

    /// Seconds as API fields count them: negative ones lead back.
    fn later_by_seconds(self, seconds: i64) -> Self {
        let by = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { self.earlier(by) } else { self.later(by) }
    }
}

impl Shift for Timestamp {
    fn later(self, by: Duration) -> Timestamp {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        self.checked_add(by).unwrap_or(Timestamp::MAX)
    }

    fn earlier(self, by: Duration) -> Timestamp {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        self.checked_sub(by).unwrap_or(Timestamp::MIN)
    }
}

impl Shift for SystemTime {
    fn later(self, by: Duration) -> SystemTime {
        self.checked_add(by).or_else(|| self.checked_add(AGES)).unwrap_or(self)
    }

    fn earlier(self, by: Duration) -> SystemTime {
        self.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Shift for Instant {
    fn later(self, by: Duration) -> Instant {
        self.checked_add(by).or_else(|| self.checked_add(AGES)).unwrap_or(self)
    }

    /// How far back an instant can go depends on the system: what is too far is as if no time had passed.
    fn earlier(self, by: Duration) -> Instant {
        self.checked_sub(by).unwrap_or(self)
    }
}

impl Shift for tokio::time::Instant {
    fn later(self, by: Duration) -> Self {
        self.into_std().later(by).into()
    }

    fn earlier(self, by: Duration) -> Self {
        self.into_std().earlier(by).into()
    }
}

/// Longer than anything waits: thirty years, as far ahead as timers reach.
const AGES: Duration = Duration::from_secs(30 * 365 * 86_400);

/// From one moment to a later one; zero if it is not later.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Seconds as API fields count them, as a length of time: negative ones are none.
pub fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// Where "now" comes from. Cloning is cheap, and all clones of a manual clock share its time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    #[default]
    System,
    /// Stands still until moved; microseconds since the epoch.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// Stands at `start` until it is advanced; clones share it.
    pub fn manual(start: Timestamp) -> Clock {
        Clock::Manual(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    /// The time now, to the microsecond if manual.
    #[expect(clippy::disallowed_methods, reason = "everybody else asks here")]
    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::now(),
            Clock::Manual(us) => Timestamp::from_microsecond(us.load(Ordering::SeqCst))
                .expect("a manual clock is only ever set from a valid timestamp"),
        }
    }

    /// Moves a manual clock forward; a system clock moves by itself and ignores this.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(us) = self {
            us.store(self.now().later(by).as_microsecond(), Ordering::SeqCst);
        }
    }
}

/// The monotonic time now, for measuring and for waits of threads.
#[expect(clippy::disallowed_methods, reason = "everybody else asks here")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The wall-clock time now, where an API takes a `SystemTime`; elsewhere a [`Clock`] tells it.
#[expect(clippy::disallowed_methods, reason = "everybody else asks here")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// A timestamp as Kubernetes writes `metav1.Time`: RFC 3339, whole seconds, UTC.
pub fn rfc3339(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A timestamp as Kubernetes writes `metav1.MicroTime`: RFC 3339 with six decimals, UTC.
pub fn rfc3339_micro(t: Timestamp) -> String {
    let micros = t.subsec_microsecond();
    format!("{}.{micros:06}Z", t.strftime("%Y-%m-%dT%H:%M:%S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_when_told() {
        let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
        assert_eq!(rfc3339(clock.now()), "2026-01-02T03:04:05Z");
        clock.clone().advance(Duration::from_millis(1500));
        assert_eq!(rfc3339_micro(clock.now()), "2026-01-02T03:04:06.500000Z");
    }

    #[test]
    fn moments_stay_within_their_range() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(rfc3339(at.later_by_seconds(5)), "2026-01-02T03:04:10Z");
        assert_eq!(rfc3339(at.later_by_seconds(-5)), "2026-01-02T03:04:00Z");
        assert_eq!(rfc3339(at.earlier(Duration::from_secs(5))), "2026-01-02T03:04:00Z");
        for seconds in [i64::MAX, i64::MAX - 1, i64::MAX / 2, i64::from(u32::MAX) * 1000] {
            assert_eq!(at.later_by_seconds(seconds), Timestamp::MAX);
            assert_eq!(at.later_by_seconds(-seconds), Timestamp::MIN);
        }
        assert_eq!(at.later_by_seconds(i64::MIN), Timestamp::MIN);
        let (instant, system) = (monotonic(), wall());
        for by in [Duration::MAX, seconds(i64::MAX), Duration::from_secs(u64::MAX)] {
            assert!(instant.later(by) > instant);
            assert!(tokio::time::Instant::from_std(instant).later(by).into_std() > instant);
            assert!(system.later(by) > system);
            assert!(instant.earlier(by) <= instant);
            assert!(system.earlier(by) <= system);
            assert_eq!(at.later(by), Timestamp::MAX);
            assert_eq!(at.earlier(by), Timestamp::MIN);
        }
    }

    #[test]
    fn lengths_of_time_are_never_negative() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(elapsed(at, at.later_by_seconds(7)), Duration::from_secs(7));
        assert_eq!(elapsed(at.later_by_seconds(7), at), Duration::ZERO);
        assert_eq!(elapsed(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
        assert!(elapsed(Timestamp::MIN, Timestamp::MAX) > AGES);
        assert_eq!((seconds(-3), seconds(3)), (Duration::ZERO, Duration::from_secs(3)));
    }
}
