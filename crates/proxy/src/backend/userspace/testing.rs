//! Service ports and machines for tests.

use std::net::SocketAddr;

use super::listeners::Machine;
use crate::plan::{Endpoint, Family, Key, Protocol, ServicePort};

/// `default/web:http` at port 80, with endpoints at port 8080; those of 10.244.1.0/24 are on this node.
pub(super) fn port(cluster_ip: &str, endpoints: &[&str]) -> ServicePort {
    let endpoint = |ip: &&str| {
        let address = SocketAddr::new(ip.parse().unwrap(), 8080);
        Endpoint {
            address,
            is_local: ip.starts_with("10.244.1."),
        }
    };
    let cluster: Vec<Endpoint> = endpoints.iter().map(endpoint).collect();
    let cluster_ip = cluster_ip.parse().unwrap();
    ServicePort {
        local: cluster.iter().copied().filter(|e| e.is_local).collect(),
        has_endpoints: !cluster.is_empty(),
        cluster,
        ..ServicePort::bare(
            Key {
                family: Family::of(cluster_ip),
                namespace: "default".into(),
                name: "web".into(),
                port: "http".into(),
            },
            Protocol::Tcp,
            cluster_ip,
            80,
        )
    }
}

pub(super) fn some_machine() -> Machine {
    let ips = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>();
    Machine {
        addresses: ips(&["127.0.0.1", "172.16.1.2", "10.9.0.1"]).into_iter().collect(),
        node_addresses: ips(&["172.16.1.2"]),
        pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
        may_route: true,
    }
}
