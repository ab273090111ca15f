//! What an agent is told: a file in the worker's directory, beside its credentials.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ranges::PodRanges;
use crate::data_dir;
use crate::embedded::EmbeddedNode;
use crate::services::ServicesPlan;

/// A worker node, as its agent sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkerNode {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub pod_cidr: PodRanges,
    pub labels: BTreeMap<String, String>,
    pub embedded: EmbeddedNode,
    /// The group that its pods' are in.
    pub cgroup_root: String,
    /// Where its pods look names up.
    pub dns: Option<IpAddr>,
    /// The user's `--kubelet-config`.
    pub kubelet_config: Option<PathBuf>,
    /// None: nothing makes services reachable.
    pub services: Option<ServicesPlan>,
}

impl WorkerNode {
    /// Where everything of the node is.
    pub(crate) fn directory(&self) -> &Path {
        self.embedded
            .worker
            .as_ref()
            .map_or(Path::new(""), |paths| &paths.directory)
    }

    pub(crate) fn network_namespace(&self) -> Option<&Path> {
        self.embedded.worker.as_ref().map(|paths| &*paths.network_namespace)
    }

    pub(crate) fn read(directory: &Path) -> io::Result<WorkerNode> {
        let text = std::fs::read_to_string(directory.join("node.json"))?;
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    pub(crate) fn write(&self) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        data_dir::write_private(&self.directory().join("node.json"), &text)
    }

    pub(crate) fn credentials(&self) -> CredentialPaths {
        let path = |name: &str| self.directory().join(name);
        CredentialPaths {
            kubelet: path("kubelet.conf"),
            proxy: path("kube-proxy.conf"),
            network: path("network.conf"),
            certificate: path("kubelet.crt"),
            key: path("kubelet.key"),
            client_authority: path("ca.crt"),
        }
    }
}

/// Kubeconfigs and certificates of a worker.
pub(crate) struct CredentialPaths {
    pub kubelet: PathBuf,
    pub proxy: PathBuf,
    pub network: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_authority: PathBuf,
}
