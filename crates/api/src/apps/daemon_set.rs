//! DaemonSet: one pod on each node.
//!
//! Upstream: pkg/apis/apps/validation and pkg/registry/apps/daemonset (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource, keep_status};
use crate::workload;
use crate::{int_or_string, meta, printing};

/// Counts the changes of the template. Upstream has a field for it inside and shows this annotation outside.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub const DEF: KindDef = KindDef {
    group: "apps",
    kind: "DaemonSet",
    plural: "daemonsets",
    singular: "daemonset",
    short_names: &["ds"],
    categories: &["all"],
    schema: "apps/v1.DaemonSet",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::integer("Desired"),
        Column::integer("Current"),
        Column::integer("Ready"),
        Column::integer("Up-to-date"),
        Column::integer("Available"),
        Column::string("Node Selector"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
        Column::wide("Selector"),
    ],
    cells,
    default,
    prepare_create,
    prepare_update,
    prepare_status,
    validate,
    validate_update,
    validate_status,
    warnings: workload::template_warnings,
    generation: true,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    // The writer owns the annotation, though the number in it is the system's.
    set_template_generation(object, template_generation(object));
    let spec = fill::member(object, "spec");
    fill::absent(spec, "revisionHistoryLimit", 10);
    let strategy = fill::member(spec, "updateStrategy");
    fill::empty(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = fill::member(strategy, "rollingUpdate");
        fill::absent(rolling, "maxUnavailable", 1);
        fill::absent(rolling, "maxSurge", 0);
    }
    let template = fill::member(spec, "template");
    fill::member(template, "spec");
    pod_template::default(template);
}

fn template_generation(object: &Value) -> i64 {
    let annotations = object.pointer("/metadata/annotations");
    let text = annotations
        .and_then(|a| a.get(TEMPLATE_GENERATION))
        .and_then(Value::as_str);
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    let annotations = fill::member(fill::member(object, "metadata"), "annotations");
    annotations[TEMPLATE_GENERATION] = generation.to_string().into();
}

fn prepare_create(object: &mut Value) {
    workload::reset_status(object, DEF.schema);
    let generation = template_generation(object).max(1);
    set_template_generation(object, generation);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    let changed = new.pointer("/spec/template") != old.pointer("/spec/template");
    set_template_generation(new, template_generation(old) + i64::from(changed));
}

fn prepare_status(new: &mut Value, old: &Value) {
    workload::keep_spec(new, old);
    set_template_generation(new, template_generation(old));
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let (selector, template) = (spec.at("selector"), spec.at("template"));
    meta::validate_label_selector(&selector, p);
    if workload::selects(&selector, &template.at("metadata").at("labels")) == Some(false) {
        workload::labels_mismatch(&template, p);
    }
    if workload::selects_all(&selector) {
        p.invalid(&selector, "empty selector is invalid for daemonset");
    }
    pod_template::validate(&template, p);
    workload::validate_long_running(&template, "DaemonSet", p);
    p.non_negative(&spec.at("minReadySeconds"));
    validate_update_strategy(&spec.at("updateStrategy"), p);
    p.non_negative(&spec.at("revisionHistoryLimit"));
}

fn validate_update_strategy(strategy: &Cursor<'_>, p: &mut Problems) {
    match strategy.at("type").str() {
        "OnDelete" => {}
        "RollingUpdate" => validate_rolling_update(&strategy.at("rollingUpdate"), p),
        other => {
            let shown = format!("{{\"Type\":{other:?},\"RollingUpdate\":null}}");
            workload::unsupported(strategy.path(), shown, &["RollingUpdate", "OnDelete"], p);
        }
    }
}

