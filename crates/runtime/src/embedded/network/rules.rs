//! The network's nf_tables table: masquerading, host ports, and what keeps pods from pretending to be others.
//!
//! ```text
//!  prerouting (raw)      spoofed       a pod's packets come from its own address
//!  prerouting, output    host-ports    to which pod
//!  input                 loopback      what routing of loopback addresses must not open
//!  postrouting           masquerade    out of the cluster, and pods to themselves
//! ```

use std::net::IpAddr;

use ipnet::IpNet;
use orlop_netlink::nft::{Chain, Data, DataKind, Expressions, Hook, Key, Name, Part, Rule, SetKind, Table, Verdict};
use orlop_netlink::{Family, Protocol, octets};

use super::host_ports::Mappings;

const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;

const RAW: i32 = -300;
/// Before services are: a host port is asked for by a pod of this node, and may be on the port of a load balancer.
const DNAT: i32 = -105;
const FILTER: i32 = 0;
const SNAT: i32 = 100;

const STATE_INVALID: u32 = 1;
const STATE_NEW: u32 = 8;
const STATUS_DNAT: u32 = 1 << 5;

const ENDPOINT: DataKind = DataKind::Value(&[Part::Destination, Part::Port]);
const BY_ADDRESS: SetKind = SetKind {
    key: &[Part::Destination, Part::Protocol, Part::Port],
    is_interval: false,
    data: ENDPOINT,
};
const BY_PORT: SetKind = SetKind {
    key: &[Part::Protocol, Part::Port],
    is_interval: false,
    data: ENDPOINT,
};
const HAIRPIN: SetKind = SetKind {
    key: &[Part::Source, Part::Destination],
    is_interval: false,
    data: DataKind::None,
};

/// What the rules depend on beside host ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges<'a> {
    /// The node's own pods.
    pub pods: IpNet,
    /// All pods: who is in here sees pods' own addresses.
    pub cluster: &'a [IpNet],
    /// What names of the pods' links begin with.
    pub link_prefix: &'a str,
}

/// Puts everything that the table is to have.
pub(super) fn describe(table: &mut Table, ranges: &Ranges, mappings: &Mappings) {
    let family = table.family();
    let sets = [
        ("host-ports-by-address", BY_ADDRESS),
        ("host-ports", BY_PORT),
        ("hairpin", HAIRPIN),
    ];
    for (name, kind) in sets {
        table.put_set(&Name::from(name), kind);
    }
    put_elements(table, "host-ports-by-address", targets(mappings, true));
    put_elements(table, "host-ports", targets(mappings, false));
    let pairs = mappings
        .pods
        .iter()
        .map(|ip| (Key::new([octets(*ip), octets(*ip)].concat()), Data::None));
    put_elements(table, "hairpin", pairs.collect());
    let chains: [(&str, &'static str, u32, i32, Vec<Rule>); 5] = [
        ("spoofed", "filter", PREROUTING, RAW, spoofed(family, ranges)),
        ("host-ports-prerouting", "nat", PREROUTING, DNAT, host_ports(family)),
        ("host-ports-output", "nat", OUTPUT, DNAT, host_ports(family)),
        ("loopback", "filter", INPUT, FILTER, loopback(family, ranges)),
        ("masquerade", "nat", POSTROUTING, SNAT, masquerade(family, ranges)),
    ];
    for (name, kind, number, priority, rules) in chains {
        let hook = Some(Hook { kind, number, priority });
        table.put_chain(&Name::from(name), Chain { hook, rules });
    }
}

fn put_elements(table: &mut Table, set: &str, wanted: Vec<(Key, Data)>) {
    let set = Name::from(set);
    for gone in table.elements(&set) {
        if !wanted.iter().any(|(key, _)| *key == gone) {
            table.remove_element(&set, &gone);
        }
    }
    for (key, data) in wanted {
        table.put_element(&set, key, data);
    }
}

fn targets(mappings: &Mappings, with_address: bool) -> Vec<(Key, Data)> {
    let wanted = mappings
        .targets
        .iter()
        .filter(|((host_ip, ..), _)| host_ip.is_some() == with_address);
    let element = |((host_ip, protocol, port), (ip, to)): (&(Option<IpAddr>, Protocol, u16), &(IpAddr, u16))| {
        let mut key = host_ip.map(octets).unwrap_or_default();
        key.extend([protocol.number(), 0, 0, 0]);
        key.extend(padded(*port));
        let mut data = octets(*ip);
        data.extend(padded(*to));
        (Key::new(key), Data::Value(data.into()))
    };
    wanted.map(element).collect()
}

/// A port fills four bytes of a key.
fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn rule(family: Family, comment: &str, write: impl FnOnce(&mut Expressions)) -> Rule {
    Rule::new(family, write).commented(comment)
}

fn spoofed(family: Family, ranges: &Ranges) -> Vec<Rule> {
    let drop = rule(family, "packets of pods come from their own addresses", |to| {
        to.input_interface(ranges.link_prefix, true, false);
        to.is_spoofed();
        to.verdict(Verdict::Drop);
    });
    vec![drop]
}

fn host_ports(family: Family) -> Vec<Rule> {
    let lookup = |kind: SetKind, set: &'static str| {
        Rule::new(family, move |to| {
            if family == Family::V6 {
                // Nothing can be sent on from ::1.
                to.within(Part::Destination, loopback_range(family), true);
            }
            to.is_local(false);
            to.load(kind.key);
            to.map(set);
            to.dnat_to_loaded();
        })
    };
    vec![
        lookup(BY_ADDRESS, "host-ports-by-address"),
        lookup(BY_PORT, "host-ports"),
    ]
}

fn loopback_range(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

/// Host ports on 127.0.0.1 need loopback addresses to be routed on pods' links. That must not let pods connect to what
/// listens on the node's loopback only (CVE-2020-8558).
fn loopback(family: Family, ranges: &Ranges) -> Vec<Rule> {
    let drop = rule(family, "pods do not reach the node's loopback", |to| {
        to.input_interface(ranges.link_prefix, true, false);
        to.within(Part::Destination, loopback_range(family), false);
        to.connection_state(STATE_NEW | STATE_INVALID);
        to.verdict(Verdict::Drop);
    });
    vec![drop]
}

fn masquerade(family: Family, ranges: &Ranges) -> Vec<Rule> {
    let of_family = |range: &&IpNet| Family::of(range.addr()) == family;
    let outward = rule(family, "pods leave the cluster with the node's address", |to| {
        to.within(Part::Source, ranges.pods, false);
        for range in ranges
            .cluster
            .iter()
            .filter(of_family)
            .chain([&ranges.pods, &multicast(family)])
        {
            to.within(Part::Destination, *range, true);
        }
        to.masquerade();
    });
    let hairpin = rule(family, "pods reach themselves by their host ports", |to| {
        to.connection_status(STATUS_DNAT);
        to.load(HAIRPIN.key);
        to.lookup("hairpin", false);
        to.masquerade();
    });
    let mut rules = vec![outward, hairpin];
    if family == Family::V4 {
        rules.push(rule(family, "host ports on the loopback address", |to| {
            to.connection_status(STATUS_DNAT);
            to.within(Part::Source, loopback_range(family), false);
            to.masquerade();
        }));
    }
    rules
}

fn multicast(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(IpAddr::from([224, 0, 0, 0]), 4),
        Family::V6 => IpNet::new_assert(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
    }
}
