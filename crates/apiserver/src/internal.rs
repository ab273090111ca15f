//! Writes that the server makes on its own behalf: through the same verbs, admission and validation as everyone's.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::{KindDef, Status, Value, schema};

use crate::authn::UserInfo;
use crate::kinds;
use crate::registry::create::meta_text;
use crate::registry::update::{Desired, Endpoint};
use crate::registry::{Context, Registry, VerbResult, Warnings, WriteOptions};
use crate::request::RequestInfo;

/// The server as a user of itself.
pub struct Internal {
    registry: Arc<Registry>,
    user: UserInfo,
    headers: HeaderMap,
    warnings: Warnings,
}

impl Internal {
    pub fn new(registry: Arc<Registry>) -> Internal {
        let user = UserInfo::new("system:apiserver", &["system:masters", "system:authenticated"]);
        Internal {
            registry,
            user,
            headers: HeaderMap::new(),
            warnings: Warnings::default(),
        }
    }

    fn info(verb: &'static str, kind: &KindDef, object: &Value) -> RequestInfo {
        RequestInfo {
            verb,
            is_resource: true,
            group: kind.group.to_string(),
            version: kind.version.to_string(),
            resource: kind.plural.to_string(),
            namespace: meta_text(object, "namespace").to_string(),
            name: meta_text(object, "name").to_string(),
            ..Default::default()
        }
    }

    fn context<'c>(&'c self, info: &'c RequestInfo) -> Context<'c> {
        Context {
            info,
            user: &self.user,
            headers: &self.headers,
            now: self.registry.now(),
            options: WriteOptions {
                manager: "orlop".to_string(),
                keep_status: true,
                ..Default::default()
            },
            warnings: &self.warnings,
        }
    }

    pub async fn create(&self, kind: &'static KindDef, object: Value) -> Result<VerbResult, Status> {
        let info = Internal::info("create", kind, &object);
        let ty = schema::schema().get(kind.schema).expect("every kind has a schema");
        let object = schema::from_value(object, ty).map_err(Status::internal)?.value;
        self.registry.create_value(kind, object, &self.context(&info)).await
    }

    /// Creates the object unless it is there.
    pub async fn ensure(&self, kind: &'static KindDef, object: Value) -> Result<(), Status> {
        let key = kinds::key(kind, meta_text(&object, "namespace"), meta_text(&object, "name"));
        if self.registry.store.get(&key).is_some() {
            return Ok(());
        }
        match self.create(kind, object).await {
            Err(status) if status.reason != "AlreadyExists" => Err(status),
            _ => Ok(()),
        }
    }

    /// Creates the object, or brings the named members of the one that is there to what they should be.
    pub async fn ensure_members(&self, kind: &'static KindDef, object: Value, members: &[&str]) -> Result<(), Status> {
        let (namespace, name) = (meta_text(&object, "namespace"), meta_text(&object, "name"));
        if self.registry.store.get(&kinds::key(kind, namespace, name)).is_none() {
            return self.ensure(kind, object).await;
        }
        let info = Internal::info("update", kind, &object);
        let desired = |old: &Value| -> Result<Value, Status> {
            let mut new = old.clone();
            for member in members {
                new[*member] = object[*member].clone();
            }
            Ok(new)
        };
        self.registry
            .change(kind, &Endpoint::MAIN, &self.context(&info), &desired)
            .await
            .map(|_| ())
    }

    /// Writes the status that `desired` makes of the stored object.
    pub async fn change_status(
        &self,
        kind: &'static KindDef,
        namespace: &str,
        name: &str,
        desired: &Desired<'_>,
    ) -> Result<(), Status> {
        self.change(kind, &Endpoint::STATUS, namespace, name, desired).await
    }

    /// Writes what `desired` makes of the stored object, through an endpoint.
    pub async fn change(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        namespace: &str,
        name: &str,
        desired: &Desired<'_>,
    ) -> Result<(), Status> {
        let object = serde_json::json!({"metadata": {"namespace": namespace, "name": name}});
        let info = Internal::info("update", kind, &object);
        self.registry
            .change(kind, endpoint, &self.context(&info), desired)
            .await
            .map(|_| ())
    }

    pub async fn delete(&self, kind: &'static KindDef, namespace: &str, name: &str) -> Result<(), Status> {
        let object = serde_json::json!({"metadata": {"namespace": namespace, "name": name}});
        let info = Internal::info("delete", kind, &object);
        let options = Default::default();
        self.registry
            .delete_named(kind, namespace, name, &options, &self.context(&info))
            .await
            .map(|_| ())
    }
}
