//! The next thing to do for a claim, and for a volume. One write at a time, each decided from the objects alone: whoever
//! is stopped between two of them, or takes over from somebody who was, goes on where the objects are.
//!
//! ```text
//!   volume.spec.claimRef ──▶ volume.status.phase ──▶ claim.spec.volumeName, bind-completed ──▶ claim.status
//! ```
//!
//! Every write carries the revision that it was decided on, so that of two claims that want one volume the second fails.
// Upstream: pkg/controller/volume/persistentvolume (v1.36)

use std::sync::Arc;

use serde_json::{Value, json};

use super::{matching, migration};
use crate::objects::persistent_volume::{BOUND_BY_CONTROLLER, PROVISIONED_BY};
use crate::objects::persistent_volume_claim::{BIND_COMPLETED, STORAGE_PROVISIONER};
use crate::objects::{Labels, Meta, PersistentVolume, PersistentVolumeClaim, StorageClass};
use crate::runtime::precondition;

/// Set by resizers before they resize: what the file system has until it is resized, too.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// What to do now.
#[derive(Debug)]
pub(super) enum Step {
    /// Merge patches.
    Volume(Arc<PersistentVolume>, Value),
    VolumeStatus(Arc<PersistentVolume>, Value),
    Claim(Value),
    ClaimStatus(Value),
    /// The claim is reconciled next.
    WakeClaim,
    /// The storage behind the volume, and then the volume.
    DeleteHostPath(String),
    /// Things are not as they should be; look again later.
    Refuse(String),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub step: Step,
    /// Recorded once the step is done.
    pub event: Option<Event>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Event {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Event {
        let message = message.into();
        Event {
            warning: false,
            reason,
            message,
        }
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Event {
        let message = message.into();
        Event {
            warning: true,
            reason,
            message,
        }
    }
}

impl From<Step> for Plan {
    fn from(step: Step) -> Plan {
        Plan { step, event: None }
    }
}

/// What is known around a claim.
#[derive(Default)]
pub(super) struct Around {
    /// The volume that the claim names.
    pub named: Option<Arc<PersistentVolume>>,
    /// Volumes that could be the claim's; others among them do no harm.
    pub candidates: Vec<Arc<PersistentVolume>>,
    /// The class that the claim names.
    pub class: Option<Arc<StorageClass>>,
    /// The name of the class that claims without one get.
    pub default_class: Option<String>,
    /// The names of pods that use the claim and have no node yet.
    pub unscheduled_pods: Vec<String>,
    /// `--enable-dynamic-provisioning`
    pub provisioning: bool,
}

pub(super) fn claim(claim: &PersistentVolumeClaim, around: &Around) -> Plan {
    if let Some(patch) = migration::claim_patch(claim) {
        return Step::Claim(guarded(&claim.metadata, patch)).into();
    }
    match (claim.is_bind_completed(), claim.spec.volume_name.is_empty()) {
        (false, true) => free_claim(claim, around),
        (false, false) => naming_claim(claim, around),
        (true, _) => bound_claim(claim, around),
    }
}

/// Whoever made the claim does not care which volume it gets.
fn free_claim(claim: &PersistentVolumeClaim, around: &Around) -> Plan {
    let waits = around.class.as_ref().is_some_and(|class| class.waits_for_consumer());
    if let Some(volume) = matching::best(claim, &around.candidates, waits) {
        return bind(claim, &volume);
    }
    if let (false, Some(class)) = (claim.names_class(), &around.default_class) {
        let patch = json!({"spec": {"storageClassName": class}});
        return Step::Claim(guarded(&claim.metadata, patch)).into();
    }
    if waits && claim.selected_node().is_none() {
        return pending(claim, Some(waiting(&around.unscheduled_pods)));
    }
    if !claim.class().is_empty() {
        return provision(claim, around);
    }
    let none = "no persistent volumes available for this claim and no storage class is set";
    pending(claim, Some(Event::normal("FailedBinding", none)))
}

fn waiting(pods: &[String]) -> Event {
    match pods {
        [] => Event::normal(
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ),
        [pod] => Event::normal("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => Event::normal(
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", pods.join(",")),
        ),
    }
}

/// Somebody else makes the volume, reserved for the claim: annotations request it.
fn provision(claim: &PersistentVolumeClaim, around: &Around) -> Plan {
    if !around.provisioning {
        return Step::Nothing.into();
    }
    let failed = |message: String| {
        let event = Some(Event::warning("ProvisioningFailed", message));
        Plan {
            step: Step::Nothing,
            event,
        }
    };
    let Some(class) = &around.class else {
        return failed(format!("storageclass.storage.k8s.io \"{}\" not found", claim.class()));
    };
    let named = class.provisioner.as_str();
    let provisioner = match migration::driver(named) {
        Some(driver) => driver,
        None if named == "kubernetes.io/host-path" => {
            return failed(format!(
                "Failed to create provisioner: provisioning in volume plugin \"{named}\" is disabled"
            ));
        }
        None if named.starts_with("kubernetes.io/") => {
            return failed(format!("no volume plugin matched name: {named}"));
        }
        None => named,
    };
    if claim.metadata.annotation(STORAGE_PROVISIONER) != Some(provisioner) {
        let patch = json!({"metadata": {"annotations": {
            STORAGE_PROVISIONER: provisioner, migration::BETA_STORAGE_PROVISIONER: provisioner,
        }}});
        return Step::Claim(guarded(&claim.metadata, patch)).into();
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    Plan {
        step: Step::Nothing,
        event: Some(Event::normal("ExternalProvisioning", message)),
    }
}

/// Whoever made the claim wants this volume and no other.
fn naming_claim(claim: &PersistentVolumeClaim, around: &Around) -> Plan {
    let Some(volume) = &around.named else {
        return pending(claim, None);
    };
    let name = &volume.metadata.name;
    let Some(reference) = &volume.spec.claim_ref else {
        return match matching::mismatch(volume, claim) {
            None => bind(claim, volume),
            Some(reason) => {
                let message = format!("Cannot bind to requested volume \"{name}\": {reason}");
                pending(claim, Some(Event::warning("VolumeMismatch", message)))
            }
        };
    };
    if volume.is_for(claim) {
        return bind(claim, volume);
    }
    let event = Event::warning(
        "FailedBinding",
        format!("volume \"{name}\" already bound to a different claim."),
    );
    if !claim.metadata.annotations.contains_key(BOUND_BY_CONTROLLER) {
        return pending(claim, Some(event));
    }
    let (namespace, own) = (&claim.metadata.namespace, &claim.metadata.name);
    Plan {
        step: Step::Refuse(format!(
            "invalid binding of claim \"{namespace}/{own}\" to volume \"{name}\": volume already claimed by \"{}/{}\"",
            reference.namespace, reference.name
        )),
        event: Some(event),
    }
}

fn bound_claim(claim: &PersistentVolumeClaim, around: &Around) -> Plan {
    if claim.spec.volume_name.is_empty() {
        let message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", message);
    }
    let Some(volume) = &around.named else {
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", message);
    };
    match &volume.spec.claim_ref {
        Some(reference) if reference.uid != claim.metadata.uid => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(claim, "ClaimMisbound", message)
        }
        _ => bind(claim, volume),
    }
}

/// The first of the four writes that is still to be done.
fn bind(claim: &PersistentVolumeClaim, volume: &Arc<PersistentVolume>) -> Plan {
    let (claim_meta, volume_meta) = (&claim.metadata, &volume.metadata);
    if !matching::is_bound_to(volume, claim) {
        let mut patch = json!({"spec": {"claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim_meta.namespace,
            "name": claim_meta.name, "uid": claim_meta.uid, "resourceVersion": claim_meta.resource_version,
        }}});
        if !volume.is_for(claim) {
            patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
        }
        return Step::Volume(volume.clone(), guarded(volume_meta, patch)).into();
    }
    if volume.status.phase != "Bound" {
        return phase(volume, "Bound", "").into();
    }
    if claim.spec.volume_name != volume_meta.name || !claim.is_bind_completed() {
        let mut patch = json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}});
        if claim.spec.volume_name != volume_meta.name {
            patch["spec"] = json!({"volumeName": volume_meta.name});
            patch["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
        }
        return Step::Claim(guarded(claim_meta, patch)).into();
    }
    match bound_status(claim, volume) {
        Some(status) => Step::ClaimStatus(guarded(claim_meta, json!({"status": status}))).into(),
        None => Step::Nothing.into(),
    }
}

