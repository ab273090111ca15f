//! The pods that a workload makes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Labels;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodTemplate {
    pub metadata: TemplateMeta,
    /// Only passed on.
    pub spec: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct TemplateMeta {
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}
