//! Pods that nobody will end any more: those of nodes that are gone or out of service, those that were deleted before they
//! had a node, and those that ended long ago, when there are too many of them.
//!
//! Nothing here looks around regularly: nodes that go, pods that name a node which is not there, and pods that end put
//! themselves into the queues.
// Upstream: pkg/controller/podgc (v1.36)

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use orlop_base::Clock;
use orlop_client::{DeleteOptions, Error, path};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::objects::{Kind, Node, Pod};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, Writer, precondition};

pub(crate) const DEF: Def = Def {
    name: "pod-garbage-collector-controller",
    account: "pod-garbage-collector",
    on_by_default: true,
    start,
};

/// How long a node may be missing from the cache before the API server is asked whether it is gone.
const QUARANTINE: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Pods deleted in one reconcile at most.
const BURST: usize = 500;
const WORKERS: usize = 4;

fn start(setup: &Setup) {
    let (nodes, pods) = (setup.cache::<Node>(), setup.cache::<Pod>());
    let homeless = setup.queue("orphaned_pods_nodes");
    let unplaced = setup.queue("unscheduled_terminating_pods");
    let ended = setup.queue("terminated_pods");
    let threshold = setup.settings.terminated_pod_gc_threshold;
    let lying = Arc::new(Mutex::new(FxHashSet::default()));

    let (wake, known) = (homeless.clone(), pods.clone());
    nodes.on_change(move |old, new| {
        let Some(node) = new.or(old) else { return };
        let matters = new.is_none_or(|node| is_out_of_service(node));
        if matters && !known.indexed(&node.metadata.name).is_empty() {
            wake.add(Key::from_object(&**node));
        }
    });
    let (wake_node, wake_pod, wake_ended, known, ends) = (
        homeless.clone(),
        unplaced.clone(),
        ended.clone(),
        nodes.clone(),
        lying.clone(),
    );
    pods.on_change(move |old, new| {
        let Some(pod) = new.or(old) else { return };
        let ended = |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| pod.is_terminal());
        if threshold > 0 && (ended(old) || ended(new)) && note_end(&ends, pod, ended(new)) > threshold {
            wake_ended.add(Key::default());
        }
        let Some(pod) = new else { return };
        match pod.spec.node_name.as_str() {
            "" if pod.metadata.is_deleted() => wake_pod.add(Key::from_object(&**pod)),
            "" => {}
            name => {
                let placed = old.is_none_or(|old| old.spec.node_name != name);
                let deleted = pod.metadata.is_deleted() && old.is_none_or(|old| !old.metadata.is_deleted());
                if (placed || deleted) && known.get("", name).is_none_or(|node| is_out_of_service(&node)) {
                    wake_node.add(Key::new("", name));
                }
            }
        }
    });

    let clock = setup.clock.clone();
    let (of_nodes, of_pods) = (pods.clone(), pods.clone());
    let missing = Mutex::default();
    setup.run(
        homeless,
        WORKERS,
        Homeless {
            nodes,
            pods: of_nodes,
            clock,
            missing,
        },
    );
    setup.run(unplaced, WORKERS, Unplaced { pods: of_pods });
    setup.run(ended, 1, Ended { pods, lying, threshold });
}

