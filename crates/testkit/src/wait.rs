//! Waiting for conditions. Tests never wait for time.

use std::time::Duration;

use orlop_base::clock::{Shift, monotonic};

/// How long anything may take before a test gives up on it: generous, because a loaded machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until there is an answer; panics with `what` when patience is over. It blocks the thread: in async tests only what
/// needs no task of the runtime to go on can be asked for; see [`until`].
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let patience = patience();
    let deadline = monotonic().later(patience);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(monotonic() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// [`eventually`] for what is awaited, such as a request. Each question has an end as well.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let patience = patience();
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let answer = tokio::time::timeout(patience, asking).await;
    answer.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}

/// An emulated machine is many times as slow.
pub(crate) fn patience() -> Duration {
    match crate::machine::is_inside() {
        true => PATIENCE.saturating_mul(4),
        false => PATIENCE,
    }
}
