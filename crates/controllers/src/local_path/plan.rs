//! Which volume a claim gets, and what becomes of it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::PROVISIONER;
use crate::objects::persistent_volume::PROVISIONED_BY;
use crate::objects::{Node, PersistentVolume, PersistentVolumeClaim, StorageClass};

/// The storage goes before the object does. Upstream's name for what external provisioners promise.
pub(super) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On volumes: whose directory it is.
pub(super) const NODE: &str = "orlop.dev/local-path-node";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Where directories are made.
pub(super) struct VolumeRoot {
    pub directory: PathBuf,
    /// The name of this machine's node.
    pub node: Option<String>,
}

impl VolumeRoot {
    pub(super) fn is_here(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoNode(String),
    /// The claim asks for what directories can't be.
    Never(&'static str),
}

pub(super) fn class(name: &str, is_default: bool) -> Value {
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    });
    if is_default {
        class["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    }
    class
}

/// Upstream's external provisioners call it this, too: a second try finds what the first has made.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid)
}

/// None: not known yet.
pub(super) fn node_for<'a>(
    claim: &'a PersistentVolumeClaim,
    class: &StorageClass,
    place: &'a VolumeRoot,
) -> Option<&'a str> {
    let chosen = claim.selected_node();
    // A class that does not wait gets what is here.
    chosen.or_else(|| place.node.as_deref().filter(|_| !class.waits_for_consumer()))
}

pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node_name: &str,
    node: Option<&Node>,
    place: &VolumeRoot,
) -> Result<Value, Refusal> {
    let spec = &claim.spec;
    if claim.mode() != "Filesystem" {
        return Err(Refusal::Never("only volumeMode Filesystem is supported"));
    }
    if spec.selector.is_some() {
        return Err(Refusal::Never("claim Selector is not supported"));
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Err(Refusal::Never("data sources are not supported"));
    }
    if !claim.attributes_class().is_empty() {
        return Err(Refusal::Never("volumeAttributesClassName is not supported"));
    }
    let Some(node) = node else {
        return Err(Refusal::NoNode(node_name.to_string()));
    };
    let (name, meta) = (volume_name(claim), &claim.metadata);
    let path = place.directory.join(format!("{name}_{}_{}", meta.namespace, meta.name));
    let host = node.metadata.label(HOSTNAME).unwrap_or(node_name);
    let policy = match class.reclaim_policy.as_str() {
        "" => "Delete",
        policy => policy,
    };
    let finalizers: &[&str] = if policy == "Delete" { &[FINALIZER] } else { &[] };
    Ok(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "finalizers": finalizers,
            "annotations": {PROVISIONED_BY: PROVISIONER, NODE: node_name},
        },
        "spec": {
            "capacity": {"storage": claim.requested().canonical()},
            "accessModes": spec.access_modes,
            "volumeMode": "Filesystem",
            "storageClassName": claim.class(),
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
                "uid": meta.uid, "resourceVersion": meta.resource_version,
            },
            "hostPath": {"path": path, "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": HOSTNAME, "operator": "In", "values": [host]},
            ]}]}},
        },
    }))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reclaim {
    Nothing,
    /// The directory, then the volume.
    Remove(PathBuf),
    /// The directory is on that node.
    Elsewhere(String),
    /// The volume may go, whatever becomes of its directory.
    LetGo,
}

pub(super) fn reclaim(volume: &PersistentVolume, place: &VolumeRoot) -> Reclaim {
    let (meta, phase) = (&volume.metadata, volume.status.phase.as_str());
    let is_free = matches!(phase, "Released" | "Failed") || (meta.is_deleted() && phase == "Available");
    if meta.annotation(PROVISIONED_BY) != Some(PROVISIONER) || !is_free {
        return Reclaim::Nothing;
    }
    if volume.spec.persistent_volume_reclaim_policy != "Delete" {
        // Somebody wants to keep the directory; then nothing keeps the object.
        return match meta.is_deleted() {
            true => Reclaim::LetGo,
            false => Reclaim::Nothing,
        };
    }
    let node = meta.annotation(NODE).unwrap_or_default();
    match directory(volume, place) {
        Some(path) if place.is_here(node) => Reclaim::Remove(path),
        // Whoever deletes the volume by hand has seen to it.
        _ if meta.is_deleted() => Reclaim::LetGo,
        _ => Reclaim::Elsewhere(node.to_string()),
    }
}

/// The volume's directory, if it is one of those that are made here.
fn directory(volume: &PersistentVolume, place: &VolumeRoot) -> Option<PathBuf> {
    let path = Path::new(&volume.spec.host_path.as_ref()?.path);
    let name = path.file_name()?.to_str()?;
    let own = name.strip_prefix(&volume.metadata.name)?.starts_with('_');
    (own && path.parent() == Some(&place.directory)).then(|| path.to_path_buf())
}
