//! The fields of Kubernetes' objects that decide about packets.

use std::collections::BTreeMap;

use orlop_client::Object;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub creation_timestamp: Option<jiff::Timestamp>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub deletion_timestamp: Option<jiff::Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub ports: Vec<Port>,
    pub session_affinity: String,
    pub session_affinity_config: Option<AffinityConfig>,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub health_check_node_port: u16,
    pub load_balancer_source_ranges: Vec<String>,
    pub traffic_distribution: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub node_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIp {
    pub timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: String,
    /// VIP unless it says Proxy.
    pub ip_mode: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: Meta,
    pub address_type: String,
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    pub addresses: Vec<String>,
    pub conditions: Conditions,
    pub node_name: String,
    pub zone: String,
    pub hints: Option<Hints>,
}

/// What is not said is true, and for terminating false.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    pub for_zones: Vec<Hint>,
    pub for_nodes: Vec<Hint>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Hint {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAddress {
    pub r#type: String,
    pub address: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Meta,
    pub data: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidr {
    pub spec: ServiceCidrSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidrSpec {
    pub cidrs: Vec<String>,
}

fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

macro_rules! objects {
    ($($kind:ty),*) => {$(
        impl Object for $kind {
            fn namespace(&self) -> &str {
                &self.metadata.namespace
            }
            fn name(&self) -> &str {
                &self.metadata.name
            }
            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    )*};
}

objects!(Service, EndpointSlice, Node, ConfigMap);
