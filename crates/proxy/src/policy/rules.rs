//! The plan as tables of nf_tables, one a family.
//!
//! ```text
//!  forward ──► replies: accept
//!          ──► egress map: source ──► pod/NS/NAME/egress ──► policy/NS/NAME/egress … ──► allowed: ingress; else drop
//!          ──► ingress map: destination ──► pod/NS/NAME/ingress ──► policy/NS/NAME/ingress … ──► accept; else drop
//! ```
//!
//! On the forward hook the destination is that behind a service, and the source not yet masqueraded. What the node itself
//! sends to its pods, and they to it, is not forwarded, and so never refused: probes work under every policy. Packets of
//! pods on one node are forwarded like all others (see the pod network of the runtime; with bridges it takes
//! `br_netfilter`). Every chain ends in a verdict, so no packet needs a mark.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use netlink_sys::protocols::NETLINK_NETFILTER;
use orlop_netlink::nft::{
    Chain, Data, DataKind, Expressions, Hook, Key, Name, Part, Rule, SetKind, Table, TableError, Target, Verdict,
};
use orlop_netlink::{Connection, Namespace, octets};

use super::facts::{Direction, ObjectName, PolicyFacts};
use super::plan::{Member, PeerMatch, PodPlan, PolicyPlan, PortMatch, RuleMatch, SetContent, matches};
use super::planner::PolicyChanges;
use crate::plan::{Family, Protocol};

const FORWARD: Hook = Hook {
    kind: "filter",
    number: 2,
    priority: 0,
};
const STATE_ESTABLISHED: u32 = 2;
const STATE_RELATED: u32 = 4;

/// Pods by address, and where their packets are decided about.
const POD_MAP: SetKind = SetKind {
    key: &[Part::Source],
    is_interval: false,
    data: DataKind::Verdict,
};

/// The tables of a node.
pub(super) struct Tables {
    connection: Connection,
    name: String,
    state: TablesState,
}

enum TablesState {
    /// What an earlier process left, if anything.
    Unknown,
    Absent,
    /// One a family.
    Present(Vec<Table>),
}

impl Tables {
    /// Of this network namespace.
    pub(super) fn open(namespace: &Namespace, name: &str) -> std::io::Result<Tables> {
        let connection = namespace.run(|| Connection::open(NETLINK_NETFILTER))??;
        Ok(Tables {
            connection,
            name: name.to_string(),
            state: TablesState::Unknown,
        })
    }

    /// Applies what changed. How many steps it took.
    pub(super) fn apply(&mut self, plan: &PolicyPlan, changes: &PolicyChanges) -> Result<usize, TableError> {
        let tables = match &mut self.state {
            TablesState::Absent if plan.pods.is_empty() => return Ok(0),
            TablesState::Present(tables) if !plan.pods.is_empty() => tables,
            _ => return self.apply_all(plan),
        };
        let mut taken = 0;
        for table in tables {
            describe_changes(table, plan, changes);
            taken += table.sync(&mut self.connection)?;
        }
        Ok(taken)
    }

    /// Applies all of it, whatever the kernel holds.
    pub(super) fn apply_all(&mut self, plan: &PolicyPlan) -> Result<usize, TableError> {
        if plan.pods.is_empty() {
            return self.delete().map(|()| 0);
        }
        let families = Family::supported().iter();
        let mut tables: Vec<Table> = families.map(|family| Table::new(*family, self.name.as_str())).collect();
        let mut taken = 0;
        for table in &mut tables {
            describe(table, plan);
            taken += table.sync(&mut self.connection)?;
        }
        self.state = TablesState::Present(tables);
        Ok(taken)
    }

    /// Nobody is isolated: there is no table.
    pub(super) fn delete(&mut self) -> Result<(), TableError> {
        self.state = TablesState::Unknown;
        for family in Family::supported() {
            Table::new(*family, self.name.as_str()).delete(&mut self.connection)?;
        }
        self.state = TablesState::Absent;
        Ok(())
    }
}

fn describe(table: &mut Table, plan: &PolicyPlan) {
    for direction in Direction::ALL {
        table.put_set(&Name::from(direction.as_str()), POD_MAP);
    }
    put_base(table);
    let everything = PolicyChanges {
        pods: plan.pods.keys().cloned().collect(),
        policies: plan.policies.keys().cloned().collect(),
        sets: plan.sets.keys().cloned().collect(),
        members: Default::default(),
        addresses: plan.owners.keys().copied().collect(),
    };
    describe_changes(table, plan, &everything);
}

