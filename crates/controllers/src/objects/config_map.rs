//! Config maps. Of those that no controller writes nothing but their names is kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Kind, Labels, Meta};

/// In each namespace: what to trust the API server by.
pub const ROOT_CA: &str = "kube-root-ca.crt";
/// In `kube-public`: how those who join find the API server.
pub const CLUSTER_INFO: &str = "cluster-info";

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", from = "orlop_api::objects::ConfigMap")]
pub struct ConfigMap {
    pub metadata: Meta,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub data: Labels,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub binary_data: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
}

impl From<orlop_api::objects::ConfigMap> for ConfigMap {
    fn from(stored: orlop_api::objects::ConfigMap) -> ConfigMap {
        let mut map = ConfigMap {
            metadata: stored.metadata,
            immutable: stored.immutable,
            ..ConfigMap::default()
        };
        if [ROOT_CA, CLUSTER_INFO].contains(&map.metadata.name.as_str()) {
            map.data = stored.data;
            map.binary_data = stored.binary_data;
        }
        map
    }
}

impl Kind for ConfigMap {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ConfigMap";
    const RESOURCE: &'static str = "configmaps";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
