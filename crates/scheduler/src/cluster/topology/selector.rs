//! Which pods are meant: namespaces and labels.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use crate::cluster::pod::LabelSet;
use crate::model::{LabelSelector, Labels, Op, PodAffinityTerm};

/// Labels of namespaces by name. A namespace that is not known has none.
pub type Namespaces = HashMap<String, Labels>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodSelector {
    /// Any namespace will do.
    everywhere: bool,
    /// Sorted.
    namespaces: Vec<String>,
    /// These too.
    namespace_selector: Option<LabelSelector>,
    /// None: no pod at all.
    labels: Option<LabelSelector>,
}

impl PodSelector {
    pub fn in_namespace(namespace: &str, labels: Option<LabelSelector>) -> PodSelector {
        PodSelector {
            everywhere: false,
            namespaces: vec![namespace.to_string()],
            namespace_selector: None,
            labels,
        }
    }

    /// A term that a pod of the given namespace carries, for pods that come later.
    pub fn carried(term: &PodAffinityTerm, namespace: &str) -> PodSelector {
        let mut namespaces = term.namespaces.clone();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(namespace.to_string());
        }
        namespaces.sort();
        namespaces.dedup();
        let everywhere = term.namespace_selector.as_ref().is_some_and(LabelSelector::is_empty);
        PodSelector {
            everywhere,
            namespaces: if everywhere { vec![] } else { namespaces },
            namespace_selector: term.namespace_selector.clone().filter(|_| !everywhere),
            labels: term.label_selector.clone(),
        }
    }

    /// A term of a pod that is to be placed, for pods that are there.
    ///
    /// In Kubernetes a namespace selector that would match a namespace without labels then matches all namespaces: it is
    /// resolved to names, but stays in the term and is asked again with no labels.
    pub fn asked(term: &PodAffinityTerm, namespace: &str) -> PodSelector {
        let mut selector = PodSelector::carried(term, namespace);
        if selector
            .namespace_selector
            .as_ref()
            .is_some_and(|s| s.matches(&Labels::new()))
        {
            selector.everywhere = true;
            selector.namespaces.clear();
            selector.namespace_selector = None;
        }
        selector
    }

    pub fn matches(&self, pod: &LabelSet, namespaces: &Namespaces) -> bool {
        self.labels.as_ref().is_some_and(|l| l.matches(&pod.labels)) && self.covers(&pod.namespace, namespaces)
    }

    fn covers(&self, namespace: &str, namespaces: &Namespaces) -> bool {
        self.everywhere
            || self.namespaces.iter().any(|n| n == namespace)
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|s| match namespaces.get(namespace) {
                    Some(labels) => s.matches(labels),
                    None => s.matches(&Labels::new()),
                })
    }

    /// The namespaces it is limited to, if they can be told by name.
    fn names(&self) -> Option<&[String]> {
        (!self.everywhere && self.namespace_selector.is_none()).then_some(&self.namespaces)
    }

    /// A label that every pod it matches has: what it is found by.
    pub fn anchor(&self) -> Option<(&str, &str)> {
        let labels = self.labels.as_ref()?;
        let exact = labels.match_labels.iter().next().map(|(k, v)| (k.as_str(), v.as_str()));
        exact.or_else(|| {
            labels.match_expressions.iter().find_map(|r| match &r.op {
                Op::In(values) if values.len() == 1 => Some((r.key.as_str(), values[0].as_str())),
                _ => None,
            })
        })
    }
}

/// Pods that all of the selectors mean.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matcher {
    pub all: Vec<PodSelector>,
    /// Pods that are being deleted count too.
    pub terminating: bool,
}

impl Matcher {
    pub fn matches(&self, pod: &LabelSet, namespaces: &Namespaces) -> bool {
        (self.terminating || !pod.terminating) && self.all.iter().all(|s| s.matches(pod, namespaces))
    }

    pub fn names(&self) -> Option<&[String]> {
        self.all.iter().find_map(PodSelector::names)
    }

    pub fn anchor(&self) -> Option<(&str, &str)> {
        self.all.iter().find_map(PodSelector::anchor)
    }
}

/// Finds the selectors that may match a set of labels without trying them all.
#[derive(Debug, Default)]
pub(super) struct Index {
    anchored: FxHashMap<String, FxHashMap<String, Vec<u32>>>,
    others: Vec<u32>,
}

impl Index {
    pub(super) fn add(&mut self, id: u32, anchor: Option<(&str, &str)>) {
        self.list(anchor).push(id);
    }

    pub(super) fn remove(&mut self, id: u32, anchor: Option<(&str, &str)>) {
        self.list(anchor).retain(|i| *i != id);
        let Some((key, value)) = anchor else { return };
        if let Some(values) = self.anchored.get_mut(key) {
            values.retain(|v, ids| v != value || !ids.is_empty());
            if values.is_empty() {
                self.anchored.remove(key);
            }
        }
    }

    fn list(&mut self, anchor: Option<(&str, &str)>) -> &mut Vec<u32> {
        match anchor {
            None => &mut self.others,
            Some((key, value)) => {
                let values = self.anchored.entry(key.to_string()).or_default();
                values.entry(value.to_string()).or_default()
            }
        }
    }

    pub(super) fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = u32> + 'a {
        let anchored = labels.iter().filter_map(|(k, v)| self.anchored.get(k)?.get(v));
        anchored.flatten().chain(&self.others).copied()
    }
}
