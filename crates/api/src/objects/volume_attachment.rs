//! Volumes on nodes: what is to be attached where, and whether it is.

use serde::Deserialize;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    pub metadata: Meta,
    pub spec: AttachmentSpec,
    pub status: AttachmentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSpec {
    pub attacher: String,
    pub node_name: String,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSource {
    pub persistent_volume_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentStatus {
    pub attached: bool,
    pub attach_error: Option<AttachError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachError {
    pub message: String,
}

impl Kind for VolumeAttachment {
    const API_VERSION: &'static str = "storage.k8s.io/v1";
    const KIND: &'static str = "VolumeAttachment";
    const RESOURCE: &'static str = "volumeattachments";

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// What is attached to a node.
    fn index(&self) -> Option<&str> {
        Some(&self.spec.node_name)
    }
}
