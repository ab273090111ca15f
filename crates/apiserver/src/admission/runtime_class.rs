//! RuntimeClass: a pod's runtime class must be there, and brings its overhead and its nodes with it.

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "RuntimeClass",
    mutate: Some(mutate),
    validate: None,
};

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "pods") || review.operation != Operation::Create {
        return Ok(());
    }
    let name = pod["spec"]["runtimeClassName"].as_str().unwrap_or("").to_string();
    let given = pod["spec"]
        .get("overhead")
        .cloned()
        .filter(|o| o.as_object().is_some_and(|m| !m.is_empty()));
    if name.is_empty() {
        return match given {
            Some(_) => Err(review.forbidden("Pod Overhead set without corresponding RuntimeClass defined Overhead")),
            None => Ok(()),
        };
    }
    let class = review
        .lookup
        .get("runtimeclasses.node.k8s.io", "", &name)
        .ok_or_else(|| review.forbidden(format!("pod rejected: RuntimeClass {name:?} not found")))?;
    set_overhead(review, pod, &class, given)?;
    add_scheduling(review, pod, &class)
}

fn set_overhead(review: &Review<'_>, pod: &mut Value, class: &Value, given: Option<Value>) -> Result<(), Status> {
    let fixed = class.pointer("/overhead/podFixed").cloned();
    match (given, fixed) {
        (Some(given), Some(fixed)) if given != fixed => Err(review.forbidden(format!(
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead: {given} != {fixed}"
        ))),
        (Some(_), None) => {
            Err(review.forbidden("Pod Overhead set without corresponding RuntimeClass defined Overhead"))
        }
        (None, Some(fixed)) => {
            pod["spec"]["overhead"] = fixed;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn add_scheduling(review: &Review<'_>, pod: &mut Value, class: &Value) -> Result<(), Status> {
    for (key, value) in class
        .pointer("/scheduling/nodeSelector")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
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
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    for toleration in class
        .pointer("/scheduling/tolerations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if !tolerations.contains(toleration) {
            tolerations.push(toleration.clone());
        }
    }
    if !tolerations.is_empty() {
        pod["spec"]["tolerations"] = tolerations.into();
    }
    Ok(())
}
