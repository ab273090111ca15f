//! What the cluster looked like a moment ago: one cache a kind, shared by all controllers.
//!
//! An informer writes, everybody reads. A change goes into the cache first and then to the handlers, which only say whose
//! turn it is (they put keys into queues) and never decide anything.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::future::BoxFuture;
use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Selection, path};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, watch};

use super::key::Key;
use crate::objects::Kind;

/// Deltas that may wait between the informer and the cache.
const QUEUE: usize = 256;

/// Old and new state; one of them is missing if the object came or went.
type Handler<T> = Box<dyn Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync>;

/// The newest known state of a kind. Clones share it.
pub struct Cache<T>(Arc<Shared<T>>);

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Cache<T> {
        Cache(self.0.clone())
    }
}

struct Shared<T> {
    state: RwLock<State<T>>,
    handlers: RwLock<Vec<Handler<T>>>,
    /// None until the first whole state is in.
    progress: watch::Sender<Option<u64>>,
}

struct State<T> {
    /// namespace → name → object
    objects: FxHashMap<Box<str>, BTreeMap<Box<str>, Arc<T>>>,
    /// namespace → the uid of the controlling owner, empty if there is none → name → object
    owned: FxHashMap<Box<str>, FxHashMap<Box<str>, BTreeMap<Box<str>, Arc<T>>>>,
    /// `Kind::index` → objects
    indexed: FxHashMap<Box<str>, HashMap<Key, Arc<T>>>,
}

impl<T> Default for State<T> {
    fn default() -> State<T> {
        State {
            objects: FxHashMap::default(),
            owned: FxHashMap::default(),
            indexed: FxHashMap::default(),
        }
    }
}

impl<T: Kind> State<T> {
    fn get(&self, key: &Key) -> Option<&Arc<T>> {
        self.objects.get(key.namespace.as_str())?.get(key.name.as_str())
    }

    fn put(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        let old = self.take(&Key::of(&*object));
        let meta = object.meta();
        let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
        let owner = owner_of(&*object);
        let owned = self
            .owned
            .entry(namespace.into())
            .or_default()
            .entry(owner.into())
            .or_default();
        owned.insert(name.into(), object.clone());
        if let Some(index) = object.index() {
            let indexed = self.indexed.entry(index.into()).or_default();
            indexed.insert(Key::of(&*object), object.clone());
        }
        self.objects
            .entry(namespace.into())
            .or_default()
            .insert(name.into(), object.clone());
        old
    }

    fn take(&mut self, key: &Key) -> Option<Arc<T>> {
        let names = self.objects.get_mut(key.namespace.as_str())?;
        let old = names.remove(key.name.as_str())?;
        if names.is_empty() {
            self.objects.remove(key.namespace.as_str());
        }
        let owner = owner_of(&*old);
        if let Some(owners) = self.owned.get_mut(key.namespace.as_str()) {
            if let Some(owned) = owners.get_mut(owner) {
                owned.remove(key.name.as_str());
                if owned.is_empty() {
                    owners.remove(owner);
                }
            }
            if owners.is_empty() {
                self.owned.remove(key.namespace.as_str());
            }
        }
        if let Some(index) = old.index()
            && let Some(indexed) = self.indexed.get_mut(index)
        {
            indexed.remove(key);
            if indexed.is_empty() {
                self.indexed.remove(index);
            }
        }
        Some(old)
    }
}

fn owner_of<T: Kind>(object: &T) -> &str {
    object.meta().controller().map_or("", |owner| owner.uid.as_str())
}

impl<T: Kind> Default for Cache<T> {
    fn default() -> Cache<T> {
        let (progress, _) = watch::channel(None);
        Cache(Arc::new(Shared {
            state: RwLock::default(),
            handlers: RwLock::default(),
            progress,
        }))
    }
}

