//! RuntimeClass: a pod's runtime class must be there, and brings its overhead and its nodes with it.
//! Upstream: plugin/pkg/admission/runtimeclass (v1.36).

use std::sync::Arc;

use orlop_api::resources;
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "RuntimeClass",
    mutate: Some(mutate),
    validate: Some(validate),
};

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNFOUNDED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("", "pods") && review.operation == Operation::Create
}

fn class_of(review: &Review<'_>, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
    let Some(name) = pod["spec"].get("runtimeClassName").and_then(Value::as_str) else {
        return Ok(None);
    };
    match review.lookup.get("runtimeclasses.node.k8s.io", "", name) {
        Some(class) => Ok(Some(class)),
        None => Err(review.forbidden(format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

/// Whether two resource lists are the same amounts, however they are written.
fn same_amounts(a: Option<&Value>, b: Option<&Value>) -> bool {
    resources::list(a) == resources::list(b)
}

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !is_new_pod(review) {
        return Ok(());
    }
    let Some(class) = class_of(review, pod)? else {
        return Ok(());
    };
    if class.get("overhead").is_some() {
        set_overhead(review, pod, class.pointer("/overhead/podFixed"))?;
    }
    if class.get("scheduling").is_some() {
        add_node_selector(review, pod, &class)?;
        let merged = merge_tolerations(
            items(pod, &["spec", "tolerations"]),
            items(&class, &["scheduling", "tolerations"]),
        );
        if !merged.is_empty() {
            pod["spec"]["tolerations"] = merged.into();
        }
    }
    Ok(())
}

fn set_overhead(review: &Review<'_>, pod: &mut Value, fixed: Option<&Value>) -> Result<(), Status> {
    let given = pod["spec"].get("overhead");
    let says_something = given.and_then(Value::as_object).is_some_and(|m| !m.is_empty());
    if says_something && !same_amounts(given, fixed) {
        return Err(review.forbidden(MISMATCH));
    }
    if let Some(fixed) = fixed {
        pod["spec"]["overhead"] = fixed.clone();
    }
    Ok(())
}

/// Other plugins may have changed the pod since.
fn validate(review: &Review<'_>, pod: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(pod) = pod.filter(|_| is_new_pod(review)) else {
        return Ok(vec![]);
    };
    let class = class_of(review, pod)?;
    let (given, defined) = (
        pod["spec"].get("overhead"),
        class.as_ref().and_then(|c| c.get("overhead")),
    );
    match defined {
        Some(overhead) if !same_amounts(given, overhead.get("podFixed")) => Err(review.forbidden(MISMATCH)),
        None if given.is_some() => Err(review.forbidden(UNFOUNDED)),
        _ => Ok(vec![]),
    }
}

fn add_node_selector(review: &Review<'_>, pod: &mut Value, class: &Value) -> Result<(), Status> {
    let selector = class.pointer("/scheduling/nodeSelector").and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        match pod["spec"]["nodeSelector"].get(key) {
            Some(own) if own != value => {
                return Err(review.forbidden(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    value.as_str().unwrap_or(""),
                    own.as_str().unwrap_or("")
                )));
            }
            _ => pod["spec"]["nodeSelector"][key.as_str()] = value.clone(),
        }
    }
    Ok(())
}

/// Both lists in one, without those that another one covers.
fn merge_tolerations(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = vec![];
    for (i, toleration) in all.iter().enumerate() {
        let covered = merged.iter().any(|m| covers(m, toleration))
            || all[i + 1..].iter().any(|t| t != toleration && covers(t, toleration));
        if !covered {
            merged.push((*toleration).clone());
        }
    }
    merged
}

