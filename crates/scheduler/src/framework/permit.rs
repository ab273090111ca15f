//! Pods that have a node and wait for somebody's word: those of which a Permit plugin said `Wait`.
//!
//! ```text
//!   Wait ──▶ waiting ── allow by each plugin that waits ──▶ bound
//!               ├────── reject by any of them ────────────▶ unschedulable
//!               ├────── the time of any of them is over ──▶ unschedulable
//!               └────── preempted ────────────────────────▶ tried again
//! ```
//!
//! Plugins hold a `WaitingPods` and answer whenever they like, from any thread. The engine takes the decisions out and
//! acts on them. The table is plain data and reads no clock.
//!
//! Upstream: waiting_pods_map.go in pkg/scheduler/framework/runtime (v1.36).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::cluster::pod::PodInfo;

/// Nobody waits longer, whatever a plugin says.
pub const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// What became of a waiting pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    Rejected {
        by: &'static str,
        message: String,
    },
    /// Its place goes to another pod; nobody has anything against it.
    Preempted,
}

struct Pending {
    plugin: &'static str,
    wait: Duration,
    until: Timestamp,
}

struct WaitingPod {
    pod: Arc<PodInfo>,
    node: Arc<str>,
    since: Timestamp,
    pending: Vec<Pending>,
}

/// A decision, for the engine.
#[derive(Debug, PartialEq, Eq)]
pub struct Decided {
    pub uid: Arc<str>,
    pub since: Timestamp,
    pub decision: Decision,
}

/// Each pod is in one of these at most; as many as were assumed and not bound yet.
#[derive(Default)]
struct Table {
    waiting: FxHashMap<Arc<str>, WaitingPod>,
    decided: Vec<Decided>,
}

impl Table {
    fn insert(&mut self, pod: Arc<PodInfo>, node: Arc<str>, waits: &[(&'static str, Duration)], now: Timestamp) {
        let pending = waits.iter().map(|(plugin, wait)| {
            let wait = (*wait).min(WAIT_MAX);
            let until = now.checked_add(wait).unwrap_or(Timestamp::MAX);
            Pending { plugin, wait, until }
        });
        let pending = pending.collect();
        let uid = pod.uid.clone();
        let waiting = WaitingPod {
            pod,
            node,
            since: now,
            pending,
        };
        self.waiting.insert(uid, waiting);
    }

    fn decide(&mut self, uid: &str, decision: Decision) -> bool {
        let Some((uid, waiting)) = self.waiting.remove_entry(uid) else {
            return false;
        };
        self.decided.push(Decided {
            uid,
            since: waiting.since,
            decision,
        });
        true
    }

    fn allow(&mut self, uid: &str, plugin: &str) -> bool {
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return false;
        };
        waiting.pending.retain(|p| p.plugin != plugin);
        waiting.pending.is_empty() && self.decide(uid, Decision::Allowed)
    }

    fn expire(&mut self, now: Timestamp) {
        let over = self.waiting.iter().filter_map(|(uid, waiting)| {
            let first = waiting
                .pending
                .iter()
                .filter(|p| p.until <= now)
                .min_by_key(|p| p.until)?;
            let (wait, plugin) = (
                orlop_api::duration::duration_text(first.wait.as_nanos() as i64),
                first.plugin,
            );
            let message = format!("rejected due to timeout after waiting {wait} at plugin {plugin}");
            Some((uid.clone(), Decision::Rejected { by: plugin, message }))
        });
        for (uid, decision) in over.collect::<Vec<_>>() {
            self.decide(&uid, decision);
        }
    }
}

/// The waiting pods. Clones are cheap and show the same.
#[derive(Clone, Default)]
pub struct WaitingPods {
    table: Arc<Mutex<Table>>,
    decided: Arc<Notify>,
}

impl WaitingPods {
    // ---- for plugins ----

    /// This plugin has nothing against the pod any more. The pod is bound once all that made it wait say so. False if
    /// the pod does not wait, or still waits for others.
    pub fn allow(&self, uid: &str, plugin: &'static str) -> bool {
        self.tell(|table| table.allow(uid, plugin))
    }

    /// This plugin turns the pod away. False if the pod does not wait.
    pub fn reject(&self, uid: &str, plugin: &'static str, message: impl Into<String>) -> bool {
        let decision = Decision::Rejected {
            by: plugin,
            message: message.into(),
        };
        self.tell(|table| table.decide(uid, decision))
    }

    /// Who waits, and the node that each would go to; in no order.
    pub fn list(&self) -> Vec<(Arc<PodInfo>, Arc<str>)> {
        let table = self.table.lock();
        table
            .waiting
            .values()
            .map(|w| (w.pod.clone(), w.node.clone()))
            .collect()
    }

    // ---- for the engine ----

