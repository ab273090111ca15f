//! Keeps what is enforced like the objects, and the objects as they must be: mandatory ones are put back when somebody
//! changes or deletes them, suggested ones too unless their annotation says that they are the operator's.

use std::sync::Arc;
use std::time::Duration;

use orlop_api::flowcontrol::standard::{self, AUTO_UPDATE};
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::rfc3339;
use serde_json::json;

use super::{FLOW_SCHEMAS, PRIORITY_LEVELS, borrowing};
use crate::chain::Server;
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::{ObjectLookup, items, text};

/// After a write that failed.
const RETRY: Duration = Duration::from_secs(1);
/// A status that is changed again and again by somebody else is not written more often than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs until shutdown.
pub(crate) async fn run(server: Arc<Server>) {
    tokio::join!(follow(&server), adjust(&server));
}

async fn adjust(server: &Arc<Server>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(borrowing::PERIOD) => server.flow_control.adjust(),
            () = server.shutdown.wait() => return,
        }
    }
}

async fn follow(server: &Arc<Server>) {
    let store = &server.registry.store;
    loop {
        let watch = |resource: &str| {
            let prefix = format!("{}{resource}/", kinds::PREFIX);
            let watcher = store.watch(&prefix, store.revision());
            watcher.expect("a watch from now on is always possible")
        };
        let (mut schemas, mut levels) = (watch(FLOW_SCHEMAS), watch(PRIORITY_LEVELS));
        loop {
            server.flow_control.reload(&*server.registry);
            let worked = reconcile(server).await;
            if let Err(status) = &worked {
                tracing::warn!(err = %status, "failed to sync flow schemas and priority levels");
            }
            let retry = async {
                match worked {
                    Ok(()) => std::future::pending().await,
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            };
            let changed = tokio::select! {
                changed = schemas.next() => changed.is_ok(),
                changed = levels.next() => changed.is_ok(),
                () = retry => true,
                () = server.shutdown.wait() => return,
            };
            if !changed {
                // The history was lost.
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn kind(resource: &str) -> &'static KindDef {
    kinds::of_stored(resource).expect("a built-in kind")
}

async fn reconcile(server: &Arc<Server>) -> Result<(), Status> {
    let registry = &server.registry;
    let internal = Internal::new(registry.clone());
    // Levels first: schemas name them.
    for (resource, wanted) in [
        (PRIORITY_LEVELS, standard::priority_levels()),
        (FLOW_SCHEMAS, standard::flow_schemas()),
    ] {
        for mut object in wanted {
            (kind(resource).default)(&mut object);
            let name = text(&object, &["metadata", "name"]).to_string();
            let there = ObjectLookup::get(&**registry, resource, "", &name);
            if let Some(object) = put_back(there.as_deref(), object) {
                tracing::info!(resource, name, "restored flow control object");
                let done = internal
                    .ensure_members(kind(resource), object, &["metadata", "spec"])
                    .await;
                ignore_gone(done)?;
            }
        }
    }
    let now = rfc3339(registry.now());
    let levels = registry.list(PRIORITY_LEVELS, None);
    for schema in registry.list(FLOW_SCHEMAS, None) {
        let condition = |schema: &Value| dangling(schema, &levels, &now);
        if condition(&schema).is_none() {
            continue;
        }
        let desired = |old: &Value| -> Result<Value, Status> {
            let mut new = old.clone();
            if let Some(conditions) = condition(old) {
                new["status"]["conditions"] = conditions;
            }
            Ok(new)
        };
        let name = text(&schema, &["metadata", "name"]);
        ignore_gone(internal.change_status(kind(FLOW_SCHEMAS), "", name, &desired).await)?;
    }
    Ok(())
}

/// What is gone needs no change; that it went leads here again.
fn ignore_gone(done: Result<(), Status>) -> Result<(), Status> {
    match done {
        Err(status) if status.code == 404 => Ok(()),
        done => done,
    }
}

/// What an object of the server's own is to be, if it is not that.
fn put_back(there: Option<&Value>, wanted: Value) -> Option<Value> {
    let Some(there) = there else { return Some(wanted) };
    let name = text(&wanted, &["metadata", "name"]);
    let is_mandatory = matches!(name, "exempt" | "catch-all");
    let annotation = text(there, &["metadata", "annotations", AUTO_UPDATE]);
    let is_ours = match annotation {
        _ if is_mandatory => true,
        "true" => true,
        "false" => false,
        // Nobody has changed it yet.
        _ => there["metadata"]["generation"].as_i64().unwrap_or(1) <= 1,
    };
    let marked = if is_ours { "true" } else { "false" };
    if annotation == marked && (!is_ours || same(&there["spec"], &wanted["spec"])) {
        return None;
    }
    let mut object = there.clone();
    object["metadata"]["annotations"][AUTO_UPDATE] = marked.into();
    if is_ours {
        object["spec"] = wanted["spec"].clone();
    }
    Some(object)
}

/// Whether two specifications say the same. What the mandatory levels say about their exempt part is the operator's.
fn same(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            let said = |value: &Value| !value.is_null() && *value != json!([]) && *value != json!("");
            let names = there.keys().chain(wanted.keys());
            names.into_iter().all(|name| {
                let (one, other) = (&there.get(name), &wanted.get(name));
                match (one.filter(|v| said(v)), other.filter(|v| said(v))) {
                    (Some(one), Some(other)) => same(one, other),
                    (None, None) => true,
                    (Some(only), None) | (None, Some(only)) => *only == json!(false) || *only == json!({}),
                }
            })
        }
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len() && there.iter().zip(wanted).all(|(one, other)| same(one, other))
        }
        _ => there == wanted,
    }
}

/// The conditions of a flow schema with the right `Dangling`, if it is not right.
fn dangling(schema: &Value, levels: &[Arc<Value>], now: &str) -> Option<Value> {
    let name = text(schema, &["spec", "priorityLevelConfiguration", "name"]);
    let is_there = levels.iter().any(|level| text(level, &["metadata", "name"]) == name);
    let start = format!("This FlowSchema references the PriorityLevelConfiguration object named {name:?}");
    let (status, reason, message) = match is_there {
        true => ("False", "Found", format!("{start} and it exists")),
        false => ("True", "NotFound", format!("{start} but there is no such object")),
    };
    let mut conditions = items(schema, &["status", "conditions"]).to_vec();
    let place = conditions.iter().position(|c| text(c, &["type"]) == "Dangling");
    let before = place.map(|i| conditions[i].clone()).unwrap_or_default();
    let is_right = |name: &str, value: &str| text(&before, &[name]) == value;
    if is_right("status", status) && is_right("reason", reason) && is_right("message", &message) {
        return None;
    }
    let condition = json!({"type": "Dangling", "status": status, "lastTransitionTime": now, "reason": reason,
        "message": message});
    match place {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
    Some(conditions.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(name: &str) -> Value {
        let all = standard::priority_levels();
        all.into_iter().find(|l| l["metadata"]["name"] == name).unwrap()
    }

    fn with(mut object: Value, annotation: Option<&str>, generation: i64) -> Value {
        object["metadata"]["generation"] = generation.into();
        object["metadata"]["annotations"] = match annotation {
            Some(text) => json!({AUTO_UPDATE: text}),
            None => json!({}),
        };
        object
    }

    #[test]
    fn what_is_the_servers_is_put_back() {
        let changed = |mut object: Value| {
            object["spec"]["limited"]["nominalConcurrencyShares"] = 7.into();
            object
        };
        for (name, annotation, generation, is_changed, wanted) in [
            // Name, annotation, generation, whether the spec differs; annotation and whether the spec is put back.
            ("system", Some("true"), 5, false, None),
            ("system", Some("true"), 5, true, Some(("true", true))),
            ("system", Some("false"), 5, true, None),
            ("system", None, 1, true, Some(("true", true))),
            ("system", None, 2, true, Some(("false", false))),
            ("catch-all", Some("false"), 2, true, Some(("true", true))),
            ("catch-all", Some("true"), 2, false, None),
        ] {
            let object = if is_changed { changed(level(name)) } else { level(name) };
            let there = with(object, annotation, generation);
            let back = put_back(Some(&there), level(name));
            let back = back.map(|b| {
                let annotation = b["metadata"]["annotations"][AUTO_UPDATE].as_str().unwrap().to_string();
                (annotation, b["spec"] == level(name)["spec"])
            });
            let wanted = wanted.map(|(annotation, is_back)| (annotation.to_string(), is_back));
            assert_eq!(back, wanted, "{name} {annotation:?} {generation} {is_changed}");
        }
        assert_eq!(put_back(None, level("exempt")), Some(level("exempt")));
    }

    #[test]
    fn schemas_say_whether_their_level_is_there() {
        let schema =
            |status: Value| json!({"spec": {"priorityLevelConfiguration": {"name": "system"}}, "status": status});
        let there = [Arc::new(level("system"))];
        let found = dangling(&schema(json!({})), &there, "now").unwrap();
        assert_eq!(
            (&found[0]["status"], &found[0]["reason"]),
            (&json!("False"), &json!("Found"))
        );
        assert_eq!(dangling(&schema(json!({"conditions": found})), &there, "later"), None);
        let lost = dangling(&schema(json!({"conditions": found})), &[], "later").unwrap();
        assert_eq!(
            lost[0]["message"],
            "This FlowSchema references the PriorityLevelConfiguration object named \"system\" but there is no such object"
        );
    }
}
