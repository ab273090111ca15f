//! Questions to the cluster's zones (pure).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, HINFO, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;
use rustc_hash::FxHashSet;

use super::{DNS_SERVICE, Endpoint, Entry, Kind, Port, TTL, Zone};

/// Of the schema: <https://github.com/kubernetes/dns/blob/master/docs/specification.md>
const SCHEMA_VERSION: &str = "1.1.0";
const SCHEMA_TTL: u32 = 28800;
/// External names that point to external names of this cluster, one after another.
const CHAIN_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneAnswer {
    /// Not a name of the cluster's: for the resolvers to answer.
    Elsewhere,
    /// A name of the cluster's, whose state is not known yet.
    NotYet,
    Found(ZoneRecords),
}

/// What the cluster says. Nothing in `answers` means that there is no such record or, by the code, no such name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecords {
    pub code: ResponseCode,
    pub answers: Vec<Record>,
    pub additionals: Vec<Record>,
    /// The zone's SOA, with negative answers.
    pub authorities: Vec<Record>,
    /// The answers are a chain that goes on with this name outside the cluster.
    pub goes_on: Option<Name>,
}

impl ZoneRecords {
    fn records(answers: Vec<Record>, additionals: Vec<Record>) -> ZoneRecords {
        ZoneRecords {
            code: ResponseCode::NoError,
            answers,
            additionals,
            authorities: vec![],
            goes_on: None,
        }
    }

    fn negative(code: ResponseCode, soa: Record) -> ZoneRecords {
        ZoneRecords {
            code,
            authorities: vec![soa],
            ..ZoneRecords::records(vec![], vec![])
        }
    }
}

/// What is at a name.
enum Here {
    Nothing,
    /// Something, but not of the type asked for.
    NoData,
    Records(Vec<Record>, Vec<Record>),
    Alias(Name),
}

impl Here {
    fn of(answers: Vec<Record>) -> Here {
        Here::with(answers, vec![])
    }

    fn with(answers: Vec<Record>, additionals: Vec<Record>) -> Here {
        match answers.is_empty() {
            true => Here::NoData,
            false => Here::Records(answers, additionals),
        }
    }
}

/// Which part of a service is asked for.
#[derive(Clone, Copy)]
enum Part<'a> {
    Whole,
    Endpoint(&'a str),
    Port { name: &'a str, protocol: &'a str },
}

impl Part<'_> {
    fn takes(self, port: &Port) -> bool {
        match self {
            Part::Port { name, protocol } => *port.name == *name && *port.protocol == *protocol,
            _ => true,
        }
    }
}

/// An address and a port of a service; the label is that of an endpoint.
struct Target<'a> {
    label: Option<&'a str>,
    address: IpAddr,
    port: Option<u16>,
}

impl Zone {
    pub fn answer(&self, name: &Name, kind: RecordType) -> ZoneAnswer {
        if !self.domain.zone_of(name) {
            return self.answer_reverse(name, kind);
        }
        if !self.is_synced() {
            return ZoneAnswer::NotYet;
        }
        let mut chain: Vec<Record> = vec![];
        let mut at = name.clone();
        loop {
            let target = match self.look_up(&at, kind) {
                Here::Alias(target) => target,
                here => {
                    let mut found = self.found(&at, kind, here, &self.domain);
                    if !chain.is_empty() {
                        chain.append(&mut found.answers);
                        found.answers = chain;
                    }
                    return ZoneAnswer::Found(found);
                }
            };
            let looped = target == at || chain.iter().any(|r| r.name == target);
            chain.push(record(&at, RData::CNAME(CNAME(target.clone()))));
            let stop = looped || kind == RecordType::CNAME || chain.len() > CHAIN_MAX;
            if stop || !self.domain.zone_of(&target) {
                let mut found = ZoneRecords::records(chain, vec![]);
                found.goes_on = (!stop).then_some(target);
                return ZoneAnswer::Found(found);
            }
            at = target;
        }
    }

    fn found(&self, name: &Name, kind: RecordType, here: Here, apex: &Name) -> ZoneRecords {
        match here {
            Here::Nothing => ZoneRecords::negative(ResponseCode::NXDomain, self.soa(apex)),
            // RFC 8482: something short instead of everything.
            _ if kind == RecordType::ANY => ZoneRecords::records(vec![minimal(name)], vec![]),
            Here::Records(answers, additionals) => ZoneRecords::records(answers, additionals),
            Here::NoData | Here::Alias(_) => ZoneRecords::negative(ResponseCode::NoError, self.soa(apex)),
        }
    }

