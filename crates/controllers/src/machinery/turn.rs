//! One turn of a controller: what it writes goes through here, so that the next turn waits until the caches show it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use orlop_client::{Api, DeleteOptions, Error, Preconditions, Result, path};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::cache::Caches;
use super::key::Key;
use super::rights::Rights;
use crate::objects::{Kind, Meta};

/// A cache that has not shown a write after this long is decided on as it is: conflicts and preconditions keep that safe.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do with the key after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until something changes.
    Done,
    /// Look again after this long, should nothing change before.
    After(Duration),
}

impl Next {
    /// The sooner of two.
    pub fn or(self, other: Next) -> Next {
        match (self, other) {
            (Next::After(a), Next::After(b)) => Next::After(a.min(b)),
            (Next::Done, next) | (next, Next::Done) => next,
        }
    }
}

/// Why a turn did not do all it wanted. The key comes again, later and later.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", .0.chain())]
    Api(#[from] orlop_client::Error),
    /// Something that should be there soon is not.
    #[error("{0}")]
    NotYet(String),
}

pub type Outcome = std::result::Result<Next, Failure>;

pub struct Turn {
    api: Api,
    caches: Caches,
    rights: Arc<Rights>,
    written: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Turn {
    pub fn new(api: Api, caches: Caches, rights: Arc<Rights>) -> Turn {
        Turn {
            api,
            caches,
            rights,
            written: Mutex::default(),
        }
    }

    /// For requests that change nothing which this controller watches.
    pub fn api(&self) -> &Api {
        &self.api
    }

    pub async fn create<T: Kind>(&self, namespace: &str, object: &impl Serialize) -> Result<T> {
        let at = collection::<T>(namespace);
        let mut patience = Patience::default();
        let mut answer = self.api.create::<T>(&at, object).await;
        while patience.lasts(&answer).await {
            answer = self.api.create::<T>(&at, object).await;
        }
        let made = answer?;
        self.wrote(&made);
        Ok(made)
    }

    /// Like `create`, for an object that is encoded already.
    pub async fn create_encoded<T: Kind>(&self, namespace: &str, json: Bytes) -> Result<T> {
        let at = collection::<T>(namespace);
        let mut patience = Patience::default();
        let mut answer = self.api.create_encoded::<T>(&at, json.clone()).await;
        while patience.lasts(&answer).await {
            answer = self.api.create_encoded::<T>(&at, json.clone()).await;
        }
        let made = answer?;
        self.wrote(&made);
        Ok(made)
    }

    /// A JSON merge patch. To change only what was seen, put `metadata.resourceVersion` in it (`seen`), to change only
    /// the very object, `metadata.uid`.
    pub async fn patch<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let made: T = self.rights.amend(&self.api, &object::<T>(meta), "", patch).await?;
        self.wrote(&made);
        Ok(made)
    }

    pub async fn patch_status<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let made: T = self
            .rights
            .amend(&self.api, &object::<T>(meta), "/status", patch)
            .await?;
        self.wrote(&made);
        Ok(made)
    }

    /// A strategic merge patch, where a list is to be changed without knowing all of it.
    pub async fn patch_strategic<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let made: T = self.api.patch_strategic(&object::<T>(meta), patch).await?;
        self.wrote(&made);
        Ok(made)
    }

    pub async fn replace<T: Kind>(&self, meta: &Meta, object: &impl Serialize) -> Result<T> {
        let made: T = self.api.replace(&self::object::<T>(meta), object).await?;
        self.wrote(&made);
        Ok(made)
    }

    /// Replaces what a subresource is about: `status`, `approval`.
    pub async fn replace_part<T: Kind>(&self, meta: &Meta, part: &str, object: &impl Serialize) -> Result<T> {
        let at = format!("{}/{part}", self::object::<T>(meta));
        let made: T = self.api.replace(&at, object).await?;
        self.wrote(&made);
        Ok(made)
    }

    /// Deletes the very object that was seen.
    pub async fn delete<T: Kind>(&self, meta: &Meta) -> Result<()> {
        self.delete_with::<T>(meta, DeleteOptions::default()).await
    }

    /// Like `delete`; the precondition on the uid is added.
    pub async fn delete_with<T: Kind>(&self, meta: &Meta, mut options: DeleteOptions) -> Result<()> {
        let conditions = options.preconditions.get_or_insert_with(Preconditions::default);
        conditions.uid = Some(meta.uid.clone());
        let at = object::<T>(meta);
        let mut patience = Patience::default();
        let mut answer = self.api.delete(&at, &options).await;
        while patience.lasts(&answer).await {
            answer = self.api.delete(&at, &options).await;
        }
        answer?;
        if let Some(cache) = self.caches.existing::<T>() {
            let (key, uid) = (Key::of_meta(meta), meta.uid.clone());
            self.written
                .lock()
                .push(Box::pin(async move { cache.gone(&key, &uid).await }));
        }
        Ok(())
    }

    fn wrote<T: Kind>(&self, object: &T) {
        let revision = object.meta().revision();
        if let (Some(cache), Some(revision)) = (self.caches.existing::<T>(), revision) {
            self.written
                .lock()
                .push(Box::pin(async move { cache.reached(revision).await }));
        }
    }

    /// Waits until the caches show all that was written.
    pub(super) async fn settle(self) {
        let written = self.written.into_inner();
        if !written.is_empty() && tokio::time::timeout(PATIENCE, join_all(written)).await.is_err() {
            tracing::warn!(waited = ?PATIENCE, "informer cache has not observed the write; continuing without it");
        }
    }
}

/// A server that has too much to do is asked again when it says, a few times: that is no reason to report a failure.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    const TRIES: u32 = 5;

    /// Whether to ask again; waits before it says so.
    async fn lasts<T>(&mut self, answer: &Result<T>) -> bool {
        let Err(Error::TooManyRequests { retry_after, .. }) = answer else {
            return false;
        };
        let (wait, tried) = (*retry_after, self.0 + 1);
        self.0 = tried;
        if tried < Patience::TRIES {
            tokio::time::sleep(wait).await;
        }
        tried < Patience::TRIES
    }
}

fn collection<T: Kind>(namespace: &str) -> String {
    path::collection(T::API_VERSION, Some(namespace), T::RESOURCE)
}

fn object<T: Kind>(meta: &Meta) -> String {
    path::object(T::API_VERSION, Some(&meta.namespace), T::RESOURCE, &meta.name)
}

/// A patch of the status that only takes if the object is as it was seen.
pub fn status_patch(meta: &Meta, status: &impl Serialize) -> Value {
    serde_json::json!({"metadata": seen(meta), "status": status})
}

/// What a patch's `metadata` holds so that it only takes if the object is as it was seen.
pub fn seen(meta: &Meta) -> Value {
    serde_json::json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}

/// One turn after another.
pub trait Reconcile: Send + Sync + 'static {
    /// Looks at what the key names, decides, and acts. Told *which* object to look at, never *what* changed.
    fn reconcile(&self, key: &Key, turn: &Turn) -> impl Future<Output = Outcome> + Send;
}

impl<R: Reconcile> Reconcile for Arc<R> {
    async fn reconcile(&self, key: &Key, turn: &Turn) -> Outcome {
        R::reconcile(self, key, turn).await
    }
}