fn put_base(table: &mut Table) {
    let family = table.family();
    let dispatch = |direction: Direction, part: Part| {
        Rule::new(family, |to| {
            to.load(&[part]);
            to.dispatch(direction.as_str());
        })
    };
    let replies = Rule::new(family, |to| {
        to.connection_state(STATE_ESTABLISHED | STATE_RELATED);
        to.verdict(Verdict::Accept);
    });
    let then = Rule::new(family, |to| to.verdict(Verdict::Goto("check-ingress")));
    table.put_chain(
        &Name::from("forward"),
        Chain {
            hook: Some(FORWARD),
            rules: vec![replies, dispatch(Direction::Egress, Part::Source), then],
        },
    );
    let accept = Rule::new(family, |to| to.verdict(Verdict::Accept));
    table.put_chain(
        &Name::from("check-ingress"),
        Chain {
            hook: None,
            rules: vec![dispatch(Direction::Ingress, Part::Destination), accept],
        },
    );
}

fn describe_changes(table: &mut Table, plan: &PolicyPlan, changes: &PolicyChanges) {
    let family = table.family();
    for name in &changes.sets {
        match plan.sets.get(name) {
            None => table.remove_set(name),
            Some(set) => {
                table.put_set(name, set_kind(&set.content));
                for member in set.members.keys() {
                    put_member(table, name, *member, true);
                }
            }
        }
    }
    for (name, member) in &changes.members {
        if let Some(set) = plan.sets.get(name) {
            put_member(table, name, *member, set.members.contains_key(member));
        }
    }
    for name in &changes.policies {
        let policy = plan.policies.get(name);
        for direction in Direction::ALL {
            let chain = policy_chain(name, direction);
            match policy.filter(|policy| policy.rules(direction).is_some()) {
                Some(policy) => table.put_chain(&chain, render_policy(family, name, policy, direction)),
                None => table.remove_chain(&chain),
            }
        }
    }
    for name in &changes.pods {
        put_pod(table, name, plan.pods.get(name));
    }
    for ip in changes.addresses.iter().filter(|ip| Family::of(**ip) == family) {
        put_address(table, *ip, plan.isolated_at(*ip));
    }
}

fn set_kind(content: &SetContent) -> SetKind {
    let (key, is_interval): (&'static [Part], bool) = match content {
        SetContent::Addresses(_) => (&[Part::Source], false),
        SetContent::NamedPorts(..) => (&[Part::Destination, Part::Protocol, Part::Port], false),
        SetContent::Numbers(_) => (&[Part::Protocol, Part::Port], true),
    };
    SetKind {
        key,
        is_interval,
        data: DataKind::None,
    }
}

fn put_member(table: &mut Table, set: &Name, member: Member, is_in: bool) {
    if member.family().is_some_and(|family| family != table.family()) {
        return;
    }
    let key = match member {
        Member::Address(ip) => Key::new(octets(ip)),
        Member::Port(ip, protocol, port) => Key::new([octets(ip), port_key(protocol, port)].concat()),
        Member::Numbers(protocol, first, last) => Key::interval(port_key(protocol, first), port_key(protocol, last)),
    };
    match is_in {
        true => table.put_element(set, key, Data::None),
        false => table.remove_element(set, &key),
    }
}

fn port_key(protocol: Protocol, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![protocol.number(), 0, 0, 0, high, low, 0, 0]
}

/// Names of the kernel have 255 bytes at most, those of a pod and its namespace together more.
fn chain_name(kind: &str, name: &ObjectName, direction: Direction) -> Name {
    let (namespace, name, direction) = (&name.namespace, &name.name, direction.as_str());
    let full = format!("{kind}/{namespace}/{name}/{direction}");
    if full.len() <= 200 {
        return full.into();
    }
    let mut hasher = DefaultHasher::new();
    full.hash(&mut hasher);
    format!("{}/{:016x}/{direction}", &full[..170], hasher.finish()).into()
}

fn policy_chain(name: &ObjectName, direction: Direction) -> Name {
    chain_name("policy", name, direction)
}

