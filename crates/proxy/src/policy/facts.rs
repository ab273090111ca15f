//! Objects, with addresses and ports read, and all that does not matter left behind.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use orlop_api::objects::service::TargetPort;
use orlop_api::objects::{LabelSelector, Labels};

use super::objects::{IpBlock, NetworkPolicy, Peer, Pod, PolicyPort};
use crate::plan::Protocol;

/// A namespace and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectName {
    pub(super) fn new(namespace: &str, name: &str) -> ObjectName {
        ObjectName {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub is_local: bool,
    pub created: Option<jiff::Timestamp>,
    pub labels: Labels,
    /// Those that its status has.
    pub reported_ips: Vec<IpAddr>,
    /// Those that it has; the same, unless the runtime of this node says otherwise.
    pub ips: Vec<IpAddr>,
    /// Those that have names.
    pub ports: Vec<(Arc<str>, Protocol, u16)>,
}

/// None: policies are not about it. Pods in the node's network have the node's addresses, and those of a pod that is over
/// may be another's.
pub(super) fn pod(object: &Pod, node: &str) -> Option<PodFacts> {
    let is_over = matches!(object.status.phase.as_str(), "Succeeded" | "Failed");
    if object.spec.host_network || is_over {
        return None;
    }
    let containers = object.spec.containers.iter().chain(&object.spec.init_containers);
    let ports = containers
        .flat_map(|container| &container.ports)
        .filter(|port| !port.name.is_empty());
    let ports = ports.filter_map(|port| {
        Some((
            port.name.as_str().into(),
            protocol(&port.protocol)?,
            port.container_port,
        ))
    });
    let reported_ips = object.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok());
    let reported_ips: Vec<IpAddr> = reported_ips.collect();
    Some(PodFacts {
        is_local: object.spec.node_name == node,
        created: object.metadata.creation_timestamp,
        labels: object.metadata.labels.clone(),
        ips: reported_ips.clone(),
        reported_ips,
        ports: ports.collect(),
    })
}

/// Empty is TCP. None: one that policies do not know.
fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub(super) const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyFacts {
    pub pod_selector: LabelSelector,
    /// None: it says nothing about this direction. Empty: nothing is allowed.
    pub ingress: Option<Vec<RuleFacts>>,
    pub egress: Option<Vec<RuleFacts>>,
}

