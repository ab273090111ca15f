//! Spreading over topology domains.

use std::collections::{BTreeMap, BTreeSet};

use orlop_scheduler::model::{LabelSelector, Labels, Node, Op, Pod, Requirement};

use crate::world::{WhatIf, World, repelled, selects, wants_node};

pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";

pub(crate) struct Constraint {
    max_skew: i64,
    key: String,
    /// None selects nothing.
    selector: Option<LabelSelector>,
    min_domains: usize,
    honor_affinity: bool,
    honor_taints: bool,
}

impl Constraint {
    fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|s| selects(s, labels))
    }

    fn selects_everything(&self) -> bool {
        let empty = |s: &LabelSelector| s.match_labels.is_empty() && s.match_expressions.is_empty();
        self.selector.as_ref().is_some_and(empty)
    }

    /// The node counts, as far as the inclusion policies go.
    fn includes(&self, pod: &Pod, node: &Node) -> bool {
        (!self.honor_affinity || wants_node(pod, node)) && (!self.honor_taints || !repelled(pod, node))
    }

    fn count_on(&self, world: &World, namespace: &str, node: &str) -> i64 {
        if self.selects_everything() {
            return 0;
        }
        let counts = |p: &&Pod| {
            p.metadata.namespace == namespace
                && p.metadata.deletion_timestamp.is_none()
                && self.selects(&p.metadata.labels)
        };
        world.pods_on(node).into_iter().filter(counts).count() as i64
    }
}

/// The pod's own constraints of one kind.
pub(crate) fn own(pod: &Pod, kind: &str) -> Vec<Constraint> {
    let wanted = pod
        .spec
        .topology_spread_constraints
        .iter()
        .filter(|c| c.when_unsatisfiable == kind);
    wanted
        .map(|c| {
            let mut selector = c.label_selector.clone();
            if let Some(selector) = &mut selector {
                for key in &c.match_label_keys {
                    if let Some(value) = pod.metadata.labels.get(key) {
                        selector.match_expressions.push(Requirement {
                            key: key.clone(),
                            op: Op::In(vec![value.clone()]),
                        });
                    }
                }
            }
            Constraint {
                max_skew: i64::from(c.max_skew),
                key: c.topology_key.clone(),
                selector,
                min_domains: c.min_domains.unwrap_or(1) as usize,
                honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
                honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
            }
        })
        .collect()
}

fn has_all(node: &Node, constraints: &[Constraint]) -> bool {
    constraints.iter().all(|c| node.metadata.labels.contains_key(&c.key))
}

pub(crate) enum Verdict {
    Fits,
    NoLabel,
    Skewed,
}

pub(crate) fn filter(world: &World, pod: &Pod, constraints: &[Constraint], node: &Node, what: &WhatIf) -> Verdict {
    for c in constraints {
        let Some(domain) = node.metadata.labels.get(&c.key) else {
            return Verdict::NoLabel;
        };
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for other in world.nodes.values() {
            if has_all(other, constraints) && c.includes(pod, other) {
                let count = c.count_on(world, &pod.metadata.namespace, &other.metadata.name);
                *counts.entry(&other.metadata.labels[&c.key]).or_default() += count;
            }
        }
        // Pods that come and go in thought are taken as they are: whether they are terminating is not asked.
        if has_all(node, constraints) && c.includes(pod, node) {
            let changes = |p: &&&Pod| p.metadata.namespace == pod.metadata.namespace && c.selects(&p.metadata.labels);
            let more = what.added.iter().filter(changes).count() as i64;
            let less = what.removed.iter().filter(changes).count() as i64;
            *counts.entry(domain).or_default() += more - less;
        }
        let least = match counts.values().min() {
            Some(least) if counts.len() >= c.min_domains => *least,
            _ => 0,
        };
        let there = counts.get(domain.as_str()).copied().unwrap_or(0);
        let itself = i64::from(c.selects(&pod.metadata.labels));
        if there + itself - least > c.max_skew {
            return Verdict::Skewed;
        }
    }
    Verdict::Fits
}

