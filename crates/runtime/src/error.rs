//! Errors of a runtime.

/// Why a call failed, as far as the kubelet's next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// There is no such sandbox, container or image.
    NotFound,
    /// The call took too long.
    DeadlineExceeded,
    /// The runtime is unreachable, or the connection was lost during the call.
    Unavailable,
    /// The runtime does not implement the call.
    Unimplemented,
    /// Anything else, by the message.
    Other,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call, with the runtime's own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// As Kubernetes words a failed call where it includes the code:
    /// `rpc error: code = NotFound desc = …`.
    pub fn with_code(&self) -> String {
        let code = match self.code {
            Code::NotFound => "NotFound",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::Unavailable => "Unavailable",
            Code::Unimplemented => "Unimplemented",
            Code::Other => "Unknown",
        };
        format!("rpc error: code = {code} desc = {}", self.message)
    }
}
