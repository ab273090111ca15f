//! The objects that decide which packets pods may exchange.

use orlop_api::objects::service::TargetPort;
use orlop_api::objects::{LabelSelector, Meta, or_default};
use serde::Deserialize;

pub(super) use orlop_api::objects::Namespace;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct NetworkPolicy {
    pub(super) metadata: Meta,
    pub(super) spec: NetworkPolicySpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkPolicySpec {
    pub(super) pod_selector: LabelSelector,
    #[serde(deserialize_with = "or_default")]
    pub(super) policy_types: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ingress: Vec<IngressRule>,
    #[serde(deserialize_with = "or_default")]
    pub(super) egress: Vec<EgressRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct IngressRule {
    #[serde(deserialize_with = "or_default")]
    pub(super) from: Vec<Peer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<PolicyPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct EgressRule {
    #[serde(deserialize_with = "or_default")]
    pub(super) to: Vec<Peer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<PolicyPort>,
}

/// Either a block, or one of the selectors, or both selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Peer {
    pub(super) pod_selector: Option<LabelSelector>,
    pub(super) namespace_selector: Option<LabelSelector>,
    pub(super) ip_block: Option<IpBlock>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct IpBlock {
    pub(super) cidr: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) except: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PolicyPort {
    pub(super) protocol: Option<String>,
    pub(super) port: Option<TargetPort>,
    pub(super) end_port: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: String,
    pub(super) host_network: bool,
    #[serde(deserialize_with = "or_default")]
    pub(super) containers: Vec<Container>,
    /// Those that go on running beside the containers may have ports too.
    #[serde(deserialize_with = "or_default")]
    pub(super) init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerPort {
    pub(super) name: String,
    pub(super) container_port: u16,
    pub(super) protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: String,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub(super) pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct PodIp {
    pub(super) ip: String,
}
