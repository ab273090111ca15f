//! What goes wrong between a controller and its server.

use std::time::Duration;

use orlop_base::Random;

use super::store::Refusal;

/// `Default`: nothing does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One call in this many fails: refused (500, 429, 409) or lost (broken or silent, done or not). 0: none.
    pub one_in: u64,
    /// What a watch shows is behind by up to this much. Stay below `QUIET` of the cluster.
    pub lag_max: Duration,
    /// One look of a watch in this many finds it broken. 0: none.
    pub break_one_in: u64,
}

pub struct Fault {
    code: u16,
    reason: &'static str,
    /// The write was done nevertheless.
    pub done: bool,
    /// The answer never comes …
    pub lost: bool,
    /// … and nothing says so.
    pub silent: bool,
}

impl Fault {
    pub fn refusal(&self) -> Refusal {
        Refusal::new(self.code, self.reason, "a fault that the test put here")
    }
}

impl Faults {
    pub fn draw(&self, random: &mut Random, write: bool) -> Option<Fault> {
        if self.one_in == 0 || random.below(self.one_in) != 0 {
            return None;
        }
        let refused = |code, reason| Fault {
            code,
            reason,
            done: false,
            lost: false,
            silent: false,
        };
        let mut fault = match random.below(if write { 7 } else { 3 }) {
            0 => refused(500, "InternalError"),
            1 => refused(429, "TooManyRequests"),
            2 => refused(503, "ServiceUnavailable"),
            3 => refused(409, "Conflict"),
            n => Fault {
                lost: true,
                silent: n == 6,
                ..refused(504, "Timeout")
            },
        };
        fault.done = fault.lost && random.below(2) == 0;
        Some(fault)
    }

    pub fn lag(&self, random: &mut Random) -> Duration {
        match self.lag_max.as_micros() as u64 {
            0 => Duration::ZERO,
            most => Duration::from_micros(random.below(most)),
        }
    }

    pub fn breaks(&self, random: &mut Random) -> bool {
        self.break_one_in > 0 && random.below(self.break_one_in) == 0
    }
}
