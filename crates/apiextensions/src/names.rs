//! The status of a definition: which names it has, whether it is established, and what else its conditions say.
//!
//! Upstream: apiextensions-apiserver pkg/controller/{status,establish,nonstructuralschema,apiapproval,finalizer} (v1.36),
//! here one plan instead of five loops.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::field::{Path, Problems};
use serde_json::{Map, Value, json};

use crate::definition::{self, approval};

pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The status that a definition should have, given all the others; None if it is that already. It does not speak of
/// deletion: see [`terminating`].
pub fn plan_names(definition: &Value, others: &[Arc<Value>], now: Timestamp) -> Option<Value> {
    let old = definition.get("status").cloned().unwrap_or(Value::Null);
    let mut status = match old.clone() {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let (accepted, conflict) = accept_names(definition, others);
    let names_accepted = conflict.is_none();
    status.insert("acceptedNames".into(), accepted);
    let condition = match conflict {
        Some((reason, message)) => Condition::new("NamesAccepted", "False", reason, message),
        None => Condition::new("NamesAccepted", "True", "NoConflicts", "no conflicts found".into()),
    };
    condition.set(&mut status, now);
    establish(spec, names_accepted, &mut status, now);
    match non_structural(spec) {
        Some(condition) => condition.set(&mut status, now),
        None => remove_condition(&mut status, "NonStructuralSchema"),
    }
    if let Some((conformant, reason, message)) = approval::condition(definition) {
        Condition::new("KubernetesAPIApprovalPolicyConformant", conformant, reason, message).set(&mut status, now);
    }
    let status = Value::Object(status);
    (status != old).then_some(status)
}

/// Whether a condition of a definition is true.
pub fn is_condition_true(definition: &Value, name: &str) -> bool {
    find(definition.get("status").unwrap_or(&Value::Null), name).is_some_and(|c| c["status"] == "True")
}

fn find<'v>(status: &'v Value, name: &str) -> Option<&'v Value> {
    let conditions = status.get("conditions")?.as_array()?;
    conditions.iter().find(|c| c["type"] == name)
}

/// How far the deletion of a definition's objects is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    Pending,
    InProgress,
    Completed,
    Failed,
    /// There never were any: the definition was not established.
    NeverEstablished,
    /// The resource is one of the server's own: its objects stay.
    OverlapsBuiltIn,
}

