//! What a table is made of: chains of rules, sets and maps, and their elements, as values.
//!
//! Rules are written as people write them (`ip daddr @cluster-ips …`), one level above what the kernel computes;
//! [`super::encode`] takes them down to that, [`super::text`] shows them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::slots::shard_of;
use crate::plan::{Family, Protocol};
use orlop_netlink::nft::{self, Hook, Part};

pub(super) type Name = Arc<str>;

/// The sets and maps that every table has. All their elements are ours alone, unlike those of the affinity sets, which
/// packets put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Container {
    ClusterIps,
    NodePortIps,
    Hairpin,
    FirewallIps,
    NoEndpointNodePorts,
    NoEndpointServices,
    ServiceIps,
    ServiceNodePorts,
    /// Where a service's packets go, by a number in the service's range: `numgen random mod 3 offset 64`. There are
    /// several such maps, see [`super::slots`]. Upstream has an anonymous map in each service's chain instead. The
    /// kernel keeps the sets of a table in one list and walks it for each new one: ten thousand take it twenty seconds.
    ServiceEndpoints,
}

/// What a container is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    Packet(&'static [Part]),
    /// A number of the kernel's random choice.
    Slot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    None,
    Verdict,
    Endpoint,
}

impl Container {
    /// Those that are there whatever the services.
    pub(super) const FIXED: [Container; 8] = [
        Container::ClusterIps,
        Container::NodePortIps,
        Container::Hairpin,
        Container::FirewallIps,
        Container::NoEndpointNodePorts,
        Container::NoEndpointServices,
        Container::ServiceIps,
        Container::ServiceNodePorts,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Container::ClusterIps => "cluster-ips",
            Container::NodePortIps => "nodeport-ips",
            Container::Hairpin => "hairpin-connections",
            Container::FirewallIps => "firewall-ips",
            Container::NoEndpointNodePorts => "no-endpoint-nodeports",
            Container::NoEndpointServices => "no-endpoint-services",
            Container::ServiceIps => "service-ips",
            Container::ServiceNodePorts => "service-nodeports",
            // And the number of the shard.
            Container::ServiceEndpoints => "service-endpoints-",
        }
    }

    pub(super) fn comment(self) -> &'static str {
        match self {
            Container::ClusterIps => "Active ClusterIPs",
            Container::NodePortIps => "IPs that accept NodePort traffic",
            Container::Hairpin => "service hairpin connections",
            Container::FirewallIps => "destinations that are subject to LoadBalancerSourceRanges",
            Container::NoEndpointNodePorts => "vmap to drop or reject packets to service nodeports with no endpoints",
            Container::NoEndpointServices => "vmap to drop or reject packets to services with no endpoints",
            Container::ServiceIps => "ClusterIP, ExternalIP and LoadBalancer IP traffic",
            Container::ServiceNodePorts => "NodePort traffic",
            Container::ServiceEndpoints => "endpoints of services, by the numbers their chains draw",
        }
    }

    pub(super) fn key(self) -> KeyKind {
        use Part::{Destination, Port, Protocol, Source};
        KeyKind::Packet(match self {
            Container::ClusterIps | Container::NodePortIps => &[Destination],
            Container::Hairpin => &[Source, Destination, Protocol, Port],
            Container::FirewallIps | Container::NoEndpointServices | Container::ServiceIps => {
                &[Destination, Protocol, Port]
            }
            Container::NoEndpointNodePorts | Container::ServiceNodePorts => &[Protocol, Port],
            Container::ServiceEndpoints => return KeyKind::Slot,
        })
    }

    pub(super) fn value(self) -> ValueKind {
        match self {
            Container::ClusterIps | Container::NodePortIps | Container::Hairpin => ValueKind::None,
            Container::ServiceEndpoints => ValueKind::Endpoint,
            _ => ValueKind::Verdict,
        }
    }
}

/// A key as the kernel has it: each part filled up to four bytes.
pub(super) type KeyBytes = SmallVec<[u8; 24]>;

