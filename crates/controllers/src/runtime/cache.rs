//! Informer caches: the state of the cluster as last observed, one cache a kind, shared by all controllers.
//!
//! An informer writes, everybody reads. A change goes into the cache first and then to the handlers, which only put keys
//! into work queues and never decide anything.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use futures::future::BoxFuture;
use orlop_base::Shutdown;
use orlop_client::informer::Decode;
use orlop_client::{Api, Delta, Selection, informer, path};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::key::Key;
use crate::objects::{Kind, Meta};

/// An object of any kind. What the caches do is the same for all kinds, and compiled once.
pub(super) trait Object: Any + Send + Sync {
    fn meta(&self) -> &Meta;
    fn index(&self) -> Option<&str>;
}

impl<T: Kind> Object for T {
    fn meta(&self) -> &Meta {
        Kind::meta(self)
    }

    fn index(&self) -> Option<&str> {
        Kind::index(self)
    }
}

pub(super) type AnyObject = Arc<dyn Object>;

/// Old and new state; one of them is missing if the object came or went.
type Handler = Box<dyn Fn(Option<&AnyObject>, Option<&AnyObject>) + Send + Sync>;

/// The newest known state of a kind: a typed view of a cache. Clones share it.
pub struct Cache<T> {
    objects: Arc<CacheCore>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Cache<T> {
        Cache {
            objects: self.objects.clone(),
            kind: PhantomData,
        }
    }
}

impl<T: Kind> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache {
            objects: Arc::default(),
            kind: PhantomData,
        }
    }
}

fn downcast<T: Kind>(object: AnyObject) -> Arc<T> {
    let object: Arc<dyn Any + Send + Sync> = object;
    object.downcast().expect("a cache holds objects of its kind")
}

fn downcast_all<T: Kind>(objects: Vec<AnyObject>) -> Vec<Arc<T>> {
    objects.into_iter().map(downcast).collect()
}

impl<T: Kind> Cache<T> {
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.objects.get(namespace, name).map(downcast)
    }

    pub fn at(&self, key: &Key) -> Option<Arc<T>> {
        self.get(&key.namespace, &key.name)
    }

    pub fn list(&self) -> Vec<Arc<T>> {
        downcast_all(self.objects.list())
    }

    /// In the order of their names.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<T>> {
        downcast_all(self.objects.list_in(namespace))
    }

    pub fn count(&self) -> usize {
        self.objects.count()
    }

    /// What the owner of this uid controls, in the order of names. With an empty uid: what nobody controls.
    pub fn owned_by(&self, namespace: &str, uid: &str) -> Vec<Arc<T>> {
        downcast_all(self.objects.owned_by(namespace, uid))
    }

    /// The objects with this `Kind::index`: the pods of a node.
    pub fn indexed(&self, index: &str) -> Vec<Arc<T>> {
        downcast_all(self.objects.indexed(index))
    }

    /// Calls the function after each change, and once for each object that is here already.
    pub fn on_change(&self, handler: impl Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync + 'static) {
        self.objects.add_handler(Box::new(move |old, new| {
            handler(old.cloned().map(downcast).as_ref(), new.cloned().map(downcast).as_ref());
        }));
    }

    /// Like `on_change`, with no more than the key of what changed.
    pub fn on_any_change(&self, handler: impl Fn(Key) + Send + Sync + 'static) {
        self.objects.add_handler(Box::new(move |old, new| {
            if let Some(object) = new.or(old) {
                handler(Key::from_meta(object.meta()));
            }
        }));
    }

    /// Waits until everything up to this revision is in; 0 waits for the first whole state.
    pub fn reached(&self, revision: u64) -> BoxFuture<'static, ()> {
        self.objects.clone().reached(revision)
    }

    #[cfg(test)]
    pub(crate) fn observe(&self, delta: Delta<T>) {
        self.objects.observe(match delta {
            Delta::Reset(items) => Delta::Reset(items.into_iter().map(|item| Arc::new(item) as AnyObject).collect()),
            Delta::Applied(object) => Delta::Applied(Arc::new(object)),
            Delta::Deleted(object) => Delta::Deleted(Arc::new(object)),
            Delta::Bookmark(revision) => Delta::Bookmark(revision),
        });
    }
}

