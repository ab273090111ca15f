//! HorizontalPodAutoscaler as autoscaling/v1 has it: a CPU percentage and no more. What v2 knows beyond that travels in
//! annotations. Objects are stored as v2, and judged as v2.
//!
//! Upstream: pkg/apis/autoscaling/v1/conversion.go (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::horizontal_pod_autoscaler as v2;
use super::metrics_v1::{
    behavior_from_v2, lower_camel, metric_from_v2, metric_to_v2, status_from_v2, status_to_v2, text,
};
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{KindDef, keep_status};
use crate::schema;
use crate::workload::{keep_spec, reset_status};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

pub const DEF: KindDef = KindDef {
    version: "v1",
    schema: "autoscaling/v1.HorizontalPodAutoscaler",
    cells,
    default,
    prepare_create,
    prepare_update,
    prepare_status,
    validate,
    validate_status: v2::validate_status,
    stored_as: "horizontalpodautoscalers.autoscaling",
    to_stored,
    from_stored,
    ..v2::DEF
};

fn default(object: &mut Value) {
    fill::absent(fill::member(object, "spec"), "minReplicas", 1);
}

fn as_v2(object: &Value) -> Value {
    let mut object = object.clone();
    to_stored(&mut object);
    object
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    if let Some(value) = object.value() {
        v2::validate(&Cursor::root(&as_v2(value)), p);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    v2::cells(&as_v2(object), now)
}

// Some annotations are part of the spec, others of the status, and are guarded with them.

fn prepare_create(object: &mut Value) {
    reset_status(object, DEF.schema);
    for key in [CURRENT_METRICS, CONDITIONS] {
        set_annotation(object, key, None);
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    for key in [CURRENT_METRICS, CONDITIONS] {
        set_annotation(new, key, annotation(old, key).map(str::to_string));
    }
}

fn prepare_status(new: &mut Value, old: &Value) {
    keep_spec(new, old);
    for key in [METRICS, BEHAVIOR] {
        set_annotation(new, key, annotation(old, key).map(str::to_string));
    }
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

fn set_annotation(object: &mut Value, key: &str, text: Option<String>) {
    match text {
        Some(text) => fill::member(fill::member(object, "metadata"), "annotations")[key] = text.into(),
        None => {
            if let Some(map) = object
                .pointer_mut("/metadata/annotations")
                .and_then(Value::as_object_mut)
            {
                map.remove(key);
                if map.is_empty() {
                    fill::member(object, "metadata")
                        .as_object_mut()
                        .map(|m| m.remove("annotations"));
                }
            }
        }
    }
}

/// v2 needs no annotations to be whole; any that are there are left over from v1.
pub fn drop_annotations(object: &mut Value) {
    for key in ANNOTATIONS {
        set_annotation(object, key, None);
    }
}

fn parsed(object: &Value, key: &str) -> Option<Value> {
    serde_json::from_str(annotation(object, key)?).ok()
}

/// The list in an annotation, each item in the form of v2. One item that is not of the type, and the list counts for
/// nothing: annotations are text that anyone may write.
fn parsed_list(object: &Value, key: &str, ty: &str, convert: fn(Value) -> Value) -> Option<Vec<Value>> {
    match parsed(object, key)? {
        Value::Array(list) => {
            let items = list.into_iter().map(|item| item.is_object().then(|| convert(item)));
            items.map(|item| typed(item?, ty)).collect()
        }
        _ => None,
    }
}

/// The value as the type has it, if it can be one.
fn typed(value: Value, ty: &str) -> Option<Value> {
    let ty = schema::schema().get(ty)?;
    schema::from_value(value, ty).ok().map(|decoded| decoded.value)
}

fn to_stored(object: &mut Value) {
    set_version(object, "autoscaling/v2");
    let others = parsed_list(object, METRICS, "autoscaling/v2.MetricSpec", metric_to_v2);
    let current = parsed_list(object, CURRENT_METRICS, "autoscaling/v2.MetricStatus", status_to_v2);
    let condition = "autoscaling/v2.HorizontalPodAutoscalerCondition";
    let conditions = parsed_list(object, CONDITIONS, condition, |item| item);
    let behavior = parsed(object, BEHAVIOR);
    let spec = fill::member(object, "spec");
    let percent = take(spec, "targetCPUUtilizationPercentage").and_then(|n| n.as_i64());
    let mut list: Vec<Value> = others.into_iter().flatten().collect();
    list.extend(percent.map(v2::cpu_metric));
    spec["metrics"] = list.into();
    v2::default_metrics(spec);
    let behavior = behavior.and_then(|b| typed(lower_camel(&b), "autoscaling/v2.HorizontalPodAutoscalerBehavior"));
    let behavior = behavior.filter(|b| b.as_object().is_some_and(|m| !m.is_empty()));
    if let Some(behavior) = behavior {
        spec["behavior"] = behavior;
    }
    if let Some(status) = object.get_mut("status").filter(|s| s.is_object()) {
        let percent = take(status, "currentCPUUtilizationPercentage").filter(Value::is_i64);
        let from_percent = percent.map(|n| {
            vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": n}}})]
        });
        if let Some(list) = current.or(from_percent) {
            status["currentMetrics"] = list.into();
        }
        if let Some(list) = conditions {
            status["conditions"] = list.into();
        }
    }
    drop_annotations(object);
    settle(object, v2::DEF.schema);
}

fn from_stored(object: &mut Value) {
    set_version(object, "autoscaling/v1");
    drop_annotations(object);
    let spec = fill::member(object, "spec");
    let list = |v: Option<Value>| -> Vec<Value> { v.and_then(|v| v.as_array().cloned()).unwrap_or_default() };
    let (cpu, others): (Vec<Value>, Vec<Value>) = list(take(spec, "metrics")).into_iter().partition(is_cpu_percentage);
    if let Some(metric) = cpu.first() {
        spec["targetCPUUtilizationPercentage"] = metric["resource"]["target"]["averageUtilization"].clone();
    }
    let behavior = take(spec, "behavior").filter(Value::is_object);
    let status = object.get_mut("status").filter(|s| s.is_object());
    let (mut current, mut conditions) = (vec![], vec![]);
    if let Some(status) = status {
        current = list(take(status, "currentMetrics"));
        conditions = list(take(status, "conditions"));
        let cpu = current
            .iter()
            .rfind(|m| m["type"] == "Resource" && m["resource"]["name"] == "cpu");
        let percent = cpu.and_then(|m| m.pointer("/resource/current/averageUtilization"));
        if let Some(percent) = percent.cloned() {
            status["currentCPUUtilizationPercentage"] = percent;
        }
    }
    let others = others.into_iter().map(metric_from_v2).collect();
    let current = current.into_iter().map(status_from_v2).collect();
    for (key, list) in [(METRICS, others), (CURRENT_METRICS, current), (CONDITIONS, conditions)] {
        if !list.is_empty() {
            set_annotation(object, key, Some(text(&list.into())));
        }
    }
    if let Some(behavior) = behavior {
        set_annotation(object, BEHAVIOR, Some(text(&behavior_from_v2(&behavior))));
    }
    settle(object, DEF.schema);
}

/// Leaves out and fills in what the version leaves out and fills in.
fn settle(object: &mut Value, ty: &str) {
    if let Some(value) = typed(object.clone(), ty) {
        *object = value;
    }
}

fn set_version(object: &mut Value, version: &str) {
    if object.get("apiVersion").is_some() {
        object["apiVersion"] = version.into();
    }
}

fn take(object: &mut Value, name: &str) -> Option<Value> {
    object.as_object_mut()?.remove(name).filter(|v| !v.is_null())
}

/// The only metric v1 has a field for.
fn is_cpu_percentage(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric["resource"]["target"]["averageUtilization"].is_i64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn v1() -> Value {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "x"},
            "spec": {"maxReplicas": 5, "minReplicas": 1, "targetCPUUtilizationPercentage": 60,
                "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}},
            "status": {"currentReplicas": 1, "desiredReplicas": 1},
        })
    }

    fn rich() -> Value {
        let selector = json!({"matchLabels": {"a": "b"}});
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "x", "annotations": {"keep": "me"}},
            "spec": {
                "maxReplicas": 5, "minReplicas": 1,
                "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                    {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                        "target": {"type": "Utilization", "averageUtilization": 5}}},
                    {"type": "Pods", "pods": {"metric": {"name": "m", "selector": selector},
                        "target": {"type": "AverageValue", "averageValue": "1"}}},
                    {"type": "Object", "object": {"metric": {"name": "o"}, "target": {"type": "Value", "value": "2"},
                        "describedObject": {"kind": "Ingress", "name": "i", "apiVersion": "networking.k8s.io/v1"}}},
                    {"type": "Object", "object": {"metric": {"name": "o"}, "target": {"type": "AverageValue", "averageValue": "2"},
                        "describedObject": {"kind": "Ingress", "name": "i", "apiVersion": "networking.k8s.io/v1"}}},
                    {"type": "External", "external": {"metric": {"name": "e", "selector": selector},
                        "target": {"type": "Value", "value": "3"}}},
                    v2::cpu_metric(50),
                ],
                "behavior": {
                    "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "tolerance": "50m",
                        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
                    "scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
                },
            },
            "status": {
                "currentReplicas": 1, "desiredReplicas": 2, "observedGeneration": 3,
                "currentMetrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "current": {"averageValue": "5m", "averageUtilization": 9}}},
                    {"type": "External", "external": {"metric": {"name": "e"}, "current": {"value": "3", "averageValue": "1"}}},
                ],
                "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "R", "message": "M"}],
            },
        })
    }

    #[test]
    fn a_plain_one_goes_there_and_back() {
        let mut object = v1();
        to_stored(&mut object);
        assert_eq!(object["apiVersion"], "autoscaling/v2");
        assert_eq!(object["spec"]["metrics"], json!([v2::cpu_metric(60)]));
        assert!(object["spec"].get("targetCPUUtilizationPercentage").is_none());
        from_stored(&mut object);
        assert_eq!(object, v1());
    }

    #[test]
    fn without_a_percentage_it_is_80() {
        let mut object = with(&v1(), "/spec/targetCPUUtilizationPercentage", json!(null));
        to_stored(&mut object);
        from_stored(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 80);
    }

    #[test]
    fn a_rich_one_travels_in_annotations() {
        let mut object = rich();
        from_stored(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(object["status"]["currentCPUUtilizationPercentage"], 9);
        assert!(object["spec"].get("metrics").is_none() && object["spec"].get("behavior").is_none());
        let notes = &object["metadata"]["annotations"];
        assert_eq!(
            notes[BEHAVIOR],
            r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":"50m"},"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Percent","Value":100,"PeriodSeconds":15}],"Tolerance":null}}"#
        );
        assert_eq!(
            notes[CURRENT_METRICS],
            r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":9,"currentAverageValue":"5m"}},{"type":"External","external":{"metricName":"e","currentValue":"3","currentAverageValue":"1"}}]"#
        );
        assert_eq!(
            notes[CONDITIONS],
            r#"[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"R","message":"M"}]"#
        );
        let metrics = notes[METRICS].as_str().unwrap();
        assert!(metrics.starts_with(r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}},{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":5,"container":"c"}},{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1","selector":{"matchLabels":{"a":"b"}}}},{"type":"Object","object":{"target":{"kind":"Ingress","name":"i","apiVersion":"networking.k8s.io/v1"},"metricName":"o","targetValue":"2"}}"#), "{metrics}");
        to_stored(&mut object);
        assert_eq!(object, rich());
    }

    #[test]
    fn annotations_of_the_wrong_shape_count_for_nothing() {
        for text in ["", "[1]", "{}", r#"[{"type":5}]"#] {
            let mut object = v1();
            for key in [METRICS, BEHAVIOR, CONDITIONS, CURRENT_METRICS] {
                set_annotation(&mut object, key, Some(text.to_string()));
            }
            to_stored(&mut object);
            from_stored(&mut object);
            assert_eq!(object, v1(), "{text}");
        }
    }

    #[test]
    fn annotations_are_guarded_like_what_they_stand_for() {
        let mut old = rich();
        from_stored(&mut old);
        let mut forged = v1();
        for key in [METRICS, BEHAVIOR, CONDITIONS, CURRENT_METRICS] {
            set_annotation(&mut forged, key, Some("[]".to_string()));
        }
        let mut created = forged.clone();
        prepare_create(&mut created);
        assert_eq!(
            created["metadata"]["annotations"],
            json!({METRICS: "[]", BEHAVIOR: "[]"})
        );
        let mut updated = forged.clone();
        prepare_update(&mut updated, &old);
        assert_eq!(annotation(&updated, METRICS), Some("[]"));
        assert_eq!(annotation(&updated, CONDITIONS), annotation(&old, CONDITIONS));
        let mut status = forged.clone();
        prepare_status(&mut status, &old);
        assert_eq!(annotation(&status, METRICS), annotation(&old, METRICS));
        assert_eq!(annotation(&status, CONDITIONS), Some("[]"));
    }

    #[test]
    fn judged_and_shown_as_v2() {
        assert_eq!(refused(&DEF, &v1()), Vec::<String>::new());
        let bad = with(&v1(), "/spec/targetCPUUtilizationPercentage", json!(-1));
        assert_eq!(
            refused(&DEF, &bad),
            ["spec.metrics[0].resource.target.averageUtilization: Invalid value: -1: must be greater than 0"]
        );
        let wanted = json!(["Deployment/web", "cpu: <unknown>/60%", "1", 5, 1, "<unknown>"]);
        assert_eq!(Value::from(cells(&v1(), at("2026-01-01T00:00:00Z"))), wanted);
        assert_eq!(defaulted(&DEF, &json!({}))["spec"], json!({"minReplicas": 1}));
        assert_eq!(DEF.store_prefix(), v2::DEF.store_prefix());
    }
}
