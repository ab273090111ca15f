//! HorizontalPodAutoscaler as autoscaling/v1 has it: a CPU percentage and no more. What v2 knows beyond that travels in
//! annotations. Objects are stored as v2, and judged as v2.
//!
//! Upstream: pkg/apis/autoscaling/v1/conversion.go (v1.36).

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::horizontal_pod_autoscaler as v2;
use crate::field::{Cursor, Problems};
use crate::kind::{KindDef, keep_status};
use crate::schema;
use crate::workload::{default_to, keep_spec, member, reset_status};

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
    default_to(member(object, "spec"), "minReplicas", 1);
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
        Some(text) => member(member(object, "metadata"), "annotations")[key] = text.into(),
        None => {
            if let Some(map) = object
                .pointer_mut("/metadata/annotations")
                .and_then(Value::as_object_mut)
            {
                map.remove(key);
                if map.is_empty() {
                    member(object, "metadata")
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
    let spec = member(object, "spec");
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
    let spec = member(object, "spec");
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

/// Moves the named members of `from`, renamed, to `to`; absent ones stay absent.
fn carry(from: &Value, to: &mut Value, names: &[(&str, &str)]) {
    for (old, new) in names {
        if let Some(value) = from.get(*old).filter(|v| !v.is_null()) {
            to[*new] = value.clone();
        }
    }
}

/// What each source is called in v1 and where its parts stand there: metric name, selector, value, average value, the
/// utilization, and whether a missing value is written as "0" (v1 cannot leave it out).
struct Source {
    field: &'static str,
    selector: &'static str,
    value: &'static str,
    average: &'static str,
    utilization: &'static str,
    /// The quantity that is always written.
    required: &'static str,
}

const SPEC_SOURCES: [Source; 5] = [
    Source {
        field: "object",
        selector: "selector",
        value: "targetValue",
        average: "averageValue",
        utilization: "",
        required: "targetValue",
    },
    Source {
        field: "pods",
        selector: "selector",
        value: "",
        average: "targetAverageValue",
        utilization: "",
        required: "targetAverageValue",
    },
    Source {
        field: "resource",
        selector: "",
        value: "",
        average: "targetAverageValue",
        utilization: "targetAverageUtilization",
        required: "",
    },
    Source {
        field: "containerResource",
        selector: "",
        value: "",
        average: "targetAverageValue",
        utilization: "targetAverageUtilization",
        required: "",
    },
    Source {
        field: "external",
        selector: "metricSelector",
        value: "targetValue",
        average: "targetAverageValue",
        utilization: "",
        required: "",
    },
];

const STATUS_SOURCES: [Source; 5] = [
    Source {
        field: "object",
        selector: "selector",
        value: "currentValue",
        average: "averageValue",
        utilization: "",
        required: "currentValue",
    },
    Source {
        field: "pods",
        selector: "selector",
        value: "",
        average: "currentAverageValue",
        utilization: "",
        required: "currentAverageValue",
    },
    Source {
        field: "resource",
        selector: "",
        value: "",
        average: "currentAverageValue",
        utilization: "currentAverageUtilization",
        required: "currentAverageValue",
    },
    Source {
        field: "containerResource",
        selector: "",
        value: "",
        average: "currentAverageValue",
        utilization: "currentAverageUtilization",
        required: "currentAverageValue",
    },
    Source {
        field: "external",
        selector: "metricSelector",
        value: "currentValue",
        average: "currentAverageValue",
        utilization: "",
        required: "currentValue",
    },
];

impl Source {
    fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let parts = [
            (self.value, "value"),
            (self.average, "averageValue"),
            (self.utilization, "averageUtilization"),
        ];
        parts.into_iter().filter(|(name, _)| !name.is_empty())
    }

    /// `goal` is where v2 keeps the quantities: "target" or "current".
    fn to_v2(&self, old: &Value, goal: &str) -> Value {
        let mut new = json!({});
        carry(old, &mut new, &[("name", "name"), ("container", "container")]);
        let mut quantities = json!({});
        for (v1, v2) in self.parts() {
            carry(old, &mut quantities, &[(v1, v2)]);
        }
        if !self.selector.is_empty() {
            new["metric"] = json!({});
            carry(
                old,
                &mut new["metric"],
                &[("metricName", "name"), (self.selector, "selector")],
            );
        }
        carry(old, &mut new, &[("target", "describedObject")]);
        new[goal] = quantities;
        new
    }

    fn to_v1(&self, old: &Value, goal: &str) -> Value {
        let mut new = json!({});
        carry(
            old,
            &mut new,
            &[
                ("name", "name"),
                ("container", "container"),
                ("describedObject", "target"),
            ],
        );
        if !self.required.is_empty() {
            new[self.required] = "0".into();
        }
        for (v1, v2) in self.parts() {
            carry(&old[goal], &mut new, &[(v2, v1)]);
        }
        if !self.selector.is_empty() {
            carry(
                &old["metric"],
                &mut new,
                &[("name", "metricName"), ("selector", self.selector)],
            );
        }
        new
    }
}

/// Converts the source in each field that is there.
fn convert(metric: &Value, sources: &[Source], each: impl Fn(&Source, &Value) -> Value) -> Value {
    let mut new = json!({});
    carry(metric, &mut new, &[("type", "type")]);
    for source in sources {
        if let Some(old) = metric.get(source.field).filter(|v| v.is_object()) {
            new[source.field] = each(source, old);
        }
    }
    new
}

fn metric_to_v2(metric: Value) -> Value {
    convert(&metric, &SPEC_SOURCES, |source, old| {
        let mut new = source.to_v2(old, "target");
        let target = &mut new["target"];
        // An average needs no value beside it; v1 had to write "0".
        if source.field == "object" && target["averageValue"].is_string() && target["value"] == "0" {
            take(target, "value");
        }
        let kind = match source.field {
            "object" if target["averageValue"].is_null() => "Value",
            "external" if target["value"].is_string() => "Value",
            "resource" | "containerResource" if target["averageUtilization"].is_i64() => "Utilization",
            _ => "AverageValue",
        };
        target["type"] = kind.into();
        new
    })
}

fn metric_from_v2(metric: Value) -> Value {
    convert(&metric, &SPEC_SOURCES, |source, old| source.to_v1(old, "target"))
}

fn status_to_v2(metric: Value) -> Value {
    convert(&metric, &STATUS_SOURCES, |source, old| source.to_v2(old, "current"))
}

fn status_from_v2(metric: Value) -> Value {
    convert(&metric, &STATUS_SOURCES, |source, old| source.to_v1(old, "current"))
}

/// The behavior is written under the names of Go's fields, nothing left out.
fn behavior_from_v2(behavior: &Value) -> Value {
    let all = |v: &Value, names: &[&str]| -> Map<String, Value> {
        names
            .iter()
            .map(|n| (upper(n), v.get(*n).cloned().unwrap_or_default()))
            .collect()
    };
    let rules = |v: &Value| -> Value {
        if !v.is_object() {
            return Value::Null;
        }
        let mut out = all(
            v,
            &["stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance"],
        );
        let policies = v["policies"].as_array().into_iter().flatten();
        out["Policies"] = policies
            .map(|p| Value::Object(all(p, &["type", "value", "periodSeconds"])))
            .collect();
        out.into()
    };
    json!({"ScaleUp": rules(&behavior["scaleUp"]), "ScaleDown": rules(&behavior["scaleDown"])})
}

fn upper(name: &str) -> String {
    let mut chars = name.chars();
    chars
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(chars)
        .collect()
}

/// Member names with a small first letter, nulls left out: from Go's names to JSON's.
fn lower_camel(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let members = map.iter().filter(|(_, v)| !v.is_null()).map(|(name, v)| {
                let mut chars = name.chars();
                let name: String = chars
                    .next()
                    .into_iter()
                    .flat_map(char::to_lowercase)
                    .chain(chars)
                    .collect();
                (name, lower_camel(v))
            });
            Value::Object(members.collect())
        }
        Value::Array(list) => list.iter().map(lower_camel).collect(),
        other => other.clone(),
    }
}

/// The order in which Go writes the members; all others follow by name.
const ORDER: &[&str] = &[
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "kind",
    "name",
    "apiVersion",
    "target",
    "metricName",
    "metricSelector",
    "targetValue",
    "currentValue",
    "currentAverageUtilization",
    "targetAverageUtilization",
    "currentAverageValue",
    "targetAverageValue",
    "selector",
    "averageValue",
    "container",
    "matchLabels",
    "matchExpressions",
    "ScaleUp",
    "ScaleDown",
    "StabilizationWindowSeconds",
    "SelectPolicy",
    "Policies",
    "Tolerance",
    "Type",
    "Value",
    "PeriodSeconds",
];

/// JSON with members in Go's order, so that annotations read as Kubernetes writes them.
fn text(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(text).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_by_key(|(name, _)| ORDER.iter().position(|o| o == name).unwrap_or(ORDER.len()));
            let members: Vec<String> = members
                .iter()
                .map(|(name, v)| format!("{}:{}", Value::from(name.as_str()), text(v)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
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
