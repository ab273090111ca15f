//! Volume plugins that once were part of Kubernetes: CSI drivers do their work now, and annotations say so.
// Upstream: updateMigrationAnnotations, modifyDeletionFinalizers in pkg/controller/volume/persistentvolume (v1.36)

use serde_json::{Value, json};

use crate::objects::persistent_volume::PROVISIONED_BY;
use crate::objects::persistent_volume_claim::STORAGE_PROVISIONER;
use crate::objects::{Meta, PersistentVolume, PersistentVolumeClaim};

pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
pub(super) const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On volumes of in-tree provisioners that are deleted with their claim: the storage goes before the object does.
pub(super) const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";
const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

const DRIVERS: &[(&str, &str)] = &[
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// The driver that took over from this plugin.
pub(crate) fn driver(plugin: &str) -> Option<&'static str> {
    let found = DRIVERS.iter().find(|(old, _)| *old == plugin);
    found.map(|(_, driver)| *driver)
}

/// What to change in the claim's annotations.
pub(super) fn claim_patch(claim: &PersistentVolumeClaim) -> Option<Value> {
    let meta = &claim.metadata;
    let provisioner = meta
        .annotation(STORAGE_PROVISIONER)
        .or(meta.annotation(BETA_STORAGE_PROVISIONER))?;
    let migrated = migrated_to(meta, provisioner)?;
    Some(json!({"metadata": {"annotations": {MIGRATED_TO: migrated}}}))
}

/// What to change in the volume's annotations and finalizers.
pub(super) fn volume_patch(volume: &PersistentVolume) -> Option<Value> {
    let meta = &volume.metadata;
    let provisioner = meta.annotation(PROVISIONED_BY)?;
    let mut metadata = json!({});
    if let Some(migrated) = migrated_to(meta, provisioner) {
        metadata["annotations"] = json!({MIGRATED_TO: migrated});
    }
    let finalizers = finalizers(volume, provisioner);
    if finalizers != meta.finalizers {
        metadata["finalizers"] = json!(finalizers);
    }
    let changes = metadata.as_object().is_some_and(|fields| !fields.is_empty());
    changes.then(|| json!({"metadata": metadata}))
}

/// What the annotation is to be, if it is not that: null takes it away.
fn migrated_to(meta: &Meta, provisioner: &str) -> Option<Value> {
    let now = meta.annotation(MIGRATED_TO).filter(|now| !now.is_empty());
    let wanted = driver(provisioner);
    (now != wanted).then(|| json!(wanted))
}

fn finalizers(volume: &PersistentVolume, provisioner: &str) -> Vec<String> {
    let mut finalizers = volume.metadata.finalizers.clone();
    if driver(provisioner).is_some() {
        finalizers.retain(|f| f != IN_TREE_FINALIZER);
        return finalizers;
    }
    if !provisioner.starts_with("kubernetes.io/") {
        return finalizers;
    }
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        // A finalizer can't be added to what is on its way out.
        "Delete" if !volume.metadata.is_deleted() && !volume.metadata.has_finalizer(IN_TREE_FINALIZER) => {
            finalizers.push(IN_TREE_FINALIZER.to_string());
        }
        "Retain" | "Recycle" => finalizers.retain(|f| f != IN_TREE_FINALIZER),
        _ => {}
    }
    finalizers.retain(|f| f != EXTERNAL_FINALIZER);
    finalizers
}
