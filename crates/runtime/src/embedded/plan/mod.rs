//! From the CRI's messages to what a shim is told. Everything is decided here, by pure functions; behaviour is that of
//! containerd's CRI plugin.
// Upstream: containerd internal/cri/{server,opts}, pkg/oci (v2.3)

pub(crate) mod capabilities;
pub(crate) mod cdi;
pub(crate) mod container;
pub(crate) mod devices;
pub(crate) mod layers;
pub(crate) mod mounts;
pub(crate) mod process;
pub(crate) mod sandbox;
pub(crate) mod signals;
pub(crate) mod users;

/// A configuration that can't be carried out: the message for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PlanError(pub String);

/// As callers of the runtime get it.
pub(crate) fn invalid(error: PlanError) -> crate::Error {
    crate::Error::new(crate::Code::Other, error.0)
}

pub(crate) type Result<T> = std::result::Result<T, PlanError>;
