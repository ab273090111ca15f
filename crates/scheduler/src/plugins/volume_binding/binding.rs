//! From a choice to bound claims: what is assumed, what is written, and whether it has come true.
//!
//! ```text
//!   reserve: assumed ──▶ writes: volumes refer to claims, claims name the node ──▶ (the controllers bind) ──▶ done
//!        ╰── unreserve: forgotten
//! ```
//!
//! Every write carries the revision that was decided on, so that of two schedulers that want one volume the second fails.

use std::sync::Arc;

use serde_json::json;

use super::claims::Found;
use crate::cluster::node::NodeInfo;
use crate::cluster::storage::{Assumed, Storage};
use crate::framework::points::Write;
use crate::model::{BOUND_BY_CONTROLLER, ClaimRef, PersistentVolume, PersistentVolumeClaim, SELECTED_NODE};

/// What a pod has taken, and where to give it back.
#[derive(Debug)]
pub(super) struct Reservation {
    /// The volume as it will be, and its claim as it is.
    bindings: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    /// The claim as it will be.
    provisions: Vec<Arc<PersistentVolumeClaim>>,
    /// Those of these volumes and claims that nobody had assumed before.
    own: (Vec<Arc<PersistentVolume>>, Vec<Arc<PersistentVolumeClaim>>),
    assumed: Arc<Assumed>,
}

/// How far binding is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BindingState {
    Bound,
    Waiting,
    Failed(String),
}

impl Reservation {
    pub(super) fn new(found: Found, node: &str, assumed: &Arc<Assumed>) -> Reservation {
        let mut reservation = Reservation {
            bindings: vec![],
            provisions: vec![],
            own: (vec![], vec![]),
            assumed: assumed.clone(),
        };
        for (volume, claim) in found.bindings {
            let copy = with_claim(&volume, &claim);
            if !Arc::ptr_eq(&copy, &volume) {
                assumed.assume_volume(copy.clone());
                reservation.own.0.push(copy.clone());
            }
            reservation.bindings.push((copy, claim));
        }
        for claim in found.provisions {
            let copy = with_node(&claim, node);
            if !Arc::ptr_eq(&copy, &claim) {
                assumed.assume_claim(copy.clone());
                reservation.own.1.push(copy.clone());
            }
            reservation.provisions.push(copy);
        }
        reservation
    }

    /// Ends what was assumed for this pod. What another pod with the same claim had taken before stays taken.
    pub(super) fn give_back(self) {
        for volume in &self.own.0 {
            self.assumed.forget_volume(volume);
        }
        for claim in &self.own.1 {
            self.assumed.forget_claim(claim);
        }
    }

    /// Merge patches that make it true; nothing for what is true already.
    pub(super) fn writes(&self, storage: &Storage) -> Vec<Write> {
        let tables = storage.tables();
        let volumes = (self.bindings.iter())
            .filter(|(volume, claim)| {
                !(tables.volume(&volume.metadata.name)).is_some_and(|known| refers_to(known, claim))
            })
            .map(|(volume, claim)| volume_patch(volume, claim));
        let claims = (self.provisions.iter())
            .filter(|claim| {
                let known = tables.claim(&claim.metadata.namespace, &claim.metadata.name);
                known.is_none_or(|known| known.selected_node() != claim.selected_node())
            })
            .map(|claim| claim_patch(claim));
        volumes.chain(claims).collect()
    }

    /// Looks at what the API server has, not at what is assumed: that may be another pod's by now.
    ///
    /// Upstream: checkBindings in pkg/scheduler/framework/plugins/volumebinding (v1.36).
    pub(super) fn progress(&self, node: &NodeInfo, storage: &Storage) -> BindingState {
        let bindings = self.bindings.iter().map(|(v, c)| binding_progress(v, c, node, storage));
        let provisions = self.provisions.iter().map(|c| provision_progress(c, node, storage));
        let mut states = bindings.chain(provisions);
        states
            .find(|s| *s != BindingState::Bound)
            .unwrap_or(BindingState::Bound)
    }
}

fn binding_progress(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
    storage: &Storage,
) -> BindingState {
    let tables = storage.tables();
    let Some(known) = tables.volume(&volume.metadata.name) else {
        let name = &volume.metadata.name;
        return BindingState::Failed(format!(
            "failed to check binding: persistentvolumes \"{name}\" not found"
        ));
    };
    let Some(known_claim) = tables.claim(&claim.metadata.namespace, &claim.metadata.name) else {
        let key = claim.metadata.key();
        return BindingState::Failed(format!(
            "failed to check binding: persistentvolumeclaims \"{key}\" not found"
        ));
    };
    if known.metadata.resource_version == volume.metadata.resource_version && !refers_to(known, claim) {
        return BindingState::Waiting;
    }
    if let Err(failed) = check_reach(known, node) {
        return failed;
    }
    if known.spec.claim_ref.as_ref().is_none_or(|r| r.uid.is_empty()) {
        return BindingState::Failed(format!("ClaimRef got reset for pv \"{}\"", known.metadata.name));
    }
    bound_or_waiting(known_claim)
}

