//! Ports of the node that lead to a pod.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use orlop_netlink::conntrack::Flow;
use orlop_netlink::{Family, Protocol};
use serde::{Deserialize, Serialize};

use super::error::{PodNetworkError, Result};
use super::sandboxes::Sandbox;
use crate::cri::messages::{PortMapping, Protocol as CriProtocol};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HostPort {
    #[serde(with = "protocol_name")]
    pub protocol: Protocol,
    /// None: every address of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

/// A protocol by its name.
mod protocol_name {
    use orlop_netlink::Protocol;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(protocol: &Protocol, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(protocol.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        let name = String::deserialize(from)?;
        let found = Protocol::ALL.into_iter().find(|protocol| protocol.as_str() == name);
        found.ok_or_else(|| D::Error::custom(format!("unknown protocol {name}")))
    }
}

/// Those of a pod's ports that are to be open on the node.
pub(super) fn parse(ports: &[PortMapping]) -> Result<Vec<HostPort>> {
    let wanted = ports.iter().filter(|port| port.host_port != 0);
    wanted.map(parse_one).collect()
}

fn parse_one(mapping: &PortMapping) -> Result<HostPort> {
    let invalid = |what: String| PodNetworkError::InvalidPort(what);
    let port = |number: i32| match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(invalid(format!("port {number} is not between 1 and 65535"))),
    };
    let protocol = match CriProtocol::try_from(mapping.protocol) {
        Ok(CriProtocol::Tcp) => Protocol::Tcp,
        Ok(CriProtocol::Udp) => Protocol::Udp,
        Ok(CriProtocol::Sctp) => Protocol::Sctp,
        Err(_) => return Err(invalid(format!("unknown protocol {}", mapping.protocol))),
    };
    let host_ip = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(
            text.parse::<IpAddr>()
                .map_err(|_| invalid(format!("host IP {text:?}")))?,
        ),
    };
    Ok(HostPort {
        protocol,
        // As with sockets, the unspecified address stands for all of its family.
        host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
        host_port: port(mapping.host_port)?,
        container_port: port(mapping.container_port)?,
    })
}

/// Where packets to a port of the node go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mappings {
    /// By the node's address, if not all of them, protocol and port.
    pub targets: BTreeMap<(Option<IpAddr>, Protocol, u16), (IpAddr, u16)>,
    /// Addresses of pods that have host ports: a pod that comes to itself by one must not see its own address.
    pub pods: Vec<IpAddr>,
}

/// Those of one family. Of two sandboxes that claim the same port the later one has it: the other is on its way out.
pub(super) fn plan<'a>(family: Family, sandboxes: impl Iterator<Item = &'a Sandbox>) -> Mappings {
    let mut sandboxes: Vec<&Sandbox> = sandboxes.filter(|sandbox| !sandbox.ports.is_empty()).collect();
    sandboxes.sort_by_key(|sandbox| sandbox.number);
    let mut mappings = Mappings::default();
    for sandbox in sandboxes {
        let Some(ip) = sandbox.addresses.iter().copied().find(|ip| Family::of(*ip) == family) else {
            continue;
        };
        mappings.pods.push(ip);
        let in_family = |port: &&HostPort| port.host_ip.is_none_or(|host_ip| Family::of(host_ip) == family);
        for port in sandbox.ports.iter().filter(in_family) {
            let key = (port.host_ip, port.protocol, port.host_port);
            mappings.targets.insert(key, (ip, port.container_port));
        }
    }
    mappings
}

