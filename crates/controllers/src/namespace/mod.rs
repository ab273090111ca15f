//! The end of namespaces: all that is in them goes first, pods before everything else that they may still need.
//!
//! A reconcile looks into every kind that lives in namespaces, deletes what it finds, and looks again. What then is left
//! (pods that take their time, objects that somebody's finalizer holds) is watched until it is gone. When nothing is left
//! the namespace itself is let go of.
// Upstream: pkg/controller/namespace (v1.36, with ordered deletion). Differs in that leftovers are watched, that kinds of
// which there is nothing get no delete request, and that the conditions name pods that are left, too.

mod leftovers;
mod plan;
#[cfg(test)]
mod tests;

use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use jiff::Timestamp;
use orlop_base::Clock;
use orlop_client::{Api, DeleteOptions, Error, ListQuery, Preconditions, Result, path};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use self::leftovers::Leftovers;
use self::plan::{Held, Left, Report};
use crate::discovery::{self, Discovered, Resource};
use crate::objects::{Kind, Namespace};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "namespace-controller",
    account: "namespace-controller",
    on_by_default: true,
    start,
};

/// What a namespace has from its creation on, in its spec: this controller's word that it is empty.
const FINALIZER: &str = "kubernetes";
/// Kinds of one namespace that are looked at at the same time.
const KINDS_AT_ONCE: usize = 8;

struct Controller {
    namespaces: Cache<Namespace>,
    leftovers: Leftovers,
    clock: Clock,
    /// `Settings::namespace_deletion_delay`
    delay: Duration,
}

fn start(setup: &Setup) {
    let queue = setup.queue("namespace");
    let namespaces = setup.cache::<Namespace>();
    let wake = queue.clone();
    namespaces.on_change(move |old, new| {
        if let Some(namespace) = new.or(old)
            && (new.is_none() || namespace.metadata.is_deleted())
        {
            wake.add(Key::from_object(&**namespace));
        }
    });
    let controller = Controller {
        namespaces,
        leftovers: Leftovers::new(setup.api.clone(), queue.clone(), setup.shutdown.clone()),
        clock: setup.clock.clone(),
        delay: setup.settings.namespace_deletion_delay,
    };
    setup.run(queue, setup.settings.concurrent_namespace_syncs, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        self.leftovers.forget(key);
        let Some(namespace) = self.namespaces.at(key) else {
            return Ok(Next::Done);
        };
        let Some(deleted_at) = namespace.metadata.deletion_timestamp else {
            return Ok(Next::Done);
        };
        let age = self.clock.now().duration_since(deleted_at);
        let age = Duration::try_from(age).unwrap_or_default();
        if age < self.delay {
            return Ok(Next::After(self.delay.saturating_sub(age)));
        }
        let api = writer.api();
        // Others write to it, too: decide on what it is now. Whole, as it has to be given back whole.
        let live: Value = match api.get(&path_of(key)).await {
            Err(Error::NotFound(_)) => return Ok(Next::Done),
            live => live?,
        };
        if live["metadata"]["uid"] != namespace.metadata.uid || !live["spec"]["finalizers"].is_array() {
            return Ok(Next::Done);
        }
        let report = self.empty(api, &key.name, deleted_at).await?;
        let live = self.report(api, key, live, &report).await?;
        if report.is_clean() {
            return finalize(api, key, live).await;
        }
        let errors = report.left.iter().filter(|(_, left)| left.count == 0);
        if report.discovery.is_some() || errors.count() > 0 {
            let why = report.discovery.as_deref().into_iter().chain(report.errors());
            return Err(ReconcileError::NotYet(why.collect::<Vec<_>>().join(", ")));
        }
        let remaining = report.remaining();
        let collections = remaining.map(|r| path::collection(&r.api_version, Some(&key.name), &r.name));
        self.leftovers.wait(key, collections.collect());
        let seconds = u64::try_from(report.look_after_seconds()).unwrap_or(1);
        Ok(Next::After(Duration::from_secs(seconds)))
    }
}

impl Controller {
    /// Tells everything in the namespace to go.
    async fn empty(&self, api: &Api, namespace: &str, deleted_at: Timestamp) -> Result<Report> {
        let found = discovery::discover(api).await?;
        let mut report = Report {
            discovery: found.trouble().map(|why| {
                let count = found.failed.len();
                format!("Discovery failed for some groups, {count} failing: {why}")
            }),
            ..Report::default()
        };
        let (pods, others) = in_order(&found);
        for resource in pods {
            let left = self.empty_of(api, namespace, &resource, deleted_at).await;
            report.left.extend(left.map(|left| (resource, left)));
        }
        if !report.left.is_empty() {
            return Ok(report);
        }
        let mut looks = stream::iter(others)
            .map(|resource| async move {
                let left = self.empty_of(api, namespace, &resource, deleted_at).await;
                left.map(|left| (resource, left))
            })
            .buffer_unordered(KINDS_AT_ONCE);
        while let Some(look) = looks.next().await {
            report.left.extend(look);
        }
        Ok(report)
    }

