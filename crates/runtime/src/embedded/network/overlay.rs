//! How pods of other nodes are reached: which routes, and for VXLAN which neighbours and forwarding entries. Pure, but for
//! [`apply`].

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use orlop_netlink::Family;
use orlop_netlink::route::{ForwardingEntry, Mac, Neighbour, Route, RouteEntry, RouteKind};

use super::addresses::Range;
use super::names::{vxlan_id, vxlan_mac};

/// How packets get from node to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// As they are, by the nodes' addresses: all nodes share a segment, or are namespaces of one machine.
    Routes,
    /// Inside UDP packets between the nodes.
    Vxlan { id: u32, port: u16 },
}

/// Flannel's, and so the one that firewalls know.
const VXLAN_PORT: u16 = 8472;

impl Transport {
    /// With an id of the cluster's own: two clusters on one machine use the same port.
    pub fn vxlan(cluster: &str) -> Transport {
        Transport::Vxlan {
            id: vxlan_id(cluster),
            port: VXLAN_PORT,
        }
    }

    /// What it takes of each packet.
    pub(super) fn overhead(self, local: Option<IpAddr>) -> u32 {
        match (self, local) {
            (Transport::Routes, _) => 0,
            (Transport::Vxlan { .. }, Some(IpAddr::V6(_))) => 70,
            (Transport::Vxlan { .. }, _) => 50,
        }
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNode {
    pub name: String,
    /// The preferred one first.
    pub addresses: Vec<IpAddr>,
    pub pod_ranges: Vec<IpNet>,
}

/// What the kernel is to have for the pods of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OverlayPlan {
    /// Ranges and by which address.
    pub routes: BTreeSet<(IpNet, IpAddr)>,
    pub neighbours: BTreeSet<Neighbour>,
    pub forwarding: BTreeSet<ForwardingEntry>,
}

/// `own` is not among those to be reached. Nodes without a range or a usable address are left out until they have one.
pub(super) fn plan(cluster: &str, own: &str, transport: Transport, nodes: &[PeerNode]) -> OverlayPlan {
    let mut plan = OverlayPlan::default();
    for node in nodes.iter().filter(|node| node.name != own) {
        match transport {
            Transport::Routes => plan.routes.extend(direct(node)),
            Transport::Vxlan { .. } => tunnel(&mut plan, vxlan_mac(cluster, &node.name), node),
        }
    }
    plan
}

fn direct(node: &PeerNode) -> impl Iterator<Item = (IpNet, IpAddr)> {
    node.pod_ranges.iter().filter_map(|range| {
        let same_family = |ip: &&IpAddr| ip.is_ipv4() == range.addr().is_ipv4();
        Some((range.trunc(), *node.addresses.iter().find(same_family)?))
    })
}

fn tunnel(plan: &mut OverlayPlan, mac: Mac, node: &PeerNode) {
    let Some(to) = node.addresses.first() else { return };
    for range in node.pod_ranges.iter().filter_map(|range| Range::new(*range).ok()) {
        let gateway = range.gateway();
        plan.routes.insert((range.net(), gateway));
        plan.neighbours.insert(Neighbour { ip: gateway, mac });
        plan.forwarding.insert(ForwardingEntry { mac, to: *to });
    }
}

/// Brings routes and entries to the plan. `vxlan` is the device's index where there is one; routes are ours where they
/// are within the cluster's ranges and lead to a gateway. All that can be done is; the first error is returned.
pub(super) fn apply(route: &mut Route, plan: &OverlayPlan, vxlan: Option<u32>, cluster: &[IpNet]) -> io::Result<()> {
    let mut outcomes = vec![];
    if let Some(link) = vxlan {
        apply_entries(route, plan, link, &mut outcomes)?;
    }
    let is_ours = |entry: &RouteEntry| {
        let by_gateway = matches!(entry.kind, RouteKind::Unicast { gateway: Some(_), .. });
        by_gateway && cluster.iter().any(|range| range.contains(&entry.to))
    };
    let found: Vec<RouteEntry> = route.our_routes()?.into_iter().filter(is_ours).collect();
    let wanted = |entry: &RouteEntry| plan.routes.iter().find(|(to, _)| *to == entry.to);
    for gone in found.iter().filter(|entry| wanted(entry).is_none()) {
        outcomes.push(route.delete_route(gone));
    }
    for (to, gateway) in &plan.routes {
        let kind = RouteKind::Unicast {
            link: vxlan,
            gateway: Some(*gateway),
            is_on_link: vxlan.is_some(),
        };
        let is_there = |entry: &&RouteEntry| {
            let leads =
                |by: Option<u32>, via: Option<IpAddr>| (vxlan.is_none() || by == vxlan) && via == Some(*gateway);
            entry.to == *to && matches!(entry.kind, RouteKind::Unicast { link, gateway, .. } if leads(link, gateway))
        };
        if !found.iter().any(|entry| is_there(&entry)) {
            outcomes.push(route.replace_route(&RouteEntry::new(*to, kind)));
        }
    }
    outcomes.into_iter().collect()
}

fn apply_entries(
    route: &mut Route,
    plan: &OverlayPlan,
    link: u32,
    outcomes: &mut Vec<io::Result<()>>,
) -> io::Result<()> {
    let neighbours: BTreeSet<Neighbour> = route.neighbours(link)?.into_iter().collect();
    let forwarding: BTreeSet<ForwardingEntry> = route.forwarding_entries(link)?.into_iter().collect();
    // Two entries for one hardware address would both be sent to.
    for gone in forwarding.difference(&plan.forwarding) {
        outcomes.push(route.delete_forwarding_entry(link, *gone));
    }
    for new in plan.forwarding.difference(&forwarding) {
        outcomes.push(route.put_forwarding_entry(link, *new));
    }
    for gone in neighbours.difference(&plan.neighbours) {
        if !plan.neighbours.iter().any(|wanted| wanted.ip == gone.ip) {
            outcomes.push(route.delete_neighbour(link, *gone));
        }
    }
    for new in plan.neighbours.difference(&neighbours) {
        outcomes.push(route.put_neighbour(link, *new));
    }
    Ok(())
}

/// The node's own address that its packets to other nodes come from.
pub(super) fn local_address(nodes: &[PeerNode], own: &str) -> Option<IpAddr> {
    let node = nodes.iter().find(|node| node.name == own)?;
    node.addresses.first().copied()
}

pub(super) fn families(ranges: &[Range]) -> Vec<Family> {
    ranges.iter().map(|range| Family::of(range.net().addr())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, addresses: &[&str], ranges: &[&str]) -> PeerNode {
        PeerNode {
            name: name.to_string(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            pod_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
        }
    }

    fn nodes() -> Vec<PeerNode> {
        vec![
            node("a", &["192.0.2.1", "2001:db8::1"], &["10.244.1.0/24", "fd00:1::/64"]),
            node("b", &["192.0.2.2", "2001:db8::2"], &["10.244.2.0/24", "fd00:2::/64"]),
            node("c", &["192.0.2.3"], &["10.244.3.0/24", "fd00:3::/64"]),
            node("d", &[], &["10.244.4.0/24"]),
            node("e", &["192.0.2.5"], &[]),
        ]
    }

    #[test]
    fn plain_routes_go_by_addresses_of_the_same_family() {
        let plan = plan("x", "a", Transport::Routes, &nodes());
        let shown: Vec<String> = plan.routes.iter().map(|(to, by)| format!("{to} via {by}")).collect();
        assert_eq!(
            shown,
            [
                "10.244.2.0/24 via 192.0.2.2",
                "10.244.3.0/24 via 192.0.2.3",
                "fd00:2::/64 via 2001:db8::2"
            ]
        );
        assert!(plan.neighbours.is_empty() && plan.forwarding.is_empty());
    }

    #[test]
    fn tunnels_need_one_address_a_node() {
        let vxlan = Transport::Vxlan { id: 1, port: 4789 };
        let plan = plan("x", "a", vxlan, &nodes());
        assert_eq!(plan.routes.len(), 4);
        assert!(
            plan.routes
                .contains(&("fd00:3::/64".parse().unwrap(), "fd00:3::1".parse().unwrap()))
        );
        let forwarding: Vec<_> = plan.forwarding.iter().map(|entry| entry.to.to_string()).collect();
        assert_eq!(forwarding.len(), 2);
        assert!(forwarding.contains(&"192.0.2.2".to_string()) && forwarding.contains(&"192.0.2.3".to_string()));
        for (_, gateway) in &plan.routes {
            let neighbour = plan
                .neighbours
                .iter()
                .find(|neighbour| neighbour.ip == *gateway)
                .unwrap();
            assert!(plan.forwarding.iter().any(|entry| entry.mac == neighbour.mac));
        }
    }
}
