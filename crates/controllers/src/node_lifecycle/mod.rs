//! Nodes that fall silent, and what follows: conditions, taints, pods that no longer count as ready.
//!
//! Signs of life only move a time (`signals`): a renewed lease costs no reconcile. Each node has a timer for when it will have
//! been silent for too long, and its reconcile then sees whether that is so. Taints that make pods leave are given out at a rate
//! (`zones`); all other taints follow the conditions at once (`plan`).
// Upstream: pkg/controller/nodelifecycle (v1.36)

mod plan;
#[cfg(test)]
mod reconcile_tests;
mod signals;
#[cfg(test)]
mod tests;
mod zones;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use orlop_base::Clock;
use orlop_client::{Error, EventType, ObjectReference};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::plan::{Grace, Plan};
use self::signals::Signals;
use self::zones::{Rates, TaintPermission, ZoneChange, Zones};
use crate::objects::Taint;
use crate::objects::{Lease, Node, Pod};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, WorkQueue, Writer, precondition, status_patch,
};

pub(crate) const DEF: Def = Def {
    name: "node-lifecycle-controller",
    account: "node-controller",
    on_by_default: true,
    start,
};

const LEASES: &str = "kube-node-lease";
const WORKERS: usize = 8;

struct Controller {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    watched: Arc<Watched>,
    queue: WorkQueue,
    grace: Grace,
    recorder: Recorder,
    clock: Clock,
    /// Nodes that were spoken of, by name, with their uids.
    known: Mutex<FxHashMap<String, String>>,
}

/// What is remembered of nodes besides their objects. The locks are never held together.
struct Watched {
    signals: Mutex<Signals>,
    zones: Mutex<Zones>,
    /// It is being waited whether no node stays ready.
    doubting: AtomicBool,
}

/// Nodes that start, and a cluster that does, are not ready for a moment: nobody needs to be warned of that.
const ALL_DOWN_WARNING: Duration = Duration::from_secs(20);

fn start(setup: &Setup) {
    let queue = setup.queue("node_lifecycle_controller");
    let (nodes, pods, leases) = (setup.cache::<Node>(), setup.cache::<Pod>(), setup.cache::<Lease>());
    let settings = &setup.settings;
    let watched = Arc::new(Watched {
        signals: Mutex::default(),
        zones: Mutex::new(Zones::new(Rates {
            normal: settings.node_eviction_rate,
            reduced: settings.secondary_node_eviction_rate,
            large: settings.large_cluster_size_threshold,
            unhealthy: settings.unhealthy_zone_threshold,
        })),
        doubting: AtomicBool::new(false),
    });
    let grace = Grace {
        running: settings.node_monitor_grace_period,
        starting: settings.node_startup_grace_period,
    };
    let watching = watched.clone();
    leases.on_change(move |old, new| match (old, new) {
        (_, Some(lease)) if lease.metadata.namespace == LEASES => {
            watching.signals.lock().observe_lease(lease, Instant::now());
        }
        (Some(lease), None) if lease.metadata.namespace == LEASES => {
            watching.signals.lock().forget_lease(&lease.metadata.name);
        }
        _ => {}
    });
    let (watching, wake, known, clock) = (watched.clone(), queue.clone(), nodes.clone(), setup.clock.clone());
    nodes.on_change(move |old, new| {
        let Some(node) = new.or(old) else { return };
        let change = watching.observe(node, new.is_some(), &clock);
        if matches!(change, ZoneChange::AllDown) && !watching.doubting.swap(true, Ordering::Relaxed) {
            tokio::spawn(warn_if_all_stay_down(watching.clone()));
        }
        wake.add(Key::from_object(&**node));
        follow(change, &wake, &known);
    });
    let (wake, known) = (queue.clone(), nodes.clone());
    pods.on_change(move |old, new| {
        let Some(pod) = new else { return };
        let node = &pod.spec.node_name;
        // A pod that came to a node after the node fell silent.
        if !node.is_empty()
            && old.is_none_or(|old| old.spec.node_name != *node)
            && known.get("", node).is_some_and(|node| is_unknown(&node))
        {
            wake.add(Key::new("", node));
        }
    });
    let controller = Controller {
        nodes,
        pods,
        watched,
        queue: queue.clone(),
        grace,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        known: Mutex::default(),
    };
    setup.run(queue, WORKERS, controller);
}

fn is_unknown(node: &Node) -> bool {
    node.condition("Ready").is_some_and(|ready| ready.status == "Unknown")
}

/// Queues the keys concerned by a change of the zones.
fn follow(change: ZoneChange, queue: &WorkQueue, nodes: &Cache<Node>) {
    match change {
        ZoneChange::Nothing => {}
        ZoneChange::Wake(names) => names.into_iter().for_each(|name| queue.add(Key::new("", name))),
        ZoneChange::AllDown | ZoneChange::SomeUp => nodes
            .list()
            .iter()
            .for_each(|node| queue.add(Key::from_object(&**node))),
    }
}

async fn warn_if_all_stay_down(watched: Arc<Watched>) {
    tokio::time::sleep(ALL_DOWN_WARNING).await;
    watched.doubting.store(false, Ordering::Relaxed);
    if watched.zones.lock().all_down() {
        tracing::warn!("all nodes are NotReady; evictions disabled");
    }
}

