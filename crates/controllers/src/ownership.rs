//! Who manages which objects: a controller takes objects that its selector matches and nobody manages, and lets go of those
//! that it manages but no longer matches.
// Upstream: pkg/controller/controller_ref_manager.go

use std::sync::Arc;

use orlop_api::selector::LabelSelector;
use orlop_client::{Error, Result};
use serde_json::{Value, json};

use crate::objects::{Kind, Meta, OwnerReference};
use crate::runtime::{Cache, Key, ReconcileError, WorkQueue, Writer};

/// The reference that a managing owner leaves on what it manages.
pub(crate) fn controller_reference<O: Kind>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::API_VERSION.to_string(),
        kind: O::KIND.to_string(),
        name: owner.meta().name.clone(),
        uid: owner.meta().uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What is to be done with the objects that an owner manages or could manage.
pub(crate) struct Claims<T> {
    /// Managed by the owner, and matching.
    pub kept: Vec<Arc<T>>,
    /// Matching, managed by nobody.
    pub adopted: Vec<Arc<T>>,
    /// Managed by the owner, no longer matching.
    pub released: Vec<Arc<T>>,
}

pub(crate) fn matches(selector: &LabelSelector, meta: &Meta) -> bool {
    selector.matches(|key| meta.label(key))
}

/// `managed`: what the owner manages. `free`: what nobody does.
pub(crate) fn plan_claims<T: Kind>(
    owner_is_deleted: bool,
    selector: &LabelSelector,
    managed: Vec<Arc<T>>,
    free: Vec<Arc<T>>,
) -> Claims<T> {
    let (kept, mut released): (Vec<_>, Vec<_>) =
        managed.into_iter().partition(|object| matches(selector, object.meta()));
    let mut adopted = free;
    // An owner on its way out neither takes nor lets go: the garbage collector has the word.
    adopted.retain(|o| !owner_is_deleted && !o.meta().is_deleted() && matches(selector, o.meta()));
    if owner_is_deleted {
        released.clear();
    }
    Claims {
        kept,
        adopted,
        released,
    }
}

/// The objects that the owner manages, after taking and letting go of what it must. `selector` none: it manages nothing.
pub(crate) async fn claim<O: Kind, T: Kind>(
    writer: &Writer,
    owner: &O,
    selector: Option<&LabelSelector>,
    cache: &Cache<T>,
) -> std::result::Result<Vec<Arc<T>>, ReconcileError> {
    claim_objects(writer, owner, selector, cache, "", |_| true).await
}

/// Like `claim`; what is taken also gets the finalizer, and what is let go of loses it.
pub(crate) async fn claim_with_finalizer<O: Kind, T: Kind>(
    writer: &Writer,
    owner: &O,
    selector: Option<&LabelSelector>,
    cache: &Cache<T>,
    finalizer: &str,
) -> std::result::Result<Vec<Arc<T>>, ReconcileError> {
    claim_objects(writer, owner, selector, cache, finalizer, |_| true).await
}

/// Like `claim`, but takes and lets go only of what `counts`; of the rest, what the owner manages is among the answer.
pub(crate) async fn claim_where<O: Kind, T: Kind>(
    writer: &Writer,
    owner: &O,
    selector: Option<&LabelSelector>,
    cache: &Cache<T>,
    counts: impl Fn(&T) -> bool,
) -> std::result::Result<Vec<Arc<T>>, ReconcileError> {
    claim_objects(writer, owner, selector, cache, "", counts).await
}

async fn claim_objects<O: Kind, T: Kind>(
    writer: &Writer,
    owner: &O,
    selector: Option<&LabelSelector>,
    cache: &Cache<T>,
    finalizer: &str,
    counts: impl Fn(&T) -> bool,
) -> std::result::Result<Vec<Arc<T>>, ReconcileError> {
    let meta = owner.meta();
    let managed = cache.owned_by(&meta.namespace, &meta.uid);
    let Some(selector) = selector else { return Ok(managed) };
    let mut free = cache.owned_by(&meta.namespace, "");
    free.retain(|object| counts(object));
    let mut claims = plan_claims(meta.is_deleted(), selector, managed, free);
    claims.released.retain(|object| counts(object));
    let mut all = claims.kept;
    if !claims.adopted.is_empty() {
        // The cache may be behind: an owner that is being deleted, or gone, must not take anything any more.
        still_there(writer, owner).await?;
    }
    for object in claims.adopted {
        if adopt::<O, T>(writer, owner, object.meta(), finalizer).await? {
            all.push(object);
        }
    }
    for object in claims.released {
        release::<T>(writer, &meta.uid, object.meta(), finalizer).await?;
    }
    Ok(all)
}

