//! What must hold: the pod's own required terms, and anti-affinity of pods that are there.

use std::sync::Arc;

use super::{AFFINITY, ANTI_AFFINITY, EXISTING_ANTI_AFFINITY, InterPodAffinity, Plan};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{Domains, Group, Namespaces, PodSelector};
use crate::framework::points::{Filter, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

#[derive(Clone)]
pub struct FilterState {
    /// None if the pod has no required terms itself.
    plan: Option<Arc<Plan>>,
    affinity: Vec<Domains>,
    /// Pods counted in `affinity`, over all domains and terms.
    near: i64,
    anti_affinity: Vec<Domains>,
    /// Pods whose anti-affinity the pod matches.
    existing: Vec<Domains>,
    /// The same, of keys that no such pod used so far: "what if" brought them in.
    extra: Vec<Extra>,
    namespaces: Arc<Namespaces>,
}

#[derive(Clone)]
struct Extra {
    key: String,
    value: String,
    pods: i32,
}

impl FilterState {
    fn affinity_holds(&self, node: NodeId) -> bool {
        let mut found = true;
        for domains in &self.affinity {
            match domains.count(node) {
                None => return false,
                Some(pods) => found &= pods > 0,
            }
        }
        // The first of a group of pods that want to be together may go anywhere.
        found || self.near == 0 && self.plan.as_ref().is_some_and(|p| p.own)
    }

    fn change(&mut self, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, by: i32) {
        if let Some(plan) = &self.plan {
            if !plan.affinity.is_empty() && plan.near.matches(&other.labels.set, &self.namespaces) {
                for domains in &mut self.affinity {
                    self.near += i64::from(domains.change(node.id, by).map_or(0, |_| by));
                }
            }
            for (domains, (matcher, _)) in self.anti_affinity.iter_mut().zip(&plan.anti_affinity) {
                if matcher.matches(&other.labels.set, &self.namespaces) {
                    domains.change(node.id, by);
                }
            }
        }
        for term in &other.class.spec.affinity.pod_anti_affinity.required {
            let carried = PodSelector::carried(term, other.namespace());
            if carried.matches(&pod.labels.set, &self.namespaces) {
                self.change_existing(&term.topology_key, node, by);
            }
        }
    }

    fn change_existing(&mut self, key: &str, node: &NodeInfo, by: i32) {
        if let Some(domains) = self.existing.iter_mut().find(|d| &*d.key == key) {
            domains.change(node.id, by);
            return;
        }
        let Some(value) = node.labels.get(key) else { return };
        match self.extra.iter_mut().find(|e| e.key == key && e.value == *value) {
            Some(extra) => extra.pods += by,
            None => self.extra.push(Extra {
                key: key.to_string(),
                value: value.clone(),
                pods: by,
            }),
        }
    }
}

impl Filter for InterPodAffinity {
    type State = FilterState;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<FilterState> {
        let affinity = &pod.class.spec.affinity;
        let own = !(affinity.pod_affinity.required.is_empty() && affinity.pod_anti_affinity.required.is_empty());
        let topology = &mut cluster.topology.borrow_mut();
        if !own && topology.carries_nothing() {
            return PreFilter::Skip;
        }
        topology.refresh(&cluster.namespaces);
        let existing = topology.carried(pod, Group::Repels);
        if !own && existing.is_empty() {
            return PreFilter::Skip;
        }
        let mut state = FilterState {
            plan: own.then(|| Plan::of(pod, topology)),
            affinity: vec![],
            near: 0,
            anti_affinity: vec![],
            existing,
            extra: vec![],
            namespaces: topology.namespaces().clone(),
        };
        if let Some(plan) = &state.plan {
            for counter in &plan.affinity {
                let reading = topology.read(*counter);
                state.near += reading.total;
                state.affinity.push(reading.domains);
            }
            let anti_affinity = plan.anti_affinity.iter().map(|(_, c)| topology.read(*c).domains);
            state.anti_affinity = anti_affinity.collect();
        }
        PreFilter::Run(state)
    }

    #[inline]
    fn filter(&self, state: &FilterState, _pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let full = |domains: &Vec<Domains>| domains.iter().any(|d| d.count(node.id).is_some_and(|pods| pods > 0));
        if !state.affinity.is_empty() && !state.affinity_holds(node.id) {
            return Err(Rejection::unresolvable(AFFINITY));
        }
        if full(&state.anti_affinity) {
            return Err(Rejection::unschedulable(ANTI_AFFINITY));
        }
        let extra = |e: &Extra| e.pods > 0 && node.labels.get(&e.key) == Some(&e.value);
        if full(&state.existing) || state.extra.iter().any(extra) {
            return Err(Rejection::unschedulable(EXISTING_ANTI_AFFINITY));
        }
        Ok(())
    }

    fn add_pod(&self, state: &mut FilterState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        state.change(pod, added, node, 1);
    }

    fn remove_pod(&self, state: &mut FilterState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        state.change(pod, removed, node, -1);
    }
}
