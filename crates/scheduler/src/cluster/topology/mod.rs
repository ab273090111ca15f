//! Which domain of a topology key a node is in, and how many pods of which kind each domain holds.
//!
//! ```text
//!   node events ──▶ keys (node → domain), scopes (which nodes count)
//!   pod events ───▶ counters: pods that a pod of ours asks about, by domain
//!                   carried:  terms of pods that are there, by domain
//! ```
//!
//! Counters are made when a pod first asks for them and then kept up to date; those that nobody asked for in a while are
//! dropped. What plugins get are shared tables: they may keep them, and see no later change.

mod carried;
mod counters;
mod keys;
mod scope;
mod selector;
mod slab;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::node::NodeInfo;
use super::pod::PodInfo;
use crate::model::Labels;
use carried::Carried;
use counters::Counters;
use keys::{EACH_NODE, Keys};
use scope::{NodeRecord, Scopes};

pub use carried::Group;
pub use counters::CounterId;
pub use keys::{Column, Domains, NOWHERE};
pub use scope::NodeScope;
pub use selector::{Matcher, Namespaces, PodSelector};

/// Counters kept at most; when there are more, the half used last stays.
const COUNTERS: usize = 512;
/// Topology keys kept at most, but for those in use.
const KEYS: usize = 64;
/// Plans kept at most.
const PLANS: usize = 8192;

/// Whose plan: which plugin's, for which class of pods with which labels, and what else it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    pub plugin: u64,
    pub class: u64,
    pub labels: u64,
    pub extra: u64,
}

/// What a counter says.
#[derive(Clone, Debug)]
pub struct Reading {
    pub domains: Domains,
    /// Domain → how many nodes that count are in it.
    pub nodes: Arc<Vec<u32>>,
    /// Node id → whether the node counts.
    pub members: Arc<Vec<bool>>,
    /// Pods counted, in all domains.
    pub total: i64,
}

#[derive(Default, Debug)]
pub struct Topology {
    nodes: Vec<Option<NodeRecord>>,
    keys: Keys,
    scopes: Scopes,
    counters: Counters,
    carried: Carried,
    namespaces: Arc<Namespaces>,
    /// Namespaces have changed since they were last looked at.
    stale: bool,
    plans: FxHashMap<PlanKey, Arc<dyn Any + Send + Sync>>,
    clock: u64,
}

impl Topology {
    // ---- what happens in the cluster ----

