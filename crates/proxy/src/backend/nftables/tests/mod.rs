//! Services of all kinds, as text, in the real kernel, and changed at random.

mod golden;
mod live;
mod random;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::plan::{Endpoint, Family, Key, Node, Plan, Protocol, ServicePort};
use crate::settings::{DetectLocal, Settings};

/// `namespace/name:port`
fn key(family: Family, path: &str) -> Key {
    let (namespace, rest) = path.split_once('/').unwrap();
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    Key {
        family,
        namespace: namespace.into(),
        name: name.into(),
        port: port.into(),
    }
}

/// A cluster address and TCP port 80, no endpoints.
fn port(path: &str, ip: &str) -> ServicePort {
    let cluster_ip = ip.parse().unwrap();
    ServicePort::bare(key(Family::of(cluster_ip), path), Protocol::Tcp, cluster_ip, 80)
}

/// `10.180.0.1:80`, or `10.180.0.1:80 here` on this node.
fn endpoint(text: &str) -> Endpoint {
    let (address, is_local) = match text.strip_suffix(" here") {
        Some(address) => (address, true),
        None => (text, false),
    };
    Endpoint {
        address: address.parse().unwrap(),
        is_local,
    }
}

impl ServicePort {
    fn with(mut self, endpoints: &[&str]) -> ServicePort {
        self.cluster = endpoints.iter().map(|text| endpoint(text)).collect();
        self.cluster.sort();
        self.local = self
            .cluster
            .iter()
            .copied()
            .filter(|endpoint| endpoint.is_local)
            .collect();
        self.has_endpoints = !self.cluster.is_empty();
        self
    }
}

fn plan(ports: impl IntoIterator<Item = ServicePort>) -> Plan {
    Plan {
        ports: ports
            .into_iter()
            .map(|port| (port.key.clone(), Arc::new(port)))
            .collect(),
        node: Node {
            name: "node-1".to_string(),
            addresses: vec!["192.168.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ..Node::default()
        },
    }
}

fn settings() -> Settings {
    let mut settings = Settings {
        detect_local: DetectLocal::Ranges(vec!["10.0.0.0/8".parse().unwrap(), "fd00:10::/64".parse().unwrap()]),
        ..Settings::default()
    };
    settings.service_ranges = vec!["172.30.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
    settings
}

fn addresses(texts: &[&str]) -> Vec<std::net::IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Services of all kinds: the first six are those of upstream's own overall test.
fn all_kinds() -> Vec<ServicePort> {
    vec![
        port("ns1/svc1:p80", "172.30.0.41").with(&["10.180.0.1:80 here"]),
        ServicePort {
            node_port: Some(3001),
            external_local: true,
            external_ips: addresses(&["192.168.99.22"]),
            load_balancer_ips: addresses(&["1.2.3.4"]),
            health_check_node_port: Some(30000),
            ..port("ns2/svc2:p80", "172.30.0.42").with(&["10.180.0.2:80"])
        },
        ServicePort {
            node_port: Some(3003),
            ..port("ns3/svc3:p80", "172.30.0.43").with(&["10.180.0.3:80 here"])
        },
        ServicePort {
            external_ips: addresses(&["192.168.99.33"]),
            ..port("ns4/svc4:p80", "172.30.0.44").with(&["10.180.0.4:80", "10.180.0.5:80 here"])
        },
        ServicePort {
            node_port: Some(3002),
            load_balancer_ips: addresses(&["5.6.7.8"]),
            source_ranges: vec!["203.0.113.0/25".parse().unwrap()],
            affinity: Some(10800),
            ..port("ns5/svc5:p80", "172.30.0.45").with(&["10.180.0.3:80 here"])
        },
        port("ns6/svc6:p80", "172.30.0.46"),
        ServicePort {
            internal_local: true,
            ..port("ns7/internal-local:p80", "172.30.0.47").with(&["10.180.0.7:80 here", "10.180.0.8:80"])
        },
        ServicePort {
            internal_local: true,
            ..port("ns7/internal-local-elsewhere:p80", "172.30.0.48").with(&["10.180.0.8:80"])
        },
        ServicePort {
            node_port: Some(3004),
            external_local: true,
            ..port("ns8/external-local:p80", "172.30.0.49").with(&["10.180.0.7:80 here", "10.180.0.8:80"])
        },
        ServicePort {
            node_port: Some(3005),
            load_balancer_ips: addresses(&["5.6.7.9"]),
            // The node is in one of them.
            source_ranges: vec!["192.168.0.0/16".parse().unwrap(), "203.0.113.5/32".parse().unwrap()],
            ..port("ns9/ranges-and-no-endpoints", "172.30.0.50")
        },
        ServicePort {
            protocol: Protocol::Udp,
            port: 53,
            ..port("kube-system/kube-dns:dns", "172.30.0.10").with(&["10.180.0.53:53 here", "10.180.0.54:53"])
        },
        ServicePort {
            protocol: Protocol::Sctp,
            port: 36412,
            affinity: Some(60),
            node_port: Some(3006),
            external_local: true,
            ..port("ns10/sctp:s1", "172.30.0.51").with(&["10.180.0.9:36412 here", "10.180.0.10:36412"])
        },
        ServicePort {
            node_port: Some(3003),
            external_ips: addresses(&["fd00:99::33"]),
            load_balancer_ips: addresses(&["fd00:98::1"]),
            source_ranges: vec!["fd00:77::/35".parse().unwrap()],
            ..port("ns3/svc3:p80", "fd00:10:96::43").with(&["[fd00:10::3]:80 here", "[fd00:10:1::4]:80"])
        },
        ServicePort {
            affinity: Some(30),
            ..port("ns5/svc5:p80", "fd00:10:96::45").with(&["[fd00:10::5]:80 here"])
        },
        port("ns6/svc6:p80", "fd00:10:96::46"),
    ]
}

fn numbered(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 180, 1, n], 8080))
}
