//! Services.

use serde::Deserialize;

use super::{Kind, Labels, Meta, or_default};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Vec<String>,
    pub ip_families: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub external_name: String,
    /// Empty: somebody else says where the service leads.
    pub selector: Labels,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: bool,
    pub session_affinity: String,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub traffic_distribution: Option<String>,
    pub health_check_node_port: u16,
    pub load_balancer_source_ranges: Vec<String>,
    /// Whose load balancer it is to be; none: the default one.
    pub load_balancer_class: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub target_port: TargetPort,
    pub node_port: u16,
    pub app_protocol: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    Number(u16),
    Name(String),
}

impl Default for TargetPort {
    fn default() -> TargetPort {
        TargetPort::Number(0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    pub ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    pub ip: String,
    /// VIP unless it says Proxy.
    pub ip_mode: String,
}

impl Kind for Service {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "Service";
    const RESOURCE: &'static str = "services";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Service {
    /// Whether a controller finds the endpoints; else they are made by hand, or there are none.
    pub fn has_pods(&self) -> bool {
        !self.spec.selector.is_empty() && self.spec.r#type != "ExternalName"
    }

    pub fn selects(&self, labels: &Labels) -> bool {
        self.has_pods()
            && self
                .spec
                .selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Has no address of its own: its name leads straight to the endpoints.
    pub fn is_headless(&self) -> bool {
        matches!(self.spec.cluster_ip.as_str(), "" | "None")
    }

    /// Its own addresses, the first one first; older servers write only that.
    pub fn cluster_ips(&self) -> &[String] {
        match self.spec.cluster_ips.is_empty() {
            true => std::slice::from_ref(&self.spec.cluster_ip),
            false => &self.spec.cluster_ips,
        }
    }
}
