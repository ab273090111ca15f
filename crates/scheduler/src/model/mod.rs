//! What the scheduler reads of the API's objects: plain structs with just those fields, decoded straight from JSON.
//!
//! Everything else in an object is skipped while decoding, so that a pod costs microseconds and a few hundred bytes.

mod node;
mod pod;
mod selector;
mod storage;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

pub use node::{ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus, Taint};
pub use pod::{
    Affinity, Container, ContainerPort, ContainerResources, ContainerStatus, EphemeralSource, NodeAffinity, Pod,
    PodAffinity, PodAffinityTerm, PodCondition, PodSpec, PodStatus, PreferredNodeTerm, SchedulingGate, Toleration,
    TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
pub use selector::{LabelSelector, NodeRequirement, NodeSelector, NodeSelectorTerm, Requirement};
pub use storage::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, CsiDriver, CsiNode, CsiStorageCapacity, MIGRATED_PLUGINS, ObjectRef,
    PersistentVolume, PersistentVolumeClaim, SELECTED_NODE, StorageClass, VolumeAttachment,
};

pub type Labels = BTreeMap<String, String>;
/// Resource name → quantity, as written.
pub type ResourceList = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMeta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub labels: Labels,
    pub owner_references: Vec<OwnerReference>,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: bool,
}

/// Just the metadata and labels: namespaces, for their labels.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: ObjectMeta,
}

/// A service: what it selects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    pub selector: Labels,
}

/// A ReplicaSet or StatefulSet: what it selects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Workload {
    pub metadata: ObjectMeta,
    pub spec: WorkloadSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WorkloadSpec {
    pub selector: Option<LabelSelector>,
}

/// A ReplicationController, whose selector is a plain map.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    pub metadata: ObjectMeta,
    pub spec: WorkloadSpec,
    pub status: DisruptionStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DisruptionStatus {
    pub disruptions_allowed: i64,
    /// Pods whose eviction was already granted, by name.
    #[serde(deserialize_with = "keys")]
    pub disrupted_pods: std::collections::BTreeSet<String>,
}

/// The keys of a map whose values do not matter.
fn keys<'de, D: Deserializer<'de>>(from: D) -> Result<std::collections::BTreeSet<String>, D::Error> {
    let map: Option<BTreeMap<String, serde::de::IgnoredAny>> = Option::deserialize(from)?;
    Ok(map.unwrap_or_default().into_keys().collect())
}

/// An absent or null value is the default one.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
