//! Claims: what somebody wants of a volume.

use serde::Deserialize;
use serde_json::Value;

use super::{Condition, Kind, LabelSelector, Meta, StorageAmounts};
use crate::quantity::Quantity;

/// On claims and volumes: the class, as it was written before there was a field for it. Still goes before the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// On claims: binding is done.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On claims: make a volume that this node can reach.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On claims: who is to make the volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    pub metadata: Meta,
    pub spec: ClaimSpec,
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSpec {
    pub access_modes: Vec<String>,
    pub resources: ClaimResources,
    pub volume_name: String,
    pub storage_class_name: Option<String>,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    /// None: any volume.
    pub selector: Option<LabelSelector>,
    pub data_source: Option<Value>,
    pub data_source_ref: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    pub requests: StorageAmounts,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    pub phase: String,
    pub access_modes: Vec<String>,
    pub capacity: StorageAmounts,
    pub conditions: Vec<Condition>,
    pub current_volume_attributes_class_name: Option<String>,
    pub modify_volume_status: Option<ModifyVolumeStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ModifyVolumeStatus {
    pub target_volume_attributes_class_name: String,
}

impl Kind for PersistentVolumeClaim {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "PersistentVolumeClaim";
    const RESOURCE: &'static str = "persistentvolumeclaims";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl PersistentVolumeClaim {
    /// Empty: none.
    pub fn class(&self) -> &str {
        let old = self.metadata.annotation(CLASS_ANNOTATION);
        old.or(self.spec.storage_class_name.as_deref()).unwrap_or_default()
    }

    /// Whether somebody said which class, be it none.
    pub fn names_class(&self) -> bool {
        self.spec.storage_class_name.is_some() || self.metadata.annotation(CLASS_ANNOTATION).is_some()
    }

    /// `Filesystem` or `Block`.
    pub fn mode(&self) -> &str {
        self.spec.volume_mode.as_deref().unwrap_or("Filesystem")
    }

    pub fn attributes_class(&self) -> &str {
        self.spec.volume_attributes_class_name.as_deref().unwrap_or_default()
    }

    pub fn requested(&self) -> Quantity {
        self.spec.resources.requests.storage().cloned().unwrap_or_default()
    }

    pub fn selected_node(&self) -> Option<&str> {
        self.metadata.annotation(SELECTED_NODE)
    }

    /// Has a volume, for good.
    pub fn is_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.is_bind_completed()
    }

    pub fn is_bind_completed(&self) -> bool {
        self.metadata.annotations.contains_key(BIND_COMPLETED)
    }
}