    pub(crate) fn insert(&self, pod: Arc<PodInfo>, node: Arc<str>, waits: &[(&'static str, Duration)], now: Timestamp) {
        self.table.lock().insert(pod, node, waits, now);
    }

    pub(crate) fn len(&self) -> usize {
        let table = self.table.lock();
        table.waiting.len() + table.decided.len()
    }

    /// The pod is gone: nothing is to be decided any more. True if it waited.
    pub(crate) fn remove(&self, uid: &str) -> bool {
        let mut table = self.table.lock();
        let decided = table.decided.len();
        table.decided.retain(|d| &*d.uid != uid);
        table.waiting.remove(uid).is_some() || table.decided.len() != decided
    }

    /// Gives the pod's place away. False if it does not wait.
    pub(crate) fn preempt(&self, uid: &str) -> bool {
        self.tell(|table| table.decide(uid, Decision::Preempted))
    }

    /// When the first of them has waited long enough.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let table = self.table.lock();
        table.waiting.values().flat_map(|w| &w.pending).map(|p| p.until).min()
    }

    /// What was decided up to now, by time too.
    pub(crate) fn take(&self, now: Timestamp) -> Vec<Decided> {
        let mut table = self.table.lock();
        table.expire(now);
        std::mem::take(&mut table.decided)
    }

    /// Until something is decided.
    pub(crate) async fn wait(&self) {
        self.decided.notified().await;
    }

    fn tell(&self, act: impl FnOnce(&mut Table) -> bool) -> bool {
        let decided = act(&mut self.table.lock());
        if decided {
            self.decided.notify_one();
        }
        decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str) -> Arc<PodInfo> {
        let pod = json!({"metadata": {"namespace": "n", "name": uid, "uid": uid}});
        crate::cluster::Cluster::default().decode(serde_json::from_value(pod).unwrap())
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn waiting(waits: &[(&'static str, u64)]) -> WaitingPods {
        let pods = WaitingPods::default();
        let waits: Vec<_> = waits.iter().map(|(p, s)| (*p, Duration::from_secs(*s))).collect();
        pods.insert(pod("u"), "a".into(), &waits, at(0));
        pods
    }

    fn decisions(pods: &WaitingPods, now: i64) -> Vec<Decision> {
        pods.take(at(now)).into_iter().map(|d| d.decision).collect()
    }

    fn rejected(by: &'static str, message: &str) -> Decision {
        let message = message.to_string();
        Decision::Rejected { by, message }
    }

    #[test]
    fn all_that_wait_must_allow() {
        let pods = waiting(&[("A", 10), ("B", 20)]);
        assert!(!pods.allow("u", "C") && !pods.allow("u", "A") && !pods.allow("other", "B"));
        assert_eq!(decisions(&pods, 15), [], "A waits no longer, so its time can't be over");
        assert_eq!(pods.list().len(), 1);
        assert!(pods.allow("u", "B"));
        assert!(!pods.allow("u", "B") && !pods.reject("u", "A", "late") && !pods.preempt("u"));
        assert_eq!((pods.len(), pods.list().len()), (1, 0), "decided, and not taken yet");
        assert_eq!(decisions(&pods, 99), [Decision::Allowed]);
        assert_eq!(pods.len(), 0);
    }

    #[test]
    fn one_rejection_is_enough() {
        let pods = waiting(&[("A", 10), ("B", 20)]);
        assert!(pods.reject("u", "B", "no quorum") && !pods.reject("u", "A", "me too"));
        assert_eq!(decisions(&pods, 0), [rejected("B", "no quorum")]);
    }

    #[test]
    fn the_first_timeout_counts() {
        let pods = waiting(&[("A", 90), ("B", 20)]);
        assert_eq!(pods.next_deadline(), Some(at(20)));
        assert_eq!(decisions(&pods, 19), []);
        let message = "rejected due to timeout after waiting 20s at plugin B";
        assert_eq!(decisions(&pods, 120), [rejected("B", message)]);
        assert_eq!(pods.next_deadline(), None);
        let pods = waiting(&[("A", 100_000)]);
        let message = "rejected due to timeout after waiting 15m0s at plugin A";
        assert_eq!(decisions(&pods, 900), [rejected("A", message)]);
    }

    #[test]
    fn a_pod_that_is_gone_is_forgotten() {
        let pods = waiting(&[("A", 10)]);
        assert!(pods.remove("u") && !pods.remove("u"));
        assert_eq!(decisions(&pods, 99), []);
        let pods = waiting(&[("A", 10)]);
        assert!(pods.preempt("u") && pods.remove("u"));
        assert_eq!(decisions(&pods, 99), []);
    }

    #[tokio::test]
    async fn a_decision_wakes_the_engine() {
        let pods = waiting(&[("A", 10)]);
        let plugin = pods.clone();
        let (_, ()) = tokio::join!(pods.wait(), async move { assert!(plugin.allow("u", "A")) });
        assert_eq!(decisions(&pods, 0), [Decision::Allowed]);
    }
}
