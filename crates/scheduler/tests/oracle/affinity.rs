//! Affinity and anti-affinity between pods.

use std::collections::BTreeMap;

use orlop_scheduler::model::{Labels, Node, Pod, PodAffinityTerm};

use crate::spread::Scores;
use crate::world::{WhatIf, World, selects};

/// Whether `term` of `owner` means `other`. A namespace that is not known has no labels. Terms of the incoming pod have
/// a peculiarity: Kubernetes asks their namespace selectors a second time, of no labels at all, so that one that selects
/// a namespace without labels selects every namespace.
fn means(world: &World, term: &PodAffinityTerm, owner: &Pod, other: &Pod, owner_comes: bool) -> bool {
    let namespace = &other.metadata.namespace;
    let own_only = term.namespaces.is_empty() && term.namespace_selector.is_none();
    let named = term.namespaces.contains(namespace) || own_only && *namespace == owner.metadata.namespace;
    let nothing = Labels::new();
    let labels = world.namespaces.get(namespace).unwrap_or(&nothing);
    let selected =
        (term.namespace_selector.as_ref()).is_some_and(|s| selects(s, labels) || owner_comes && selects(s, &nothing));
    (named || selected)
        && term
            .label_selector
            .as_ref()
            .is_some_and(|s| selects(s, &other.metadata.labels))
}

fn means_all(world: &World, terms: &[PodAffinityTerm], owner: &Pod, other: &Pod) -> bool {
    terms.iter().all(|t| means(world, t, owner, other, true))
}

/// Every pod on a node that is there, with that node.
fn everywhere<'a>(world: &'a World, at: &'a Node, what: &'a WhatIf) -> Vec<(&'a Pod, &'a Node)> {
    let mut all = vec![];
    for node in world.nodes.values() {
        if node.metadata.name == at.metadata.name {
            all.extend(what.pods(world, &node.metadata.name).into_iter().map(|p| (p, node)));
        } else {
            all.extend(world.pods_on(&node.metadata.name).into_iter().map(|p| (p, node)));
        }
    }
    all
}

/// Nothing to check for this pod: asked once, before pods come or go in thought.
pub(crate) fn skips(world: &World, pod: &Pod) -> bool {
    let own = &pod.spec.affinity;
    if !own.pod_affinity.required.is_empty() || !own.pod_anti_affinity.required.is_empty() {
        return false;
    }
    let pods = world
        .placed
        .values()
        .filter_map(|(p, n)| Some((p, world.nodes.get(n)?)));
    for (other, node) in pods {
        for term in &other.spec.affinity.pod_anti_affinity.required {
            if node.metadata.labels.contains_key(&term.topology_key) && means(world, term, other, pod, false) {
                return false;
            }
        }
    }
    true
}

pub(crate) fn filter(world: &World, pod: &Pod, node: &Node, what: &WhatIf) -> Option<(&'static str, bool)> {
    let all = everywhere(world, node, what);
    let domain = |n: &Node, key: &str| n.metadata.labels.get(key).cloned();
    let together = |n: &Node, key: &str| domain(node, key).is_some() && domain(n, key) == domain(node, key);
    let own = &pod.spec.affinity;

    let wanted = &own.pod_affinity.required;
    if !wanted.is_empty() {
        let labelled = wanted
            .iter()
            .all(|t| node.metadata.labels.contains_key(&t.topology_key));
        let friends: Vec<&(&Pod, &Node)> = all.iter().filter(|(p, _)| means_all(world, wanted, pod, p)).collect();
        let met = wanted
            .iter()
            .all(|t| friends.iter().any(|(_, n)| together(n, &t.topology_key)));
        // A friend on a node without any of the keys counts nowhere.
        let nobody = friends
            .iter()
            .all(|(_, n)| wanted.iter().all(|t| domain(n, &t.topology_key).is_none()));
        let first = nobody && means_all(world, wanted, pod, pod);
        if !labelled || !(met || first) {
            return Some(("node(s) didn't match pod affinity rules", true));
        }
    }
    for term in &own.pod_anti_affinity.required {
        if all
            .iter()
            .any(|(p, n)| together(n, &term.topology_key) && means(world, term, pod, p, true))
        {
            return Some(("node(s) didn't match pod anti-affinity rules", false));
        }
    }
    for (other, n) in &all {
        for term in &other.spec.affinity.pod_anti_affinity.required {
            if together(n, &term.topology_key) && means(world, term, other, pod, false) {
                return Some(("node(s) didn't satisfy existing pods anti-affinity rules", false));
            }
        }
    }
    None
}

pub(crate) fn score(world: &World, pod: &Pod, feasible: &[&Node]) -> Option<Scores> {
    let mut counts: BTreeMap<(String, String), i64> = BTreeMap::new();
    let own = &pod.spec.affinity;
    for (other, name) in world.placed.values() {
        let Some(node) = world.nodes.get(name) else { continue };
        let mut add = |term: &PodAffinityTerm, matches: bool, weight: i64| {
            if let (true, Some(value)) = (matches, node.metadata.labels.get(&term.topology_key)) {
                *counts.entry((term.topology_key.clone(), value.clone())).or_default() += weight;
            }
        };
        for w in &own.pod_affinity.preferred {
            let term = &w.pod_affinity_term;
            add(term, means(world, term, pod, other, true), i64::from(w.weight));
        }
        for w in &own.pod_anti_affinity.preferred {
            let term = &w.pod_affinity_term;
            add(term, means(world, term, pod, other, true), -i64::from(w.weight));
        }
        let theirs = &other.spec.affinity;
        for term in &theirs.pod_affinity.required {
            add(term, means(world, term, other, pod, false), 1);
        }
        for w in &theirs.pod_affinity.preferred {
            let term = &w.pod_affinity_term;
            add(term, means(world, term, other, pod, false), i64::from(w.weight));
        }
        for w in &theirs.pod_anti_affinity.preferred {
            let term = &w.pod_affinity_term;
            add(term, means(world, term, other, pod, false), -i64::from(w.weight));
        }
    }
    if counts.is_empty() {
        return None;
    }
    let raw = feasible.iter().map(|node| {
        let here = counts
            .iter()
            .filter(|((key, value), _)| node.metadata.labels.get(key) == Some(value));
        here.map(|(_, n)| n).sum::<i64>()
    });
    let raw: Vec<i64> = raw.collect();
    let (least, most) = (*raw.iter().min()?, *raw.iter().max()?);
    let share = |r: &i64| (100.0 * ((r - least) as f64 / (most - least) as f64)) as i64;
    let normalized = raw.iter().map(|r| if most == least { 0 } else { share(r) });
    Some(Scores {
        normalized: normalized.collect(),
        raw,
    })
}
