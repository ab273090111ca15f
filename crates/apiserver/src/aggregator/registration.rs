//! An APIService for each version of a group that is served here: it says so, and how early the group stands in
//! discovery. Those of custom resources come and go with their definitions; those of built-in groups come back when
//! somebody deleted them, so that a group that was given to a service is served here again afterwards.
//!
//! Upstream: autoregister and crdregistration (v1.36), which make the built-in ones only when the server starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::rfc3339;
use serde_json::{Map, json};

use super::API_SERVICES;
use crate::bootstrap::api_services;
use crate::chain::Server;
use crate::custom::Snapshot;
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::{ObjectLookup, text};

/// The label that says how an APIService is kept: made once, or always kept as it should be.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const ALWAYS: &str = "true";
/// After a write that failed.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq)]
enum Action {
    Create(Value),
    /// Has the object's specification be this.
    Specify(Value),
    Delete(String),
}

/// Runs until shutdown.
pub(super) async fn run(server: &Arc<Server>) {
    let store = &server.registry.store;
    loop {
        let watch = |resource: &str| {
            let prefix = format!("{}{resource}/", kinds::PREFIX);
            let watcher = store.watch(&prefix, store.revision());
            watcher.expect("a watch from now on is always possible")
        };
        let (mut services, mut kinds) = (watch(API_SERVICES), server.registry.kinds.follow());
        loop {
            kinds.borrow_and_update();
            let versions = served_versions(&server.registry.kinds.snapshot());
            let worked = reconcile(server, &versions).await;
            if let Err(status) = &worked {
                tracing::warn!(err = %status, "failed to register APIServices");
            }
            let retry = async {
                match worked {
                    Ok(()) => std::future::pending().await,
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            };
            let more_or_fewer = async {
                while kinds.changed().await.is_ok() {
                    if served_versions(&server.registry.kinds.snapshot()) != versions {
                        return;
                    }
                }
            };
            let changed = tokio::select! {
                changed = services.next() => changed.is_ok(),
                () = more_or_fewer => true,
                () = retry => true,
                () = server.shutdown.wait() => return,
            };
            if !changed {
                // The history was lost.
                break;
            }
        }
    }
}

fn kind() -> &'static KindDef {
    kinds::of_stored(API_SERVICES).expect("a built-in kind")
}

/// Group and version of what is defined and can be used.
type Versions = BTreeSet<(&'static str, &'static str)>;

fn served_versions(custom: &Snapshot) -> Versions {
    custom.served().map(|kind| (kind.group, kind.version)).collect()
}

async fn reconcile(server: &Arc<Server>, versions: &Versions) -> Result<(), Status> {
    let registry = &server.registry;
    let built_in = api_services::objects(&rfc3339(registry.now()));
    let custom = of_versions(versions);
    let existing = registry.list(API_SERVICES, None);
    let internal = Internal::new(registry.clone());
    for action in plan(&built_in, custom, &existing) {
        let done = match action {
            Action::Create(object) => internal.ensure(kind(), object).await,
            Action::Specify(object) => internal.ensure_members(kind(), object, &["spec"]).await,
            Action::Delete(name) => internal.delete(kind(), "", &name).await,
        };
        match done {
            // Somebody else was quicker; that is a change, which leads here again.
            Err(status) if status.code == 404 => {}
            done => done?,
        }
    }
    Ok(())
}

fn of_versions(versions: &Versions) -> Vec<Value> {
    let object = |(group, version): &(&str, &str)| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}"), "labels": {MANAGED: ALWAYS}},
            // Upstream: custom resources come after all built-in groups.
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 100},
        })
    };
    versions.iter().map(object).collect()
}

