//! What a cluster has without anyone asking: in every namespace a default service account and the cluster's root
//! certificate; roles that are the sum of others; quotas that count right; events that do not stay forever.
//!
//! Each task is told only that something changed, looks for itself what is missing, and puts it right.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::Shift;
use orlop_store::Watcher;
use serde_json::json;

use crate::admission::policy::type_check;
use crate::admission::resource_quota;
use crate::authn::{LAST_USED, day};
use crate::authz;
use crate::chain::Server;
use crate::custom;
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::{ObjectLookup, text};
use crate::object::Object;
use crate::registry::create::meta_text;
use crate::registry::update::Endpoint;

/// How often old events are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How often everything is looked at, whether or not anything changed. Upstream: quotas are recounted as often.
const RESYNC_EVERY: Duration = Duration::from_secs(300);
/// After a write that failed (a full disk, say), how long to wait before looking again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const LEASES: &str = "leases.coordination.k8s.io";
const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// Runs until shutdown.
pub async fn run(server: Arc<Server>, ca_pem: String) {
    tokio::join!(
        furnish_namespaces(&server, &ca_pem),
        aggregate_roles(&server),
        recount_quotas(&server),
        check_policies(&server),
        record_legacy_tokens(&server),
        sweep_events(&server),
        custom::follow_definitions(&server),
    );
}

fn core_kind(plural: &str) -> &'static KindDef {
    kinds::of_resource("", "v1", plural).expect("a core kind")
}

/// What may need a look.
enum Dirty {
    Everything,
    Keys(Vec<Arc<str>>),
}

/// Changes of up to three resources, merged.
struct Changes<'s> {
    server: &'s Arc<Server>,
    resources: [&'static str; 3],
    watchers: Vec<Watcher<Object>>,
    /// Counted among those that follow the store.
    follows: bool,
    resync_at: tokio::time::Instant,
}

impl<'s> Changes<'s> {
    fn of(server: &'s Arc<Server>, resources: [&'static str; 3]) -> Changes<'s> {
        Changes {
            server,
            resources,
            watchers: vec![],
            follows: false,
            resync_at: tokio::time::Instant::now().later(RESYNC_EVERY),
        }
    }

    /// `Everything` at first and whenever the history was lost; `None` at shutdown.
    async fn next(&mut self) -> Option<Dirty> {
        let shutdown = &self.server.shutdown;
        let [first, second, third] = self.watchers.as_mut_slice() else {
            return self.start();
        };
        let events = tokio::select! {
            events = first.next() => events,
            events = second.next() => events,
            events = third.next() => events,
            _ = tokio::time::sleep_until(self.resync_at) => {
                self.resync_at = tokio::time::Instant::now().later(RESYNC_EVERY);
                return Some(Dirty::Everything);
            }
            _ = shutdown.wait() => return None,
        };
        match events {
            Ok(events) => Some(Dirty::Keys(events.iter().map(|e| e.key.clone()).collect())),
            Err(_) => self.start(),
        }
    }

    fn start(&mut self) -> Option<Dirty> {
        let store = &self.server.registry.store;
        let watch = |resource: &str| {
            let prefix = format!("{}{resource}/", kinds::PREFIX);
            store
                .watch(&prefix, store.revision())
                .expect("a watch from now on is always possible")
        };
        self.watchers = self.resources.iter().map(|r| watch(r)).collect();
        if !std::mem::replace(&mut self.follows, true) {
            self.server.health.following.fetch_add(1, Ordering::AcqRel);
        }
        (!self.server.shutdown.is_triggered()).then_some(Dirty::Everything)
    }

    /// Something could not be reconciled: logs it, waits, and starts over with everything.
    async fn retry(&mut self, what: &str, status: &Status) {
        tracing::warn!(err = %status, what, "failed to sync objects of the control plane");
        self.watchers.clear();
        tokio::select! {
            _ = tokio::time::sleep(RETRY_AFTER) => {}
            _ = self.server.shutdown.wait() => {}
        }
    }
}

