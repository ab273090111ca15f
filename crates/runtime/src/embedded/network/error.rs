//! Why pods could not be given their network.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use orlop_netlink::nft::TableError;

pub type Result<T, E = PodNetworkError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum PodNetworkError {
    /// The node has no pod range yet, or lost it.
    #[error("pod network is not ready: the node has no pod CIDR")]
    NotReady,
    #[error("invalid pod CIDR {range}: {reason}")]
    InvalidRange { range: IpNet, reason: &'static str },
    // Upstream: host-local's wording (containernetworking/plugins), which operators search for.
    #[error("no IP addresses available in range set: {0}")]
    Exhausted(String),
    #[error("invalid port mapping: {0}")]
    InvalidPort(String),
    #[error("invalid sandbox id {0:?}")]
    InvalidSandbox(String),
    #[error("{0} is the node's own network namespace")]
    NodeNamespace(PathBuf),
    #[error("failed to {action}")]
    Kernel { action: String, source: io::Error },
    #[error("failed to {action} {path}")]
    State {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("the pod network's worker has stopped")]
    Stopped,
}

impl PodNetworkError {
    /// With all causes: a runtime's error is one message.
    pub fn into_runtime(self) -> crate::Error {
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(&self);
        while let Some(next) = cause {
            message = format!("{message}: {next}");
            cause = next.source();
        }
        crate::Error::new(crate::Code::Other, message)
    }
}

/// An error of a request to the kernel.
pub(super) fn kernel(action: impl Into<String>) -> impl FnOnce(io::Error) -> PodNetworkError {
    let action = action.into();
    move |source| PodNetworkError::Kernel { action, source }
}

/// An error of a file of the state directory.
pub(super) fn state(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PodNetworkError {
    let path = path.to_path_buf();
    move |source| PodNetworkError::State { action, path, source }
}