fn is_out_of_service(node: &Node) -> bool {
    let ready = node.condition("Ready").is_some_and(|ready| ready.is_true());
    !ready && node.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Keeps the set of ended pods that are still there; says how many there are after one has ended, else 0.
fn note_end(lying: &Mutex<FxHashSet<Key>>, pod: &Pod, has_ended: bool) -> usize {
    let key = Key::from_object(pod);
    let mut lying = lying.lock();
    if has_ended {
        lying.insert(key);
        return lying.len();
    }
    lying.remove(&key);
    0
}

/// Pods of nodes that are gone, or out of service. By node.
struct Homeless {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    clock: Clock,
    /// Nodes that pods name and that are not there: since when.
    missing: Mutex<FxHashMap<String, Instant>>,
}

impl Reconcile for Homeless {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let pods = self.pods.indexed(&key.name);
        let node = self.nodes.at(key);
        if node.is_some() || pods.is_empty() {
            self.missing.lock().remove(&key.name);
        }
        match node {
            Some(node) if is_out_of_service(&node) => {
                let deleted = pods.iter().filter(|pod| pod.metadata.is_deleted());
                end_all(writer, deleted, |pod| fail(pod, None)).await
            }
            Some(_) => Ok(Next::Done),
            None if pods.is_empty() => Ok(Next::Done),
            None => {
                let now = Instant::now();
                let since = *self.missing.lock().entry(key.name.clone()).or_insert(now);
                if let Some(left) = QUARANTINE
                    .checked_sub(now.duration_since(since))
                    .filter(|left| !left.is_zero())
                {
                    return Ok(Next::After(left));
                }
                let at = path::object("v1", None, Node::RESOURCE, &key.name);
                match writer.api().get::<IgnoredAny>(&at).await {
                    // The cache will hear of it.
                    Ok(_) => return Ok(Next::After(QUARANTINE)),
                    Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                let now = self.clock.now();
                end_all(writer, pods.iter(), |pod| fail(pod, Some(now))).await?;
                self.missing.lock().remove(&key.name);
                Ok(Next::Done)
            }
        }
    }
}

/// Deleted pods that never had a node.
struct Unplaced {
    pods: Cache<Pod>,
}

impl Reconcile for Unplaced {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let pod = self.pods.at(key);
        let pod = pod.filter(|pod| pod.metadata.is_deleted() && pod.spec.node_name.is_empty());
        end_all(writer, pod.iter(), |pod| fail(pod, None)).await
    }
}

/// Ended pods beyond the threshold. There is one key only.
struct Ended {
    pods: Cache<Pod>,
    lying: Arc<Mutex<FxHashSet<Key>>>,
    threshold: usize,
}

impl Reconcile for Ended {
    async fn reconcile(&self, _: &Key, writer: &Writer) -> ReconcileResult {
        let keys: Vec<Key> = self.lying.lock().iter().cloned().collect();
        let pods = keys.iter().filter_map(|key| self.pods.at(key)).collect();
        let too_many = plan_too_many(pods, self.threshold);
        let some = &too_many[..too_many.len().min(BURST)];
        end_all(writer, some.iter(), |_| None).await?;
        Ok(match too_many.len() > BURST {
            true => Next::After(Duration::from_millis(1)),
            false => Next::Done,
        })
    }
}

/// The ended pods that are too many: evicted ones first, then the oldest.
fn plan_too_many(mut ended: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    let count = ended.len().saturating_sub(threshold);
    let is_evicted = |pod: &Pod| pod.status.phase == "Failed" && pod.status.reason == "Evicted";
    let order = |pod: &Arc<Pod>| {
        let meta = &pod.metadata;
        (
            Reverse(is_evicted(pod)),
            meta.creation_timestamp,
            meta.name.clone(),
            meta.namespace.clone(),
        )
    };
    ended.sort_by_cached_key(order);
    ended.truncate(count);
    // What is on its way out already only waits for its finalizers.
    ended.retain(|pod| !pod.metadata.is_deleted());
    ended
}

/// The change of status that makes it known that the pod has failed; none if it has ended already.
/// `orphaned`: its node is gone, as seen now.
fn fail(pod: &Pod, orphaned: Option<Timestamp>) -> Option<Value> {
    if pod.is_terminal() {
        return None;
    }
    let mut patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Failed"}});
    if pod.metadata.generation != 0 {
        patch["status"]["observedGeneration"] = json!(pod.metadata.generation);
    }
    let target = orphaned.and_then(|now| pod.disruption_target("DeletionByPodGC", "PodGC: node no longer exists", now));
    if let Some(conditions) = target {
        patch["metadata"] = precondition(&pod.metadata);
        patch["status"]["conditions"] = json!(conditions);
    }
    Some(patch)
}