fn plan(built_in: &[Value], custom: Vec<Value>, existing: &[Arc<Value>]) -> Vec<Action> {
    let name = |object: &Value| text(object, &["metadata", "name"]).to_string();
    let existing: BTreeMap<String, &Arc<Value>> = existing.iter().map(|object| (name(object), object)).collect();
    let is_managed = |object: &Value| text(object, &["metadata", "labels", MANAGED]) == ALWAYS;
    let mut actions = vec![];
    let missing = built_in.iter().filter(|object| !existing.contains_key(&name(object)));
    actions.extend(missing.cloned().map(Action::Create));
    let own: BTreeSet<String> = built_in.iter().map(name).collect();
    let mut wanted = BTreeSet::new();
    for object in custom {
        let key = name(&object);
        if own.contains(&key) || !wanted.insert(key.clone()) {
            continue;
        }
        match existing.get(&key) {
            None => actions.push(Action::Create(object)),
            // Without the label it is somebody else's.
            Some(there) if is_managed(there) && !same_spec(&there["spec"], &object["spec"]) => {
                actions.push(Action::Specify(object));
            }
            Some(_) => {}
        }
    }
    let gone = existing
        .iter()
        .filter(|(key, object)| is_managed(object) && !wanted.contains(*key) && !own.contains(*key));
    actions.extend(gone.map(|(key, _)| Action::Delete(key.clone())));
    actions
}

/// Whether two specifications say the same; what is null or empty is as if it were not there.
fn same_spec(one: &Value, other: &Value) -> bool {
    let said = |spec: &Value| -> Map<String, Value> {
        let members = spec.as_object().cloned().unwrap_or_default();
        let is_said = |value: &Value| !value.is_null() && *value != json!("") && *value != json!(false);
        members.into_iter().filter(|(_, value)| is_said(value)).collect()
    };
    said(one) == said(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom() -> Vec<Value> {
        of_versions(&Versions::from([("example.com", "v1")]))
    }

    fn built_in() -> Vec<Value> {
        vec![json!({"metadata": {"name": "v1.apps", "labels": {MANAGED: "onstart"}}, "spec": {"group": "apps"}})]
    }

    fn planned(custom: Vec<Value>, existing: &[Value]) -> Vec<String> {
        let existing: Vec<Arc<Value>> = existing.iter().cloned().map(Arc::new).collect();
        let describe = |action: &Action| match action {
            Action::Create(object) => format!("create {}", object["metadata"]["name"]),
            Action::Specify(object) => format!("specify {}", object["metadata"]["name"]),
            Action::Delete(name) => format!("delete {name:?}"),
        };
        plan(&built_in(), custom, &existing).iter().map(describe).collect()
    }

    #[test]
    fn what_is_served_is_registered() {
        let custom = custom();
        assert_eq!(custom.len(), 1);
        assert_eq!(custom[0]["metadata"]["name"], "v1.example.com");
        let apps = built_in().remove(0);
        assert_eq!(
            planned(custom.clone(), &[]),
            ["create \"v1.apps\"", "create \"v1.example.com\""]
        );
        let both = [apps.clone(), custom[0].clone()];
        assert!(planned(custom.clone(), &both).is_empty());
        assert_eq!(planned(vec![], &both), ["delete \"v1.example.com\""]);
    }

    #[test]
    fn what_others_made_is_left_alone() {
        let custom = custom();
        let apps = built_in().remove(0);
        let mut changed = custom[0].clone();
        changed["spec"]["service"] = json!({"name": "s"});
        assert_eq!(
            planned(custom.clone(), &[apps.clone(), changed.clone()]),
            ["specify \"v1.example.com\""]
        );
        changed["metadata"]["labels"] = json!({});
        assert!(planned(custom, &[apps.clone(), changed.clone()]).is_empty());
        assert!(planned(vec![], &[apps.clone(), changed]).is_empty());
        // A built-in group that was given to a service.
        let mut taken = apps;
        taken["spec"]["service"] = json!({"name": "s"});
        assert!(planned(vec![], &[taken]).is_empty());
    }

    #[test]
    fn empty_members_say_nothing() {
        let spec = json!({"group": "g", "insecureSkipTLSVerify": false, "caBundle": null});
        assert!(same_spec(&spec, &json!({"group": "g"})));
        assert!(!same_spec(&spec, &json!({"group": "h"})));
    }
}
