//! The plan against a second, naive reading of the rules, and the tables against what the kernel says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use orlop_api::objects::{LabelSelector, Labels};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::facts::{Direction, ObjectName};
use super::objects::{Namespace, NetworkPolicy, Peer, Pod, PolicyPort};
use super::plan::{Member, PeerMatch, PolicyPlan, PortMatch, matches};
use super::planner::Planner;
use super::rules::Tables;
use crate::plan::Protocol;
use crate::testing::{in_namespace, shell};

const NODE: &str = "here";

/// A new connection.
#[derive(Clone, Copy, Debug)]
struct Packet {
    from: IpAddr,
    to: IpAddr,
    protocol: Protocol,
    port: u16,
}

/// What is in the cluster.
#[derive(Clone, Debug, Default)]
struct Cluster {
    pods: BTreeMap<(String, String), Value>,
    policies: BTreeMap<(String, String), Value>,
    namespaces: BTreeMap<String, Value>,
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl Cluster {
    fn pods(&self) -> Vec<Pod> {
        self.pods.values().map(read).collect()
    }

    /// Whether Kubernetes would let the packet pass on this node, by reading every policy anew.
    fn allows(&self, packet: &Packet) -> bool {
        if packet.from == packet.to {
            return true;
        }
        let at = |ip: IpAddr| {
            let has = move |pod: &Pod| pod.status.pod_ips.iter().any(|own| own.ip.parse() == Ok(ip));
            self.pods().into_iter().find(|pod| has(pod) && concerns(pod))
        };
        let (source, destination) = (at(packet.from), at(packet.to));
        let here = |pod: &&Pod| pod.spec.node_name == NODE;
        let leaves = source.as_ref().filter(here).is_none_or(|pod| {
            self.passes(
                pod,
                Direction::Egress,
                |peer| self.is_peer(peer, pod, packet.to),
                packet,
                destination.as_ref(),
            )
        });
        let enters = destination.as_ref().filter(here).is_none_or(|pod| {
            self.passes(
                pod,
                Direction::Ingress,
                |peer| self.is_peer(peer, pod, packet.from),
                packet,
                Some(pod),
            )
        });
        leaves && enters
    }

    fn passes(
        &self,
        pod: &Pod,
        direction: Direction,
        is_peer: impl Fn(&Peer) -> bool,
        packet: &Packet,
        destination: Option<&Pod>,
    ) -> bool {
        let policies = self.policies.values().map(read::<NetworkPolicy>);
        let selecting = policies.filter(|policy| {
            policy.metadata.namespace == pod.metadata.namespace
                && policy.spec.pod_selector.matches(&pod.metadata.labels)
        });
        let mut is_isolated = false;
        let mut is_allowed = false;
        for policy in selecting {
            let spec = &policy.spec;
            let types = &spec.policy_types;
            let (about, rules): (bool, Vec<(&Vec<Peer>, &Vec<PolicyPort>)>) = match direction {
                Direction::Ingress => (
                    types.is_empty() || types.contains(&"Ingress".to_string()),
                    spec.ingress.iter().map(|rule| (&rule.from, &rule.ports)).collect(),
                ),
                Direction::Egress => (
                    types.is_empty() && !spec.egress.is_empty() || types.contains(&"Egress".to_string()),
                    spec.egress.iter().map(|rule| (&rule.to, &rule.ports)).collect(),
                ),
            };
            if !about {
                continue;
            }
            is_isolated = true;
            is_allowed |= rules.iter().any(|(peers, ports)| {
                (peers.is_empty() || peers.iter().any(&is_peer))
                    && (ports.is_empty() || ports.iter().any(|port| is_port(port, packet, destination)))
            });
        }
        !is_isolated || is_allowed
    }

    /// `pod` is the one that the policy is about.
    fn is_peer(&self, peer: &Peer, pod: &Pod, ip: IpAddr) -> bool {
        if let Some(block) = &peer.ip_block {
            let within = |range: &String| range.parse::<ipnet::IpNet>().unwrap().contains(&ip);
            return within(&block.cidr) && !block.except.iter().any(within);
        }
        let selected = |selector: &Option<LabelSelector>, labels: &Labels| {
            selector.as_ref().is_none_or(|selector| selector.matches(labels))
        };
        self.pods().iter().filter(|other| concerns(other)).any(|other| {
            let namespace = self
                .namespaces
                .get(&other.metadata.namespace)
                .map(read::<Namespace>)
                .unwrap_or_default();
            let in_namespace = match &peer.namespace_selector {
                None => other.metadata.namespace == pod.metadata.namespace,
                Some(_) => selected(&peer.namespace_selector, &namespace.metadata.labels),
            };
            other.status.pod_ips.iter().any(|own| own.ip.parse() == Ok(ip))
                && in_namespace
                && selected(&peer.pod_selector, &other.metadata.labels)
        })
    }
}

fn concerns(pod: &Pod) -> bool {
    !pod.spec.host_network && !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn is_port(port: &PolicyPort, packet: &Packet, destination: Option<&Pod>) -> bool {
    use orlop_api::objects::service::TargetPort;
    let protocol = match packet.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    if port.protocol.as_deref().unwrap_or("TCP") != protocol {
        return false;
    }
    match &port.port {
        None => true,
        Some(TargetPort::Number(first)) => (*first..=port.end_port.unwrap_or(*first)).contains(&packet.port),
        Some(TargetPort::Name(name)) => destination.is_some_and(|pod| {
            let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
            ports.into_iter().any(|own| {
                let own_protocol = if own.protocol.is_empty() { "TCP" } else { &own.protocol };
                own.name == *name && own.container_port == packet.port && own_protocol == protocol
            })
        }),
    }
}

/// The same by the plan.
fn plan_allows(plan: &PolicyPlan, packet: &Packet) -> bool {
    if packet.from == packet.to {
        return true;
    }
    let passes = |ip: IpAddr, other: IpAddr, direction: Direction| {
        let Some((_, pod)) = plan.isolated_at(ip) else {
            return true;
        };
        let Some(policies) = pod.policies(direction) else {
            return true;
        };
        policies.iter().any(|name| {
            let rules = matches(&name.namespace, &plan.policies[name], direction);
            rules.iter().any(|(rule, _)| {
                let has = |set: &str, member: Member| plan.sets[set].members.contains_key(&member);
                let peer = match &rule.peer {
                    PeerMatch::Anyone => true,
                    PeerMatch::Members(set) => has(set, Member::Address(other)),
                    PeerMatch::Block { range, except } => {
                        range.contains(&other) && !except.iter().any(|range| range.contains(&other))
                    }
                };
                let port = match &rule.ports {
                    PortMatch::Any => true,
                    PortMatch::Named(set) => has(set, Member::Port(packet.to, packet.protocol, packet.port)),
                    PortMatch::Numbers(set) => plan.sets[&**set].members.keys().any(|member| {
                        matches!(member, Member::Numbers(protocol, first, last)
                            if *protocol == packet.protocol && (*first..=*last).contains(&packet.port))
                    }),
                };
                peer && port
            })
        })
    };
    passes(packet.from, packet.to, Direction::Egress) && passes(packet.to, packet.from, Direction::Ingress)
}

/// A change of the cluster.
#[derive(Clone, Debug)]
enum Step {
    Pod {
        at: u8,
        labels: u8,
        node: u8,
        state: u8,
        ports: u8,
    },
    NoPod {
        at: u8,
    },
    Policy {
        at: u8,
        spec: Value,
    },
    NoPolicy {
        at: u8,
    },
    Namespace {
        at: u8,
        labels: u8,
    },
}

const NAMESPACES: [&str; 3] = ["red", "green", "blue"];

/// Two letters that are there or not.
fn labels(bits: u8) -> Value {
    let pairs = [(1, "a"), (2, "b")].into_iter().filter(|(bit, _)| bits & bit != 0);
    Value::Object(pairs.map(|(_, key)| (key.to_string(), json!("x"))).collect())
}

fn pod_name(at: u8) -> (String, String) {
    (NAMESPACES[usize::from(at) % 3].to_string(), format!("p{at}"))
}

fn pod_ips(at: u8) -> [IpAddr; 2] {
    [
        format!("10.0.{}.{at}", at % 2).parse().unwrap(),
        format!("fd00::{at}").parse().unwrap(),
    ]
}

fn policy_name(at: u8) -> (String, String) {
    (NAMESPACES[usize::from(at) % 3].to_string(), format!("policy{at}"))
}

fn any_selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        (0u8..4).prop_map(|bits| json!({"matchLabels": labels(bits)})),
        Just(json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]})),
        Just(json!({"matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}]})),
    ]
}

fn any_peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_selector().prop_map(|pods| json!({"podSelector": pods})),
        any_selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (any_selector(), any_selector()).prop_map(|(n, p)| json!({"namespaceSelector": n, "podSelector": p})),
        Just(json!({"ipBlock": {"cidr": "10.0.0.0/16", "except": ["10.0.1.0/24"]}})),
        Just(json!({"ipBlock": {"cidr": "fd00::/120"}})),
        Just(json!({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ]
}

fn any_port() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"port": 80})),
        Just(json!({"port": 70, "endPort": 90})),
        Just(json!({"protocol": "UDP"})),
        Just(json!({"port": "web"})),
        Just(json!({"port": "dns", "protocol": "UDP"})),
    ]
}