/// Whether `wide` tolerates everything that `narrow` does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let word = |t: &Value, name: &str| text(t, &[name]).to_string();
    let differ = |name: &str| word(wide, name) != word(narrow, name);
    if wide == narrow {
        return true;
    }
    let exists = word(wide, "operator") == "Exists";
    if differ("key") && !(word(wide, "key").is_empty() && exists) {
        return false;
    }
    if differ("effect") && !word(wide, "effect").is_empty() {
        return false;
    }
    if word(wide, "effect") == "NoExecute"
        && let Some(limit) = wide["tolerationSeconds"].as_i64()
        && narrow["tolerationSeconds"].as_i64().is_none_or(|s| s > limit)
    {
        return false;
    }
    match word(wide, "operator").as_str() {
        "Exists" => true,
        "" | "Equal" => word(narrow, "operator") == "Equal" && !differ("value"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told, with};
    use super::*;

    fn desk() -> Desk {
        let class = |name: &str, more: Value| with(json!({"metadata": {"name": name}, "handler": "h"}), more);
        const CLASSES: &str = "runtimeclasses.node.k8s.io";
        Desk::new()
            .with(CLASSES, class("plain", json!({})))
            .with(CLASSES, class("heavy", json!({"overhead": {"podFixed": {"cpu": "1", "memory": "1Gi"}}})))
            .with(
                CLASSES,
                class(
                    "placed",
                    json!({"scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}]}}),
                ),
            )
    }

    #[test]
    fn overhead_comes_from_the_class() {
        let refused = |why: &str| format!("pods \"p\" is forbidden: {why}");
        let mismatch = refused("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead");
        let unfounded = refused("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead");
        let cases = [
            (json!({}), "ok".to_string()),
            (json!({"runtimeClassName": "plain"}), "ok".to_string()),
            (json!({"runtimeClassName": "heavy"}), "ok".to_string()),
            (
                json!({"runtimeClassName": "heavy", "overhead": {"cpu": "1000m", "memory": "1024Mi"}}),
                "ok".to_string(),
            ),
            (
                json!({"runtimeClassName": "gone"}),
                refused("pod rejected: RuntimeClass \"gone\" not found"),
            ),
            (json!({"runtimeClassName": "heavy", "overhead": {"cpu": "2"}}), mismatch),
            (json!({"overhead": {"cpu": "2"}}), unfounded.clone()),
            (
                json!({"runtimeClassName": "plain", "overhead": {"cpu": "2"}}),
                unfounded,
            ),
        ];
        for (spec, expected) in cases {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            assert_eq!(told(desk().create(&PLUGIN, "pods", pod.clone())), expected, "{spec}");
            assert_eq!(told(desk().update(&PLUGIN, "pods", pod.clone(), pod)), "ok");
        }
        let pod = json!({"metadata": {"name": "p"}, "spec": {"runtimeClassName": "heavy"}});
        let created = desk().create(&PLUGIN, "pods", pod).unwrap();
        assert_eq!(created["spec"]["overhead"], json!({"cpu": "1", "memory": "1Gi"}));
    }

    #[test]
    fn nodes_come_from_the_class() {
        let pod = |selector: Value| {
            json!({"metadata": {"name": "p"}, "spec": {"runtimeClassName": "placed", "nodeSelector": selector,
                "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, {"key": "o"}]}})
        };
        let created = desk().create(&PLUGIN, "pods", pod(json!({"x": "y"}))).unwrap();
        assert_eq!(created["spec"]["nodeSelector"], json!({"a": "b", "x": "y"}));
        assert_eq!(
            created["spec"]["tolerations"],
            json!([{"key": "o"}, {"key": "k", "operator": "Exists"}])
        );
        let result = desk().create(&PLUGIN, "pods", pod(json!({"a": "c"})));
        assert_eq!(
            told(result),
            "pods \"p\" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"
        );
    }

    #[test]
    fn tolerations_cover_one_another() {
        let exists = json!({"operator": "Exists"});
        let key = json!({"key": "k", "operator": "Exists"});
        let value = json!({"key": "k", "operator": "Equal", "value": "v"});
        let timed = |s: i64| json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": s});
        let cases = [
            (&exists, &value, true),
            (&value, &exists, false),
            (&key, &value, true),
            (&value, &key, false),
            (&key, &timed(5), true),
            (&timed(5), &timed(4), true),
            (&timed(5), &timed(6), false),
            (&timed(5), &key, false),
        ];
        for (wide, narrow, expected) in cases {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
        assert_eq!(
            merge_tolerations(&[timed(4), value.clone()], &[timed(5)]),
            [value.clone(), timed(5)]
        );
        let one = std::slice::from_ref(&value);
        assert_eq!(merge_tolerations(one, one), one);
    }
}
