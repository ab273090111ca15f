//! What the scheduler does about a pod at the moment, as far as the pod tells.

use orlop_scheduler::framework::event::{Actions, EventKind, Resource};
use serde::Serialize;

use super::PodFacts;
use crate::world::World;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueState {
    /// `Gated`, `Unschedulable`, `Preempting`, `Active`, `Terminating` or `OtherScheduler`.
    pub state: &'static str,
    pub message: String,
    /// Events after which it is tried again.
    pub waits_for: Vec<String>,
}

impl QueueState {
    fn new(state: &'static str, message: impl Into<String>) -> QueueState {
        QueueState {
            state,
            message: message.into(),
            waits_for: vec![],
        }
    }
}

/// Of a pod without a node. `gate` is what a PreEnqueue plugin says, `rejected_by` who refuses nodes if no node will do.
pub(super) fn state(
    world: &World,
    facts: &PodFacts,
    profile: Option<usize>,
    gate: Option<&str>,
    rejected_by: Option<&Vec<&'static str>>,
) -> QueueState {
    let Some(profile) = profile else {
        return QueueState::new("OtherScheduler", other_scheduler(world, facts));
    };
    if facts.is_terminating {
        return QueueState::new("Terminating", "the pod is being deleted: it is not scheduled any more");
    }
    if let Some(gate) = gate {
        let mut state = QueueState::new("Gated", gate);
        state.waits_for = vec!["the pod's scheduling gates are removed".into()];
        return state;
    }
    if let Some(node) = &facts.nominated_node {
        let message = format!("evictions make room for it on node {node}: it is tried again when the victims are gone");
        return QueueState::new("Preempting", message);
    }
    let reason = facts
        .scheduled
        .as_ref()
        .map_or("", |condition| condition.reason.as_str());
    let tried = facts
        .scheduled
        .as_ref()
        .is_some_and(|condition| condition.status == "False");
    if !tried {
        let message = "the scheduler has not tried it yet: it waits its turn, or no scheduler is running";
        return QueueState::new("Active", message);
    }
    if reason == "SchedulerError" {
        let mut state = QueueState::new(
            "Active",
            "the last attempt failed with an error: it is tried again after its back-off",
        );
        state.waits_for = vec!["its back-off ends".into()];
        return state;
    }
    let mut state = QueueState::new("Unschedulable", "");
    let plugins = &world.core.profiles[profile];
    for name in rejected_by.into_iter().flatten() {
        let kinds = plugins.plugin(name).map(|plugin| plugin.events()).unwrap_or_default();
        if kinds.is_empty() {
            state.waits_for.push("any change in the cluster".into());
        }
        state.waits_for.extend(kinds.iter().map(phrase));
    }
    state.waits_for.sort();
    state.waits_for.dedup();
    if rejected_by.is_some_and(Vec::is_empty) {
        state.waits_for = vec!["a node is added".into()];
    }
    let seconds = world.retry_after.as_secs();
    state.message = match rejected_by {
        None => {
            "the last attempt failed, and now some node would do: it is tried again at the next change in the cluster, \
                 or after its back-off"
                .to_string()
        }
        Some(_) => {
            format!(
                "the last attempt found no node: it is tried again when something of this changes, or after {seconds} s"
            )
        }
    };
    state
}

fn other_scheduler(world: &World, facts: &PodFacts) -> String {
    let mut names: Vec<&str> = world.by_name.keys().map(String::as_str).collect();
    names.sort();
    format!(
        "schedulerName is {:?}; this scheduler configuration has {}: another scheduler must place it",
        facts.scheduler_name,
        names.join(", ")
    )
}

/// `a node is added; its labels change`
fn phrase(kind: &EventKind) -> String {
    let what = match kind.resource {
        Resource::AssignedPod => "a pod on a node",
        Resource::OwnPod => "this pod",
        Resource::Node => "a node",
        Resource::PersistentVolume => "a PersistentVolume",
        Resource::PersistentVolumeClaim => "a PersistentVolumeClaim",
        Resource::StorageClass => "a StorageClass",
        Resource::CsiNode => "a CSINode",
        Resource::CsiDriver => "a CSIDriver",
        Resource::CsiStorageCapacity => "a CSIStorageCapacity",
        Resource::VolumeAttachment => "a VolumeAttachment",
        Resource::Any => return "any change in the cluster".into(),
    };
    const VERBS: [(Actions, &str); 11] = [
        (Actions::ADD, "is added"),
        (Actions::DELETE, "is deleted"),
        (Actions::UPDATE_ALLOCATABLE, "changes its allocatable resources"),
        (Actions::UPDATE_LABEL, "changes its labels"),
        (Actions::UPDATE_TAINT, "changes its taints"),
        (Actions::UPDATE_CONDITION, "changes its conditions"),
        (Actions::UPDATE_DECLARED_FEATURES, "changes its declared features"),
        (Actions::SCALE_DOWN, "requests less"),
        (Actions::UPDATE_TOLERATION, "gets tolerations"),
        (Actions::GATES_ELIMINATED, "loses its gates"),
        (Actions::UPDATE_OTHER, "changes"),
    ];
    if kind.actions.0 & Actions::UPDATE.0 == Actions::UPDATE.0 {
        let added = if kind.actions.meets(Actions::ADD) {
            "is added or "
        } else {
            ""
        };
        return format!("{what} {added}changes");
    }
    let verbs: Vec<&str> = VERBS
        .iter()
        .filter(|(action, _)| kind.actions.meets(*action))
        .map(|(_, verb)| *verb)
        .collect();
    format!("{what} {}", verbs.join(" or "))
}
