//! Why a pod is where it is, or nowhere.
//!
//! `facts` is what the pod and its events say of themselves, `pending` and `placed` put the question to the core, `queue`
//! says what the scheduler waits for. All of it ends in a `PodExplanation`, which is what programs get.

mod facts;
mod nodes;
mod pending;
mod placed;
mod queue;
mod volumes;

use std::collections::BTreeMap;

use serde::Serialize;

pub use facts::{EventFacts, PodFacts};
pub use nodes::{NodeRow, PluginRejection, ReasonRow, ScoreRow};
pub use queue::QueueState;
pub use volumes::ClaimRow;

use crate::fix::FixReport;
use crate::snapshot::Unreadable;
use crate::world::World;

pub const API_VERSION: &str = "why.orlop.io/v1";

/// The whole answer. Its JSON form is documented in docs/why.md and does not change within a version.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub state: PodState,
    /// One sentence.
    pub verdict: String,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Worked out from today's objects, not remembered from the decision.
    pub reconstructed: bool,
    pub scheduler_name: String,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    pub requests: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueState>,
    pub nodes: NodeCounts,
    pub reasons: Vec<ReasonRow>,
    /// Those that fit first, the best first; then the others, those that lack least first.
    pub node_details: Vec<NodeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionAccount>,
    pub volumes: Vec<ClaimRow>,
    /// The pod's condition PodScheduled, as the scheduler wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_message: Option<String>,
    pub events: Vec<EventFacts>,
    /// What limits this answer.
    pub warnings: Vec<String>,
    pub unreadable: Vec<Unreadable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixes: Option<FixReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PodState {
    /// Some node would do now.
    Schedulable,
    Unschedulable,
    /// It is not tried.
    Gated,
    /// Evictions make room for it.
    Preempting,
    /// It has a node.
    Scheduled,
    /// It has ended.
    Finished,
    /// There is too little that may be read.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeCounts {
    pub total: usize,
    pub feasible: usize,
}

/// What evicting pods of lower priority could do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreemptionAccount {
    pub possible: bool,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub victims: Vec<Victim>,
    /// Victims that a PodDisruptionBudget would rather keep.
    pub budget_violations: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Victim {
    pub namespace: String,
    pub name: String,
    pub priority: i32,
}

/// Explains a pod. Nothing in the world is changed by it.
pub fn explain(world: &mut World, facts: &PodFacts) -> PodExplanation {
    world.reseed();
    let mut answer = PodExplanation {
        api_version: API_VERSION,
        kind: "PodExplanation",
        namespace: facts.key.namespace.to_string(),
        name: facts.key.name.to_string(),
        uid: facts.uid.clone(),
        state: PodState::Unknown,
        verdict: String::new(),
        node: facts.node.clone(),
        reconstructed: true,
        scheduler_name: facts.scheduler_name.clone(),
        priority: facts.priority,
        priority_class_name: facts.priority_class_name.clone(),
        requests: BTreeMap::new(),
        queue: None,
        nodes: NodeCounts {
            total: world.cluster.len(),
            feasible: 0,
        },
        reasons: vec![],
        node_details: vec![],
        preemption: None,
        volumes: vec![],
        scheduler_message: facts.scheduled_message(),
        events: facts.events.clone(),
        warnings: vec![],
        unreadable: world.unreadable.clone(),
        fixes: None,
    };
    if facts.has_ended() {
        answer.state = PodState::Finished;
        answer.verdict = format!("{} has ended ({}): it needs no node any more.", facts.key, facts.phase);
    } else if facts.node.is_some() {
        placed::explain(world, facts, &mut answer);
    } else {
        pending::explain(world, facts, &mut answer);
    }
    answer
}

/// What the answer can't take into account.
fn warn(world: &World, pod: &orlop_scheduler::cluster::pod::PodInfo, profile: usize, answer: &mut PodExplanation) {
    for url in world.interested_extenders(pod) {
        answer.warnings.push(format!(
            "extender {url} has a say about this pod and was not asked: it may refuse nodes that are shown as feasible"
        ));
    }
    if let Some(percentage) = world.core.profiles[profile].percentage_of_nodes_to_score {
        answer.warnings.push(format!(
            "percentageOfNodesToScore is {percentage}: the scheduler may stop before it has seen every node"
        ));
    }
    for unreadable in &world.unreadable {
        let needed = match unreadable.resource.as_str() {
            "persistentvolumes"
            | "persistentvolumeclaims"
            | "storageclasses"
            | "csinodes"
            | "csidrivers"
            | "csistoragecapacities"
            | "volumeattachments" => !pod.volumes.is_empty(),
            _ => true,
        };
        if needed {
            answer.warnings.push(format!(
                "may not read {}: what depends on them is left out ({})",
                unreadable.resource, unreadable.message
            ));
        }
    }
}

/// `1 pod`, `2 pods`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}
