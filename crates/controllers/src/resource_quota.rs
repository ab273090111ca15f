//! Resource quotas count right: admission adds what is made, this controller counts anew what there is.
//!
//! A quota is counted when it is new or its limits change, soon after something in its namespace went or ended, and every
//! few minutes. What there is, is asked of the server: a quota may be about any kind, and a count from a cache that is
//! behind would give away room twice. Orlop's own server takes back use by itself; beside it this finds nothing to do.
// Upstream: pkg/controller/resourcequota (v1.36)

use std::sync::Arc;
use std::time::Duration;

use orlop_api::quantity::{Format, Quantity};
use orlop_api::resources::ResourceList;
use orlop_api::{KindDef, quota};
use orlop_base::Clock;
use orlop_client::{Error, ListQuery, path};
use serde_json::{Value, json};

use crate::discovery::{self, Resource};
use crate::objects::{ConfigMap, Kind, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, WorkQueue, Writer, status_patch};

pub(crate) const DEF: Def = Def {
    name: "resourcequota-controller",
    account: "resourcequota-controller",
    on_by_default: true,
    start,
};

/// What goes seldom goes alone.
const AFTER_LOSS: Duration = Duration::from_secs(1);

struct Controller {
    quotas: Cache<ResourceQuota>,
    every: Duration,
    clock: Clock,
}

