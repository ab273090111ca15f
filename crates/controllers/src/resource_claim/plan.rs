//! Which claims a pod needs, and what becomes of a claim. Pure.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::pod::PodResourceClaim;
use crate::objects::resource_claim::Consumer;
use crate::objects::{Pod, ResourceClaim, ResourceClaimTemplate};

/// On claims made for pods: which of the pod's wishes it is for.
pub(super) const FOR: &str = "resource.kubernetes.io/pod-claim-name";
/// On allocated claims: they don't go before they are freed.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Uses nothing any more, and never will.
pub(super) fn is_done(pod: &Pod) -> bool {
    pod.is_terminal() || (pod.metadata.is_deleted() && pod.spec.node_name.is_empty())
}

/// The claims that a pod uses, as far as they are known.
pub(super) fn claim_names(pod: &Pod) -> Vec<String> {
    let wishes = pod.spec.resource_claims.iter();
    let names = wishes.filter_map(|wish| match &wish.resource_claim_name {
        Some(name) => Some(name.clone()),
        None => recorded(pod, &wish.name).flatten(),
    });
    names.collect()
}

/// What the pod's status says: nothing; that no claim is needed; or its name.
fn recorded(pod: &Pod, wish: &str) -> Option<Option<String>> {
    let mut statuses = pod.status.resource_claim_statuses.iter();
    let status = statuses.find(|status| status.name == wish)?;
    Some(status.resource_claim_name.clone())
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need<'a> {
    Nothing,
    /// From the template of this name.
    Make(&'a str),
    /// It was made; the pod's status does not say so yet.
    Record(String),
}

pub(super) fn need<'a>(
    pod: &Pod,
    wish: &'a PodResourceClaim,
    own: &[Arc<ResourceClaim>],
    known: impl Fn(&str) -> Option<Arc<ResourceClaim>>,
) -> Need<'a> {
    let Some(template) = &wish.resource_claim_template_name else {
        return Need::Nothing;
    };
    match recorded(pod, &wish.name) {
        Some(None) => return Need::Nothing,
        Some(Some(name)) if known(&name).is_some_and(|claim| is_for(&claim, pod)) => return Need::Nothing,
        _ => {}
    }
    let made = own
        .iter()
        .find(|claim| claim.metadata.annotation(FOR) == Some(&wish.name));
    match made {
        Some(claim) => Need::Record(claim.metadata.name.clone()),
        None => Need::Make(template),
    }
}

fn is_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    let owner = claim.metadata.controller();
    owner.is_some_and(|owner| owner.uid == pod.metadata.uid)
}

/// What the pod's status is to say.
pub(super) fn statuses(pod: &Pod, fresh: &[(String, String)]) -> Vec<Value> {
    let is_fresh = |name: &str| fresh.iter().any(|(wish, _)| wish == name);
    let kept = pod
        .status
        .resource_claim_statuses
        .iter()
        .filter(|status| !is_fresh(&status.name));
    let kept = kept.map(|status| match &status.resource_claim_name {
        Some(name) => json!({"name": status.name, "resourceClaimName": name}),
        None => json!({"name": status.name}),
    });
    let fresh = fresh
        .iter()
        .map(|(wish, name)| json!({"name": wish, "resourceClaimName": name}));
    kept.chain(fresh).collect()
}

pub(super) fn claim_from(template: &ResourceClaimTemplate, pod: &Pod, wish: &str) -> Value {
    let from = &template.spec.metadata;
    let mut annotations = from.annotations.clone();
    annotations.insert(FOR.to_string(), wish.to_string());
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "generateName": generate_name(&pod.metadata.name, wish), "annotations": annotations, "labels": from.labels,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid,
                                 "controller": true}],
        },
        "spec": template.spec.spec,
    })
}

/// Leaves room for five random characters in a name of 63; both parts are cut in proportion.
fn generate_name(pod: &str, wish: &str) -> String {
    const MAX: usize = 57;
    let full = format!("{pod}-{wish}-");
    if full.len() <= MAX {
        return full;
    }
    // Names are ASCII: any place is a good one to cut at.
    let cut = |name: &str| name[..name.len() * MAX / full.len()].to_string();
    format!("{}-{}", cut(pod), cut(wish))
}

/// The claim's users with this pod among them, if it has to be added.
pub(super) fn reservation(pod: &Pod, claim: &ResourceClaim) -> Option<Vec<Consumer>> {
    let uid = &pod.metadata.uid;
    let users = &claim.status.reserved_for;
    if claim.status.allocation.is_none() || users.iter().any(|user| user.uid == *uid) {
        return None;
    }
    let mut users = users.clone();
    users.push(Consumer {
        resource: "pods".to_string(),
        name: pod.metadata.name.clone(),
        uid: uid.clone(),
        ..Consumer::default()
    });
    Some(users)
}

#[derive(Debug, PartialEq)]
pub(super) enum Cleanup {
    Nothing,
    /// A merge patch of the status.
    Status(Value),
    Finalizers(Vec<String>),
    Delete,
}

/// The next thing to do. `left`: users that are still there; `owner`: the pod of that name, if the claim is a pod's;
/// `freed`: this reconcile has freed it. (Without that a finalizer on a free claim may be the scheduler's, about to allocate.)
pub(super) fn cleanup(claim: &ResourceClaim, left: &[Consumer], owner: Option<&Pod>, freed: bool) -> Cleanup {
    let (meta, status) = (&claim.metadata, &claim.status);
    let is_ours = meta.has_finalizer(FINALIZER);
    let frees = left.is_empty() && is_ours && status.allocation.is_some();
    if left.len() < status.reserved_for.len() {
        let users = if left.is_empty() { Value::Null } else { json!(left) };
        return Cleanup::Status(match frees {
            true => json!({"reservedFor": users, "allocation": null}),
            false => json!({"reservedFor": users}),
        });
    }
    if !left.is_empty() {
        return Cleanup::Nothing;
    }
    if meta.is_deleted() && frees {
        return Cleanup::Status(json!({"allocation": null}));
    }
    if is_ours && status.allocation.is_none() && (freed || meta.is_deleted()) {
        let left = meta.finalizers.iter().filter(|f| *f != FINALIZER);
        return Cleanup::Finalizers(left.cloned().collect());
    }
    let uid = meta.controller().map(|owner| owner.uid.as_str());
    let unused = owner.is_some_and(|pod| Some(pod.metadata.uid.as_str()) != uid || is_done(pod));
    match unused && !meta.is_deleted() {
        true => Cleanup::Delete,
        false => Cleanup::Nothing,
    }
}