fn validate_rolling_update(rolling: &Cursor<'_>, p: &mut Problems) {
    let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
    int_or_string::validate(&unavailable, p);
    int_or_string::validate(&surge, p);
    int_or_string::validate_at_most_100_percent(&unavailable, p);
    int_or_string::validate_at_most_100_percent(&surge, p);
    match (
        int_or_string::number(&unavailable) != 0,
        int_or_string::number(&surge) != 0,
    ) {
        (true, true) => p.invalid(&surge, "may not be set when maxUnavailable is non-zero"),
        (false, false) => p.required(&unavailable, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    p.immutable(&new.at("spec").at("selector"), &old.at("spec").at("selector"));
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    let counts = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    workload::validate_counts(&status, &counts, p);
    workload::validate_collision_count(&status, &old.at("status"), p);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = pod_template::container_cells(object.pointer("/spec/template/spec"));
    let mut cells: Vec<Value> = [
        "/status/desiredNumberScheduled",
        "/status/currentNumberScheduled",
        "/status/numberReady",
        "/status/updatedNumberScheduled",
        "/status/numberAvailable",
    ]
    .iter()
    .map(|pointer| printing::int(object, pointer).into())
    .collect();
    cells.extend([
        printing::labels(object.pointer("/spec/template/spec/nodeSelector")).into(),
        printing::age(object, now),
        names.into(),
        images.into(),
        workload::selector_cell(object.pointer("/spec/selector")),
    ]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    fn good() -> Value {
        json!({
            "metadata": {"name": "agent", "namespace": "x"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()},
        })
    }

    #[test]
    fn defaults() {
        let spec = defaulted(&DEF, &good())["spec"].clone();
        assert_eq!(spec["revisionHistoryLimit"], 10);
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
        assert_eq!(spec["updateStrategy"], rolling);
        let on_delete = defaulted(
            &DEF,
            &with(&good(), "/spec/updateStrategy", json!({"type": "OnDelete"})),
        );
        assert_eq!(on_delete["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        let rolling = |unavailable: Value, surge: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
        let mismatch = "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`";
        for (pointer, value, wanted) in [
            ("/spec/selector", json!(null), mismatch),
            (
                "/spec/selector",
                json!({}),
                "spec.selector: Invalid value: {}: empty selector is invalid for daemonset",
            ),
            ("/spec/selector", json!({"matchLabels": {"x": "y"}}), mismatch),
            (
                "/spec/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(5),
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
            ),
            (
                "/spec/updateStrategy",
                json!({"type": "Shuffle"}),
                "spec.updateStrategy: Unsupported value: {\"Type\":\"Shuffle\",\"RollingUpdate\":null}: supported values: \"RollingUpdate\", \"OnDelete\"",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!(1), json!("10%")),
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"10%\": may not be set when maxUnavailable is non-zero",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!(0), json!(0)),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!(0), json!("200%")),
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"200%\": must not be greater than 100%",
            ),
            (
                "/spec/minReadySeconds",
                json!(-1),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/revisionHistoryLimit",
                json!(-1),
                "spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
    }

    #[test]
    fn the_template_generation_counts_template_changes() {
        let seen = |o: &Value| o["metadata"]["annotations"][TEMPLATE_GENERATION].clone();
        let mut old = good();
        prepare_create(&mut old);
        assert_eq!(seen(&old), "1");
        assert_eq!(old["status"]["numberReady"], 0);
        let mut same = with(&good(), "/spec/minReadySeconds", json!(1));
        prepare_update(&mut same, &old);
        assert_eq!(seen(&same), "1");
        let mut changed = with(&old, "/spec/template/spec/containers/0/image", json!("other"));
        set_template_generation(&mut changed, 77);
        prepare_update(&mut changed, &old);
        assert_eq!(seen(&changed), "2");
        let mut status = good();
        prepare_status(&mut status, &changed);
        assert_eq!((seen(&status), &status["spec"]), (json!("2"), &changed["spec"]));
    }

    #[test]
    fn updates_and_statuses() {
        assert_eq!(
            update_refused(&DEF, &with(&good(), "/spec/selector", json!({})), &good()),
            ["spec.selector: Invalid value: {}: field is immutable"]
        );
        let status = json!({"status": {"numberReady": -1}});
        assert_eq!(
            status_refused(&DEF, &status, &json!({"status": {"collisionCount": 1}})),
            [
                "status.numberReady: Invalid value: -1: must be greater than or equal to 0",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ]
        );
    }

    #[test]
    fn a_row() {
        let mut object = defaulted(&DEF, &good());
        object["spec"]["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        object["status"] = json!({"desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3,
            "updatedNumberScheduled": 2, "numberAvailable": 1});
        let wanted = json!([5, 4, 3, 2, 1, "disk=ssd", "<unknown>", "c", "nginx", "app=web"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:05:00Z"))), wanted);
    }
}
