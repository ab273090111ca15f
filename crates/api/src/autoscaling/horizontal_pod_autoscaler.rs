//! HorizontalPodAutoscaler: more or fewer pods, by what they have to do.
//!
//! Upstream: pkg/apis/autoscaling/{v2,validation} and pkg/registry/autoscaling (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::autoscaling::metrics;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource};
use crate::printing;
use crate::quantity::Quantity;
use crate::workload::{self, count};

/// The default target of average CPU utilization, in percent.
pub const DEFAULT_CPU_UTILIZATION: i64 = 80;
const MAX_PERIOD_SECONDS: i64 = 1800;
const MAX_STABILIZATION_SECONDS: i64 = 3600;

pub const COLUMNS: &[Column] = &[
    Column::string("Reference"),
    Column::string("Targets"),
    Column::string("MinPods"),
    Column::string("MaxPods"),
    Column::string("Replicas"),
    Column::AGE,
];

pub const DEF: KindDef = KindDef {
    group: "autoscaling",
    version: "v2",
    kind: "HorizontalPodAutoscaler",
    plural: "horizontalpodautoscalers",
    singular: "horizontalpodautoscaler",
    short_names: &["hpa"],
    categories: &["all"],
    schema: "autoscaling/v2.HorizontalPodAutoscaler",
    subresources: &[Subresource::STATUS],
    columns: COLUMNS,
    cells,
    default,
    prepare_create: |object| workload::reset_status(object, DEF.schema),
    prepare_status: workload::keep_spec,
    validate,
    validate_status,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    super::horizontal_pod_autoscaler_v1::drop_annotations(object);
    let spec = fill::member(object, "spec");
    fill::absent(spec, "minReplicas", 1);
    default_metrics(spec);
    if let Some(behavior) = spec.get_mut("behavior").filter(|b| b.is_object()) {
        let up = fill::member(behavior, "scaleUp");
        fill::absent(up, "stabilizationWindowSeconds", 0);
        fill::absent(up, "selectPolicy", "Max");
        let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        let double = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        fill::absent(up, "policies", vec![pods, double.clone()]);
        // How long to wait before scaling down is the controller's to say.
        let down = fill::member(behavior, "scaleDown");
        fill::absent(down, "selectPolicy", "Max");
        fill::absent(down, "policies", vec![double]);
    }
}

/// Without any metric it is the CPU.
pub fn default_metrics(spec: &mut Value) {
    if spec["metrics"].as_array().is_none_or(Vec::is_empty) {
        spec["metrics"] = json!([cpu_metric(DEFAULT_CPU_UTILIZATION)]);
    }
}

pub fn cpu_metric(percent: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

pub fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let (min, max) = (spec.at("minReplicas"), spec.at("maxReplicas"));
    if min.as_i64().is_some_and(|n| n < 1) {
        p.invalid(&min, "must be greater than or equal to 1");
    }
    match count(&max) {
        0 => p.required(&max, "must be set and greater than 0"),
        ..0 => p.invalid(&max, "must be greater than or equal to 1"),
        _ => {}
    }
    if min.exists() && count(&max) < count(&min) {
        let shown = Value::from(count(&max));
        p.invalid_value(max.path(), &shown, "must be greater than or equal to `minReplicas`");
    }
    let target = spec.at("scaleTargetRef");
    let core_group = target.at("kind").str() == "ReplicationController";
    metrics::validate_reference(&target, core_group, p);
    metrics::validate(&spec.at("metrics"), p);
    let nobody_to_ask = !spec
        .at("metrics")
        .items()
        .any(|m| matches!(m.at("type").str(), "Object" | "External"));
    if min.as_i64() == Some(0) && nobody_to_ask {
        p.forbidden(
            &spec.at("metrics"),
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = spec.at("behavior").at(direction);
        if rules.exists() {
            validate_rules(&rules, p);
        }
    }
}

fn validate_rules(rules: &Cursor<'_>, p: &mut Problems) {
    let window = rules.at("stabilizationWindowSeconds");
    match count(&window) {
        ..0 => p.invalid(&window, "must be greater than or equal to zero"),
        n if n > MAX_STABILIZATION_SECONDS => {
            p.invalid(
                &window,
                format!("must be less than or equal to {MAX_STABILIZATION_SECONDS}"),
            );
        }
        _ => {}
    }
    let select = rules.at("selectPolicy");
    if select.exists() && !matches!(select.str(), "Max" | "Min" | "Disabled") {
        p.not_supported(&select, &["Disabled", "Max", "Min"]);
    }
    let policies = rules.at("policies");
    if policies.is_empty() {
        p.required(&policies, "must specify at least one Policy");
    }
    for policy in policies.items() {
        validate_policy(&policy, p);
    }
    let tolerance = rules.at("tolerance");
    if tolerance
        .as_str()
        .is_some_and(|t| Quantity::parse(t).is_ok_and(|q| q.is_negative()))
    {
        p.invalid(&tolerance, "must be greater than or equal to 0");
    }
}

fn validate_policy(policy: &Cursor<'_>, p: &mut Problems) {
    let (kind, value, period) = (policy.at("type"), policy.at("value"), policy.at("periodSeconds"));
    if !matches!(kind.str(), "Pods" | "Percent") {
        p.not_supported(&kind, &["Percent", "Pods"]);
    }
    for c in [&value, &period] {
        if count(c) <= 0 {
            p.invalid_value(c.path(), &count(c).into(), "must be greater than zero");
        }
    }
    if count(&period) > MAX_PERIOD_SECONDS {
        p.invalid(&period, format!("must be less than or equal to {MAX_PERIOD_SECONDS}"));
    }
}

pub fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    workload::validate_counts(&new.at("status"), &["currentReplicas", "desiredReplicas"], p);
}

