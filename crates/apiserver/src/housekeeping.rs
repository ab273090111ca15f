//! What a cluster has without anyone asking: in every namespace a default service account and the cluster's root
//! certificate; events that do not stay forever.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::{KindDef, Value};
use serde_json::json;

use crate::chain::Server;
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::ObjectLookup;

/// How often old events are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// After a write that failed (a full disk, say), how long to wait before looking again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs until shutdown.
pub async fn run(server: Arc<Server>, ca_pem: String) {
    tokio::join!(furnish_namespaces(&server, &ca_pem), sweep_events(&server));
}

fn kind(plural: &str) -> &'static KindDef {
    kinds::of_resource("", "v1", plural).expect("a core kind")
}

/// Keeps every active namespace furnished. Told only that something changed; looks for itself what is missing.
async fn furnish_namespaces(server: &Arc<Server>, ca_pem: &str) {
    let internal = Internal::new(server.registry.clone());
    let store = &server.registry.store;
    let prefixes = ["namespaces", "serviceaccounts", "configmaps"].map(|p| kinds::key_prefix(kind(p), None));
    'restart: while !server.shutdown.is_triggered() {
        let from = store.revision();
        let Ok(mut watchers) = prefixes
            .iter()
            .map(|p| store.watch(p, from))
            .collect::<Result<Vec<_>, _>>()
        else {
            continue;
        };
        let mut dirty: BTreeSet<String> = server
            .registry
            .list("namespaces", None)
            .iter()
            .map(|n| name_of(n).to_string())
            .collect();
        loop {
            for namespace in std::mem::take(&mut dirty) {
                if let Err(status) = furnish(server, &internal, &namespace, ca_pem).await {
                    tracing::warn!("namespace {namespace} could not be furnished: {status}");
                    tokio::time::sleep(RETRY_AFTER).await;
                    dirty.insert(namespace);
                }
            }
            let [namespaces, accounts, maps] = watchers.as_mut_slice() else {
                unreachable!("three watches")
            };
            let events = tokio::select! {
                e = namespaces.next() => e,
                e = accounts.next() => e,
                e = maps.next() => e,
                _ = tokio::time::sleep(RETRY_AFTER), if !dirty.is_empty() => Ok(vec![]),
                _ = server.shutdown.wait() => return,
            };
            match events {
                Ok(events) => dirty.extend(events.iter().filter_map(|e| namespace_in_need(&e.key))),
                // Fell behind the history: start over from what is there.
                Err(_) => continue 'restart,
            }
        }
    }
}

/// The namespace that a changed key may have left without its furniture.
fn namespace_in_need(key: &str) -> Option<String> {
    let words: Vec<&str> = key.split('/').collect();
    match words.as_slice() {
        [.., "namespaces", name] => Some(name.to_string()),
        [.., "serviceaccounts", namespace, "default"] => Some(namespace.to_string()),
        [.., "configmaps", namespace, "kube-root-ca.crt"] => Some(namespace.to_string()),
        _ => None,
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or("")
}

async fn furnish(server: &Server, internal: &Internal, namespace: &str, ca_pem: &str) -> Result<(), orlop_api::Status> {
    let active = ObjectLookup::get(&*server.registry, "namespaces", "", namespace)
        .is_some_and(|n| n.pointer("/status/phase").and_then(Value::as_str) != Some("Terminating"));
    if !active {
        return Ok(());
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace},
    });
    let roots = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "kube-root-ca.crt", "namespace": namespace,
            "annotations": {"kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."},
        },
        "data": {"ca.crt": ca_pem},
    });
    internal.ensure(kind("serviceaccounts"), account).await?;
    let there = ObjectLookup::get(&*server.registry, "configmaps", namespace, "kube-root-ca.crt");
    if there.is_none_or(|m| m["data"] != roots["data"]) {
        internal.ensure_members(kind("configmaps"), roots, &["data"]).await?;
    }
    Ok(())
}

async fn sweep_events(server: &Arc<Server>) {
    let internal = Internal::new(server.registry.clone());
    loop {
        tokio::select! {
            _ = tokio::time::sleep(SWEEP_EVERY) => {}
            _ = server.shutdown.wait() => return,
        }
        let now = server.registry.now();
        let ttl = server.registry.config.event_ttl.as_secs() as i64;
        for event in expired_events(&server.registry.list("events", None), now, ttl) {
            let namespace = event["metadata"]["namespace"].as_str().unwrap_or("");
            if let Err(status) = internal.delete(kind("events"), namespace, name_of(&event)).await
                && status.code != 404
            {
                tracing::warn!("an old event could not be removed: {status}");
                break;
            }
        }
    }
}

/// Events whose last mention is older than the time to live.
fn expired_events(events: &[Arc<Value>], now: Timestamp, ttl_seconds: i64) -> Vec<Arc<Value>> {
    let pointers = [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ];
    let last = |event: &Value| -> Option<i64> {
        let times = pointers
            .iter()
            .filter_map(|p| event.pointer(p)?.as_str()?.parse::<Timestamp>().ok());
        times.map(|t| t.as_second()).max()
    };
    events
        .iter()
        .filter(|e| last(e).is_none_or(|t| now.as_second() - t > ttl_seconds))
        .cloned()
        .collect()
}