fn bound_status(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Value> {
    let (now, mut status) = (&claim.status, json!({}));
    if now.access_modes != volume.spec.access_modes {
        status["accessModes"] = json!(volume.spec.access_modes);
    }
    if now.phase != "Bound" {
        status["phase"] = json!("Bound");
        // Only now: later the file system may be smaller than its volume, and resizers have the word.
        status["capacity"] = json!(capacity(volume));
        if now.phase == "Pending"
            && now.current_volume_attributes_class_name != volume.spec.volume_attributes_class_name
        {
            status["currentVolumeAttributesClassName"] = json!(volume.spec.volume_attributes_class_name);
        }
    }
    let changes = status.as_object().is_some_and(|fields| !fields.is_empty());
    changes.then_some(status)
}

fn capacity(volume: &PersistentVolume) -> Labels {
    let mut capacity = volume.spec.capacity.listed().clone();
    let before = volume.metadata.annotation(PRE_RESIZE_CAPACITY);
    if let Some(before) = before.filter(|text| orlop_api::quantity::Quantity::parse(text).is_ok()) {
        capacity.insert("storage".to_string(), before.to_string());
    }
    capacity
}

/// The claim has no volume; the event is for when its status says so.
fn pending(claim: &PersistentVolumeClaim, event: Option<Event>) -> Plan {
    match unbound_status(claim, "Pending") {
        Some(status) => Step::ClaimStatus(guarded(&claim.metadata, json!({"status": status}))).into(),
        None => Plan {
            step: Step::Nothing,
            event,
        },
    }
}

/// Said once, when it happens.
fn lost(claim: &PersistentVolumeClaim, reason: &'static str, message: &str) -> Plan {
    if claim.status.phase == "Lost" {
        return Step::Nothing.into();
    }
    let status = unbound_status(claim, "Lost").unwrap_or_default();
    Plan {
        step: Step::ClaimStatus(guarded(&claim.metadata, json!({"status": status}))),
        event: Some(Event::warning(reason, message)),
    }
}

fn unbound_status(claim: &PersistentVolumeClaim, phase: &str) -> Option<Value> {
    let (now, mut status) = (&claim.status, json!({}));
    if now.phase != phase {
        status["phase"] = json!(phase);
    }
    if !now.access_modes.is_empty() {
        status["accessModes"] = Value::Null;
    }
    if !now.capacity.listed().is_empty() {
        status["capacity"] = Value::Null;
    }
    if now.current_volume_attributes_class_name.is_some() {
        status["currentVolumeAttributesClassName"] = Value::Null;
    }
    let changes = status.as_object().is_some_and(|fields| !fields.is_empty());
    changes.then_some(status)
}

/// `owner`: the claim that the volume refers to, if it is still there.
pub(super) fn volume(volume: &Arc<PersistentVolume>, owner: Option<&PersistentVolumeClaim>) -> Plan {
    if let Some(patch) = migration::volume_patch(volume) {
        return Step::Volume(volume.clone(), guarded(&volume.metadata, patch)).into();
    }
    let reference = volume.spec.claim_ref.as_ref().filter(|r| !r.uid.is_empty());
    let Some(reference) = reference else {
        return in_phase(volume, "Available");
    };
    let Some(claim) = owner.filter(|claim| claim.metadata.uid == reference.uid) else {
        return released(volume);
    };
    let named = claim.spec.volume_name.as_str();
    if named == volume.metadata.name {
        return in_phase(volume, "Bound");
    }
    if named.is_empty() {
        // Both sides hear of it; the shell tells the claim's.
        if volume.mode() != claim.mode() {
            let message = format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{}\" due to incompatible volumeMode.",
                claim.metadata.name
            );
            return Plan {
                step: Step::Nothing,
                event: Some(Event::warning("VolumeMismatch", message)),
            };
        }
        return Step::WakeClaim.into();
    }
    // The claim got another volume.
    let made_for_it = volume.metadata.annotations.contains_key(PROVISIONED_BY);
    if made_for_it && volume.spec.persistent_volume_reclaim_policy == "Delete" {
        return released(volume);
    }
    let patch = match volume.metadata.annotations.contains_key(BOUND_BY_CONTROLLER) {
        true => json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}, "spec": {"claimRef": null}}),
        // It stays reserved for the name.
        false => json!({"spec": {"claimRef": {"uid": null}}}),
    };
    Step::Volume(volume.clone(), guarded(&volume.metadata, patch)).into()
}

