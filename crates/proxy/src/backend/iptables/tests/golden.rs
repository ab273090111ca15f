//! Each kind of service, as it is given to `iptables-restore`.

use super::*;
use crate::testing::check_golden;

const TWO: &[&str] = &["10.180.0.1:80", "10.180.1.2:80"];

/// On a machine that has no rules yet.
fn check(case: &str, context: &Context, ports: &[ServicePort]) {
    let (script, _) = compare::compare(&Saved::default(), context, ports.iter());
    check_script(case, script);
}

/// Only what a service adds to the chains that are always there.
fn check_service(case: &str, context: &Context, port: &ServicePort) {
    let mut script = Script::default();
    script.diff(&Default::default(), &render::service(context, port));
    check_script(case, script);
}

fn check_script(case: &str, script: Script) {
    let text = script.inputs(usize::MAX).concat();
    check_golden(&format!("iptables/{case}.txt"), &text);
}

#[test]
fn a_machine_without_services() {
    check("empty", &context(Family::V4), &[]);
    check("empty_v6", &context(Family::V6), &[]);
    let localhost = Context {
        localhost_node_ports: true,
        tcp_be_liberal: true,
        ..context(Family::V4)
    };
    check("empty_localhost_node_ports", &localhost, &[]);
    let some = Context {
        node_ports: NodePorts::On(vec!["192.168.0.2".parse().unwrap(), "192.168.1.2".parse().unwrap()]),
        mark: 0x8000,
        ..context(Family::V4)
    };
    check("empty_node_port_addresses", &some, &[]);
}

#[test]
fn cluster_addresses() {
    let v4 = context(Family::V4);
    check_service("cluster_ip", &v4, &port("svc1", "172.30.0.41", TWO));
    let bridge = Context {
        local: Some(Local::Interface("cni0".to_string())),
        ..v4.clone()
    };
    check_service("cluster_ip_bridge", &bridge, &port("svc1", "172.30.0.41", TWO));
    let all = Context {
        masquerade_all: true,
        ..v4.clone()
    };
    check_service("cluster_ip_masquerade_all", &all, &port("svc1", "172.30.0.41", TWO));
    let unknown = Context {
        local: None,
        is_large: true,
        ..v4.clone()
    };
    check_service("cluster_ip_large", &unknown, &port("svc1", "172.30.0.41", TWO));
    let v6 = port("svc1", "fd00:172::41", &["[fd00:10:180::1]:80", "[fd00:10:180::2]:80"]);
    check_service("cluster_ip_v6", &context(Family::V6), &v6);
    let udp = ServicePort {
        protocol: Protocol::Udp,
        ..port("svc1", "172.30.0.41", TWO)
    };
    check_service("cluster_ip_udp", &v4, &udp);
    let sctp = ServicePort {
        protocol: Protocol::Sctp,
        ..port("svc1", "172.30.0.41", TWO)
    };
    check_service("cluster_ip_sctp", &v4, &sctp);
    check_service("cluster_ip_no_endpoints", &v4, &port("svc1", "172.30.0.41", &[]));
    let v6 = port("svc1", "fd00:172::41", &[]);
    check_service("cluster_ip_no_endpoints_v6", &context(Family::V6), &v6);
}

#[test]
fn affinity() {
    let sticky = |port: ServicePort| ServicePort {
        affinity: Some(10800),
        ..port
    };
    let v4 = sticky(port("svc1", "172.30.0.41", TWO));
    check_service("affinity", &context(Family::V4), &v4);
    let v6 = sticky(port(
        "svc1",
        "fd00:172::41",
        &["[fd00:10:180::1]:80", "[fd00:10:180::2]:80"],
    ));
    check_service("affinity_v6", &context(Family::V6), &v6);
}

#[test]
fn internal_policy_local() {
    let base = ServicePort {
        internal_local: true,
        ..port("svc1", "172.30.0.41", TWO)
    };
    let here = ServicePort {
        local: base.cluster[..1].to_vec(),
        cluster: vec![],
        ..base.clone()
    };
    check_service("internal_local", &context(Family::V4), &here);
    let elsewhere = ServicePort {
        cluster: vec![],
        ..base
    };
    check_service("internal_local_none_here", &context(Family::V4), &elsewhere);
}

#[test]
fn addresses_known_outside() {
    let v4 = context(Family::V4);
    check_service("balancer", &v4, &balancer("svc1", TWO));
    check_service("balancer_no_endpoints", &v4, &balancer("svc1", &[]));
    let base = balancer("svc1", TWO);
    let local = ServicePort {
        external_local: true,
        health_check_node_port: Some(31000),
        local: base.cluster[..1].to_vec(),
        ..base
    };
    check_service("balancer_local", &v4, &local);
    let elsewhere = ServicePort {
        local: vec![],
        ..local.clone()
    };
    check_service("balancer_local_none_here", &v4, &elsewhere);
    let unknown = Context {
        local: None,
        ..v4.clone()
    };
    check_service("balancer_local_no_detection", &unknown, &local);
    let prefix = Context {
        local: Some(Local::Interface("veth+".to_string())),
        ..v4.clone()
    };
    check_service("balancer_local_prefix", &prefix, &local);
}

#[test]
fn source_ranges() {
    let guarded = |ranges: &[&str]| ServicePort {
        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..balancer("svc1", TWO)
    };
    let v4 = context(Family::V4);
    check_service("source_ranges", &v4, &guarded(&["203.0.113.0/25"]));
    let with_node = guarded(&["203.0.113.0/25", "192.168.0.0/24", "0.0.0.0/0"]);
    check_service("source_ranges_with_node", &v4, &with_node);
}
