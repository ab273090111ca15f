//! Objects as controllers see them: slim structs with the fields that some controller decides by. Whatever is only passed
//! on (a pod's template, say) stays JSON, so that nothing in it gets lost.
//!
//! One file a kind; a field that a controller needs is added here, once for all. Kinds that other components read too are
//! in `orlop_api::objects`.

pub mod certificate_signing_request;
pub mod cluster_role;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod endpoints;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod lease;
pub mod pod;
pub mod replica_set;
pub mod resource_claim;
pub mod resource_quota;
pub mod secret;
pub mod service_account;
pub mod stateful_set;
pub mod template;
pub mod volume_attributes_class;

use orlop_api::objects::or_default;
pub use orlop_api::objects::{
    Condition, CsiDriver, EndpointSlice, Kind, Labels, Meta, Namespace, Node, OwnerReference, PersistentVolume,
    PersistentVolumeClaim, PodDisruptionBudget, Service, StorageClass, Taint, Toleration, VolumeAttachment, condition,
    endpoint_slice, node, persistent_volume, persistent_volume_claim, pod_disruption_budget, service,
};

pub use certificate_signing_request::CertificateSigningRequest;
pub use cluster_role::ClusterRole;
pub use config_map::ConfigMap;
pub use controller_revision::ControllerRevision;
pub use cron_job::CronJob;
pub use daemon_set::DaemonSet;
pub use deployment::Deployment;
pub use endpoints::Endpoints;
pub use horizontal_pod_autoscaler::HorizontalPodAutoscaler;
pub use job::Job;
pub use lease::Lease;
pub use pod::Pod;
pub use replica_set::{ReplicaSet, ReplicationController};
pub use resource_claim::{ResourceClaim, ResourceClaimTemplate};
pub use resource_quota::ResourceQuota;
pub use secret::Secret;
pub use service_account::ServiceAccount;
pub use stateful_set::StatefulSet;
pub use template::PodTemplate;
pub use volume_attributes_class::VolumeAttributesClass;

use serde::Serialize;
use serde_json::{Value, json};

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
