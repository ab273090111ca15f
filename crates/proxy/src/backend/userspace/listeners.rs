//! Where to listen for a service port, and who may have what there: pure.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::plan::{Endpoint, Family, Protocol, ServicePort};
use crate::settings::{DetectLocal, Settings};

/// Where one listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spot {
    pub protocol: Protocol,
    pub address: SocketAddr,
}

/// By which of a service's addresses one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Way {
    Cluster,
    External,
    LoadBalancer,
    NodePort,
}

/// What is known of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// All addresses it has.
    pub addresses: HashSet<IpAddr>,
    /// The addresses its node object has.
    pub node_addresses: Vec<IpAddr>,
    /// Where pods have their addresses.
    pub pod_ranges: Vec<IpNet>,
    /// Other addresses may be made local. Otherwise only those that the machine has are listened at.
    pub may_route: bool,
}

impl Machine {
    /// Pods, where they can be told by their addresses.
    pub(super) fn pod_ranges(settings: &Settings, node: &crate::plan::Node) -> Vec<IpNet> {
        match &settings.detect_local {
            DetectLocal::Ranges(ranges) => ranges.clone(),
            _ => node.pod_ranges.clone(),
        }
    }

    /// A process or a pod of this node. What a machine sends to an address that a route made local has that address as
    /// its source too.
    fn is_near(&self, client: IpAddr, to: IpAddr) -> bool {
        self.is_own(client, to) || self.pod_ranges.iter().any(|range| range.contains(&client))
    }

    fn is_own(&self, client: IpAddr, to: IpAddr) -> bool {
        client == to || client.is_loopback() || self.addresses.contains(&client)
    }
}

/// Addresses that packets of a service port have, which are local only if a route says so.
pub(super) fn addresses(port: &ServicePort) -> impl Iterator<Item = IpAddr> + '_ {
    let external = port.external_ips.iter().chain(&port.load_balancer_ips).copied();
    std::iter::once(port.cluster_ip).chain(external)
}

/// Where to listen. Nowhere for an address whose callers all would find no endpoint: the kernel then refuses them.
pub(super) fn spots(port: &ServicePort, settings: &Settings, machine: &Machine) -> Vec<(Spot, Way)> {
    let spot = |ip: IpAddr, number: u16| Spot {
        protocol: port.protocol,
        address: SocketAddr::new(ip, number),
    };
    let listened = |ip: &IpAddr| machine.may_route || machine.addresses.contains(ip);
    let mut spots = Vec::new();
    if !port.internal_endpoints().is_empty() && listened(&port.cluster_ip) {
        spots.push((spot(port.cluster_ip, port.port), Way::Cluster));
    }
    if port.external_endpoints().is_empty() && port.cluster.is_empty() {
        return spots;
    }
    for ip in port.external_ips.iter().filter(|ip| listened(ip)) {
        spots.push((spot(*ip, port.port), Way::External));
    }
    for ip in port.load_balancer_ips.iter().filter(|ip| listened(ip)) {
        spots.push((spot(*ip, port.port), Way::LoadBalancer));
    }
    if let Some(number) = port.node_port {
        let ips = node_port_addresses(port.key.family, settings, machine);
        spots.extend(ips.into_iter().map(|ip| (spot(ip, number), Way::NodePort)));
    }
    spots
}

/// Where node ports are: everywhere, unless the settings say otherwise.
fn node_port_addresses(family: Family, settings: &Settings, machine: &Machine) -> Vec<IpAddr> {
    if let Some(bind) = settings.userspace.bind.filter(|ip| !ip.is_unspecified()) {
        return if Family::of(bind) == family { vec![bind] } else { vec![] };
    }
    let mut found: Vec<IpAddr> = match (settings.node_ports_on_primary, settings.node_port_ranges.is_empty()) {
        (true, _) => machine.node_addresses.clone(),
        (false, false) => {
            let wanted = |ip: &&IpAddr| settings.node_port_ranges.iter().any(|range| range.contains(*ip));
            machine.addresses.iter().filter(wanted).copied().collect()
        }
        (false, true) => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
    };
    found.retain(|ip| Family::of(*ip) == family);
    found.sort_unstable();
    found
}

/// The endpoints that a client may have who comes this way; none if it is turned away.
pub(super) fn endpoints_for<'a>(
    port: &'a ServicePort,
    way: Way,
    client: IpAddr,
    to: IpAddr,
    settings: &Settings,
    machine: &Machine,
) -> &'a [Endpoint] {
    if way == Way::Cluster {
        return port.internal_endpoints();
    }
    if way == Way::NodePort && to.is_loopback() && !settings.localhost_node_ports {
        return &[];
    }
    if way == Way::LoadBalancer && !may_come(port, client, to, machine) {
        return &[];
    }
    if machine.is_near(client, to) {
        return &port.cluster;
    }
    port.external_endpoints()
}

