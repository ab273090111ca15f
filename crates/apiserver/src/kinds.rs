//! Finding a kind: by the words of a URL, by apiVersion and kind, by the key of a stored object.

use std::sync::OnceLock;

use orlop_api::KindDef;
use rustc_hash::FxHashMap;

/// Asked several times a request. A quick hash will do: clients choose what is looked up, not what is in here.
struct Tables {
    by_resource: FxHashMap<(&'static str, &'static str, &'static str), &'static KindDef>,
    by_kind: FxHashMap<(&'static str, &'static str, &'static str), &'static KindDef>,
    by_store: FxHashMap<String, &'static KindDef>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut t = Tables {
            by_resource: FxHashMap::default(),
            by_kind: FxHashMap::default(),
            by_store: FxHashMap::default(),
        };
        for kind in orlop_api::kinds::all() {
            t.by_resource.insert((kind.group, kind.version, kind.plural), kind);
            t.by_kind.insert((kind.group, kind.version, kind.kind), kind);
            if kind.stored_as.is_empty() {
                t.by_store.insert(kind.store_prefix(), kind);
            }
        }
        t
    })
}

/// `("apps", "v1", "deployments")`.
pub fn of_resource(group: &str, version: &str, plural: &str) -> Option<&'static KindDef> {
    tables().by_resource.get(&(group, version, plural)).copied()
}

/// `("apps/v1", "Deployment")`.
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static KindDef> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    tables().by_kind.get(&(group, version, kind)).copied()
}

/// A resource by its qualified name, "pods" or "deployments.apps": the kind in whose form it is stored.
pub fn of_stored(resource: &str) -> Option<&'static KindDef> {
    tables().by_store.get(resource).copied()
}

/// The kind of the object under a store key.
pub fn of_store_key(key: &str) -> Option<&'static KindDef> {
    of_stored(key.strip_prefix(PREFIX)?.split('/').next()?)
}

pub const PREFIX: &str = "/registry/";

/// Whether the group serves this version at all.
pub fn has_version(group: &str, version: &str) -> bool {
    orlop_api::kinds::all().any(|k| k.group == group && k.version == version)
}

/// The key prefix of a resource's objects, all or in one namespace; ends with a slash.
pub fn key_prefix(kind: &KindDef, namespace: Option<&str>) -> String {
    match namespace {
        Some(ns) if !ns.is_empty() => format!("{PREFIX}{}/{ns}/", kind.store_prefix()),
        _ => format!("{PREFIX}{}/", kind.store_prefix()),
    }
}

pub fn key(kind: &KindDef, namespace: &str, name: &str) -> String {
    let mut key = key_prefix(kind, kind.namespaced.then_some(namespace));
    key.push_str(name);
    key
}

/// Namespace ("" for cluster scope) and name from a key.
pub fn split_key<'k>(kind: &KindDef, key: &'k str) -> (&'k str, &'k str) {
    let (rest, name) = key.rsplit_once('/').unwrap_or(("", key));
    if !kind.namespaced {
        return ("", name);
    }
    (rest.rsplit_once('/').map_or("", |(_, ns)| ns), name)
}