impl<T: Kind> Cache<T> {
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let state = self.0.state.read();
        state.objects.get(namespace)?.get(name).cloned()
    }

    pub fn at(&self, key: &Key) -> Option<Arc<T>> {
        self.0.state.read().get(key).cloned()
    }

    pub fn list(&self) -> Vec<Arc<T>> {
        let state = self.0.state.read();
        state
            .objects
            .values()
            .flat_map(|names| names.values().cloned())
            .collect()
    }

    /// In the order of their names.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<T>> {
        let state = self.0.state.read();
        state
            .objects
            .get(namespace)
            .map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    pub fn count(&self) -> usize {
        self.0.state.read().objects.values().map(BTreeMap::len).sum()
    }

    /// What the owner of this uid controls, in the order of names. With an empty uid: what nobody controls.
    pub fn owned_by(&self, namespace: &str, uid: &str) -> Vec<Arc<T>> {
        let state = self.0.state.read();
        let owned = state.owned.get(namespace).and_then(|owners| owners.get(uid));
        owned.map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    /// The objects with this `Kind::index`: the pods of a node.
    pub fn indexed(&self, index: &str) -> Vec<Arc<T>> {
        let state = self.0.state.read();
        state
            .indexed
            .get(index)
            .map_or_else(Vec::new, |found| found.values().cloned().collect())
    }

    /// Calls the function after each change, and once for each object that is here already.
    pub fn on_change(&self, handler: impl Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync + 'static) {
        // Under the lock that `observe` needs to tell of a change, so that none falls in between.
        let mut handlers = self.0.handlers.write();
        for object in self.list() {
            handler(None, Some(&object));
        }
        handlers.push(Box::new(handler));
    }

    pub fn is_synced(&self) -> bool {
        self.0.progress.borrow().is_some()
    }

    /// Waits until everything up to this revision is in; 0 waits for the first whole state.
    pub async fn reached(&self, revision: u64) {
        let mut progress = self.0.progress.subscribe();
        // The sender lives as long as the cache does.
        let _ = progress
            .wait_for(|known| known.is_some_and(|known| known >= revision))
            .await;
    }

    /// Waits until the object of this uid is gone from here, or at least on its way out.
    pub async fn gone(&self, key: &Key, uid: &str) {
        let mut progress = self.0.progress.subscribe();
        loop {
            progress.borrow_and_update();
            let there = self
                .at(key)
                .is_some_and(|o| o.meta().uid == uid && !o.meta().is_deleted());
            if !there || progress.changed().await.is_err() {
                return;
            }
        }
    }

    pub fn observe(&self, delta: Delta<T>) {
        // Held throughout, so that handlers hear of changes in order and new ones miss nothing.
        let handlers = self.0.handlers.read();
        let tell = |old: Option<&Arc<T>>, new: Option<&Arc<T>>| handlers.iter().for_each(|handler| handler(old, new));
        let revision = match delta {
            Delta::Reset(items) => return self.reset(items, &tell),
            Delta::Applied(object) => {
                let object = Arc::new(object);
                let old = self.0.state.write().put(object.clone());
                tell(old.as_ref(), Some(&object));
                object.meta().revision()
            }
            Delta::Deleted(object) => {
                let old = self.0.state.write().take(&Key::of(&object));
                let revision = object.meta().revision();
                // The last state is in the event: whoever looks at what went sees how it went.
                let last = Arc::new(object);
                if old.is_some() {
                    tell(Some(&last), None);
                }
                revision
            }
            Delta::Bookmark(revision) => Some(revision),
        };
        let Some(revision) = revision else { return };
        self.0.progress.send_if_modified(|known| match known {
            Some(known) if revision > *known => {
                *known = revision;
                true
            }
            _ => false,
        });
    }

    fn reset(&self, items: Vec<T>, tell: &dyn Fn(Option<&Arc<T>>, Option<&Arc<T>>)) {
        let mut next = State::default();
        let mut newest = 0;
        for item in items {
            newest = newest.max(item.meta().revision().unwrap_or(0));
            next.put(Arc::new(item));
        }
        let before = std::mem::replace(&mut *self.0.state.write(), next);
        for old in before.objects.values().flat_map(BTreeMap::values) {
            if self.at(&Key::of(&**old)).is_none() {
                tell(Some(old), None);
            }
        }
        for new in self.list() {
            let old = before.get(&Key::of(&*new));
            if old.is_none_or(|old| old.meta().resource_version != new.meta().resource_version) {
                tell(old, Some(&new));
            }
        }
        // A restored cluster may be behind what was seen before: the state counts, not the highest number.
        self.0.progress.send_replace(Some(newest));
    }
}

/// All caches; each begins to follow the cluster when first asked for.
#[derive(Clone)]
pub struct Caches {
    api: Api,
    shutdown: Shutdown,
    by_type: Arc<Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>>,
}

/// Resolves when a cache holds its first whole state.
pub type Synced = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

impl Caches {
    pub fn new(api: Api, shutdown: Shutdown) -> Caches {
        Caches {
            api,
            shutdown,
            by_type: Arc::default(),
        }
    }

    /// With the rights of the manager itself, which reads everything: for what is needed too rarely to be kept in a cache.
    pub fn reader(&self) -> &Api {
        &self.api
    }

    pub fn of<T: Kind>(&self) -> Cache<T> {
        let mut by_type = self.by_type.lock();
        let held = by_type
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::new(self.follow::<T>()));
        held.downcast_ref::<Cache<T>>()
            .expect("each type has the cache of its type")
            .clone()
    }

    /// The cache of a kind that somebody has asked for already.
    pub fn existing<T: Kind>(&self) -> Option<Cache<T>> {
        let by_type = self.by_type.lock();
        by_type
            .get(&TypeId::of::<T>())
            .and_then(|held| held.downcast_ref::<Cache<T>>().cloned())
    }

    fn follow<T: Kind>(&self) -> Cache<T> {
        let cache = Cache::default();
        let (sender, mut deltas) = mpsc::channel(QUEUE);
        let selection = Selection::all(path::collection(T::API_VERSION, None, T::RESOURCE));
        orlop_base::spawn(orlop_client::watch(
            self.api.clone(),
            selection,
            sender,
            self.shutdown.clone(),
        ));
        let following = cache.clone();
        orlop_base::spawn(async move {
            while let Some(delta) = deltas.recv().await {
                following.observe(delta);
            }
        });
        cache
    }
}