impl Watched {
    fn observe(&self, node: &Node, is_there: bool, clock: &Clock) -> ZoneChange {
        let name = &node.metadata.name;
        if !is_there {
            self.signals.lock().forget_node(name);
            return self.zones.lock().forget(name);
        }
        self.signals.lock().observe_node(node, Instant::now(), clock.now());
        let ready = node.condition("Ready").is_some_and(|ready| ready.is_true());
        let change = self
            .zones
            .lock()
            .observe(name, &plan::zone(node), ready, plan::counts(node));
        match change {
            ZoneChange::AllDown => tracing::debug!("all nodes are NotReady"),
            ZoneChange::SomeUp => {
                tracing::debug!("some nodes are Ready again");
                // It was not they who were silent, but we who were deaf.
                self.signals.lock().pardon_all(Instant::now());
            }
            _ => {}
        }
        change
    }
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(node) = self.nodes.at(key) else {
            self.removed(&key.name);
            return Ok(Next::Done);
        };
        self.registered(&node);
        let silent = self.watched.signals.lock().silent_for(&key.name, Instant::now());
        let all_down = self.watched.zones.lock().all_down();
        let now = self.clock.now();
        let plan = plan::plan(&node, silent.unwrap_or_default(), all_down, self.grace, now);
        if let Some(conditions) = &plan.conditions {
            let patch = status_patch(&node.metadata, &json!({"conditions": conditions}));
            writer.patch_status::<Node>(&node.metadata, &patch).await?;
            if node.condition("Ready").is_some_and(|ready| ready.is_true()) {
                self.record_event(&node.metadata.name, &node.metadata.uid, "NodeNotReady", |name| {
                    format!("Node {name} status is now: NodeNotReady")
                });
            }
            // What was written brings the node here again.
            return Ok(Next::Done);
        }
        let mut next = plan.look_after.map_or(Next::Done, Next::After);
        next = next.or(self.put_right(writer, &node, &plan).await?);
        if plan.pods_unready {
            self.unready_pods(writer, &node).await?;
        }
        Ok(next)
    }
}

impl Controller {
    /// Taints and labels.
    async fn put_right(&self, writer: &Writer, node: &Node, plan: &Plan) -> Result<Next, Error> {
        let name = &node.metadata.name;
        let mut next = Next::Done;
        let mut taints = plan.taints.clone();
        let mut granted = false;
        let first = match plan.evict {
            None => self.watched.zones.lock().leave(name),
            Some(key) => match self.watched.zones.lock().ask(name, Instant::now()) {
                TaintPermission::Wait => None,
                TaintPermission::After(wait) => {
                    next = Next::After(wait);
                    None
                }
                TaintPermission::Go { next } => {
                    granted = true;
                    let others = taints.take().unwrap_or_else(|| node.spec.taints.clone());
                    taints = Some(plan::with_eviction(others, key, self.clock.now()));
                    next
                }
            },
        };
        if let Some(first) = first {
            self.queue.add(Key::new("", first));
        }
        if taints.is_none() && plan.labels.is_empty() {
            return Ok(next);
        }
        let written = writer
            .patch::<Node>(&node.metadata, &patch(node, taints.as_deref(), plan))
            .await;
        if written.is_err() && granted {
            self.watched.zones.lock().give_back(name);
        }
        written.map(|_| next)
    }

    /// Nobody hears of these pods: they can't be counted on.
    async fn unready_pods(&self, writer: &Writer, node: &Node) -> Result<(), Error> {
        let now = self.clock.now();
        let pods = self.pods.indexed(&node.metadata.name);
        let marked = pods.iter().filter_map(|pod| {
            let conditions = plan::unready(pod, now)?;
            let patch = status_patch(&pod.metadata, &json!({"conditions": conditions}));
            Some(async move {
                match writer.patch_status::<Pod>(&pod.metadata, &patch).await {
                    Ok(_) => {
                        self.recorder.warning(&**pod, "NodeNotReady", "Node is not ready");
                        Ok(())
                    }
                    Err(Error::NotFound(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            })
        });
        join_all(marked).await.into_iter().collect()
    }

    fn registered(&self, node: &Node) {
        let (name, uid) = (&node.metadata.name, &node.metadata.uid);
        let before = self.known.lock().insert(name.clone(), uid.clone());
        if before.is_none_or(|before| before != *uid) {
            self.record_event(name, uid, "RegisteredNode", |name| {
                format!("Node {name} event: Registered Node {name} in Controller")
            });
        }
    }

    fn removed(&self, name: &str) {
        if let Some(uid) = self.known.lock().remove(name) {
            self.record_event(name, &uid, "RemovingNode", |name| {
                format!("Node {name} event: Removing Node {name} from Controller")
            });
        }
    }

    fn record_event(&self, name: &str, uid: &str, reason: &'static str, note: impl Fn(&str) -> String) {
        let node = ObjectReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.to_string(),
            uid: uid.to_string(),
            ..ObjectReference::default()
        };
        self.recorder.record(node, EventType::Normal, reason.into(), note(name));
    }
}

fn patch(node: &Node, taints: Option<&[Taint]>, plan: &Plan) -> Value {
    let mut patch = json!({"metadata": precondition(&node.metadata)});
    match taints {
        None => {}
        Some([]) => patch["spec"] = json!({"taints": null}),
        Some(taints) => patch["spec"] = json!({"taints": taints}),
    }
    if !plan.labels.is_empty() {
        patch["metadata"]["labels"] = json!(plan.labels);
    }
    patch
}