/// Deletes pods at once, after saying that they have failed.
async fn end_all<'a>(
    writer: &Writer,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
    fail: impl Fn(&Pod) -> Option<Value>,
) -> ReconcileResult {
    // Terminated and deleted without a grace period: finalizers are all that is left, and theirs is the next move.
    let over = |pod: &Pod| {
        pod.is_terminal() && pod.metadata.is_deleted() && pod.metadata.deletion_grace_period_seconds == Some(0)
    };
    let ended = pods.filter(|pod| !over(pod)).map(|pod| {
        let patch = fail(pod);
        async move {
            if let Some(patch) = patch {
                writer.patch_status::<Pod>(&pod.metadata, &patch).await?;
            }
            let at_once = DeleteOptions {
                grace_period_seconds: Some(0),
                ..DeleteOptions::default()
            };
            writer.delete_with::<Pod>(&pod.metadata, at_once).await
        }
    });
    for ended in join_all(ended).await {
        match ended {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(ReconcileError::Api(error)),
        }
    }
    Ok(Next::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn evicted_ones_go_first_then_the_oldest() {
        let ended = |name: &str, reason: &str, created: &str| {
            pod(json!({"metadata": {"name": name, "creationTimestamp": created},
                       "status": {"phase": "Failed", "reason": reason}}))
        };
        let (old, young) = ("2026-01-01T08:00:00Z", "2026-01-01T09:00:00Z");
        let going = pod(
            json!({"metadata": {"name": "going", "creationTimestamp": old, "deletionTimestamp": young},
                               "status": {"phase": "Succeeded"}}),
        );
        // In the order in which they must go.
        let pods = [
            ended("evicted-old", "Evicted", old),
            ended("evicted-young", "Evicted", young),
            ended("a", "", old),
            ended("b", "Error", old),
            going,
            ended("0", "", young),
        ];
        let cases: [(usize, &[&str]); 4] = [
            (9, &[]),
            (6, &[]),
            (3, &["evicted-old", "evicted-young", "a"]),
            (0, &["evicted-old", "evicted-young", "a", "b", "0"]),
        ];
        for (threshold, expected) in cases {
            let mut shuffled = pods.to_vec();
            shuffled.rotate_left(2);
            let too_many = plan_too_many(shuffled, threshold);
            let names: Vec<&str> = too_many.iter().map(|pod| pod.metadata.name.as_str()).collect();
            assert_eq!(names, expected, "{threshold}");
        }
    }

    #[test]
    fn what_is_ended_by_force_has_failed() {
        let now: Timestamp = "2026-01-01T12:00:00.7Z".parse().unwrap();
        let meta = json!({"name": "a", "uid": "u", "resourceVersion": "7", "generation": 3});
        let running = pod(json!({"metadata": meta, "status": {"phase": "Running"}}));
        let plain = json!({"metadata": {"uid": "u"}, "status": {"phase": "Failed", "observedGeneration": 3}});
        assert_eq!(fail(&running, None), Some(plain));
        let target = json!({"type": "DisruptionTarget", "status": "True", "observedGeneration": 3,
                            "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
                            "lastTransitionTime": "2026-01-01T12:00:00Z"});
        let orphaned = json!({"metadata": {"uid": "u", "resourceVersion": "7"},
                              "status": {"phase": "Failed", "observedGeneration": 3, "conditions": [target]}});
        assert_eq!(fail(&running, Some(now)), Some(orphaned));
        for phase in ["Succeeded", "Failed"] {
            let ended = pod(json!({"metadata": meta, "status": {"phase": phase}}));
            assert_eq!(fail(&ended, Some(now)), None);
        }
    }

    #[test]
    fn only_a_node_that_is_down_is_out_of_service() {
        let node = |ready: &str, taint: &str| -> Node {
            serde_json::from_value(json!({"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
                                          "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        assert!(is_out_of_service(&node("False", OUT_OF_SERVICE)));
        assert!(is_out_of_service(&node("Unknown", OUT_OF_SERVICE)));
        assert!(!is_out_of_service(&node("True", OUT_OF_SERVICE)));
        assert!(!is_out_of_service(&node("Unknown", "node.kubernetes.io/unreachable")));
    }
}