/// A cache of whatever kind.
pub(super) struct CacheCore {
    state: RwLock<CacheState>,
    handlers: RwLock<Vec<Handler>>,
    /// None until the first whole state is in.
    progress: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct CacheState {
    /// namespace → name → object
    objects: FxHashMap<Box<str>, BTreeMap<Box<str>, AnyObject>>,
    /// namespace → the uid of the controlling owner, empty if there is none → name → object
    owned: FxHashMap<Box<str>, FxHashMap<Box<str>, BTreeMap<Box<str>, AnyObject>>>,
    /// `Kind::index` → objects
    indexed: FxHashMap<Box<str>, HashMap<Key, AnyObject>>,
}

impl CacheState {
    fn get(&self, namespace: &str, name: &str) -> Option<&AnyObject> {
        self.objects.get(namespace)?.get(name)
    }

    fn counterpart(&self, object: &AnyObject) -> Option<&AnyObject> {
        let meta = object.meta();
        self.get(&meta.namespace, &meta.name)
    }

    fn insert(&mut self, object: AnyObject) -> Option<AnyObject> {
        let meta = object.meta();
        let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
        let old = self.remove(namespace, name);
        let owned = self
            .owned
            .entry(namespace.into())
            .or_default()
            .entry(owner_of(&object).into())
            .or_default();
        owned.insert(name.into(), object.clone());
        if let Some(index) = object.index() {
            let indexed = self.indexed.entry(index.into()).or_default();
            indexed.insert(Key::from_meta(meta), object.clone());
        }
        self.objects
            .entry(namespace.into())
            .or_default()
            .insert(name.into(), object.clone());
        old
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<AnyObject> {
        let names = self.objects.get_mut(namespace)?;
        let old = names.remove(name)?;
        if names.is_empty() {
            self.objects.remove(namespace);
        }
        let owner = owner_of(&old);
        if let Some(owners) = self.owned.get_mut(namespace) {
            if let Some(owned) = owners.get_mut(owner) {
                owned.remove(name);
                if owned.is_empty() {
                    owners.remove(owner);
                }
            }
            if owners.is_empty() {
                self.owned.remove(namespace);
            }
        }
        if let Some(index) = old.index()
            && let Some(indexed) = self.indexed.get_mut(index)
        {
            indexed.remove(&Key::new(namespace, name));
            if indexed.is_empty() {
                self.indexed.remove(index);
            }
        }
        Some(old)
    }
}

fn owner_of(object: &AnyObject) -> &str {
    object.meta().controller().map_or("", |owner| owner.uid.as_str())
}

impl Default for CacheCore {
    fn default() -> CacheCore {
        let (progress, _) = watch::channel(None);
        CacheCore {
            state: RwLock::default(),
            handlers: RwLock::default(),
            progress,
        }
    }
}

impl CacheCore {
    fn get(&self, namespace: &str, name: &str) -> Option<AnyObject> {
        self.state.read().get(namespace, name).cloned()
    }

    fn list(&self) -> Vec<AnyObject> {
        let state = self.state.read();
        state
            .objects
            .values()
            .flat_map(|names| names.values().cloned())
            .collect()
    }

    fn list_in(&self, namespace: &str) -> Vec<AnyObject> {
        let state = self.state.read();
        state
            .objects
            .get(namespace)
            .map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    fn count(&self) -> usize {
        self.state.read().objects.values().map(BTreeMap::len).sum()
    }

    fn owned_by(&self, namespace: &str, uid: &str) -> Vec<AnyObject> {
        let state = self.state.read();
        let owned = state.owned.get(namespace).and_then(|owners| owners.get(uid));
        owned.map_or_else(Vec::new, |names| names.values().cloned().collect())
    }

    fn indexed(&self, index: &str) -> Vec<AnyObject> {
        let state = self.state.read();
        state
            .indexed
            .get(index)
            .map_or_else(Vec::new, |found| found.values().cloned().collect())
    }

    fn add_handler(&self, handler: Handler) {
        // Under the lock that `observe` needs to notify of a change, so that none falls in between.
        let mut handlers = self.handlers.write();
        for object in self.list() {
            handler(None, Some(&object));
        }
        handlers.push(handler);
    }

    /// See `Cache::reached`.
    pub(super) fn reached(self: Arc<Self>, revision: u64) -> BoxFuture<'static, ()> {
        let mut progress = self.progress.subscribe();
        Box::pin(async move {
            // The sender lives as long as the cache does.
            let _ = progress
                .wait_for(|known| known.is_some_and(|known| known >= revision))
                .await;
            drop(self);
        })
    }