async fn still_there<O: Kind>(writer: &Writer, owner: &O) -> std::result::Result<(), ReconcileError> {
    let meta = owner.meta();
    let at = orlop_client::path::object(O::API_VERSION, Some(&meta.namespace), O::RESOURCE, &meta.name);
    let now: O = writer.api().get(&at).await?;
    match now.meta().uid == meta.uid && !now.meta().is_deleted() {
        true => Ok(()),
        false => Err(ReconcileError::NotYet(format!(
            "{} {} is being deleted",
            O::KIND,
            meta.name
        ))),
    }
}

/// False if the object has gone in the meantime.
async fn adopt<O: Kind, T: Kind>(writer: &Writer, owner: &O, meta: &Meta, finalizer: &str) -> Result<bool> {
    let mut owners: Vec<Value> = meta.owner_references.iter().map(|o| json!(o)).collect();
    owners.push(json!(controller_reference(owner)));
    let mut patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
    }});
    if !finalizer.is_empty() && !meta.has_finalizer(finalizer) {
        let all: Vec<&str> = meta.finalizers.iter().map(String::as_str).chain([finalizer]).collect();
        patch["metadata"]["finalizers"] = json!(all);
    }
    match writer.patch::<T>(meta, &patch).await {
        Ok(_) => Ok(true),
        Err(Error::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn release<T: Kind>(writer: &Writer, owner_uid: &str, meta: &Meta, finalizer: &str) -> Result<()> {
    let owners: Vec<&OwnerReference> = meta.owner_references.iter().filter(|o| o.uid != owner_uid).collect();
    let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
    let mut patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
    }});
    if meta.has_finalizer(finalizer) {
        let left: Vec<&String> = meta.finalizers.iter().filter(|f| *f != finalizer).collect();
        patch["metadata"]["finalizers"] = if left.is_empty() { Value::Null } else { json!(left) };
    }
    match writer.patch::<T>(meta, &patch).await {
        Ok(_) | Err(Error::NotFound(_) | Error::Invalid(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Keeps a queue of owners awake: when one of `owned` changes, its managing owner is queued; if nobody manages it, that of
/// all owners in its namespace that `might_adopt` it.
pub(crate) fn wake_owners<O: Kind, T: Kind>(
    queue: &WorkQueue,
    owners: &Cache<O>,
    owned: &Cache<T>,
    might_adopt: impl Fn(&O, &Meta) -> bool + Send + Sync + 'static,
) {
    let (queue, owners) = (queue.clone(), owners.clone());
    owned.on_change(move |old, new| {
        let adopters = |object: &Meta| {
            let all = owners.list_in(&object.namespace).into_iter();
            all.filter(|owner| might_adopt(owner, object))
                .map(|owner| Key::from_object(&*owner))
                .collect()
        };
        owners_to_wake::<O, T>(old, new, |key| queue.add(key), adopters);
    });
}

/// Says which keys to queue when an object changes: its managing owner's (of kind `O`), before and after the change, and
/// if nobody manages it, those that `might_adopt` names.
pub(crate) fn owners_to_wake<O: Kind, T: Kind>(
    old: Option<&Arc<T>>,
    new: Option<&Arc<T>>,
    mut wake: impl FnMut(Key),
    might_adopt: impl FnOnce(&Meta) -> Vec<Key>,
) {
    let owner = |object: Option<&Arc<T>>| {
        let meta = object?.meta();
        let owner = meta
            .controller()
            .filter(|owner| owner.kind == O::KIND && same_group(&owner.api_version, O::API_VERSION))?;
        Some(Key::new(&*meta.namespace, &*owner.name))
    };
    let (before, after) = (owner(old), owner(new));
    if before != after
        && let Some(key) = before
    {
        wake(key);
    }
    match (after, new) {
        (Some(key), _) => wake(key),
        (None, Some(new)) if new.meta().controller().is_none() && !new.meta().is_deleted() => {
            might_adopt(new.meta()).into_iter().for_each(wake);
        }
        _ => {}
    }
}

fn same_group(a: &str, b: &str) -> bool {
    let group = |v: &str| v.split_once('/').map_or(String::new(), |(group, _)| group.to_string());
    group(a) == group(b)
}

/// Whether something was refused because its namespace is on its way out: nothing more can come to life there.
/// Upstream: the cause `NamespaceTerminating` of a refusal.
pub(crate) fn is_terminating(status: &orlop_client::Status) -> bool {
    let mut causes = status.details.causes.iter();
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}
