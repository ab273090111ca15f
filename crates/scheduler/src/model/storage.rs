//! Volumes, claims, storage classes and what CSI drivers say of nodes.

use orlop_api::quantity::Quantity;
use serde::{Deserialize, Deserializer};

use super::{LabelSelector, Labels, NodeSelector, ObjectMeta, ResourceList, or_default};

/// On claims and volumes: the class, as it was written before there was a field for it. Still goes before the field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// On claims: binding is done.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On volumes: bound by a controller (or the scheduler), not by a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On claims: make a volume that this node can reach.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On CSI nodes: in-tree plugins that were replaced by drivers.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

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
    pub resources: ClaimResources,
    pub volume_name: String,
    pub storage_class_name: Option<String>,
    pub volume_mode: Option<String>,
    pub selector: Option<LabelSelector>,
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    #[serde(rename = "requests", deserialize_with = "storage")]
    pub request: Option<Quantity>,
}

impl PersistentVolumeClaim {
    pub fn name(&self) -> &str {
        &self.metadata.meta.name
    }

    pub fn namespace(&self) -> &str {
        &self.metadata.meta.namespace
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub fn revision(&self) -> &str {
        &self.metadata.meta.resource_version
    }

    /// Empty: none.
    pub fn class(&self) -> &str {
        let named = self.metadata.annotations.get(CLASS_ANNOTATION);
        named
            .or(self.spec.storage_class_name.as_ref())
            .map_or("", String::as_str)
    }

    pub fn is_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.metadata.annotations.contains_key(BIND_COMPLETED)
    }

    /// The node that a volume is to be made for.
    pub fn selected_node(&self) -> Option<&str> {
        self.metadata.annotations.get(SELECTED_NODE).map(String::as_str)
    }

    /// In billionths of a byte.
    pub fn requested(&self) -> i128 {
        self.spec.resources.request.as_ref().map_or(0, Quantity::nanos)
    }
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
    #[serde(deserialize_with = "storage")]
    pub capacity: Option<Quantity>,
    pub access_modes: Vec<String>,
    pub claim_ref: Option<ObjectRef>,
    pub storage_class_name: String,
    pub volume_mode: Option<String>,
    pub node_affinity: Option<VolumeNodeAffinity>,
    pub csi: Option<CsiSource>,
    pub volume_attributes_class_name: Option<String>,
}

impl PersistentVolume {
    pub fn name(&self) -> &str {
        &self.metadata.meta.name
    }

    pub fn revision(&self) -> &str {
        &self.metadata.meta.resource_version
    }

    pub fn class(&self) -> &str {
        let named = self.metadata.annotations.get(CLASS_ANNOTATION);
        named.unwrap_or(&self.spec.storage_class_name)
    }

    /// In billionths of a byte.
    pub fn capacity(&self) -> i128 {
        self.spec.capacity.as_ref().map_or(0, Quantity::nanos)
    }

    /// Whether nodes with these labels can reach it.
    pub fn reaches(&self, labels: &Labels) -> bool {
        match &self.spec.node_affinity {
            Some(VolumeNodeAffinity { required: Some(terms) }) => terms.matches("", labels),
            _ => true,
        }
    }

    /// Bound to this claim, or meant for it: a reference without uid is for whoever has the name.
    pub fn is_for(&self, claim: &PersistentVolumeClaim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|r| {
            r.name == claim.name()
                && r.namespace == claim.namespace()
                && (r.uid.is_empty() || r.uid == claim.metadata.meta.uid)
        })
    }
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

impl StorageClass {
    /// Claims wait until a pod wants them.
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// Whether volumes may be made for nodes with these labels.
    pub fn allows(&self, labels: &Labels) -> bool {
        self.allowed_topologies.is_empty() || self.allowed_topologies.iter().any(|t| t.matches(labels))
    }
}

impl TopologyTerm {
    fn matches(&self, labels: &Labels) -> bool {
        let wanted = &self.match_label_expressions;
        !wanted.is_empty() && (wanted.iter()).all(|r| labels.get(&r.key).is_some_and(|v| r.values.contains(v)))
    }
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
    /// Written as null when there are none.
    #[serde(deserialize_with = "or_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiNodeDriver {
    pub name: String,
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
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiStorageCapacity {
    pub metadata: ObjectMeta,
    pub storage_class_name: String,
    pub node_topology: Option<LabelSelector>,
    #[serde(deserialize_with = "quantity")]
    pub capacity: Option<Quantity>,
    #[serde(deserialize_with = "quantity")]
    pub maximum_volume_size: Option<Quantity>,
}

impl CsiStorageCapacity {
    /// Bytes of the largest volume that can be made.
    pub fn volume_limit(&self) -> Option<i64> {
        let limit = self.maximum_volume_size.as_ref().or(self.capacity.as_ref());
        limit.map(Quantity::value)
    }
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

fn quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    Ok(text.and_then(|t| Quantity::parse(&t).ok()))
}

/// The `storage` of a resource list.
fn storage<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    let list: ResourceList = or_default(from)?;
    Ok(list.get("storage").and_then(|t| Quantity::parse(t).ok()))
}
