//! DaemonSets.

use orlop_api::selector::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    pub metadata: Meta,
    pub spec: DaemonSetSpec,
    pub status: DaemonSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetSpec {
    pub selector: Value,
    /// Whole, as revisions keep it.
    pub template: Value,
    pub update_strategy: DaemonSetStrategy,
    pub min_ready_seconds: u32,
    pub revision_history_limit: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: String,
    pub rolling_update: Option<RollingDaemonSet>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingDaemonSet {
    pub max_unavailable: Option<Value>,
    pub max_surge: Option<Value>,
}

/// Without the conditions, which nobody sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStatus {
    pub current_number_scheduled: i64,
    pub number_misscheduled: i64,
    pub desired_number_scheduled: i64,
    pub number_ready: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub observed_generation: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub updated_number_scheduled: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub number_available: i64,
    #[serde(serialize_with = "super::null_if_zero")]
    pub number_unavailable: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
}

impl Kind for DaemonSet {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "DaemonSet";
    const RESOURCE: &'static str = "daemonsets";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl DaemonSet {
    /// Its pods; none if the selector can't be read or selects nothing.
    pub fn selector(&self) -> Option<LabelSelector> {
        LabelSelector::from_object(&self.spec.selector)
            .ok()
            .filter(|s| !s.is_empty())
    }
}
