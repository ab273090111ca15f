//! This node as the cluster sees it: its Node object and its lease.
//!
//! [`status::node_status`] is pure: machine, runtime and pressures in, status and events out. [`register`] says what a
//! new Node object looks like and what an old one lacks. [`keeper`] is the shell around them: it registers, reports the
//! status on change (looked at every 10 s) or every 5 minutes, and renews the lease every 10 s, so that the cluster
//! hears of a dead node within 40 s at the price of one small write.

pub mod address;
pub mod keeper;
pub mod machine;
#[cfg(test)]
pub(crate) mod quiet;
pub mod register;
pub mod resources;
pub mod status;

pub use keeper::{Keeper, Settings};
pub use machine::Machine;
pub use status::{Observed, Pressure, RuntimeView};

use orlop_client::ObjectReference;

use std::collections::BTreeMap;
use std::net::IpAddr;

/// What this node is called and where it is. Stays the same while the kubelet runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the Node object: the host's name in lower case unless it was given.
    pub name: String,
    pub hostname: String,
    /// One, or one for each address family.
    pub addresses: Vec<IpAddr>,
    /// Labels to add when registering.
    pub labels: BTreeMap<String, String>,
    /// Where the kubelet's own server listens.
    pub port: u16,
}

/// The version the kubelet speaks for: the one that the API server of the same build reports.
pub const KUBELET_VERSION: &str = concat!("v1.36.4+orlop", env!("CARGO_PKG_VERSION"));
pub const OS: &str = "linux";

/// What events of the node are about. Upstream: its name stands for its uid there.
pub fn reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        uid: name.to_string(),
        name: name.to_string(),
        ..ObjectReference::default()
    }
}

/// The machine's architecture as Go calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
