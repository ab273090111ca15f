//! The rules beside IPVS, which itself knows neither who may come nor whose source address must change: one nftables
//! table for each family, `kube-proxy-ipvs`. The rules stay the same whatever the services; those are in its sets.
//!
//! ```text
//!  for this node ─► input (before IPVS) ─┬─► firewall ─► from-local ─► services ─► unknown ─► IPVS ─► postrouting
//!  of this node ──► output (before IPVS) ┘   drop        mark          drop, mark   reject             masquerade
//!  of this node ──► output ─┬─► unallocated     reject
//!  through it ────► forward ┘
//! ```
//!
//! Upstream has the same in iptables and ipsets (pkg/proxy/ipvs, v1.36); there, Local policies without endpoints on the
//! node, and local clients of Local policies, come out otherwise than in the other modes.

use std::fmt::{self, Write};

use ipnet::IpNet;

use super::render::Set;
use crate::plan::Family;
use crate::settings::{DetectLocal, Settings};
use orlop_netlink::nft::{Hook, Part};

pub(super) const TABLE: &str = "kube-proxy-ipvs";

impl Set {
    pub(super) fn parts(self) -> &'static [Part] {
        use Part::{Destination, Port, Protocol, Source};
        match self {
            Set::Addresses | Set::NodeAddresses => &[Destination],
            Set::Services | Set::ClusterIps | Set::Masquerade | Set::Dropped | Set::Local | Set::Firewalled => {
                &[Destination, Protocol, Port]
            }
            Set::MasqueradeNodePorts | Set::DroppedNodePorts | Set::LocalNodePorts => &[Protocol, Port],
            Set::Allowed => &[Destination, Protocol, Port, Source],
            Set::HealthPorts => &[Port],
            Set::Hairpin => &[Source, Destination],
        }
    }

    /// Its elements have marks.
    pub fn is_map(self) -> bool {
        matches!(self, Set::Local | Set::LocalNodePorts)
    }

    /// Its elements are ranges.
    pub fn is_interval(self) -> bool {
        self == Set::Allowed
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// `ct state new`
    New,
    /// `meta l4proto tcp`
    Tcp,
    In(Set),
    NotIn(Set),
    /// The source is in a set of destinations.
    SourceIn(Set),
    Source {
        range: IpNet,
        not: bool,
    },
    Destination(IpNet),
    Interface {
        name: String,
        prefix: bool,
        not: bool,
    },
    /// The mark that a map has for the packet.
    MarkFrom(Set),
    /// Sets these bits of the mark.
    Mark(u32),
    /// All bits of the first that are in the mark make up the second.
    Marked(u32, u32),
    /// Clears these bits.
    Unmark(u32),
    Masquerade,
    Reject,
    Drop,
    Accept,
    Return,
    Jump(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub statements: Vec<Statement>,
    pub comment: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub name: &'static str,
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

/// IPVS takes packets for this node at priority 99, before source addresses change (100).
const INPUT: Hook = Hook {
    kind: "filter",
    number: 1,
    priority: 95,
};
/// And those of this node at -98, after destinations change (-100): another mode that has taken over comes first.
const OUTPUT: Hook = Hook {
    kind: "filter",
    number: 3,
    priority: -99,
};
/// Addresses of services are this machine's own, so only others come here.
const FORWARD: Hook = Hook {
    kind: "filter",
    number: 2,
    priority: 0,
};
const POSTROUTING: Hook = Hook {
    kind: "nat",
    number: 4,
    priority: 100,
};

/// The chains, those that others lead to first.
pub(super) fn chains(settings: &Settings, family: Family, marks: (u32, u32)) -> Vec<Chain> {
    let chain = |name, hook, rules| Chain { name, hook, rules };
    let jump = |to, comment| rule(vec![Statement::New, Statement::Jump(to)], comment);
    let mut input = vec![jump("firewall", "source ranges of load balancers")];
    if let Some(local) = local_source(settings, family, false) {
        let statements = vec![Statement::New, local, Statement::Jump("from-local")];
        input.push(rule(statements, "pods of this node, under external policy Local"));
    }
    input.push(jump("services", "policies and masquerading"));
    input.push(jump("unknown", "ports of service addresses that no service has"));
    let output = vec![
        jump("firewall", "source ranges of load balancers"),
        jump("from-local", "processes of this node, under external policy Local"),
        jump("services", "policies and masquerading"),
        jump("unallocated", "service addresses that no service has"),
    ];
    let forward = vec![jump("unallocated", "service addresses that no service has")];
    vec![
        chain("firewall", None, firewall()),
        chain("from-local", None, from_local()),
        chain("services", None, services(settings, family)),
        chain("unknown", None, unknown()),
        chain("unallocated", None, unallocated(settings, family)),
        chain("input", Some(INPUT), input),
        chain("forward", Some(FORWARD), forward),
        chain("output", Some(OUTPUT), output),
        chain("postrouting", Some(POSTROUTING), postrouting(settings, marks)),
    ]
}

fn rule(statements: Vec<Statement>, comment: &'static str) -> Rule {
    Rule { statements, comment }
}

fn firewall() -> Vec<Rule> {
    let statements = vec![
        Statement::In(Set::Firewalled),
        Statement::NotIn(Set::Allowed),
        Statement::Drop,
    ];
    vec![rule(statements, "not from a source range")]
}

fn from_local() -> Vec<Rule> {
    let on_node = Statement::In(Set::NodeAddresses);
    let [services, node_ports] = [Set::Local, Set::LocalNodePorts].map(Statement::MarkFrom);
    vec![
        rule(
            vec![services, Statement::Accept],
            "all endpoints are good for this node",
        ),
        rule(
            vec![on_node, node_ports, Statement::Accept],
            "all endpoints are good for this node",
        ),
    ]
}

fn services(settings: &Settings, family: Family) -> Vec<Rule> {
    let mark = Statement::Mark(settings.masquerade_mark());
    let on_node = || Statement::In(Set::NodeAddresses);
    let mut cluster_ip = vec![Statement::In(Set::ClusterIps)];
    let comment = match local_source(settings, family, true) {
        _ if settings.masquerade_all => "all traffic to cluster addresses",
        Some(from_outside) => {
            cluster_ip.push(from_outside);
            "traffic to cluster addresses from outside"
        }
        None => {
            cluster_ip.push(Statement::SourceIn(Set::Addresses));
            "this node, by an address of kube-ipvs0"
        }
    };
    cluster_ip.push(mark.clone());
    vec![
        rule(
            vec![Statement::In(Set::Dropped), Statement::Drop],
            "no endpoint on this node",
        ),
        rule(
            vec![on_node(), Statement::In(Set::DroppedNodePorts), Statement::Drop],
            "no endpoint on this node",
        ),
        rule(
            vec![Statement::In(Set::Masquerade), mark.clone()],
            "traffic to external addresses",
        ),
        rule(
            vec![on_node(), Statement::In(Set::MasqueradeNodePorts), mark],
            "traffic to node ports",
        ),
        rule(cluster_ip, comment),
    ]
}

fn unknown() -> Vec<Rule> {
    vec![
        rule(vec![Statement::In(Set::Services), Statement::Return], "a service"),
        rule(
            vec![Statement::Tcp, Statement::In(Set::HealthPorts), Statement::Return],
            "health checks of load balancers",
        ),
        rule(
            vec![Statement::In(Set::Addresses), Statement::Reject],
            "not the host's own ports by a service address",
        ),
    ]
}

/// They would leave the machine by whatever route there is.
fn unallocated(settings: &Settings, family: Family) -> Vec<Rule> {
    let ranges = settings.service_ranges_of(family).into_iter();
    let known = rule(
        vec![Statement::In(Set::Addresses), Statement::Return],
        "a service's address",
    );
    let unknown = ranges.map(|range| {
        rule(
            vec![Statement::Destination(range), Statement::Reject],
            "no service has it",
        )
    });
    std::iter::once(known).chain(unknown).collect()
}

fn postrouting(settings: &Settings, (mask, marks): (u32, u32)) -> Vec<Rule> {
    let bit = settings.masquerade_mark();
    vec![
        rule(
            vec![Statement::Marked(mask, marks), Statement::Unmark(u32::MAX)],
            "found its virtual server by it",
        ),
        rule(
            vec![
                Statement::Marked(bit, bit),
                Statement::Unmark(bit),
                Statement::Masquerade,
            ],
            "service traffic requiring SNAT",
        ),
        rule(
            vec![Statement::In(Set::Hairpin), Statement::Masquerade],
            "an endpoint that reaches itself",
        ),
        rule(
            vec![Statement::SourceIn(Set::Addresses), Statement::Masquerade],
            "this node, by an address of kube-ipvs0",
        ),
    ]
}

/// Whether a packet comes from a pod of this node (or, with `not`, from anywhere else), where that can be told.
fn local_source(settings: &Settings, family: Family, not: bool) -> Option<Statement> {
    match &settings.detect_local {
        DetectLocal::None => None,
        DetectLocal::Ranges(ranges) => {
            let range = ranges.iter().find(|range| Family::of(range.addr()) == family)?;
            Some(Statement::Source {
                range: range.trunc(),
                not,
            })
        }
        DetectLocal::Bridge(name) => Some(Statement::Interface {
            name: name.clone(),
            prefix: false,
            not,
        }),
        DetectLocal::Prefix(name) => Some(Statement::Interface {
            name: name.clone(),
            prefix: true,
            not,
        }),
    }
}

/// For the comment in the kernel, by which a rule is known again: what it says and a number that stands for the rest.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(text, "{:?}", self.statements)?;
        let fold = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = text.bytes().fold(0x811c_9dc5_u32, fold);
        write!(f, "{} ({hash:08x})", self.comment)
    }
}