pub(super) fn push_ip(bytes: &mut KeyBytes, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
}

pub(super) fn push_protocol(bytes: &mut KeyBytes, protocol: Protocol) {
    bytes.extend_from_slice(&[protocol.number(), 0, 0, 0]);
}

pub(super) fn push_port(bytes: &mut KeyBytes, port: u16) {
    let [high, low] = port.to_be_bytes();
    bytes.extend_from_slice(&[high, low, 0, 0]);
}

/// `10.0.0.1 . tcp . 80`, or `tcp . 80` for node ports.
pub(super) fn service_key(ip: Option<IpAddr>, protocol: Protocol, port: u16) -> KeyBytes {
    let mut bytes = KeyBytes::new();
    if let Some(ip) = ip {
        push_ip(&mut bytes, ip);
    }
    push_protocol(&mut bytes, protocol);
    push_port(&mut bytes, port);
    bytes
}

pub(super) fn ip_key(ip: IpAddr) -> KeyBytes {
    let mut bytes = KeyBytes::new();
    push_ip(&mut bytes, ip);
    bytes
}

pub(super) fn slot_key(number: u32) -> KeyBytes {
    KeyBytes::from_slice(&number.to_ne_bytes())
}

pub(super) fn slot_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(key.try_into().ok()?))
}

/// `10.0.0.1 . 80`
pub(super) fn endpoint_value(address: SocketAddr) -> KeyBytes {
    let mut bytes = KeyBytes::new();
    push_ip(&mut bytes, address.ip());
    push_port(&mut bytes, address.port());
    bytes
}

/// The other way round.
pub(super) fn endpoint_of(value: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = value.split_at_checked(value.len().checked_sub(4)?)?;
    let ip = match ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]])))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    Drop,
    Return,
    Jump(Name),
    Goto(Name),
}

impl Verdict {
    pub(super) fn as_nft(&self) -> nft::Verdict<'_> {
        match self {
            Verdict::Drop => nft::Verdict::Drop,
            Verdict::Return => nft::Verdict::Return,
            Verdict::Jump(chain) => nft::Verdict::Jump(chain),
            Verdict::Goto(chain) => nft::Verdict::Goto(chain),
        }
    }

    /// None for what is none of ours.
    pub(super) fn from_nft(verdict: nft::Verdict) -> Option<Verdict> {
        match verdict {
            nft::Verdict::Drop => Some(Verdict::Drop),
            nft::Verdict::Return => Some(Verdict::Return),
            nft::Verdict::Jump(chain) => Some(Verdict::Jump(chain.into())),
            nft::Verdict::Goto(chain) => Some(Verdict::Goto(chain.into())),
            nft::Verdict::Accept => None,
        }
    }
}

/// What an element holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value {
    pub data: Data,
    pub comment: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Data {
    None,
    Verdict(Verdict),
    Endpoint(KeyBytes),
}

impl Value {
    pub(super) const NONE: Value = Value {
        data: Data::None,
        comment: None,
    };

    pub(super) fn goto(chain: &Name) -> Value {
        Value {
            data: Data::Verdict(Verdict::Goto(Arc::clone(chain))),
            comment: None,
        }
    }
}

/// Where an element is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ElementKey {
    pub container: Container,
    pub key: KeyBytes,
}

pub(super) type Element = (ElementKey, Value);

impl ElementKey {
    /// Of which set or map: the container, and the shard where there are several.
    pub(super) fn set(&self) -> (Container, u32) {
        match self.container {
            Container::ServiceEndpoints => (self.container, slot_of(&self.key).map_or(0, shard_of)),
            other => (other, 0),
        }
    }
}

pub(super) fn set_name((container, shard): (Container, u32)) -> Cow<'static, str> {
    match container {
        Container::ServiceEndpoints => Cow::Owned(format!("{}{shard}", container.name())),
        fixed => Cow::Borrowed(fixed.name()),
    }
}

