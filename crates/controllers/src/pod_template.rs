//! Pods made from a template.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::objects::{Kind, OwnerReference, PodTemplate};
use crate::ownership::controller_reference;

/// The pod that a template describes, managed by the owner, its name made by the server.
pub(crate) fn pod<O: Kind>(owner: &O, template: &PodTemplate) -> Value {
    pod_for(
        &controller_reference(owner),
        &generate_name(&owner.meta().name),
        template,
    )
}

pub(crate) fn pod_for(owner: &OwnerReference, generate_name: &str, template: &PodTemplate) -> Value {
    let mut metadata = json!({"generateName": generate_name, "ownerReferences": [owner]});
    let from = &template.metadata;
    if !from.labels.is_empty() {
        metadata["labels"] = json!(from.labels);
    }
    if !from.annotations.is_empty() {
        metadata["annotations"] = json!(from.annotations);
    }
    if !from.finalizers.is_empty() {
        metadata["finalizers"] = json!(from.finalizers);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.spec})
}

pub(crate) fn encoded(pod: &Value) -> Bytes {
    Bytes::from(pod.to_string())
}

/// Upstream leaves the dash out if the name would not be valid with it.
pub(crate) fn generate_name(owner: &str) -> String {
    let with_dash = format!("{owner}-");
    if orlop_api::names::dns_subdomain(with_dash.trim_end_matches('-')).is_empty() {
        with_dash
    } else {
        owner.to_string()
    }
}

/// A refusal because the namespace is on its way out. Upstream: the cause `NamespaceTerminating`.
pub(crate) fn is_namespace_ending(refusal: &orlop_client::Status) -> bool {
    let mut causes = refusal.details.causes.iter();
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}
