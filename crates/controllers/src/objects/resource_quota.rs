//! Resource quotas.

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    pub metadata: Meta,
    pub spec: Value,
    pub status: Value,
}

impl Kind for ResourceQuota {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ResourceQuota";
    const RESOURCE: &'static str = "resourcequotas";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
