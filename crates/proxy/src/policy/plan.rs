//! What the node's pods may exchange with whom: one plan, whoever applies it.
//!
//! A pod that a policy selects is isolated in the directions that the policy is about; it may exchange what any of its
//! policies allows. Policies are planned if they select a pod of this node. What they match packets against is in sets
//! that policies share: addresses of pods, ports, and named ports of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use orlop_api::objects::{LabelSelector, Labels};

use super::facts::{
    Direction, NamespaceScope, ObjectName, PeerFacts, PodFacts, PolicyFacts, PortFacts, RuleFacts, Scope,
};
use crate::plan::{Family, Protocol};

/// A set, named after what is in it.
pub(super) type SetName = Arc<str>;

/// Which packets pass, by what they are matched against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleMatch {
    pub peer: PeerMatch,
    pub ports: PortMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerMatch {
    Anyone,
    Members(SetName),
    Block { range: IpNet, except: Vec<IpNet> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortMatch {
    Any,
    /// The destination's port is in a set of numbers.
    Numbers(SetName),
    /// The destination and its port are in a set of named ports.
    Named(SetName),
}

/// What a set holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SetContent {
    Addresses(Scope),
    NamedPorts(Scope, Protocol, Arc<str>),
    /// Sorted, none overlapping another.
    Numbers(Vec<(Protocol, u16, u16)>),
}

impl SetContent {
    pub(super) fn name(&self) -> SetName {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        let prefix = match self {
            SetContent::Addresses(_) => "pods",
            SetContent::NamedPorts(..) => "named-ports",
            SetContent::Numbers(_) => "ports",
        };
        format!("{prefix}-{:016x}", hasher.finish()).into()
    }

    fn scope(&self) -> Option<&Scope> {
        match self {
            SetContent::Addresses(scope) | SetContent::NamedPorts(scope, ..) => Some(scope),
            SetContent::Numbers(_) => None,
        }
    }

    pub(super) fn selects(&self, namespace: &str, labels: &Labels, pod: &PodFacts) -> bool {
        self.scope()
            .is_some_and(|scope| scope.namespaces.matches(namespace, labels) && scope.pods.matches(&pod.labels))
    }

    /// Whether a namespace's labels decide about its pods.
    pub(super) fn selects_namespace(&self, name: &str, labels: &Labels) -> bool {
        self.scope().is_some_and(|scope| scope.namespaces.matches(name, labels))
    }

    /// What a pod that it selects has in it.
    pub(super) fn members(&self, pod: &PodFacts) -> Vec<Member> {
        match self {
            SetContent::Addresses(_) => pod.ips.iter().copied().map(Member::Address).collect(),
            SetContent::NamedPorts(_, protocol, name) => {
                let ports = pod.ports.iter().filter(|(of, with, _)| of == name && with == protocol);
                let ports = ports.map(|(_, protocol, port)| (*protocol, *port));
                let mut members: Vec<Member> = ports
                    .flat_map(|(protocol, port)| pod.ips.iter().map(move |ip| Member::Port(*ip, protocol, port)))
                    .collect();
                members.sort_unstable();
                members.dedup();
                members
            }
            SetContent::Numbers(_) => vec![],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    Address(IpAddr),
    Port(IpAddr, Protocol, u16),
    Numbers(Protocol, u16, u16),
}

impl Member {
    /// None: both.
    pub(super) fn family(self) -> Option<Family> {
        match self {
            Member::Address(ip) | Member::Port(ip, ..) => Some(Family::of(ip)),
            Member::Numbers(..) => None,
        }
    }
}

/// A set that policies of the plan use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedSet {
    pub content: SetContent,
    /// How many policies use it.
    pub users: usize,
    /// With how many pods have it: an address may be of a pod that goes and of one that comes.
    pub members: BTreeMap<Member, usize>,
}

/// A pod of this node that is isolated in a direction or both: by which policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodPlan {
    pub ips: Vec<IpAddr>,
    pub ingress: Option<BTreeSet<ObjectName>>,
    pub egress: Option<BTreeSet<ObjectName>>,
}

impl PodPlan {
    pub(super) fn policies(&self, direction: Direction) -> Option<&BTreeSet<ObjectName>> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }

    pub(super) fn all_policies(&self) -> BTreeSet<&ObjectName> {
        self.ingress.iter().chain(&self.egress).flatten().collect()
    }
}

/// Everything that is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyPlan {
    pub pods: BTreeMap<ObjectName, PodPlan>,
    /// Those that select one of the pods.
    pub policies: BTreeMap<ObjectName, Arc<PolicyFacts>>,
    pub sets: BTreeMap<SetName, PlannedSet>,
    /// Pods of this node, isolated or not, by address. Of several the last has it: the others are on their way out.
    pub owners: BTreeMap<IpAddr, BTreeSet<(Option<jiff::Timestamp>, ObjectName)>>,
}

impl PolicyPlan {
    /// The pod whose packets these are, if it is isolated.
    pub(super) fn isolated_at(&self, ip: IpAddr) -> Option<(&ObjectName, &PodPlan)> {
        let (_, owner) = self.owners.get(&ip)?.last()?;
        self.pods.get_key_value(owner)
    }
}