pub fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let list = |pointer: &str| -> &[Value] {
        object
            .pointer(pointer)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    };
    let target = |name: &str| printing::text(object, &format!("/spec/scaleTargetRef/{name}")).to_string();
    let min = object.pointer("/spec/minReplicas").and_then(Value::as_i64);
    vec![
        format!("{}/{}", target("kind"), target("name")).into(),
        metrics::targets(list("/spec/metrics"), list("/status/currentMetrics")).into(),
        min.map_or("<unset>".to_string(), |n| n.to_string()).into(),
        printing::int(object, "/spec/maxReplicas").into(),
        printing::int(object, "/status/currentReplicas").into(),
        printing::age(object, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn good() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "x"},
            "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}},
        })
    }

    #[test]
    fn defaults() {
        let spec = defaulted(&DEF, &good())["spec"].clone();
        assert_eq!(spec["minReplicas"], 1);
        assert_eq!(spec["metrics"], json!([cpu_metric(80)]));
        assert!(spec.get("behavior").is_none());
        let some = with(
            &good(),
            "/spec/behavior",
            json!({"scaleDown": {"stabilizationWindowSeconds": 7}}),
        );
        let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        let double = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        assert_eq!(
            defaulted(&DEF, &some)["spec"]["behavior"],
            json!({
                "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [pods, double]},
                "scaleDown": {"stabilizationWindowSeconds": 7, "selectPolicy": "Max", "policies": [double]},
            })
        );
        let annotated = with(
            &good(),
            "/metadata/annotations",
            json!({"autoscaling.alpha.kubernetes.io/metrics": "[]", "a": "b"}),
        );
        assert_eq!(
            defaulted(&DEF, &annotated)["metadata"]["annotations"],
            json!({"a": "b"})
        );
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        let up = |rules: Value| json!({"scaleUp": rules});
        let policy = |value: Value| json!({"scaleUp": {"policies": [value]}});
        let at = "spec.behavior.scaleUp";
        for (pointer, value, wanted) in [
            (
                "/spec/minReplicas",
                json!(0),
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1\nspec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas".to_string(),
            ),
            (
                "/spec/minReplicas",
                json!(6),
                "spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`".into(),
            ),
            (
                "/spec/maxReplicas",
                json!(null),
                "spec.maxReplicas: Required value: must be set and greater than 0\nspec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`".into(),
            ),
            (
                "/spec/maxReplicas",
                json!(-1),
                "spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1\nspec.maxReplicas: Invalid value: -1: must be greater than or equal to `minReplicas`".into(),
            ),
            ("/spec/scaleTargetRef/kind", json!(null), "spec.scaleTargetRef.kind: Required value".into()),
            (
                "/spec/scaleTargetRef/apiVersion",
                json!("v1"),
                "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group".into(),
            ),
            (
                "/spec/scaleTargetRef",
                json!({"kind": "ReplicationController", "name": "a", "apiVersion": "v1"}),
                String::new(),
            ),
            (
                "/spec/behavior",
                up(json!({"stabilizationWindowSeconds": -1})),
                format!("{at}.stabilizationWindowSeconds: Invalid value: -1: must be greater than or equal to zero"),
            ),
            (
                "/spec/behavior",
                up(json!({"stabilizationWindowSeconds": 3601})),
                format!("{at}.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600"),
            ),
            (
                "/spec/behavior",
                up(json!({"selectPolicy": "Any"})),
                format!("{at}.selectPolicy: Unsupported value: \"Any\": supported values: \"Disabled\", \"Max\", \"Min\""),
            ),
            ("/spec/behavior", up(json!({"policies": []})), format!("{at}.policies: Required value: must specify at least one Policy")),
            (
                "/spec/behavior",
                up(json!({"tolerance": "-1"})),
                format!("{at}.tolerance: Invalid value: \"-1\": must be greater than or equal to 0"),
            ),
            (
                "/spec/behavior",
                policy(json!({"type": "Nodes", "value": 1, "periodSeconds": 1})),
                format!("{at}.policies[0].type: Unsupported value: \"Nodes\": supported values: \"Percent\", \"Pods\""),
            ),
            (
                "/spec/behavior",
                policy(json!({"type": "Pods", "periodSeconds": 1801})),
                format!("{at}.policies[0].value: Invalid value: 0: must be greater than zero\n{at}.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800"),
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
        assert_eq!(
            status_refused(&DEF, &json!({"status": {"desiredReplicas": -1}}), &json!({})),
            ["status.desiredReplicas: Invalid value: -1: must be greater than or equal to 0"]
        );
    }

    #[test]
    fn a_row() {
        let now = at("2026-01-01T00:10:00Z");
        let wanted = json!(["Deployment/web", "cpu: <unknown>/80%", "1", 5, 0, "<unknown>"]);
        assert_eq!(Value::from(cells(&defaulted(&DEF, &good()), now)), wanted);
        assert_eq!(cells(&good(), now)[1..3], ["<none>", "<unset>"]);
    }
}