    pub fn node_added(&mut self, node: &NodeInfo) {
        let at = node.id.index();
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, None);
        }
        self.change_node(at, Some(NodeRecord::of(node)));
    }

    pub fn node_changed(&mut self, _before: &Arc<Labels>, node: &NodeInfo) {
        let at = node.id.index();
        let after = NodeRecord::of(node);
        if self.keys.differ(self.nodes[at].as_ref(), Some(&after)) || self.scopes.differ(at, Some(&after)) {
            self.shift_pods(node, -1);
            self.change_node(at, Some(after));
            self.shift_pods(node, 1);
        } else {
            self.nodes[at] = Some(after);
        }
    }

    /// Its pods are removed before.
    pub fn node_removed(&mut self, node: &NodeInfo) {
        self.change_node(node.id.index(), None);
    }

    fn change_node(&mut self, at: usize, after: Option<NodeRecord>) {
        self.counters.shift_node(at, false, (&self.keys, &self.scopes));
        self.keys.change(at, self.nodes[at].as_ref(), after.as_ref());
        self.scopes.change(at, after.as_ref());
        self.counters.shift_node(at, true, (&self.keys, &self.scopes));
        self.nodes[at] = after;
    }

    fn shift_pods(&mut self, node: &NodeInfo, by: i32) {
        for pod in &node.pods {
            let at = (&self.keys, &self.scopes);
            self.counters.shift_pod(&pod.labels, node.id.0, by, at);
            self.carried.shift_pod(pod, node.id.0, by, &self.keys);
        }
    }

    pub fn pod_added(&mut self, pod: &PodInfo, node: &NodeInfo) {
        let at = (&self.keys, &self.scopes);
        self.counters.add_pod(&pod.labels, node.id.0, 1, at, &self.namespaces);
        self.carried.add_pod(pod, node.id.0, &mut self.keys, &self.nodes);
    }

    pub fn pod_removed(&mut self, pod: &PodInfo, node: &NodeInfo) {
        let at = (&self.keys, &self.scopes);
        self.counters.add_pod(&pod.labels, node.id.0, -1, at, &self.namespaces);
        self.carried.remove_pod(pod, node.id.0, &self.keys);
    }

    /// Looked at when somebody next asks for something.
    pub fn namespaces_changed(&mut self) {
        self.stale = true;
    }

    // ---- what plugins ask ----

    /// Takes in what has changed in namespaces. To be called before anything is asked.
    pub fn refresh(&mut self, namespaces: &Namespaces) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let gone = self.namespaces.keys().filter(|n| !namespaces.contains_key(*n));
        let other = (namespaces.iter()).filter(|(n, labels)| self.namespaces.get(*n) != Some(labels));
        let changed: Vec<String> = gone.chain(other.map(|(n, _)| n)).cloned().collect();
        let known = Arc::make_mut(&mut self.namespaces);
        for name in &changed {
            match namespaces.get(name) {
                Some(labels) => known.insert(name.clone(), labels.clone()),
                None => known.remove(name),
            };
        }
        for name in &changed {
            let at = (&self.keys, &self.scopes);
            self.counters.namespace_changed(name, &self.namespaces, at);
        }
        self.carried.namespaces_changed();
        self.plans.clear();
    }

    /// The namespaces as they were at the last `refresh`.
    pub fn namespaces(&self) -> &Arc<Namespaces> {
        &self.namespaces
    }

    /// No pod on a node carries terms of pod (anti-)affinity.
    pub fn carries_nothing(&self) -> bool {
        self.carried.is_empty()
    }

    /// What the terms of a group that pods on nodes carry and that match `pod` amount to, by topology key: pods, or
    /// weights for `Prefers`. Empty if there is no such pod.
    pub fn carried(&mut self, pod: &PodInfo, group: Group) -> Vec<Domains> {
        let carried = &mut self.carried;
        carried.matching(&pod.labels, group, &self.keys, &self.namespaces)
    }

    /// What a plugin makes of a pod, kept for pods of its like. It may hold `CounterId`s: it is forgotten with them.
    pub fn planned<T: Any + Send + Sync>(&mut self, key: PlanKey, make: impl FnOnce(&mut Topology) -> T) -> Arc<T> {
        let known = self.plans.get(&key).cloned();
        if let Some(plan) = known.and_then(|p| p.downcast().ok()) {
            return plan;
        }
        let plan = Arc::new(make(self));
        if self.plans.len() >= PLANS {
            self.plans.clear();
        }
        self.plans.insert(key, plan.clone());
        plan
    }

    /// The counter of pods that match, by domain of the topology key (or by node, if that is None), on nodes in scope.
    pub fn counter(&mut self, key: Option<&str>, matcher: Matcher, scope: NodeScope) -> CounterId {
        if self.counters.len() >= COUNTERS {
            self.forget(COUNTERS / 2);
        }
        let key = key.map_or(EACH_NODE, |key| self.keys.id(key, &self.nodes));
        let scope = self.scopes.id(scope, &self.nodes);
        let at = (&self.keys, &self.scopes);
        let id = self.counters.id(key, matcher, scope, at, &self.namespaces);
        self.clock += 1;
        self.counters.counters[id].used = self.clock;
        id
    }

    /// Of a counter named by a plan, or just now.
    pub fn read(&mut self, id: CounterId) -> Reading {
        self.clock += 1;
        let counter = &mut self.counters.counters[id];
        counter.used = self.clock;
        Reading {
            domains: Domains {
                key: self.keys.name(counter.key).clone(),
                column: self.keys.column(counter.key).clone(),
                counts: counter.counts.clone(),
            },
            nodes: counter.nodes.clone(),
            members: self.scopes.members(counter.scope).clone(),
            total: counter.total,
        }
    }

    /// Node id → domain of the topology key.
    pub fn column(&mut self, key: &str) -> Column {
        if self.keys.len() > KEYS {
            self.forget(COUNTERS);
        }
        let id = self.keys.id(key, &self.nodes);
        self.keys.column(id).clone()
    }

    /// How many domains of the key there are, and how many nodes are in one.
    pub fn extent(&mut self, key: &str) -> (usize, usize) {
        let id = self.keys.id(key, &self.nodes);
        self.keys.extent(id)
    }

    /// The number of the domain with this value of the key, if some node is in it.
    pub fn domain_of(&mut self, key: &str, value: &str) -> Option<u32> {
        let id = self.keys.id(key, &self.nodes);
        self.keys.domain_of(id, value)
    }

    /// Drops what was not asked for in a while, and what only that needed.
    fn forget(&mut self, keep: usize) {
        self.plans.clear();
        self.counters.forget(keep);
        let counters = &self.counters.counters;
        self.scopes.retain(|id| counters.iter().any(|(_, c)| c.scope == id));
        let carried = &self.carried;
        let used = |id| carried.uses(id) || counters.iter().any(|(_, c)| c.key == id);
        self.keys.retain(used);
    }
}
