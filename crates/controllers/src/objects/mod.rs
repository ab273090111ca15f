//! Objects as controllers see them: slim structs with the fields that some controller decides by. Whatever is only passed
//! on (a pod's template, say) stays JSON, so that nothing in it gets lost.
//!
//! One file a kind; a field that a controller needs is added here, once for all.

pub mod condition;
pub mod lease;
pub mod meta;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod replica_set;
pub mod storage_class;
pub mod template;

pub use condition::Condition;
pub use lease::Lease;
pub use meta::{Labels, Meta, OwnerReference};
pub use node::Node;
pub use persistent_volume::PersistentVolume;
pub use persistent_volume_claim::PersistentVolumeClaim;
pub use pod::Pod;
pub use replica_set::{ReplicaSet, ReplicationController};
pub use storage_class::StorageClass;
pub use template::PodTemplate;

use serde::de::DeserializeOwned;

/// What the machinery must know of an object.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// `apps/v1`
    const API_VERSION: &'static str;
    /// `ReplicaSet`
    const KIND: &'static str;
    /// `replicasets`
    const RESOURCE: &'static str;

    fn meta(&self) -> &Meta;

    /// A name that objects can also be found by (`Cache::indexed`): a pod's node.
    fn index(&self) -> Option<&str> {
        None
    }
}
