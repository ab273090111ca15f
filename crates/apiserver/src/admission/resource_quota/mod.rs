//! ResourceQuota: what a namespace may hold, exactly. The use is part of the quota's status and changes in the same
//! transaction as the object that is counted, so concurrent writers can't pass the limit together.

mod usage;

use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::resources::{self, ResourceList};
use orlop_api::{KindDef, Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::kinds;
use crate::lookup::ObjectLookup;

pub const PLUGIN: Plugin = Plugin {
    name: "ResourceQuota",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    if review.namespace.is_empty() || review.kind.plural == "namespaces" {
        return Ok(vec![]);
    }
    let mut changes = vec![];
    for quota in review.lookup.list("resourcequotas", Some(&review.namespace)) {
        // A quota counts quotas too, but its own status is its own business.
        if review.kind.plural == "resourcequotas" && quota["metadata"]["name"] == review.name.as_str() {
            continue;
        }
        if let Some(used) = next_use(review, &quota, new, old)? {
            changes.push(change(&quota, used));
        }
    }
    Ok(changes)
}

fn change(quota: &Value, used: ResourceList) -> Change {
    let text = |name: &str| quota["metadata"][name].as_str().unwrap_or("").to_string();
    let mut value = quota.clone();
    value["status"]["used"] = resources::to_value(&used);
    Change {
        kind: kinds::of_stored("resourcequotas").expect("quotas are built in"),
        namespace: text("namespace"),
        name: text("name"),
        revision: text("resourceVersion").parse().expect("stored objects have a revision"),
        value,
    }
}

/// The use after this write; `None` if it stays as it is.
fn next_use(
    review: &Review<'_>,
    quota: &Value,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<ResourceList>, Status> {
    let hard = resources::list(quota.pointer("/status/hard").or(quota.pointer("/spec/hard")));
    let concerned: ResourceList = hard
        .iter()
        .filter(|(n, _)| usage::concerns(n, review.kind))
        .map(|(n, q)| (n.clone(), q.clone()))
        .collect();
    if concerned.is_empty() {
        return Ok(None);
    }
    let name = quota["metadata"]["name"].as_str().unwrap_or("");
    let counts = |object: Option<&Value>| -> ResourceList {
        match object.filter(|o| usage::in_scope(quota, review.kind, o)) {
            Some(object) => usage::of_object(review.kind, object, review.now),
            None => ResourceList::new(),
        }
    };
    if let Some(pod) = new.filter(|p| review.is("", "pods") && usage::in_scope(quota, review.kind, p))
        && review.operation == Operation::Create
        && let Some(missing) = usage::missing_requirements(pod, &concerned)
    {
        return Err(review.forbidden(format!("failed quota: {name}: {missing}")));
    }
    let (before, after) = (counts(old), counts(new));
    let mut used = resources::list(quota.pointer("/status/used"));
    let (mut changed, mut exceeded) = (false, vec![]);
    for (resource, limit) in &concerned {
        let zero = || orlop_api::quantity::Quantity::ZERO;
        let mut delta = after.get(resource).cloned().unwrap_or_else(zero);
        delta.sub(&before.get(resource).cloned().unwrap_or_else(zero));
        if delta.is_zero() {
            continue;
        }
        changed = true;
        let in_use = used.get(resource).cloned().unwrap_or_else(zero);
        let mut next = in_use.clone();
        next.add(&delta);
        if next.is_negative() {
            next = zero();
        }
        if !delta.is_negative() && next > *limit && review.subresource != "status" {
            exceeded.push((resource, delta, in_use, limit));
        }
        used.insert(resource.clone(), next);
    }
    if !exceeded.is_empty() {
        let list = |pick: fn(
            &(
                &String,
                orlop_api::quantity::Quantity,
                orlop_api::quantity::Quantity,
                &orlop_api::quantity::Quantity,
            ),
        ) -> String| {
            exceeded
                .iter()
                .map(|e| format!("{}={}", e.0, pick(e)))
                .collect::<Vec<_>>()
                .join(",")
        };
        return Err(review.forbidden(format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            list(|e| e.1.canonical()),
            list(|e| e.2.canonical()),
            list(|e| e.3.canonical())
        )));
    }
    Ok(changed.then_some(used))
}

/// The status a quota should have: its limits, and what the namespace holds of each now.
pub fn recount(quota: &Value, namespace: &str, lookup: &dyn ObjectLookup, now: Timestamp) -> Value {
    let hard = resources::list(quota.pointer("/spec/hard"));
    let mut used: ResourceList = hard
        .keys()
        .map(|n| (n.clone(), orlop_api::quantity::Quantity::ZERO))
        .collect();
    for kind in orlop_api::kinds::all().filter(|k| is_counted(k)) {
        if !hard.keys().any(|n| usage::concerns(n, kind)) {
            continue;
        }
        let mut objects = lookup.list(&kind.store_prefix(), Some(namespace));
        // A quota counts itself, also while it is only about to be stored.
        let is_itself = |o: &Arc<Value>| o["metadata"]["name"] == quota["metadata"]["name"];
        if kind.plural == "resourcequotas" && !objects.iter().any(is_itself) {
            objects.push(Arc::new(quota.clone()));
        }
        for object in objects {
            if !usage::in_scope(quota, kind, &object) {
                continue;
            }
            for (name, quantity) in usage::of_object(kind, &object, now) {
                if usage::concerns(&name, kind)
                    && let Some(sum) = used.get_mut(&name)
                {
                    sum.add(&quantity);
                }
            }
        }
    }
    serde_json::json!({"hard": resources::to_value(&hard), "used": resources::to_value(&used)})
}

fn is_counted(kind: &KindDef) -> bool {
    kind.namespaced && kind.stored_as.is_empty() && kind.is_stored()
}
