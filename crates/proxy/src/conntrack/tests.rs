use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::plan::{Endpoint, Key};
use crate::testing::{in_namespace, shell};

fn udp(name: &str, cluster_ip: &str, endpoints: &[&str]) -> ServicePort {
    let cluster_ip: IpAddr = cluster_ip.parse().unwrap();
    ServicePort {
        node_port: Some(30053),
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        load_balancer_ips: vec!["203.0.113.9".parse().unwrap()],
        cluster: endpoints
            .iter()
            .map(|text| Endpoint {
                address: text.parse().unwrap(),
                is_local: false,
            })
            .collect(),
        has_endpoints: !endpoints.is_empty(),
        ..ServicePort::bare(
            Key {
                family: Family::of(cluster_ip),
                namespace: "ns".into(),
                name: name.into(),
                port: "".into(),
            },
            Protocol::Udp,
            cluster_ip,
            53,
        )
    }
}

fn planned(port: &ServicePort) -> Vec<SocketAddr> {
    port.endpoints().iter().map(|endpoint| endpoint.address).collect()
}

fn plan(ports: impl IntoIterator<Item = ServicePort>) -> Plan {
    Plan {
        ports: ports
            .into_iter()
            .map(|port| (port.key.clone(), Arc::new(port)))
            .collect(),
        ..Plan::default()
    }
}

fn flow(source: &str, destination: &str, answered_by: &str) -> Flow {
    let [source, destination, answered_by] = [source, destination, answered_by].map(|text| text.parse().unwrap());
    Flow::unnamed(source, destination, answered_by)
}

#[test]
fn flows_to_a_service_are_stale_unless_an_endpoint_answers() {
    let port = udp("dns", "10.96.0.10", &["10.1.0.2:5353"]);
    let wanted = ServiceFlows::new([&port].into_iter(), planned);
    let is_stale = |to, by| wanted.is_stale(&flow("10.1.0.9:4000", to, by));
    for to in [
        "10.96.0.10:53",
        "198.51.100.7:53",
        "203.0.113.9:53",
        "192.168.0.1:30053",
    ] {
        assert!(!is_stale(to, "10.1.0.2:5353"), "{to}");
        assert!(is_stale(to, "10.1.0.3:5353"), "{to}");
        assert!(is_stale(to, "10.1.0.2:5354"), "{to}");
        // Made while there were no endpoints: nobody was chosen.
        assert!(is_stale(to, to), "{to}");
    }
    for to in ["10.96.0.10:54", "10.96.0.11:53", "192.168.0.1:30054", "10.1.0.2:5353"] {
        assert!(!is_stale(to, to), "{to}");
    }
    assert!(!wanted.is_stale(&flow("[fd00::1]:1", "[fd00::2]:30053", "[fd00::2]:30053")));
}

#[test]
fn only_udp_services_with_endpoints_are_looked_at() {
    let tcp = ServicePort {
        protocol: Protocol::Tcp,
        ..udp("tcp", "10.96.0.11", &["10.1.0.2:80"])
    };
    let none = udp("none", "10.96.0.12", &[]);
    let plan = plan([tcp, none]);
    let keys: Vec<Key> = plan.ports.keys().cloned().collect();
    assert!(ServiceFlows::new(changed(&plan, &Change::All), planned).is_empty());
    let gone = udp("gone", "10.96.0.13", &[]).key;
    let keys = Change::Keys(keys.into_iter().chain([gone]).collect());
    assert!(ServiceFlows::new(changed(&plan, &keys), planned).is_empty());
}

/// Flows as the conntrack program sees them, as source and destination.
fn listed(family: &str) -> Vec<String> {
    let all = shell(&format!("conntrack -L -f {family} -p udp 2>/dev/null"));
    let field = |line: &str, name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name));
        value.unwrap_or_default().to_string()
    };
    let mut flows: Vec<String> = all
        .lines()
        .map(|line| field(line, "dst=") + ":" + &field(line, "dport="))
        .collect();
    flows.sort();
    flows
}

