//! Services and endpoint slices as records (pure): addresses and names read, all else left behind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_proto::rr::Name;

use crate::objects::{EndpointSlice, Service};

/// All that is served for one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `service.namespace.svc.domain.`
    pub name: Arc<Name>,
    pub kind: Kind,
    /// Addresses of the name itself: the cluster's for it, or those of all ready endpoints.
    pub v4: Vec<Ipv4Addr>,
    pub v6: Vec<Ipv6Addr>,
    /// The ready ones, by label and address.
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With addresses of its own, IPv4 and IPv6 in the service's order.
    Cluster {
        addresses: Vec<IpAddr>,
        ports: Vec<Port>,
    },
    Headless,
    External(Name),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host name, else the address with dashes.
    pub label: Box<str>,
    pub address: IpAddr,
    pub ports: Arc<[Port]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: Box<str>,
    /// In lower case.
    pub protocol: Box<str>,
    /// None where there is an endpoint without ports.
    pub number: Option<u16>,
}

/// Where an address points back to. Services come before endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    pub label: Option<Box<str>>,
    pub service: Arc<Name>,
}

impl Kind {
    /// What there is to know of a service beside its endpoints. None if it can have no records: an external name that is
    /// none.
    pub fn new(service: &Service) -> Option<Kind> {
        let spec = &service.spec;
        if spec.r#type == "ExternalName" {
            return external_name(&spec.external_name).map(Kind::External);
        }
        if spec.cluster_ip == "None" {
            return Some(Kind::Headless);
        }
        let addresses = service.cluster_ips().iter();
        Some(Kind::Cluster {
            addresses: addresses.filter_map(|text| text.parse().ok()).collect(),
            ports: service_ports(service),
        })
    }
}

impl Entry {
    /// None if the names are too long.
    pub fn new<'a>(
        (namespace, name): (&str, &str),
        kind: &Kind,
        endpoints: impl Iterator<Item = &'a Endpoint>,
        domain: &Name,
    ) -> Option<Entry> {
        let name = Arc::new(service_name(name, namespace, domain)?);
        let endpoints = match kind {
            Kind::External(_) => vec![],
            Kind::Cluster { .. } | Kind::Headless => sorted(endpoints.cloned().collect()),
        };
        let addresses = match kind {
            Kind::External(_) => vec![],
            Kind::Cluster { addresses, .. } => addresses.clone(),
            Kind::Headless => endpoints.iter().map(|e| e.address).collect(),
        };
        let (v4, v6) = split(addresses);
        Some(Entry {
            name,
            kind: kind.clone(),
            v4,
            v6,
            endpoints,
        })
    }

    /// The endpoints of this label.
    pub fn labelled(&self, label: &str) -> &[Endpoint] {
        let start = self.endpoints.partition_point(|e| &*e.label < label);
        let len = self.endpoints[start..].partition_point(|e| &*e.label == label);
        &self.endpoints[start..start + len]
    }

    /// The addresses that point back here, sorted, none twice.
    pub fn pointers(&self) -> Vec<(IpAddr, Pointer)> {
        let pointer = |address, label| {
            let service = self.name.clone();
            (address, Pointer { label, service })
        };
        let mut all: Vec<_> = match &self.kind {
            Kind::Cluster { addresses, .. } => addresses.iter().map(|a| pointer(*a, None)).collect(),
            _ => vec![],
        };
        let endpoints = self.endpoints.iter();
        all.extend(endpoints.map(|e| pointer(e.address, Some(e.label.clone()))));
        all.sort();
        all.dedup();
        all
    }
}

/// None if it is too long for a name.
fn service_name(name: &str, namespace: &str, domain: &Name) -> Option<Name> {
    let below = Name::from_labels([name.as_bytes(), namespace.as_bytes(), b"svc"]).ok()?;
    below.append_domain(domain).ok()
}

/// None if it is an address or no name at all.
fn external_name(text: &str) -> Option<Name> {
    if text.is_empty() || text.parse::<IpAddr>().is_ok() {
        return None;
    }
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name).filter(|name| !name.is_root())
}

fn service_ports(service: &Service) -> Vec<Port> {
    let ports = service.spec.ports.iter();
    ports
        .map(|p| Port {
            name: p.name.as_str().into(),
            protocol: protocol(&p.protocol),
            number: Some(p.port),
        })
        .collect()
}

fn protocol(text: &str) -> Box<str> {
    match text {
        "" => "tcp".into(),
        text => text.to_ascii_lowercase().into(),
    }
}

/// The ready endpoints of a slice.
pub(super) fn endpoints(slice: &EndpointSlice) -> Vec<Endpoint> {
    let mut all = vec![];
    if slice.address_type == "FQDN" {
        return all;
    }
    let ports = slice_ports(slice);
    for endpoint in slice.endpoints.iter().filter(|e| e.conditions.ready != Some(false)) {
        for text in &endpoint.addresses {
            let Ok(address) = text.parse() else { continue };
            all.push(Endpoint {
                label: label(endpoint.hostname.as_deref().unwrap_or_default(), text),
                address,
                ports: ports.clone(),
            });
        }
    }
    all
}

fn sorted(mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    endpoints.sort_by(|a, b| (&a.label, a.address).cmp(&(&b.label, b.address)));
    endpoints
}

fn slice_ports(slice: &EndpointSlice) -> Arc<[Port]> {
    let port = |name: &str, text: &str, number| Port {
        name: name.into(),
        protocol: protocol(text),
        number,
    };
    if slice.ports.is_empty() {
        return [port("", "", None)].into();
    }
    let ports = slice.ports.iter();
    ports
        .map(|p| {
            port(
                p.name.as_deref().unwrap_or(""),
                p.protocol.as_deref().unwrap_or(""),
                p.port,
            )
        })
        .collect()
}

/// As CoreDNS names endpoints: a label may not end in a dash, hence the zero.
fn label(hostname: &str, address: &str) -> Box<str> {
    if !hostname.is_empty() {
        return hostname.to_ascii_lowercase().into();
    }
    let mut label = address.to_ascii_lowercase().replace(['.', ':'], "-");
    if label.ends_with('-') {
        label.push('0');
    }
    label.into()
}

fn split(mut addresses: Vec<IpAddr>) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    addresses.sort_unstable();
    addresses.dedup();
    let (mut v4, mut v6) = (vec![], vec![]);
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.push(address),
            IpAddr::V6(address) => v6.push(address),
        }
    }
    (v4, v6)
}
