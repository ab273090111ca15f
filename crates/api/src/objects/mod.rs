//! Objects as clients see them: slim structs of the kinds that more than one component reads, with the fields that
//! somebody decides by, decoded straight from JSON.
//!
//! One file a kind; a field that a component needs is added here, once for all. Whatever is only passed on stays JSON,
//! so that nothing in it gets lost. A component that keeps many objects, or asks them often, converts them to a form of
//! its own in one place (the proxy's facts, the zone's records).
//!
//! Not here: kinds that one component alone reads, and pods, of which each component reads other fields. Structs with
//! all fields of an object are in `types`; the server needs neither.

pub mod condition;
pub mod config_map;
pub mod csi_driver;
pub mod endpoint_slice;
pub mod meta;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod_disruption_budget;
pub mod selector;
pub mod service;
pub mod storage_amounts;
pub mod storage_class;
pub mod taint;
pub mod volume_attachment;

#[cfg(test)]
mod tests;

pub use condition::Condition;
pub use config_map::ConfigMap;
pub use csi_driver::CsiDriver;
pub use endpoint_slice::EndpointSlice;
pub use meta::{Labels, Meta, OwnerReference};
pub use namespace::Namespace;
pub use node::Node;
pub use persistent_volume::PersistentVolume;
pub use persistent_volume_claim::PersistentVolumeClaim;
pub use pod_disruption_budget::PodDisruptionBudget;
pub use selector::{LabelSelector, NodeSelector, NodeSelectorTerm};
pub use service::Service;
pub use storage_amounts::StorageAmounts;
pub use storage_class::StorageClass;
pub use taint::{Taint, Toleration};
pub use volume_attachment::VolumeAttachment;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// What informers and caches must know of an object.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// `apps/v1`
    const API_VERSION: &'static str;
    /// `ReplicaSet`
    const KIND: &'static str;
    /// `replicasets`
    const RESOURCE: &'static str;

    fn meta(&self) -> &Meta;

    /// A name that objects can also be found by in a cache: a pod's node.
    fn index(&self) -> Option<&str> {
        None
    }
}

/// An absent or null value is the default one: Kubernetes writes many empty lists as `null`.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
