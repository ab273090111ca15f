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
    #[inline]
    fn score(&self, node: NodeId) -> i64 {
        if self.ignores(node) {
            return 0;
        }
        round(self.parts.iter().filter_map(|p| p.worth(node)).sum())
    }

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
///
/// `domains` is how many there are at all: nothing more is to be found once all were seen.
fn spanned(
    column: &Column,
    nodes: &[NodeId],
    ignored: impl Fn(NodeId) -> bool,
    unnamed: Option<u32>,
    domains: usize,
    lacking: bool,
) -> usize {
    let mut seen: Vec<bool> = vec![];
    let (mut found, mut nowhere) = (0, false);
    for node in nodes {
        if found == domains && (nowhere || !lacking) {
            break;
        }
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
                found += usize::from(!seen[at]);
                seen[at] = true;
            }
        }
    }
    let named = unnamed.is_some_and(|d| seen.get(d as usize).copied().unwrap_or(false));
    found + usize::from(nowhere && !named)
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

fn pre_score(plan: &Plan, topology: &mut Topology, all: usize, nodes: &[NodeId]) -> ScoreState {
    let keys = plan.constraints.iter().map(|c| &c.constraint.key);
    let columns: Vec<Column> = keys.clone().map(|key| topology.column(key)).collect();
    let extents: Vec<(usize, usize)> = keys.map(|key| topology.extent(key)).collect();
    let some_ignored = plan.all_keys && extents.iter().any(|(_, placed)| *placed < all);
    let ignored = |node: NodeId| some_ignored && columns.iter().any(|c| lacks(c, node));
    let left = if some_ignored {
        nodes.iter().filter(|n| !ignored(**n)).count()
    } else {
        nodes.len()
    };
    let mut parts = Vec::with_capacity(columns.len());
    for ((planned, column), (domains, placed)) in plan.constraints.iter().zip(&columns).zip(extents) {
        let size = if planned.by_node {
            left
        } else {
            let unnamed = topology.domain_of(&planned.constraint.key, "");
            let lacking = !plan.all_keys && placed < all;
            spanned(column, nodes, ignored, unnamed, domains, lacking)
        };
        parts.push(Part {
            column: column.clone(),
            tally: tally(planned, topology, size),
        });
    }
    ScoreState {
        parts,
        all_keys: left < nodes.len(),
    }
}

/// To the nearest whole number, halves up. Scores are never negative.
#[inline]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn round(score: f64) -> i64 {
    let whole = score as i64;
    whole + i64::from(score - whole as f64 >= 0.5)
}

/// Gives every score, all of which are `least..=most`, its new value; works out each only once if they are many.
pub(crate) fn rescale(scores: &mut [i64], least: i64, most: i64, scale: impl Fn(i64) -> i64) {
    let range = usize::try_from(most - least).unwrap_or(usize::MAX);
    if range >= scores.len() {
        for score in scores {
            *score = scale(*score);
        }
        return;
    }
    let scaled: Vec<i64> = (least..=most).map(scale).collect();
    for score in scores {
        *score = scaled[usize::try_from(*score - least).unwrap_or(0)];
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
            Some(plan) => PreScore::Run(pre_score(&plan, topology, cluster.len(), nodes)),
            None => PreScore::Skip,
        }
    }

    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        self.written(pod, Action::Prefer).is_none()
            || (self.plan(pod, cluster, &mut cluster.topology.borrow_mut(), Action::Prefer)).is_none()
    }

    fn score(&self, state: &ScoreState, _pod: &PodInfo, node: &NodeInfo) -> i64 {
        state.score(node.id)
    }

    fn score_all(
        &self,
        state: &ScoreState,
        _pod: &PodInfo,
        _cluster: &Cluster,
        nodes: &[NodeId],
        scores: &mut Vec<i64>,
    ) {
        scores.clear();
        scores.extend(nodes.iter().map(|node| state.score(*node)));
    }

    fn normalize(&self, state: &ScoreState, _pod: &PodInfo, nodes: &[NodeId], scores: &mut [i64]) {
        let scale = |score: i64, least: i64, most: i64| match most {
            0 => MAX_SCORE,
            _ => MAX_SCORE * (most + least - score) / most,
        };
        if !state.all_keys {
            let least = scores.iter().copied().min().unwrap_or(0);
            let most = scores.iter().copied().max().unwrap_or(0);
            rescale(scores, least, most, |score| scale(score, least, most));
            return;
        }
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
            } else {
                scale(*score, least, most)
            };
        }
    }
}
