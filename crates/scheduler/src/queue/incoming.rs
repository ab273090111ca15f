//! Numbers for metrics: how many pods wait where, and how many came in, and why.

use rustc_hash::FxHashMap;

use crate::framework::event::{Actions, Event, Resource};

/// Where a pod waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubQueue {
    Active,
    /// After a rejection or an error.
    Backoff,
    Unschedulable,
    Gated,
}

impl SubQueue {
    pub const ALL: [SubQueue; 4] = [
        SubQueue::Active,
        SubQueue::Backoff,
        SubQueue::Unschedulable,
        SubQueue::Gated,
    ];

    /// As label `queue` of `scheduler_pending_pods`.
    pub fn label(self) -> &'static str {
        match self {
            SubQueue::Active => "active",
            SubQueue::Backoff => "backoff",
            SubQueue::Unschedulable => "unschedulable",
            SubQueue::Gated => "gated",
        }
    }
}

/// Why a pod came in; as text, label `event` of `scheduler_queue_incoming_pods_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    PodAdd,
    PodUpdate,
    ScheduleAttemptFailure,
    BackoffComplete,
    PopFromBackoff,
    ForceActivate,
    UnschedulableTimeout,
    Event(Resource, Actions),
}

impl Trigger {
    pub(super) fn of(event: &Event) -> Trigger {
        Trigger::Event(event.resource, event.actions)
    }
}

impl std::fmt::Display for Trigger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let label = match *self {
            Trigger::PodAdd => "UnschedulablePodAdd",
            Trigger::PodUpdate => "UnschedulablePodUpdate",
            Trigger::ScheduleAttemptFailure => "ScheduleAttemptFailure",
            Trigger::BackoffComplete => "BackoffComplete",
            Trigger::PopFromBackoff => "PopFromBackoffQ",
            Trigger::ForceActivate => "ForceActivate",
            Trigger::UnschedulableTimeout => "UnschedulableTimeout",
            Trigger::Event(resource, actions) => {
                f.write_str(resource_label(resource))?;
                action_label(resource, actions)
            }
        };
        f.write_str(label)
    }
}

fn resource_label(resource: Resource) -> &'static str {
    match resource {
        Resource::AssignedPod => "AssignedPod",
        Resource::OwnPod => "UnschedulablePod",
        Resource::Node => "Node",
        Resource::PersistentVolume => "PersistentVolume",
        Resource::PersistentVolumeClaim => "PersistentVolumeClaim",
        Resource::StorageClass => "storage.k8s.io/StorageClass",
        Resource::CsiNode => "storage.k8s.io/CSINode",
        Resource::CsiDriver => "storage.k8s.io/CSIDriver",
        Resource::CsiStorageCapacity => "storage.k8s.io/CSIStorageCapacity",
        Resource::VolumeAttachment => "storage.k8s.io/VolumeAttachment",
        Resource::Any => "*",
    }
}

/// Several changes at once go by the first that has a name.
fn action_label(resource: Resource, actions: Actions) -> &'static str {
    const NODE: &[(Actions, &str)] = &[
        (Actions::UPDATE_ALLOCATABLE, "UpdateNodeAllocatable"),
        (Actions::UPDATE_LABEL, "UpdateNodeLabel"),
        (Actions::UPDATE_TAINT, "UpdateNodeTaint"),
        (Actions::UPDATE_CONDITION, "UpdateNodeCondition"),
        (Actions::UPDATE_DECLARED_FEATURES, "UpdateNodeDeclaredFeature"),
    ];
    const POD: &[(Actions, &str)] = &[
        (Actions::UPDATE_LABEL, "UpdatePodLabel"),
        (Actions::SCALE_DOWN, "UpdatePodScaleDown"),
        (Actions::GATES_ELIMINATED, "UpdatePodSchedulingGatesEliminated"),
        (Actions::UPDATE_TOLERATION, "UpdatePodToleration"),
    ];
    match actions {
        _ if resource == Resource::Any => return "All",
        Actions::UPDATE => return "Update",
        _ if actions.meets(Actions::ADD) => return "Add",
        _ if actions.meets(Actions::DELETE) => return "Delete",
        _ => {}
    }
    let named = match resource {
        Resource::Node => NODE,
        Resource::AssignedPod | Resource::OwnPod => POD,
        _ => &[],
    };
    (named.iter().find(|(action, _)| actions.meets(*action))).map_or("Update", |(_, label)| label)
}

/// Pods that came into each sub-queue so far. Gated pods count as unschedulable here.
#[derive(Debug, Default)]
pub struct Incoming {
    counts: FxHashMap<(SubQueue, Trigger), u64>,
}

impl Incoming {
    pub(super) fn count(&mut self, queue: SubQueue, trigger: Trigger) {
        *self.counts.entry((queue, trigger)).or_default() += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = (SubQueue, Trigger, u64)> + '_ {
        self.counts.iter().map(|((queue, trigger), n)| (*queue, *trigger, *n))
    }

    pub fn of(&self, queue: SubQueue, trigger: Trigger) -> u64 {
        self.counts.get(&(queue, trigger)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for (resource, actions, want) in [
            (Resource::AssignedPod, Actions::DELETE, "AssignedPodDelete"),
            (Resource::Node, Actions::ADD, "NodeAdd"),
            (Resource::Node, Actions::UPDATE_TAINT, "NodeUpdateNodeTaint"),
            (Resource::OwnPod, Actions::UPDATE_OTHER, "UnschedulablePodUpdate"),
            (
                Resource::OwnPod,
                Actions::UPDATE_LABEL.or(Actions::UPDATE_TOLERATION),
                "UnschedulablePodUpdatePodLabel",
            ),
            (Resource::CsiNode, Actions::UPDATE, "storage.k8s.io/CSINodeUpdate"),
        ] {
            assert_eq!(Trigger::Event(resource, actions).to_string(), want);
        }
    }
}
