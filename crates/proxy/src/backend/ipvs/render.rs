//! What one service port asks of the kernel, as values: virtual servers, addresses on kube-ipvs0, elements of the rules'
//! sets. Pure.
//!
//! Who comes by an external way under `externalTrafficPolicy: Local` gets another choice of endpoints if it comes from
//! this node or its pods. IPVS tells clients apart by a packet's mark only, so such a service port has one more virtual
//! server, known by a mark, and the rules put that mark on those packets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::plan::{Endpoint, Family, Protocol, Refusal, ServicePort};

/// What a virtual server is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerKey {
    At(At),
    Marked(Family, u32),
}

/// Where packets are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct At {
    pub protocol: Protocol,
    pub address: SocketAddr,
}

impl ServerKey {
    pub fn family(self) -> Family {
        match self {
            ServerKey::At(at) => Family::of(at.address.ip()),
            ServerKey::Marked(family, _) => family,
        }
    }
}

/// As `ipvsadm` takes it: `-t 10.96.0.1:443`, `-f 17`.
impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerKey::At(At { protocol, address }) => {
                let option = match protocol {
                    Protocol::Tcp => "-t",
                    Protocol::Udp => "-u",
                    Protocol::Sctp => "--sctp-service",
                };
                write!(f, "{option} {address}")
            }
            ServerKey::Marked(Family::V4, mark) => write!(f, "-f {mark:#x}"),
            ServerKey::Marked(Family::V6, mark) => write!(f, "-6 -f {mark:#x}"),
        }
    }
}

/// A virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Of its connections; one that is known by a mark does not tell by its name.
    pub protocol: Protocol,
    /// Clients stay with their real server for this many seconds.
    pub affinity: Option<u32>,
    /// Sorted, each once.
    pub reals: Vec<SocketAddr>,
}

/// The sets and maps of the rules. Their names are those in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Addresses on kube-ipvs0: what is sent there and to none of `Services` is rejected.
    Addresses,
    Services,
    ClusterIps,
    /// Whatever comes this way is masqueraded.
    Masquerade,
    MasqueradeNodePorts,
    /// There are endpoints, but not on this node.
    Dropped,
    DroppedNodePorts,
    /// What comes from this node and its pods goes to the virtual server of this mark.
    Local,
    LocalNodePorts,
    /// Only for some sources, which are in `Allowed`.
    Firewalled,
    Allowed,
    HealthPorts,
    /// Addresses on which node ports are open.
    NodeAddresses,
    /// Endpoints of this node, which may reach themselves.
    Hairpin,
}

impl Set {
    pub const ALL: [Set; 14] = [
        Set::Addresses,
        Set::Services,
        Set::ClusterIps,
        Set::Masquerade,
        Set::MasqueradeNodePorts,
        Set::Dropped,
        Set::DroppedNodePorts,
        Set::Local,
        Set::LocalNodePorts,
        Set::Firewalled,
        Set::Allowed,
        Set::HealthPorts,
        Set::NodeAddresses,
        Set::Hairpin,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Set::Addresses => "addresses",
            Set::Services => "services",
            Set::ClusterIps => "cluster-ips",
            Set::Masquerade => "masquerade",
            Set::MasqueradeNodePorts => "masquerade-node-ports",
            Set::Dropped => "dropped",
            Set::DroppedNodePorts => "dropped-node-ports",
            Set::Local => "local",
            Set::LocalNodePorts => "local-node-ports",
            Set::Firewalled => "firewalled",
            Set::Allowed => "allowed",
            Set::HealthPorts => "health-ports",
            Set::NodeAddresses => "node-addresses",
            Set::Hairpin => "hairpin",
        }
    }
}

/// What an element of a set matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Match {
    Address(IpAddr),
    Port(u16),
    ProtocolPort(Protocol, u16),
    At(At),
    From(At, IpNet),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    pub family: Family,
    pub set: Set,
    pub matches: Match,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.family == Family::V4 { "ip" } else { "ip6" };
        write!(f, "{family} {} ", self.set.name())?;
        let at = |at: &At| format!("{} . {} . {}", at.address.ip(), at.protocol.as_str(), at.address.port());
        match &self.matches {
            Match::Address(ip) => write!(f, "{ip}"),
            Match::Port(port) => write!(f, "{port}"),
            Match::ProtocolPort(protocol, port) => write!(f, "{} . {port}", protocol.as_str()),
            Match::At(to) => f.write_str(&at(to)),
            Match::From(to, source) => write!(f, "{} . {source}", at(to)),
        }
    }
}

/// Something the kernel is asked to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelObject {
    Server(ServerKey),
    /// On kube-ipvs0.
    Address(IpAddr),
    Element(Element),
}

/// What it is like, beyond its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    None,
    Server(Arc<Server>),
    Mark(u32),
}

/// What rendering needs to know of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Addresses of other links than kube-ipvs0, sorted: an external address that is one of them is not bound again.
    pub addresses: Vec<IpAddr>,
    /// Those of them on which node ports are open, sorted.
    pub node_port_addresses: Vec<IpAddr>,
    /// The node's own, by which it comes to load balancers' addresses.
    pub own: Vec<IpAddr>,
}

