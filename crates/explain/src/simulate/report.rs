//! What a simulation came to.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Simulation;
use crate::amount;
use crate::pod::{API_VERSION, counted};
use crate::world::World;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationReport {
    pub api_version: &'static str,
    pub kind: &'static str,
    /// One sentence.
    pub verdict: String,
    /// No pod is without a node that had one before or is new.
    pub fits: bool,
    /// In the order in which they are made.
    pub moves: Vec<Move>,
    pub pending: Vec<PendingRow>,
    /// Pods without a controller that go with their node.
    pub lost: Vec<String>,
    pub budgets: Vec<BudgetRow>,
    pub before: Use,
    pub after: Use,
    /// Nodes on which something changed, or that came or went.
    pub nodes: Vec<NodeUse>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    pub pod: String,
    /// None for pods that had no node.
    pub from: Option<String>,
    pub to: String,
    pub because: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingRow {
    pub pod: String,
    pub from: Option<String>,
    pub because: String,
    pub reason: String,
    pub was_pending: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRow {
    pub budget: String,
    pub evictions: usize,
    pub disruptions_allowed: i64,
    pub effect: String,
}

/// Of the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    pub nodes: usize,
    pub pods: usize,
    pub cpu: Share,
    pub memory: Share,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub requested: String,
    pub allocatable: String,
    pub percent: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUse {
    pub name: String,
    /// None if it was not there.
    pub before: Option<OneNode>,
    pub after: Option<OneNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OneNode {
    pub pods: usize,
    pub cpu_percent: i64,
    pub memory_percent: i64,
    pub schedulable: bool,
}

fn percent(part: i64, whole: i64) -> i64 {
    (i128::from(part) * 100)
        .checked_div(i128::from(whole))
        .map_or(0, |n| n as i64)
}

pub(super) struct Usage {
    total: Use,
    nodes: BTreeMap<String, OneNode>,
}

pub(super) fn usage(world: &World) -> Usage {
    let (mut cpu, mut memory) = ((0i64, 0i64), (0i64, 0i64));
    let mut nodes = BTreeMap::new();
    for node in world.cluster.nodes() {
        let (used, have) = (&node.requested, &node.allocatable);
        cpu = (
            cpu.0.saturating_add(used.milli_cpu),
            cpu.1.saturating_add(have.milli_cpu),
        );
        memory = (
            memory.0.saturating_add(used.memory),
            memory.1.saturating_add(have.memory),
        );
        let one = OneNode {
            pods: node.pods.len(),
            cpu_percent: percent(used.milli_cpu, have.milli_cpu),
            memory_percent: percent(used.memory, have.memory),
            schedulable: !node.unschedulable,
        };
        nodes.insert(node.name.to_string(), one);
    }
    let share = |resource: &str, (requested, allocatable): (i64, i64)| Share {
        requested: amount::exact(resource, requested),
        allocatable: amount::exact(resource, allocatable),
        percent: percent(requested, allocatable),
    };
    Usage {
        total: Use {
            nodes: nodes.len(),
            pods: world.cluster.pod_count(),
            cpu: share("cpu", cpu),
            memory: share("memory", memory),
        },
        nodes,
    }
}

impl Simulation<'_> {
    pub(super) fn report(mut self, before: Usage, already: &BTreeSet<String>) -> SimulationReport {
        let after = usage(self.world);
        for row in &mut self.pending {
            row.was_pending = already.contains(&row.pod) && row.from.is_none();
        }
        self.pending.sort_by_key(|row| row.was_pending);
        let names: BTreeSet<&String> = before.nodes.keys().chain(after.nodes.keys()).collect();
        let nodes: Vec<NodeUse> = (names.into_iter())
            .map(|name| NodeUse {
                name: name.clone(),
                before: before.nodes.get(name).cloned(),
                after: after.nodes.get(name).cloned(),
            })
            .filter(|node| node.before != node.after)
            .collect();
        let left = self.pending.iter().filter(|row| !row.was_pending).count();
        let fits = left == 0;
        SimulationReport {
            api_version: API_VERSION,
            kind: "SimulationReport",
            verdict: verdict(&self, left),
            fits,
            budgets: self.budgets(),
            before: before.total,
            after: after.total,
            nodes,
            moves: self.moves,
            pending: self.pending,
            lost: self.lost,
            notes: self.notes.into_iter().collect(),
        }
    }

    fn budgets(&self) -> Vec<BudgetRow> {
        let rows = self.evictions.iter().map(|(key, evictions)| {
            let allowed = self
                .world
                .cluster
                .budgets
                .get(key)
                .map_or(0, |budget| budget.status.disruptions_allowed);
            let effect = match i64::try_from(*evictions) {
                _ if allowed < 1 => "blocks: no eviction is allowed now".to_string(),
                Ok(n) if n <= allowed => "allows all at once".to_string(),
                _ => format!("slows down: {allowed} at a time, the next when replacements are ready"),
            };
            BudgetRow {
                budget: key.to_string(),
                evictions: *evictions,
                disruptions_allowed: allowed,
                effect,
            }
        });
        rows.collect()
    }
}

fn verdict(simulation: &Simulation, left: usize) -> String {
    let moved = simulation.moves.iter().filter(|m| m.from.is_some()).count();
    let new = simulation.moves.len() - moved;
    let mut parts = vec![];
    if moved > 0 {
        parts.push(format!("{} moved", counted(moved, "pod")));
    }
    if new > 0 {
        parts.push(format!("{} placed", counted(new, "pod")));
    }
    if !simulation.lost.is_empty() {
        parts.push(format!("{} lost", counted(simulation.lost.len(), "pod")));
    }
    let happened = if parts.is_empty() {
        "nothing moves".to_string()
    } else {
        parts.join(", ")
    };
    match left {
        0 => format!("Everything fits: {happened}."),
        n => format!("Not everything fits: {} left pending; {happened}.", counted(n, "pod")),
    }
}
