//! NodeRestriction: a kubelet changes only what is its own: its node, lease, CSINode and resource slices, its mirror
//! pods, the status of pods that run on it, and tokens of their service accounts.
//!
//! Whether a kubelet may come near an object at all is the node authoriser's business; this is about what it writes.
//! Upstream: plugin/pkg/admission/noderestriction (v1.36). Requests for certificates of pods are left out: they need a
//! feature that is off by default.

mod audience;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use orlop_api::{Status, Value};
use serde_json::Map;

use super::{Change, Operation, Plugin, Review, certificates, pod_api_references};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeRestriction",
    mutate: Some(mutate),
    validate: Some(validate),
};

const NODE_LEASES: &str = "kube-node-lease";
pub(super) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Looks at what the kubelet sent, before it is cut down to what the endpoint takes over.
fn mutate(review: &Review<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    check(review, Some(object), old)
}

fn validate(review: &Review<'_>, _: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    if review.operation == Operation::Delete {
        check(review, None, old)?;
    }
    // Names that were generated since are known only now.
    if let Some(node) = review.user.node_name()
        && is_named_for_node(review)
        && review.name != node
    {
        let why = format!("node {node:?} is not allowed to modify {:?}", review.name);
        return Err(review.forbidden(why));
    }
    Ok(vec![])
}

fn check(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<(), Status> {
    let Some(node) = review.user.node_name() else {
        return Ok(());
    };
    let (new, old) = (new.unwrap_or(&Value::Null), old.unwrap_or(&Value::Null));
    if node.is_empty() {
        let why = format!("could not determine node from user {:?}", review.user.name);
        return Err(review.forbidden(why));
    }
    match (review.kind.group, review.kind.plural, review.subresource) {
        ("", "pods", "") => pod(review, node, new, old),
        ("", "pods", "status") => pod_status(review, node, new, old),
        ("", "pods", "eviction") => eviction(review, node),
        ("", "pods", other) => Err(review.forbidden(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        ))),
        ("", "nodes", _) => own_node(review, node, new, old),
        ("", "persistentvolumeclaims", "status") => claim_status(review, node, new, old),
        ("", "persistentvolumeclaims", _) => Err(review.forbidden("may only update PVC status")),
        ("", "serviceaccounts", "token") if review.operation == Operation::Create => token(review, node, new),
        ("coordination.k8s.io", "leases", _) => lease(review, node),
        ("storage.k8s.io", "csinodes", _) if review.name != node => {
            Err(review.forbidden("can only access CSINode with the same name as the requesting node"))
        }
        ("resource.k8s.io", "resourceslices", _) => resource_slice(review, node, new, old),
        ("certificates.k8s.io", "certificatesigningrequests", _) if review.operation == Operation::Create => {
            signing_request(review, node, new)
        }
        _ => Ok(()),
    }
}

/// Kinds of which a node has one, of its own name.
fn is_named_for_node(review: &Review<'_>) -> bool {
    matches!(
        (review.kind.group, review.kind.plural),
        ("", "nodes") | ("coordination.k8s.io", "leases") | ("storage.k8s.io", "csinodes")
    )
}

fn pod(review: &Review<'_>, node: &str, new: &Value, old: &Value) -> Result<(), Status> {
    match review.operation {
        Operation::Create => mirror_pod(review, node, new),
        Operation::Delete if text(old, &["spec", "nodeName"]) == node => Ok(()),
        Operation::Delete => Err(review.forbidden(format!(
            "node {node:?} can only delete pods with spec.nodeName set to itself"
        ))),
        other => Err(review.forbidden(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            other.name()
        ))),
    }
}

