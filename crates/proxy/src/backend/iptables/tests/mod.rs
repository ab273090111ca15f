//! Rules as text (golden files), changes against a model of `iptables-restore`, and both against the real program.

mod golden;
mod kernel;
mod model;
mod property;

use std::net::SocketAddr;
use std::sync::Arc;

use super::*;
use crate::plan::{Endpoint, Node, Protocol};

pub(super) fn context(family: Family) -> Context {
    let (range, services) = match family {
        Family::V4 => ("10.0.0.0/8", "172.30.0.0/16"),
        Family::V6 => ("fd00:10::/64", "fd00:172::/112"),
    };
    Context {
        family,
        mark: 0x4000,
        masquerade_all: false,
        local: Some(Local::Source(range.parse().unwrap())),
        node_ip: Some(node().address(family).unwrap()),
        node_ports: NodePorts::AllLocal,
        localhost_node_ports: false,
        service_ranges: vec![services.parse().unwrap()],
        tcp_be_liberal: false,
        random_fully: true,
        is_large: false,
    }
}

pub(super) fn node() -> Node {
    Node {
        name: "node-1".to_string(),
        addresses: vec!["192.168.0.2".parse().unwrap(), "fd00:192::2".parse().unwrap()],
        zone: None,
        pod_ranges: vec![],
    }
}

/// `ns1/NAME:p80`, TCP, at this address, with endpoints of which the first is on this node.
pub(super) fn port(name: &str, cluster_ip: &str, endpoints: &[&str]) -> ServicePort {
    let cluster_ip: IpAddr = cluster_ip.parse().unwrap();
    let cluster: Vec<Endpoint> = endpoints
        .iter()
        .enumerate()
        .map(|(place, text)| Endpoint {
            address: text.parse::<SocketAddr>().unwrap(),
            is_local: place == 0,
        })
        .collect();
    ServicePort {
        has_endpoints: !cluster.is_empty(),
        cluster,
        ..ServicePort::bare(
            Key {
                family: Family::of(cluster_ip),
                namespace: "ns1".into(),
                name: name.into(),
                port: "p80".into(),
            },
            Protocol::Tcp,
            cluster_ip,
            80,
        )
    }
}

/// A load balancer's service with all kinds of addresses.
pub(super) fn balancer(name: &str, endpoints: &[&str]) -> ServicePort {
    ServicePort {
        node_port: Some(30080),
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        load_balancer_ips: vec!["203.0.113.9".parse().unwrap()],
        ..port(name, "172.30.0.42", endpoints)
    }
}

pub(super) fn plan(ports: impl IntoIterator<Item = ServicePort>) -> Plan {
    Plan {
        ports: ports
            .into_iter()
            .map(|port| (port.key.clone(), Arc::new(port)))
            .collect(),
        node: node(),
    }
}