/// What the claim hears when its volume has another mode.
pub(super) fn mode_mismatch(volume: &PersistentVolume) -> Event {
    let name = &volume.metadata.name;
    Event::warning(
        "VolumeMismatch",
        format!(
            "Cannot bind PersistentVolume \"{name}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
        ),
    )
}

/// Nobody's any more.
fn released(volume: &Arc<PersistentVolume>) -> Plan {
    if !matches!(volume.status.phase.as_str(), "Released" | "Failed") {
        return phase(volume, "Released", "").into();
    }
    if volume
        .metadata
        .annotation(migration::MIGRATED_TO)
        .is_some_and(|to| !to.is_empty())
    {
        return Step::Nothing.into();
    }
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "Retain" => Step::Nothing.into(),
        "Recycle" => failed(
            volume,
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!",
        ),
        "Delete" => match deleter(volume) {
            Ok(Deleter::Other) => Step::Nothing.into(),
            Ok(Deleter::HostPath(path)) => Step::DeleteHostPath(path.to_string()).into(),
            Err(error) => failed(volume, "VolumeFailedDelete", &error.to_string()),
        },
        _ => failed(
            volume,
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    }
}

enum Deleter<'a> {
    /// Whoever made it, or a CSI driver.
    Other,
    HostPath(&'a str),
}