/// The image of a pod that the kubelet runs on its own account: owned by the node, and without a claim to anything in
/// the API, lest a kubelet give itself access to it.
fn mirror_pod(review: &Review<'_>, node: &str, pod: &Value) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(why));
    if pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_none() {
        return refuse(format!(
            "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, &["spec", "nodeName"]) != node {
        return refuse(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match items(pod, &["metadata", "ownerReferences"]) {
        [owner] => owner,
        [] => {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        _ => {
            return refuse(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    check_owner(review, node, owner)?;
    match pod_api_references::first(pod) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => refuse(format!("node {node:?} can not create pods that reference {what}")),
        Err(why) => refuse(format!("error checking mirror pod for API references: {why}")),
    }
}

fn check_owner(review: &Review<'_>, node: &str, owner: &Value) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(why));
    let named = |name: &str| text(owner, &[name]);
    if (named("apiVersion"), named("kind"), named("name")) != ("v1", "Node", node) {
        return refuse(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return refuse(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let Some(object) = review.lookup.get("nodes", "", node) else {
        return Err(Status::not_found("", "node", node));
    };
    let (given, uid) = (named("uid"), text(&object, &["metadata", "uid"]));
    if given != uid {
        return refuse(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    Ok(())
}

fn pod_status(review: &Review<'_>, node: &str, new: &Value, old: &Value) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(why));
    if review.operation != Operation::Update {
        return refuse(format!("unexpected operation {:?}", review.operation.name()));
    }
    if text(old, &["spec", "nodeName"]) != node {
        return refuse(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    if labels(new) != labels(old) {
        return refuse(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims = |pod: &Value| -> Vec<(Value, Value)> {
        let list = items(pod, &["status", "resourceClaimStatuses"]);
        list.iter()
            .map(|s| (s["name"].clone(), s["resourceClaimName"].clone()))
            .collect()
    };
    if claims(new) != claims(old) {
        return refuse(format!("node {node:?} cannot update resource claim statues"));
    }
    let extended = |pod: &Value| pod.pointer("/status/extendedResourceClaimStatus").cloned();
    if extended(new) != extended(old) {
        return refuse(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

fn eviction(review: &Review<'_>, node: &str) -> Result<(), Status> {
    if review.operation != Operation::Create {
        return Err(review.forbidden(format!("unexpected operation {}", review.operation.name())));
    }
    let Some(pod) = review.lookup.get("pods", &review.namespace, &review.name) else {
        return Err(Status::not_found("", "pod", &review.name));
    };
    if text(&pod, &["spec", "nodeName"]) != node {
        return Err(review.forbidden(format!(
            "node {node} can only evict pods with spec.nodeName set to itself"
        )));
    }
    Ok(())
}

/// A kubelet that has grown a volume tells so, and nothing else.
fn claim_status(review: &Review<'_>, node: &str, new: &Value, old: &Value) -> Result<(), Status> {
    if review.operation != Operation::Update {
        return Err(review.forbidden(format!("unexpected operation {:?}", review.operation.name())));
    }
    if fixed_part(new) != fixed_part(old) {
        return Err(review.forbidden(format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )));
    }
    Ok(())
}

/// The claim without what a kubelet may change of it.
fn fixed_part(claim: &Value) -> Value {
    let mut claim = claim.clone();
    let growth = [
        "capacity",
        "conditions",
        "allocatedResourceStatuses",
        "allocatedResources",
    ];
    for (part, names) in [
        ("metadata", &["resourceVersion", "managedFields"][..]),
        ("status", &growth),
    ] {
        if let Some(members) = claim.get_mut(part).and_then(Value::as_object_mut) {
            members.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
    claim
}

fn own_node(review: &Review<'_>, node: &str, new: &Value, old: &Value) -> Result<(), Status> {
    let refuse = |why: String| Err(review.forbidden(why));
    if review.name != node {
        return refuse(format!("node {node:?} is not allowed to modify node {:?}", review.name));
    }
    let source = new.pointer("/spec/configSource");
    match review.operation {
        Operation::Create => {
            if source.is_some() {
                return refuse(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            match forbidden_labels(new, old) {
                list if list.is_empty() => Ok(()),
                list => refuse(format!(
                    "node {node:?} is not allowed to set the following labels: {list}"
                )),
            }
        }
        Operation::Update => {
            if source.is_some() && source != old.pointer("/spec/configSource") {
                return refuse(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if items(new, &["spec", "taints"]) != items(old, &["spec", "taints"]) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            let owners = |object: &Value| items(object, &["metadata", "ownerReferences"]).to_vec();
            if owners(new) != owners(old) {
                return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            match forbidden_labels(new, old) {
                list if list.is_empty() => Ok(()),
                list => refuse(format!("is not allowed to modify labels: {list}")),
            }
        }
        Operation::Delete | Operation::Connect => Ok(()),
    }
}

fn labels(object: &Value) -> Map<String, Value> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    labels.cloned().unwrap_or_default()
}

/// The changed labels that are not a kubelet's to change, as they stand in messages.
fn forbidden_labels(new: &Value, old: &Value) -> String {
    let (new, old) = (labels(new), labels(old));
    let changed: BTreeSet<&str> = new
        .keys()
        .chain(old.keys())
        .filter(|key| new.get(*key) != old.get(*key))
        .map(String::as_str)
        .collect();
    let forbidden: Vec<&str> = changed.into_iter().filter(|key| is_forbidden(key)).collect();
    forbidden.join(", ")
}

/// Labels of Kubernetes' own that kubelets set, beside those in the domains `kubelet.` and `node.kubernetes.io`.
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

fn is_forbidden(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |outer: &str| domain == outer || domain.strip_suffix(outer).is_some_and(|rest| rest.ends_with('.'));
    let kubelets = KUBELET_LABELS.contains(&label) || within("kubelet.kubernetes.io") || within("node.kubernetes.io");
    within("node-restriction.kubernetes.io") || ((within("kubernetes.io") || within("k8s.io")) && !kubelets)
}

fn token(review: &Review<'_>, node: &str, request: &Value) -> Result<(), Status> {
    let bound = |name: &str| text(request, &["spec", "boundObjectRef", name]);
    let (name, uid) = (bound("name"), bound("uid"));
    if (bound("apiVersion"), bound("kind")) != ("v1", "Pod") || name.is_empty() {
        return Err(review.forbidden("node requested token not bound to a pod"));
    }
    if uid.is_empty() {
        return Err(review.forbidden("node requested token with a pod binding without a uid"));
    }
    let Some(pod) = review.lookup.get("pods", &review.namespace, name) else {
        return Err(Status::not_found("", "pod", name));
    };
    if uid != text(&pod, &["metadata", "uid"]) {
        return Err(review.forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        )));
    }
    if text(&pod, &["spec", "nodeName"]) != node {
        return Err(review.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    audience::check(review, &pod, request).map_err(|why| review.forbidden(why.to_string()))
}

fn lease(review: &Review<'_>, node: &str) -> Result<(), Status> {
    if review.namespace != NODE_LEASES {
        let why = format!("can only access leases in the {NODE_LEASES:?} system namespace");
        return Err(review.forbidden(why));
    }
    if review.name != node {
        return Err(review.forbidden("can only access node lease with the same name as the requesting node"));
    }
    Ok(())
}

fn resource_slice(review: &Review<'_>, node: &str, new: &Value, old: &Value) -> Result<(), Status> {
    let (slice, verb) = match review.operation {
        Operation::Create => (new, "create"),
        Operation::Delete => (old, "delete"),
        // Which node a slice is about does not change.
        Operation::Update | Operation::Connect => return Ok(()),
    };
    if slice.pointer("/spec/nodeName").and_then(Value::as_str) != Some(node) {
        return Err(review.forbidden(format!(
            "can only {verb} ResourceSlice with the same NodeName as the requesting node"
        )));
    }
    Ok(())
}

const KUBELET_SIGNERS: &[&str] = &[
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

fn signing_request(review: &Review<'_>, node: &str, request: &Value) -> Result<(), Status> {
    if !KUBELET_SIGNERS.contains(&text(request, &["spec", "signerName"])) {
        return Ok(());
    }
    let request = certificates::read(text(request, &["spec", "request"]))
        .map_err(|why| review.forbidden(format!("unable to parse csr: {why}")))?;
    if request.subject.common_name() != format!("system:node:{node}") {
        let why = format!("can only create a node CSR with CN=system:node:{node}");
        return Err(review.forbidden(why));
    }
    Ok(())
}
