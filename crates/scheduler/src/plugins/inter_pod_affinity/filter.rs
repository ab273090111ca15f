//! What must hold: the pod's own required terms, and anti-affinity of pods that are there.

use std::sync::Arc;

use super::{AFFINITY, ANTI_AFFINITY, EXISTING_ANTI_AFFINITY, InterPodAffinity, Plan};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{Domains, Group, Namespaces, PodSelector};
use crate::framework::detail::Detail;
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

#[inline]
fn holds_some(domains: &Domains, node: NodeId) -> bool {
    domains.count(node).is_some_and(|pods| pods > 0)
}

impl FilterState {
    fn judge(&self, node: NodeId) -> Verdict {
        if !self.affinity.is_empty() && !self.affinity_holds(node) {
            return Err(Rejection::unresolvable(AFFINITY));
        }
        if self.anti_affinity.iter().any(|d| holds_some(d, node)) {
            return Err(Rejection::unschedulable(ANTI_AFFINITY));
        }
        if self.existing.iter().any(|d| holds_some(d, node)) {
            return Err(Rejection::unschedulable(EXISTING_ANTI_AFFINITY));
        }
        Ok(())
    }

    #[inline]
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

fn reject(
    nodes: &mut Vec<NodeId>,
    out: impl Fn(NodeId) -> bool,
    why: Rejection,
    rejected: &mut dyn FnMut(NodeId, Rejection),
) {
    nodes.retain(|id| {
        let out = out(*id);
        if out {
            rejected(*id, why.clone());
        }
        !out
    });
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

    fn filter(&self, state: &FilterState, _pod: &PodInfo, node: &NodeInfo) -> Verdict {
        state.judge(node.id)?;
        let extra = |e: &Extra| e.pods > 0 && node.labels.get(&e.key) == Some(&e.value);
        if state.extra.iter().any(extra) {
            return Err(Rejection::unschedulable(EXISTING_ANTI_AFFINITY));
        }
        Ok(())
    }

    fn details(&self, state: &FilterState, _pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let named = |domains: &Domains| {
            let key = domains.key.to_string();
            let domain = node.labels.get(&key).cloned().unwrap_or_default();
            (key, domain)
        };
        let mut all = vec![];
        if !state.affinity.is_empty() && !state.affinity_holds(node.id) {
            for domains in &state.affinity {
                let (key, domain) = named(domains);
                match domains.count(node.id) {
                    None => all.push(Detail::MissingTopologyKey { key }),
                    Some(pods) if pods <= 0 => all.push(Detail::PodAffinity { key, domain }),
                    Some(_) => {}
                }
            }
        }
        let pods_of = |domains: &Domains| i64::from(domains.count(node.id).unwrap_or(0));
        for domains in state.anti_affinity.iter().filter(|d| holds_some(d, node.id)) {
            let ((key, domain), pods) = (named(domains), pods_of(domains));
            all.push(Detail::PodAntiAffinity { key, domain, pods });
        }
        for domains in state.existing.iter().filter(|d| holds_some(d, node.id)) {
            let ((key, domain), pods) = (named(domains), pods_of(domains));
            all.push(Detail::ExistingAntiAffinity { key, domain, pods });
        }
        all
    }

    /// Table by table, in the order of the reasons.
    fn retain(
        &self,
        state: &FilterState,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &mut Vec<NodeId>,
        rejected: &mut dyn FnMut(NodeId, Rejection),
    ) {
        const NEAR: Rejection = Rejection::unresolvable(AFFINITY);
        const APART: Rejection = Rejection::unschedulable(ANTI_AFFINITY);
        const EXISTING: Rejection = Rejection::unschedulable(EXISTING_ANTI_AFFINITY);
        if !state.affinity.is_empty() {
            reject(nodes, |id| !state.affinity_holds(id), NEAR, rejected);
        }
        for domains in &state.anti_affinity {
            reject(nodes, |id| holds_some(domains, id), APART, rejected);
        }
        for domains in &state.existing {
            reject(nodes, |id| holds_some(domains, id), EXISTING, rejected);
        }
        if !state.extra.is_empty() {
            let refuses = |id| {
                cluster
                    .node(id)
                    .is_none_or(|n| Filter::filter(self, state, pod, n).is_err())
            };
            reject(nodes, refuses, EXISTING, rejected);
        }
    }

    fn add_pod(&self, state: &mut FilterState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        state.change(pod, added, node, 1);
    }

    fn remove_pod(&self, state: &mut FilterState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        state.change(pod, removed, node, -1);
    }
}
