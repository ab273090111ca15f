//! A desk at which plugins are tested: a cluster in memory, a user, and the requests of that user as plugins see them.

use jiff::Timestamp;
use orlop_api::{Status, Value};
use serde_json::json;

use super::{Change, Operation, Plugin, Review};
use crate::admission::DynamicAdmission;
use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::config::Config;
use crate::custom::Kinds;
use crate::kinds;
use crate::lookup::fixture::Objects;
use crate::lookup::text;
use crate::registry::Warnings;
use crate::request::RequestInfo;

pub(super) struct Desk {
    pub objects: Objects,
    pub user: UserInfo,
    pub now: Timestamp,
    pub config: Config,
    authorizer: Authorizer,
    warnings: Warnings,
    request: RequestInfo,
    dynamic: DynamicAdmission,
    kinds: Kinds,
}

impl Desk {
    /// An administrator in a cluster with the namespace `ns` and its default service account.
    pub(super) fn new() -> Desk {
        Desk {
            objects: Objects::default()
                .with("namespaces", json!({"metadata": {"name": "ns"}}))
                .with(
                    "serviceaccounts",
                    json!({"metadata": {"name": "default", "namespace": "ns", "uid": "sa-uid"}}),
                ),
            user: UserInfo::new("admin", &["system:masters"]),
            now: "2026-11-15T12:00:00Z".parse().unwrap(),
            config: Config::new("/nowhere".into()),
            authorizer: Authorizer::default(),
            warnings: Warnings::default(),
            request: RequestInfo::default(),
            dynamic: DynamicAdmission::default(),
            kinds: Kinds::default(),
        }
    }

    /// Adds an object of the cluster.
    pub(super) fn with(self, resource: &str, object: Value) -> Desk {
        self.objects.put(resource, object);
        self
    }

    pub(super) fn user(self, name: &str, groups: &[&str]) -> Desk {
        Desk {
            user: UserInfo::new(name, groups),
            ..self
        }
    }

    /// The warnings since this was last asked.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// `what` is a resource, "deployments.apps", or a subresource, "pods/status".
    pub(super) fn review<'r>(&'r self, operation: Operation, what: &'r str, object: &Value) -> Review<'r> {
        let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
        let kind = kinds::of_stored(resource).unwrap();
        let namespace = match text(object, &["metadata", "namespace"]) {
            "" if kind.namespaced => "ns",
            given => given,
        };
        Review {
            operation,
            kind,
            subresource,
            namespace: namespace.to_string(),
            name: text(object, &["metadata", "name"]).to_string(),
            name_prefix: String::new(),
            user: &self.user,
            dry_run: false,
            now: self.now,
            lookup: &self.objects,
            config: &self.config,
            authorizer: &self.authorizer,
            warnings: &self.warnings,
            request: &self.request,
            delete: None,
            dynamic: &self.dynamic,
            kinds: &self.kinds,
            conversions: Default::default(),
        }
    }

    /// The object as the plugin leaves it.
    pub(super) fn create(&self, plugin: &Plugin, what: &str, object: Value) -> Result<Value, Status> {
        self.put(plugin, Operation::Create, what, object, None)
    }

    pub(super) fn update(&self, plugin: &Plugin, what: &str, new: Value, old: Value) -> Result<Value, Status> {
        self.put(plugin, Operation::Update, what, new, Some(&old))
    }

    fn put(
        &self,
        plugin: &Plugin,
        operation: Operation,
        what: &str,
        mut object: Value,
        old: Option<&Value>,
    ) -> Result<Value, Status> {
        let review = self.review(operation, what, old.unwrap_or(&object));
        if let Some(mutate) = plugin.mutate {
            mutate(&review, &mut object, old)?;
        }
        if let Some(validate) = plugin.validate {
            validate(&review, Some(&object), old)?;
        }
        Ok(object)
    }

    pub(super) fn delete(&self, plugin: &Plugin, what: &str, old: Value) -> Result<Vec<Change>, Status> {
        let review = self.review(Operation::Delete, what, &old);
        match plugin.validate {
            Some(validate) => validate(&review, None, Some(&old)),
            None => Ok(vec![]),
        }
    }
}

/// The message of a refusal, or "ok".
pub(super) fn told<T>(result: Result<T, Status>) -> String {
    match result {
        Ok(_) => "ok".to_string(),
        Err(status) => status.message,
    }
}

/// `base` with the members of `changes` put over it, as a merge patch does it.
pub(super) fn with(mut base: Value, changes: Value) -> Value {
    merge(&mut base, changes);
    base
}

fn merge(base: &mut Value, changes: Value) {
    match changes {
        Value::Object(members) => {
            if !base.is_object() {
                *base = json!({});
            }
            for (name, member) in members {
                match member {
                    Value::Null => drop(base.as_object_mut().unwrap().remove(&name)),
                    member => merge(&mut base[name.as_str()], member),
                }
            }
        }
        other => *base = other,
    }
}
