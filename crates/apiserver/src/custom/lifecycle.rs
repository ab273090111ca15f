//! Following the definitions: which names they get, since when their kinds are served, and how they go.
//!
//! What a definition's status should say is planned by `orlop_apiextensions::names`; here it is written, after the table of
//! kinds has it, so that whoever reads that a kind is established can use it. Of a definition that is deleted the objects
//! go first.
// Upstream: apiextensions-apiserver pkg/controller/{status,establish,finalizer}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orlop_api::{KindDef, Status, Value};
use orlop_apiextensions::names::{self, Cleanup};
use orlop_base::BoxFuture;
use orlop_base::clock::Shift;
use orlop_store::{RangeQuery, Watcher};
use serde_json::json;

use super::DEFINITIONS;
use super::served::Facts;
use super::table::Kinds;
use crate::chain::Server;
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::{items, text};
use crate::object::Object;
use crate::registry::Registry;
use crate::registry::update::Endpoint;

/// After a write that failed, how long to wait before trying again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long requests may go on by the schema with which they began.
const SETTLED_AFTER: Duration = Duration::from_secs(70);

fn definition_kind() -> &'static KindDef {
    kinds::of_stored(DEFINITIONS).expect("definitions are built in")
}

fn key_of(name: &str) -> String {
    kinds::key(definition_kind(), "", name)
}

/// Serves the definitions there are, before anybody asks for their objects.
pub(crate) fn load(registry: &Registry) {
    let prefix = kinds::key_prefix(definition_kind(), None);
    let query = RangeQuery {
        prefix: &prefix,
        ..Default::default()
    };
    let page = registry.store.range(query, &mut |_| true);
    for item in page.expect("a range at the current revision does not fail").items {
        if let Some(facts) = Facts::of(&item, &registry.value_of(&item)) {
            registry.kinds.put(Arc::new(facts));
        }
    }
    // No request is under way yet.
    registry.kinds.settle(registry.store.revision());
}

/// Runs until shutdown.
pub(crate) async fn follow_definitions(server: &Arc<Server>) {
    let mut follower = Follower {
        server: server.clone(),
        internal: Internal::new(server.registry.clone()),
        known: BTreeMap::new(),
        endings: FuturesUnordered::new(),
        ending: Vec::new(),
    };
    while !server.shutdown.is_triggered() {
        if let Err(status) = follower.follow().await {
            tracing::warn!(err = %status, "failed to sync custom resource definitions");
            tokio::select! {
                _ = tokio::time::sleep(RETRY_AFTER) => {}
                _ = server.shutdown.wait() => {}
            }
        }
    }
}

struct Follower {
    server: Arc<Server>,
    internal: Internal,
    /// What the names of others depend on: group, names and status of each definition, without its schemas.
    known: BTreeMap<String, Arc<Value>>,
    /// Definitions whose objects are being deleted.
    endings: FuturesUnordered<BoxFuture<'static, (String, Result<(), Status>)>>,
    ending: Vec<String>,
}

impl Follower {
    /// Until the history is lost, the server stops or something fails.
    async fn follow(&mut self) -> Result<(), Status> {
        let server = self.server.clone();
        let registry = &server.registry;
        let prefix = kinds::key_prefix(definition_kind(), None);
        let mut watcher: Watcher<Object> = registry
            .store
            .watch(&prefix, registry.store.revision())
            .expect("a watch from now on is always possible");
        self.sync_all().await?;
        let mut settle_at = tokio::time::Instant::now().later(SETTLED_AFTER);
        loop {
            let began = registry.store.revision();
            tokio::select! {
                events = watcher.next() => {
                    let Ok(events) = events else { return Ok(()) };
                    let mut keys: Vec<&str> = events.iter().map(|e| &*e.key).collect();
                    keys.dedup();
                    for key in keys {
                        let name = key.strip_prefix(&prefix).unwrap_or(key).to_string();
                        self.sync(&name).await?;
                    }
                    settle_at = tokio::time::Instant::now().later(SETTLED_AFTER);
                }
                Some((name, result)) = self.endings.next() => {
                    self.ending.retain(|other| *other != name);
                    result?;
                }
                _ = tokio::time::sleep_until(settle_at), if registry.kinds.is_unsettled() => {
                    registry.kinds.settle(began);
                }
                _ = server.shutdown.wait() => return Ok(()),
            }
        }
    }

