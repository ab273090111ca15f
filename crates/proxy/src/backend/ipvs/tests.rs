//! The pure part: services to operations. Golden texts are in tests/golden/ipvs; `UPDATE_GOLDEN=1` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::desired::{DesiredState, Touched, is_our_mark};
use super::operations::{KernelState, Leaving, Operation, Scheduling, VirtualServer, change, repair};
use super::render::{Host, KernelObject, ServerKey, Value};
use crate::plan::{Endpoint, Family, Key, Protocol, ServicePort};
use crate::testing::check_golden;

pub(super) fn golden(name: &str, found: &str) {
    check_golden(&format!("ipvs/{name}"), found);
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host() -> Host {
    Host {
        addresses: vec![ip("192.168.0.2"), ip("192.168.0.3"), ip("fd00::2")],
        node_port_addresses: vec![ip("192.168.0.2"), ip("fd00::2")],
        own: vec![ip("192.168.0.2"), ip("fd00::2")],
    }
}

fn scheduling() -> Scheduling {
    Scheduling { scheduler: "rr".into() }
}

fn key(name: &str, family: Family) -> Key {
    Key {
        family,
        namespace: "default".into(),
        name: name.into(),
        port: "http".into(),
    }
}

fn port(name: &str, cluster_ip: &str, cluster: &[&str], local: &[&str]) -> ServicePort {
    let cluster_ip = ip(cluster_ip);
    let endpoint = |address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        let is_local = local.iter().any(|other| other.parse() == Ok(address));
        Endpoint { address, is_local }
    };
    ServicePort {
        cluster: cluster.iter().map(|a| endpoint(a)).collect(),
        local: local.iter().map(|a| endpoint(a)).collect(),
        has_endpoints: !cluster.is_empty(),
        ..ServicePort::bare(key(name, Family::of(cluster_ip)), Protocol::Tcp, cluster_ip, 80)
    }
}

const TWO: &[&str] = &["10.244.1.10:8080", "10.244.2.10:8080"];
const NEAR: &[&str] = &["10.244.1.10:8080"];

fn everything() -> Vec<ServicePort> {
    let plain = port("plain", "10.96.0.10", TWO, NEAR);
    let mut sticky = port("sticky", "10.96.0.11", TWO, NEAR);
    sticky.affinity = Some(10_800);
    sticky.protocol = Protocol::Udp;
    let mut node_port = port("node-port", "10.96.0.12", TWO, NEAR);
    node_port.node_port = Some(30_080);
    let mut balanced = port("balanced", "10.96.0.13", TWO, NEAR);
    balanced.load_balancer_ips = vec![ip("198.51.100.7")];
    balanced.source_ranges = ["203.0.113.0/24", "203.0.113.128/25", "192.168.0.0/16", "2001:db8::/32"]
        .map(|r| r.parse().unwrap())
        .to_vec();
    balanced.external_ips = vec![ip("198.51.100.8"), ip("192.168.0.3")];
    let mut outer = port("outer", "10.96.0.14", TWO, NEAR);
    outer.external_local = true;
    outer.node_port = Some(30_014);
    outer.load_balancer_ips = vec![ip("198.51.100.14")];
    outer.health_check_node_port = Some(32_000);
    let mut far = port("far", "10.96.0.15", &["10.244.2.10:8080"], &[]);
    far.internal_local = true;
    far.external_local = true;
    far.node_port = Some(30_015);
    far.external_ips = vec![ip("198.51.100.15")];
    let empty = port("empty", "10.96.0.16", &[], &[]);
    let mut six = port(
        "six",
        "fd00:96::10",
        &["[fd00:244:1::10]:8080"],
        &["[fd00:244:1::10]:8080"],
    );
    six.node_port = Some(30_080);
    vec![plain, sticky, node_port, balanced, outer, far, empty, six]
}

fn text(operations: &[Operation]) -> String {
    operations.iter().map(|operation| format!("{operation}\n")).collect()
}

fn set(wanted: &mut DesiredState, port: &ServicePort) -> Touched {
    let mut touched = Touched::default();
    wanted.set(&port.key, Some(port), &mut touched);
    touched
}

