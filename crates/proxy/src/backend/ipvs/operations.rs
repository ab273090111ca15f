//! From the actual to the desired state: which operations, in which order. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::desired::{DesiredState, Touched};
use super::render::{Element, KernelObject, Server, ServerKey, Set, Value};
use crate::plan::Protocol;

/// Real servers that take no new connection and go once they have none.
pub type Leaving = BTreeMap<ServerKey, Vec<SocketAddr>>;

/// In the order in which they are done: a service is whole before packets come to it, and no packet comes to what is being
/// taken away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Before others come that it would be in the way of.
    ClearElement(Element),
    AddElement(Element, Value),
    /// The element is there with another value.
    ReplaceElement(Element, Value),
    AddServer(ServerKey, Option<u32>),
    SetServer(ServerKey, Option<u32>),
    AddReal(ServerKey, SocketAddr),
    /// It is there, without weight or otherwise not as it should be.
    SetReal(ServerKey, SocketAddr),
    Bind(IpAddr),
    Unbind(IpAddr),
    /// No new connections; it goes when it has none.
    RetireReal(ServerKey, SocketAddr),
    /// It has no weight already; it goes if it has no connections any more.
    DeleteRealIfIdle(ServerKey, SocketAddr),
    /// At once: of what is no connection the kernel forgets the rest by itself.
    DeleteReal(ServerKey, SocketAddr),
    DeleteServer(ServerKey),
    DeleteElement(Element),
}

/// As commands of `ipvsadm`, `ip` and `nft`.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Value| match value {
            Value::Mark(mark) => format!(" : {mark:#x}"),
            _ => String::new(),
        };
        let affinity = |seconds: &Option<u32>| seconds.map(|s| format!(" -p {s}")).unwrap_or_default();
        match self {
            Operation::AddElement(element, v) => write!(f, "nft add {element}{}", value(v)),
            Operation::ReplaceElement(element, v) => write!(f, "nft replace {element}{}", value(v)),
            Operation::ClearElement(element) => write!(f, "nft delete {element} (first)"),
            Operation::DeleteElement(element) => write!(f, "nft delete {element}"),
            Operation::AddServer(key, seconds) => write!(f, "ipvsadm -A {key}{}", affinity(seconds)),
            Operation::SetServer(key, seconds) => write!(f, "ipvsadm -E {key}{}", affinity(seconds)),
            Operation::DeleteServer(key) => write!(f, "ipvsadm -D {key}"),
            Operation::AddReal(key, real) => write!(f, "ipvsadm -a {key} -r {real} -m"),
            Operation::SetReal(key, real) => write!(f, "ipvsadm -e {key} -r {real} -m"),
            Operation::RetireReal(key, real) => write!(f, "ipvsadm -e {key} -r {real} -m -w 0, then -d"),
            Operation::DeleteRealIfIdle(key, real) => write!(f, "ipvsadm -d {key} -r {real} (once idle)"),
            Operation::DeleteReal(key, real) => write!(f, "ipvsadm -d {key} -r {real}"),
            Operation::Bind(ip) => write!(f, "ip addr add {ip} dev kube-ipvs0"),
            Operation::Unbind(ip) => write!(f, "ip addr del {ip} dev kube-ipvs0"),
        }
    }
}

/// A virtual server as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualServer {
    pub scheduler: Arc<str>,
    /// Of the service, without the one that says that it is in the kernel's table.
    pub flags: u32,
    pub timeout: u32,
    /// With their weights.
    pub reals: BTreeMap<SocketAddr, u32>,
}

/// What the kernel holds of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    pub servers: BTreeMap<ServerKey, VirtualServer>,
    pub addresses: BTreeSet<IpAddr>,
    pub elements: FxHashMap<Element, Value>,
}

/// How virtual servers are set up, whatever their service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    pub scheduler: Arc<str>,
}

const PERSISTENT: u32 = 0x1;
/// The scheduler `mh` looks at the client's port too.
const HASH_PORT: u32 = 0x10;

impl Scheduling {
    pub fn flags(&self, affinity: Option<u32>) -> u32 {
        let hash = if &*self.scheduler == "mh" { HASH_PORT } else { 0 };
        hash | if affinity.is_some() { PERSISTENT } else { 0 }
    }

    fn fits(&self, seen: &VirtualServer, affinity: Option<u32>) -> bool {
        seen.scheduler == self.scheduler
            && seen.flags == self.flags(affinity)
            && seen.timeout == affinity.unwrap_or_default()
    }

    fn seen(&self, server: &Server, leaving: &[SocketAddr]) -> VirtualServer {
        let leaving = leaving.iter().map(|real| (*real, 0));
        VirtualServer {
            scheduler: self.scheduler.clone(),
            flags: self.flags(server.affinity),
            timeout: server.affinity.unwrap_or_default(),
            reals: leaving.chain(server.reals.iter().map(|real| (*real, 1))).collect(),
        }
    }
}