/// The numbers that belong to a chain, so that its endpoints can be drawn by lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Range {
    pub first: u32,
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Source,
    Destination,
}

/// One statement of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    /// `ct state new`
    New,
    /// `ct status dnat`
    Translated,
    /// `fib saddr type local`
    Local(Side),
    /// `meta l4proto tcp`
    Protocol(Protocol),
    /// `ip saddr 10.0.0.0/8`, `ip saddr != 10.0.0.0/8`
    Within {
        side: Side,
        range: IpNet,
        not: bool,
    },
    /// `iifname "cni0"`, `iifname != "veth*"`
    Interface {
        name: String,
        prefix: bool,
        not: bool,
    },
    /// `ip daddr @cluster-ips`
    In(Container),
    /// `ip daddr . meta l4proto . th dport vmap @service-ips`
    Dispatch(Container),
    /// `ip saddr @affinity-…`
    Remembered(Name),
    /// `update @affinity-… { ip saddr timeout 3h }`
    Remember {
        set: Name,
        seconds: u32,
    },
    /// `mark set mark or 0x4000`
    Mark(u32),
    /// `mark and 0x4000 != 0`
    Marked(u32),
    /// `mark set mark xor 0x4000`
    Unmark(u32),
    /// `masquerade fully-random`
    Masquerade,
    Reject,
    /// `dnat ip addr . port to numgen random mod 3 offset 64 map @service-endpoints-0`
    DnatAny {
        range: Range,
        count: u32,
    },
    /// `numgen random mod 3 == 0`
    OneIn(u32),
    /// `dnat to 10.0.0.1:80`
    Dnat(SocketAddr),
    Verdict(Verdict),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    pub statements: Vec<Statement>,
    pub comment: Option<&'static str>,
}

impl Rule {
    pub(super) fn new(statements: impl Into<Vec<Statement>>) -> Rule {
        Rule {
            statements: statements.into(),
            comment: None,
        }
    }

    pub(super) fn saying(mut self, comment: &'static str) -> Rule {
        self.comment = Some(comment);
        self
    }

    /// The numbers it draws from.
    pub(super) fn range(&self) -> Option<Range> {
        self.statements.iter().find_map(|statement| match statement {
            Statement::DnatAny { range, .. } => Some(*range),
            _ => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub name: Name,
    pub hook: Option<Hook>,
    pub comment: Option<&'static str>,
    pub rules: Vec<Rule>,
}

impl Chain {
    pub(super) fn new(name: impl Into<Name>, rules: Vec<Rule>) -> Chain {
        Chain {
            name: name.into(),
            hook: None,
            comment: None,
            rules,
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    AddTable,
    DeleteTable,
    AddContainer(Container),
    /// A map of endpoints by number.
    AddShard(u32),
    /// A set in which packets leave their senders' addresses.
    AddAffinity(Name),
    DeleteSet(Name),
    /// Without its rules.
    AddChain(Chain),
    FlushChain(Name),
    DeleteChain(Name),
    AddRule(Name, Rule),
    AddElement(Element),
    DeleteElement(ElementKey),
}

/// The steps that bring a table from what it is to what it should be. They are taken in order. Where all together are
/// too many for one transaction, the cut may be after any unit: traffic meets with something sound at each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    pub ops: Vec<Op>,
    /// Where units end.
    pub units: Vec<usize>,
    /// Chains that nothing leads to any more. To be deleted in a transaction of their own: kernels before 6.2 see only
    /// a moment after an element is gone that its chain is free.
    pub stale: Vec<Name>,
    /// Must not be cut at all.
    pub whole: bool,
}

impl Script {
    pub(super) fn end_unit(&mut self) {
        if self.units.last().copied().unwrap_or(0) < self.ops.len() {
            self.units.push(self.ops.len());
        }
    }

    pub(super) fn unit(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.ops.extend(ops);
        self.end_unit();
    }
}

pub(super) fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