/// What services and the owner select by; None if that is nothing.
fn default_selector(world: &World, pod: &Pod) -> Option<LabelSelector> {
    let mut all = LabelSelector::default();
    for ((namespace, _), selector) in &world.services {
        let mine = LabelSelector {
            match_labels: selector.clone(),
            match_expressions: vec![],
        };
        if *namespace == pod.metadata.namespace && selects(&mine, &pod.metadata.labels) {
            all.match_labels.extend(selector.clone());
        }
    }
    let owner = pod.metadata.owner_references.iter().find(|o| o.is_controller());
    let mut expressions = vec![];
    if let Some(owner) = owner {
        let key = (owner.kind.clone(), pod.metadata.namespace.clone(), owner.name.clone());
        if let Some(selector) = world.workloads.get(&key) {
            expressions.extend(selector.match_expressions.clone());
            for (key, value) in &selector.match_labels {
                expressions.push(Requirement {
                    key: key.clone(),
                    op: Op::In(vec![value.clone()]),
                });
            }
        }
    }
    all.match_expressions = expressions;
    (!all.match_labels.is_empty() || !all.match_expressions.is_empty()).then_some(all)
}

pub(crate) struct Scores {
    pub raw: Vec<i64>,
    pub normalized: Vec<i64>,
}

pub(crate) fn score(world: &World, pod: &Pod, feasible: &[&Node]) -> Option<Scores> {
    let defaulted = pod.spec.topology_spread_constraints.is_empty();
    let constraints = if defaulted {
        let selector = default_selector(world, pod)?;
        let default = |max_skew, key: &str| Constraint {
            max_skew,
            key: key.to_string(),
            selector: Some(selector.clone()),
            min_domains: 1,
            honor_affinity: true,
            honor_taints: false,
        };
        vec![default(3, HOSTNAME), default(5, ZONE)]
    } else {
        own(pod, "ScheduleAnyway")
    };
    if constraints.is_empty() {
        return None;
    }
    let ignored = |node: &Node| !defaulted && !has_all(node, &constraints);
    let label = |node: &Node, key: &str| node.metadata.labels.get(key).cloned().unwrap_or_default();
    let mut raw = vec![];
    for node in feasible {
        let mut sum = 0.0;
        for c in constraints.iter().filter(|_| !ignored(node)) {
            if !node.metadata.labels.contains_key(&c.key) {
                continue;
            }
            let values: BTreeSet<String> = feasible
                .iter()
                .filter(|n| !ignored(n))
                .map(|n| label(n, &c.key))
                .collect();
            let (size, count) = if c.key == HOSTNAME {
                let size = feasible.iter().filter(|n| !ignored(n)).count();
                (size, c.count_on(world, &pod.metadata.namespace, &node.metadata.name))
            } else {
                let same =
                    |n: &&Node| !ignored(n) && c.includes(pod, n) && label(n, &c.key) == node.metadata.labels[&c.key];
                let counted = world.nodes.values().filter(same);
                let count = counted
                    .map(|n| c.count_on(world, &pod.metadata.namespace, &n.metadata.name))
                    .sum();
                (values.len(), count)
            };
            sum += count as f64 * ((size + 2) as f64).ln() + (c.max_skew - 1) as f64;
        }
        raw.push(sum.round() as i64);
    }
    let counted = || raw.iter().zip(feasible).filter(|(_, n)| !ignored(n)).map(|(r, _)| *r);
    let (least, most) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
    let normalized = raw.iter().zip(feasible).map(|(raw, node)| match () {
        () if ignored(node) => 0,
        () if most == 0 => 100,
        () => 100 * (most + least - raw) / most,
    });
    Some(Scores {
        normalized: normalized.collect(),
        raw,
    })
}
