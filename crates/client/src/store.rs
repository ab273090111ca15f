//! The newest known state of a resource: one writer, many readers.

use std::collections::HashMap;
use std::sync::Arc;

use orlop_base::Shutdown;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::api::Api;
use crate::informer::{self, Delta, Selection};

/// Deltas that may wait between the informer and the store.
const QUEUE: usize = 256;

/// What a store needs to know of an object.
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// Empty for cluster-scoped objects.
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
    fn resource_version(&self) -> &str;
}

/// The reading side. Clones share the state.
pub struct Store<T> {
    shared: Arc<Shared<T>>,
    progress: watch::Receiver<Option<u64>>,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Store<T> {
        Store {
            shared: self.shared.clone(),
            progress: self.progress.clone(),
        }
    }
}

/// The writing side; there is one.
pub struct Writer<T> {
    shared: Arc<Shared<T>>,
    /// None until the first whole state is in.
    progress: watch::Sender<Option<u64>>,
}

/// namespace → name → object
type Objects<T> = HashMap<Box<str>, HashMap<Box<str>, Arc<T>>>;

struct Shared<T> {
    objects: RwLock<Objects<T>>,
}

/// An empty store, not synced.
pub fn store<T: Object>() -> (Writer<T>, Store<T>) {
    let shared = Arc::new(Shared {
        objects: RwLock::default(),
    });
    let (sender, receiver) = watch::channel(None);
    let writer = Writer {
        shared: shared.clone(),
        progress: sender,
    };
    let store = Store {
        shared,
        progress: receiver,
    };
    (writer, store)
}

/// A store that follows the cluster until the shutdown.
pub fn reflect<T: Object>(api: Api, selection: Selection, shutdown: Shutdown) -> Store<T> {
    let (mut writer, store) = store();
    let (sender, mut deltas) = mpsc::channel(QUEUE);
    orlop_base::spawn(informer::watch(api, selection, sender, shutdown));
    orlop_base::spawn(async move {
        while let Some(delta) = deltas.recv().await {
            writer.observe(delta);
        }
    });
    store
}

impl<T: Object> Writer<T> {
    /// Takes in a change; readers see all of it or nothing.
    pub fn observe(&mut self, delta: Delta<T>) {
        let revision = match delta {
            Delta::Reset(items) => {
                let mut objects = Objects::default();
                let newest = items.iter().filter_map(revision_of).max();
                items.into_iter().for_each(|item| insert(&mut objects, item));
                *self.shared.objects.write() = objects;
                // A restored cluster may be behind what was seen before: the state counts, not the highest number.
                self.progress.send_replace(Some(newest.unwrap_or(0)));
                return;
            }
            Delta::Applied(item) => {
                let revision = revision_of(&item);
                insert(&mut self.shared.objects.write(), item);
                revision
            }
            Delta::Deleted(item) => {
                remove(&mut self.shared.objects.write(), &item);
                revision_of(&item)
            }
            Delta::Bookmark(revision) => Some(revision),
        };
        let Some(revision) = revision else { return };
        self.progress.send_if_modified(|known| match known {
            Some(known) if revision > *known => {
                *known = revision;
                true
            }
            // Changes before the first whole state do not make one.
            _ => false,
        });
    }
}

fn revision_of<T: Object>(item: &T) -> Option<u64> {
    item.resource_version().parse().ok()
}

fn insert<T: Object>(objects: &mut Objects<T>, item: T) {
    let name = item.name().into();
    let item = Arc::new(item);
    match objects.get_mut(item.namespace()) {
        Some(names) => {
            names.insert(name, item);
        }
        None => {
            let namespace = item.namespace().into();
            objects.insert(namespace, HashMap::from([(name, item)]));
        }
    }
}

fn remove<T: Object>(objects: &mut Objects<T>, item: &T) {
    if let Some(names) = objects.get_mut(item.namespace()) {
        names.remove(item.name());
        if names.is_empty() {
            objects.remove(item.namespace());
        }
    }
}

impl<T: Object> Store<T> {
    /// The newest known state of an object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.shared.objects.read().get(namespace)?.get(name).cloned()
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        let objects = self.shared.objects.read();
        objects.values().flat_map(|names| names.values().cloned()).collect()
    }

    /// The objects of a namespace, in no order.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<T>> {
        let objects = self.shared.objects.read();
        objects
            .get(namespace)
            .map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    /// The newest revision the store has caught up with; none until it is synced.
    pub fn revision(&self) -> Option<u64> {
        *self.progress.borrow()
    }

    /// Whether the first whole state is in.
    pub fn is_synced(&self) -> bool {
        self.revision().is_some()
    }

    /// Waits for the first whole state. False if the store was given up before.
    pub async fn synced(&self) -> bool {
        self.reached(0).await
    }

    /// Waits until the store holds what was written at this revision: whoever has written something decides anew only
    /// after that. False if the store is given up before.
    pub async fn reached(&self, revision: u64) -> bool {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|known| known.is_some_and(|known| known >= revision));
        reached.await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Thing {
        namespace: String,
        name: String,
        revision: String,
    }

    impl Object for Thing {
        fn namespace(&self) -> &str {
            &self.namespace
        }
        fn name(&self) -> &str {
            &self.name
        }
        fn resource_version(&self) -> &str {
            &self.revision
        }
    }

    fn thing(key: &str, revision: u64) -> Thing {
        let (namespace, name) = key.split_once('/').unwrap();
        Thing {
            namespace: namespace.into(),
            name: name.into(),
            revision: revision.to_string(),
        }
    }

    fn shown(store: &Store<Thing>) -> String {
        let shown = |thing: Arc<Thing>| format!("{}/{}@{}", thing.namespace, thing.name, thing.revision);
        let mut all: Vec<String> = store.list().into_iter().map(shown).collect();
        all.sort();
        format!("{:?} {}", store.revision(), all.join(" "))
    }

    #[test]
    fn the_store_follows_the_deltas() {
        let (mut writer, store) = store();
        let steps = [
            (Delta::Bookmark(3), "None "),
            (
                Delta::Reset(vec![thing("a/x", 4), thing("/n", 5)]),
                "Some(5) /n@5 a/x@4",
            ),
            (Delta::Bookmark(7), "Some(7) /n@5 a/x@4"),
            (Delta::Applied(thing("a/x", 8)), "Some(8) /n@5 a/x@8"),
            (Delta::Applied(thing("b/x", 9)), "Some(9) /n@5 a/x@8 b/x@9"),
            (Delta::Deleted(thing("a/x", 10)), "Some(10) /n@5 b/x@9"),
            (Delta::Deleted(thing("a/x", 11)), "Some(11) /n@5 b/x@9"),
            (Delta::Reset(vec![thing("b/x", 9)]), "Some(9) b/x@9"),
        ];
        for (delta, expected) in steps {
            writer.observe(delta);
            assert_eq!(shown(&store), expected);
        }
        assert_eq!(store.list_in("b").len(), 1);
        assert!(store.get("b", "x").is_some() && store.get("a", "x").is_none());
    }

    #[tokio::test]
    async fn readers_wait_for_a_revision() {
        let (mut writer, store) = store();
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { (store.synced().await, store.reached(6).await, store.reached(9).await) }
        });
        writer.observe(Delta::Reset(vec![thing("a/x", 4)]));
        writer.observe(Delta::Bookmark(6));
        drop(writer);
        assert_eq!(waiting.await.unwrap(), (true, true, false));
    }
}
