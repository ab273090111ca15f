//! Who keeps a pod off a node, plugin after plugin.

use std::collections::{BTreeMap, BTreeSet};

use orlop_scheduler::model::{Node, Op, Pod, Taint};

use crate::affinity;
use crate::spread;
use crate::world::{Amounts, WhatIf, World, amounts, exact, plus, priority, repelled, tolerated, wants_node};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub plugin: &'static str,
    pub reasons: Vec<String>,
    pub unresolvable: bool,
}

fn rejected(plugin: &'static str, reason: &str, unresolvable: bool) -> Option<Rejected> {
    Some(Rejected {
        plugin,
        reasons: vec![reason.to_string()],
        unresolvable,
    })
}

/// A pod about to be placed, and what is settled before nodes are looked at.
pub(crate) struct Cycle<'a> {
    pub world: &'a World,
    pub pod: &'a Pod,
    hard: Vec<spread::Constraint>,
    affinity_skips: bool,
}

#[derive(Debug)]
pub(crate) struct Verdicts {
    /// A reason that rules out every node.
    pub ruled_out: Option<Rejected>,
    /// The only nodes that were looked at.
    pub only: Option<BTreeSet<String>>,
    pub nodes: BTreeMap<String, Option<Rejected>>,
    pub feasible: Vec<String>,
}

impl<'a> Cycle<'a> {
    pub(crate) fn new(world: &'a World, pod: &'a Pod) -> Cycle<'a> {
        Cycle {
            world,
            pod,
            hard: spread::own(pod, "DoNotSchedule"),
            affinity_skips: affinity::skips(world, pod),
        }
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        let mut all = Verdicts {
            ruled_out: None,
            only: None,
            nodes: BTreeMap::new(),
            feasible: vec![],
        };
        match self.named() {
            Some(names) if names.is_empty() => {
                all.ruled_out = rejected("NodeAffinity", "pod affinity terms conflict", true);
                return all;
            }
            only => all.only = only,
        }
        let promised = &self.pod.status.nominated_node_name;
        if let Some(node) = self.world.nodes.get(promised)
            && self.with_nominated(node, &WhatIf::default()).is_none()
        {
            all.nodes.insert(promised.clone(), None);
            all.feasible.push(promised.clone());
            return all;
        }
        for (name, node) in &self.world.nodes {
            if all.only.as_ref().is_none_or(|only| only.contains(name)) {
                let verdict = self.with_nominated(node, &WhatIf::default());
                if verdict.is_none() {
                    all.feasible.push(name.clone());
                }
                all.nodes.insert(name.clone(), verdict);
            }
        }
        all
    }

    /// Names that required terms demand, if all of them do.
    fn named(&self) -> Option<BTreeSet<String>> {
        let required = self.pod.spec.affinity.node_affinity.as_ref()?.required.as_ref()?;
        if required.node_selector_terms.is_empty() {
            return None;
        }
        let mut union = BTreeSet::new();
        for term in &required.node_selector_terms {
            let mut names: Option<BTreeSet<String>> = None;
            for r in &term.match_fields {
                let Op::In(values) = &r.op else { continue };
                let these: BTreeSet<String> = values.iter().cloned().collect();
                names = Some(match names {
                    None => these,
                    Some(before) => before.intersection(&these).cloned().collect(),
                });
            }
            union.extend(names?);
        }
        Some(union)
    }

    /// Filters with those who were promised the node, and if that goes well without them.
    pub(crate) fn with_nominated(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        let mut more = what.clone();
        for (pod, on) in &self.world.nominated {
            let counts = priority(pod) >= priority(self.pod) && pod.metadata.uid != self.pod.metadata.uid;
            if *on == node.metadata.name && counts {
                more.added.push(pod);
            }
        }
        self.filter(node, &more).or_else(|| self.filter(node, what))
    }

    fn filter(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        None.or_else(|| self.unschedulable(node))
            .or_else(|| self.tainted(node))
            .or_else(|| self.unwanted(node))
            .or_else(|| self.ports(node, what))
            .or_else(|| self.resources(node, what))
            .or_else(|| self.spreading(node, what))
            .or_else(|| self.inter_pod(node, what))
            .or_else(|| self.features(node))
    }

    fn unschedulable(&self, node: &Node) -> Option<Rejected> {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        if node.spec.unschedulable && !tolerated(self.pod, &taint) {
            return rejected("NodeUnschedulable", "node(s) were unschedulable", true);
        }
        None
    }

    fn tainted(&self, node: &Node) -> Option<Rejected> {
        if repelled(self.pod, node) {
            return rejected("TaintToleration", "node(s) had untolerated taint(s)", true);
        }
        None
    }

    fn unwanted(&self, node: &Node) -> Option<Rejected> {
        if wants_node(self.pod, node) {
            return None;
        }
        rejected(
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
            true,
        )
    }

    fn ports(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        let wanted = host_ports(self.pod);
        for other in what.pods(self.world, &node.metadata.name) {
            for (ip, protocol, port) in host_ports(other) {
                for (my_ip, my_protocol, my_port) in &wanted {
                    let same_ip = ip == *my_ip || ip == "0.0.0.0" || my_ip == "0.0.0.0";
                    if same_ip && protocol == *my_protocol && port == *my_port {
                        return rejected(
                            "NodePorts",
                            "node(s) didn't have free ports for the requested pod ports",
                            false,
                        );
                    }
                }
            }
        }
        None
    }

    fn resources(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        let there = what.pods(self.world, &node.metadata.name);
        let have = amounts(&node.status.allocatable);
        let mut used = Amounts::new();
        for pod in &there {
            plus(&mut used, &exact(pod, true));
        }
        let get = |from: &Amounts, name: &str| from.get(name).copied().unwrap_or(0);
        let mut reasons = vec![];
        let mut unresolvable = false;
        if there.len() as i64 + 1 > get(&have, "pods") {
            reasons.push("Too many pods".to_string());
        }
        let wanted = exact(self.pod, false);
        let basic = ["cpu", "memory", "ephemeral-storage"];
        let others = wanted.keys().map(String::as_str).filter(|n| !basic.contains(n));
        for name in basic.into_iter().chain(others) {
            let want = get(&wanted, name);
            if want > 0 && want > get(&have, name) - get(&used, name) {
                reasons.push(format!("Insufficient {name}"));
                unresolvable |= want > get(&have, name);
            }
        }
        (!reasons.is_empty()).then_some(Rejected {
            plugin: "NodeResourcesFit",
            reasons,
            unresolvable,
        })
    }

    fn spreading(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        match spread::filter(self.world, self.pod, &self.hard, node, what) {
            spread::Verdict::Fits => None,
            spread::Verdict::NoLabel => rejected(
                "PodTopologySpread",
                "node(s) didn't match pod topology spread constraints (missing required label)",
                true,
            ),
            spread::Verdict::Skewed => rejected(
                "PodTopologySpread",
                "node(s) didn't match pod topology spread constraints",
                false,
            ),
        }
    }

    fn inter_pod(&self, node: &Node, what: &WhatIf) -> Option<Rejected> {
        if self.affinity_skips {
            return None;
        }
        let (reason, unresolvable) = affinity::filter(self.world, self.pod, node, what)?;
        rejected("InterPodAffinity", reason, unresolvable)
    }

    fn features(&self, node: &Node) -> Option<Rejected> {
        let needs = self.pod.spec.host_network && self.pod.spec.host_users == Some(false);
        let feature = "UserNamespacesHostNetworkSupport".to_string();
        if needs && !node.status.declared_features.contains(&feature) {
            return rejected(
                "NodeDeclaredFeatures",
                "node(s) didn't match Pod's required features",
                true,
            );
        }
        None
    }
}

fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let or = |text: &str, default: &str| {
        if text.is_empty() {
            default.to_string()
        } else {
            text.to_string()
        }
    };
    let sidecars = (pod.spec.init_containers.iter()).filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let all = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    all.map(|p| (or(&p.host_ip, "0.0.0.0"), or(&p.protocol, "TCP"), p.host_port))
        .collect()
}

impl Verdicts {
    /// What users read when nothing fits.
    pub(crate) fn message(&self, world: &World) -> String {
        let all = world.nodes.len();
        if all == 0 {
            return "no nodes available to schedule pods".to_string();
        }
        if let Some(rejected) = &self.ruled_out {
            return format!("0/{all} nodes are available: {}.", rejected.reasons.join(", "));
        }
        let mut reasons: Vec<String> = vec![];
        for rejected in self.nodes.values().flatten() {
            reasons.extend(rejected.reasons.clone());
        }
        for _ in self.nodes.len()..all {
            reasons.push("node(s) didn't satisfy plugin(s) [NodeAffinity]".to_string());
        }
        sentence(all, &reasons)
    }
}

pub(crate) fn sentence(all: usize, reasons: &[String]) -> String {
    let distinct: BTreeSet<&String> = reasons.iter().collect();
    let count = |reason: &String| reasons.iter().filter(|r| *r == reason).count();
    let mut lines: Vec<String> = distinct.into_iter().map(|r| format!("{} {r}", count(r))).collect();
    lines.sort();
    format!("0/{all} nodes are available: {}.", lines.join(", "))
}