impl Drop for Changes<'_> {
    /// However the loop ended, by a panic too, it does not follow any more.
    fn drop(&mut self) {
        if self.follows {
            self.server.health.following.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

async fn furnish_namespaces(server: &Arc<Server>, ca_pem: &str) {
    let internal = Internal::new(server.registry.clone());
    let mut changes = Changes::of(server, ["namespaces", "serviceaccounts", "configmaps"]);
    while let Some(dirty) = changes.next().await {
        let namespaces: BTreeSet<String> = match dirty {
            Dirty::Everything => all_namespaces(server),
            Dirty::Keys(keys) => keys.iter().filter_map(|k| namespace_in_need(k)).collect(),
        };
        for namespace in namespaces {
            if let Err(status) = furnish(server, &internal, &namespace, ca_pem).await {
                changes.retry("a namespace could not be furnished", &status).await;
                break;
            }
        }
    }
}

fn all_namespaces(server: &Server) -> BTreeSet<String> {
    server
        .registry
        .list("namespaces", None)
        .iter()
        .map(|n| meta_text(n, "name").to_string())
        .collect()
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

async fn furnish(server: &Server, internal: &Internal, namespace: &str, ca_pem: &str) -> Result<(), Status> {
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
            "annotations": {
                "kubernetes.io/description":
                    "The certificate authority of this cluster, for clients that reach the API server by its service.",
            },
        },
        "data": {"ca.crt": ca_pem},
    });
    internal.ensure(core_kind("serviceaccounts"), account).await?;
    // A controller manager publishes its own idea of the authorities.
    let lease = ObjectLookup::get(&*server.registry, LEASES, "kube-system", "kube-controller-manager");
    if lease.is_some_and(|lease| is_held(&lease, server.registry.now())) {
        return Ok(());
    }
    let there = ObjectLookup::get(&*server.registry, "configmaps", namespace, "kube-root-ca.crt");
    if there.is_none_or(|m| m["data"] != roots["data"]) {
        internal
            .ensure_members(core_kind("configmaps"), roots, &["data"])
            .await?;
    }
    Ok(())
}

/// Whether the holder of a lease renews it.
fn is_held(lease: &Value, now: Timestamp) -> bool {
    let spec = &lease["spec"];
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let renewed: Option<Timestamp> = spec["renewTime"].as_str().and_then(|time| time.parse().ok());
    !text(spec, &["holderIdentity"]).is_empty()
        && renewed.is_some_and(|renewed| now.as_second() <= renewed.as_second().saturating_add(seconds))
}

/// Says on the secrets of legacy tokens when they were last used, so that those that are not can be cleaned up.
// Upstream: pkg/serviceaccount/legacy.go
async fn record_legacy_tokens(server: &Arc<Server>) {
    let internal = Internal::new(server.registry.clone());
    let uses = &server.registry.authenticator.issuer().legacy_uses;
    loop {
        let secrets = tokio::select! {
            secrets = uses.next() => secrets,
            _ = server.shutdown.wait() => return,
        };
        for (namespace, name) in secrets {
            let desired = |old: &Value| -> Result<Value, Status> {
                let mut new = old.clone();
                new["metadata"]["labels"][LAST_USED] = day(server.registry.now()).into();
                Ok(new)
            };
            let secrets = core_kind("secrets");
            let written = internal
                .change(secrets, &Endpoint::MAIN, &namespace, &name, &desired)
                .await;
            if let Err(status) = written {
                // It is noted again with its next use.
                tracing::warn!(err = %status, secret = name, namespace, "failed to record the use of a legacy token");
            }
        }
    }
}

/// Cluster roles with an aggregation rule get the rules of the roles it selects.
async fn aggregate_roles(server: &Arc<Server>) {
    let internal = Internal::new(server.registry.clone());
    let mut changes = Changes::of(server, [CLUSTER_ROLES; 3]);
    while changes.next().await.is_some() {
        let roles = server.registry.list(CLUSTER_ROLES, None);
        for (name, rules) in authz::aggregate(&roles) {
            let role = json!({"metadata": {"name": name}, "rules": rules});
            let kind = kinds::of_stored(CLUSTER_ROLES).expect("cluster roles are built in");
            match internal.ensure_members(kind, role, &["rules"]).await {
                Err(status) if status.code != 404 => {
                    changes
                        .retry("a cluster role could not be brought up to date", &status)
                        .await;
                    break;
                }
                _ => {}
            }
        }
    }
}

