//! Topology keys in use: for each, which domain every node is in.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::scope::NodeRecord;
use super::slab::Slab;
use crate::cluster::node::NodeId;

/// In a column: the node has no such label.
pub const NOWHERE: u32 = u32::MAX;

/// Node id → number of its domain. Shared with the states of plugins, copied when it changes under them.
pub type Column = Arc<Vec<u32>>;

/// How many pods (or how much weight) each domain of a topology key holds.
#[derive(Clone, Debug)]
pub struct Domains {
    pub key: Arc<str>,
    pub column: Column,
    pub counts: Arc<Vec<i32>>,
}

impl Domains {
    #[inline]
    pub fn domain(&self, node: NodeId) -> Option<usize> {
        match self.column.get(node.index()) {
            None | Some(&NOWHERE) => None,
            Some(&domain) => Some(domain as usize),
        }
    }

    /// What the node's domain holds; None if the node is in none.
    #[inline]
    pub fn count(&self, node: NodeId) -> Option<i32> {
        let domain = self.domain(node)?;
        Some(self.counts.get(domain).copied().unwrap_or(0))
    }

    /// Adds to the node's domain. Gives the domain with what it held before; None if the node is in none.
    pub fn change(&mut self, node: NodeId, by: i32) -> Option<(usize, i32)> {
        let domain = self.domain(node)?;
        let before = add_at(&mut self.counts, domain, by);
        Some((domain, before))
    }
}

/// Adds, growing the table if need be; gives the value before.
pub(super) fn add_at(counts: &mut Arc<Vec<i32>>, at: usize, by: i32) -> i32 {
    let counts = Arc::make_mut(counts);
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    let before = counts[at];
    counts[at] += by;
    before
}

pub(super) type KeyId = u32;

/// Not a label: every node is a domain of its own.
pub(super) const EACH_NODE: KeyId = 0;

#[derive(Debug)]
pub(super) struct Keys {
    keys: Slab<Key>,
    by_name: FxHashMap<Arc<str>, KeyId>,
}

#[derive(Debug, Default)]
struct Key {
    name: Arc<str>,
    column: Column,
    values: FxHashMap<String, u32>,
    /// Domain → how many nodes are in it. Numbers of empty domains are given out again.
    nodes: Vec<u32>,
    free: Vec<u32>,
    /// Nodes that are in some domain.
    placed: usize,
}

impl Default for Keys {
    fn default() -> Keys {
        let mut keys = Slab::default();
        keys.insert(Key::default());
        Keys {
            keys,
            by_name: FxHashMap::default(),
        }
    }
}

impl Key {
    fn place(&mut self, node: usize, value: Option<&str>, before: Option<&str>) {
        let column = Arc::make_mut(&mut self.column);
        if column.len() <= node {
            column.resize(node + 1, NOWHERE);
        }
        let old = column[node];
        if old != NOWHERE {
            if value == before {
                return;
            }
            self.placed -= 1;
            self.nodes[old as usize] -= 1;
            if self.nodes[old as usize] == 0 {
                self.values.remove(before.expect("the node was in a domain"));
                self.free.push(old);
            }
        }
        column[node] = match value {
            None => NOWHERE,
            Some(value) => {
                let domain = match self.values.get(value) {
                    Some(&domain) => domain,
                    None => {
                        let domain = self.free.pop().unwrap_or_else(|| {
                            self.nodes.push(0);
                            u32::try_from(self.nodes.len() - 1).expect("no more domains than nodes")
                        });
                        self.values.insert(value.to_string(), domain);
                        domain
                    }
                };
                self.placed += 1;
                self.nodes[domain as usize] += 1;
                domain
            }
        };
    }
}

impl Keys {
    /// The key's number; it is in use from now on.
    pub(super) fn id(&mut self, name: &str, nodes: &[Option<NodeRecord>]) -> KeyId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let mut key = Key {
            name: name.clone(),
            column: Arc::new(vec![NOWHERE; nodes.len()]),
            ..Key::default()
        };
        for (at, node) in nodes.iter().enumerate() {
            if let Some(value) = node.as_ref().and_then(|n| n.labels.get(&*name)) {
                key.place(at, Some(value), None);
            }
        }
        let id = self.keys.insert(key);
        self.by_name.insert(name, id);
        id
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn name(&self, id: KeyId) -> &Arc<str> {
        &self.keys[id].name
    }

    pub(super) fn column(&self, id: KeyId) -> &Column {
        &self.keys[id].column
    }

    /// The number of the domain with this value, if some node is in it.
    pub(super) fn domain_of(&self, id: KeyId, value: &str) -> Option<u32> {
        self.keys[id].values.get(value).copied()
    }

    pub(super) fn domain(&self, id: KeyId, node: usize) -> Option<usize> {
        match self.keys[id].column.get(node) {
            None | Some(&NOWHERE) => None,
            Some(&domain) => Some(domain as usize),
        }
    }

    /// One more than the largest domain.
    pub(super) fn width(&self, id: KeyId) -> usize {
        let key = &self.keys[id];
        if id == EACH_NODE {
            key.column.len()
        } else {
            key.nodes.len()
        }
    }

    /// How many domains there are, and how many nodes are in one.
    pub(super) fn extent(&self, id: KeyId) -> (usize, usize) {
        let key = &self.keys[id];
        (key.values.len(), key.placed)
    }

    pub(super) fn differ(&self, before: Option<&NodeRecord>, after: Option<&NodeRecord>) -> bool {
        self.by_name.keys().any(|k| value(before, k) != value(after, k))
    }

    /// A node is new, has changed or is gone.
    pub(super) fn change(&mut self, node: usize, before: Option<&NodeRecord>, after: Option<&NodeRecord>) {
        let each = Arc::make_mut(&mut self.keys[EACH_NODE].column);
        if each.len() <= node {
            each.resize(node + 1, NOWHERE);
        }
        each[node] = if after.is_some() {
            u32::try_from(node).expect("node ids are small")
        } else {
            NOWHERE
        };
        for (&id, name) in self.by_name.iter().map(|(name, id)| (id, name)) {
            self.keys[id].place(node, value(after, name), value(before, name));
        }
    }

    /// Forgets keys that nothing uses.
    pub(super) fn retain(&mut self, used: impl Fn(KeyId) -> bool) {
        let unused: Vec<Arc<str>> = (self.by_name.iter())
            .filter(|(_, id)| !used(**id))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unused {
            if let Some(id) = self.by_name.remove(&name) {
                self.keys.remove(id);
            }
        }
    }
}

fn value<'a>(node: Option<&'a NodeRecord>, key: &str) -> Option<&'a str> {
    node?.labels.get(key).map(String::as_str)
}
