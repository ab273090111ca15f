//! The verbs, once for all kinds: what a kind does differently stands in its `KindDef` row, and what only the server can
//! decide (admission, allocation, revisions) is decided here.
//!
//! A write goes: decode → default → mutating admission → prepare → validate → field ownership → validating admission →
//! one transaction that carries the object and everything that must change with it (quota use, service addresses). A
//! lost race starts over from what is stored now, unless the client named the revision it had seen.

pub mod body;
pub mod context;
pub mod create;
pub mod delete;
mod fresh;
pub mod list;
pub mod patch;
pub(crate) mod rules;
pub mod services;
mod stamps;
pub mod subresources;
pub mod update;
pub mod watch;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use orlop_base::{Clock, Random};
use orlop_store::{Action, CommitError, Expect, Item, Op, Revision, Store, Txn};
use parking_lot::Mutex;

use crate::admission;
use crate::authn::Authenticator;
use crate::authz::Authorizer;
use crate::config::Config;
use crate::custom::Kinds;
use crate::kinds;
use crate::lookup::ObjectLookup;
use crate::object::Object;

pub use context::{Context, Warnings, WriteOptions};

/// How often a write starts over after losing a race before it gives up.
const MAX_RACES: usize = 100;

/// How long a read waits for a revision that only another server knows.
// Upstream: blockTimeout of the watch cache
const FUTURE: std::time::Duration = std::time::Duration::from_secs(3);

