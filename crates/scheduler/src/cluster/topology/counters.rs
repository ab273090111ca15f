//! How many pods of a kind each domain holds, kept up to date pod by pod.
//!
//! The *census* says of every label class how many pods of it are on which node, and which matchers mean it. So a new
//! counter is made from the classes it means, and a pod's coming or going touches just the counters that mean it.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::keys::{KeyId, Keys, add_at};
use super::scope::Scopes;
use super::selector::{Index, Matcher, Namespaces};
use super::slab::Slab;
use crate::cluster::pod::LabelClass;

pub type CounterId = u32;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub counters: Slab<Counter>,
    by_ask: FxHashMap<(KeyId, u32, u32), CounterId>,
    matchers: Slab<Known>,
    by_matcher: FxHashMap<Arc<Matcher>, u32>,
    index: Index,
    census: FxHashMap<u64, Class>,
    by_namespace: FxHashMap<Arc<str>, FxHashSet<u64>>,
}

#[derive(Debug)]
pub(super) struct Counter {
    pub key: KeyId,
    pub scope: u32,
    matcher: u32,
    pub counts: Arc<Vec<i32>>,
    /// Domain → how many nodes that count are in it.
    pub nodes: Arc<Vec<u32>>,
    /// Pods counted.
    pub total: i64,
    pub used: u64,
}

#[derive(Debug)]
struct Known {
    matcher: Arc<Matcher>,
    counters: Vec<CounterId>,
}

#[derive(Debug)]
struct Class {
    labels: Arc<LabelClass>,
    matchers: Vec<u32>,
    /// Node id → how many pods.
    on: FxHashMap<u32, i32>,
}

impl Counter {
    fn add(&mut self, node: u32, by: i32, keys: &Keys, scopes: &Scopes) {
        if scopes.contains(self.scope, node as usize)
            && let Some(domain) = keys.domain(self.key, node as usize)
        {
            add_at(&mut self.counts, domain, by);
            self.total += i64::from(by);
        }
    }

    /// The node itself comes into (or goes out of) its domain.
    fn add_node(&mut self, node: usize, comes: bool, keys: &Keys, scopes: &Scopes) {
        if scopes.contains(self.scope, node)
            && let Some(domain) = keys.domain(self.key, node)
        {
            let nodes = Arc::make_mut(&mut self.nodes);
            if nodes.len() <= domain {
                nodes.resize(domain + 1, 0);
            }
            nodes[domain] = if comes { nodes[domain] + 1 } else { nodes[domain] - 1 };
        }
    }
}

impl Counters {
    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    // ---- asking ----

    pub(super) fn id(
        &mut self,
        key: KeyId,
        matcher: Matcher,
        scope: u32,
        (keys, scopes): (&Keys, &Scopes),
        namespaces: &Namespaces,
    ) -> CounterId {
        let matcher = self.matcher(matcher, namespaces);
        if let Some(&id) = self.by_ask.get(&(key, matcher, scope)) {
            return id;
        }
        let mut counter = Counter {
            key,
            scope,
            matcher,
            counts: Arc::new(vec![0; keys.width(key)]),
            nodes: Arc::new(vec![0; keys.width(key)]),
            total: 0,
            used: 0,
        };
        for node in 0..scopes.members(scope).len() {
            counter.add_node(node, true, keys, scopes);
        }
        for id in self.may_match(&self.matchers[matcher].matcher) {
            let class = &self.census[&id];
            if class.matchers.contains(&matcher) {
                for (&node, &pods) in &class.on {
                    counter.add(node, pods, keys, scopes);
                }
            }
        }
        let id = self.counters.insert(counter);
        self.matchers[matcher].counters.push(id);
        self.by_ask.insert((key, matcher, scope), id);
        id
    }

    fn matcher(&mut self, matcher: Matcher, namespaces: &Namespaces) -> u32 {
        if let Some(&id) = self.by_matcher.get(&matcher) {
            return id;
        }
        let matcher = Arc::new(matcher);
        let id = self.matchers.insert(Known {
            matcher: matcher.clone(),
            counters: vec![],
        });
        self.index.add(id, matcher.anchor());
        for class in self.may_match(&matcher) {
            let class = self.census.get_mut(&class).expect("listed just now");
            if matcher.matches(&class.labels.set, namespaces) {
                class.matchers.push(id);
            }
        }
        self.by_matcher.insert(matcher, id);
        id
    }

    /// Label classes in namespaces that the matcher is limited to.
    fn may_match(&self, matcher: &Matcher) -> Vec<u64> {
        match matcher.names() {
            None => self.census.keys().copied().collect(),
            Some(names) => (names.iter())
                .filter_map(|n| self.by_namespace.get(n.as_str()))
                .flatten()
                .copied()
                .collect(),
        }
    }

