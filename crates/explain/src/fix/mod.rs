//! The smallest changes that would let a pending pod run.
//!
//! A bounded search: `atoms` lists the smallest changes that could matter, `pod_search` and `cluster_search` try sets of
//! them, the smaller ones first, and whatever is reported was placed by the scheduler's core with exactly these changes. Pods
//! and nodes are changed in the core's own state and changed back.
//!
//! Searched: changes of the pod; changes of one node (cordon, taints, labels) and the eviction of at most one pod; one more
//! node of a shape that is there. Sets of up to three. Not searched: volumes and claims, priorities, and conditions of
//! nodes (their taints come back by themselves).

mod atoms;
mod budget;
mod cluster_search;
mod edit;
mod pod_search;
mod request;
mod trial;

use orlop_scheduler::cluster::pod::PodKey;
use serde::Serialize;

pub use atoms::{node_atoms, pod_atoms};
pub use budget::Budget;
pub use edit::{Edit, edited_node, edited_pod, node_like};
pub use trial::{Trial, place_with};

use crate::pod::{PodExplanation, PodState};
use crate::world::World;

/// Changes in one fix at most.
pub const CHANGES_MAX: usize = 3;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FixReport {
    /// The smallest of each kind; nothing smaller would do, unless the search gave up.
    pub fixes: Vec<Fix>,
    /// The search was cut short: there may be other fixes, and smaller ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gave_up: Option<String>,
    /// Nodes that were judged for it.
    pub judged: usize,
    /// Why there is nothing to search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Target {
    Pod,
    Cluster,
    NewNode,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fix {
    pub target: Target,
    /// All of them together.
    pub changes: Vec<Change>,
    /// Where the pod goes then.
    pub node: String,
    /// What else would happen.
    pub side_effects: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub edit: Edit,
}

impl Fix {
    pub fn edits(&self) -> Vec<Edit> {
        self.changes.iter().map(|change| change.edit.clone()).collect()
    }

    fn new(target: Target, pod: &PodKey, trial: Trial, edits: Vec<Edit>) -> Fix {
        let changes = edits.into_iter().map(|edit| Change {
            text: edit.text(),
            command: edit.command(pod),
            edit,
        });
        Fix {
            target,
            changes: changes.collect(),
            node: trial.node,
            side_effects: trial.side_effects,
        }
    }
}

/// Searches for fixes for a pod that was explained. The world is the same afterwards.
pub fn search(world: &mut World, explanation: &PodExplanation, budget: &mut Budget) -> FixReport {
    let nothing = |message: &str| FixReport {
        message: Some(message.to_string()),
        ..FixReport::default()
    };
    match explanation.state {
        PodState::Scheduled => return nothing("the pod has a node"),
        PodState::Finished => return nothing("the pod has ended"),
        PodState::Schedulable => return nothing("some node would do now: nothing has to change"),
        _ => {}
    }
    let key = PodKey::new(&explanation.namespace, &explanation.name);
    let Some(pod) = world.pending.get(&key).cloned() else {
        return nothing("the pod, or the nodes, can't be read");
    };
    let search = Search {
        pod: &pod,
        key: &key,
        explanation,
    };
    let mut report = FixReport::default();
    // Where it only has to be let in, nothing else needs to change.
    let first = atoms::admission(world, &pod);
    if !first.is_empty()
        && let Some(trial) = place_with(world, &pod, &first)
    {
        report.fixes.push(Fix::new(Target::Pod, &key, trial, first));
        return report;
    }
    // What is quick to search comes first: the rest takes what is left of the budget.
    report.fixes.extend(search.new_node(world, budget));
    report.fixes.extend(search.on_cluster(world, budget));
    report.fixes.extend(search.on_pod(world, budget));
    report.judged = budget.spent();
    report.gave_up = budget.gave_up();
    report.fixes.sort_by_key(|fix| (fix.changes.len(), fix.target as usize));
    report
}

/// What is searched for.
struct Search<'a> {
    pod: &'a orlop_scheduler::model::Pod,
    key: &'a PodKey,
    explanation: &'a PodExplanation,
}