/// A load balancer's address may be for some only.
fn may_come(port: &ServicePort, client: IpAddr, to: IpAddr, machine: &Machine) -> bool {
    let within = |ip: &IpAddr| port.source_ranges.iter().any(|range| range.contains(ip));
    port.source_ranges.is_empty()
        || within(&client)
        || (machine.is_own(client, to) && machine.node_addresses.iter().any(within))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::userspace::testing::{port, some_machine};

    fn shown(spots: &[(Spot, Way)]) -> Vec<String> {
        let one = |(spot, way): &(Spot, Way)| format!("{} {} {way:?}", spot.protocol.as_str(), spot.address);
        spots.iter().map(one).collect()
    }

    fn addresses(found: &[Endpoint]) -> Vec<String> {
        found.iter().map(|e| e.address.ip().to_string()).collect()
    }

    #[test]
    fn every_address_is_listened_at() {
        let mut web = port("10.96.0.10", &["10.244.1.1", "10.244.2.1"]);
        web.external_ips = vec!["198.51.100.1".parse().unwrap()];
        web.load_balancer_ips = vec!["198.51.100.2".parse().unwrap()];
        web.node_port = Some(30080);
        let settings = Settings::default();
        assert_eq!(
            shown(&spots(&web, &settings, &some_machine())),
            [
                "tcp 10.96.0.10:80 Cluster",
                "tcp 198.51.100.1:80 External",
                "tcp 198.51.100.2:80 LoadBalancer",
                "tcp 0.0.0.0:30080 NodePort",
            ]
        );
        // Without the right to make addresses local, those that are.
        let mut bound = some_machine();
        bound.may_route = false;
        bound.addresses.insert("198.51.100.1".parse().unwrap());
        assert_eq!(
            shown(&spots(&web, &settings, &bound)),
            ["tcp 198.51.100.1:80 External", "tcp 0.0.0.0:30080 NodePort"]
        );
    }

    #[test]
    fn without_endpoints_nothing_is_listened_at() {
        let mut web = port("10.96.0.10", &[]);
        web.node_port = Some(30080);
        assert_eq!(spots(&web, &Settings::default(), &some_machine()), []);
        // One elsewhere is enough for those of this node, whatever the policy for the others.
        let mut web = port("10.96.0.10", &["10.244.2.1"]);
        web.node_port = Some(30080);
        web.external_local = true;
        web.internal_local = true;
        web.local.clear();
        assert_eq!(
            shown(&spots(&web, &Settings::default(), &some_machine())),
            ["tcp 0.0.0.0:30080 NodePort"]
        );
    }

    #[test]
    fn node_ports_are_where_the_settings_say() {
        let mut web = port("10.96.0.10", &["10.244.1.1"]);
        web.node_port = Some(30080);
        let at = |settings: &Settings| shown(&spots(&web, settings, &some_machine()))[1..].to_vec();
        let mut settings = Settings {
            node_ports_on_primary: true,
            ..Settings::default()
        };
        assert_eq!(at(&settings), ["tcp 172.16.1.2:30080 NodePort"]);
        settings.node_ports_on_primary = false;
        settings.node_port_ranges = vec!["127.0.0.0/8".parse().unwrap(), "10.9.0.0/16".parse().unwrap()];
        assert_eq!(
            at(&settings),
            ["tcp 10.9.0.1:30080 NodePort", "tcp 127.0.0.1:30080 NodePort"]
        );
        settings.userspace.bind = Some("10.9.0.1".parse().unwrap());
        assert_eq!(at(&settings), ["tcp 10.9.0.1:30080 NodePort"]);
        settings.userspace.bind = Some("fd00::1".parse().unwrap());
        assert_eq!(at(&settings), Vec::<String>::new());
    }

    #[test]
    fn who_comes_from_where_gets_what() {
        let mut web = port("10.96.0.10", &["10.244.1.1", "10.244.2.1"]);
        web.node_port = Some(30080);
        web.load_balancer_ips = vec!["198.51.100.2".parse().unwrap()];
        web.external_local = true;
        web.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
        let (settings, machine) = (Settings::default(), some_machine());
        let get = |way, client: &str, to: &str| {
            let (client, to) = (client.parse().unwrap(), to.parse().unwrap());
            addresses(endpoints_for(&web, way, client, to, &settings, &machine)).join(" ")
        };
        assert_eq!(get(Way::Cluster, "203.0.113.5", "10.96.0.10"), "10.244.1.1 10.244.2.1");
        assert_eq!(get(Way::NodePort, "203.0.113.5", "172.16.1.2"), "10.244.1.1");
        assert_eq!(get(Way::NodePort, "10.244.1.9", "172.16.1.2"), "10.244.1.1 10.244.2.1");
        assert_eq!(get(Way::NodePort, "10.9.0.1", "172.16.1.2"), "10.244.1.1 10.244.2.1");
        assert_eq!(get(Way::NodePort, "127.0.0.1", "127.0.0.1"), "");
        assert_eq!(get(Way::LoadBalancer, "203.0.113.5", "198.51.100.2"), "10.244.1.1");
        assert_eq!(get(Way::LoadBalancer, "192.0.2.1", "198.51.100.2"), "");
        assert_eq!(get(Way::LoadBalancer, "198.51.100.2", "198.51.100.2"), "");
    }
}
