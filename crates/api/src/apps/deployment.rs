//! Deployment: pods replaced step by step when their template changes.
//!
//! Upstream: pkg/apis/apps/validation and pkg/registry/apps/deployment (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource, keep_status};
use crate::workload;
use crate::{int_or_string, printing};

pub const DEF: KindDef = KindDef {
    group: "apps",
    kind: "Deployment",
    plural: "deployments",
    singular: "deployment",
    short_names: &["deploy"],
    categories: &["all"],
    schema: "apps/v1.Deployment",
    subresources: &[Subresource::SCALE, Subresource::STATUS],
    columns: &[
        Column::string("Ready"),
        Column::string("Up-to-date"),
        Column::string("Available"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
        Column::wide("Selector"),
    ],
    cells,
    default,
    prepare_update,
    prepare_status,
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
    fill::absent(spec, "revisionHistoryLimit", 10);
    fill::absent(spec, "progressDeadlineSeconds", 600);
    let strategy = fill::member(spec, "strategy");
    fill::empty(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = fill::member(strategy, "rollingUpdate");
        fill::absent(rolling, "maxUnavailable", "25%");
        fill::absent(rolling, "maxSurge", "25%");
    }
    let template = fill::member(spec, "template");
    fill::member(template, "spec");
    pod_template::default(template);
}

/// Annotations are copied to the ReplicaSets, so a change of them counts as one of the spec.
fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    let annotations = |o: &Value| o.pointer("/metadata/annotations").cloned().unwrap_or(json!({}));
    if annotations(new) != annotations(old) {
        new["metadata"]["generation"] = (printing::int(old, "/metadata/generation") + 1).into();
    }
}

fn prepare_status(new: &mut Value, old: &Value) {
    workload::keep_spec(new, old);
    let meta = fill::member(new, "metadata");
    crate::kind::copy_member(meta, &old["metadata"], "labels");
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    p.non_negative(&spec.at("replicas"));
    super::replica_set::validate_selector_and_template(&spec, p);
    validate_strategy(&spec.at("strategy"), p);
    p.non_negative(&spec.at("minReadySeconds"));
    p.non_negative(&spec.at("revisionHistoryLimit"));
    let deadline = spec.at("progressDeadlineSeconds");
    if deadline.exists() {
        p.non_negative(&deadline);
        if workload::count(&deadline) <= workload::count(&spec.at("minReadySeconds")) {
            p.invalid(&deadline, "must be greater than minReadySeconds");
        }
    }
}

