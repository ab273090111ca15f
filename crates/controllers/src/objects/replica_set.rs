//! ReplicaSets, and ReplicationControllers, which are the same with a simpler selector.

use orlop_api::selector::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, Kind, Meta, PodTemplate};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    pub metadata: Meta,
    pub spec: ReplicaSetSpec,
    pub status: ReplicaSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    pub metadata: Meta,
    pub spec: ReplicaSetSpec,
    pub status: ReplicaSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaSetSpec {
    pub replicas: Option<i64>,
    pub min_ready_seconds: u32,
    pub selector: Value,
    pub template: PodTemplate,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaSetStatus {
    pub replicas: i64,
    pub fully_labeled_replicas: i64,
    pub ready_replicas: i64,
    pub available_replicas: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i64>,
    pub observed_generation: i64,
    pub conditions: Vec<Condition>,
}

impl Kind for ReplicaSet {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "ReplicaSet";
    const RESOURCE: &'static str = "replicasets";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Kind for ReplicationController {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ReplicationController";
    const RESOURCE: &'static str = "replicationcontrollers";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// What the two have in common for their controller.
pub trait Replicated: Kind {
    fn spec(&self) -> &ReplicaSetSpec;
    fn status(&self) -> &ReplicaSetStatus;
    /// Its pods; none if the selector can't be read or selects nothing.
    fn selector(&self) -> Option<LabelSelector>;
}

impl Replicated for ReplicaSet {
    fn spec(&self) -> &ReplicaSetSpec {
        &self.spec
    }
    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
    fn selector(&self) -> Option<LabelSelector> {
        LabelSelector::from_object(&self.spec.selector)
            .ok()
            .filter(|s| !s.is_empty())
    }
}

impl Replicated for ReplicationController {
    fn spec(&self) -> &ReplicaSetSpec {
        &self.spec
    }
    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
    fn selector(&self) -> Option<LabelSelector> {
        let labels = serde_json::json!({"matchLabels": self.spec.selector});
        LabelSelector::from_object(&labels).ok().filter(|s| !s.is_empty())
    }
}
