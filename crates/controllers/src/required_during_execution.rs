//! Pods leave nodes that they may no longer be on: `requiredDuringSchedulingRequiredDuringExecution` of their node affinity
//! holds as long as they run, not only when they are placed.
//!
//! Kubernetes has planned this type since its first node affinity and never built it; docs/required-during-execution.md
//! says what it means here. Pods are evicted, not deleted, so that disruption budgets have their say, and one after another,
//! so that a slip in labelling nodes does not empty a cluster at once.

use std::time::Duration;

use orlop_client::{Error, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::objects::{Kind, Node, Pod};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer};
use orlop_api::objects::NodeSelector;

pub(crate) const DEF: Def = Def {
    name: "node-affinity-eviction-controller",
    account: "node-affinity-eviction-controller",
    on_by_default: true,
    start,
};

const FIELD: &str = "requiredDuringSchedulingRequiredDuringExecution";
/// A pod that only its node's kubelet can end; evicting what the API shows of it changes nothing.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// After a budget has refused an eviction. (`kubectl drain` tries as often.)
const REFUSED: Duration = Duration::from_secs(5);
const WORKERS: usize = 4;

struct Controller {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    recorder: Recorder,
    limiter: Mutex<EvictionLimiter>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("node_affinity_eviction");
    let (nodes, pods) = (setup.cache::<Node>(), setup.cache::<Pod>());
    let (wake, known) = (queue.clone(), pods.clone());
    nodes.on_change(move |old, new| {
        let Some(node) = new else { return };
        if old.is_none_or(|old| old.metadata.labels != node.metadata.labels) {
            let pods = known.indexed(&node.metadata.name);
            let picky = pods.iter().filter(|pod| given(pod).is_some());
            picky.for_each(|pod| wake.add(Key::from_object(&**pod)));
        }
    });
    let wake = queue.clone();
    pods.on_change(move |old, new| {
        let Some(pod) = new else { return };
        let placed = old.is_none_or(|old| old.spec.node_name != pod.spec.node_name);
        if placed && !pod.spec.node_name.is_empty() && given(pod).is_some() {
            wake.add(Key::from_object(&**pod));
        }
    });
    let controller = Controller {
        nodes,
        pods,
        recorder: setup.recorder.clone(),
        limiter: Mutex::new(EvictionLimiter::new(setup.settings.node_affinity_eviction_rate)),
    };
    setup.run(queue, WORKERS, controller);
}

/// What the pod says of the nodes it may be on, if it says anything.
fn given(pod: &Pod) -> Option<&Value> {
    let affinity = pod.spec.affinity.as_ref()?;
    affinity.node_affinity.get(FIELD).filter(|selector| !selector.is_null())
}

/// Whether the pod must not be on the node any more.
fn must_leave(pod: &Pod, node: &Node) -> bool {
    if !pod.is_active() || pod.metadata.annotation(MIRROR).is_some() {
        return false;
    }
    let selector = given(pod).and_then(|selector| NodeSelector::deserialize(selector).ok());
    selector.is_some_and(|selector| !selector.matches(&node.metadata.name, &node.metadata.labels))
}

/// Evicts one key after another, at a rate.
struct EvictionLimiter {
    gap: Option<Duration>,
    next: Option<Instant>,
    held: FxHashMap<Key, Instant>,
}

