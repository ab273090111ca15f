//! Wall-clock time, injectable. Deciding code takes `now` as a parameter; shells ask a `Clock` for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;

/// Where "now" comes from. Cloning is cheap, and all clones of a manual clock share its time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    #[default]
    System,
    /// Stands still until moved; microseconds since the epoch.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    pub fn manual(start: Timestamp) -> Clock {
        Clock::Manual(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::now(),
            Clock::Manual(us) => Timestamp::from_microsecond(us.load(Ordering::SeqCst))
                .expect("a manual clock is only ever set from a valid timestamp"),
        }
    }

    /// Moves a manual clock forward; a system clock moves by itself and ignores this.
    pub fn advance(&self, by: std::time::Duration) {
        if let Clock::Manual(us) = self {
            us.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
        }
    }
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
        clock.clone().advance(std::time::Duration::from_millis(1500));
        assert_eq!(rfc3339_micro(clock.now()), "2026-01-02T03:04:06.500000Z");
    }
}
