//! Constraints that should hold: the fewer pods of the kind in a node's domains, the better.

use std::sync::Arc;

use super::PodTopologySpread;
use super::constraint::{Action, Plan, Planned};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{Column, NOWHERE, Topology};
use crate::framework::points::{MAX_SCORE, Normalize, Scope, Score};
use crate::framework::verdict::PreScore;

pub struct ScoreState {
    parts: Vec<Part>,
    /// Nodes that lack one of the keys get nothing.
    all_keys: bool,
}

struct Part {
    /// Node → domain of the constraint's key.
    column: Column,
    tally: Tally,
}

enum Tally {
    /// Domain → what it is worth; those beyond the end hold no pods.
    ByDomain { worth: Vec<f64>, slack: f64 },
    /// Node → pods.
    ByNode {
        pods: Arc<Vec<i32>>,
        weight: f64,
        slack: f64,
    },
}

impl Part {
    /// What the node's domain is worth; None if it is in none.
    #[inline]
    fn worth(&self, node: NodeId) -> Option<f64> {
        let domain = *self.column.get(node.index())?;
        if domain == NOWHERE {
            return None;
        }
        match &self.tally {
            Tally::ByDomain { worth, slack } => Some(worth.get(domain as usize).copied().unwrap_or(*slack)),
            Tally::ByNode { pods, weight, slack } => {
                let pods = pods.get(node.index()).copied().unwrap_or(0);
                Some(f64::from(pods) * weight + slack)
            }
        }
    }
}

fn lacks(column: &Column, node: NodeId) -> bool {
    column.get(node.index()).is_none_or(|d| *d == NOWHERE)
}

impl ScoreState {
    fn ignores(&self, node: NodeId) -> bool {
        self.all_keys && self.parts.iter().any(|p| lacks(&p.column, node))
    }
}

/// How much a pod in a domain weighs: more if there are more domains.
fn weight(domains: usize) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    ((domains + 2) as f64).ln()
}

/// How many domains the nodes are in. Nodes without the label are in that of the empty value.
fn spanned(column: &Column, nodes: &[NodeId], ignored: impl Fn(NodeId) -> bool, unnamed: Option<u32>) -> usize {
    let mut seen: Vec<bool> = vec![];
    let (mut domains, mut nowhere) = (0, false);
    for node in nodes {
        if ignored(*node) {
            continue;
        }
        match column.get(node.index()).copied().unwrap_or(NOWHERE) {
            NOWHERE => nowhere = true,
            domain => {
                let at = domain as usize;
                if seen.len() <= at {
                    seen.resize(at + 1, false);
                }
                domains += usize::from(!seen[at]);
                seen[at] = true;
            }
        }
    }
    let named = unnamed.is_some_and(|d| seen.get(d as usize).copied().unwrap_or(false));
    domains + usize::from(nowhere && !named)
}

fn tally(planned: &Planned, topology: &mut Topology, size: usize) -> Tally {
    let reading = topology.read(planned.counter);
    let weight = weight(size);
    let slack = f64::from(planned.constraint.max_skew - 1);
    if planned.by_node {
        return Tally::ByNode {
            pods: reading.domains.counts,
            weight,
            slack,
        };
    }
    let worth = (reading.domains.counts.iter()).map(|pods| f64::from(*pods) * weight + slack);
    Tally::ByDomain {
        worth: worth.collect(),
        slack,
    }
}

fn pre_score(plan: &Plan, topology: &mut Topology, nodes: &[NodeId]) -> ScoreState {
    let columns: Vec<Column> = (plan.constraints.iter())
        .map(|c| topology.column(&c.constraint.key))
        .collect();
    let ignored = |node: NodeId| plan.all_keys && columns.iter().any(|c| lacks(c, node));
    let left = if plan.all_keys {
        nodes.iter().filter(|n| !ignored(**n)).count()
    } else {
        nodes.len()
    };
    let mut parts = Vec::with_capacity(columns.len());
    for (planned, column) in plan.constraints.iter().zip(&columns) {
        let size = if planned.by_node {
            left
        } else {
            let unnamed = topology.domain_of(&planned.constraint.key, "");
            spanned(column, nodes, ignored, unnamed)
        };
        parts.push(Part {
            column: column.clone(),
            tally: tally(planned, topology, size),
        });
    }
    ScoreState {
        parts,
        all_keys: plan.all_keys && left < nodes.len(),
    }
}

impl Score for PodTopologySpread {
    type State = ScoreState;
    const SCOPE: Scope = Scope::Cluster;
    const NORMALIZE: Normalize = Normalize::Custom;

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId]) -> PreScore<ScoreState> {
        if cluster.is_empty() || self.written(pod, Action::Prefer).is_none() {
            return PreScore::Skip;
        }
        let topology = &mut cluster.topology.borrow_mut();
        match self.plan(pod, cluster, topology, Action::Prefer) {
            Some(plan) => PreScore::Run(pre_score(&plan, topology, nodes)),
            None => PreScore::Skip,
        }
    }

    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        self.written(pod, Action::Prefer).is_none()
            || (self.plan(pod, cluster, &mut cluster.topology.borrow_mut(), Action::Prefer)).is_none()
    }

    #[inline]
    fn score(&self, state: &ScoreState, _pod: &PodInfo, node: &NodeInfo) -> i64 {
        if state.ignores(node.id) {
            return 0;
        }
        let sum: f64 = state.parts.iter().filter_map(|p| p.worth(node.id)).sum();
        #[allow(clippy::cast_possible_truncation)]
        {
            sum.round() as i64
        }
    }

    fn normalize(&self, state: &ScoreState, _pod: &PodInfo, nodes: &[NodeId], scores: &mut [i64]) {
        let (mut least, mut most) = (i64::MAX, 0);
        for (node, score) in nodes.iter().zip(scores.iter()) {
            if !state.ignores(*node) {
                least = least.min(*score);
                most = most.max(*score);
            }
        }
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            *score = if state.ignores(*node) {
                0
            } else if most == 0 {
                MAX_SCORE
            } else {
                MAX_SCORE * (most + least - *score) / most
            };
        }
    }
}
