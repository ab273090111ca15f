//! A cluster's objects at one moment, as the scheduler's core reads them.

use orlop_scheduler::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodDisruptionBudget, ReplicationController, Service, StorageClass, VolumeAttachment, Workload,
};
use serde::Serialize;
use serde_json::Value;

/// A collection that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// `persistentvolumes`
    pub resource: String,
    pub message: String,
}

/// An object of a manifest that is not what its kind says.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name:?}: {source}")]
pub struct ObjectError {
    pub kind: String,
    pub name: String,
    pub source: serde_json::Error,
}

macro_rules! kinds {
    ($($field:ident: $type:ty = $kind:literal, $group:literal;)*) => {
        /// Everything that the scheduler looks at.
        #[derive(Clone, Debug, Default)]
        pub struct Snapshot {
            $(pub $field: Vec<$type>,)*
            /// What could not be read: answers that depend on it say so.
            pub unreadable: Vec<Unreadable>,
        }

        impl Snapshot {
            /// Takes an object of a kind that matters; false for any other.
            pub fn add(&mut self, object: &Value) -> Result<bool, ObjectError> {
                let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let kind = text("/kind");
                let group = text("/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
                let failed = |source| ObjectError {
                    kind: kind.to_string(),
                    name: text("/metadata/name").to_string(),
                    source,
                };
                match (kind, group) {
                    $(($kind, $group) => {
                        self.$field.push(serde::Deserialize::deserialize(object).map_err(failed)?);
                    })*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

kinds! {
    pods: Pod = "Pod", "";
    nodes: Node = "Node", "";
    namespaces: Namespace = "Namespace", "";
    services: Service = "Service", "";
    replication_controllers: ReplicationController = "ReplicationController", "";
    replica_sets: Workload = "ReplicaSet", "apps";
    stateful_sets: Workload = "StatefulSet", "apps";
    budgets: PodDisruptionBudget = "PodDisruptionBudget", "policy";
    volumes: PersistentVolume = "PersistentVolume", "";
    claims: PersistentVolumeClaim = "PersistentVolumeClaim", "";
    storage_classes: StorageClass = "StorageClass", "storage.k8s.io";
    csi_nodes: CsiNode = "CSINode", "storage.k8s.io";
    csi_drivers: CsiDriver = "CSIDriver", "storage.k8s.io";
    capacities: CsiStorageCapacity = "CSIStorageCapacity", "storage.k8s.io";
    attachments: VolumeAttachment = "VolumeAttachment", "storage.k8s.io";
}

impl Snapshot {
    /// The message, if the collection could not be read.
    pub fn unreadable(&self, resource: &str) -> Option<&str> {
        let found = self.unreadable.iter().find(|u| u.resource == resource);
        found.map(|u| u.message.as_str())
    }
}
