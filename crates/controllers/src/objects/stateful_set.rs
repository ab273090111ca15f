//! StatefulSets.

use orlop_api::selector::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    pub metadata: Meta,
    pub spec: StatefulSetSpec,
    pub status: StatefulSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetSpec {
    pub replicas: Option<i64>,
    pub selector: Value,
    /// Whole, as revisions keep it.
    pub template: Value,
    pub volume_claim_templates: Vec<Value>,
    pub service_name: String,
    /// `OrderedReady` or `Parallel`.
    pub pod_management_policy: String,
    pub update_strategy: StatefulSetStrategy,
    pub revision_history_limit: Option<i64>,
    pub min_ready_seconds: u32,
    pub persistent_volume_claim_retention_policy: RetentionPolicy,
    pub ordinals: Ordinals,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: String,
    pub rolling_update: Option<RollingStatefulSet>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingStatefulSet {
    pub partition: i64,
    pub max_unavailable: Option<Value>,
}

/// What becomes of claims: `Retain` (also if it says nothing) or `Delete`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RetentionPolicy {
    pub when_deleted: String,
    pub when_scaled: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    pub start: i64,
}

/// Without the conditions, which nobody sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetStatus {
    pub replicas: i64,
    pub available_replicas: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub observed_generation: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub ready_replicas: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub current_replicas: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub updated_replicas: i64,
    pub current_revision: String,
    pub update_revision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
}

impl Kind for StatefulSet {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "StatefulSet";
    const RESOURCE: &'static str = "statefulsets";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl StatefulSet {
    /// Its pods; none if the selector can't be read or selects nothing.
    pub fn selector(&self) -> Option<LabelSelector> {
        LabelSelector::from_object(&self.spec.selector)
            .ok()
            .filter(|s| !s.is_empty())
    }
}