    /// Waits until the object of this uid is gone from here, or at least on its way out.
    pub(super) fn gone(self: Arc<Self>, meta: &Meta) -> BoxFuture<'static, ()> {
        let mut progress = self.progress.subscribe();
        let (key, uid) = (Key::from_meta(meta), meta.uid.clone());
        Box::pin(async move {
            loop {
                progress.borrow_and_update();
                let is_here = self
                    .get(&key.namespace, &key.name)
                    .is_some_and(|o| o.meta().uid == uid && !o.meta().is_deleted());
                if !is_here || progress.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    fn observe(&self, delta: Delta<AnyObject>) {
        // Held throughout, so that handlers hear of changes in order and new ones miss nothing.
        let handlers = self.handlers.read();
        let notify = |old: Option<&AnyObject>, new: Option<&AnyObject>| {
            handlers.iter().for_each(|handler| handler(old, new));
        };
        let revision = match delta {
            Delta::Reset(items) => return self.reset(items, &notify),
            Delta::Applied(object) => {
                let old = self.state.write().insert(object.clone());
                notify(old.as_ref(), Some(&object));
                object.meta().revision()
            }
            Delta::Deleted(last) => {
                let meta = last.meta();
                let old = self.state.write().remove(&meta.namespace, &meta.name);
                // The last state is in the event: whoever looks at what went sees how it went.
                if old.is_some() {
                    notify(Some(&last), None);
                }
                meta.revision()
            }
            Delta::Bookmark(revision) => Some(revision),
        };
        let Some(revision) = revision else { return };
        self.progress.send_if_modified(|known| match known {
            Some(known) if revision > *known => {
                *known = revision;
                true
            }
            _ => false,
        });
    }

    fn reset(&self, items: Vec<AnyObject>, notify: &dyn Fn(Option<&AnyObject>, Option<&AnyObject>)) {
        let mut next = CacheState::default();
        let mut newest = 0;
        for item in items {
            newest = newest.max(item.meta().revision().unwrap_or(0));
            next.insert(item);
        }
        let before = std::mem::replace(&mut *self.state.write(), next);
        for old in before.objects.values().flat_map(BTreeMap::values) {
            if self.state.read().counterpart(old).is_none() {
                notify(Some(old), None);
            }
        }
        for new in self.list() {
            let old = before.counterpart(&new);
            if old.is_none_or(|old| old.meta().resource_version != new.meta().resource_version) {
                notify(old, Some(&new));
            }
        }
        // A restored cluster may be behind what was seen before: the state counts, not the highest number.
        self.progress.send_replace(Some(newest));
    }
}

/// All caches; each begins to follow the cluster when first asked for.
#[derive(Clone)]
pub struct Caches {
    api: Api,
    shutdown: Shutdown,
    by_type: Arc<Mutex<HashMap<TypeId, Arc<CacheCore>>>>,
}

impl Caches {
    pub fn new(api: Api, shutdown: Shutdown) -> Caches {
        Caches {
            api,
            shutdown,
            by_type: Arc::default(),
        }
    }

    /// Whether every cache that a controller has asked for holds its first whole state.
    pub fn are_synced(&self) -> bool {
        let by_type = self.by_type.lock();
        by_type.values().all(|cache| cache.progress.borrow().is_some())
    }

    /// With the permissions of the manager itself, which reads everything: for what is needed too rarely to be kept in a cache.
    pub fn reader(&self) -> &Api {
        &self.api
    }

    pub fn cache<T: Kind>(&self) -> Cache<T> {
        let path = || path::collection(T::API_VERSION, None, T::RESOURCE);
        let objects = self.started(TypeId::of::<T>(), &path, decode_object::<T>);
        Cache {
            objects,
            kind: PhantomData,
        }
    }

    /// The cache of a kind that somebody has asked for already.
    pub(super) fn existing(&self, kind: TypeId) -> Option<Arc<CacheCore>> {
        self.by_type.lock().get(&kind).cloned()
    }

    fn started(&self, kind: TypeId, path: &dyn Fn() -> String, decode: Decode<AnyObject>) -> Arc<CacheCore> {
        let mut by_type = self.by_type.lock();
        let held = by_type.entry(kind).or_insert_with(|| self.follow(path(), decode));
        held.clone()
    }

    fn follow(&self, path: String, decode: Decode<AnyObject>) -> Arc<CacheCore> {
        let cache = Arc::<CacheCore>::default();
        let following = cache.clone();
        let sink = move |delta| following.observe(delta);
        informer::start_with(&self.api, Selection::all(path), decode, sink, &self.shutdown);
        cache
    }
}

/// The only place where the caches decode a kind.
fn decode_object<T: Kind>(json: &[u8]) -> serde_json::Result<AnyObject> {
    Ok(Arc::new(serde_json::from_slice::<T>(json)?))
}
