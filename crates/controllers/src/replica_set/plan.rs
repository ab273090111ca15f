//! How many pods to make, which to delete, and what to say of it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashSet;

use super::rank;
use crate::objects::condition::{self, whole_seconds};
use crate::objects::replica_set::{ReplicaSetStatus, Replicated};
use crate::objects::{Condition, Pod};
use crate::runtime::Next;

/// Pods made or deleted in one reconcile at most. Upstream: BurstReplicas.
const BURST: usize = 500;

#[derive(Debug)]
pub(crate) enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// What went wrong on the way.
pub(crate) struct Failed {
    pub reason: &'static str,
    pub error: orlop_client::Error,
}

/// `pods`: the set's own. `related`: those of all sets of the same owner, to see which nodes have too many; only asked for
/// if some pods must go.
pub(crate) fn plan<R: Replicated>(
    set: &R,
    pods: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> Plan {
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let wanted = wanted(set);
    match active.len().cmp(&wanted) {
        std::cmp::Ordering::Equal => Plan::Nothing,
        std::cmp::Ordering::Less => Plan::Create((wanted - active.len()).min(BURST)),
        std::cmp::Ordering::Greater => {
            let count = (active.len() - wanted).min(BURST);
            Plan::Delete(rank::first_to_go(&active, &related(), count, now))
        }
    }
}

fn wanted<R: Replicated>(set: &R) -> usize {
    usize::try_from(set.spec().replicas.unwrap_or(1)).unwrap_or(0)
}

fn min_ready<R: Replicated>(set: &R) -> Duration {
    Duration::from_secs(set.spec().min_ready_seconds.into())
}

/// The set's pods after what was done: without those that are deleted, with those that were made. Pods that a node must end
/// are still there for a while, on their way out.
pub(crate) fn pods_after(pods: Vec<Arc<Pod>>, deleted: &[Arc<Pod>], made: Vec<Pod>, now: Timestamp) -> Vec<Arc<Pod>> {
    let deleted: FxHashSet<&str> = deleted.iter().map(|pod| pod.metadata.uid.as_str()).collect();
    let keep = |pod: Arc<Pod>| match deleted.contains(pod.metadata.uid.as_str()) {
        false => Some(pod),
        true if pod.spec.node_name.is_empty() => None,
        true => {
            let mut ending = Pod::clone(&pod);
            ending.metadata.deletion_timestamp = Some(now);
            Some(Arc::new(ending))
        }
    };
    let mut after: Vec<Arc<Pod>> = pods.into_iter().filter_map(keep).collect();
    after.extend(made.into_iter().map(Arc::new));
    after
}

pub(crate) fn status<R: Replicated>(
    set: &R,
    pods: &[Arc<Pod>],
    failed: Option<&Failed>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let template = &set.spec().template.metadata.labels;
    let labelled = |pod: &Pod| {
        template
            .iter()
            .all(|(key, value)| pod.metadata.labels.get(key) == Some(value))
    };
    let min_ready = min_ready(set);
    let mut status = ReplicaSetStatus {
        observed_generation: set.meta().generation,
        conditions: set.status().conditions.clone(),
        // Only ReplicaSets have the field; upstream leaves it out for ReplicationControllers.
        terminating_replicas: (R::KIND == "ReplicaSet").then_some(0),
        ..ReplicaSetStatus::default()
    };
    for pod in pods {
        if !pod.is_active() {
            if pod.metadata.is_deleted() && !pod.is_terminal() {
                status.terminating_replicas = status.terminating_replicas.map(|n| n + 1);
            }
            continue;
        }
        status.replicas += 1;
        status.fully_labeled_replicas += i64::from(labelled(pod));
        status.ready_replicas += i64::from(pod.is_ready());
        status.available_replicas += i64::from(pod.is_available(min_ready, now));
    }
    match (failed, condition::find(&status.conditions, "ReplicaFailure")) {
        (Some(failed), None) => status.conditions.push(Condition {
            r#type: "ReplicaFailure".to_string(),
            status: "True".to_string(),
            last_transition_time: Some(whole_seconds(now)),
            reason: failed.reason.to_string(),
            message: failed.error.to_string(),
            ..Condition::default()
        }),
        (None, Some(_)) => status.conditions.retain(|c| c.r#type != "ReplicaFailure"),
        _ => {}
    }
    status
}

/// Ready pods that do not count as available yet will, without any change to them.
pub(crate) fn next_look<R: Replicated>(set: &R, pods: &[Arc<Pod>], now: Timestamp) -> Next {
    let min_ready = min_ready(set);
    let soon = pods
        .iter()
        .filter(|pod| pod.is_active())
        .filter_map(|pod| pod.available_at(min_ready));
    match soon.filter(|at| *at > now).min() {
        None => Next::Done,
        Some(at) => Next::After(at.duration_since(now).try_into().unwrap_or_default()),
    }
}