fn pod_chain(name: &ObjectName, direction: Direction) -> Name {
    chain_name("pod", name, direction)
}

fn put_pod(table: &mut Table, name: &ObjectName, pod: Option<&PodPlan>) {
    let family = table.family();
    let ip = pod.and_then(|pod| pod.ips.iter().copied().find(|ip| Family::of(*ip) == family));
    for direction in Direction::ALL {
        let chain = pod_chain(name, direction);
        let policies = pod.and_then(|pod| pod.policies(direction)).zip(ip);
        let Some((policies, ip)) = policies else {
            table.remove_chain(&chain);
            continue;
        };
        // Nobody can keep a pod from itself.
        let other = match direction {
            Direction::Ingress => Part::Source,
            Direction::Egress => Part::Destination,
        };
        let itself = Rule::new(family, |to| {
            to.within(other, ip.into(), false);
            to.verdict(Verdict::Accept);
        });
        let jump = |policy: &ObjectName| {
            let chain = policy_chain(policy, direction);
            Rule::new(family, |to| to.verdict(Verdict::Jump(&chain)))
        };
        let drop = Rule::new(family, |to| to.verdict(Verdict::Drop));
        let rules = std::iter::once(itself).chain(policies.iter().map(jump)).chain([drop]);
        table.put_chain(
            &chain,
            Chain {
                hook: None,
                rules: rules.collect(),
            },
        );
    }
}

fn put_address(table: &mut Table, ip: IpAddr, isolated: Option<(&ObjectName, &PodPlan)>) {
    let key = Key::new(octets(ip));
    for direction in Direction::ALL {
        let map = Name::from(direction.as_str());
        // A chain is for the first address of the family; a pod has no other.
        let is_first = |pod: &PodPlan| pod.ips.iter().find(|other| other.is_ipv4() == ip.is_ipv4()) == Some(&ip);
        match isolated.filter(|(_, pod)| pod.policies(direction).is_some() && is_first(pod)) {
            Some((name, _)) => {
                let target = Target::Goto(pod_chain(name, direction));
                table.put_element(&map, key.clone(), Data::Verdict(target));
            }
            None => table.remove_element(&map, &key),
        }
    }
}

fn render_policy(family: Family, name: &ObjectName, policy: &PolicyFacts, direction: Direction) -> Chain {
    let all = matches(&name.namespace, policy, direction)
        .into_iter()
        .map(|(rule, _)| rule);
    let rules = all
        .filter(|rule| is_of(family, &rule.peer))
        .map(|rule| render_rule(family, &rule, direction));
    Chain {
        hook: None,
        rules: rules.collect(),
    }
}

fn is_of(family: Family, peer: &PeerMatch) -> bool {
    match peer {
        PeerMatch::Block { range, .. } => Family::of(range.addr()) == family,
        PeerMatch::Anyone | PeerMatch::Members(_) => true,
    }
}

fn render_rule(family: Family, rule: &RuleMatch, direction: Direction) -> Rule {
    let other = match direction {
        Direction::Ingress => Part::Source,
        Direction::Egress => Part::Destination,
    };
    Rule::new(family, |to| {
        put_peer(to, other, &rule.peer);
        put_ports(to, &rule.ports);
        match direction {
            Direction::Ingress => to.verdict(Verdict::Accept),
            // What may leave one pod may still not enter the other.
            Direction::Egress => to.verdict(Verdict::Goto("check-ingress")),
        }
    })
}

fn put_peer(to: &mut Expressions, other: Part, peer: &PeerMatch) {
    match peer {
        PeerMatch::Anyone => {}
        PeerMatch::Members(set) => {
            to.load(&[other]);
            to.lookup(set, false);
        }
        PeerMatch::Block { range, except } => {
            to.within(other, *range, false);
            for range in except {
                to.within(other, *range, true);
            }
        }
    }
}

fn put_ports(to: &mut Expressions, ports: &PortMatch) {
    let (set, parts): (&Arc<str>, &[Part]) = match ports {
        PortMatch::Any => return,
        PortMatch::Numbers(set) => (set, &[Part::Protocol, Part::Port]),
        PortMatch::Named(set) => (set, &[Part::Destination, Part::Protocol, Part::Port]),
    };
    to.load(parts);
    to.lookup(set, false);
}
