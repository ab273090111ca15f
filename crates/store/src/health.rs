//! Whether the store takes writes: for health checks, which must not wait for the writer thread.

use std::time::SystemTime;

use parking_lot::Mutex;

/// Why the store takes no writes at present. Reads keep working.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct LogFailure {
    /// When writes began to fail.
    pub since: SystemTime,
    /// The last error.
    pub error: String,
}

/// Set by the writer thread, read by anyone.
#[derive(Default)]
pub(crate) struct Health(Mutex<Option<LogFailure>>);

impl Health {
    pub(crate) fn get(&self) -> Result<(), LogFailure> {
        self.0.lock().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Whether it was good before.
    pub(crate) fn failed(&self, now: SystemTime, error: String) -> bool {
        let mut failure = self.0.lock();
        let since = failure.as_ref().map_or(now, |failure| failure.since);
        failure.replace(LogFailure { since, error }).is_none()
    }

    pub(crate) fn recovered(&self) -> Option<LogFailure> {
        self.0.lock().take()
    }
}
