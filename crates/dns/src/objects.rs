//! The fields of Kubernetes' objects that decide about names.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Meta {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Meta,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    pub r#type: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Vec<String>,
    pub external_name: String,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: u16,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: SliceMeta,
    pub address_type: String,
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct SliceMeta {
    pub name: String,
    pub namespace: String,
    pub labels: SliceLabels,
    pub annotations: SliceAnnotations,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct SliceLabels {
    #[serde(rename = "kubernetes.io/service-name")]
    pub service: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct SliceAnnotations {
    /// When the change came about that this slice shows.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub triggered: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct SliceEndpoint {
    pub addresses: Vec<String>,
    pub conditions: Conditions,
    #[serde(deserialize_with = "or_default")]
    pub hostname: String,
}

/// What is not said is true.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
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
pub struct ConfigMap {
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, String>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_are_nothing() {
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"metadata":{"name":"a","labels":{"kubernetes.io/service-name":"s","x":"y"}},"addressType":"IPv4",
                "endpoints":null,"ports":null}"#,
        )
        .unwrap();
        assert_eq!(slice.metadata.labels.service, "s");
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"endpoints":[{"addresses":["10.0.0.1"],"hostname":null,"conditions":{"ready":false}}],
                "ports":[{"name":null,"port":null}]}"#,
        )
        .unwrap();
        assert_eq!(slice.endpoints[0].conditions.ready, Some(false));
        assert_eq!(slice.ports[0], SlicePort::default());
    }
}