impl PolicyFacts {
    pub(super) fn rules(&self, direction: Direction) -> Option<&[RuleFacts]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleFacts {
    /// None: anyone.
    pub peers: Option<Vec<PeerFacts>>,
    /// None: every port of every protocol.
    pub ports: Option<Vec<PortFacts>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerFacts {
    Pods(Scope),
    Block { range: IpNet, except: Vec<IpNet> },
}

/// Pods of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub namespaces: NamespaceScope,
    pub pods: LabelSelector,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NamespaceScope {
    One(Arc<str>),
    Matching(LabelSelector),
}

impl NamespaceScope {
    pub(super) fn matches(&self, name: &str, labels: &Labels) -> bool {
        match self {
            NamespaceScope::One(wanted) => **wanted == *name,
            NamespaceScope::Matching(selector) => selector.matches(labels),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortFacts {
    Numbers { protocol: Protocol, first: u16, last: u16 },
    Named { protocol: Protocol, name: Arc<str> },
}

pub(super) fn policy(object: &NetworkPolicy) -> PolicyFacts {
    let namespace: Arc<str> = object.metadata.namespace.as_str().into();
    let spec = &object.spec;
    let ingress = spec
        .ingress
        .iter()
        .map(|rule| self::rule(&namespace, &rule.from, &rule.ports));
    let egress = spec
        .egress
        .iter()
        .map(|rule| self::rule(&namespace, &rule.to, &rule.ports));
    let is_about = |wanted: &str, unless_said: bool| match spec.policy_types.is_empty() {
        true => unless_said,
        false => spec.policy_types.iter().any(|policy_type| policy_type == wanted),
    };
    PolicyFacts {
        pod_selector: spec.pod_selector.clone(),
        ingress: is_about("Ingress", true).then(|| ingress.collect()),
        egress: is_about("Egress", !spec.egress.is_empty()).then(|| egress.collect()),
    }
}

fn rule(namespace: &Arc<str>, peers: &[Peer], ports: &[PolicyPort]) -> RuleFacts {
    let peer = |peer: &Peer| self::peer(namespace, peer);
    RuleFacts {
        // What can't be read is nobody, and not anybody.
        peers: (!peers.is_empty()).then(|| peers.iter().filter_map(peer).collect()),
        ports: (!ports.is_empty()).then(|| ports.iter().filter_map(port).collect()),
    }
}

fn peer(namespace: &Arc<str>, peer: &Peer) -> Option<PeerFacts> {
    if let Some(block) = &peer.ip_block {
        return block_of(block);
    }
    let namespaces = match &peer.namespace_selector {
        Some(selector) => NamespaceScope::Matching(selector.clone()),
        None => NamespaceScope::One(Arc::clone(namespace)),
    };
    if peer.namespace_selector.is_none() && peer.pod_selector.is_none() {
        return None;
    }
    Some(PeerFacts::Pods(Scope {
        namespaces,
        pods: peer.pod_selector.clone().unwrap_or_default(),
    }))
}

fn block_of(block: &IpBlock) -> Option<PeerFacts> {
    let range: IpNet = block.cidr.parse().ok()?;
    // An exception that can't be read would allow what is not meant to be.
    let except: Result<Vec<IpNet>, _> = block.except.iter().map(|range| range.parse::<IpNet>()).collect();
    Some(PeerFacts::Block {
        range: range.trunc(),
        except: except.ok()?.into_iter().map(|range| range.trunc()).collect(),
    })
}

fn port(port: &PolicyPort) -> Option<PortFacts> {
    let protocol = protocol(port.protocol.as_deref().unwrap_or_default())?;
    Some(match &port.port {
        None => PortFacts::Numbers {
            protocol,
            first: 0,
            last: u16::MAX,
        },
        Some(TargetPort::Number(first)) => PortFacts::Numbers {
            protocol,
            first: *first,
            last: port.end_port.unwrap_or(*first).max(*first),
        },
        Some(TargetPort::Name(name)) => PortFacts::Named {
            protocol,
            name: name.as_str().into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: serde_json::Value) -> PolicyFacts {
        let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        policy(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn types_default_to_ingress_and_to_egress_if_there_are_rules() {
        let isolates = |spec| {
            let facts = read(spec);
            (facts.ingress.is_some(), facts.egress.is_some())
        };
        assert_eq!(isolates(json!({"podSelector": {}})), (true, false));
        assert_eq!(isolates(json!({"podSelector": {}, "egress": [{}]})), (true, true));
        assert_eq!(
            isolates(json!({"policyTypes": ["Egress"], "ingress": [{}]})),
            (false, true)
        );
        assert_eq!(
            isolates(json!({"policyTypes": ["Ingress"], "egress": [{}]})),
            (true, false)
        );
    }

    #[test]
    fn peers_and_ports_are_read() {
        let facts = read(json!({
            "ingress": [
                {},
                {
                    "from": [
                        {"podSelector": {}},
                        {"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {"matchLabels": {"c": "d"}}},
                        {"ipBlock": {"cidr": "10.0.0.9/8", "except": ["10.1.0.0/16"]}},
                        {"ipBlock": {"cidr": "nonsense"}},
                        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["nonsense"]}},
                        {},
                    ],
                    "ports": [
                        {"port": 80}, {"protocol": "UDP"}, {"port": "web", "protocol": "SCTP"},
                        {"port": 1000, "endPort": 2000}, {"protocol": "ICMP"},
                    ],
                },
            ],
        }));
        let [all, some] = &facts.ingress.unwrap()[..] else {
            panic!("two rules")
        };
        assert_eq!(*all, RuleFacts::default());
        let peers = some.peers.as_ref().unwrap();
        assert_eq!(peers.len(), 3);
        let PeerFacts::Pods(own) = &peers[0] else {
            panic!("pods")
        };
        assert_eq!(own.namespaces, NamespaceScope::One("n".into()));
        assert_eq!(
            peers[2],
            PeerFacts::Block {
                range: "10.0.0.0/8".parse().unwrap(),
                except: vec!["10.1.0.0/16".parse().unwrap()],
            }
        );
        let numbers = |protocol, first, last| PortFacts::Numbers { protocol, first, last };
        let named = PortFacts::Named {
            protocol: Protocol::Sctp,
            name: "web".into(),
        };
        assert_eq!(
            some.ports.as_deref().unwrap(),
            [
                numbers(Protocol::Tcp, 80, 80),
                numbers(Protocol::Udp, 0, 65535),
                named,
                numbers(Protocol::Tcp, 1000, 2000)
            ]
        );
    }

    #[test]
    fn a_rule_whose_peers_cannot_be_read_allows_nobody() {
        let facts = read(json!({"ingress": [{"from": [{"ipBlock": {"cidr": "x"}}], "ports": [{"protocol": "X"}]}]}));
        let rule = &facts.ingress.unwrap()[0];
        assert_eq!(
            (rule.peers.as_deref(), rule.ports.as_deref()),
            (Some(&[][..]), Some(&[][..]))
        );
    }

    #[test]
    fn pods_in_the_nodes_network_and_those_that_are_over_are_left_out() {
        let read = |spec: serde_json::Value, phase: &str| {
            let object = json!({"spec": spec, "status": {"phase": phase, "podIPs": [{"ip": "10.0.0.1"}]}});
            pod(&serde_json::from_value(object).unwrap(), "here")
        };
        let container = json!([{"ports": [{"name": "web", "containerPort": 80}, {"containerPort": 81}]}]);
        let facts = read(json!({"nodeName": "here", "containers": container}), "Running").unwrap();
        assert!(facts.is_local);
        assert_eq!(facts.ports, [("web".into(), Protocol::Tcp, 80)]);
        assert!(!read(json!({"nodeName": "there"}), "Pending").unwrap().is_local);
        assert_eq!(read(json!({"hostNetwork": true}), "Running"), None);
        assert_eq!(read(json!({}), "Succeeded"), None);
        assert_eq!(read(json!({}), "Failed"), None);
    }
}