    fn look_up(&self, name: &Name, kind: RecordType) -> Here {
        let lower = name.to_lowercase();
        let depth = self.domain.iter().len();
        // From the right, without those of the domain. What is no text is no name of ours.
        let mut labels: [&str; 5] = [""; 5];
        let mut count = 0;
        for label in lower.iter().rev().skip(depth) {
            if count == labels.len() {
                return Here::Nothing;
            }
            labels[count] = std::str::from_utf8(label).unwrap_or("\u{fffd}");
            count += 1;
        }
        match &labels[..count] {
            [] => self.look_apex(name, kind, &self.domain),
            ["svc"] | ["pod"] | ["dns"] => Here::NoData,
            ["dns-version"] => schema_version(name, kind),
            ["dns", "ns"] => match self.entry(DNS_SERVICE.0, DNS_SERVICE.1) {
                Some(entry) => service(name, kind, &entry, Part::Whole),
                None => Here::NoData,
            },
            ["svc" | "pod", namespace] => match self.has_namespace(namespace) {
                true => Here::NoData,
                false => Here::Nothing,
            },
            ["pod", namespace, address] if self.has_namespace(namespace) => pod(name, kind, address),
            ["svc", namespace, of, rest @ ..] => {
                let Some(part) = part(rest) else { return Here::Nothing };
                match self.entry(namespace, of) {
                    Some(entry) => service(name, kind, &entry, part),
                    None => Here::Nothing,
                }
            }
            _ => Here::Nothing,
        }
    }

    fn look_apex(&self, name: &Name, kind: RecordType, apex: &Name) -> Here {
        match kind {
            RecordType::SOA => Here::of(vec![self.soa(apex)]),
            RecordType::NS => {
                let Some(entry) = self.entry(DNS_SERVICE.0, DNS_SERVICE.1) else {
                    return Here::of(vec![record(name, RData::NS(NS(self.name_server.clone())))]);
                };
                let glue = addresses(&entry.name, entry.v4.iter().copied(), entry.v6.iter().copied());
                Here::with(vec![record(name, RData::NS(NS((*entry.name).clone())))], glue)
            }
            _ => Here::NoData,
        }
    }

    fn soa(&self, apex: &Name) -> Record {
        let serial = self.serial.load(Ordering::Relaxed);
        let (server, hostmaster) = (self.name_server.clone(), self.hostmaster.clone());
        let soa = SOA::new(server, hostmaster, serial, 7200, 1800, 86400, TTL);
        record(apex, RData::SOA(soa))
    }

    fn answer_reverse(&self, name: &Name, kind: RecordType) -> ZoneAnswer {
        let Some((net, below)) = reverse_net(name) else {
            return ZoneAnswer::Elsewhere;
        };
        let whole = net.prefix_len() == net.max_prefix_len();
        let ours = self.ranges.iter().find(|range| range.contains(&net));
        if !self.is_synced() {
            return match ours {
                Some(_) => ZoneAnswer::NotYet,
                None => ZoneAnswer::Elsewhere,
            };
        }
        let pointers = match whole && !below {
            true => self.pointers(net.addr()),
            false => vec![],
        };
        let apex = match (ours, pointers.is_empty()) {
            (Some(range), _) => reverse_apex(name, range),
            (None, true) => return ZoneAnswer::Elsewhere,
            (None, false) => name.clone(),
        };
        let here = if !pointers.is_empty() {
            match kind {
                RecordType::PTR => Here::of(pointers.iter().filter_map(|p| pointer_record(name, p)).collect()),
                _ => Here::NoData,
            }
        } else if apex == *name {
            self.look_apex(name, kind, &apex)
        } else if whole {
            Here::Nothing
        } else {
            // Between the zone and its addresses.
            Here::NoData
        };
        ZoneAnswer::Found(self.found(name, kind, here, &apex))
    }
}

