//! Waiting for conditions. Tests never wait for time.

use std::time::Duration;

use orlop_base::clock::{Shift, monotonic};

/// How long anything may take before a test gives up on it: generous, because a loaded machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until there is an answer; panics with `what` when patience is over.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    // An emulated machine is many times as slow.
    let patience = if crate::machine::is_inside() {
        PATIENCE.saturating_mul(4)
    } else {
        PATIENCE
    };
    let deadline = monotonic().later(patience);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(monotonic() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