    // ---- pods ----

    pub(super) fn add_pod(
        &mut self,
        labels: &Arc<LabelClass>,
        node: u32,
        by: i32,
        at: (&Keys, &Scopes),
        ns: &Namespaces,
    ) {
        if !self.census.contains_key(&labels.id) {
            self.take_up(labels, ns);
        }
        let class = self.census.get_mut(&labels.id).expect("taken up just now");
        let pods = class.on.entry(node).or_insert(0);
        *pods += by;
        if *pods == 0 {
            class.on.remove(&node);
        }
        for matcher in &class.matchers {
            for counter in &self.matchers[*matcher].counters {
                self.counters[*counter].add(node, by, at.0, at.1);
            }
        }
        if class.on.is_empty() {
            self.census.remove(&labels.id);
            if let Some(ids) = self.by_namespace.get_mut(&labels.set.namespace) {
                ids.remove(&labels.id);
                if ids.is_empty() {
                    self.by_namespace.remove(&labels.set.namespace);
                }
            }
        }
    }

    fn take_up(&mut self, labels: &Arc<LabelClass>, namespaces: &Namespaces) {
        let class = Class {
            labels: labels.clone(),
            matchers: self.matching(labels, namespaces),
            on: FxHashMap::default(),
        };
        self.census.insert(labels.id, class);
        let namespace = labels.set.namespace.clone();
        self.by_namespace.entry(namespace).or_default().insert(labels.id);
    }

    fn matching(&self, labels: &LabelClass, namespaces: &Namespaces) -> Vec<u32> {
        (self.index.candidates(&labels.set.labels))
            .filter(|id| self.matchers[*id].matcher.matches(&labels.set, namespaces))
            .collect()
    }

    /// Counts a pod that stays on its node out of (or back into) the node's domains.
    pub(super) fn shift_pod(&mut self, labels: &LabelClass, node: u32, by: i32, at: (&Keys, &Scopes)) {
        let Some(class) = self.census.get(&labels.id) else {
            return;
        };
        for matcher in &class.matchers {
            for counter in &self.matchers[*matcher].counters {
                self.counters[*counter].add(node, by, at.0, at.1);
            }
        }
    }

    pub(super) fn shift_node(&mut self, node: usize, comes: bool, at: (&Keys, &Scopes)) {
        for counter in self.counters.values_mut() {
            counter.add_node(node, comes, at.0, at.1);
        }
    }

    /// The namespace got other labels.
    pub(super) fn namespace_changed(&mut self, namespace: &str, namespaces: &Namespaces, at: (&Keys, &Scopes)) {
        let classes = self.by_namespace.get(namespace).cloned().unwrap_or_default();
        for id in classes {
            let now = self.matching(&self.census[&id].labels, namespaces);
            let class = self.census.get_mut(&id).expect("listed just now");
            let before = std::mem::replace(&mut class.matchers, now.clone());
            let gone = before.iter().filter(|m| !now.contains(m)).map(|m| (m, -1));
            let new = now.iter().filter(|m| !before.contains(m)).map(|m| (m, 1));
            for (matcher, sign) in gone.chain(new) {
                for counter in &self.matchers[*matcher].counters {
                    for (&node, &pods) in &class.on {
                        self.counters[*counter].add(node, sign * pods, at.0, at.1);
                    }
                }
            }
        }
    }

    // ---- forgetting ----

    /// Drops all but the `keep` counters that were used last.
    pub(super) fn forget(&mut self, keep: usize) {
        let mut by_use: Vec<(u64, CounterId)> = self.counters.iter().map(|(id, c)| (c.used, id)).collect();
        by_use.sort_unstable();
        let excess = by_use.len().saturating_sub(keep);
        for (_, id) in by_use.drain(..excess) {
            let counter = self.counters.remove(id);
            self.by_ask.remove(&(counter.key, counter.matcher, counter.scope));
            self.matchers[counter.matcher].counters.retain(|c| *c != id);
        }
        let idle = (self.matchers.iter()).filter(|(_, m)| m.counters.is_empty());
        let idle: FxHashSet<u32> = idle.map(|(id, _)| id).collect();
        for id in &idle {
            let known = self.matchers.remove(*id);
            self.index.remove(*id, known.matcher.anchor());
            self.by_matcher.remove(&known.matcher);
        }
        for class in self.census.values_mut() {
            class.matchers.retain(|m| !idle.contains(m));
        }
    }
}
