//! Which volume a claim gets.
// Upstream: component-helpers/storage/volume FindMatchingVolume, and findByClaim in pkg/controller/volume/persistentvolume (v1.36)

use std::collections::BTreeSet;
use std::sync::Arc;

use orlop_api::quantity::Quantity;

use crate::objects::{PersistentVolume, PersistentVolumeClaim, StorageClass};

/// Like `PersistentVolume::is_for`, and for no namesake.
pub(super) fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = &claim.metadata.uid;
    volume.is_for(claim) && volume.spec.claim_ref.as_ref().is_some_and(|r| r.uid == *uid)
}

/// The volume that is reserved for the claim; else, unless the claim `waits` for a pod, the smallest of those with the
/// fewest access modes beyond what is asked for.
///
/// A volume that somebody reserved goes first whatever its access modes are; upstream looks at those with fewer modes
/// before it.
pub(super) fn best(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    waits: bool,
) -> Option<Arc<PersistentVolume>> {
    let wanted = claim.requested();
    let usable = |volume: &&Arc<PersistentVolume>| -> bool {
        !volume.metadata.is_deleted()
            && has_modes(volume, claim)
            && volume.mode() == claim.mode()
            && volume.attributes_class() == claim.attributes_class()
            && volume.size() >= wanted
    };
    let usable = || volumes.iter().filter(usable);
    // One that carries the uid is the claim's own already: a reconcile that was cut short took it.
    let reserved = usable().filter(|volume| volume.is_for(claim));
    if let Some(own) = reserved.max_by_key(|volume| is_bound_to(volume, claim)) {
        return Some(own.clone());
    }
    if waits {
        return None;
    }
    let selector = claim.spec.selector.as_ref();
    let fits = usable().filter(|volume| {
        volume.spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && volume.class() == claim.class()
            && selector.is_none_or(|selector| selector.matches(&volume.metadata.labels))
    });
    let rank = |volume: &&Arc<PersistentVolume>| {
        let modes: BTreeSet<&String> = volume.spec.access_modes.iter().collect();
        let size = volume.size();
        (modes.len(), size, volume.metadata.name.clone())
    };
    fits.min_by_key(rank).cloned()
}

/// Why the volume that the claim names can't be the claim's, in upstream's words.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let bytes = |size: &Quantity| size.value();
    let reason = if volume.metadata.is_deleted() {
        return Some(format!(
            "the volume is marked for deletion \"{}\"",
            volume.metadata.name
        ));
    } else if bytes(&volume.size()) < bytes(&claim.requested()) {
        "requested PV is too small"
    } else if volume.class() != claim.class() {
        "storageClassName does not match"
    } else if volume.attributes_class() != claim.attributes_class() {
        "volumeAttributesClassName does not match"
    } else if volume.mode() != claim.mode() {
        "incompatible volumeMode"
    } else if !has_modes(volume, claim) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(reason.to_string())
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let modes = &claim.spec.access_modes;
    modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
}

/// The class of claims that name none: of several the youngest.
pub(super) fn default_class(classes: &[Arc<StorageClass>]) -> Option<&Arc<StorageClass>> {
    let defaults = classes.iter().filter(|class| class.is_default());
    defaults.min_by_key(|class| {
        let created = class.metadata.creation_timestamp;
        (std::cmp::Reverse(created), class.metadata.name.clone())
    })
}
