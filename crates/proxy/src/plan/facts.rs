//! Objects, with addresses read and all that does not matter left behind. What can't be read is left out, and said.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use orlop_api::objects::endpoint_slice::TRIGGER_TIME;

use super::{Family, Protocol};
use crate::objects::{EndpointSlice, Named, Service};

/// Services with this label are somebody else's. Upstream: `service.kubernetes.io/service-proxy-name`.
pub const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Their slices are of no use to a proxy.
pub use orlop_api::objects::endpoint_slice::HEADLESS;
/// Affinity lasts three hours unless the service says otherwise.
const AFFINITY_SECONDS: u32 = 10_800;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceFacts {
    pub created: Option<jiff::Timestamp>,
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    pub source_ranges: Vec<IpNet>,
    pub affinity: Option<u32>,
    pub internal_local: bool,
    pub external_local: bool,
    pub health_check_node_port: Option<u16>,
    pub ports: Vec<PortFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortFacts {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceFacts {
    pub family: Family,
    pub ports: Vec<SlicePortFacts>,
    pub endpoints: Vec<EndpointFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlicePortFacts {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointFacts {
    pub ip: IpAddr,
    pub node: Box<str>,
    pub ready: bool,
    /// Serves, though it is on its way out.
    pub lingers: bool,
    pub terminating: bool,
    pub zones: Vec<Box<str>>,
    pub nodes: Vec<Box<str>>,
}

/// None: no packets are ever addressed to this service, or another proxy has it.
pub(super) fn service(object: &Service) -> Option<ServiceFacts> {
    let spec = &object.spec;
    if object.is_headless() || spec.r#type == "ExternalName" || object.metadata.labels.contains_key(PROXY_NAME) {
        return None;
    }
    let name = || format!("service {}/{}", object.metadata.namespace, object.metadata.name);
    let ingress = object.status.load_balancer.ingress.iter();
    let ingress = ingress.filter(|i| !i.ip.is_empty() && i.ip_mode != "Proxy");
    let affinity = || {
        let config = spec.session_affinity_config.as_ref();
        config
            .and_then(|c| c.client_ip.timeout_seconds)
            .unwrap_or(AFFINITY_SECONDS)
    };
    let reaches_out = matches!(&*spec.r#type, "NodePort" | "LoadBalancer") || !spec.external_ips.is_empty();
    let external_local = reaches_out && spec.external_traffic_policy == "Local";
    let asks_health = external_local && spec.r#type == "LoadBalancer";
    Some(ServiceFacts {
        created: object.metadata.creation_timestamp,
        cluster_ips: read(object.cluster_ips().iter().map(String::as_str), &name),
        external_ips: read(spec.external_ips.iter().map(String::as_str), &name),
        load_balancer_ips: read(ingress.map(|i| &*i.ip), &name),
        source_ranges: read(spec.load_balancer_source_ranges.iter().map(|r| r.trim()), &name),
        affinity: (spec.session_affinity == "ClientIP").then(affinity),
        internal_local: spec.internal_traffic_policy == "Local",
        external_local,
        health_check_node_port: Some(spec.health_check_node_port).filter(|port| asks_health && *port != 0),
        ports: spec
            .ports
            .iter()
            .filter_map(|port| {
                Some(PortFacts {
                    name: (*port.name).into(),
                    protocol: protocol(&port.protocol)?,
                    port: port.port,
                    node_port: Some(port.node_port).filter(|port| *port != 0),
                })
            })
            .collect(),
    })
}

/// When the change happened that the slice shows.
pub(super) fn triggered(slice: &EndpointSlice) -> Option<jiff::Timestamp> {
    slice.metadata.annotation(TRIGGER_TIME)?.parse().ok()
}

/// None: a slice of names, or of a kind that is not known.
pub(super) fn slice(object: &EndpointSlice) -> Option<SliceFacts> {
    let family = match &*object.address_type {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        _ => return None,
    };
    let name = || format!("endpoint slice {}/{}", object.metadata.namespace, object.metadata.name);
    let ports = object.ports.iter().filter_map(|port| {
        Some(SlicePortFacts {
            name: port.name.as_deref()?.into(),
            protocol: protocol(port.protocol.as_deref().unwrap_or("TCP"))?,
            port: port.port.filter(|port| *port != 0)?,
        })
    });
    let endpoints = object.endpoints.iter().filter_map(|endpoint| {
        let ip: IpAddr = read(endpoint.addresses.iter().take(1).map(String::as_str), &name).pop()?;
        if Family::of(ip) != family {
            tracing::warn!(object = name(), %ip, address_type = %object.address_type, "ignoring endpoint address of another address type");
            return None;
        }
        let conditions = &endpoint.conditions;
        let terminating = conditions.terminating.unwrap_or(false);
        let names = |hints: &[Named]| hints.iter().map(|hint| (*hint.name).into()).collect();
        let hints = endpoint.hints.as_ref();
        Some(EndpointFacts {
            ip,
            node: endpoint.node_name.as_deref().unwrap_or_default().into(),
            ready: conditions.ready.unwrap_or(true),
            lingers: terminating && conditions.serving.unwrap_or(true),
            terminating,
            zones: hints.map_or_else(Vec::new, |hints| names(&hints.for_zones)),
            nodes: hints.map_or_else(Vec::new, |hints| names(&hints.for_nodes)),
        })
    });
    Some(SliceFacts {
        family,
        ports: ports.collect(),
        endpoints: endpoints.collect(),
    })
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "TCP" | "" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Those of the texts that are addresses (or ranges).
fn read<'a, T: FromStr>(texts: impl Iterator<Item = &'a str>, name: &dyn Fn() -> String) -> Vec<T> {
    texts
        .filter_map(|text| match text.parse() {
            Ok(value) => Some(value),
            Err(_) => {
                tracing::warn!(object = name(), value = text, "ignoring invalid address or CIDR");
                None
            }
        })
        .collect()
}
