//! ReplicationController: the older ReplicaSet, with a plain map as its selector.
//!
//! Upstream: pkg/apis/core/validation and pkg/registry/core/replicationcontroller (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::apps::replica_set::validate_replica_counts;
use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, SelectableField, Subresource};
use crate::printing;
use crate::workload;

pub const DEF: KindDef = KindDef {
    kind: "ReplicationController",
    plural: "replicationcontrollers",
    singular: "replicationcontroller",
    short_names: &["rc"],
    categories: &["all"],
    schema: "core/v1.ReplicationController",
    subresources: &[Subresource::SCALE, Subresource::STATUS],
    fields: &[SelectableField {
        name: "status.replicas",
        read: Some(|object| printing::int(object, "/status/replicas").to_string()),
    }],
    columns: &[
        Column::integer("Desired"),
        Column::integer("Current"),
        Column::integer("Ready"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
        Column::wide("Selector"),
    ],
    cells,
    default,
    prepare_create: |object| workload::reset_status(object, DEF.schema),
    prepare_status: workload::keep_spec,
    validate,
    validate_status,
    warnings: workload::warnings,
    generation: true,
    ..KindDef::BASE
};

/// Selector and labels follow the labels of the template.
fn default(object: &mut Value) {
    let spec = fill::member(object, "spec");
    fill::absent(spec, "replicas", 1);
    if spec["template"].is_object() {
        let template = &mut spec["template"];
        fill::member(template, "spec");
        pod_template::default(template);
    }
    let empty = |v: &Value| v.as_object().is_none_or(|m| m.is_empty());
    let Some(labels) = spec.pointer("/template/metadata/labels").filter(|l| !empty(l)).cloned() else {
        return;
    };
    if empty(&spec["selector"]) {
        spec["selector"] = labels.clone();
    }
    let meta = fill::member(object, "metadata");
    if empty(&meta["labels"]) {
        meta["labels"] = labels;
    }
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    p.non_negative(&spec.at("minReadySeconds"));
    let (selector, template) = (spec.at("selector"), spec.at("template"));
    if selector.is_empty() {
        p.required(&selector, "");
    }
    p.non_negative(&spec.at("replicas"));
    if !template.exists() {
        return p.required(&template, "");
    }
    let labels = template.at("metadata").at("labels");
    if selector
        .entries()
        .any(|(key, value)| labels.value().and_then(|l| l.get(key)) != value.value())
    {
        workload::labels_mismatch(&template, p);
    }
    pod_template::validate(&template, p);
    workload::validate_long_running(&template, "ReplicationController", p);
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    validate_replica_counts(&new.at("status"), p);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = pod_template::container_cells(object.pointer("/spec/template/spec"));
    vec![
        printing::int(object, "/spec/replicas").into(),
        printing::int(object, "/status/replicas").into(),
        printing::int(object, "/status/readyReplicas").into(),
        printing::age(object, now),
        names.into(),
        images.into(),
        printing::labels(object.pointer("/spec/selector")).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    fn good() -> Value {
        json!({"metadata": {"name": "web", "namespace": "x"}, "spec": {"template": template()}})
    }

    #[test]
    fn defaults() {
        let object = defaulted(&DEF, &good());
        assert_eq!(object["spec"]["replicas"], 1);
        assert_eq!(object["spec"]["selector"], json!({"app": "web"}));
        assert_eq!(object["metadata"]["labels"], json!({"app": "web"}));
        let own = defaulted(&DEF, &with(&good(), "/spec/selector", json!({"x": "y"})));
        assert_eq!(own["spec"]["selector"], json!({"x": "y"}));
        defaulted(&DEF, &json!({}));
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        for (pointer, value, wanted) in [
            (
                "/spec/replicas",
                json!(-1),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/minReadySeconds",
                json!(-1),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/template",
                json!(null),
                "spec.selector: Required value\nspec.template: Required value",
            ),
            (
                "/spec/template/metadata/labels",
                json!(null),
                "spec.selector: Required value",
            ),
            (
                "/spec/selector",
                json!({"app": "db"}),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(1),
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicationController is not Supported",
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
        let status = json!({"status": {"replicas": 1, "availableReplicas": 1}});
        assert_eq!(
            status_refused(&DEF, &status, &json!({})),
            ["status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas"]
        );
    }

    #[test]
    fn a_row_and_a_field() {
        let mut object = defaulted(&DEF, &good());
        let wanted = json!([1, 0, 0, "<unknown>", "c", "nginx", "app=web"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:05:00Z"))), wanted);
        assert_eq!(DEF.fields[0].value(&object), "0");
        object["status"] = json!({"replicas": 4});
        assert_eq!(DEF.fields[0].value(&object), "4");
    }
}
