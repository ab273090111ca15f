//! A waiting pod and what the queue knows of it.

use std::sync::Arc;

use jiff::Timestamp;

use super::plugins::PluginSet;
use crate::cluster::pod::PodInfo;
use crate::cluster::resources::Resources;
use crate::framework::event::Actions;

/// A pod that waits, or is being tried.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    pub pod: Arc<PodInfo>,
    /// How often it was tried, this time included.
    pub attempts: u32,
    /// How often it was rejected.
    pub unschedulable_count: u32,
    /// How often in a row something went wrong, up to now.
    pub consecutive_errors: u32,
    /// When it was added, or when it last came back from a try.
    pub timestamp: Timestamp,
    /// When it first entered the active queue.
    pub initial_attempt: Option<Timestamp>,
    /// Who rejected it the last time, or gated it.
    pub rejected_by: PluginSet,
    /// Who has not made up its mind: when one of these says so, the pod is tried again without back-off.
    pub pending: PluginSet,
    /// Who keeps it from being tried at all.
    pub gated_by: Option<&'static str>,
    /// It is tried (again) only because it had been unschedulable for long; if it fits now, an event was missed.
    pub flushed: bool,
    pub(super) flushed_at: Option<Timestamp>,
}

impl QueuedPod {
    pub(super) fn new(pod: Arc<PodInfo>, now: Timestamp) -> QueuedPod {
        QueuedPod {
            pod,
            attempts: 0,
            unschedulable_count: 0,
            consecutive_errors: 0,
            timestamp: now,
            initial_attempt: None,
            rejected_by: PluginSet::default(),
            pending: PluginSet::default(),
            gated_by: None,
            flushed: false,
            flushed_at: None,
        }
    }

    pub(super) fn rejectors(&self) -> PluginSet {
        self.rejected_by.or(self.pending)
    }
}

/// What the active queue is sorted by, smallest first. Pods with equal keys go first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    pub rank: i64,
    pub since: i64,
}

/// The order of the PrioritySort plugin: higher priority first, then who has waited longer.
pub fn by_priority(pod: &QueuedPod) -> SortKey {
    SortKey {
        rank: -i64::from(pod.pod.priority()),
        since: nanos(pod.timestamp),
    }
}

/// Since 1970. Enough until the year 2262.
pub(super) fn nanos(at: Timestamp) -> i64 {
    let nanos = at.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

/// What of a waiting pod changed that may decide whether it fits.
///
/// Upstream: PodSchedulingPropertiesChange in pkg/scheduler/framework/events.go (v1.36). There it is one event for each
/// kind of change; here it is one event for all.
pub fn own_changes(old: &PodInfo, new: &PodInfo) -> Actions {
    let (before, after) = (&old.class.spec, &new.class.spec);
    let changes = [
        (old.label_set() != new.label_set(), Actions::UPDATE_LABEL),
        (
            asks_for_less(&old.requests().exact, &new.requests().exact),
            Actions::SCALE_DOWN,
        ),
        (
            after.scheduling_gates.is_empty() && !before.scheduling_gates.is_empty(),
            Actions::GATES_ELIMINATED,
        ),
        // They can be added only.
        (
            after.tolerations.len() != before.tolerations.len(),
            Actions::UPDATE_TOLERATION,
        ),
    ];
    (changes.into_iter())
        .filter_map(|(changed, action)| changed.then_some(action))
        .reduce(Actions::or)
        .unwrap_or(Actions::UPDATE_OTHER)
}

fn asks_for_less(old: &Resources, new: &Resources) -> bool {
    new.milli_cpu < old.milli_cpu
        || new.memory < old.memory
        || new.ephemeral_storage < old.ephemeral_storage
        || old.scalars.iter().any(|(name, amount)| new.scalar(name) < *amount)
}
