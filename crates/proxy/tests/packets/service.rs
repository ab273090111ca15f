//! Services for the cases, as the objects that a cluster would have.

use std::net::{IpAddr, SocketAddr};

use orlop_proxy::objects::{EndpointSlice, Service};
use orlop_proxy::plan::{Family, Protocol};
use serde_json::{Value, json};

use crate::world::{POD_PORT, World};

/// How an endpoint fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    NotReady,
    /// Going away, and still serving.
    Draining,
    /// Going away, and no longer serving.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Svc {
    pub name: &'static str,
    /// The last number of its addresses.
    number: u8,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
    external_ip: bool,
    load_balancer: bool,
    /// Its load balancer has the node's own addresses.
    at_node: bool,
    source_ranges: Vec<&'static str>,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    endpoints: Vec<(&'static str, State)>,
}

impl Svc {
    pub(crate) fn new(name: &'static str, number: u8, pods: &[&'static str]) -> Svc {
        Svc {
            name,
            number,
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            external_ip: false,
            load_balancer: false,
            at_node: false,
            source_ranges: vec![],
            affinity: None,
            internal_local: false,
            external_local: false,
            endpoints: pods.iter().map(|pod| (*pod, State::Ready)).collect(),
        }
    }

    pub(crate) fn udp(mut self) -> Svc {
        self.protocol = Protocol::Udp;
        self
    }

    pub(crate) fn port(mut self, port: u16) -> Svc {
        self.port = port;
        self
    }

    pub(crate) fn node_port(mut self, port: u16) -> Svc {
        self.node_port = Some(port);
        self
    }

    pub(crate) fn external_ip(mut self) -> Svc {
        self.external_ip = true;
        self
    }

    pub(crate) fn load_balancer(mut self) -> Svc {
        self.load_balancer = true;
        self
    }

    /// The nodes are the load balancer, as where there is no cloud.
    pub(crate) fn load_balancer_at_node(mut self) -> Svc {
        self.at_node = true;
        self.load_balancer()
    }

    pub(crate) fn only_from(mut self, ranges: &[&'static str]) -> Svc {
        self.source_ranges = ranges.to_vec();
        self
    }

    pub(crate) fn affinity(mut self, seconds: u32) -> Svc {
        self.affinity = Some(seconds);
        self
    }

    pub(crate) fn internal_local(mut self) -> Svc {
        self.internal_local = true;
        self
    }

    pub(crate) fn external_local(mut self) -> Svc {
        self.external_local = true;
        self
    }

    pub(crate) fn endpoints(mut self, endpoints: &[(&'static str, State)]) -> Svc {
        self.endpoints = endpoints.to_vec();
        self
    }

    pub(crate) fn pods(self, pods: &[&'static str]) -> Svc {
        let endpoints: Vec<_> = pods.iter().map(|pod| (*pod, State::Ready)).collect();
        self.endpoints(&endpoints)
    }

    /// Its protocol.
    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn at(&self, family: Family, v4: &str, v6: &str) -> SocketAddr {
        let text = match family {
            Family::V4 => format!("{v4}.{}", self.number),
            Family::V6 => format!("{v6}::{:x}", self.number),
        };
        SocketAddr::new(text.parse().unwrap(), self.port)
    }

    pub(crate) fn cluster(&self, family: Family) -> SocketAddr {
        self.at(family, "10.96.0", "fd00:96")
    }

    pub(crate) fn external(&self, family: Family) -> SocketAddr {
        self.at(family, "198.51.100", "2001:db8:100")
    }

    /// The address of its load balancer.
    pub(crate) fn ingress(&self, family: Family) -> SocketAddr {
        let mut address = self.external(family);
        if self.at_node {
            let node = match family {
                Family::V4 => "172.16.1.2",
                Family::V6 => "fd00:1::2",
            };
            address.set_ip(node.parse().unwrap());
            return address;
        }
        address.set_ip(match address.ip() {
            IpAddr::V4(ip) => {
                let mut octets = ip.octets();
                octets[3] += 100;
                IpAddr::from(octets)
            }
            IpAddr::V6(ip) => {
                let mut octets = ip.octets();
                octets[15] += 100;
                IpAddr::from(octets)
            }
        });
        address
    }

    /// Its node port, at an address.
    pub(crate) fn node_port_at(&self, ip: IpAddr) -> SocketAddr {
        SocketAddr::new(ip, self.node_port.expect("a node port"))
    }

    pub(crate) fn object(&self) -> Service {
        let both = |address: &dyn Fn(Family) -> SocketAddr| Family::ALL.map(|f| address(f).ip().to_string());
        let cluster_ips = both(&|f| self.cluster(f));
        let kind = match (self.load_balancer, self.node_port) {
            (true, _) => "LoadBalancer",
            (false, Some(_)) => "NodePort",
            (false, None) => "ClusterIP",
        };
        let mut spec = json!({
            "type": kind, "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips,
            "ports": [{
                "name": "p", "protocol": self.protocol.as_str().to_uppercase(), "port": self.port,
                "nodePort": self.node_port.unwrap_or(0),
            }],
            "internalTrafficPolicy": if self.internal_local { "Local" } else { "Cluster" },
            "externalTrafficPolicy": if self.external_local { "Local" } else { "Cluster" },
            "loadBalancerSourceRanges": self.source_ranges,
            "sessionAffinity": if self.affinity.is_some() { "ClientIP" } else { "None" },
        });
        if let Some(seconds) = self.affinity {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        if self.external_ip {
            spec["externalIPs"] = json!(both(&|f| self.external(f)));
        }
        let ingress: Vec<Value> = match self.load_balancer {
            true => both(&|f| self.ingress(f)).iter().map(|ip| json!({"ip": ip})).collect(),
            false => vec![],
        };
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": self.name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec, "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap()
    }

    pub(crate) fn slices(&self, world: &World) -> Vec<EndpointSlice> {
        let slice = |family: Family| {
            let endpoint = |(pod, state): &(&'static str, State)| {
                json!({
                    "addresses": [world.address(pod, family)], "nodeName": if pod.starts_with('b') { "b" } else { "a" },
                    "conditions": {
                        "ready": *state == State::Ready,
                        "serving": matches!(state, State::Ready | State::Draining),
                        "terminating": matches!(state, State::Draining | State::Gone),
                    },
                })
            };
            let endpoints: Vec<Value> = self.endpoints.iter().map(endpoint).collect();
            serde_json::from_value(json!({
                "metadata": {
                    "namespace": "default", "name": slice_name(self.name, family),
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": match family { Family::V4 => "IPv4", Family::V6 => "IPv6" },
                "endpoints": endpoints,
                "ports": [{"name": "p", "protocol": self.protocol.as_str().to_uppercase(), "port": POD_PORT}],
            }))
            .unwrap()
        };
        Family::ALL.map(slice).to_vec()
    }
}

pub(crate) fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{family:?}").to_lowercase()
}