    async fn sync_all(&mut self) -> Result<(), Status> {
        let registry = self.server.registry.clone();
        let prefix = kinds::key_prefix(definition_kind(), None);
        let query = RangeQuery {
            prefix: &prefix,
            ..Default::default()
        };
        let page = registry.store.range(query, &mut |_| true);
        let stored = page.expect("a range at the current revision does not fail").items;
        self.known.clear();
        let mut all = vec![];
        for item in &stored {
            let definition = registry.value_of(item);
            let name = text(&definition, &["metadata", "name"]).to_string();
            self.known.insert(name.clone(), Arc::new(summary(&definition)));
            all.push(name);
        }
        for gone in registry.kinds.definitions() {
            if !self.known.contains_key(&*gone) {
                registry.kinds.remove(&gone);
            }
        }
        for name in all {
            self.sync(&name).await?;
        }
        Ok(())
    }

    /// Brings one definition's status, and what is served of it, to what they should be.
    async fn sync(&mut self, name: &str) -> Result<(), Status> {
        let registry = self.server.registry.clone();
        let Some(item) = registry.store.get(&key_of(name)) else {
            registry.kinds.remove(name);
            // The names it had are free for others of its group.
            let group = self
                .known
                .remove(name)
                .map(|gone| text(&gone, &["spec", "group"]).to_string());
            for other in self.waiting(group.as_deref().unwrap_or("")) {
                Box::pin(self.sync(&other)).await?;
            }
            return Ok(());
        };
        let definition = registry.value_of(&item);
        let group = text(&definition, &["spec", "group"]);
        let others: Vec<Arc<Value>> = self
            .known
            .iter()
            .filter(|(other, summary)| *other != name && text(summary, &["spec", "group"]) == group)
            .map(|(_, summary)| summary.clone())
            .collect();
        let status = names::plan_names(&definition, &others, registry.now());
        let mut shown = definition.clone();
        if let Some(status) = &status {
            shown["status"] = status.clone();
        }
        if let Some(facts) = Facts::of(&item, &shown) {
            registry.kinds.put(Arc::new(facts));
        }
        self.known.insert(name.to_string(), Arc::new(summary(&shown)));
        if let Some(status) = status {
            write_status(&self.internal, &definition, status).await?;
        }
        if is_ending(&definition) && !self.ending.iter().any(|other| other == name) {
            self.ending.push(name.to_string());
            let (server, uid) = (self.server.clone(), text(&definition, &["metadata", "uid"]).to_string());
            let name = name.to_string();
            self.endings.push(Box::pin(async move {
                let result = end(&server, &name, &uid).await;
                (name, result)
            }));
        }
        Ok(())
    }

