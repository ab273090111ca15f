//! Which pods have to go, the obvious way.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use orlop_scheduler::model::{Node, Pod};

use crate::filters::{Cycle, Rejected, Verdicts, sentence};
use crate::world::{WhatIf, World, priority, selects};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Victims {
    /// Uids, most important first.
    pub pods: Vec<String>,
    pub violations: usize,
}

pub(crate) enum Plan {
    /// By node.
    Candidates(BTreeMap<String, Victims>),
    Hopeless(String),
}

pub(crate) fn plan(cycle: &Cycle, verdicts: &Verdicts) -> Plan {
    let (world, pod) = (cycle.world, cycle.pod);
    if pod.spec.preemption_policy.as_deref() == Some("Never") {
        return Plan::Hopeless("preemption: not eligible due to preemptionPolicy=Never.".into());
    }
    if waits_for_victims(world, pod, verdicts) {
        return Plan::Hopeless("preemption: not eligible due to a terminating pod on the nominated node.".into());
    }
    let mut candidates = BTreeMap::new();
    let mut failed: BTreeMap<&String, Rejected> = BTreeMap::new();
    for (name, rejected) in &verdicts.nodes {
        let may_help = rejected.as_ref().is_some_and(|r| !r.unresolvable);
        if !may_help {
            continue;
        }
        match victims(cycle, &world.nodes[name]) {
            Ok(victims) => drop(candidates.insert(name.clone(), victims)),
            Err(rejected) => drop(failed.insert(name, rejected)),
        }
    }
    if !candidates.is_empty() {
        return Plan::Candidates(candidates);
    }
    let mut reasons: Vec<String> = failed.values().flat_map(|r| r.reasons.clone()).collect();
    for _ in failed.len()..world.nodes.len() {
        reasons.push("Preemption is not helpful for scheduling".into());
    }
    Plan::Hopeless(format!("preemption: {}", sentence(world.nodes.len(), &reasons)))
}

/// Room is being made for it already.
fn waits_for_victims(world: &World, pod: &Pod, verdicts: &Verdicts) -> bool {
    let nominated = &pod.status.nominated_node_name;
    if !world.nodes.contains_key(nominated) {
        return false;
    }
    let status = match verdicts.nodes.get(nominated) {
        Some(rejected) => rejected.as_ref().is_some_and(|r| r.unresolvable),
        // Not looked at: it could not do.
        None => true,
    };
    let leaving = |p: &&Pod| {
        priority(p) < priority(pod)
            && p.metadata.deletion_timestamp.is_some()
            && (p.status.conditions.iter()).any(|c| c.kind == "DisruptionTarget" && c.reason == "PreemptionByScheduler")
    };
    !status && world.pods_on(nominated).iter().any(leaving)
}

fn important_first(pods: &mut [&Pod]) {
    let started = |p: &Pod| p.status.start_time.unwrap_or(jiff::Timestamp::MAX);
    let key = |p: &Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
    pods.sort_by_key(|p| (Reverse(priority(p)), started(p), key(p)));
}

fn victims(cycle: &Cycle, node: &Node) -> Result<Victims, Rejected> {
    let world = cycle.world;
    let mut lower = world.pods_on(&node.metadata.name);
    lower.retain(|p| priority(p) < priority(cycle.pod));
    if lower.is_empty() {
        let reasons = vec!["No preemption victims found for incoming pod".to_string()];
        return Err(Rejected {
            plugin: "DefaultPreemption",
            reasons,
            unresolvable: true,
        });
    }
    let mut what = WhatIf {
        added: vec![],
        removed: lower.clone(),
    };
    if let Some(rejected) = cycle.with_nominated(node, &what) {
        return Err(rejected);
    }
    important_first(&mut lower);
    let protected = protected(world, &lower);
    let (first, second): (Vec<&Pod>, Vec<&Pod>) = lower.iter().partition(|p| protected.contains(&p.metadata.uid));
    let mut violations = 0;
    let mut gone: Vec<&Pod> = vec![];
    for (pods, counts) in [(first, 1), (second, 0)] {
        for pod in pods {
            let before = what.removed.clone();
            what.removed.retain(|p| p.metadata.uid != pod.metadata.uid);
            if cycle.with_nominated(node, &what).is_some() {
                what.removed = before;
                violations += counts;
                gone.push(pod);
            }
        }
    }
    important_first(&mut gone);
    Ok(Victims {
        pods: gone.iter().map(|p| p.metadata.uid.clone()).collect(),
        violations,
    })
}

/// Uids of those whose eviction a budget does not allow any more.
fn protected(world: &World, pods: &[&Pod]) -> Vec<String> {
    let mut left: Vec<i64> = world.budgets.iter().map(|b| b.status.disruptions_allowed).collect();
    let mut protected = vec![];
    for pod in pods {
        let mut violates = false;
        for (budget, left) in world.budgets.iter().zip(&mut left) {
            let Some(selector) = &budget.spec.selector else {
                continue;
            };
            let empty = selector.match_labels.is_empty() && selector.match_expressions.is_empty();
            if budget.metadata.namespace == pod.metadata.namespace
                && !pod.metadata.labels.is_empty()
                && !empty
                && selects(selector, &pod.metadata.labels)
                && !budget.status.disrupted_pods.contains_key(&pod.metadata.name)
            {
                *left -= 1;
                violates |= *left < 0;
            }
        }
        if violates {
            protected.push(pod.metadata.uid.clone());
        }
    }
    protected
}

/// Less is better.
pub(crate) type Harm = (usize, i64, i64, usize, Reverse<jiff::Timestamp>);

pub(crate) fn harm(world: &World, victims: &Victims) -> Harm {
    let pods: Vec<&Pod> = victims.pods.iter().map(|uid| &world.placed[uid].0).collect();
    let highest = pods.iter().map(|p| priority(p)).max().expect("there are victims");
    let sum = pods.iter().map(|p| i64::from(priority(p)) + (1 << 31)).sum();
    let top = pods.iter().filter(|p| priority(p) == highest);
    let earliest = top.map(|p| p.status.start_time.unwrap_or(jiff::Timestamp::MAX)).min();
    (
        victims.violations,
        i64::from(highest),
        sum,
        pods.len(),
        Reverse(earliest.expect("there are victims")),
    )
}
