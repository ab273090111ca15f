//! Pod: containers that live and die together on one node.
//!
//! Upstream: pkg/registry/core/pod, pkg/apis/core/validation (v1.36).

mod columns;
mod equal;
pub mod restart;
mod status;
mod update;
pub mod warnings;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::core::{pod_spec, pod_template};
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, SelectableField, Subresource, copy_member};
use crate::resources;
use pod_spec::Read;

pub use resources::qos_class;
pub use update::{prepare_ephemeral, prepare_resize, validate_ephemeral_containers_update, validate_resize};

pub const DEF: KindDef = KindDef {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    schema: "core/v1.Pod",
    subresources: SUBRESOURCES,
    fields: FIELDS,
    columns: &[
        Column::string("Ready"),
        Column::string("Status"),
        Column::string("Restarts"),
        Column::AGE,
        Column::wide("IP"),
        Column::wide("Node"),
        Column::wide("Nominated Node"),
        Column::wide("Readiness Gates"),
    ],
    cells: columns::cells,
    default,
    prepare_create,
    prepare_status: status::prepare,
    validate,
    validate_create,
    validate_update: update::validate,
    validate_status: status::validate_update,
    warnings: |new, old| match old {
        // Pods are mostly updated by machines, which read no advice.
        Some(_) => vec![],
        None => warnings::on_create(new),
    },
    generation: true,
    ..KindDef::BASE
};

/// A subresource of this version; the pod itself goes in and out if the kind is "".
const fn sub(name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Subresource {
    Subresource {
        name,
        group: "",
        version: if kind.is_empty() { "" } else { "v1" },
        kind,
        verbs,
    }
}

const UPDATE: &[&str] = &["get", "patch", "update"];

const SUBRESOURCES: &[Subresource] = &[
    sub("attach", "PodAttachOptions", &["create", "get"]),
    sub("binding", "Binding", &["create"]),
    sub("ephemeralcontainers", "", UPDATE),
    Subresource {
        name: "eviction",
        group: "policy",
        version: "v1",
        kind: "Eviction",
        verbs: &["create"],
    },
    sub("exec", "PodExecOptions", &["create", "get"]),
    sub("log", "", &["get"]),
    sub("portforward", "PodPortForwardOptions", &["create", "get"]),
    sub(
        "proxy",
        "PodProxyOptions",
        &["create", "delete", "get", "patch", "update"],
    ),
    sub("resize", "", UPDATE),
    Subresource::STATUS,
];

const FIELDS: &[SelectableField] = &[
    SelectableField::at("spec.nodeName"),
    // What clients of the first days call it.
    SelectableField {
        name: "spec.host",
        read: Some(|pod| text(pod, "/spec/nodeName").to_string()),
    },
    SelectableField::at("spec.restartPolicy"),
    SelectableField::at("spec.schedulerName"),
    SelectableField::at("spec.serviceAccountName"),
    SelectableField {
        name: "spec.hostNetwork",
        read: Some(|pod| (pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true))).to_string()),
    },
    SelectableField::at("status.phase"),
    SelectableField {
        name: "status.podIP",
        read: Some(|pod| pod_ip(pod).to_string()),
    },
    SelectableField {
        name: "status.podIPs",
        read: Some(|pod| pod_ip(pod).to_string()),
    },
    SelectableField::at("status.nominatedNodeName"),
];

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    resources::find(object, pointer).and_then(Value::as_str).unwrap_or("")
}

/// The pod's first address, or "".
fn pod_ip(pod: &Value) -> &str {
    text(pod, "/status/podIPs/0/ip")
}

fn default(pod: &mut Value) {
    pod_template::drop_former_annotations(pod);
    if pod_spec::ensure_object(pod, "spec").is_none() {
        return;
    }
    pod_spec::default_pod_only(pod);
    pod_spec::default(&mut pod["spec"]);
    if let Some(status) = pod_spec::ensure_object(pod, "status").and_then(Value::as_object_mut) {
        status::default(status);
    }
}