#[test]
fn services_as_operations() {
    let mut found = String::new();
    for port in everything() {
        let mut wanted = DesiredState::new(14);
        wanted.set_host(host(), &mut Touched::default());
        let touched = set(&mut wanted, &port);
        let operations = change(touched, &wanted, &Leaving::new(), &scheduling());
        found += &format!("# {} {}\n{}\n", port.key, port.protocol.as_str(), text(&operations));
    }
    golden("services.txt", &found);
}

#[test]
fn changes_as_operations() {
    let mut wanted = DesiredState::new(14);
    wanted.set_host(host(), &mut Touched::default());
    let mut found = String::new();
    let mut step = |what: &str, wanted: &mut DesiredState, leaving: &Leaving, port: Option<&ServicePort>| {
        let mut touched = Touched::default();
        wanted.set(&key("web", Family::V4), port, &mut touched);
        let operations = change(touched, wanted, leaving, &scheduling());
        found += &format!("# {what}\n{}\n", text(&operations));
    };
    let mut web = port("web", "10.96.0.10", TWO, NEAR);
    web.load_balancer_ips = vec![ip("198.51.100.7")];
    web.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let none = Leaving::new();
    step("it comes", &mut wanted, &none, Some(&web));
    step("nothing changes", &mut wanted, &none, Some(&web));
    let one = ServicePort {
        cluster: web.cluster[..1].to_vec(),
        ..web.clone()
    };
    step("an endpoint goes", &mut wanted, &none, Some(&one));
    let gone = web.cluster[1].address;
    let ways = ["10.96.0.10:80", "198.51.100.7:80"].map(|address| {
        ServerKey::At(super::render::At {
            protocol: Protocol::Tcp,
            address: address.parse().unwrap(),
        })
    });
    let leaving: Leaving = ways.into_iter().map(|key| (key, vec![gone])).collect();
    step(
        "it comes back while it still has connections",
        &mut wanted,
        &leaving,
        Some(&web),
    );
    let sticky = ServicePort {
        affinity: Some(60),
        source_ranges: vec!["10.1.0.0/16".parse().unwrap()],
        ..web.clone()
    };
    step("affinity, and other source ranges", &mut wanted, &none, Some(&sticky));
    let outer = ServicePort {
        external_local: true,
        source_ranges: vec![],
        ..sticky
    };
    step("external policy Local", &mut wanted, &none, Some(&outer));
    step("it goes", &mut wanted, &none, None);
    golden("changes.txt", &found);
}

#[test]
fn what_two_service_ports_share_goes_with_the_last() {
    let mut wanted = DesiredState::new(14);
    let http = port("web", "10.96.0.10", TWO, NEAR);
    let mut dns = port("dns", "10.96.0.10", TWO, NEAR);
    dns.protocol = Protocol::Udp;
    set(&mut wanted, &http);
    set(&mut wanted, &dns);
    let mut touched = Touched::default();
    wanted.set(&http.key, None, &mut touched);
    let operations = change(touched, &wanted, &Leaving::new(), &scheduling());
    assert_eq!(
        text(&operations),
        "ipvsadm -D -t 10.96.0.10:80\nnft delete ip services 10.96.0.10 . tcp . 80\nnft delete ip cluster-ips 10.96.0.10 . tcp . 80\n"
    );
    let mut touched = Touched::default();
    wanted.set(&dns.key, None, &mut touched);
    let operations = text(&change(touched, &wanted, &Leaving::new(), &scheduling()));
    assert!(operations.contains("ip addr del 10.96.0.10"), "{operations}");
    assert_eq!(wanted.things().count(), 0);
}

#[test]
fn mh_looks_at_ports_too() {
    let mh = Scheduling { scheduler: "mh".into() };
    assert_eq!((mh.flags(None), mh.flags(Some(5))), (0x10, 0x11));
    assert_eq!((scheduling().flags(None), scheduling().flags(Some(5))), (0, 1));
}

/// A kernel as far as this matters.
#[derive(Default)]
struct Model {
    held: KernelState,
    leaving: Leaving,
    /// Real servers that have connections.
    busy: BTreeSet<SocketAddr>,
}

