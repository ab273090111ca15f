//! ReplicaSet: a number of equal pods.
//!
//! Upstream: pkg/apis/apps/validation and pkg/registry/apps/replicaset (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource};
use crate::printing;
use crate::workload;

pub const DEF: KindDef = KindDef {
    group: "apps",
    kind: "ReplicaSet",
    plural: "replicasets",
    singular: "replicaset",
    short_names: &["rs"],
    categories: &["all"],
    schema: "apps/v1.ReplicaSet",
    subresources: &[Subresource::SCALE, Subresource::STATUS],
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
    validate_update,
    validate_status,
    warnings: workload::warnings,
    generation: true,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    let spec = fill::member(object, "spec");
    fill::absent(spec, "replicas", 1);
    let template = fill::member(spec, "template");
    fill::member(template, "spec");
    pod_template::default(template);
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    workload::validate_counts(&spec, &["replicas", "minReadySeconds"], p);
    validate_selector_and_template(&spec, p);
}

/// The selector and the template of a ReplicaSet, or of a Deployment, which makes them.
pub(super) fn validate_selector_and_template(spec: &Cursor<'_>, p: &mut Problems) {
    let (selector, template) = (spec.at("selector"), spec.at("template"));
    workload::validate_selector(&selector, "deployment", p);
    match workload::selects(&selector, &template.at("metadata").at("labels")) {
        None => return p.invalid(&selector, "invalid label selector"),
        Some(false) => workload::labels_mismatch(&template, p),
        Some(true) => {}
    }
    pod_template::validate(&template, p);
    workload::validate_long_running(&template, "ReplicaSet", p);
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    p.immutable(&new.at("spec").at("selector"), &old.at("spec").at("selector"));
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    validate_replica_counts(&new.at("status"), p);
}

/// The counts in the status of a ReplicaSet or a ReplicationController.
pub fn validate_replica_counts(status: &Cursor<'_>, p: &mut Problems) {
    let counts = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    workload::validate_counts(status, &counts, p);
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    workload::validate_not_above(status, &parts, "replicas", "status.replicas", p);
    workload::validate_not_above(status, &["availableReplicas"], "readyReplicas", "readyReplicas", p);
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
        workload::selector_cell(object.pointer("/spec/selector")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    fn good() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "x"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()},
        })
    }

    #[test]
    fn defaults_and_refusals() {
        assert_eq!(defaulted(&DEF, &good())["spec"]["replicas"], 1);
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        for (pointer, value, wanted) in [
            (
                "/spec/replicas",
                json!(-3),
                "spec.replicas: Invalid value: -3: must be greater than or equal to 0",
            ),
            (
                "/spec/minReadySeconds",
                json!(-1),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("OnFailure"),
                "spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": supported values: \"Always\"",
            ),
            (
                "/spec/selector",
                json!({"matchLabels": {"app": "db"}}),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
        let bad = with(
            &good(),
            "/spec/selector",
            json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        );
        let said = refused(&DEF, &bad);
        assert!(said.last().unwrap().ends_with("invalid label selector"), "{said:?}");
    }

    #[test]
    fn updates_and_statuses() {
        let selector = json!({"matchLabels": {}});
        assert_eq!(
            update_refused(&DEF, &with(&good(), "/spec/selector", selector), &good()),
            ["spec.selector: Invalid value: {\"matchLabels\":{}}: field is immutable"]
        );
        let status = json!({"status": {"replicas": 1, "readyReplicas": 2, "fullyLabeledReplicas": -1}});
        assert_eq!(
            status_refused(&DEF, &status, &json!({})),
            [
                "status.fullyLabeledReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
            ]
        );
    }

    #[test]
    fn a_row() {
        let mut object = defaulted(&DEF, &good());
        object["status"] = json!({"replicas": 2, "readyReplicas": 1});
        let wanted = json!([1, 2, 1, "<unknown>", "c", "nginx", "app=web"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:05:00Z"))), wanted);
    }
}