pub(crate) fn minimal(name: &Name) -> Record {
    let nothing = HINFO::from_bytes(Box::from(&b"RFC8482"[..]), Box::default());
    record(name, RData::HINFO(nothing))
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

fn addresses(name: &Name, v4: impl Iterator<Item = Ipv4Addr>, v6: impl Iterator<Item = Ipv6Addr>) -> Vec<Record> {
    let v4 = v4.map(|address| record(name, RData::A(A(address))));
    let v6 = v6.map(|address| record(name, RData::AAAA(AAAA(address))));
    v4.chain(v6).collect()
}

fn schema_version(name: &Name, kind: RecordType) -> Here {
    if kind != RecordType::TXT {
        return Here::NoData;
    }
    let text = RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_string()]));
    Here::of(vec![Record::from_rdata(name.clone(), SCHEMA_TTL, text)])
}

/// `1-2-3-4` or `2001-db8--1`: whatever address the name has, be there such a pod or not.
fn pod(name: &Name, kind: RecordType, label: &str) -> Here {
    let dashes = label.bytes().filter(|b| *b == b'-').count();
    let text = match dashes == 3 && !label.contains("--") {
        true => label.replace('-', "."),
        false => label.replace('-', ":"),
    };
    match (text.parse(), kind) {
        (Err(_), _) => Here::Nothing,
        (Ok(IpAddr::V4(address)), RecordType::A) => Here::of(vec![record(name, RData::A(A(address)))]),
        (Ok(IpAddr::V6(address)), RecordType::AAAA) => Here::of(vec![record(name, RData::AAAA(AAAA(address)))]),
        _ => Here::NoData,
    }
}

/// The labels left of a service, from the right. None if no name can have them.
fn part<'a>(labels: &[&'a str]) -> Option<Part<'a>> {
    match labels {
        [] => Some(Part::Whole),
        [label] => Some(Part::Endpoint(label)),
        [protocol, port] => Some(Part::Port {
            name: port.strip_prefix('_').filter(|name| !name.is_empty())?,
            protocol: protocol.strip_prefix('_')?,
        }),
        _ => None,
    }
}

fn service(name: &Name, kind: RecordType, entry: &Entry, part: Part<'_>) -> Here {
    let endpoints = match (&entry.kind, part) {
        (Kind::External(target), Part::Whole) => return Here::Alias(target.clone()),
        (Kind::External(_), _) => return Here::Nothing,
        // By far the most asked for.
        (Kind::Cluster { ports, .. }, Part::Whole) if !ports.is_empty() && kind != RecordType::SRV => {
            return plain(name, kind, entry);
        }
        (Kind::Headless, Part::Whole) if !entry.endpoints.is_empty() && kind != RecordType::SRV => {
            return plain(name, kind, entry);
        }
        (_, Part::Endpoint(label)) => entry.labelled(label),
        (Kind::Headless, _) => &entry.endpoints,
        (Kind::Cluster { .. }, _) => &[],
    };
    let targets = targets(entry, endpoints, part);
    if targets.is_empty() {
        return Here::Nothing;
    }
    match kind {
        RecordType::SRV => srv(name, entry, &targets),
        RecordType::A | RecordType::AAAA => {
            let mut found: Vec<IpAddr> = targets.iter().map(|t| t.address).collect();
            found.sort_unstable();
            found.dedup();
            let answers = found.into_iter().filter_map(|address| match (address, kind) {
                (IpAddr::V4(address), RecordType::A) => Some(record(name, RData::A(A(address)))),
                (IpAddr::V6(address), RecordType::AAAA) => Some(record(name, RData::AAAA(AAAA(address)))),
                _ => None,
            });
            Here::of(answers.collect())
        }
        _ => Here::NoData,
    }
}

fn plain(name: &Name, kind: RecordType, entry: &Entry) -> Here {
    let none = || std::iter::empty();
    match kind {
        RecordType::A => Here::of(addresses(name, entry.v4.iter().copied(), none())),
        RecordType::AAAA => {
            let none = std::iter::empty();
            Here::of(addresses(name, none, entry.v6.iter().copied()))
        }
        _ => Here::NoData,
    }
}

fn targets<'a>(entry: &'a Entry, endpoints: &'a [Endpoint], part: Part<'_>) -> Vec<Target<'a>> {
    if let (Kind::Cluster { addresses, ports }, Part::Whole | Part::Port { .. }) = (&entry.kind, part) {
        // A service of old may have no ports.
        let without = [None];
        let numbers: Vec<Option<u16>> = match (ports.is_empty(), part) {
            (true, Part::Whole) => without.to_vec(),
            _ => ports.iter().filter(|p| part.takes(p)).map(|p| p.number).collect(),
        };
        let all = numbers.into_iter().flat_map(|port| {
            addresses.iter().map(move |address| Target {
                label: None,
                address: *address,
                port,
            })
        });
        return all.collect();
    }
    let all = endpoints.iter().flat_map(|endpoint| {
        let ports = endpoint.ports.iter().filter(|p| part.takes(p));
        ports.map(|port| Target {
            label: Some(&endpoint.label),
            address: endpoint.address,
            port: port.number,
        })
    });
    all.collect()
}