/// Everything that a service port asks for, sorted, each once. `mark` is that of its own for packets of this node.
pub fn render(port: &ServicePort, host: &Host, mark: u32) -> Vec<(KernelObject, Value)> {
    let mut render = Render {
        port,
        host,
        mark,
        things: Vec::new(),
    };
    render.cluster_ip();
    for ip in &port.external_ips {
        render.external(*ip);
    }
    for ip in &port.load_balancer_ips {
        render.external(*ip);
        render.firewall(*ip);
    }
    render.node_port();
    render.rest();
    render.things.sort_by_key(|(thing, _)| *thing);
    render.things.dedup_by_key(|(thing, _)| *thing);
    render.things
}

/// The service port treats this node's own packets unlike others, so it needs a mark.
pub fn needs_mark(port: &ServicePort) -> bool {
    port.is_external() && port.external_local && port.cluster != port.local
}

pub fn element(family: Family, set: Set, matches: Match) -> KernelObject {
    KernelObject::Element(Element { family, set, matches })
}

struct Render<'a> {
    port: &'a ServicePort,
    host: &'a Host,
    mark: u32,
    things: Vec<(KernelObject, Value)>,
}

impl Render<'_> {
    fn family(&self) -> Family {
        self.port.key.family
    }

    fn add(&mut self, set: Set, matches: Match) {
        self.things.push((element(self.family(), set, matches), Value::None));
    }

    fn add_marked(&mut self, set: Set, matches: Match) {
        self.things
            .push((element(self.family(), set, matches), Value::Mark(self.mark)));
    }

    fn at(&self, ip: IpAddr, port: u16) -> At {
        At {
            protocol: self.port.protocol,
            address: SocketAddr::new(ip, port),
        }
    }

    fn server(&mut self, key: ServerKey, endpoints: &[Endpoint]) {
        let mut reals: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        reals.sort_unstable();
        reals.dedup();
        let server = Server {
            protocol: self.port.protocol,
            affinity: self.port.affinity,
            reals,
        };
        self.things
            .push((KernelObject::Server(key), Value::Server(Arc::new(server))));
    }

    fn bind(&mut self, ip: IpAddr) {
        self.things.push((KernelObject::Address(ip), Value::None));
        self.add(Set::Addresses, Match::Address(ip));
    }

    fn cluster_ip(&mut self) {
        let port = self.port;
        let at = self.at(port.cluster_ip, port.port);
        self.server(ServerKey::At(at), port.internal_endpoints());
        self.bind(port.cluster_ip);
        self.add(Set::Services, Match::At(at));
        self.add(Set::ClusterIps, Match::At(at));
        if port.internal_refusal() == Some(Refusal::Drop) {
            self.add(Set::Dropped, Match::At(at));
        }
    }

    fn external(&mut self, ip: IpAddr) {
        let port = self.port;
        let at = self.at(ip, port.port);
        self.server(ServerKey::At(at), port.external_endpoints());
        if self.host.addresses.binary_search(&ip).is_err() {
            self.bind(ip);
        }
        self.add(Set::Services, Match::At(at));
        if !port.external_local {
            self.add(Set::Masquerade, Match::At(at));
        }
        if needs_mark(port) {
            self.add_marked(Set::Local, Match::At(at));
        }
        if port.external_refusal() == Some(Refusal::Drop) {
            self.add(Set::Dropped, Match::At(at));
        }
    }

    fn firewall(&mut self, ip: IpAddr) {
        if self.port.source_ranges.is_empty() {
            return;
        }
        let at = self.at(ip, self.port.port);
        self.add(Set::Firewalled, Match::At(at));
        let mut sources = self.port.source_ranges.clone();
        // This node comes to the address with that very address, which is on kube-ipvs0.
        if self
            .host
            .own
            .iter()
            .any(|own| sources.iter().any(|range| range.contains(own)))
        {
            sources.push(IpNet::from(ip));
        }
        sources.retain(|range| range.addr().is_ipv4() == ip.is_ipv4());
        // Ranges within others are not taken by the kernel.
        for source in IpNet::aggregate(&sources) {
            self.add(Set::Allowed, Match::From(at, source));
        }
    }

    fn node_port(&mut self) {
        let port = self.port;
        let Some(node_port) = port.node_port else { return };
        for ip in &self.host.node_port_addresses {
            if Family::of(*ip) == self.family() {
                let at = self.at(*ip, node_port);
                self.server(ServerKey::At(at), port.external_endpoints());
                // No rule asks for it: a later process knows by it that the virtual server is ours.
                self.add(Set::Services, Match::At(at));
            }
        }
        let matches = Match::ProtocolPort(port.protocol, node_port);
        if !port.external_local {
            self.add(Set::MasqueradeNodePorts, matches);
        }
        if needs_mark(port) {
            self.add_marked(Set::LocalNodePorts, matches);
        }
        if port.external_refusal() == Some(Refusal::Drop) {
            self.add(Set::DroppedNodePorts, matches);
        }
    }

    fn rest(&mut self) {
        let port = self.port;
        if needs_mark(port) {
            self.server(ServerKey::Marked(self.family(), self.mark), &port.cluster);
        }
        if let Some(health) = port.health_check_node_port {
            self.add(Set::HealthPorts, Match::Port(health));
        }
        for endpoint in port.endpoints() {
            let ip = endpoint.address.ip();
            // An address of the host itself talks to itself in other ways too, and finds the way back.
            if endpoint.is_local && self.host.addresses.binary_search(&ip).is_err() {
                self.add(Set::Hairpin, Match::Address(ip));
            }
        }
    }
}
