//! The smallest changes that could matter for a pod.

use std::collections::{BTreeMap, BTreeSet};

use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::model::{NodeSelectorTerm, Op, Pod, Requirement, Taint};
use orlop_scheduler::plugins::node_affinity::requirement_text;
use orlop_scheduler::plugins::taint_toleration::untolerated;

use super::edit::{Edit, UNSCHEDULABLE, is_of_condition};
use crate::world::World;

/// Different taints that tolerations are tried for.
const TAINTS: usize = 16;
/// Domains of a topology key that a node is tried in.
const DOMAINS: usize = 4;

/// Changes that must be made before any node is looked at: all of them.
pub(super) fn admission(world: &World, pod: &Pod) -> Vec<Edit> {
    let gates = pod.spec.scheduling_gates.iter();
    let mut edits: Vec<Edit> = gates
        .map(|gate| Edit::RemoveSchedulingGate {
            name: gate.name.clone(),
        })
        .collect();
    if world.profile_of(&pod.spec.scheduler_name).is_none() {
        let default = orlop_scheduler::config::DEFAULT_SCHEDULER_NAME;
        let mut names: Vec<&str> = world.by_name.keys().map(String::as_str).collect();
        names.sort_by_key(|name| (*name != default, *name));
        edits.extend(
            names
                .first()
                .map(|name| Edit::SetSchedulerName { name: name.to_string() }),
        );
    }
    edits
}

/// Changes of the pod that loosen something.
pub fn pod_atoms(world: &World, pod: &Pod, info: &PodInfo) -> Vec<Edit> {
    let spec = &pod.spec;
    let mut all = taints(world, info)
        .into_iter()
        .map(|taint| Edit::AddToleration { taint })
        .collect::<Vec<_>>();
    all.extend(spec.node_selector.iter().map(|(key, value)| Edit::DropNodeSelector {
        key: key.clone(),
        value: value.clone(),
    }));
    if let Some(affinity) = &spec.affinity.node_affinity
        && affinity.requirements().next().is_some()
    {
        let terms = affinity
            .required
            .iter()
            .flat_map(|required| required.node_selector_terms.iter().enumerate());
        all.extend(terms.flat_map(|(at, term)| requirements(at, term)));
        all.push(Edit::DropNodeAffinity);
    }
    let required = &spec.affinity.pod_affinity.required;
    all.extend(
        required
            .iter()
            .enumerate()
            .map(|(index, term)| Edit::DropPodAffinityTerm {
                index,
                topology_key: term.topology_key.clone(),
            }),
    );
    let required = &spec.affinity.pod_anti_affinity.required;
    all.extend(
        required
            .iter()
            .enumerate()
            .map(|(index, term)| Edit::DropPodAntiAffinityTerm {
                index,
                topology_key: term.topology_key.clone(),
            }),
    );
    let hard =
        (spec.topology_spread_constraints.iter().enumerate()).filter(|(_, c)| c.when_unsatisfiable == "DoNotSchedule");
    all.extend(hard.map(|(index, constraint)| Edit::RelaxTopologySpread {
        index,
        topology_key: constraint.topology_key.clone(),
    }));
    let exact = &info.class.requests.exact;
    let resources =
        (["cpu", "memory", "ephemeral-storage"].into_iter()).chain(exact.scalars.iter().map(|(name, _)| &**name));
    all.extend(
        resources
            .filter(|name| exact.amount(name) > 0)
            .map(|name| Edit::LowerRequest {
                resource: name.to_string(),
                from: exact.amount(name),
                to: 0,
            }),
    );
    let ports: BTreeSet<(i32, &str)> = info.class.ports.iter().map(|p| (p.port, p.protocol.as_str())).collect();
    all.extend(ports.into_iter().map(|(port, protocol)| Edit::DropHostPort {
        port,
        protocol: protocol.to_string(),
    }));
    if spec.resource_claims > 0 {
        all.push(Edit::DropResourceClaims);
    }
    all
}