impl Model {
    fn server(&mut self, key: &ServerKey) -> &mut VirtualServer {
        self.held.servers.get_mut(key).expect("the virtual server is there")
    }

    /// Fails on whatever a kernel would not do.
    fn apply(&mut self, operations: Vec<Operation>) {
        let config = |affinity: Option<u32>, reals| VirtualServer {
            scheduler: "rr".into(),
            flags: u32::from(affinity.is_some()),
            timeout: affinity.unwrap_or_default(),
            reals,
        };
        for operation in operations {
            match operation {
                Operation::AddElement(e, v) => assert_eq!(self.held.elements.insert(e, v), None),
                Operation::ReplaceElement(e, v) => assert!(self.held.elements.insert(e, v).is_some()),
                Operation::ClearElement(e) | Operation::DeleteElement(e) => {
                    assert!(self.held.elements.remove(&e).is_some());
                }
                Operation::AddServer(key, affinity) => {
                    assert_eq!(self.held.servers.insert(key, config(affinity, BTreeMap::new())), None);
                }
                Operation::SetServer(key, affinity) => {
                    let reals = self.server(&key).reals.clone();
                    *self.server(&key) = config(affinity, reals);
                }
                Operation::DeleteServer(key) => {
                    assert!(self.held.servers.remove(&key).is_some());
                    self.leaving.remove(&key);
                }
                Operation::AddReal(key, real) => assert_eq!(self.server(&key).reals.insert(real, 1), None),
                Operation::SetReal(key, real) => {
                    assert!(self.server(&key).reals.insert(real, 1).is_some());
                    self.leaving.entry(key).or_default().retain(|other| *other != real);
                }
                Operation::RetireReal(key, real) if self.busy.contains(&real) => {
                    assert!(self.server(&key).reals.insert(real, 0).is_some());
                    let leaving = self.leaving.entry(key).or_default();
                    leaving.retain(|other| *other != real);
                    leaving.push(real);
                }
                Operation::RetireReal(key, real) | Operation::DeleteReal(key, real) => {
                    assert!(self.server(&key).reals.remove(&real).is_some());
                }
                Operation::DeleteRealIfIdle(key, real) => {
                    if !self.busy.contains(&real) {
                        self.server(&key).reals.remove(&real);
                    }
                }
                Operation::Bind(ip) => assert!(self.held.addresses.insert(ip)),
                Operation::Unbind(ip) => assert!(self.held.addresses.remove(&ip)),
            }
        }
    }

    /// What is wanted is there, and nothing else but real servers that are leaving.
    fn check(&self, wanted: &DesiredState) {
        let mut count = 0;
        for (thing, value) in wanted.things() {
            match (thing, value) {
                (KernelObject::Server(key), Value::Server(server)) => {
                    let weighty = |weight: u32| {
                        let reals = self.held.servers[key].reals.iter().filter(move |(_, w)| **w == weight);
                        reals.map(|(real, _)| *real).collect::<Vec<_>>()
                    };
                    assert_eq!(weighty(1), server.reals, "{key}");
                    let mut leaving = self.leaving.get(key).cloned().unwrap_or_default();
                    leaving.sort_unstable();
                    assert_eq!(weighty(0), leaving, "{key}");
                    count += 1;
                }
                (KernelObject::Address(ip), _) => assert!(self.held.addresses.contains(ip)),
                (KernelObject::Element(element), value) => assert_eq!(self.held.elements.get(element), Some(value)),
                (KernelObject::Server(_), _) => panic!("a virtual server is one"),
            }
        }
        assert_eq!(self.held.servers.len(), count);
        let there = self.held.servers.len() + self.held.addresses.len() + self.held.elements.len();
        assert_eq!(there, wanted.things().count());
        assert_eq!(
            repair(&self.held, wanted, &scheduling())
                .iter()
                .filter(|o| !is_leaving(o))
                .count(),
            0
        );
    }
}

fn is_leaving(operation: &Operation) -> bool {
    matches!(operation, Operation::DeleteRealIfIdle(..))
}