/// Why nobody deletes a volume, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoDeleter(String);

fn deleter(volume: &PersistentVolume) -> Result<Deleter<'_>, NoDeleter> {
    let made_by = volume.metadata.annotation(PROVISIONED_BY).filter(|by| !by.is_empty());
    match made_by {
        Some("kubernetes.io/host-path") => {}
        Some(by) if by.starts_with("kubernetes.io/") => {
            return Err(NoDeleter(format!("no volume plugin matched name: {by}")));
        }
        Some(_) => return Ok(Deleter::Other),
        None => {}
    }
    let spec = &volume.spec;
    if spec.csi.is_some() {
        return Ok(Deleter::Other);
    }
    if let Some(at) = &spec.host_path {
        let path = at.path.as_str();
        // Upstream looks for `/tmp/` anywhere in the path.
        let beneath = path
            .strip_prefix("/tmp/")
            .is_some_and(|rest| !rest.trim_matches('/').is_empty());
        return match beneath && !path.split('/').any(|part| part == "..") {
            true => Ok(Deleter::HostPath(path)),
            false => Err(NoDeleter(format!(
                "host_path deleter only supports /tmp/.+ but received provided {path}"
            ))),
        };
    }
    let what = match spec.nfs.is_some() {
        true => "no deletable volume plugin matched",
        false => "no volume plugin matched",
    };
    let name = &volume.metadata.name;
    Err(NoDeleter(format!(
        "error getting deleter volume plugin for volume \"{name}\": {what}"
    )))
}

/// Said once, when it happens.
pub(super) fn failed(volume: &Arc<PersistentVolume>, reason: &'static str, message: &str) -> Plan {
    if volume.status.phase == "Failed" {
        return Step::Nothing.into();
    }
    Plan {
        step: phase(volume, "Failed", message),
        event: Some(Event::warning(reason, message)),
    }
}

fn in_phase(volume: &Arc<PersistentVolume>, wanted: &str) -> Plan {
    match volume.status.phase == wanted {
        true => Step::Nothing.into(),
        false => phase(volume, wanted, "").into(),
    }
}

fn phase(volume: &Arc<PersistentVolume>, phase: &str, message: &str) -> Step {
    let message = if message.is_empty() {
        Value::Null
    } else {
        json!(message)
    };
    let patch = json!({"status": {"phase": phase, "message": message}});
    Step::VolumeStatus(volume.clone(), guarded(&volume.metadata, patch))
}

/// Takes only if the object is as it was seen.
fn guarded(meta: &Meta, mut patch: Value) -> Value {
    for (key, value) in precondition(meta).as_object().into_iter().flatten() {
        patch["metadata"][key] = value.clone();
    }
    patch
}