/// A term that loses its only requirement would match nothing: then the whole affinity must go.
fn requirements(at: usize, term: &NodeSelectorTerm) -> Vec<Edit> {
    let (labels, fields) = (&term.match_expressions, &term.match_fields);
    if labels.len() + fields.len() < 2 {
        return vec![];
    }
    let one = |field: bool| {
        move |(index, requirement): (usize, &Requirement)| Edit::DropNodeAffinityRequirement {
            term: at,
            index,
            field,
            text: requirement_text(requirement),
        }
    };
    let labels = labels.iter().enumerate().map(one(false));
    labels.chain(fields.iter().enumerate().map(one(true))).collect()
}

/// Taints that keep the pod off some node, the commonest first. To tolerate a node's condition is no advice.
fn taints(world: &World, pod: &PodInfo) -> Vec<Taint> {
    let mut counts: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for node in world.cluster.nodes() {
        let own = untolerated(&pod.class.spec.tolerations, &node.taints).filter(|taint| !is_of_condition(taint));
        for taint in own {
            *counts.entry((&taint.key, &taint.value, &taint.effect)).or_default() += 1;
        }
    }
    let mut taints: Vec<_> = counts.into_iter().collect();
    taints.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let commonest = taints.into_iter().take(TAINTS);
    commonest
        .map(|((key, value, effect), _)| Taint {
            key: key.into(),
            value: value.into(),
            effect: effect.into(),
            time_added: None,
        })
        .collect()
}

/// Changes of the node that could make it suit the pod. None if it has a taint of its condition, which nobody can take off
/// for good.
pub fn node_atoms(world: &World, pod: &PodInfo, name: &str) -> Option<Vec<Edit>> {
    let node = world.cluster.node_named(name)?;
    let spec = &pod.class.spec;
    let mut all = vec![];
    let own: Vec<&Taint> = untolerated(&spec.tolerations, &node.taints).collect();
    if node.unschedulable || own.iter().any(|taint| taint.key == UNSCHEDULABLE) {
        all.push(Edit::Uncordon { node: name.into() });
    }
    for taint in own.into_iter().filter(|taint| taint.key != UNSCHEDULABLE) {
        if is_of_condition(taint) {
            return None;
        }
        all.push(Edit::RemoveTaint {
            node: name.into(),
            taint: taint.clone(),
        });
    }
    let set = |key: &str, value: &str| Edit::SetLabel {
        node: name.into(),
        key: key.into(),
        value: value.into(),
    };
    for (key, value) in &spec.node_selector {
        if node.labels.get(key) != Some(value) {
            all.push(set(key, value));
        }
    }
    let terms = (spec.affinity.node_affinity.iter())
        .flat_map(|affinity| affinity.requirements())
        .flat_map(|required| &required.node_selector_terms);
    for requirement in terms.flat_map(|term| &term.match_expressions) {
        let found = node.labels.get(&requirement.key).map(String::as_str);
        if requirement.matches(found) {
            continue;
        }
        all.extend(match &requirement.op {
            Op::In(values) => values.first().map(|value| set(&requirement.key, value)),
            Op::Exists => Some(set(&requirement.key, "")),
            Op::Gt(bound) => Some(set(&requirement.key, &bound.saturating_add(1).to_string())),
            Op::Lt(bound) => Some(set(&requirement.key, &bound.saturating_sub(1).to_string())),
            Op::NotIn(_) | Op::DoesNotExist => Some(Edit::RemoveLabel {
                node: name.into(),
                key: requirement.key.clone(),
            }),
            Op::Unknown => None,
        });
    }
    for key in topology_keys(pod)
        .into_iter()
        .filter(|key| !node.labels.contains_key(*key))
    {
        let mut values: BTreeSet<&str> = BTreeSet::new();
        for other in world.cluster.nodes() {
            values.extend(other.labels.get(key).map(String::as_str));
            if values.len() == DOMAINS {
                break;
            }
        }
        values.insert(name);
        all.extend(values.into_iter().map(|value| set(key, value)));
    }
    all.dedup();
    Some(all)
}

/// Of all that must hold.
fn topology_keys(pod: &PodInfo) -> BTreeSet<&str> {
    let spec = &pod.class.spec;
    let spread = (spec.topology_spread_constraints.iter()).filter(|c| c.when_unsatisfiable == "DoNotSchedule");
    let near = spec.affinity.pod_affinity.required.iter();
    spread
        .map(|c| c.topology_key.as_str())
        .chain(near.map(|term| term.topology_key.as_str()))
        .collect()
}