    /// Definitions of the group that did not get their names.
    fn waiting(&self, group: &str) -> Vec<String> {
        let waits = |summary: &Value| {
            items(summary, &["status", "conditions"])
                .iter()
                .any(|c| c["type"] == "NamesAccepted" && c["status"] == "False")
        };
        let of_group = self.known.iter().filter(|(_, s)| text(s, &["spec", "group"]) == group);
        of_group
            .filter(|(_, s)| waits(s))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

async fn write_status(internal: &Internal, definition: &Value, status: Value) -> Result<(), Status> {
    let (name, uid) = (
        text(definition, &["metadata", "name"]),
        text(definition, &["metadata", "uid"]),
    );
    let revision = definition["metadata"]["resourceVersion"].clone();
    let desired = |old: &Value| -> Result<Value, Status> {
        let mut new = old.clone();
        // Another state of it is looked at when its event comes.
        if text(old, &["metadata", "uid"]) == uid && old["metadata"]["resourceVersion"] == revision {
            new["status"] = status.clone();
        }
        Ok(new)
    };
    or_gone(internal.change_status(definition_kind(), "", name, &desired).await)
}

/// That an object is gone, or not what it was, is no failure: its event comes.
fn or_gone(result: Result<(), Status>) -> Result<(), Status> {
    match result {
        Err(status) if status.code != 404 && status.code != 409 => Err(status),
        _ => Ok(()),
    }
}

fn summary(definition: &Value) -> Value {
    json!({
        "metadata": {"name": definition["metadata"]["name"]},
        "spec": {"group": definition["spec"]["group"], "names": definition["spec"]["names"]},
        "status": definition["status"],
    })
}

fn is_ending(definition: &Value) -> bool {
    let finalizers = items(definition, &["metadata", "finalizers"]);
    definition["metadata"]["deletionTimestamp"].is_string() && finalizers.iter().any(|f| f == names::CLEANUP_FINALIZER)
}

/// Deletes the objects of a definition, and when none is left lets the definition go.
async fn end(server: &Arc<Server>, name: &str, uid: &str) -> Result<(), Status> {
    let registry = &server.registry;
    let internal = Internal::new(registry.clone());
    let is_same = |definition: &Value| text(definition, &["metadata", "uid"]) == uid;
    let now = registry.now();
    let desired = |old: &Value| -> Result<Value, Status> {
        let mut new = old.clone();
        if is_same(old) {
            new["status"] = names::terminating(old, Cleanup::InProgress, "", now);
        }
        Ok(new)
    };
    or_gone(internal.change_status(definition_kind(), "", name, &desired).await)?;
    let rows = registry.kinds.rows(name);
    let last = match rows.filter(|rows| rows.facts.is_established) {
        // What is stored there are not its objects.
        _ if kinds::of_stored(name).is_some() => Cleanup::OverlapsBuiltIn,
        None => Cleanup::NeverEstablished,
        Some(rows) => {
            delete_objects(server, &internal, rows.storage).await?;
            Cleanup::Completed
        }
    };
    let desired = |old: &Value| -> Result<Value, Status> {
        let mut new = old.clone();
        if is_same(old) {
            new["status"] = names::terminating(old, last, "", registry.now());
            if let Some(finalizers) = new["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|f| f != names::CLEANUP_FINALIZER);
            }
        }
        Ok(new)
    };
    or_gone(internal.change(definition_kind(), &FINALIZE, "", name, &desired).await)
}

/// Changes status and finalizers in one go.
const FINALIZE: Endpoint = Endpoint {
    prepare: |_, _, _| {},
    owns: false,
    generation: false,
    ..Endpoint::STATUS
};

/// Until there are none: those with finalizers go when these are done.
async fn delete_objects(server: &Arc<Server>, internal: &Internal, kind: &'static KindDef) -> Result<(), Status> {
    let store = &server.registry.store;
    let prefix = kinds::key_prefix(kind, None);
    loop {
        let mut watcher = store
            .watch(&prefix, store.revision())
            .expect("a watch from now on is always possible");
        let query = RangeQuery {
            prefix: &prefix,
            limit: Some(512),
            ..Default::default()
        };
        let page = store.range(query, &mut |_| true);
        let stored = page.expect("a range at the current revision does not fail").items;
        if stored.is_empty() {
            return Ok(());
        }
        let mut is_any_gone = false;
        for item in stored {
            let (namespace, name) = kinds::split_key(kind, &item.key);
            let is_marked = server.registry.value_of(&item)["metadata"]["deletionTimestamp"].is_string();
            if !is_marked {
                or_gone(internal.delete(kind, namespace, name).await)?;
                is_any_gone = true;
            }
        }
        if !is_any_gone {
            let _ = watcher.next().await;
        }
    }
}

impl Kinds {
    fn settle(&self, revision: u64) {
        for served in self.all_served() {
            served.settle(revision);
        }
    }

    fn is_unsettled(&self) -> bool {
        self.all_served().iter().any(|served| served.is_unsettled())
    }
}