impl Mappings {
    /// Whether a UDP flow to an address of the node goes elsewhere than its next packet would if it were the first. The
    /// kernel decides once where a flow goes, and one whose client goes on sending never ends.
    pub(super) fn is_stale(&self, flow: &Flow, pods: IpNet) -> bool {
        let at = |host_ip| self.targets.get(&(host_ip, Protocol::Udp, flow.destination.port()));
        let target = at(Some(flow.destination.ip())).or_else(|| at(None));
        match target {
            Some((ip, port)) => flow.answered_by != SocketAddr::new(*ip, *port),
            None => flow.answered_by != flow.destination && pods.contains(&flow.answered_by.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(protocol: CriProtocol, host_ip: &str, host_port: i32, container_port: i32) -> PortMapping {
        PortMapping {
            protocol: protocol.into(),
            container_port,
            host_port,
            host_ip: host_ip.to_string(),
        }
    }

    fn sandbox(number: u64, addresses: &[&str], ports: Vec<HostPort>) -> Sandbox {
        Sandbox {
            link: format!("link{number}"),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ports,
            number,
        }
    }

    #[test]
    fn ports_without_a_host_port_are_left_out_and_wrong_ones_named() {
        let all = [
            mapping(CriProtocol::Tcp, "", 0, 80),
            mapping(CriProtocol::Udp, "0.0.0.0", 53, 5353),
            mapping(CriProtocol::Sctp, "10.0.0.1", 7, 8),
        ];
        let parsed = parse(&all).unwrap();
        assert_eq!(parsed.len(), 2);
        assert_eq!((parsed[0].protocol, parsed[0].host_ip), (Protocol::Udp, None));
        assert_eq!(parsed[1].host_ip, Some("10.0.0.1".parse().unwrap()));
        for wrong in [
            mapping(CriProtocol::Tcp, "", 70_000, 80),
            mapping(CriProtocol::Tcp, "", 80, -1),
            mapping(CriProtocol::Tcp, "node", 80, 80),
        ] {
            assert!(matches!(parse(&[wrong]), Err(PodNetworkError::InvalidPort(_))));
        }
    }

    #[test]
    fn flows_follow_the_ports() {
        let ports = parse(&[mapping(CriProtocol::Udp, "", 53, 5353)]).unwrap();
        let mappings = plan(Family::V4, [sandbox(1, &["10.0.0.2"], ports)].iter());
        let is_stale = |mappings: &Mappings, destination: &str, answered_by: &str| {
            let source = "203.0.113.1:4000".parse().unwrap();
            let flow = Flow::unnamed(source, destination.parse().unwrap(), answered_by.parse().unwrap());
            mappings.is_stale(&flow, "10.0.0.0/24".parse().unwrap())
        };
        assert!(!is_stale(&mappings, "192.0.2.1:53", "10.0.0.2:5353"));
        assert!(
            is_stale(&mappings, "192.0.2.1:53", "10.0.0.9:5353"),
            "to a pod that went"
        );
        assert!(
            is_stale(&mappings, "192.0.2.1:53", "192.0.2.1:53"),
            "to the node itself, before there was a port"
        );
        assert!(!is_stale(&mappings, "192.0.2.1:54", "192.0.2.1:54"));
        let none = Mappings::default();
        assert!(is_stale(&none, "192.0.2.1:53", "10.0.0.2:5353"));
        assert!(!is_stale(&none, "192.0.2.1:53", "172.16.0.1:53"), "of somebody else");
    }

    #[test]
    fn the_later_sandbox_has_the_port() {
        let port = |host_ip: &str, number| parse(&[mapping(CriProtocol::Tcp, host_ip, number, 80)]).unwrap();
        let all = [
            sandbox(2, &["10.0.0.3", "fd00::3"], port("", 8080)),
            sandbox(1, &["10.0.0.2", "fd00::2"], port("", 8080)),
            sandbox(3, &["10.0.0.4"], port("192.0.2.1", 8080)),
            sandbox(4, &["10.0.0.5"], vec![]),
        ];
        let v4 = plan(Family::V4, all.iter());
        let at = |host_ip: Option<&str>| {
            let key = (host_ip.map(|ip| ip.parse().unwrap()), Protocol::Tcp, 8080);
            v4.targets[&key].0.to_string()
        };
        assert_eq!(
            (at(None), at(Some("192.0.2.1"))),
            ("10.0.0.3".to_string(), "10.0.0.4".to_string())
        );
        assert_eq!(v4.pods.len(), 3);
        let v6 = plan(Family::V6, all.iter());
        assert_eq!(v6.targets.len(), 1);
        assert_eq!(v6.pods.len(), 2);
    }
}
