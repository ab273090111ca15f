//! The template of a pod, in every workload kind, and the kind PodTemplate, which is one with a name.

use jiff::Timestamp;
use serde_json::Value;

use crate::core::pod::warnings as pod_warnings;
use crate::core::pod_spec;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::{meta, printing};

pub const DEF: KindDef = KindDef {
    kind: "PodTemplate",
    plural: "podtemplates",
    singular: "podtemplate",
    schema: "core/v1.PodTemplate",
    columns: &[
        Column::string("Containers"),
        Column::string("Images"),
        Column::string("Pod Labels"),
    ],
    cells,
    default: |object| {
        if let Some(template) = pod_spec::ensure_object(object, "template") {
            default(template);
        }
    },
    validate: |object, p| validate(&object.at("template"), p),
    warnings: |new, old| {
        let unchanged = old.is_some_and(|old| new.at("template").value() == old.at("template").value());
        if unchanged {
            vec![]
        } else {
            warnings(&new.at("template"))
        }
    },
    generation: true,
    ..KindDef::BASE
};

/// Annotations with which init containers were written before they had a field. They mean nothing now.
const FORMER_INIT_CONTAINERS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// Fills in the defaults of a `PodTemplateSpec`.
pub fn default(template: &mut Value) {
    drop_former_annotations(template);
    if let Some(spec) = pod_spec::ensure_object(template, "spec") {
        pod_spec::default(spec);
    }
}

/// Removes annotations that Kubernetes removes, from a pod or template.
pub(crate) fn drop_former_annotations(object: &mut Value) {
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        for key in FORMER_INIT_CONTAINERS {
            annotations.remove(key);
        }
    }
}

/// Validates a `PodTemplateSpec` (metadata and spec). What the workload demands beyond that (restartPolicy, selector
/// match) is its own business.
pub fn validate(template: &Cursor<'_>, p: &mut Problems) {
    let metadata = template.at("metadata");
    let spec = template.at("spec");
    // Upstream reports these at the template itself.
    let labels = Cursor::new(metadata.at("labels").value(), template.path().field("labels"));
    let annotations = Cursor::new(metadata.at("annotations").value(), template.path().field("annotations"));
    if labels.exists() {
        meta::validate_labels(&labels, p);
    }
    if annotations.exists() {
        meta::validate_annotations(&annotations, p);
        pod_spec::validate_annotations(&annotations, &spec, p);
    }
    pod_spec::validate(&spec, p);
    pod_spec::validate_annotations_match(&annotations, &spec, p);
    if !spec.at("ephemeralContainers").is_empty() {
        p.forbidden(
            &spec.at("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Advice on a template, for the workload that holds it.
pub fn warnings(template: &Cursor<'_>) -> Vec<String> {
    pod_warnings::of(&template.at("metadata"), &template.at("spec"), true)
}

/// The names and the images of containers, comma-separated: two columns of many kinds.
pub fn container_cells(spec: Option<&Value>) -> (String, String) {
    let containers = spec.and_then(|s| s.get("containers")).and_then(Value::as_array);
    let joined = |field: &str| {
        let texts = containers
            .into_iter()
            .flatten()
            .map(|c| c.get(field).and_then(Value::as_str).unwrap_or(""));
        texts.collect::<Vec<_>>().join(",")
    };
    (joined("name"), joined("image"))
}

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    let (names, images) = container_cells(object.pointer("/template/spec"));
    let labels = printing::labels(object.pointer("/template/metadata/labels"));
    vec![names.into(), images.into(), labels.into()]
}