#[test]
fn stale_flows_are_deleted_from_the_kernel() {
    in_namespace(|| {
        shell(
            "ip link set lo up; ip addr add 10.1.0.2/32 dev lo; ip addr add 10.1.0.3/32 dev lo
             ip addr add 10.96.0.10/32 dev lo; ip addr add 10.96.0.11/32 dev lo
             ip -6 addr add fd00:96::10/128 dev lo; ip -6 addr add fd00:1::2/128 dev lo nodad
             iptables-nft -t nat -A OUTPUT -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353
             ip6tables-nft -t nat -A OUTPUT -d fd00:96::10 -p udp --dport 53 -j DNAT --to-destination [fd00:1::2]:5353",
        );
        let send = |to: &str| {
            let from = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            UdpSocket::bind(from).unwrap().send_to(b"?", to).unwrap();
        };
        let all = ["10.96.0.10:53", "10.96.0.11:53", "10.1.0.3:30053", "10.1.0.3:9999"];
        // Addresses of IPv6 take a moment to be there.
        all.iter().for_each(|to| send(to));
        let deadline = orlop_base::clock::monotonic() + Duration::from_secs(30);
        while listed("ipv6").is_empty() {
            assert!(orlop_base::clock::monotonic() < deadline, "no IPv6 flow");
            let _ = UdpSocket::bind("[::]:0").unwrap().send_to(b"?", "[fd00:96::10]:53");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(listed("ipv4").len(), 4);

        let deleted = |v4, v6| DeletedFlows { v4, v6 };
        // The endpoint is right; the flow by the node port was made when there was none.
        let right = udp("dns", "10.96.0.10", &["10.1.0.2:5353"]);
        let v6 = ServicePort {
            external_ips: vec![],
            load_balancer_ips: vec![],
            ..udp("dns", "fd00:96::10", &["[fd00:1::2]:5353"])
        };
        let first = plan([right.clone(), v6.clone()]);
        assert_eq!(clean_stale(&first, &Change::All, planned).unwrap(), deleted(1, 0));
        assert_eq!(listed("ipv4"), ["10.1.0.3:9999", "10.96.0.10:53", "10.96.0.11:53"]);
        assert_eq!(clean_stale(&first, &Change::All, planned).unwrap(), deleted(0, 0));
        let before = listed("ipv6").len();

        // Another endpoint: flows to the old one go, unless it still serves.
        let moved = udp("dns", "10.96.0.10", &["10.1.0.3:5353"]);
        let key = moved.key.clone();
        let second = plan([moved, v6]);
        let both = |port: &ServicePort| [planned(port), planned(&right)].concat();
        let change = Change::Keys(vec![key]);
        assert_eq!(clean_stale(&second, &change, both).unwrap(), deleted(0, 0));
        assert_eq!(
            clean_stale(&second, &Change::Keys(vec![]), planned).unwrap(),
            deleted(0, 0)
        );
        assert_eq!(clean_stale(&second, &change, planned).unwrap(), deleted(1, 0));
        assert_eq!(listed("ipv4"), ["10.1.0.3:9999", "10.96.0.11:53"]);

        assert_eq!(listed("ipv6").len(), before);
        let third = plan([udp("dns", "fd00:96::10", &["[fd00:1::3]:5353"])]);
        assert_eq!(clean_stale(&third, &Change::All, planned).unwrap(), deleted(0, before));
        assert_eq!(listed("ipv6").len(), 0);
    });
}

#[test]
fn timeouts_are_set_in_the_kernel() {
    in_namespace(|| {
        // The kernel's table comes into being with the first rule that needs it.
        shell("iptables-nft -A INPUT -m conntrack --ctstate INVALID -j DROP");
        let config = crate::config::Conntrack {
            max_per_core: 0,
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(41),
            ..Config::default().conntrack
        };
        let wanted = sysctls(&config, 1);
        assert_eq!(apply(Path::new("/"), &wanted), Vec::<String>::new());
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).unwrap();
        assert_eq!(read("nf_conntrack_udp_timeout").trim(), "41");
        assert_eq!(read("nf_conntrack_tcp_be_liberal").trim(), "1");
        assert_eq!(read("nf_conntrack_tcp_timeout_established").trim(), "86400");
        // Of a namespace that is not the machine's own the limit can't be set: that is reported, and no more, and only where
        // the machine's is lower.
        let limit: u64 = read("nf_conntrack_max").trim().parse().unwrap();
        for (value, problems) in [(limit + 1, 1), (limit - 1, 0)] {
            let max = Sysctl {
                path: "proc/sys/net/netfilter/nf_conntrack_max",
                value,
                is_least: false,
            };
            assert_eq!(apply(Path::new("/"), &[max]).len(), problems, "{value}");
        }
    });
}