/// Admission keeps quotas exact as objects come and go; this catches what happened around a quota's own beginning, and
/// status that someone wrote by hand.
/// Tells in the status of validating policies what of their expressions does not fit the kinds that they are for.
async fn check_policies(server: &Arc<Server>) {
    const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
    let internal = Internal::new(server.registry.clone());
    let mut changes = Changes::of(server, [POLICIES; 3]);
    while changes.next().await.is_some() {
        for policy in server.registry.list(POLICIES, None) {
            if !type_check::is_due(&policy) {
                continue;
            }
            let kind = kinds::of_stored(POLICIES).expect("a built-in kind");
            let desired = |old: &Value| -> Result<Value, Status> {
                let mut new = old.clone();
                new["status"] = type_check::status(old, &server.registry.kinds);
                Ok(new)
            };
            let name = meta_text(&policy, "name");
            match internal.change_status(kind, "", name, &desired).await {
                Err(status) if status.code != 404 => {
                    changes.retry("a policy's status could not be written", &status).await;
                    break;
                }
                _ => {}
            }
        }
    }
}

async fn recount_quotas(server: &Arc<Server>) {
    let internal = Internal::new(server.registry.clone());
    let mut changes = Changes::of(server, ["resourcequotas"; 3]);
    while let Some(dirty) = changes.next().await {
        let namespaces: BTreeSet<String> = match dirty {
            Dirty::Everything => {
                let quotas = server.registry.list("resourcequotas", None);
                quotas.iter().map(|q| meta_text(q, "namespace").to_string()).collect()
            }
            Dirty::Keys(keys) => keys.iter().filter_map(|k| uncounted(server, k)).collect(),
        };
        for namespace in namespaces {
            if let Err(status) = recount(server, &internal, &namespace).await {
                changes.retry("a quota could not be counted anew", &status).await;
                break;
            }
        }
    }
}

/// The namespace of a changed quota whose status is not about its present limits. Counting takes a look at every object
/// of a namespace, so what admission keeps right by itself (the use, with every write) is left to the resync.
fn uncounted(server: &Server, key: &str) -> Option<String> {
    let (namespace, name) = key.strip_prefix("/registry/resourcequotas/")?.split_once('/')?;
    let quota = ObjectLookup::get(&*server.registry, "resourcequotas", namespace, name)?;
    (quota.pointer("/status/hard") != quota.pointer("/spec/hard")).then(|| namespace.to_string())
}

async fn recount(server: &Server, internal: &Internal, namespace: &str) -> Result<(), Status> {
    let registry = &server.registry;
    for quota in registry.list("resourcequotas", Some(namespace)) {
        let counted = |quota: &Value| resource_quota::recount(quota, namespace, &**registry, registry.now());
        if quota["status"] == counted(&quota) {
            continue;
        }
        let name = meta_text(&quota, "name");
        let desired = |old: &Value| -> Result<Value, Status> {
            let mut new = old.clone();
            new["status"] = counted(old);
            Ok(new)
        };
        match internal
            .change_status(core_kind("resourcequotas"), namespace, name, &desired)
            .await
        {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
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
            let (namespace, name) = (meta_text(&event, "namespace"), meta_text(&event, "name"));
            if let Err(status) = internal.delete(core_kind("events"), namespace, name).await
                && status.code != 404
            {
                tracing::warn!(err = %status, "failed to delete expired event");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_to_the_namespace_in_need() {
        for (key, namespace) in [
            ("/registry/namespaces/a", Some("a")),
            ("/registry/serviceaccounts/a/default", Some("a")),
            ("/registry/serviceaccounts/a/other", None),
            ("/registry/configmaps/a/kube-root-ca.crt", Some("a")),
            ("/registry/configmaps/a/x", None),
        ] {
            assert_eq!(namespace_in_need(key).as_deref(), namespace, "{key}");
        }
    }

    #[test]
    fn a_lease_is_held_while_it_is_renewed() {
        let lease = json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.123456Z"}});
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        assert!(is_held(&lease, at("2026-01-01T00:00:15Z")));
        assert!(!is_held(&lease, at("2026-01-01T00:00:16Z")));
        let mut given_up = lease.clone();
        given_up["spec"]["holderIdentity"] = "".into();
        assert!(!is_held(&given_up, at("2026-01-01T00:00:01Z")));
        assert!(!is_held(&json!({}), at("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn an_event_lives_by_its_last_mention() {
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().unwrap();
        let event = |last: &str| {
            Arc::new(json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "lastTimestamp": last}))
        };
        let events = [event("2026-01-01T00:10:00Z"), event("2026-01-01T01:30:00Z")];
        assert_eq!(expired_events(&events, now, 3600), [events[0].clone()]);
    }
}
