//! Which resource a kind is, and where its objects are found.

use orlop_client::path;
use rustc_hash::FxHashMap;

use super::graph::{Coordinates, Type};
use crate::discovery::{Discovered, Resource};

/// What is not part of the graph. Upstream: garbagecollector.DefaultIgnoredResources
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Every version of every kind.
#[derive(Default)]
pub(super) struct Kinds(FxHashMap<Type, (String, bool)>);

/// Where to ask for an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    Path(String),
    /// The kind is not served, or discovery does not know it yet.
    UnknownKind,
    /// Objects of the kind live in namespaces, and the one who refers to it lives in none: there is no such object.
    NoNamespace,
}

impl Kinds {
    pub(super) fn new(found: &Discovered) -> Kinds {
        let mut kinds = FxHashMap::default();
        for resource in found.resources.iter().filter(|r| !r.kind.is_empty()) {
            let entry = kinds.entry(ty(resource));
            entry.or_insert_with(|| (resource.name.clone(), resource.namespaced));
        }
        Kinds(kinds)
    }

    pub(super) fn address(&self, coordinates: &Coordinates) -> Address {
        let Some((resource, namespaced)) = self.0.get(&*coordinates.ty) else {
            return Address::UnknownKind;
        };
        if *namespaced && coordinates.namespace.is_empty() {
            return Address::NoNamespace;
        }
        let namespace = namespaced.then_some(&*coordinates.namespace);
        Address::Path(path::object(
            &coordinates.ty.api_version,
            namespace,
            resource,
            &coordinates.name,
        ))
    }
}

pub(super) fn ty(resource: &Resource) -> Type {
    Type {
        api_version: resource.api_version.as_str().into(),
        kind: resource.kind.as_str().into(),
    }
}

/// The resources whose objects have owners and dependents.
pub(super) fn collectable(found: &Discovered) -> Vec<Resource> {
    let wanted = |r: &&Resource| {
        let ignored = IGNORED.contains(&(r.group(), r.name.as_str()));
        !ignored && !r.kind.is_empty() && r.can(&["delete", "list", "watch"])
    };
    found.preferred().filter(wanted).cloned().collect()
}