fn srv(name: &Name, entry: &Entry, targets: &[Target<'_>]) -> Here {
    // The weights of all add up to about a hundred. Upstream: CoreDNS, plugin/backend_lookup.go.
    let weight = (100 / targets.len()).max(1) as u16;
    let (mut answers, mut additionals) = (vec![], vec![]);
    let (mut named, mut addressed) = (FxHashSet::default(), FxHashSet::default());
    for target in targets {
        let Some(port) = target.port else { continue };
        let (is_new, is_unknown) = (
            named.insert((target.label, port)),
            addressed.insert((target.label, target.address)),
        );
        if !is_new && !is_unknown {
            continue;
        }
        let Some(host) = host(entry, target.label) else {
            continue;
        };
        if is_unknown {
            let data = match target.address {
                IpAddr::V4(address) => RData::A(A(address)),
                IpAddr::V6(address) => RData::AAAA(AAAA(address)),
            };
            additionals.push(record(&host, data));
        }
        if is_new {
            answers.push(record(name, RData::SRV(SRV::new(0, weight, port, host))));
        }
    }
    Here::with(answers, additionals)
}

/// None if the endpoint's label is none, or too long for the name.
fn host(entry: &Entry, label: Option<&str>) -> Option<Name> {
    match label {
        None => Some((*entry.name).clone()),
        Some(label) => entry.name.prepend_label(label.as_bytes()).ok(),
    }
}

fn pointer_record(name: &Name, pointer: &super::Pointer) -> Option<Record> {
    let target = match &pointer.label {
        None => (*pointer.service).clone(),
        Some(label) => pointer.service.prepend_label(label.as_bytes()).ok()?,
    };
    Some(record(name, RData::PTR(PTR(target))))
}

/// The addresses that a name under in-addr.arpa or ip6.arpa stands for, and whether it is below an address, where
/// nothing can be.
fn reverse_net(name: &Name) -> Option<(IpNet, bool)> {
    let mut labels = name.iter().rev();
    if !labels.next()?.eq_ignore_ascii_case(b"arpa") {
        return None;
    }
    let most = match labels.next()? {
        second if second.eq_ignore_ascii_case(b"in-addr") => 2 + 4,
        second if second.eq_ignore_ascii_case(b"ip6") => 2 + 32,
        _ => return None,
    };
    let depth = name.iter().len();
    let net = name.trim_to(depth.min(most)).parse_arpa_name().ok()?;
    Some((net, depth > most))
}

/// The zone of a range that a name is in: cut at whole labels.
fn reverse_apex(name: &Name, range: &IpNet) -> Name {
    let bits = if range.max_prefix_len() == 32 { 8 } else { 4 };
    name.trim_to(2 + usize::from(range.prefix_len().div_ceil(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reverse_names() {
        let net =
            |text: &str| reverse_net(&Name::from_ascii(text).unwrap()).map(|(net, below)| (net.to_string(), below));
        assert_eq!(net("1.0.96.10.IN-addr.arpa."), Some(("10.96.0.1/32".into(), false)));
        assert_eq!(net("x.1.0.96.10.in-addr.arpa."), Some(("10.96.0.1/32".into(), true)));
        assert_eq!(net("96.10.in-addr.arpa."), Some(("10.96.0.0/16".into(), false)));
        assert_eq!(net("b.d.0.1.0.0.2.ip6.arpa."), Some(("2001:db0::/28".into(), false)));
        for wrong in [
            "a.10.in-addr.arpa.",
            "300.in-addr.arpa.",
            "arpa.",
            "x.arpa.",
            ".",
            "xx.ip6.arpa.",
        ] {
            assert_eq!(net(wrong), None, "{wrong}");
        }
        let name = Name::from_ascii("1.0.100.10.in-addr.arpa.").unwrap();
        let apex = reverse_apex(&name, &"10.96.0.0/12".parse().unwrap());
        assert_eq!(apex.to_string(), "100.10.in-addr.arpa.");
    }
}
