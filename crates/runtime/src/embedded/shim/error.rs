//! Errors of a shim: which step failed and what the kernel said.

use std::io;

/// A step that failed. The text goes to whoever asked for the container.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {source}")]
pub(crate) struct StepError {
    action: String,
    source: io::Error,
}

impl StepError {
    /// Names what the step was about.
    pub(crate) fn at(self, path: &std::path::Path) -> StepError {
        StepError {
            action: format!("{}: {}", path.display(), self.action),
            ..self
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, StepError>;

/// Names the step that an I/O error belongs to.
pub(crate) trait Step<T> {
    fn step(self, action: &str) -> Result<T>;
    fn step_with(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, action: &str) -> Result<T> {
        self.step_with(|| action.to_string())
    }

    fn step_with(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| StepError {
            action: action(),
            source,
        })
    }
}

impl<T> Step<T> for nix::Result<T> {
    fn step(self, action: &str) -> Result<T> {
        self.map_err(io::Error::from).step(action)
    }

    fn step_with(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(io::Error::from).step_with(action)
    }
}