/// From the state after the last sync to that of now, for the things that were touched since.
pub fn change(touched: Touched, wanted: &DesiredState, leaving: &Leaving, scheduling: &Scheduling) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (thing, before) in touched {
        let now = wanted.value(&thing);
        if before.as_ref() == now {
            continue;
        }
        match thing {
            KernelObject::Server(key) => {
                let leaving = leaving.get(&key).map(Vec::as_slice).unwrap_or_default();
                let seen = before
                    .as_ref()
                    .and_then(server_of)
                    .map(|server| scheduling.seen(server, leaving));
                server(key, seen.as_ref(), now.and_then(server_of), scheduling, &mut operations);
            }
            KernelObject::Address(ip) => operations.push(bind(ip, now.is_some())),
            KernelObject::Element(element) => operations.extend(self::element(element, before.as_ref(), now)),
        }
    }
    operations.sort_unstable();
    operations
}

/// From what the kernel holds to the desired state.
pub fn repair(held: &KernelState, wanted: &DesiredState, scheduling: &Scheduling) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (thing, value) in wanted.things() {
        match thing {
            KernelObject::Server(key) => {
                let seen = held.servers.get(key);
                server(*key, seen, server_of(value), scheduling, &mut operations);
                operations.extend(left_behind(*key, seen, server_of(value)));
            }
            KernelObject::Address(ip) if !held.addresses.contains(ip) => operations.push(Operation::Bind(*ip)),
            KernelObject::Address(_) => {}
            KernelObject::Element(e) => operations.extend(element(*e, held.elements.get(e), Some(value))),
        }
    }
    let gone = |thing: KernelObject| wanted.value(&thing).is_none();
    for (key, seen) in &held.servers {
        if gone(KernelObject::Server(*key)) {
            server(*key, Some(seen), None, scheduling, &mut operations);
        }
    }
    operations.extend(
        held.addresses
            .iter()
            .filter(|ip| gone(KernelObject::Address(**ip)))
            .map(|ip| Operation::Unbind(*ip)),
    );
    for (e, value) in &held.elements {
        if gone(KernelObject::Element(*e)) {
            operations.extend(element(*e, Some(value), None));
        }
    }
    operations.sort_unstable();
    operations
}

fn server_of(value: &Value) -> Option<&Server> {
    match value {
        Value::Server(server) => Some(server),
        _ => None,
    }
}

fn bind(ip: IpAddr, wanted: bool) -> Operation {
    if wanted {
        Operation::Bind(ip)
    } else {
        Operation::Unbind(ip)
    }
}

fn element(element: Element, before: Option<&Value>, now: Option<&Value>) -> Option<Operation> {
    match (before, now) {
        (None, None) => None,
        (None, Some(value)) => Some(Operation::AddElement(element, value.clone())),
        (Some(before), Some(value)) if before == value => None,
        (Some(_), Some(value)) => Some(Operation::ReplaceElement(element, value.clone())),
        // Ranges give way to those that overlap them, and with the last of them the firewall goes.
        (Some(_), None) if matches!(element.set, Set::Allowed | Set::Firewalled) => {
            Some(Operation::ClearElement(element))
        }
        (Some(_), None) => Some(Operation::DeleteElement(element)),
    }
}

/// Real servers that an earlier process was about to remove.
fn left_behind(key: ServerKey, seen: Option<&VirtualServer>, now: Option<&Server>) -> Vec<Operation> {
    let (Some(seen), Some(now)) = (seen, now) else {
        return vec![];
    };
    let idle = seen
        .reals
        .iter()
        .filter(|(_, weight)| **weight == 0)
        .map(|(real, _)| real);
    let gone = idle.filter(|real| now.reals.binary_search(real).is_err());
    gone.map(|real| Operation::DeleteRealIfIdle(key, *real)).collect()
}

fn server(
    key: ServerKey,
    seen: Option<&VirtualServer>,
    now: Option<&Server>,
    how: &Scheduling,
    operations: &mut Vec<Operation>,
) {
    let Some(now) = now else {
        operations.extend(seen.map(|_| Operation::DeleteServer(key)));
        return;
    };
    match seen {
        None => operations.push(Operation::AddServer(key, now.affinity)),
        Some(seen) if !how.fits(seen, now.affinity) => operations.push(Operation::SetServer(key, now.affinity)),
        Some(_) => {}
    }
    let none = BTreeMap::new();
    let reals = seen.map_or(&none, |seen| &seen.reals);
    for real in &now.reals {
        match reals.get(real) {
            None => operations.push(Operation::AddReal(key, *real)),
            Some(1) => {}
            Some(_) => operations.push(Operation::SetReal(key, *real)),
        }
    }
    let gone = reals
        .iter()
        .filter(|(real, weight)| **weight != 0 && now.reals.binary_search(real).is_err());
    operations.extend(gone.map(|(real, _)| leave(key, *real, now)));
}

fn leave(key: ServerKey, real: SocketAddr, server: &Server) -> Operation {
    match server.protocol {
        Protocol::Tcp => Operation::RetireReal(key, real),
        Protocol::Udp | Protocol::Sctp => Operation::DeleteReal(key, real),
    }
}
