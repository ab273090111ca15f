//! Cluster roles.

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, Meta, or_default};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterRole {
    pub metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub rules: Vec<Value>,
    /// Its rules are those of other roles.
    pub aggregation_rule: Option<AggregationRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AggregationRule {
    pub cluster_role_selectors: Vec<Value>,
}

impl Kind for ClusterRole {
    const API_VERSION: &'static str = "rbac.authorization.k8s.io/v1";
    const KIND: &'static str = "ClusterRole";
    const RESOURCE: &'static str = "clusterroles";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