/// The status of a definition whose objects are being deleted.
pub fn terminating(definition: &Value, cleanup: Cleanup, detail: &str, now: Timestamp) -> Value {
    let mut status = match definition.get("status").cloned() {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (value, reason, message) = match cleanup {
        Cleanup::Pending => (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        Cleanup::InProgress => (
            "True",
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
        ),
        Cleanup::Completed => ("False", "InstanceDeletionCompleted", "removed all instances"),
        Cleanup::Failed => ("True", "InstanceDeletionFailed", detail),
        Cleanup::NeverEstablished => ("False", "NeverEstablished", "resource was never established"),
        Cleanup::OverlapsBuiltIn => (
            "False",
            "OverlappingBuiltInResource",
            "instances overlap with built-in resources in storage",
        ),
    };
    Condition::new("Terminating", value, reason, message.to_string()).set(&mut status, now);
    Value::Object(status)
}

struct Condition {
    name: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn new(name: &'static str, status: &'static str, reason: &'static str, message: String) -> Condition {
        Condition {
            name,
            status,
            reason,
            message,
        }
    }

    /// The time changes only with the status.
    fn set(self, of: &mut Map<String, Value>, now: Timestamp) {
        let conditions = of.entry("conditions").or_insert_with(|| json!([]));
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        let Some(list) = conditions.as_array_mut() else { return };
        let mut condition = json!({
            "type": self.name, "status": self.status, "reason": self.reason, "message": self.message,
            "lastTransitionTime": seconds(now),
        });
        match list.iter_mut().find(|c| c["type"] == self.name) {
            Some(old) => {
                if old["status"] == self.status && !old["lastTransitionTime"].is_null() {
                    condition["lastTransitionTime"] = old["lastTransitionTime"].take();
                }
                *old = condition;
            }
            None => list.push(condition),
        }
    }
}

fn seconds(now: Timestamp) -> String {
    let seconds = Timestamp::from_second(now.as_second()).expect("the seconds of a timestamp are in its range");
    seconds.to_string()
}

fn remove_condition(status: &mut Map<String, Value>, name: &str) {
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        list.retain(|c| c["type"] != name);
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn texts<'a>(value: &'a Value, name: &str) -> Vec<&'a str> {
    let list = value.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The names that all definitions of a group have: resources (with short names), and kinds (with lists).
#[derive(Default)]
struct Used<'v> {
    resources: BTreeSet<&'v str>,
    kinds: BTreeSet<&'v str>,
}

impl<'v> Used<'v> {
    fn add(&mut self, definition: &'v Value, group: &str) {
        if definition.get("spec").map_or("", |s| text(s, "group")) != group {
            return;
        }
        let Some(names) = definition.pointer("/status/acceptedNames") else {
            return;
        };
        self.resources.extend([text(names, "plural"), text(names, "singular")]);
        self.resources.extend(texts(names, "shortNames"));
        self.kinds.extend([text(names, "kind"), text(names, "listKind")]);
    }
}

fn fresh(requested: &str, accepted: &str, used: &BTreeSet<&str>) -> Result<(), String> {
    if requested == accepted || !used.contains(requested) {
        return Ok(());
    }
    Err(format!("{requested:?} is already in use"))
}

/// The accepted names, and the reason and message of the last conflict.
fn accept_names(definition: &Value, others: &[Arc<Value>]) -> (Value, Option<(&'static str, String)>) {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let group = text(spec, "group");
    let mut used = Used::default();
    used.add(definition, group);
    let own = definition.pointer("/metadata/name");
    for other in others.iter().filter(|o| o.pointer("/metadata/name") != own) {
        used.add(other, group);
    }
    let requested = spec.get("names").unwrap_or(&Value::Null);
    let empty = Value::Object(Map::new());
    let accepted = definition.pointer("/status/acceptedNames").unwrap_or(&empty);
    let mut names = accepted.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    for (name, kinds, reason) in [
        ("plural", false, "PluralConflict"),
        ("singular", false, "SingularConflict"),
        ("shortNames", false, "ShortNamesConflict"),
        ("kind", true, "KindConflict"),
        ("listKind", true, "ListKindConflict"),
    ] {
        let used = if kinds { &used.kinds } else { &used.resources };
        let checked = match name {
            "shortNames" => fresh_short_names(requested, accepted, used),
            _ => fresh(text(requested, name), text(accepted, name), used),
        };
        match checked {
            Ok(()) => copy(requested, name, &mut names),
            Err(message) => conflict = Some((reason, message)),
        }
    }
    copy(requested, "categories", &mut names);
    // Always there, as the types have it.
    for name in ["plural", "kind"] {
        names.entry(name).or_insert_with(|| "".into());
    }
    (Value::Object(names), conflict)
}

fn fresh_short_names(requested: &Value, accepted: &Value, used: &BTreeSet<&str>) -> Result<(), String> {
    let ours = texts(accepted, "shortNames");
    let wanted = texts(requested, "shortNames");
    let errors: Vec<String> = wanted
        .into_iter()
        .filter(|name| !ours.contains(name))
        .filter_map(|name| fresh(name, "", used).err())
        .collect();
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn copy(from: &Value, name: &str, to: &mut Map<String, Value>) {
    match from.get(name).filter(|v| !v.is_null()) {
        Some(value) => {
            to.insert(name.to_string(), value.clone());
        }
        None => {
            to.remove(name);
        }
    }
}

/// A definition stays established, whatever becomes of its names.
fn establish(spec: &Value, names_accepted: bool, status: &mut Map<String, Value>, now: Timestamp) {
    let established = status.get("conditions").and_then(Value::as_array).is_some_and(|list| {
        let mut own = list.iter().filter(|c| c["type"] == "Established");
        own.any(|c| c["status"] == "True")
    });
    if established {
        return;
    }
    let bundle = spec
        .pointer("/conversion/webhook/clientConfig/caBundle")
        .and_then(Value::as_str);
    let condition = if !names_accepted {
        Condition::new(
            "Established",
            "False",
            "NotAccepted",
            "not all names are accepted".into(),
        )
    } else if bundle.is_some_and(|b| definition::ca_bundle_error(b).is_some()) {
        let message = "The conversion webhook CABundle is invalid";
        Condition::new("Established", "False", "InvalidCABundle", message.into())
    } else {
        let message = "the initial names have been accepted";
        Condition::new("Established", "True", "InitialNamesAccepted", message.into())
    };
    condition.set(status, now);
}

/// Definitions from before schemas had to be structural say so.
fn non_structural(spec: &Value) -> Option<Condition> {
    let mut p = Problems::default();
    if spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true) {
        let place = Path::default().field("spec").field("preserveUnknownFields");
        p.invalid_value(&place, &true.into(), "must be false");
    }
    definition::non_structural(spec, &mut p);
    if p.is_empty() {
        return None;
    }
    let texts: Vec<String> = p.0.iter().map(ToString::to_string).collect();
    let message = match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Some(Condition::new("NonStructuralSchema", "True", "Violations", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-18T10:00:00.5Z".parse().unwrap()
    }

    fn definition(name: &str, names: Value) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {"group": "ex.io", "names": names, "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        })
    }

    fn foos() -> Value {
        let names =
            json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["f"]});
        definition("foos.ex.io", names)
    }

    fn condition(status: &Value, name: &str) -> String {
        let c = find(status, name).cloned().unwrap_or_default();
        format!("{} {} {}", text(&c, "status"), text(&c, "reason"), text(&c, "message"))
    }

    fn planned(mut definition: Value, others: &[Arc<Value>]) -> Value {
        let status = plan_names(&definition, others, now()).unwrap();
        definition["status"] = status;
        assert_eq!(
            plan_names(&definition, others, now()),
            None,
            "a plan that was written is done"
        );
        definition
    }

    #[test]
    fn free_names_are_accepted() {
        let done = planned(foos(), &[]);
        let status = &done["status"];
        assert_eq!(status["acceptedNames"], foos()["spec"]["names"]);
        assert_eq!(
            condition(status, "NamesAccepted"),
            "True NoConflicts no conflicts found"
        );
        assert_eq!(
            condition(status, "Established"),
            "True InitialNamesAccepted the initial names have been accepted"
        );
        assert_eq!(
            find(status, "Established").unwrap()["lastTransitionTime"],
            "2026-11-18T10:00:00Z"
        );
        assert_eq!(find(status, "NonStructuralSchema"), None);
    }

    #[test]
    fn names_in_use_are_not() {
        let first = Arc::new(planned(foos(), &[]));
        for (names, reason, message, accepted) in [
            (
                json!({"plural": "bars", "singular": "bar", "kind": "Foo", "listKind": "BarList"}),
                "KindConflict",
                "\"Foo\" is already in use",
                json!({"plural": "bars", "singular": "bar", "kind": "", "listKind": "BarList"}),
            ),
            (
                json!({"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList", "shortNames": ["f", "foo", "b"]}),
                "ShortNamesConflict",
                "[\"f\" is already in use, \"foo\" is already in use]",
                json!({"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList"}),
            ),
            (
                json!({"plural": "foo", "singular": "bar", "kind": "Bar", "listKind": "BarList"}),
                "PluralConflict",
                "\"foo\" is already in use",
                json!({"plural": "", "singular": "bar", "kind": "Bar", "listKind": "BarList"}),
            ),
        ] {
            let done = planned(definition("bars.ex.io", names), std::slice::from_ref(&first));
            let status = &done["status"];
            assert_eq!(condition(status, "NamesAccepted"), format!("False {reason} {message}"));
            assert_eq!(
                condition(status, "Established"),
                "False NotAccepted not all names are accepted"
            );
            assert_eq!(status["acceptedNames"], accepted);
            // Once the first one is gone the names are free.
            let after = plan_names(&done, &[], now()).unwrap();
            assert_eq!(condition(&after, "Established").split(' ').next(), Some("True"));
        }
    }

    #[test]
    fn another_group_is_no_conflict_and_established_stays() {
        let mut other = planned(foos(), &[]);
        other["spec"]["group"] = "other.io".into();
        other["metadata"]["name"] = "foos.other.io".into();
        let done = planned(foos(), &[Arc::new(other)]);
        let mut renamed = done.clone();
        renamed["spec"]["names"]["shortNames"] = json!(["x"]);
        let rival = planned(
            definition(
                "bars.ex.io",
                json!({"plural": "bars", "singular": "x", "kind": "Bar", "listKind": "BarList"}),
            ),
            &[],
        );
        let status = plan_names(&renamed, &[Arc::new(rival)], now()).unwrap();
        assert_eq!(
            condition(&status, "NamesAccepted").split(' ').nth(1),
            Some("ShortNamesConflict")
        );
        assert_eq!(condition(&status, "Established").split(' ').next(), Some("True"));
        assert_eq!(status["acceptedNames"]["shortNames"], json!(["f"]), "the old ones stay");
    }

    #[test]
    fn deletion_is_told() {
        let status = terminating(&foos(), Cleanup::InProgress, "", now());
        assert_eq!(
            condition(&status, "Terminating"),
            "True InstanceDeletionInProgress CustomResource deletion is in progress"
        );
    }
}