fn start(setup: &Setup) {
    let queue = setup.queue("resourcequota_primary");
    let quotas = setup.cache::<ResourceQuota>();
    let wake = queue.clone();
    quotas.on_change(move |old, new| {
        if let Some(quota) = new.filter(|quota| old.is_none() || quota.status["hard"] != quota.spec["hard"]) {
            wake.add(Key::from_object(&**quota));
        }
    });
    // Everything else is looked at now and then only.
    wake_for_losses::<Pod>(setup, &queue, &quotas, |pod| !pod.is_terminal());
    wake_for_losses::<Service>(setup, &queue, &quotas, |_| true);
    wake_for_losses::<PersistentVolumeClaim>(setup, &queue, &quotas, |_| true);
    wake_for_losses::<ConfigMap>(setup, &queue, &quotas, |_| true);
    wake_for_losses::<Secret>(setup, &queue, &quotas, |_| true);
    let controller = Controller {
        quotas,
        every: setup.settings.resource_quota_sync_period,
        clock: setup.clock.clone(),
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// When something stops counting, the quotas of its namespace have room again.
fn wake_for_losses<T: Kind>(setup: &Setup, queue: &WorkQueue, quotas: &Cache<ResourceQuota>, counts: fn(&T) -> bool) {
    let (wake, known) = (queue.clone(), quotas.clone());
    setup.cache::<T>().on_change(move |old, new| {
        let counts = |object: Option<&Arc<T>>| object.is_some_and(|object| counts(object));
        if let Some(lost) = old.filter(|_| counts(old) && !counts(new)) {
            for quota in known.list_in(&lost.meta().namespace) {
                wake.add_after(Key::from_object(&*quota), AFTER_LOSS);
            }
        }
    });
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(seen) = self.quotas.at(key).filter(|quota| !quota.metadata.is_deleted()) else {
            return Ok(Next::Done);
        };
        let quota = json!({"metadata": seen.metadata, "spec": seen.spec});
        let mut used = quota::begin(&quota);
        for kind in quota::kinds_to_count(&used) {
            self.count(writer, &quota, kind, &mut used).await?;
        }
        count_custom(writer, &seen.metadata.namespace, &mut used).await?;
        let mut status = quota::status(&quota, &used);
        if status != seen.status {
            forget(&seen.status, &mut status);
            let patch = status_patch(&seen.metadata, &status);
            writer.patch_status::<ResourceQuota>(&seen.metadata, &patch).await?;
        }
        Ok(Next::After(self.every))
    }
}

impl Controller {
    async fn count(
        &self,
        writer: &Writer,
        quota: &Value,
        kind: &KindDef,
        used: &mut ResourceList,
    ) -> orlop_client::Result<()> {
        let version = match kind.group {
            "" => kind.version.to_string(),
            group => format!("{group}/{}", kind.version),
        };
        let namespace = quota["metadata"]["namespace"].as_str();
        let at = path::collection(&version, namespace, kind.plural);
        let objects = match writer.api().list::<Value>(&at, &ListQuery::default()).await {
            Ok(list) => list.items,
            // A server that does not have the kind has none of it.
            Err(Error::NotFound(_)) => vec![],
            Err(error) => return Err(error),
        };
        let now = self.clock.now();
        objects
            .iter()
            .for_each(|object| quota::count_one(used, quota, kind, object, now));
        Ok(())
    }
}

/// Objects of custom kinds count for one each, under `count/PLURAL.GROUP`.
async fn count_custom(writer: &Writer, namespace: &str, used: &mut ResourceList) -> orlop_client::Result<()> {
    let names: Vec<String> = used.keys().filter(|name| is_custom(name)).cloned().collect();
    if names.is_empty() {
        return Ok(());
    }
    let discovered = discovery::discover(writer.api()).await?;
    for name in names {
        let of_name = |r: &&Resource| name == format!("count/{}.{}", r.name, r.group());
        let Some(resource) = discovered.preferred().find(of_name) else {
            continue;
        };
        let at = path::collection(&resource.api_version, Some(namespace), &resource.name);
        let there = match writer.api().list::<Value>(&at, &ListQuery::default()).await {
            Ok(list) => list.items.len(),
            Err(Error::NotFound(_)) => 0,
            Err(error) => return Err(error),
        };
        let there = i64::try_from(there).unwrap_or(i64::MAX);
        used.insert(name, Quantity::from_i64(there, Format::DecimalSI));
    }
    Ok(())
}

fn is_custom(name: &str) -> bool {
    let Some(resource) = name.strip_prefix("count/").filter(|r| r.contains('.')) else {
        return false;
    };
    !orlop_api::kinds::all().any(|kind| resource == format!("{}.{}", kind.plural, kind.group))
}

/// A merge patch leaves what it does not name: what is limited no more has to be taken out.
fn forget(old: &Value, new: &mut Value) {
    for part in ["hard", "used"] {
        for name in old[part].as_object().into_iter().flat_map(|members| members.keys()) {
            if new[part].get(name).is_none() {
                new[part][name] = Value::Null;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    fn pod(name: &str, phase: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
               "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
               "status": {"phase": phase}})
    }

    #[tokio::test(start_paused = true)]
    async fn the_use_follows_what_there_is() {
        let cluster = Cluster::new();
        for (name, phase) in [("a", "Running"), ("b", "Pending"), ("c", "Succeeded")] {
            cluster.put(pod(name, phase));
        }
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "ns"},
                           "spec": {"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}}),
        );
        cluster.put(
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ns"},
                           "spec": {"hard": {"pods": "9", "requests.cpu": "4", "services.nodeports": "3",
                                             "count/deployments.apps": "1"}}}),
        );
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        let used = || cluster.value::<ResourceQuota>("ns", "q").unwrap()["status"]["used"].clone();
        let all = json!({"pods": "2", "requests.cpu": "1", "services.nodeports": "2", "count/deployments.apps": "0"});
        assert_eq!(used(), all);
        assert_eq!(cluster.writes().len(), 1);
        cluster.edit_status::<Pod>("ns", "a", |pod| pod["status"]["phase"] = json!("Failed"));
        cluster.remove::<Service>("ns", "s");
        cluster.advance(Duration::from_secs(5)).await;
        assert_eq!(
            (&used()["pods"], &used()["services.nodeports"]),
            (&json!("1"), &json!("0"))
        );
        assert_eq!(cluster.writes().len(), 2);
        cluster.edit::<ResourceQuota>("ns", "q", |quota| quota["spec"]["hard"] = json!({"pods": "5"}));
        cluster.wait_until_idle().await;
        assert_eq!(
            cluster.value::<ResourceQuota>("ns", "q").unwrap()["status"],
            json!({"hard": {"pods": "5"}, "used": {"pods": "1"}})
        );
        // No event announces this one.
        cluster.put(pod("d", "Running"));
        cluster.advance(Duration::from_secs(310)).await;
        assert_eq!(used(), json!({"pods": "2"}));
        assert_eq!(cluster.writes().len(), 4);
    }
}
