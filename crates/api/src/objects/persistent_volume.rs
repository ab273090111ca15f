//! Volumes: pieces of storage in the cluster, and what claims them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::persistent_volume_claim::CLASS_ANNOTATION;
use super::{Kind, Labels, Meta, NodeSelector, PersistentVolumeClaim, StorageAmounts};
use crate::quantity::Quantity;

/// On volumes and claims: bound by a controller (or the scheduler), not by a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On volumes: who made this volume for a claim.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    pub metadata: Meta,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpec {
    pub capacity: StorageAmounts,
    pub access_modes: Vec<String>,
    pub claim_ref: Option<ClaimRef>,
    pub storage_class_name: String,
    pub persistent_volume_reclaim_policy: String,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    pub node_affinity: VolumeNodeAffinity,
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

/// From which nodes it can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    /// None: from all of them.
    pub required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
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

    /// Zero if it does not say, or not so that it can be read.
    pub fn size(&self) -> Quantity {
        self.spec.capacity.storage().cloned().unwrap_or_default()
    }

    /// Whether nodes with these labels can reach it.
    pub fn reaches(&self, labels: &Labels) -> bool {
        let required = self.spec.node_affinity.required.as_ref();
        required.is_none_or(|selector| selector.matches("", labels))
    }

    /// Bound to this claim, or reserved for it: a reference without uid is for whoever has the name.
    pub fn is_for(&self, claim: &PersistentVolumeClaim) -> bool {
        let meta = &claim.metadata;
        self.spec.claim_ref.as_ref().is_some_and(|r| {
            r.name == meta.name && r.namespace == meta.namespace && (r.uid.is_empty() || r.uid == meta.uid)
        })
    }
}
