//! Objects as controllers see them: slim structs with the fields that some controller decides by. Whatever is only passed
//! on (a pod's template, say) stays JSON, so that nothing in it gets lost.
//!
//! One file a kind; a field that a controller needs is added here, once for all.

pub mod certificate_signing_request;
pub mod cluster_role;
pub mod condition;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod csi_driver;
pub mod daemon_set;
pub mod deployment;
pub mod endpoint_slice;
pub mod endpoints;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod lease;
pub mod meta;
pub mod namespace;
pub mod node;
pub mod node_selector;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_disruption_budget;
pub mod replica_set;
pub mod resource_claim;
pub mod resource_quota;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod stateful_set;
pub mod storage_class;
pub mod template;
pub mod volume_attachment;
pub mod volume_attributes_class;

pub use certificate_signing_request::CertificateSigningRequest;
pub use cluster_role::ClusterRole;
pub use condition::Condition;
pub use config_map::ConfigMap;
pub use controller_revision::ControllerRevision;
pub use cron_job::CronJob;
pub use csi_driver::CsiDriver;
pub use daemon_set::DaemonSet;
pub use deployment::Deployment;
pub use endpoint_slice::EndpointSlice;
pub use endpoints::Endpoints;
pub use horizontal_pod_autoscaler::HorizontalPodAutoscaler;
pub use job::Job;
pub use lease::Lease;
pub use meta::{Labels, Meta, OwnerReference};
pub use namespace::Namespace;
pub use node::Node;
pub use persistent_volume::PersistentVolume;
pub use persistent_volume_claim::PersistentVolumeClaim;
pub use pod::Pod;
pub use pod_disruption_budget::PodDisruptionBudget;
pub use replica_set::{ReplicaSet, ReplicationController};
pub use resource_claim::{ResourceClaim, ResourceClaimTemplate};
pub use resource_quota::ResourceQuota;
pub use secret::Secret;
pub use service::Service;
pub use service_account::ServiceAccount;
pub use stateful_set::StatefulSet;
pub use storage_class::StorageClass;
pub use template::PodTemplate;
pub use volume_attachment::VolumeAttachment;
pub use volume_attributes_class::VolumeAttributesClass;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// What the runtime must know of an object.
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

/// For lists that Kubernetes writes as `null` when they are empty.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(input)?.unwrap_or_default())
}

/// The object as it is sent: with its kind.
pub fn with_type_meta<T: Kind + Serialize>(object: &T) -> Value {
    let mut value = serde_json::to_value(object).expect("slim objects are plain data");
    value["apiVersion"] = json!(T::API_VERSION);
    value["kind"] = json!(T::KIND);
    value
}

/// For counts that the API leaves out when they are zero: a merge patch takes them away with `null`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn null_if_zero<S: serde::Serializer>(count: &i64, to: S) -> Result<S::Ok, S::Error> {
    match count {
        0 => to.serialize_none(),
        count => to.serialize_i64(*count),
    }
}