fn provision_progress(claim: &PersistentVolumeClaim, node: &NodeInfo, storage: &Storage) -> BindingState {
    let tables = storage.tables();
    let Some(known) = tables.claim(&claim.metadata.namespace, &claim.metadata.name) else {
        let key = claim.metadata.key();
        return BindingState::Failed(format!(
            "failed to check provisioning pvc: persistentvolumeclaims \"{key}\" not found"
        ));
    };
    if known.selected_node() != Some(&node.name) {
        if known.metadata.resource_version == claim.metadata.resource_version {
            return BindingState::Waiting;
        }
        let name = &known.metadata.name;
        return BindingState::Failed(if known.metadata.annotations.is_empty() {
            format!("selectedNode annotation reset for PVC \"{name}\"")
        } else {
            format!("provisioning failed for PVC \"{name}\"")
        });
    }
    if !known.spec.volume_name.is_empty() {
        // The news of the volume may come after that of the claim.
        let Some(volume) = tables.volume(&known.spec.volume_name) else {
            return BindingState::Waiting;
        };
        if let Err(failed) = check_reach(volume, node) {
            return failed;
        }
    }
    bound_or_waiting(known)
}

fn check_reach(volume: &PersistentVolume, node: &NodeInfo) -> Result<(), BindingState> {
    if volume.reaches(&node.labels) {
        return Ok(());
    }
    let (volume, node) = (&volume.metadata.name, &node.name);
    let reason = format!("pv \"{volume}\" node affinity doesn't match node \"{node}\": no matching NodeSelectorTerms");
    Err(BindingState::Failed(reason))
}

fn bound_or_waiting(claim: &PersistentVolumeClaim) -> BindingState {
    if claim.is_bound() {
        BindingState::Bound
    } else {
        BindingState::Waiting
    }
}

/// To this claim and no namesake.
fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = &claim.metadata.uid;
    volume.is_for(claim) && volume.spec.claim_ref.as_ref().is_some_and(|r| r.uid == *uid)
}

/// The volume with a reference to the claim; itself if it has that.
fn with_claim(volume: &Arc<PersistentVolume>, claim: &PersistentVolumeClaim) -> Arc<PersistentVolume> {
    if refers_to(volume, claim) {
        return volume.clone();
    }
    let mut copy = PersistentVolume::clone(volume);
    if !volume.is_for(claim) {
        let by_controller = (BOUND_BY_CONTROLLER.to_string(), "yes".to_string());
        copy.metadata.annotations.extend([by_controller]);
    }
    copy.spec.claim_ref = Some(ClaimRef {
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
    });
    Arc::new(copy)
}

/// The claim with the node for which a volume is to be made; itself if it has that.
fn with_node(claim: &Arc<PersistentVolumeClaim>, node: &str) -> Arc<PersistentVolumeClaim> {
    if claim.selected_node() == Some(node) {
        return claim.clone();
    }
    let mut copy = PersistentVolumeClaim::clone(claim);
    let selected = (SELECTED_NODE.to_string(), node.to_string());
    copy.metadata.annotations.extend([selected]);
    Arc::new(copy)
}

fn volume_patch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Write {
    let mut metadata = json!({"resourceVersion": volume.metadata.resource_version});
    if let Some(yes) = volume.metadata.annotations.get(BOUND_BY_CONTROLLER) {
        metadata["annotations"] = json!({BOUND_BY_CONTROLLER: yes});
    }
    let claim_ref = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    });
    Write {
        method: "PATCH",
        path: format!("/api/v1/persistentvolumes/{}", volume.metadata.name),
        body: json!({"metadata": metadata, "spec": {"claimRef": claim_ref}}),
    }
}

fn claim_patch(claim: &PersistentVolumeClaim) -> Write {
    let annotations = json!({SELECTED_NODE: claim.selected_node()});
    Write {
        method: "PATCH",
        path: format!(
            "/api/v1/namespaces/{}/persistentvolumeclaims/{}",
            claim.metadata.namespace, claim.metadata.name
        ),
        body: json!({"metadata": {"resourceVersion": claim.metadata.resource_version, "annotations": annotations}}),
    }
}