    /// Tells all of a kind to go. Gives back what is left of it, or went wrong.
    async fn empty_of(&self, api: &Api, namespace: &str, resource: &Resource, deleted_at: Timestamp) -> Option<Left> {
        let is_pods = is_pods(resource);
        let outcome = async {
            let collection = path::collection(&resource.api_version, Some(namespace), &resource.name);
            let held = list(api, resource, &collection).await?;
            let grace = match is_pods {
                true => plan::grace_seconds(&held, deleted_at, self.clock.now()),
                false => 0,
            };
            if held.iter().all(|held| held.metadata.is_deleted()) {
                return Ok(plan::left(namespace, resource, &held, grace));
            }
            delete_all(api, resource, &collection, &held).await?;
            let held = list(api, resource, &collection).await?;
            Ok(plan::left(namespace, resource, &held, grace))
        };
        outcome.await.unwrap_or_else(|error: Error| {
            let why = match is_pods {
                true => format!("failed to delete pods for namespace: {namespace}, err: {error}"),
                false => error.chain().to_string(),
            };
            Some(Left {
                error: Some(why),
                ..Left::default()
            })
        })
    }

    /// Writes the status, if it has changed. Gives back the namespace as it is then.
    async fn report(&self, api: &Api, key: &Key, mut live: Value, report: &Report) -> Result<Value> {
        let old: Namespace = serde_json::from_value(live.clone()).unwrap_or_default();
        let others = old.spec.finalizers.len() > 1 || !old.metadata.finalizers.is_empty();
        let is_terminating = old.status.phase == "Terminating";
        // About to go in the same breath: nobody would read it.
        if report.is_clean() && !others && is_terminating {
            return Ok(live);
        }
        let conditions = plan::conditions(&old.status.conditions, report, self.clock.now());
        if is_terminating && conditions == old.status.conditions {
            return Ok(live);
        }
        live["status"]["phase"] = "Terminating".into();
        live["status"]["conditions"] = json!(conditions);
        api.replace(&format!("{}/status", path_of(key)), &live).await
    }
}

fn path_of(key: &Key) -> String {
    path::object(Namespace::API_VERSION, None, Namespace::RESOURCE, &key.name)
}

fn is_pods(resource: &Resource) -> bool {
    resource.api_version == "v1" && resource.name == "pods"
}

/// Pods, and what goes after them.
fn in_order(found: &Discovered) -> (Vec<Resource>, Vec<Resource>) {
    let deletable = found.preferred().filter(|r| r.namespaced && r.can(&["delete"]));
    deletable.cloned().partition(is_pods)
}

/// Discovery may list what is not (or no longer) served: then there is nothing of it.
async fn list(api: &Api, resource: &Resource, collection: &str) -> Result<Vec<Held>> {
    if !resource.can(&["list"]) {
        return Ok(vec![]);
    }
    match api.list::<Held>(collection, &ListQuery::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_unsupported(&error) => Ok(vec![]),
        Err(error) => Err(error),
    }
}

async fn delete_all(api: &Api, resource: &Resource, collection: &str, held: &[Held]) -> Result<()> {
    // Never to be orphaned: everything else in here goes, too.
    let options = DeleteOptions {
        propagation_policy: Some("Background"),
        ..DeleteOptions::default()
    };
    if resource.can(&["deletecollection"]) {
        match api.delete(collection, &options).await {
            Err(error) if is_unsupported(&error) => {}
            done => return done,
        }
    }
    for held in held {
        let options = DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(held.metadata.uid.clone()),
                resource_version: None,
            }),
            ..options.clone()
        };
        match api
            .delete(&format!("{collection}/{}", held.metadata.name), &options)
            .await
        {
            Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => {}
            Err(error) if is_unsupported(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_unsupported(error: &Error) -> bool {
    matches!(error.status(), Some(status) if matches!(status.code, 404 | 405))
}

/// Takes our finalizer out, and with it the namespace away, unless others hold it.
async fn finalize(api: &Api, key: &Key, mut live: Value) -> ReconcileResult {
    if let Some(finalizers) = live["spec"]["finalizers"].as_array_mut() {
        let before = finalizers.len();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if finalizers.len() == before {
            return Ok(Next::Done);
        }
    }
    match api
        .replace::<IgnoredAny>(&format!("{}/finalize", path_of(key)), &live)
        .await
    {
        Ok(_) | Err(Error::NotFound(_)) => Ok(Next::Done),
        Err(error) => Err(error.into()),
    }
}