/// Everything that is matched for a policy's rules in one direction. With the sets that it takes.
pub(super) fn matches(
    policy_namespace: &Arc<str>,
    policy: &PolicyFacts,
    direction: Direction,
) -> Vec<(RuleMatch, Vec<SetContent>)> {
    let own = Scope {
        namespaces: NamespaceScope::One(Arc::clone(policy_namespace)),
        pods: policy.pod_selector.clone(),
    };
    let rules = policy.rules(direction).unwrap_or_default();
    rules
        .iter()
        .flat_map(|rule| rule_matches(rule, &own, direction))
        .collect()
}

fn rule_matches(rule: &RuleFacts, own: &Scope, direction: Direction) -> Vec<(RuleMatch, Vec<SetContent>)> {
    let anyone = [None];
    let named: Vec<Option<&PeerFacts>> = rule.peers.iter().flatten().map(Some).collect();
    let peers = if rule.peers.is_some() { &named[..] } else { &anyone[..] };
    let mut found = vec![];
    for peer in peers {
        // Named ports are those of the destination.
        let destination = match (direction, peer) {
            (Direction::Ingress, _) => own.clone(),
            (Direction::Egress, Some(PeerFacts::Pods(scope))) => scope.clone(),
            (Direction::Egress, _) => every_pod(),
        };
        for (ports, port_set) in port_matches(rule.ports.as_deref(), &destination) {
            let (peer, peer_set) = peer_match(*peer);
            let sets = peer_set.into_iter().chain(port_set).collect();
            found.push((RuleMatch { peer, ports }, sets));
        }
    }
    found
}

fn every_pod() -> Scope {
    Scope {
        namespaces: NamespaceScope::Matching(LabelSelector::default()),
        pods: LabelSelector::default(),
    }
}

fn peer_match(peer: Option<&PeerFacts>) -> (PeerMatch, Option<SetContent>) {
    match peer {
        None => (PeerMatch::Anyone, None),
        Some(PeerFacts::Pods(scope)) => {
            let set = SetContent::Addresses(scope.clone());
            (PeerMatch::Members(set.name()), Some(set))
        }
        Some(PeerFacts::Block { range, except }) => {
            let (range, except) = (*range, except.clone());
            (PeerMatch::Block { range, except }, None)
        }
    }
}

/// Numbers are one set, whatever their number, and each name is one.
fn port_matches(ports: Option<&[PortFacts]>, destination: &Scope) -> Vec<(PortMatch, Option<SetContent>)> {
    let Some(ports) = ports else {
        return vec![(PortMatch::Any, None)];
    };
    let mut found = vec![];
    let numbers = merged(ports);
    if !numbers.is_empty() {
        let set = SetContent::Numbers(numbers);
        found.push((PortMatch::Numbers(set.name()), Some(set)));
    }
    for port in ports {
        if let PortFacts::Named { protocol, name } = port {
            let set = SetContent::NamedPorts(destination.clone(), *protocol, Arc::clone(name));
            found.push((PortMatch::Named(set.name()), Some(set)));
        }
    }
    found
}

/// Sorted; what overlaps or touches becomes one.
fn merged(ports: &[PortFacts]) -> Vec<(Protocol, u16, u16)> {
    let numbers = ports.iter().filter_map(|port| match port {
        PortFacts::Numbers { protocol, first, last } => Some((*protocol, *first, *last)),
        PortFacts::Named { .. } => None,
    });
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    let mut found: Vec<(Protocol, u16, u16)> = vec![];
    for (protocol, first, last) in numbers {
        match found.last_mut() {
            Some(before) if before.0 == protocol && first <= before.2.saturating_add(1) => {
                before.2 = before.2.max(last)
            }
            _ => found.push((protocol, first, last)),
        }
    }
    found
}

/// The sets that a policy uses, each once.
pub(super) fn sets_of(policy_namespace: &Arc<str>, policy: &PolicyFacts) -> BTreeMap<SetName, SetContent> {
    let all = Direction::ALL
        .into_iter()
        .flat_map(|direction| matches(policy_namespace, policy, direction));
    all.flat_map(|(_, sets)| sets).map(|set| (set.name(), set)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_overlap_become_one() {
        let numbers = |protocol, first, last| PortFacts::Numbers { protocol, first, last };
        let ports = [
            numbers(Protocol::Udp, 53, 53),
            numbers(Protocol::Tcp, 85, 100),
            numbers(Protocol::Tcp, 80, 90),
            numbers(Protocol::Tcp, 101, 101),
            numbers(Protocol::Tcp, 65535, 65535),
            numbers(Protocol::Tcp, 443, 443),
            numbers(Protocol::Tcp, 80, 80),
        ];
        let found = [
            (Protocol::Tcp, 80, 101),
            (Protocol::Tcp, 443, 443),
            (Protocol::Tcp, 65535, 65535),
            (Protocol::Udp, 53, 53),
        ];
        assert_eq!(merged(&ports), found);
    }
}
