//! Nodes. The scheduler reads other fields of them, and many nodes: its own struct is in `crates/scheduler/src/model`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Condition, Kind, Meta, Taint, or_default};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    pub unschedulable: bool,
    #[serde(deserialize_with = "or_default")]
    pub taints: Vec<Taint>,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    #[serde(rename = "providerID")]
    pub provider_id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
    pub conditions: Vec<Condition>,
    pub allocatable: BTreeMap<String, String>,
    pub volumes_attached: Vec<AttachedVolume>,
    pub volumes_in_use: Vec<String>,
    pub daemon_endpoints: DaemonEndpoints,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonEndpoints {
    pub kubelet_endpoint: DaemonEndpoint,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonEndpoint {
    #[serde(rename = "Port")]
    pub port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachedVolume {
    pub name: String,
    pub device_path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others.
    pub r#type: String,
    pub address: String,
}

impl Kind for Node {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "Node";
    const RESOURCE: &'static str = "nodes";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Node {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        super::condition::find(&self.status.conditions, kind)
    }
}
