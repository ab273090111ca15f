//! What every table has, whatever the services: the chains that hang on the kernel's hooks and look packets up.
//!
//! ```text
//!  prerouting, output ──► firewall-check     who may come by a load balancer address
//!  prerouting, output ──► services           to which endpoint
//!  input              ──► nodeport-endpoints-check, service-endpoints-check     nowhere to go: reject or drop
//!  forward, output    ──► service-endpoints-check, cluster-ips-check
//!  postrouting        ──► masquerading
//! ```
//!
//! Upstream: pkg/proxy/nftables (v1.36).

use std::net::IpAddr;

use ipnet::IpNet;

use super::ruleset::{Chain, Container, Element, ElementKey, Rule, Side, Statement, Value, Verdict, ip_key};
use crate::plan::{Family, Node};
use crate::settings::{DetectLocal, Settings};
use orlop_netlink::nft::Hook;

pub(super) const REJECT: &str = "reject-chain";

/// Where node ports are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodePorts {
    /// Every address of the machine but the loopback ones.
    Everywhere,
    On(Vec<IpAddr>),
}

impl NodePorts {
    /// `own` are the addresses that the machine's interfaces have.
    pub(super) fn new(settings: &Settings, family: Family, node: &Node, own: &[IpAddr]) -> NodePorts {
        let ranges = &settings.node_port_ranges;
        if ranges.is_empty() || settings.node_ports_on_primary {
            return NodePorts::On(node.address(family).into_iter().collect());
        }
        let mut ranges = ranges.iter().filter(|range| family_of(range) == family).peekable();
        // Upstream: ranges of one family only leave the other open everywhere.
        if ranges.peek().is_none() || ranges.clone().any(|range| range.prefix_len() == 0) {
            return NodePorts::Everywhere;
        }
        let within = |ip: &&IpAddr| !ip.is_loopback() && ranges.clone().any(|range| range.contains(*ip));
        let mut found: Vec<IpAddr> = own.iter().filter(within).copied().collect();
        found.sort_unstable();
        found.dedup();
        NodePorts::On(found)
    }
}

pub(super) fn family_of(range: &IpNet) -> Family {
    Family::of(range.addr())
}