fn any_rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let rule = (
        prop::collection::vec(any_peer(), 0..3),
        prop::collection::vec(any_port(), 0..3),
    );
    let rule = rule.prop_map(move |(who, ports)| json!({peers: who, "ports": ports}));
    prop::collection::vec(rule, 0..3).prop_map(Value::Array)
}

fn any_policy() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        Just(json!([])),
        Just(json!(["Ingress"])),
        Just(json!(["Egress"])),
        Just(json!(["Ingress", "Egress"])),
    ];
    (any_selector(), types, any_rules("from"), any_rules("to")).prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..8, 0u8..4, 0u8..3, 0u8..6, 0u8..3)
            .prop_map(|(at, labels, node, state, ports)| Step::Pod { at, labels, node, state, ports }),
        1 => (0u8..8).prop_map(|at| Step::NoPod { at }),
        4 => (0u8..6, any_policy()).prop_map(|(at, spec)| Step::Policy { at, spec }),
        1 => (0u8..6).prop_map(|at| Step::NoPolicy { at }),
        2 => (0u8..3, 0u8..4).prop_map(|(at, labels)| Step::Namespace { at, labels }),
    ]
}

/// Takes the step in the cluster and tells the planner.
fn take(step: &Step, cluster: &mut Cluster, planner: &mut Planner) {
    match step {
        Step::Pod {
            at,
            labels: bits,
            node,
            state,
            ports,
        } => {
            let name = pod_name(*at);
            let ips = pod_ips(*at).map(|ip| json!({"ip": ip.to_string()}));
            let phase = ["Pending", "Running", "Running", "Running", "Succeeded", "Running"][usize::from(*state)];
            let all_ports = [
                json!([]),
                json!([{"name": "web", "containerPort": 80}]),
                json!([{"name": "web", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]),
            ];
            let pod = json!({
                "metadata": {"namespace": name.0, "name": name.1, "labels": labels(*bits)},
                "spec": {
                    "nodeName": if *node == 0 { "there" } else { NODE },
                    "hostNetwork": *state == 5,
                    "containers": [{"ports": all_ports[usize::from(*ports)]}],
                },
                "status": {"phase": phase, "podIPs": if *state == 0 { json!([]) } else { json!(ips) }},
            });
            planner.apply_pod(&read(&pod));
            cluster.pods.insert(name, pod);
        }
        Step::NoPod { at } => {
            let name = pod_name(*at);
            planner.forget_pod(&name.0, &name.1);
            cluster.pods.remove(&name);
        }
        Step::Policy { at, spec } => {
            let name = policy_name(*at);
            let policy = json!({"metadata": {"namespace": name.0, "name": name.1}, "spec": spec});
            planner.apply_policy(&read(&policy));
            cluster.policies.insert(name, policy);
        }
        Step::NoPolicy { at } => {
            let name = policy_name(*at);
            planner.forget_policy(&name.0, &name.1);
            cluster.policies.remove(&name);
        }
        Step::Namespace { at, labels: bits } => {
            let name = NAMESPACES[usize::from(*at)];
            let namespace = json!({"metadata": {"name": name, "labels": labels(*bits)}});
            planner.apply_namespace(&read(&namespace));
            cluster.namespaces.insert(name.to_string(), namespace);
        }
    }
}

/// As one that starts now has it, in another order.
fn planned_anew(cluster: &Cluster) -> Planner {
    let mut planner = Planner::new(NODE);
    let policies: Vec<NetworkPolicy> = cluster.policies.values().map(read).collect();
    planner.replace_policies(&policies);
    planner.replace_pods(&cluster.pods());
    let namespaces: Vec<Namespace> = cluster.namespaces.values().map(read).collect();
    planner.replace_namespaces(&namespaces);
    planner
}

fn packets() -> Vec<Packet> {
    let outside: [IpAddr; 2] = ["10.0.0.200".parse().unwrap(), "fd00::200".parse().unwrap()];
    let mut all = vec![];
    for (family, outside) in outside.into_iter().enumerate() {
        let addresses: Vec<IpAddr> = (0..8).map(|at| pod_ips(at)[family]).chain([outside]).collect();
        for from in &addresses {
            for to in &addresses {
                for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Tcp, 8080), (Protocol::Udp, 53)] {
                    let (from, to) = (*from, *to);
                    all.push(Packet {
                        from,
                        to,
                        protocol,
                        port,
                    });
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever changes, in whatever order: the plan is that of a planner that starts now, and lets pass exactly what
    /// Kubernetes' rules do.
    #[test]
    fn the_plan_is_what_the_rules_say(steps in prop::collection::vec(any_step(), 1..40)) {
        let (mut cluster, mut planner) = (Cluster::default(), Planner::new(NODE));
        for step in &steps {
            take(step, &mut cluster, &mut planner);
        }
        let anew = planned_anew(&cluster);
        prop_assert_eq!(planner.plan(), anew.plan());
        for packet in packets() {
            prop_assert_eq!(plan_allows(planner.plan(), &packet), cluster.allows(&packet), "{:?}", packet);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Tables that follow changes are those that are made anew.
    #[test]
    fn tables_follow_the_plan(steps in prop::collection::vec(any_step(), 1..30)) {
        in_namespace(|| {
            let namespace = orlop_netlink::Namespace::current().unwrap();
            let mut tables = Tables::open(&namespace, "policies").unwrap();
            let (mut cluster, mut planner) = (Cluster::default(), Planner::new(NODE));
            for some in steps.chunks(3) {
                some.iter().for_each(|step| take(step, &mut cluster, &mut planner));
                let changes = planner.take_changes();
                tables.apply(planner.plan(), &changes).unwrap();
            }
            let mut others = Tables::open(&namespace, "policies").unwrap();
            assert_eq!(others.apply_all(planner.plan()).unwrap(), 0, "{}", shell("nft list ruleset"));
            others.delete().unwrap();
            assert_eq!(shell("nft list ruleset"), "");
        });
    }
}

fn apply(planner: &mut Planner, pods: &[(&str, u8, &str)]) {
    for (name, bits, ip) in pods {
        let pod = json!({
            "metadata": {"namespace": "red", "name": name, "labels": labels(*bits)},
            "spec": {"nodeName": NODE},
            "status": {"podIPs": [{"ip": ip}]},
        });
        planner.apply_pod(&read(&pod));
    }
}

fn deny_all(planner: &mut Planner) {
    let policy = json!({"metadata": {"namespace": "red", "name": "deny"}, "spec": {"podSelector": {}}});
    planner.apply_policy(&read(&policy));
}

#[test]
fn a_peer_that_comes_is_one_element() {
    in_namespace(|| {
        let namespace = orlop_netlink::Namespace::current().unwrap();
        let mut tables = Tables::open(&namespace, "policies").unwrap();
        let mut planner = Planner::new(NODE);
        apply(&mut planner, &[("server", 1, "10.0.0.1")]);
        let policy = json!({
            "metadata": {"namespace": "red", "name": "allow"},
            "spec": {
                "podSelector": {"matchLabels": {"a": "x"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"b": "x"}}}]}],
            },
        });
        planner.apply_policy(&read(&policy));
        let changes = planner.take_changes();
        tables.apply(planner.plan(), &changes).unwrap();
        for n in 2..200 {
            apply(&mut planner, &[(&format!("client{n}"), 2, &format!("10.0.0.{n}"))]);
            let changes = planner.take_changes();
            assert_eq!(tables.apply(planner.plan(), &changes).unwrap(), 1, "one element a pod");
        }
        // Those that no policy mentions are nothing.
        apply(&mut planner, &[("idle", 0, "10.0.0.250")]);
        let changes = planner.take_changes();
        assert_eq!(tables.apply(planner.plan(), &changes).unwrap(), 0);
    });
}

#[test]
fn an_address_is_the_later_pods() {
    let mut planner = Planner::new(NODE);
    let pod = |name: &str, created: &str, bits: u8| {
        json!({
            "metadata": {"namespace": "red", "name": name, "labels": labels(bits), "creationTimestamp": created},
            "spec": {"nodeName": NODE},
            "status": {"podIPs": [{"ip": "10.0.0.1"}]},
        })
    };
    let policy = json!({
        "metadata": {"namespace": "red", "name": "deny"},
        "spec": {"podSelector": {"matchLabels": {"a": "x"}}},
    });
    planner.apply_policy(&read(&policy));
    let ip = "10.0.0.1".parse().unwrap();
    planner.apply_pod(&read(&pod("old", "2026-01-01T00:00:00Z", 1)));
    assert!(planner.plan().isolated_at(ip).is_some());
    planner.apply_pod(&read(&pod("new", "2026-01-02T00:00:00Z", 0)));
    assert!(planner.plan().isolated_at(ip).is_none(), "the new one is not isolated");
    planner.forget_pod("red", "new");
    assert!(planner.plan().isolated_at(ip).is_some());
}

#[test]
fn what_the_runtime_says_comes_before_the_status() {
    let mut planner = Planner::new(NODE);
    deny_all(&mut planner);
    let name = ObjectName::new("red", "p");
    let (early, late): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    planner.set_attached(&name, &[early]);
    assert!(!planner.knows_pod(&name));
    let pod = json!({"metadata": {"namespace": "red", "name": "p"}, "spec": {"nodeName": NODE}});
    planner.apply_pod(&read(&pod));
    assert!(
        planner.plan().isolated_at(early).is_some(),
        "before it is in the status"
    );
    apply(&mut planner, &[("p", 0, "10.0.0.1")]);
    planner.set_attached(&name, &[late]);
    assert!(planner.plan().isolated_at(late).is_some(), "a new sandbox");
    assert!(planner.plan().isolated_at(early).is_none());
    planner.set_attached(&name, &[]);
    assert!(planner.plan().isolated_at(early).is_some());
}

#[test]
fn long_names_have_chains_too() {
    in_namespace(|| {
        let namespace = orlop_netlink::Namespace::current().unwrap();
        let mut tables = Tables::open(&namespace, "policies").unwrap();
        let mut planner = Planner::new(NODE);
        let long = "n".repeat(63);
        let names: BTreeSet<String> = ["a", "b"]
            .iter()
            .map(|last| format!("{}{last}", "p".repeat(252)))
            .collect();
        for (n, name) in names.iter().enumerate() {
            let pod = json!({
                "metadata": {"namespace": long, "name": name},
                "spec": {"nodeName": NODE},
                "status": {"podIPs": [{"ip": format!("10.0.0.{n}")}]},
            });
            planner.apply_pod(&read(&pod));
            let policy = json!({"metadata": {"namespace": long, "name": name}, "spec": {"podSelector": {}}});
            planner.apply_policy(&read(&policy));
        }
        let changes = planner.take_changes();
        tables.apply(planner.plan(), &changes).unwrap();
        assert_eq!(tables.apply_all(planner.plan()).unwrap(), 0);
    });
}