fn validate_strategy(strategy: &Cursor<'_>, p: &mut Problems) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").str() {
        "Recreate" if rolling.exists() => {
            p.forbidden(&rolling, "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" => {}
        "RollingUpdate" => validate_rolling_update(&rolling, p),
        other => {
            let shown = format!("{{\"Type\":{other:?},\"RollingUpdate\":null}}");
            workload::unsupported(strategy.path(), shown, &["Recreate", "RollingUpdate"], p);
        }
    }
}

fn validate_rolling_update(rolling: &Cursor<'_>, p: &mut Problems) {
    let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
    int_or_string::validate(&unavailable, p);
    int_or_string::validate(&surge, p);
    if int_or_string::number(&unavailable) == 0 && int_or_string::number(&surge) == 0 {
        p.invalid(&unavailable, "may not be 0 when `maxSurge` is 0");
    }
    int_or_string::validate_at_most_100_percent(&unavailable, p);
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    p.immutable(&new.at("spec").at("selector"), &old.at("spec").at("selector"));
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    let counts = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    workload::validate_counts(&status, &counts, p);
    let parts = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    workload::validate_not_above(&status, &parts, "replicas", "status.replicas", p);
    workload::validate_not_above(&status, &["availableReplicas"], "readyReplicas", "readyReplicas", p);
    workload::validate_collision_count(&status, &old.at("status"), p);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let count = |pointer: &str| printing::int(object, pointer);
    let (names, images) = pod_template::container_cells(object.pointer("/spec/template/spec"));
    let selector = workload::selector_text(object.pointer("/spec/selector"));
    vec![
        format!("{}/{}", count("/status/readyReplicas"), count("/spec/replicas")).into(),
        count("/status/updatedReplicas").into(),
        count("/status/availableReplicas").into(),
        printing::age(object, now),
        names.into(),
        images.into(),
        selector.unwrap_or_else(|| "<invalid>".to_string()).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn good() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "x", "generation": 3},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()},
        })
    }

    #[test]
    fn defaults() {
        let spec = defaulted(&DEF, &good())["spec"].clone();
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["revisionHistoryLimit"], 10);
        assert_eq!(spec["progressDeadlineSeconds"], 600);
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
        assert_eq!(spec["strategy"], rolling);
        let recreate = defaulted(&DEF, &with(&good(), "/spec/strategy", json!({"type": "Recreate"})));
        assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));
        let zero = defaulted(&DEF, &with(&good(), "/spec/replicas", json!(0)));
        assert_eq!(zero["spec"]["replicas"], 0);
        defaulted(&DEF, &json!({}));
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        let rolling = |unavailable: Value, surge: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
        for (pointer, value, wanted) in [
            (
                "/spec/replicas",
                json!(-1),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/selector",
                json!(null),
                "spec.selector: Required value\nspec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
            ),
            (
                "/spec/selector",
                json!({}),
                "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
            ),
            (
                "/spec/template/metadata/labels",
                json!({"app": "other"}),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
            ),
            (
                "/spec/template/metadata",
                json!({}),
                "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(5),
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
            ),
            (
                "/spec/strategy",
                json!({"type": "Recreate", "rollingUpdate": {}}),
                "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
            ),
            (
                "/spec/strategy",
                json!({"type": "Shuffle"}),
                "spec.strategy: Unsupported value: {\"Type\":\"Shuffle\",\"RollingUpdate\":null}: supported values: \"Recreate\", \"RollingUpdate\"",
            ),
            (
                "/spec/strategy",
                rolling(json!("0%"), json!(0)),
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
            ),
            (
                "/spec/strategy",
                rolling(json!(-1), json!("120%")),
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/strategy",
                rolling(json!("101%"), json!(0)),
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (
                "/spec/minReadySeconds",
                json!(600),
                "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
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
    fn updates() {
        assert!(update_refused(&DEF, &with(&good(), "/spec/replicas", json!(5)), &good()).is_empty());
        let selector = json!({"matchLabels": {"app": "web", "x": "y"}});
        assert_eq!(
            update_refused(&DEF, &with(&good(), "/spec/selector", selector), &good()),
            ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"web\",\"x\":\"y\"}}: field is immutable"]
        );
        let mut new = with(&good(), "/metadata/annotations", json!({"a": "b"}));
        prepare_update(&mut new, &good());
        assert_eq!(new["metadata"]["generation"], 4);
    }

    #[test]
    fn a_status_update_brings_annotations_but_no_labels() {
        let mut new = with(&good(), "/metadata/annotations", json!({"a": "b"}));
        new["metadata"]["labels"] = json!({"l": "m"});
        new["spec"]["replicas"] = json!(9);
        new["status"] = json!({"replicas": 1});
        prepare_status(&mut new, &good());
        let mut wanted = with(&good(), "/metadata/annotations", json!({"a": "b"}));
        wanted["status"] = json!({"replicas": 1});
        assert_eq!(new, wanted);
    }

    #[test]
    fn statuses() {
        let old = json!({"status": {"collisionCount": 2}});
        for (status, wanted) in [
            (
                json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 1, "collisionCount": 2}),
                "",
            ),
            (
                json!({"replicas": 1, "updatedReplicas": 2, "collisionCount": 3}),
                "status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
            ),
            (
                json!({"replicas": 2, "availableReplicas": 2, "readyReplicas": 1, "collisionCount": 3}),
                "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
            ),
            (
                json!({}),
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ),
            (
                json!({"observedGeneration": -1, "collisionCount": 2}),
                "status.observedGeneration: Invalid value: -1: must be greater than or equal to 0",
            ),
        ] {
            assert_eq!(
                status_refused(&DEF, &json!({"status": status}), &old).join("\n"),
                wanted
            );
        }
    }

    #[test]
    fn a_row() {
        let mut object = defaulted(&DEF, &good());
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["spec"]["replicas"] = json!(3);
        object["status"] = json!({"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2});
        let wanted = json!(["2/3", 3, 2, "5m", "c", "nginx", "app=web"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:05:00Z"))), wanted);
    }
}
