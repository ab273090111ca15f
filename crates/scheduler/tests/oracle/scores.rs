//! How much each plugin likes each node.

use std::collections::BTreeMap;

use orlop_scheduler::model::{Node, Pod};

use crate::affinity;
use crate::spread::{self, Scores};
use crate::world::{Amounts, Counting, World, amounts, exact, nonzero, plus, requests, term_holds, tolerates};

/// (plugin, raw, normalised, weight)
pub(crate) type Line = (&'static str, i64, i64, i64);

/// For each of these nodes what each plugin says, in order; plugins that skip say nothing.
pub(crate) fn scores(world: &World, pod: &Pod, feasible: &[String]) -> BTreeMap<String, Vec<Line>> {
    let nodes: Vec<&Node> = feasible.iter().map(|n| &world.nodes[n]).collect();
    let as_is = |raw: Vec<i64>| Scores {
        normalized: raw.clone(),
        raw,
    };
    let each = |f: &dyn Fn(&Node) -> i64| nodes.iter().map(|n| f(n)).collect::<Vec<i64>>();
    let plugins: Vec<(&'static str, i64, Option<Scores>)> = vec![
        (
            "TaintToleration",
            3,
            Some(share(each(&|n| disliked_taints(pod, n)), true)),
        ),
        (
            "NodeAffinity",
            2,
            has_preferences(pod).then(|| share(each(&|n| preference(pod, n)), false)),
        ),
        (
            "NodeResourcesFit",
            1,
            Some(as_is(each(&|n| least_allocated(world, pod, n)))),
        ),
        ("PodTopologySpread", 2, spread::score(world, pod, &nodes)),
        ("InterPodAffinity", 2, affinity::score(world, pod, &nodes)),
        (
            "NodeResourcesBalancedAllocation",
            1,
            asks_for_something(pod).then(|| as_is(each(&|n| balanced(world, pod, n)))),
        ),
        (
            "ImageLocality",
            1,
            Some(as_is(each(&|n| image_locality(world, pod, n)))),
        ),
    ];
    let mut lines: BTreeMap<String, Vec<Line>> = feasible.iter().map(|n| (n.clone(), vec![])).collect();
    for (plugin, weight, scores) in plugins {
        let Some(scores) = scores else { continue };
        for (i, name) in feasible.iter().enumerate() {
            let line = (plugin, scores.raw[i], scores.normalized[i], weight);
            lines.get_mut(name).expect("a line for each").push(line);
        }
    }
    lines
}

pub(crate) fn total(lines: &[Line]) -> i64 {
    lines.iter().map(|(_, _, normalized, weight)| normalized * weight).sum()
}

/// Kubernetes' default normalisation.
fn share(raw: Vec<i64>, reversed: bool) -> Scores {
    let most = raw.iter().copied().max().unwrap_or(0);
    let one = |r: &i64| match (most, reversed) {
        (0, true) => 100,
        (0, false) => *r,
        (_, true) => 100 - 100 * r / most,
        (_, false) => 100 * r / most,
    };
    Scores {
        normalized: raw.iter().map(one).collect(),
        raw,
    }
}

fn disliked_taints(pod: &Pod, node: &Node) -> i64 {
    let relevant = pod
        .spec
        .tolerations
        .iter()
        .filter(|t| t.effect.is_empty() || t.effect == "PreferNoSchedule");
    let relevant: Vec<_> = relevant.collect();
    let soft = node.spec.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
    soft.filter(|taint| !relevant.iter().any(|t| tolerates(t, taint)))
        .count() as i64
}

fn has_preferences(pod: &Pod) -> bool {
    pod.spec
        .affinity
        .node_affinity
        .as_ref()
        .is_some_and(|a| !a.preferred.is_empty())
}

fn preference(pod: &Pod, node: &Node) -> i64 {
    let preferred = pod.spec.affinity.node_affinity.iter().flat_map(|a| &a.preferred);
    preferred
        .filter(|p| term_holds(&p.preference, node))
        .map(|p| i64::from(p.weight))
        .sum()
}

fn of(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).copied().unwrap_or(0)
}

fn least_allocated(world: &World, pod: &Pod, node: &Node) -> i64 {
    let have = amounts(&node.status.allocatable);
    let asked = requests(
        pod,
        Counting {
            status: false,
            pod_level: false,
            default_cpu: true,
            default_memory: true,
        },
    );
    let (mut cpu, mut memory) = (of(&asked, "cpu"), of(&asked, "memory"));
    for other in world.pods_on(&node.metadata.name) {
        let (c, m) = nonzero(other);
        cpu += c;
        memory += m;
    }
    let (mut sum, mut weights) = (0, 0);
    for (want, have) in [(cpu, of(&have, "cpu")), (memory, of(&have, "memory"))] {
        if have != 0 {
            sum += if want > have { 0 } else { (have - want) * 100 / have };
            weights += 1;
        }
    }
    if weights == 0 { 0 } else { sum / weights }
}

fn asks_for_something(pod: &Pod) -> bool {
    let asked = exact(pod, false);
    of(&asked, "cpu") != 0 || of(&asked, "memory") != 0
}

fn balanced(world: &World, pod: &Pod, node: &Node) -> i64 {
    let have = amounts(&node.status.allocatable);
    let mut used = Amounts::new();
    for other in world.pods_on(&node.metadata.name) {
        plus(&mut used, &exact(other, true));
    }
    let balance = |used: &Amounts| {
        let mut fractions = vec![];
        for name in ["cpu", "memory"] {
            if of(&have, name) != 0 {
                fractions.push((of(used, name) as f64 / of(&have, name) as f64).min(1.0));
            }
        }
        let deviation = if fractions.len() == 2 {
            ((fractions[0] - fractions[1]) / 2.0).abs()
        } else {
            0.0
        };
        ((1.0 - deviation) * 100.0) as i64
    };
    let before = balance(&used);
    plus(&mut used, &exact(pod, false));
    50 + (50 + balance(&used) - before) / 2
}

fn image_locality(world: &World, pod: &Pod, node: &Node) -> i64 {
    let size_on = |node: &Node, image: &str| {
        let found = node.status.images.iter().find(|i| i.names.iter().any(|n| n == image));
        found.map(|i| i.size_bytes)
    };
    let containers = pod
        .spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .map(|c| &c.image);
    let volumes = pod
        .spec
        .volumes
        .iter()
        .filter_map(|v| v.image.as_ref())
        .map(|i| &i.reference);
    let mut sum = 0;
    for image in containers.chain(volumes) {
        let last = image.rsplit('/').next().expect("split gives something");
        let image = if last.contains(':') {
            image.clone()
        } else {
            format!("{image}:latest")
        };
        if let Some(size) = size_on(node, &image) {
            let having = world.nodes.values().filter(|n| size_on(n, &image).is_some()).count();
            sum += (size as f64 * (having as f64 / world.nodes.len() as f64)) as i64;
        }
    }
    let least = 23 << 20;
    let most = (1000 << 20) * (pod.spec.init_containers.len() + pod.spec.containers.len()) as i64;
    100 * (sum.clamp(least, most) - least) / (most - least)
}
