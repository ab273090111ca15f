//! Claims for devices, and the templates that pods have theirs made from.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::template::TemplateMeta;
use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub metadata: Meta,
    pub status: ResourceClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    pub allocation: Option<Value>,
    pub reserved_for: Vec<Consumer>,
}

/// Who may use what was allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Consumer {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

impl Consumer {
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplate {
    pub metadata: Meta,
    pub spec: ResourceClaimTemplateSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplateSpec {
    pub metadata: TemplateMeta,
    /// Only passed on.
    pub spec: Value,
}

impl Kind for ResourceClaim {
    const API_VERSION: &'static str = "resource.k8s.io/v1";
    const KIND: &'static str = "ResourceClaim";
    const RESOURCE: &'static str = "resourceclaims";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Kind for ResourceClaimTemplate {
    const API_VERSION: &'static str = "resource.k8s.io/v1";
    const KIND: &'static str = "ResourceClaimTemplate";
    const RESOURCE: &'static str = "resourceclaimtemplates";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
