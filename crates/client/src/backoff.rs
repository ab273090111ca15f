//! How long to wait before trying again. Upstream: client-go's reflector (0.8 s, doubling, at most 30 s, and up to as much
//! again at random so that clients do not come back all at once).

use std::time::Duration;

use orlop_base::Random;

const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);

pub(crate) struct Backoff {
    failures: u32,
    random: Random,
}

impl Backoff {
    pub(crate) fn new(random: Random) -> Backoff {
        Backoff { failures: 0, random }
    }

    /// All is well again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Counts a failure and says how long to wait.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = FIRST.saturating_mul(1 << self.failures.min(10)).min(MAX);
        self.failures = self.failures.saturating_add(1);
        jittered(delay, 1.0, &mut self.random)
    }
}

/// From `delay` up to `factor` times it more.
pub(crate) fn jittered(delay: Duration, factor: f64, random: &mut Random) -> Duration {
    const STEPS: u64 = 1 << 20;
    let more = delay.as_secs_f64() * factor * random.below(STEPS) as f64 / STEPS as f64;
    delay.saturating_add(Duration::try_from_secs_f64(more).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_start_over() {
        let mut backoff = Backoff::new(Random::seeded(1));
        for round in 0..2 {
            assert!(!backoff.has_failed());
            for expected in [800, 1600, 3200, 6400, 12800, 25600, 30000, 30000] {
                let delay = backoff.next_delay().as_millis();
                assert!((expected..=2 * expected).contains(&delay), "{round} {expected} {delay}");
            }
            backoff.reset();
        }
    }
}