/// How a packet of a pod on this node is told from others, in one family.
pub(super) fn local_detector(settings: &Settings, family: Family, not: bool) -> Option<Statement> {
    match &settings.detect_local {
        DetectLocal::None => None,
        DetectLocal::Ranges(ranges) => {
            let range = ranges.iter().find(|range| family_of(range) == family)?;
            Some(Statement::Within {
                side: Side::Source,
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

const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;

const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SNAT: i32 = 100;

/// A base chain, and where it leads: whether new connections only, and to which chain.
const HOOKS: [(&str, &str, u32, i32, &[(bool, &str)]); 8] = [
    (
        "filter-prerouting-pre-dnat",
        "filter",
        PREROUTING,
        DNAT - 10,
        &[(true, "firewall-check")],
    ),
    (
        "filter-output-pre-dnat",
        "filter",
        OUTPUT,
        DNAT - 10,
        &[(true, "firewall-check")],
    ),
    (
        "filter-input",
        "filter",
        INPUT,
        FILTER,
        &[(true, "nodeport-endpoints-check"), (true, "service-endpoints-check")],
    ),
    (
        "filter-forward",
        "filter",
        FORWARD,
        FILTER,
        &[(true, "service-endpoints-check"), (true, "cluster-ips-check")],
    ),
    (
        "filter-output",
        "filter",
        OUTPUT,
        FILTER,
        &[(true, "service-endpoints-check"), (true, "cluster-ips-check")],
    ),
    ("nat-prerouting", "nat", PREROUTING, DNAT, &[(false, "services")]),
    ("nat-output", "nat", OUTPUT, DNAT, &[(false, "services")]),
    ("nat-postrouting", "nat", POSTROUTING, SNAT, &[(false, "masquerading")]),
];

/// The chains, those that others lead to first.
pub(super) fn chains(settings: &Settings, family: Family, node_ports: &NodePorts) -> Vec<Chain> {
    let mut chains = vec![
        Chain {
            comment: Some("helper for @no-endpoint-services / @no-endpoint-nodeports"),
            ..Chain::new(REJECT, vec![Rule::new([Statement::Reject])])
        },
        Chain::new(
            "service-endpoints-check",
            vec![Rule::new([Statement::Dispatch(Container::NoEndpointServices)])],
        ),
        Chain::new(
            "nodeport-endpoints-check",
            vec![Rule::new(on_node_port(
                family,
                node_ports,
                Container::NoEndpointNodePorts,
            ))],
        ),
        Chain::new("cluster-ips-check", cluster_ips_check(settings, family)),
        Chain::new(
            "firewall-check",
            vec![Rule::new([Statement::Dispatch(Container::FirewallIps)])],
        ),
        Chain::new("services", services(settings, family, node_ports)),
        Chain::new("masquerading", masquerading(settings)),
    ];
    chains.extend(HOOKS.iter().map(|(name, kind, number, priority, jumps)| {
        let rules = jumps.iter().map(|(new, to)| {
            let jump = Statement::Verdict(Verdict::Jump((*to).into()));
            Rule::new(if *new { vec![Statement::New, jump] } else { vec![jump] })
        });
        let hook = Hook {
            kind,
            number: *number,
            priority: *priority,
        };
        Chain {
            hook: Some(hook),
            ..Chain::new(*name, rules.collect())
        }
    }));
    chains
}

/// The elements that stand for no service.
pub(super) fn elements(node_ports: &NodePorts) -> Vec<Element> {
    let NodePorts::On(addresses) = node_ports else {
        return vec![];
    };
    let place = |ip: &IpAddr| ElementKey {
        container: Container::NodePortIps,
        key: ip_key(*ip),
    };
    let usable = addresses.iter().filter(|ip| !ip.is_loopback());
    usable.map(|ip| (place(ip), Value::NONE)).collect()
}

fn on_node_port(family: Family, node_ports: &NodePorts, container: Container) -> Vec<Statement> {
    let mut statements = match node_ports {
        NodePorts::On(_) => vec![Statement::In(Container::NodePortIps)],
        NodePorts::Everywhere => vec![Statement::Within {
            side: Side::Destination,
            range: loopback(family),
            not: true,
        }],
    };
    statements.push(Statement::Dispatch(container));
    statements
}

fn loopback(family: Family) -> IpNet {
    let (ip, length) = match family {
        Family::V4 => (IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => (IpAddr::from(1u128.to_be_bytes()), 128),
    };
    IpNet::new(ip, length).expect("the length is one of the family")
}

fn cluster_ips_check(settings: &Settings, family: Family) -> Vec<Rule> {
    let known = Rule::new([Statement::In(Container::ClusterIps), Statement::Reject])
        .saying("Reject traffic to invalid ports of ClusterIPs");
    let ranges = settings
        .service_ranges
        .iter()
        .filter(|range| family_of(range) == family);
    let unknown = ranges.map(|range| {
        let within = Statement::Within {
            side: Side::Destination,
            range: range.trunc(),
            not: false,
        };
        Rule::new([within, Statement::Verdict(Verdict::Drop)]).saying("Drop traffic to unallocated ClusterIPs")
    });
    std::iter::once(known).chain(unknown).collect()
}

fn services(settings: &Settings, family: Family, node_ports: &NodePorts) -> Vec<Rule> {
    let mark = Statement::Mark(settings.masquerade_mark());
    let cluster_ip = Statement::In(Container::ClusterIps);
    let mut rules = vec![];
    if settings.masquerade_all {
        rules.push(Rule::new([cluster_ip, mark]).saying("masquerade all clusterIP traffic"));
    } else if let Some(from_outside) = local_detector(settings, family, true) {
        let rule = Rule::new([cluster_ip, from_outside, mark]);
        rules.push(rule.saying("masquerade clusterIP traffic from outside cluster"));
    }
    rules.push(Rule::new([Statement::Dispatch(Container::ServiceIps)]));
    let mut on_node_port = on_node_port(family, node_ports, Container::ServiceNodePorts);
    if *node_ports == NodePorts::Everywhere {
        on_node_port.insert(0, Statement::Local(Side::Destination));
    }
    rules.push(Rule::new(on_node_port));
    rules
}

fn masquerading(settings: &Settings) -> Vec<Rule> {
    let mark = settings.masquerade_mark();
    vec![
        Rule::new([Statement::Marked(mark), Statement::Unmark(mark), Statement::Masquerade]),
        Rule::new([
            Statement::Translated,
            Statement::In(Container::Hairpin),
            Statement::Masquerade,
        ]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(addresses: &[&str]) -> NodePorts {
        NodePorts::On(addresses.iter().map(|a| a.parse().unwrap()).collect())
    }

    #[test]
    fn node_ports_are_on_the_first_address_or_in_the_ranges() {
        let node = Node {
            addresses: ["192.168.0.2", "192.168.0.3", "fd00::2"]
                .map(|a| a.parse().unwrap())
                .to_vec(),
            ..Node::default()
        };
        let own: Vec<IpAddr> = ["127.0.0.1", "192.168.0.2", "10.1.2.3", "fd00::2", "::1"]
            .map(|a| a.parse().unwrap())
            .to_vec();
        let with = |ranges: &[&str]| Settings {
            node_port_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
            ..Settings::default()
        };
        let find = |ranges: &[&str], family| NodePorts::new(&with(ranges), family, &node, &own);
        assert_eq!(find(&[], Family::V4), on(&["192.168.0.2"]));
        assert_eq!(find(&[], Family::V6), on(&["fd00::2"]));
        assert_eq!(find(&["10.0.0.0/8", "127.0.0.0/8"], Family::V4), on(&["10.1.2.3"]));
        assert_eq!(find(&["10.0.0.0/8"], Family::V6), NodePorts::Everywhere);
        assert_eq!(find(&["0.0.0.0/0", "fd00::/16"], Family::V4), NodePorts::Everywhere);
        assert_eq!(find(&["0.0.0.0/0", "fd00::/16"], Family::V6), on(&["fd00::2"]));
        let primary = Settings {
            node_ports_on_primary: true,
            ..with(&["0.0.0.0/0"])
        };
        assert_eq!(NodePorts::new(&primary, Family::V4, &node, &own), on(&["192.168.0.2"]));
    }
}