pub struct Registry {
    pub store: Store<Object>,
    pub clock: Clock,
    pub config: Config,
    pub authorizer: Authorizer,
    pub authenticator: Authenticator,
    /// All kinds there are, custom ones among them.
    pub(crate) kinds: Kinds,
    pub dynamic_admission: admission::DynamicAdmission,
    random: Mutex<Random>,
    /// Objects parsed for admission and authorisation, by key; valid while the revision is the stored one.
    parsed: Mutex<Parsed>,
    fresh: fresh::Fresh,
    /// One writer at a time in a namespace that has quotas, so that they do not race for the quota's revision.
    quota_gates: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Parsed objects, by key, each good for the revision it was parsed at.
#[derive(Default)]
struct Parsed {
    objects: HashMap<Arc<str>, (Revision, Arc<Value>)>,
    /// Of their stored form; parsed they take some ten times that.
    bytes: usize,
}

/// Bounds of that cache: it is emptied when full, and large objects (pods, mostly) do not get in.
const MAX_PARSED_BYTES: usize = 1 << 20;
const MAX_PARSED_OBJECT: usize = 16 << 10;

/// What a verb gives back.
pub enum VerbResult {
    /// A stored object.
    Stored { item: Item<Object>, created: bool },
    /// An object that is not (or not in this form) in the store: dry runs, subresources, deleted objects, statuses.
    Value { value: Value, code: u16 },
}

impl VerbResult {
    pub fn ok(value: Value) -> VerbResult {
        VerbResult::Value { value, code: 200 }
    }
}

impl AsRef<Authorizer> for Registry {
    fn as_ref(&self) -> &Authorizer {
        &self.authorizer
    }
}

impl AsRef<Authenticator> for Registry {
    fn as_ref(&self) -> &Authenticator {
        &self.authenticator
    }
}

impl Registry {
    pub fn new(
        store: Store<Object>,
        clock: Clock,
        config: Config,
        authorizer: Authorizer,
        authenticator: Authenticator,
    ) -> Registry {
        Registry {
            store,
            clock,
            config,
            authorizer,
            authenticator,
            kinds: Kinds::default(),
            dynamic_admission: Default::default(),
            random: Mutex::new(Random::from_entropy()),
            parsed: Mutex::default(),
            fresh: fresh::Fresh::default(),
            quota_gates: Mutex::default(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn find(&self, kind: &'static KindDef, namespace: &str, name: &str) -> Result<Item<Object>, Status> {
        self.store
            .get(&kinds::key(kind, namespace, name))
            .ok_or_else(|| Status::not_found(kind.group, kind.plural, name))
    }

    pub async fn get(&self, kind: &'static KindDef, namespace: &str, name: &str) -> Result<VerbResult, Status> {
        let item = self.find(kind, namespace, name)?;
        Ok(VerbResult::Stored {
            item: self.present(kind, item).await?,
            created: false,
        })
    }

    /// A read may ask for a state not older than some revision.
    pub fn check_revision(&self, asked: &str) -> Result<(), Status> {
        let current = self.store.revision();
        match list::parse_revision(asked)? {
            Some(asked) if asked > current => Err(list::too_large_revision(asked, current)),
            _ => Ok(()),
        }
    }

    /// Waits for a revision that another server may have told of, or without one for what there was at the moment of the
    /// call.
    pub async fn await_revision(&self, asked: Option<Revision>) -> Result<(), Status> {
        match asked {
            None => self.await_present().await.map(drop),
            Some(asked) if asked > self.store.revision() => match self.store.reaches(asked, FUTURE).await {
                true => Ok(()),
                false => Err(list::too_large_revision(asked, self.store.revision())),
            },
            Some(_) => Ok(()),
        }
    }

    /// Nobody is told what another server has changed before.
    pub(crate) async fn await_present(&self) -> Result<Revision, Status> {
        let unavailable = |e: orlop_store::etcd::NotCurrent| Status::unavailable(e.to_string());
        self.store.current().await.map_err(unavailable)
    }

    /// Commits the operations of one write. `Ok(None)`: a race was lost, look again and decide anew. Nothing larger than
    /// etcd would take gets into the store by any way, and the answer is what Kubernetes passes on from there.
    async fn commit(&self, ops: Vec<Op<Object>>) -> Result<Option<Revision>, Status> {
        let too_large = |op: &Op<Object>| matches!(&op.action, Action::Put(record) if record.is_too_large());
        if ops.iter().any(too_large) {
            return Err(Status::plain_error("etcdserver: request is too large"));
        }
        self.commit_of_any_size(ops).await
    }

    /// For what must always be possible, however large the object is already: to mark it as deleted.
    async fn commit_of_any_size(&self, ops: Vec<Op<Object>>) -> Result<Option<Revision>, Status> {
        match self.store.commit(Txn { ops }).await {
            Ok(revision) => Ok(Some(revision)),
            Err(CommitError::Conflict { .. }) => Ok(None),
            Err(e @ CommitError::Unknown(_)) => Err(Status::timeout(e.to_string())),
            Err(CommitError::Refused(why)) => Err(Status::plain_error(why)),
            Err(e @ CommitError::TooLarge { .. }) => Err(Status::too_large(e.to_string())),
            Err(e) => Err(Status::unavailable(e.to_string())),
        }
    }

    /// Turns what admission wants changed with the object into operations that fail if it was changed meanwhile.
    fn change_ops(&self, changes: Vec<admission::Change>) -> Vec<Op<Object>> {
        let op = |c: admission::Change| Op {
            key: kinds::key(c.kind, &c.namespace, &c.name).into(),
            expect: Expect::At(c.revision),
            action: Action::Put(Arc::new(Object::encode(&c.value, c.kind))),
        };
        changes.into_iter().map(op).collect()
    }

    /// The turn of this namespace's writers if it has quotas.
    async fn quota_turn(&self, kind: &KindDef, namespace: &str) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let quotas = || {
            self.store
                .count(&format!("{}resourcequotas/{namespace}/", kinds::PREFIX))
        };
        if namespace.is_empty() || (kind.kind != "ResourceQuota" && quotas() == 0) {
            return None;
        }
        let gate = {
            let mut gates = self.quota_gates.lock();
            // Gates nobody holds or waits for are dropped now and then, so the map stays as small as its use.
            if gates.len() > 1024 {
                gates.retain(|_, g| Arc::strong_count(g) > 1);
            }
            gates.entry(namespace.to_string()).or_default().clone()
        };
        Some(gate.lock_owned().await)
    }

    /// The stored object as a whole value: kind, apiVersion and resourceVersion in place, in the stored kind's form.
    pub fn value_of(&self, item: &Item<Object>) -> Value {
        let mut value = item.record.value();
        if !item.record.is_self_typed() {
            let kind = kinds::of_store_key(&item.key).expect("only objects of known kinds say nothing of theirs");
            value["apiVersion"] = kind.api_version().into();
            value["kind"] = kind.kind.into();
        }
        value["metadata"]["resourceVersion"] = item.mod_revision.to_string().into();
        value
    }

    /// The stored object as the given kind (version) shows it.
    pub fn value_as(&self, item: &Item<Object>, kind: &'static KindDef) -> Value {
        let mut value = self.value_of(item);
        if !kind.stored_as.is_empty() {
            (kind.from_stored)(&mut value);
            value["apiVersion"] = kind.api_version().into();
            value["kind"] = kind.kind.into();
        }
        value
    }

    fn parsed(&self, item: &Item<Object>) -> Arc<Value> {
        if let Some((revision, value)) = self.parsed.lock().objects.get(&item.key)
            && *revision == item.mod_revision
        {
            return value.clone();
        }
        let value = Arc::new(self.value_of(item));
        let size = item.record.size();
        if size > MAX_PARSED_OBJECT || item.key.starts_with("/registry/pods/") {
            return value;
        }
        let mut cache = self.parsed.lock();
        if cache.bytes + size > MAX_PARSED_BYTES {
            *cache = Parsed::default();
        }
        cache.bytes += size;
        cache
            .objects
            .insert(item.key.clone(), (item.mod_revision, value.clone()));
        value
    }

    fn random_suffix(&self) -> String {
        self.random.lock().name_suffix(5)
    }
}

impl ObjectLookup for Registry {
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let kind = self.kinds.of_stored(resource)?;
        self.store
            .get(&kinds::key(kind, namespace, name))
            .map(|item| self.parsed(&item))
    }

    fn label(&self, resource: &str, namespace: &str, name: &str, label: &str) -> Option<String> {
        let kind = self.kinds.of_stored(resource)?;
        let item = self.store.get(&kinds::key(kind, namespace, name))?;
        item.record.label(label).map(str::to_string)
    }

    fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let Some(kind) = self.kinds.of_stored(resource) else {
            return vec![];
        };
        let prefix = kinds::key_prefix(kind, namespace);
        if self.store.count(&prefix) == 0 {
            return vec![];
        }
        let query = orlop_store::RangeQuery {
            prefix: &prefix,
            ..Default::default()
        };
        let page = self
            .store
            .range(query, &mut |_| true)
            .expect("a range at the current revision does not fail");
        page.items.iter().map(|item| self.parsed(item)).collect()
    }

    fn generation(&self, resource: &str) -> u64 {
        self.store.bucket_revision(&format!("{}{resource}/", kinds::PREFIX))
    }
}
