//! Subresources that are more than a part of their object: binding, eviction, scale.

use http::Method;
use orlop_api::selector::LabelSelector;
use orlop_base::clock::rfc3339;
use serde_json::{Value, json};

use super::server::{Call, patch};
use super::store::{ListSelector, ObjectPath, Refusal, Store, StoreResult, collection};

pub(super) fn handle(call: &Call, store: &mut Store, place: &ObjectPath, part: &str) -> StoreResult<Value> {
    match (part, place.collection.1.as_str()) {
        ("binding", "pods") => bind(call, store, place),
        ("eviction", "pods") => evict(call, store, place),
        ("scale", _) => scale(call, store, place),
        _ => Err(Refusal::new(404, "NotFound", format!("there is no {part} here"))),
    }
}

fn bind(call: &Call, store: &mut Store, place: &ObjectPath) -> StoreResult<Value> {
    let now = rfc3339(store.clock.now());
    store.update(place, "", |pod| {
        if pod["spec"]["nodeName"].is_string() {
            return Err(Refusal::new(409, "Conflict", "the pod is already assigned to a node"));
        }
        pod["spec"]["nodeName"] = call.body["target"]["name"].clone();
        Ok(())
    })?;
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
    store.update(place, "status", |pod| {
        match pod["status"]["conditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => pod["status"]["conditions"] = json!([condition]),
        }
        Ok(())
    })?;
    Ok(json!({"kind": "Status", "status": "Success"}))
}

/// Takes one of the disruptions that the pod's budgets allow, if they do.
fn evict(call: &Call, store: &mut Store, place: &ObjectPath) -> StoreResult<Value> {
    let pod = store.get(place)?;
    let budgets = ListSelector {
        place: ObjectPath {
            collection: collection("policy", "poddisruptionbudgets"),
            namespace: place.namespace.clone(),
            name: String::new(),
        },
        ..ListSelector::default()
    };
    let covers = |budget: &Value| {
        let selector = LabelSelector::from_object(&budget["spec"]["selector"]);
        selector.is_ok_and(|s| s.matches_map(pod.pointer("/metadata/labels")))
    };
    for budget in store.list(&budgets).into_iter().filter(|budget| covers(budget)) {
        let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if allowed <= 0 {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            let mut refusal = Refusal::new(429, "TooManyRequests", message);
            refusal.cause = Some("DisruptionBudget");
            return Err(refusal);
        }
        let at = ObjectPath {
            name: budget["metadata"]["name"].as_str().unwrap_or("").to_string(),
            ..budgets.place.clone()
        };
        let now = rfc3339(store.clock.now());
        store.update(&at, "status", |budget| {
            budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            budget["status"]["disruptedPods"][&place.name] = json!(now);
            Ok(())
        })?;
    }
    store.delete(place, &call.body["deleteOptions"])?;
    Ok(json!({"kind": "Status", "status": "Success"}))
}

fn scale(call: &Call, store: &mut Store, place: &ObjectPath) -> StoreResult<Value> {
    let shown = |object: &Value| {
        let labels = object["spec"]["selector"]["matchLabels"].as_object();
        let selector: Vec<String> = labels
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
            .collect();
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": object["metadata"],
               "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
               "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0),
                          "selector": selector.join(",")}})
    };
    let mut wanted = shown(&*store.get(place)?);
    match call.method {
        Method::GET => return Ok(wanted),
        Method::PUT => wanted = call.body.clone(),
        _ => patch(&mut wanted, call)?,
    }
    let changed = store.update(place, "", |object| {
        for field in ["resourceVersion", "uid"] {
            if wanted["metadata"][field].is_string() {
                object["metadata"][field] = wanted["metadata"][field].clone();
            }
        }
        object["spec"]["replicas"] = wanted["spec"]["replicas"].clone();
        Ok(())
    })?;
    Ok(shown(&changed))
}
