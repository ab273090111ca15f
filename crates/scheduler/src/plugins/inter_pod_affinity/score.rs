//! What should hold: the pod's own preferences, and those of pods that are there.

use super::{InterPodAffinity, Plan};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{Column, Domains, Group, NOWHERE};
use crate::framework::points::{MAX_SCORE, Normalize, Scope, Score};
use crate::framework::verdict::PreScore;
use crate::plugins::pod_topology_spread::rescale;

/// One table for each topology key that matters.
pub struct ScoreState(Vec<Weights>);

struct Weights {
    column: Column,
    /// By domain.
    sums: Vec<i64>,
}

impl Weights {
    #[inline]
    fn of(&self, node: NodeId) -> i64 {
        let domain = self.column.get(node.index()).copied().unwrap_or(NOWHERE);
        self.sums.get(domain as usize).copied().unwrap_or(0)
    }
}

impl ScoreState {
    fn add(&mut self, domains: &Domains, weight: i64) {
        // A key has one column: the tables of a cycle share it.
        let known = self
            .0
            .iter()
            .position(|w| std::sync::Arc::ptr_eq(&w.column, &domains.column));
        let at = known.unwrap_or_else(|| {
            self.0.push(Weights {
                column: domains.column.clone(),
                sums: vec![],
            });
            self.0.len() - 1
        });
        let sums = &mut self.0[at].sums;
        if sums.is_empty() {
            sums.extend(domains.counts.iter().map(|n| weight * i64::from(*n)));
            return;
        }
        if sums.len() < domains.counts.len() {
            sums.resize(domains.counts.len(), 0);
        }
        for (sum, n) in sums.iter_mut().zip(&*domains.counts) {
            *sum += weight * i64::from(*n);
        }
    }
}

impl Score for InterPodAffinity {
    type State = ScoreState;
    const SCOPE: Scope = Scope::Cluster;
    const NORMALIZE: Normalize = Normalize::Custom;

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, _nodes: &[NodeId]) -> PreScore<ScoreState> {
        let affinity = &pod.class.spec.affinity;
        let own = !(affinity.pod_affinity.preferred.is_empty() && affinity.pod_anti_affinity.preferred.is_empty());
        let topology = &mut cluster.topology.borrow_mut();
        if !own && (self.ignore_preferred_terms_of_existing_pods || topology.carries_nothing()) {
            return PreScore::Skip;
        }
        topology.refresh(&cluster.namespaces);
        let mut state = ScoreState(vec![]);
        if own {
            for (counter, weight) in &Plan::of(pod, topology).preferred {
                let reading = topology.read(*counter);
                if reading.total > 0 {
                    state.add(&reading.domains, *weight);
                }
            }
        }
        if self.hard_weight > 0 {
            for domains in topology.carried(pod, Group::Requires) {
                state.add(&domains, self.hard_weight);
            }
        }
        for domains in topology.carried(pod, Group::Prefers) {
            state.add(&domains, 1);
        }
        if state.0.is_empty() {
            PreScore::Skip
        } else {
            PreScore::Run(state)
        }
    }

    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        let affinity = &pod.class.spec.affinity;
        if !(affinity.pod_affinity.preferred.is_empty() && affinity.pod_anti_affinity.preferred.is_empty()) {
            return false;
        }
        let topology = &mut cluster.topology.borrow_mut();
        if self.ignore_preferred_terms_of_existing_pods || topology.carries_nothing() {
            return true;
        }
        topology.refresh(&cluster.namespaces);
        (self.hard_weight <= 0 || topology.carried(pod, Group::Requires).is_empty())
            && topology.carried(pod, Group::Prefers).is_empty()
    }

    fn score(&self, state: &ScoreState, _pod: &PodInfo, node: &NodeInfo) -> i64 {
        state.0.iter().map(|w| w.of(node.id)).sum()
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
        scores.resize(nodes.len(), 0);
        for weights in &state.0 {
            for (score, node) in scores.iter_mut().zip(nodes) {
                *score += weights.of(*node);
            }
        }
    }

    fn normalize(&self, _state: &ScoreState, _pod: &PodInfo, _nodes: &[NodeId], scores: &mut [i64]) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let most = scores.iter().copied().max().unwrap_or(0);
        if most == least {
            scores.fill(0);
            return;
        }
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let scale = |score: i64| (MAX_SCORE as f64 * ((score - least) as f64 / (most - least) as f64)) as i64;
        rescale(scores, least, most, scale);
    }
}
