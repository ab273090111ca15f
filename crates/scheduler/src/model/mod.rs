//! What the scheduler reads of the API's objects: plain structs with just those fields, decoded straight from JSON.
//!
//! Everything else in an object is skipped while decoding, so that a pod costs microseconds and a few hundred bytes. Kinds
//! that other components read too are in `orlop_api::objects`. Pods, nodes and workloads are not: they are many and change
//! often, and what the scheduler reads of them is not what others read.

mod node;
mod pod;
mod storage;

use std::collections::BTreeMap;

use jiff::Timestamp;
use orlop_api::objects::or_default;
use serde::Deserialize;

pub use node::{ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus};
pub use orlop_api::objects::persistent_volume::{BOUND_BY_CONTROLLER, ClaimRef};
pub use orlop_api::objects::persistent_volume_claim::{BIND_COMPLETED, SELECTED_NODE};
pub use orlop_api::objects::{
    CsiDriver, LabelSelector, Labels, Meta, Namespace, NodeSelector, NodeSelectorTerm, OwnerReference,
    PersistentVolume, PersistentVolumeClaim, PodDisruptionBudget, Service, StorageClass, Taint, Toleration,
    VolumeAttachment,
};
pub use orlop_api::selector::{Op, Requirement};
pub use pod::{
    Affinity, Container, ContainerPort, ContainerResources, ContainerStatus, EphemeralSource, NodeAffinity, Pod,
    PodAffinity, PodAffinityTerm, PodCondition, PodSpec, PodStatus, PreferredNodeTerm, SchedulingGate,
    TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
pub use storage::{CsiNode, CsiStorageCapacity, MIGRATED_PLUGINS};

/// Resource name → quantity, as written.
pub type ResourceList = BTreeMap<String, String>;

/// Metadata without what nobody asks of pods, nodes and workloads: annotations above all.
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
    pub spec: ReplicationControllerSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationControllerSpec {
    pub selector: Labels,
}
