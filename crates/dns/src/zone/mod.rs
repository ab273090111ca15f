//! The cluster's zones: services and endpoint slices become records, and questions are answered from them. Pure: no
//! sockets, no clock.
//!
//! ```text
//!  services, slices, namespaces ──► Directory ──► Entry (one service) ──► Zone ◄── answer(name, type)
//! ```
//!
//! The tables hold one shared value per service. An answer takes the read lock for one look-up, and a change takes the
//! write lock to put the value of one service in place: neither waits for the other's work.
//!
//! Upstream: CoreDNS, plugin/kubernetes.

mod answer;
mod directory;
mod entry;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hickory_proto::rr::Name;
use ipnet::IpNet;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

pub(crate) use answer::minimal;
pub use answer::{ZoneAnswer, ZoneRecords};
pub use directory::{Directory, Key, key};
pub use entry::{Endpoint, Entry, Kind, Pointer, Port};

/// How long the cluster's records may be kept by those who ask. Upstream: kubeadm's Corefile.
pub const TTL: u32 = 30;
/// The service whose addresses are those of the zone's name server.
pub const DNS_SERVICE: (&str, &str) = ("kube-system", "kube-dns");

/// The cluster domain is no domain name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid cluster domain {domain:?}: {reason}")]
pub struct InvalidDomain {
    pub domain: String,
    pub reason: String,
}

/// What the cluster's names stand for. Shared between one writer (`Directory`) and those who answer.
pub struct Zone {
    domain: Name,
    name_server: Name,
    hostmaster: Name,
    /// Addresses of services and pods: nobody else knows what they point back to.
    ranges: Vec<IpNet>,
    serial: AtomicU32,
    /// The whole state has been seen.
    synced: AtomicBool,
    tables: RwLock<Tables>,
}

#[derive(Default)]
struct Tables {
    namespaces: FxHashMap<Box<str>, NamespaceTable>,
    /// Sorted: see `Pointer`.
    reverse: FxHashMap<IpAddr, Vec<Pointer>>,
}

#[derive(Default)]
struct NamespaceTable {
    /// There is such an object; services may be seen before it.
    declared: bool,
    services: FxHashMap<Box<str>, Arc<Entry>>,
}

impl Zone {
    /// `domain`: `cluster.local`, with or without a dot at the end.
    pub fn new(domain: &str, ranges: Vec<IpNet>) -> Result<Zone, InvalidDomain> {
        let invalid = |reason: &dyn std::fmt::Display| InvalidDomain {
            domain: domain.to_string(),
            reason: reason.to_string(),
        };
        let mut name = Name::from_ascii(domain.to_ascii_lowercase()).map_err(|e| invalid(&e))?;
        name.set_fqdn(true);
        if name.is_root() {
            return Err(invalid(&"must not be empty"));
        }
        let below = |labels: &[&str]| {
            let labels = labels.iter().map(|l| l.as_bytes());
            let below = Name::from_labels(labels).and_then(|below| below.append_domain(&name));
            below.map_err(|e| invalid(&e))
        };
        Ok(Zone {
            name_server: below(&["ns", "dns"])?,
            hostmaster: below(&["hostmaster"])?,
            domain: name,
            ranges,
            serial: AtomicU32::new(0),
            synced: AtomicBool::new(false),
            tables: RwLock::default(),
        })
    }

    pub fn domain(&self) -> &Name {
        &self.domain
    }

    /// From now on what is not known does not exist.
    pub fn set_synced(&self) {
        self.synced.store(true, Ordering::Release);
    }

    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// The zone's version: seconds since the epoch of its last change.
    pub fn set_serial(&self, serial: u32) {
        self.serial.store(serial, Ordering::Relaxed);
    }

    pub(crate) fn set_namespace(&self, name: &str, declared: bool) {
        let mut tables = self.tables.write();
        tables.namespaces.entry(name.into()).or_default().declared = declared;
        tables.drop_if_unused(name);
    }

    /// Puts a service's records in place of those it had.
    pub(crate) fn set_service(&self, key: &Key, entry: Option<Entry>) {
        // There is one writer: what it reads here stays so until it writes below.
        let before = self.entry(&key.0, &key.1);
        if before.as_deref() == entry.as_ref() {
            return;
        }
        let old = before.as_ref().map_or_else(Vec::new, |entry| entry.pointers());
        let new = entry.as_ref().map_or_else(Vec::new, Entry::pointers);
        let gone: Vec<_> = old.iter().filter(|p| new.binary_search(p).is_err()).collect();
        let come: Vec<_> = new.iter().filter(|p| old.binary_search(p).is_err()).collect();
        let entry = entry.map(Arc::new);

        let mut tables = self.tables.write();
        gone.into_iter()
            .for_each(|(address, pointer)| tables.unpoint(address, pointer));
        come.into_iter()
            .for_each(|(address, pointer)| tables.point(*address, pointer));
        let services = &mut tables.namespaces.entry(key.0.clone()).or_default().services;
        match entry {
            Some(entry) => drop(services.insert(key.1.clone(), entry)),
            None => {
                services.remove(&key.1);
                tables.drop_if_unused(&key.0);
            }
        }
        drop(tables);
        // Only now: a service of thousands of endpoints takes a while to drop.
        drop(before);
    }

    fn entry(&self, namespace: &str, service: &str) -> Option<Arc<Entry>> {
        let tables = self.tables.read();
        tables.namespaces.get(namespace)?.services.get(service).cloned()
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.tables.read().namespaces.contains_key(namespace)
    }

    fn pointers(&self, address: IpAddr) -> Vec<Pointer> {
        let tables = self.tables.read();
        let pointers = tables.reverse.get(&address).map_or(&[][..], Vec::as_slice);
        match pointers.first() {
            // An address of a service is of that service only.
            Some(first) if first.label.is_none() => vec![first.clone()],
            _ => pointers.to_vec(),
        }
    }
}

impl Tables {
    fn drop_if_unused(&mut self, namespace: &str) {
        let table = self.namespaces.get(namespace);
        if table.is_some_and(|table| !table.declared && table.services.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }

    fn point(&mut self, address: IpAddr, pointer: &Pointer) {
        let pointers = self.reverse.entry(address).or_default();
        if let Err(place) = pointers.binary_search(pointer) {
            pointers.insert(place, pointer.clone());
        }
    }

    fn unpoint(&mut self, address: &IpAddr, pointer: &Pointer) {
        let Some(pointers) = self.reverse.get_mut(address) else {
            return;
        };
        if let Ok(place) = pointers.binary_search(pointer) {
            pointers.remove(place);
        }
        if pointers.is_empty() {
            self.reverse.remove(address);
        }
    }
}
