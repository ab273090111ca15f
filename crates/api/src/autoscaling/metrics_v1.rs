//! Metrics and behavior as they travel in the annotations of an autoscaling/v1 HorizontalPodAutoscaler: metrics in the
//! form v1 once meant to have, behavior under the names of Go's fields.
//!
//! Upstream: pkg/apis/autoscaling/v1/conversion.go (v1.36).

use serde_json::{Map, Value, json};

/// Moves the named members of `from`, renamed, to `to`; absent ones stay absent.
fn carry(from: &Value, to: &mut Value, names: &[(&str, &str)]) {
    for (old, new) in names {
        if let Some(value) = from.get(*old).filter(|v| !v.is_null()) {
            to[*new] = value.clone();
        }
    }
}

/// What a source is called, and the names v1 has for its parts ("": it has none).
struct Source {
    field: &'static str,
    selector: &'static str,
    value: &'static str,
    average: &'static str,
    utilization: &'static str,
    /// The quantity that is always written, "0" if there is none.
    required: &'static str,
}

const fn source(
    field: &'static str,
    selector: &'static str,
    value: &'static str,
    average: &'static str,
    utilization: &'static str,
    required: &'static str,
) -> Source {
    Source {
        field,
        selector,
        value,
        average,
        utilization,
        required,
    }
}

const SPEC_SOURCES: [Source; 5] = [
    source("object", "selector", "targetValue", "averageValue", "", "targetValue"),
    source("pods", "selector", "", "targetAverageValue", "", "targetAverageValue"),
    source("resource", "", "", "targetAverageValue", "targetAverageUtilization", ""),
    source(
        "containerResource",
        "",
        "",
        "targetAverageValue",
        "targetAverageUtilization",
        "",
    ),
    source(
        "external",
        "metricSelector",
        "targetValue",
        "targetAverageValue",
        "",
        "",
    ),
];

const STATUS_SOURCES: [Source; 5] = [
    source("object", "selector", "currentValue", "averageValue", "", "currentValue"),
    source("pods", "selector", "", "currentAverageValue", "", "currentAverageValue"),
    source(
        "resource",
        "",
        "",
        "currentAverageValue",
        "currentAverageUtilization",
        "currentAverageValue",
    ),
    source(
        "containerResource",
        "",
        "",
        "currentAverageValue",
        "currentAverageUtilization",
        "currentAverageValue",
    ),
    source(
        "external",
        "metricSelector",
        "currentValue",
        "currentAverageValue",
        "",
        "currentValue",
    ),
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

pub(super) fn metric_to_v2(metric: Value) -> Value {
    convert(&metric, &SPEC_SOURCES, |source, old| {
        let mut new = source.to_v2(old, "target");
        let target = &mut new["target"];
        // An average needs no value beside it; v1 had to write "0".
        if source.field == "object" && target["averageValue"].is_string() && target["value"] == "0" {
            target.as_object_mut().map(|t| t.remove("value"));
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

pub(super) fn metric_from_v2(metric: Value) -> Value {
    convert(&metric, &SPEC_SOURCES, |source, old| source.to_v1(old, "target"))
}

pub(super) fn status_to_v2(metric: Value) -> Value {
    convert(&metric, &STATUS_SOURCES, |source, old| source.to_v2(old, "current"))
}

pub(super) fn status_from_v2(metric: Value) -> Value {
    convert(&metric, &STATUS_SOURCES, |source, old| source.to_v1(old, "current"))
}

/// The behavior is written under the names of Go's fields, nothing left out.
pub(super) fn behavior_from_v2(behavior: &Value) -> Value {
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
pub(super) fn lower_camel(value: &Value) -> Value {
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
pub(super) fn text(value: &Value) -> String {
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
