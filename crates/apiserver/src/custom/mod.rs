//! Custom kinds: rows that CustomResourceDefinitions add to the table of kinds while the server runs.
//!
//! A row is a `KindDef` like the built-in ones and takes the same way through `registry`. It is made once for each kind,
//! version and scope, and stays (a few hundred bytes), so that requests can refer to it for as long as they like. What
//! changes with a definition, its schema above all, is `Served`, behind the row's slot; whoever needs it takes what is
//! current. `table` has the rows, `lifecycle` follows the definitions, `convert` shows stored objects in other versions.

mod convert;
mod discovery;
mod lifecycle;
mod metrics;
mod names;
mod served;
mod table;

use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::patch::apply::ObjectType;
use orlop_api::schema::schema;
use orlop_api::{KindDef, Problems, Value};
use orlop_apiextensions::CustomVersion;
use orlop_apiextensions::names::{CLEANUP_FINALIZER, Cleanup, terminating};
use parking_lot::RwLock;
use serde_json::json;

pub(crate) use convert::Converter;
pub(crate) use discovery::{Shown, kube_aware_order};
pub(crate) use lifecycle::{follow_definitions, load};
pub(crate) use served::Served;
pub(crate) use table::{Kinds, Snapshot};

pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// What a row's `custom` refers to.
pub(crate) struct Slot(RwLock<Arc<Served>>);

/// What is served of a custom kind now; none if the kind is built in.
pub(crate) fn of(kind: &KindDef) -> Option<Arc<Served>> {
    let slot: &Slot = kind
        .custom?
        .downcast_ref()
        .expect("rows of custom kinds refer to a slot");
    Some(slot.0.read().clone())
}

/// The schema of a custom kind; none if the kind is built in, or cannot be served.
pub(crate) fn schema_of(kind: &KindDef) -> Option<Arc<CustomVersion>> {
    of(kind)?.schema().ok()
}

/// Whether it takes a webhook to show objects of the kind in another version.
pub(crate) fn is_converted_by_webhook(kind: &KindDef) -> bool {
    of(kind).is_some_and(|served| served.facts.webhook.is_some())
}

/// What server-side apply has to know of a kind's objects.
pub(crate) fn object_type<'s>(kind: &KindDef, custom: &'s Option<Arc<CustomVersion>>) -> ObjectType<'s> {
    match custom {
        Some(version) => version.object_type(),
        None => schema().get(kind.schema).into(),
    }
}

/// The rest of validation: what the schema says. `old` is the stored object, if there is one.
pub(crate) fn validate(kind: &KindDef, new: &Value, old: Option<&Value>, subresource: &str, problems: &mut Problems) {
    if let Some(version) = schema_of(kind) {
        version.validate(new, old, subresource, problems);
    }
}

/// What OpenAPI documents call a list of the kind.
pub(crate) fn list_definition(kind: &KindDef) -> &'static str {
    let list_kind = of(kind).map_or_else(|| format!("{}List", kind.kind), |served| served.facts.list_kind.clone());
    names::kept(&names::definition(kind.group, kind.version, &list_kind))
}

/// A deleted definition stays until its objects are gone.
// Upstream: apiextensions-apiserver pkg/registry/customresourcedefinition/etcd.go (Delete)
pub(crate) fn prepare_delete(definition: &mut Value, now: Timestamp) {
    let Some(metadata) = definition["metadata"].as_object_mut() else {
        return;
    };
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == CLEANUP_FINALIZER)
    {
        list.push(CLEANUP_FINALIZER.into());
    }
    definition["status"] = terminating(definition, Cleanup::Pending, "", now);
}