prop_compose! {
    fn any_port()(
        name in 0..4u8,
        flags in any::<[bool; 7]>(),
        ends in proptest::collection::btree_set(1..6u8, 0..4),
        number in 1..3u8,
        affinity in proptest::option::of(1..3u32),
    ) -> ServicePort {
        let [udp, node_port, external, balanced, internal_local, external_local, ranges] = flags;
        let all: Vec<Endpoint> = ends.into_iter().map(|n| Endpoint {
            address: SocketAddr::new(IpAddr::from([10, 244, n % 2, n]), 8080),
            is_local: n % 2 == 1,
        }).collect();
        let mut port = port(&format!("s{name}"), &format!("10.96.0.{number}"), &[], &[]);
        port.local = all.iter().copied().filter(|e| e.is_local).collect();
        port.has_endpoints = !all.is_empty();
        port.cluster = all;
        port.port = 80 + u16::from(name);
        port.protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        port.node_port = node_port.then_some(30_000 + u16::from(name));
        // Two may want the same one.
        port.external_ips = if external { vec![IpAddr::from([198, 51, 100, number])] } else { vec![] };
        port.load_balancer_ips = if balanced { vec![IpAddr::from([198, 51, 100, 10 + name])] } else { vec![] };
        port.source_ranges = if ranges { vec![format!("10.{number}.0.0/16").parse().unwrap()] } else { vec![] };
        (port.affinity, port.internal_local) = (affinity, internal_local);
        port.external_local = external_local && port.is_external();
        port
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Box<ServicePort>),
    Remove(u8),
    Busy(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_port().prop_map(|port| Step::Put(Box::new(port))),
        2 => (0..4u8).prop_map(Step::Remove),
        1 => (1..6u8).prop_map(Step::Busy),
    ]
}

proptest! {
    /// Step by step one comes to where one would come at once, and a process that starts anew finds nothing to do.
    #[test]
    fn steps_end_where_a_leap_does(steps in proptest::collection::vec(any_step(), 1..30)) {
        let mut wanted = DesiredState::new(14);
        let mut model = Model::default();
        let mut touched = Touched::default();
        wanted.set_host(host(), &mut touched);
        model.apply(change(touched, &wanted, &model.leaving, &scheduling()));
        let mut ports = BTreeMap::new();
        for step in steps {
            let mut touched = Touched::default();
            match step {
                Step::Put(port) => {
                    wanted.set(&port.key, Some(&port), &mut touched);
                    ports.insert(port.key.clone(), *port);
                }
                Step::Remove(name) => {
                    let key = key(&format!("s{name}"), Family::V4);
                    wanted.set(&key, None, &mut touched);
                    ports.remove(&key);
                }
                Step::Busy(n) => {
                    model.busy.insert(SocketAddr::new(IpAddr::from([10, 244, n % 2, n]), 8080));
                }
            }
            model.apply(change(touched, &wanted, &model.leaving, &scheduling()));
            model.check(&wanted);
        }
        let mut anew = DesiredState::new(14);
        anew.set_host(host(), &mut Touched::default());
        for port in ports.values() {
            set(&mut anew, port);
        }
        // Marks may differ where two names fall together; four don't.
        let operations = repair(&model.held, &anew, &scheduling());
        prop_assert!(operations.iter().all(is_leaving), "{}", text(&operations));
    }

    #[test]
    fn marks_never_ask_for_masquerading(bit in 0..32u8, names in proptest::collection::btree_set("[a-z]{1,3}", 1..50)) {
        let mut wanted = DesiredState::new(bit);
        let mut seen = BTreeSet::new();
        for name in names {
            let mut port = port(&name, "10.96.0.10", TWO, NEAR);
            (port.external_local, port.node_port) = (true, Some(30_000));
            let touched = set(&mut wanted, &port);
            let mark = touched.keys().find_map(|thing| match thing {
                KernelObject::Server(ServerKey::Marked(_, mark)) => Some(*mark),
                _ => None,
            });
            let mark = mark.expect("a virtual server by mark");
            prop_assert!(mark & (1 << bit) == 0 && is_our_mark(mark, bit) && seen.insert(mark));
        }
    }
}
