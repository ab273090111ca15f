//! Volumes: pieces of storage in the cluster, and what claims them.

use orlop_api::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::persistent_volume_claim::CLASS_ANNOTATION;
use super::{Kind, Labels, Meta};

/// On volumes and claims: bound by a controller (or the scheduler), not by a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On volumes: who made this volume for a claim.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    pub metadata: Meta,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpec {
    pub capacity: Labels,
    pub access_modes: Vec<String>,
    pub claim_ref: Option<ClaimRef>,
    pub storage_class_name: String,
    pub persistent_volume_reclaim_policy: String,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    pub node_affinity: Value,
    pub csi: Option<CsiSource>,
    pub host_path: Option<HostPath>,
    pub nfs: Option<Value>,
    pub local: Option<Value>,
    pub fc: Option<Value>,
    pub iscsi: Option<Value>,
}

/// The claim that a volume is for. Without a uid a user reserved it for whatever claim will have that name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostPath {
    pub path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    pub phase: String,
    pub message: String,
}

impl Kind for PersistentVolume {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "PersistentVolume";
    const RESOURCE: &'static str = "persistentvolumes";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl PersistentVolume {
    /// Empty: none.
    pub fn class(&self) -> &str {
        let old = self.metadata.annotation(CLASS_ANNOTATION);
        old.unwrap_or(&self.spec.storage_class_name)
    }

    /// `Filesystem` or `Block`.
    pub fn mode(&self) -> &str {
        self.spec.volume_mode.as_deref().unwrap_or("Filesystem")
    }

    pub fn attributes_class(&self) -> &str {
        self.spec.volume_attributes_class_name.as_deref().unwrap_or_default()
    }

    /// None if it has none, or none that can be read.
    pub fn size(&self) -> Option<Quantity> {
        Quantity::parse(self.spec.capacity.get("storage")?).ok()
    }
}
