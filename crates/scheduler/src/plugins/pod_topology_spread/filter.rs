//! Constraints that must hold.

use std::sync::Arc;

use super::constraint::{Action, Plan, Planned};
use super::{NO_LABEL, PodTopologySpread, UNEVEN};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::Reading;
use crate::framework::detail::Detail;
use crate::framework::points::{Filter, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

#[derive(Clone)]
pub struct FilterState {
    plan: Arc<Plan>,
    /// In the order of the plan.
    parts: Vec<Part>,
}

#[derive(Clone)]
struct Part {
    reading: Reading,
    /// Fewest pods in a domain, over domains with nodes that count.
    least: i32,
    /// Domains with nodes that count.
    domains: usize,
    /// A domain that holds more will not do.
    limit: i64,
}

impl Part {
    fn new(planned: &Planned, reading: Reading) -> Part {
        let mut part = Part {
            least: 0,
            domains: reading.nodes.iter().filter(|n| **n > 0).count(),
            limit: 0,
            reading,
        };
        part.least = part.find_least();
        part.set_limit(planned);
        part
    }

    fn find_least(&self) -> i32 {
        let counts = &self.reading.domains.counts;
        let mut least = i32::MAX;
        for (nodes, pods) in self.reading.nodes.iter().zip(&**counts) {
            least = least.min(if *nodes > 0 { *pods } else { i32::MAX });
        }
        // Counts are as long as the last domain that ever held a pod: what lies beyond holds none.
        let beyond = self.reading.nodes.iter().skip(counts.len());
        if beyond.into_iter().any(|n| *n > 0) {
            least = least.min(0);
        }
        least
    }

    fn set_limit(&mut self, planned: &Planned) {
        let too_few = i64::try_from(self.domains).unwrap_or(i64::MAX) < i64::from(planned.constraint.min_domains);
        let least = if too_few { 0 } else { i64::from(self.least) };
        self.limit = i64::from(planned.constraint.max_skew) + least - i64::from(planned.own);
    }

    fn change(&mut self, planned: &Planned, node: &NodeInfo, by: i32) {
        if !self.reading.members.get(node.id.index()).copied().unwrap_or(false) {
            return;
        }
        let Some((_, before)) = self.reading.domains.change(node.id, by) else {
            return;
        };
        if before == self.least && by > 0 {
            self.least = self.find_least();
        } else {
            self.least = self.least.min(before + by);
        }
        self.set_limit(planned);
    }
}

impl FilterState {
    #[inline]
    fn judge(&self, node: NodeId) -> Verdict {
        for part in &self.parts {
            match part.reading.domains.count(node) {
                None => return Err(Rejection::unresolvable(NO_LABEL)),
                Some(pods) if i64::from(pods) > part.limit => return Err(Rejection::unschedulable(UNEVEN)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn change(&mut self, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, by: i32) {
        if pod.namespace() != other.namespace() {
            return;
        }
        for (part, planned) in self.parts.iter_mut().zip(&self.plan.constraints) {
            // Pods that are being deleted are taken off too, though they were not counted: as in Kubernetes.
            if planned.constraint.matches(other.label_set()) {
                part.change(planned, node, by);
            }
        }
    }
}

impl Filter for PodTopologySpread {
    type State = FilterState;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<FilterState> {
        if self.written(pod, Action::Require).is_none() {
            return PreFilter::Skip;
        }
        let topology = &mut cluster.topology.borrow_mut();
        let Some(plan) = self.plan(pod, cluster, topology, Action::Require) else {
            return PreFilter::Skip;
        };
        let parts = plan.constraints.iter().map(|c| Part::new(c, topology.read(c.counter)));
        PreFilter::Run(FilterState {
            parts: parts.collect(),
            plan,
        })
    }

    fn filter(&self, state: &FilterState, _pod: &PodInfo, node: &NodeInfo) -> Verdict {
        state.judge(node.id)
    }

    fn details(&self, state: &FilterState, _pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let parts = state.parts.iter().zip(&state.plan.constraints);
        let each = parts.filter_map(|(part, planned)| {
            let key = planned.constraint.key.clone();
            let pods = match part.reading.domains.count(node.id) {
                None => return Some(Detail::MissingTopologyKey { key }),
                Some(pods) => i64::from(pods),
            };
            (pods > part.limit).then(|| Detail::Spread {
                domain: node.labels.get(&key).cloned().unwrap_or_default(),
                key,
                pods,
                least: part.limit + i64::from(planned.own) - i64::from(planned.constraint.max_skew),
                max_skew: i64::from(planned.constraint.max_skew),
            })
        });
        each.collect()
    }

    fn retain(
        &self,
        state: &FilterState,
        _pod: &PodInfo,
        _cluster: &Cluster,
        nodes: &mut Vec<NodeId>,
        rejected: &mut dyn FnMut(NodeId, Rejection),
    ) {
        nodes.retain(|id| match state.judge(*id) {
            Ok(()) => true,
            Err(rejection) => {
                rejected(*id, rejection);
                false
            }
        });
    }

    fn add_pod(&self, state: &mut FilterState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        state.change(pod, added, node, 1);
    }

    fn remove_pod(&self, state: &mut FilterState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        state.change(pod, removed, node, -1);
    }
}
