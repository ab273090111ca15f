//! Services.

use serde::Deserialize;

use super::{Kind, Labels, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub ip_families: Vec<String>,
    /// Empty: somebody else says where the service leads.
    pub selector: Labels,
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: bool,
    pub traffic_distribution: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub target_port: TargetPort,
    pub app_protocol: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    Number(i32),
    Name(String),
}

impl Default for TargetPort {
    fn default() -> TargetPort {
        TargetPort::Number(0)
    }
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
}
