//! What a reconcile writes goes through here, so that the next one of the same key waits until the caches have observed it.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use orlop_client::{Api, DeleteOptions, Error, Preconditions, Result, path};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::cache::Caches;
use super::permissions::Permissions;
use crate::objects::{Kind, Meta};

/// A cache that has not observed a write after this long is used as it is: conflicts and preconditions keep that safe.
const PATIENCE: Duration = Duration::from_secs(30);

/// An object as the server sent it.
type Json = Box<RawValue>;

/// The requests of one reconcile, with the permissions of its controller. What it writes it remembers.
pub struct Writer {
    api: Api,
    caches: Caches,
    permissions: Arc<Permissions>,
    written: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Writer {
    pub fn new(api: Api, caches: Caches, permissions: Arc<Permissions>) -> Writer {
        Writer {
            api,
            caches,
            permissions,
            written: Mutex::default(),
        }
    }

    /// For requests that change nothing which this controller watches.
    pub fn api(&self) -> &Api {
        &self.api
    }

    pub async fn create<T: Kind>(&self, namespace: &str, object: &impl Serialize) -> Result<T> {
        let path = collection::<T>(namespace);
        let json = serde_json::to_vec(object).map_err(|error| Error::Malformed {
            request: format!("POST {path}"),
            source: error.into(),
        })?;
        self.written::<T>("POST", &path, self.send_create(&path, json.into()).await)
    }

    /// Like `create`, for an object that is encoded already.
    pub async fn create_encoded<T: Kind>(&self, namespace: &str, json: Bytes) -> Result<T> {
        let path = collection::<T>(namespace);
        self.written::<T>("POST", &path, self.send_create(&path, json).await)
    }

    /// A JSON merge patch. To change only what was seen, put `metadata.resourceVersion` in it (`precondition`), to change only
    /// the very object, `metadata.uid`.
    pub async fn patch<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let path = object::<T>(meta);
        self.written::<T>("PATCH", &path, self.send_patch(&path, "", patch).await)
    }

    pub async fn patch_status<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let path = object::<T>(meta);
        self.written::<T>("PATCH", &path, self.send_patch(&path, "/status", patch).await)
    }

    /// A strategic merge patch, where a list is to be changed without knowing all of it.
    pub async fn patch_strategic<T: Kind>(&self, meta: &Meta, patch: &Value) -> Result<T> {
        let path = object::<T>(meta);
        self.written::<T>("PATCH", &path, self.send_patch_strategic(&path, patch).await)
    }

    pub async fn replace<T: Kind>(&self, meta: &Meta, object: &Value) -> Result<T> {
        let path = self::object::<T>(meta);
        self.written::<T>("PUT", &path, self.send_replace(&path, object).await)
    }

    /// Replaces what a subresource is about: `status`, `approval`.
    pub async fn replace_part<T: Kind>(&self, meta: &Meta, part: &str, object: &Value) -> Result<T> {
        let path = format!("{}/{part}", self::object::<T>(meta));
        self.written::<T>("PUT", &path, self.send_replace(&path, object).await)
    }

    /// Deletes the very object that was seen.
    pub async fn delete<T: Kind>(&self, meta: &Meta) -> Result<()> {
        self.delete_with::<T>(meta, DeleteOptions::default()).await
    }

    /// Like `delete`; the precondition on the uid is added.
    pub async fn delete_with<T: Kind>(&self, meta: &Meta, options: DeleteOptions) -> Result<()> {
        self.send_delete(TypeId::of::<T>(), object::<T>(meta), meta, options)
            .await
    }

    // Requests are the same for all kinds, whose answers come as JSON: boxed, so that there is one copy of their code.

    fn send_create<'a>(&'a self, path: &'a str, json: Bytes) -> BoxFuture<'a, Result<Json>> {
        Box::pin(async move {
            let mut patience = Patience::default();
            let mut answer = self.api.create_encoded(path, json.clone()).await;
            while patience.lasts(&answer).await {
                answer = self.api.create_encoded(path, json.clone()).await;
            }
            answer
        })
    }

    fn send_patch<'a>(&'a self, path: &'a str, part: &'a str, patch: &'a Value) -> BoxFuture<'a, Result<Json>> {
        Box::pin(self.permissions.patch_or_update(&self.api, path, part, patch))
    }

    fn send_patch_strategic<'a>(&'a self, path: &'a str, patch: &'a Value) -> BoxFuture<'a, Result<Json>> {
        Box::pin(self.api.patch_strategic(path, patch))
    }

    fn send_replace<'a>(&'a self, path: &'a str, object: &'a Value) -> BoxFuture<'a, Result<Json>> {
        Box::pin(self.api.replace(path, object))
    }

    fn send_delete<'a>(
        &'a self,
        kind: TypeId,
        path: String,
        meta: &'a Meta,
        mut options: DeleteOptions,
    ) -> BoxFuture<'a, Result<()>> {
        let conditions = options.preconditions.get_or_insert_with(Preconditions::default);
        conditions.uid = Some(meta.uid.clone());
        Box::pin(async move {
            let mut patience = Patience::default();
            let mut answer = self.api.delete(&path, &options).await;
            while patience.lasts(&answer).await {
                answer = self.api.delete(&path, &options).await;
            }
            answer?;
            if let Some(cache) = self.caches.existing(kind) {
                self.written.lock().push(cache.gone(meta));
            }
            Ok(())
        })
    }

    /// Decodes what was written; `wait_until_observed` waits for the caches to have it.
    fn written<T: Kind>(&self, method: &str, path: &str, answer: Result<Json>) -> Result<T> {
        let made: T = serde_json::from_slice(answer?.get().as_bytes()).map_err(|source| Error::Unreadable {
            request: format!("{method} {path}"),
            source,
        })?;
        self.wrote(TypeId::of::<T>(), made.meta());
        Ok(made)
    }

    fn wrote(&self, kind: TypeId, meta: &Meta) {
        if let (Some(cache), Some(revision)) = (self.caches.existing(kind), meta.revision()) {
            self.written.lock().push(cache.reached(revision));
        }
    }

    /// Waits until the caches have observed all that was written.
    pub(super) async fn wait_until_observed(self) {
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

/// A patch of the status that is refused if the object has changed since it was read.
pub fn status_patch(meta: &Meta, status: &impl Serialize) -> Value {
    serde_json::json!({"metadata": precondition(meta), "status": status})
}

/// The `metadata` of a patch that is refused if the object has changed since it was read.
pub fn precondition(meta: &Meta) -> Value {
    serde_json::json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}
