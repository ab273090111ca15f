//! Volumes, claims, storage classes and what CSI drivers say of nodes.

use serde::Deserialize;

use super::{LabelSelector, Labels, NodeSelector, ObjectMeta, ResourceList};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    pub metadata: AnnotatedMeta,
    pub spec: ClaimSpec,
    pub status: PhaseOnly,
}

/// Metadata with its annotations, which binding speaks through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AnnotatedMeta {
    #[serde(flatten)]
    pub meta: ObjectMeta,
    pub annotations: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSpec {
    pub access_modes: Vec<String>,
    pub resources: super::ContainerResources,
    pub volume_name: String,
    pub storage_class_name: Option<String>,
    pub volume_mode: Option<String>,
    pub selector: Option<LabelSelector>,
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PhaseOnly {
    pub phase: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    pub metadata: AnnotatedMeta,
    pub spec: VolumeSpec,
    pub status: PhaseOnly,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpec {
    pub capacity: ResourceList,
    pub access_modes: Vec<String>,
    pub claim_ref: Option<ObjectRef>,
    pub storage_class_name: String,
    pub volume_mode: Option<String>,
    pub node_affinity: Option<VolumeNodeAffinity>,
    pub csi: Option<CsiSource>,
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    pub required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    pub metadata: AnnotatedMeta,
    pub provisioner: String,
    pub volume_binding_mode: Option<String>,
    pub allowed_topologies: Vec<TopologyTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologyTerm {
    pub match_label_expressions: Vec<TopologyRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologyRequirement {
    pub key: String,
    pub values: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    pub metadata: AnnotatedMeta,
    pub spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    pub drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiNodeDriver {
    pub name: String,
    #[serde(rename = "nodeID")]
    pub node_id: String,
    pub topology_keys: Vec<String>,
    pub allocatable: Option<CsiAllocatable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiAllocatable {
    pub count: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub metadata: ObjectMeta,
    pub spec: CsiDriverSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiDriverSpec {
    pub storage_capacity: bool,
    pub attach_required: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiStorageCapacity {
    pub metadata: ObjectMeta,
    pub storage_class_name: String,
    pub node_topology: Option<LabelSelector>,
    pub capacity: Option<String>,
    pub maximum_volume_size: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    pub metadata: ObjectMeta,
    pub spec: AttachmentSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSpec {
    pub attacher: String,
    pub node_name: String,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSource {
    pub persistent_volume_name: Option<String>,
}
