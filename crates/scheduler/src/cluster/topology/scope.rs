//! Which nodes count.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::slab::Slab;
use crate::cluster::node::NodeInfo;
use crate::model::{Labels, NodeSelector, Taint, Toleration};

/// What is remembered of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    pub name: Arc<str>,
    pub labels: Arc<Labels>,
    pub taints: Arc<[Taint]>,
}

impl NodeRecord {
    pub fn of(node: &NodeInfo) -> NodeRecord {
        NodeRecord {
            name: node.name.clone(),
            labels: node.labels.clone(),
            taints: node.taints.clone(),
        }
    }
}

/// A set of nodes, by what they must be like. The default one is all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeScope {
    /// Labels that must be there, sorted.
    pub keys: Vec<String>,
    pub selector: Labels,
    /// All of these must match.
    pub required: Vec<NodeSelector>,
    /// If given, taints that these do not tolerate keep a node out.
    pub tolerations: Option<Vec<Toleration>>,
}

impl NodeScope {
    pub fn contains(&self, node: &NodeRecord) -> bool {
        self.keys.iter().all(|k| node.labels.contains_key(k))
            && self.selector.iter().all(|(k, v)| node.labels.get(k) == Some(v))
            && self.required.iter().all(|r| r.matches(&node.name, &node.labels))
            && self.tolerations.as_ref().is_none_or(|t| tolerated(t, &node.taints))
    }
}

/// Do the tolerations cover all taints that keep pods off a node?
fn tolerated(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    (taints.iter())
        .filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"))
        .all(|taint| tolerations.iter().any(|t| t.tolerates(taint)))
}

#[derive(Debug, Default)]
pub(super) struct Scopes {
    scopes: Slab<KnownScope>,
    by_scope: FxHashMap<Arc<NodeScope>, u32>,
}

#[derive(Debug)]
struct KnownScope {
    scope: Arc<NodeScope>,
    /// By node id.
    members: Arc<Vec<bool>>,
}

impl Scopes {
    pub(super) fn id(&mut self, scope: NodeScope, nodes: &[Option<NodeRecord>]) -> u32 {
        if let Some(&id) = self.by_scope.get(&scope) {
            return id;
        }
        let scope = Arc::new(scope);
        let members = nodes.iter().map(|n| n.as_ref().is_some_and(|n| scope.contains(n)));
        let id = self.scopes.insert(KnownScope {
            scope: scope.clone(),
            members: Arc::new(members.collect()),
        });
        self.by_scope.insert(scope, id);
        id
    }

    pub(super) fn members(&self, id: u32) -> &Arc<Vec<bool>> {
        &self.scopes[id].members
    }

    pub(super) fn contains(&self, id: u32, node: usize) -> bool {
        self.scopes[id].members.get(node).copied().unwrap_or(false)
    }

    pub(super) fn differ(&self, node: usize, after: Option<&NodeRecord>) -> bool {
        let changed = |s: &KnownScope| {
            s.members.get(node).copied().unwrap_or(false) != after.is_some_and(|n| s.scope.contains(n))
        };
        self.scopes.iter().any(|(_, s)| changed(s))
    }

    pub(super) fn change(&mut self, node: usize, after: Option<&NodeRecord>) {
        for known in self.scopes.values_mut() {
            let is = after.is_some_and(|n| known.scope.contains(n));
            let members = Arc::make_mut(&mut known.members);
            if members.len() <= node {
                members.resize(node + 1, false);
            }
            members[node] = is;
        }
    }

    pub(super) fn retain(&mut self, used: impl Fn(u32) -> bool) {
        self.by_scope.retain(|_, id| {
            let keep = used(*id);
            if !keep {
                self.scopes.remove(*id);
            }
            keep
        });
    }
}
