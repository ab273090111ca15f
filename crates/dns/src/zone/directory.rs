//! The writing side of a zone: what is known of the cluster's objects, and which service a change concerns.
//!
//! A change of a service or of one of its slices costs that service, however many others there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::objects::{EndpointSlice, Namespace, Service};
use crate::zone::entry::{Endpoint, Kind, endpoints};
use crate::zone::{Entry, Zone};

/// Namespace and name.
pub type Key = (Box<str>, Box<str>);

pub fn key(namespace: &str, name: &str) -> Key {
    (namespace.into(), name.into())
}

/// There is one for a zone.
pub struct Directory {
    zone: Arc<Zone>,
    namespaces: FxHashSet<Box<str>>,
    /// None: a service that has no records.
    services: FxHashMap<Key, Option<Kind>>,
    slices: FxHashMap<Key, Slice>,
    /// The names of the slices of a service.
    slices_of: FxHashMap<Key, BTreeSet<Box<str>>>,
}

/// What is kept of an endpoint slice.
struct Slice {
    service: Key,
    endpoints: Vec<Endpoint>,
}

/// A slice that names no service is that of one without a name, which there is not.
fn service_of(slice: &EndpointSlice) -> Key {
    key(&slice.metadata.namespace, slice.service().unwrap_or_default())
}

impl Directory {
    pub fn new(zone: Arc<Zone>) -> Directory {
        Directory {
            zone,
            namespaces: FxHashSet::default(),
            services: FxHashMap::default(),
            slices: FxHashMap::default(),
            slices_of: FxHashMap::default(),
        }
    }

    /// Whether its name leads straight to the endpoints; none if there is no such service.
    pub fn is_headless(&self, namespace: &str, name: &str) -> Option<bool> {
        let kind = self.services.get(&key(namespace, name))?;
        Some(*kind == Some(Kind::Headless))
    }

    pub fn apply_namespace(&mut self, namespace: Namespace) {
        let name: Box<str> = namespace.metadata.name.into();
        if self.namespaces.insert(name.clone()) {
            self.zone.set_namespace(&name, true);
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        if self.namespaces.remove(name) {
            self.zone.set_namespace(name, false);
        }
    }

    pub fn reset_namespaces(&mut self, namespaces: Vec<Namespace>) {
        let named: FxHashSet<&str> = namespaces.iter().map(|n| n.metadata.name.as_str()).collect();
        let gone = self.namespaces.iter().filter(|name| !named.contains(&***name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.remove_namespace(&name);
        }
        namespaces.into_iter().for_each(|n| self.apply_namespace(n));
    }

    pub fn apply_service(&mut self, service: Service) {
        let key = key(&service.metadata.namespace, &service.metadata.name);
        self.services.insert(key.clone(), Kind::new(&service));
        self.refresh(&key);
    }

    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        let key = key(namespace, name);
        if self.services.remove(&key).is_some() {
            self.refresh(&key);
        }
    }

    pub fn reset_services(&mut self, services: Vec<Service>) {
        let mut concerned: FxHashSet<Key> = self.services.drain().map(|(key, _)| key).collect();
        for service in services {
            let key = key(&service.metadata.namespace, &service.metadata.name);
            self.services.insert(key.clone(), Kind::new(&service));
            concerned.insert(key);
        }
        concerned.iter().for_each(|key| self.refresh(key));
    }

    pub fn apply_slice(&mut self, slice: EndpointSlice) {
        let service = service_of(&slice);
        let before = self.insert_slice(slice);
        if let Some(before) = before.filter(|before| *before != service) {
            self.refresh(&before);
        }
        self.refresh(&service);
    }

    pub fn remove_slice(&mut self, namespace: &str, name: &str) {
        let key = key(namespace, name);
        if let Some(slice) = self.slices.remove(&key) {
            self.forget_slice(&slice.service, &key.1);
            self.refresh(&slice.service);
        }
    }

    pub fn reset_slices(&mut self, slices: Vec<EndpointSlice>) {
        let mut concerned: FxHashSet<Key> = self.slices_of.drain().map(|(key, _)| key).collect();
        self.slices.clear();
        for slice in slices {
            concerned.insert(service_of(&slice));
            self.insert_slice(slice);
        }
        concerned.iter().for_each(|key| self.refresh(key));
    }

    /// Gives the service that had the slice before, if any.
    fn insert_slice(&mut self, slice: EndpointSlice) -> Option<Key> {
        let own = key(&slice.metadata.namespace, &slice.metadata.name);
        let service = service_of(&slice);
        let kept = Slice {
            service: service.clone(),
            endpoints: endpoints(&slice),
        };
        let before = self.slices.insert(own.clone(), kept).map(|old| old.service);
        if let Some(before) = before.as_ref().filter(|before| **before != service) {
            self.forget_slice(before, &own.1);
        }
        self.slices_of.entry(service).or_default().insert(own.1);
        before
    }

    fn forget_slice(&mut self, service: &Key, slice: &str) {
        if let Some(names) = self.slices_of.get_mut(service) {
            names.remove(slice);
            if names.is_empty() {
                self.slices_of.remove(service);
            }
        }
    }

    fn refresh(&self, service: &Key) {
        let kind = self.services.get(service).and_then(Option::as_ref);
        let entry = kind.and_then(|kind| {
            let names = self.slices_of.get(service).into_iter().flatten();
            let slices = names.filter_map(|name| self.slices.get(&(service.0.clone(), name.clone())));
            let endpoints = slices.flat_map(|slice| &slice.endpoints);
            Entry::new((&service.0, &service.1), kind, endpoints, self.zone.domain())
        });
        self.zone.set_service(service, entry);
    }
}