/// A new pod is pending; its status is the system's. Its resources must be final by now (LimitRange defaults filled in):
/// the QoS class follows from them.
fn prepare_create(pod: &mut Value) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    if pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array)
        .is_some_and(|g| !g.is_empty())
    {
        let mut condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        });
        if let Some(now) = pod.pointer("/metadata/creationTimestamp").filter(|t| !t.is_null()) {
            condition["lastTransitionTime"] = now.clone();
        }
        status["conditions"] = json!([condition]);
    }
    if let Some(map) = pod.as_object_mut() {
        map.insert("status".into(), status);
    }
    merge_label_keys(pod);
    app_armor_fields(pod);
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// `matchLabelKeys` and `mismatchLabelKeys` become requirements on the pod's own values of these labels.
fn merge_label_keys(pod: &mut Value) {
    let labels = match pod.pointer("/metadata/labels") {
        Some(Value::Object(labels)) if !labels.is_empty() => labels.clone(),
        _ => return,
    };
    let Some(spec) = pod.get_mut("spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec.get_mut("affinity").and_then(|a| a.get_mut(kind)) else {
            continue;
        };
        for term in list_mut(affinity, REQUIRED) {
            merge_into(term, &labels);
        }
        for term in list_mut(affinity, PREFERRED) {
            if let Some(term) = term.get_mut("podAffinityTerm") {
                merge_into(term, &labels);
            }
        }
    }
    for constraint in list_mut(spec, "topologySpreadConstraints") {
        merge_into(constraint, &labels);
    }
}

fn list_mut<'a>(holder: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    holder.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}

fn merge_into(term: &mut Value, labels: &Map<String, Value>) {
    let mut added = vec![];
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(field).and_then(Value::as_array);
        for key in keys.into_iter().flatten().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    // Without a selector the term matches nothing, with or without keys.
    if let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut)
        && !added.is_empty()
    {
        let expressions = selector
            .entry("matchExpressions")
            .or_insert_with(|| Value::Array(vec![]));
        if let Some(expressions) = expressions.as_array_mut() {
            expressions.extend(added);
        }
    }
}

/// AppArmor annotations become the field, where the container has none and the pod's is not the same anyway.
fn app_armor_fields(pod: &mut Value) {
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    let profiles: Vec<(String, Value)> = annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let container = key.strip_prefix(pod_spec::APP_ARMOR_PREFIX)?;
            let profile = pod_spec::app_armor_from_annotation(value.as_str()?)?;
            let mut problems = Problems::default();
            pod_spec::validate_app_armor(&Cursor::root(&profile), &mut problems);
            problems.is_empty().then(|| (container.to_string(), profile))
        })
        .collect();
    if profiles.is_empty() || text(pod, "/spec/os/name") == "windows" {
        return;
    }
    let of_pod = pod.pointer("/spec/securityContext/appArmorProfile").cloned();
    let Some(spec) = pod.get_mut("spec") else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list_mut(spec, list) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or("");
            let Some((_, profile)) = profiles.iter().find(|(n, p)| n == name && of_pod.as_ref() != Some(p)) else {
                continue;
            };
            if let Some(context) = pod_spec::ensure_object(container, "securityContext").and_then(Value::as_object_mut)
            {
                context.entry("appArmorProfile").or_insert_with(|| profile.clone());
            }
        }
    }
}

/// What holds for a pod at any time. `validate_create` adds what holds for a new one.
fn validate(pod: &Cursor<'_>, p: &mut Problems) {
    let (metadata, spec) = (pod.at("metadata"), pod.at("spec"));
    if let Some(annotations) = metadata.given("annotations") {
        pod_spec::validate_annotations(&annotations, &spec, p);
    }
    pod_spec::validate_in_pod(&spec, &metadata, p);
    if spec.text("serviceAccountName").is_empty() {
        tokens_without_account(&spec, p);
    }
    for list in ["containers", "initContainers"] {
        for container in spec.each(list) {
            pod_spec::untrimmed_image(&container, p);
        }
    }
}

fn tokens_without_account(spec: &Cursor<'_>, p: &mut Problems) {
    for volume in spec.each("volumes") {
        let Some(projected) = volume.given("projected") else {
            continue;
        };
        for source in projected.each("sources") {
            if let Some(token) = source.given("serviceAccountToken") {
                p.forbidden(&token, "must not be specified when serviceAccountName is not set");
            }
        }
    }
}

/// What holds for a new pod, in addition to `validate`.
pub fn validate_create(pod: &Cursor<'_>, p: &mut Problems) {
    let (metadata, spec) = (pod.at("metadata"), pod.at("spec"));
    if !spec.list("ephemeralContainers").is_empty() {
        p.forbidden(&spec.at("ephemeralContainers"), "cannot be set on create");
    }
    if !spec.text("nodeName").is_empty() && !spec.list("schedulingGates").is_empty() {
        p.forbidden(
            &spec.at("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    pod_spec::validate_annotations_match(&metadata.at("annotations"), &spec, p);
}

/// Metadata that a subresource leaves as it was.
fn keep_metadata(new: &mut Value, old: &Value) {
    const KEPT: [&str; 6] = [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ];
    let none = Value::Null;
    let old = old.get("metadata").unwrap_or(&none);
    if let Some(metadata) = new.get_mut("metadata") {
        for name in KEPT {
            copy_member(metadata, old, name);
        }
    }
}