impl EvictionLimiter {
    /// `rate`: a second; zero or less for no bound.
    fn new(rate: f64) -> EvictionLimiter {
        let gap = (rate > 0.0).then(|| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX));
        EvictionLimiter {
            gap,
            next: None,
            held: FxHashMap::default(),
        }
    }

    /// How long this key has to wait; zero is now, and ends its wait.
    fn wait(&mut self, key: &Key, now: Instant) -> Duration {
        let Some(gap) = self.gap else { return Duration::ZERO };
        let at = *self.held.entry(key.clone()).or_insert_with(|| {
            let at = self.next.map_or(now, |next| next.max(now));
            self.next = Some(at.checked_add(gap).unwrap_or(at));
            at
        });
        let wait = at.saturating_duration_since(now);
        if wait.is_zero() {
            self.held.remove(key);
        }
        wait
    }

    fn forget(&mut self, key: &Key) {
        self.held.remove(key);
    }
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let pod = self.pods.at(key);
        let leaving = pod.and_then(|pod| {
            let node = self.nodes.get("", &pod.spec.node_name)?;
            must_leave(&pod, &node).then_some((pod, node))
        });
        let Some((pod, node)) = leaving else {
            self.limiter.lock().forget(key);
            return Ok(Next::Done);
        };
        let wait = self.limiter.lock().wait(key, Instant::now());
        if !wait.is_zero() {
            return Ok(Next::After(wait));
        }
        let why = format!("The labels of node {} no longer match {FIELD}", node.metadata.name);
        let say = |note: String| self.recorder.warning(&*pod, "NodeAffinityViolated", note);
        match writer
            .api()
            .create::<IgnoredAny>(&eviction_path(key), &eviction(&pod))
            .await
        {
            Ok(_) => {
                say(format!("{why}: evicting the pod"));
                Ok(Next::Done)
            }
            Err(Error::NotFound(_)) => Ok(Next::Done),
            Err(Error::TooManyRequests { retry_after, status }) => {
                say(format!("{why}, but: {status}"));
                Ok(Next::After(retry_after.max(REFUSED)))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn eviction_path(key: &Key) -> String {
    path::subresource("v1", Some(&key.namespace), Pod::RESOURCE, &key.name, "eviction")
}

fn eviction(pod: &Pod) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::testing::{Cluster, Refusal};

    fn requirement(text: &str) -> Value {
        let mut words = text.split_whitespace();
        let (key, operator) = (words.next().unwrap(), words.next().unwrap());
        json!({"key": key, "operator": operator, "values": words.collect::<Vec<_>>()})
    }

    fn node(labels: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap()
    }

    fn pod(terms: Value) -> Pod {
        let selector = json!({"nodeSelectorTerms": terms});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"phase": "Running"},
            "spec": {"nodeName": "n", "affinity": {"nodeAffinity": {FIELD: selector}}}}))
        .unwrap()
    }

    #[test]
    fn a_pod_leaves_when_no_term_matches() {
        // Terms of labels and of fields, the node's labels, whether the pod must leave.
        let zone = || json!({"zone": "a", "size": "5"});
        let cases = [
            (vec!["zone In a b"], zone(), false),
            (vec!["zone In b c"], zone(), true),
            (vec!["zone In b", "zone In a"], zone(), false),
            (vec!["zone In a"], json!({}), true),
            (vec!["zone NotIn a"], zone(), true),
            (vec!["zone NotIn a"], json!({}), false),
            (vec!["zone Exists"], zone(), false),
            (vec!["zone DoesNotExist"], zone(), true),
            (vec!["size Gt 4"], zone(), false),
            (vec!["size Gt 5"], zone(), true),
            (vec!["size Lt 6"], zone(), false),
            (vec!["zone Lt 6"], zone(), true),
            (vec!["zone Like a"], zone(), true),
        ];
        for (terms, labels, expected) in cases {
            let terms: Vec<Value> = terms
                .iter()
                .map(|t| json!({"matchExpressions": [requirement(t)]}))
                .collect();
            assert_eq!(must_leave(&pod(json!(terms)), &node(labels)), expected, "{terms:?}");
        }
        let by_name = |name: &str| json!([{"matchFields": [requirement(&format!("metadata.name In {name}"))]}]);
        assert!(!must_leave(&pod(by_name("n")), &node(json!({}))));
        assert!(must_leave(&pod(by_name("m")), &node(json!({}))));
        assert!(
            must_leave(&pod(json!([{}])), &node(zone())),
            "an empty term matches nothing"
        );
    }

    #[test]
    fn only_pods_that_ask_for_it_and_run_leave() {
        let wrong = || pod(json!([{"matchExpressions": [requirement("zone Exists")]}]));
        assert!(must_leave(&wrong(), &node(json!({}))));
        let mut mirror = wrong();
        mirror
            .metadata
            .annotations
            .insert(MIRROR.to_string(), "hash".to_string());
        let mut ended = wrong();
        ended.status.phase = "Succeeded".to_string();
        let mut deleted = wrong();
        deleted.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
        let mut free = wrong();
        free.spec.affinity = None;
        for pod in [mirror, ended, deleted, free] {
            assert!(!must_leave(&pod, &node(json!({}))), "{pod:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn evictions_keep_their_distance() {
        let mut limiter = EvictionLimiter::new(10.0);
        let key = |n: u64| Key::new("ns", format!("p{n}"));
        let (start, gap) = (Instant::now(), Duration::from_millis(100));
        for n in 0..5 {
            assert_eq!(limiter.wait(&key(n), start), gap * u32::try_from(n).unwrap());
        }
        assert_eq!(
            limiter.wait(&key(3), start + gap),
            gap * 2,
            "a place once given is kept"
        );
        assert_eq!(limiter.wait(&key(3), start + gap * 3), Duration::ZERO);
        limiter.forget(&key(4));
        assert_eq!(limiter.wait(&key(9), start + gap * 100), Duration::ZERO);
        assert_eq!(limiter.wait(&key(10), start + gap * 100), gap);
        assert_eq!(EvictionLimiter::new(0.0).wait(&key(1), start), Duration::ZERO);
    }

    fn put(cluster: &Cluster, name: &str, zone: Option<&str>) {
        let terms = zone.map(|zone| json!([{"matchExpressions": [requirement(&format!("zone In {zone}"))]}]));
        let affinity = json!({"nodeAffinity": {FIELD: terms.map(|terms| json!({"nodeSelectorTerms": terms}))}});
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"nodeName": "n", "affinity": affinity}, "status": {"phase": "Running"}}),
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_relabelled_node_loses_its_pods_as_budgets_allow() {
        let cluster = Cluster::new();
        let allowed = Arc::new(AtomicBool::new(false));
        let may = allowed.clone();
        cluster.hook(move |call, _| {
            if !call.path.ends_with("/eviction") || may.load(Ordering::SeqCst) {
                return None;
            }
            assert!(call.body["deleteOptions"]["preconditions"]["uid"].is_string());
            let text = "Cannot evict pod as it would violate the pod's disruption budget.";
            Some(Err(Refusal::new(429, "TooManyRequests", text)))
        });
        cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}}));
        for n in 0..12 {
            put(&cluster, &format!("picky-{n:02}"), Some("a"));
        }
        put(&cluster, "free", None);
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        assert_eq!(cluster.list::<Pod>("ns").len(), 13);
        cluster.edit::<Node>("", "n", |node| node["metadata"]["labels"]["zone"] = json!("b"));
        cluster.wait_until_idle().await;
        assert_eq!(cluster.list::<Pod>("ns").len(), 13, "the budget has its say");
        let said = "Warning NodeAffinityViolated The labels of node n no longer match \
            requiredDuringSchedulingRequiredDuringExecution";
        assert!(
            cluster
                .events()
                .iter()
                .any(|e| e.starts_with(said) && e.contains("disruption budget"))
        );
        allowed.store(true, Ordering::SeqCst);
        let before = Instant::now();
        while cluster.list::<Pod>("ns").len() > 1 {
            cluster.advance(Duration::from_millis(100)).await;
            assert!(before.elapsed() < Duration::from_secs(60), "{:?}", cluster.writes());
        }
        assert_eq!(cluster.list::<Pod>("ns")[0].metadata.name, "free");
        let evicted = |e: &&String| **e == format!("{said}: evicting the pod");
        assert!(cluster.events().iter().any(|e| evicted(&e)), "{:?}", cluster.events());
        // One that comes to such a node by hand leaves it again.
        put(&cluster, "misplaced", Some("a"));
        cluster.wait_until_idle().await;
        assert_eq!(cluster.list::<Pod>("ns").len(), 1);
    }
}
