//! Config maps.

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, Labels, Meta, or_default};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigMap {
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub data: Labels,
    pub binary_data: Value,
    pub immutable: Option<bool>,
}

impl Kind for ConfigMap {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ConfigMap";
    const RESOURCE: &'static str = "configmaps";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
