//! The garbage collector: what has owners goes after the last of them, and owners are deleted by their propagation policy: before their
//! dependents (background), after them (foreground), or without them (orphan).
//!
//! `monitors` watches every kind that can be deleted, those that appear later included, and keeps the `graph` of owners and
//! dependents. `plan` says what the graph asks for; here it is done. A delete is sent only for the very state that was
//! judged (preconditions on uid and revision), and an owner counts as absent only if it was seen to go or the API server
//! has just said so.
// Upstream: pkg/controller/garbagecollector (v1.36). Differs in that circles of foreground deletions are found in the graph,
// so that no references need to be changed for them.

mod graph;
mod kinds;
mod monitors;
mod plan;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use orlop_client::{Api, DeleteOptions, Error, Preconditions, Result};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use self::graph::{Coordinates, PartialMeta, PartialObject, Uid};
use self::kinds::Address;
use self::monitors::CollectorState;
use self::plan::{Decision, Item, OwnerState, Plan, Policy};
use crate::runtime::{Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "garbage-collector-controller",
    account: "generic-garbage-collector",
    on_by_default: true,
    start,
};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Dependents of one owner that are let go of at the same time.
const ORPHANS_AT_ONCE: usize = 16;
/// How often a write is tried on the newest state before the key has to come again.
const TRIES: usize = 4;

struct Collector {
    known: Arc<CollectorState>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("garbage_collector_attempt_to_delete");
    let known = Arc::new(CollectorState::new(queue.clone(), setup.recorder.clone()));
    setup.spawn(monitors::run(setup.api.clone(), known.clone(), setup.shutdown.clone()));
    setup.run(queue, setup.settings.concurrent_gc_syncs, Collector { known });
}

/// What the API server says of an object.
enum Live {
    There(Box<PartialMeta>),
    Absent,
    /// It can't be asked for.
    Unknown(Address),
}

impl Reconcile for Collector {
    /// The key's name is a uid.
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let mut ready = self.known.ready.subscribe();
        // The sender lives as long as `known` does.
        let _ = ready.wait_for(|ready| *ready).await;
        let plan = plan::plan(&self.known.graph.lock(), &key.name);
        let api = writer.api();
        match plan {
            Plan::Nothing => Ok(Next::Done),
            Plan::Verify(places) => self.verify(api, &key.name, &places).await,
            Plan::Orphan(item, dependents) => {
                self.orphan(api, &item, dependents).await?;
                self.remove_finalizer(api, &item, ORPHAN).await
            }
            Plan::Release(item) => self.remove_finalizer(api, &item, FOREGROUND).await,
            Plan::Judge(item, verdicts) => self.judge(api, &item, verdicts).await,
        }
    }
}

impl Collector {
    async fn look(&self, api: &Api, uid: &str, coordinates: &Coordinates) -> Result<Live> {
        let address = self.known.kinds.read().address(coordinates);
        let Address::Path(path) = address else {
            return Ok(Live::Unknown(address));
        };
        match api.get::<PartialObject>(&path).await {
            Ok(seen) if seen.metadata.uid == *uid => Ok(Live::There(Box::new(seen.metadata))),
            Ok(_) | Err(Error::NotFound(_)) => Ok(Live::Absent),
            Err(error) => Err(error),
        }
    }

    fn path(&self, coordinates: &Coordinates) -> std::result::Result<String, ReconcileError> {
        match self.known.kinds.read().address(coordinates) {
            Address::Path(path) => Ok(path),
            _ => Err(ReconcileError::NotYet(format!("{coordinates}: resource is not served"))),
        }
    }

    /// Is what somebody refers to there?
    async fn verify(&self, api: &Api, uid: &str, places: &[Coordinates]) -> ReconcileResult {
        let mut waiting = None;
        for coordinates in places {
            match self.look(api, uid, coordinates).await? {
                Live::Absent => self
                    .known
                    .change(|graph, news| graph.mark_absent(uid, coordinates, news)),
                // The watch of its kind will show it. Should it go before that, the next look finds out.
                Live::There(_) => waiting = Some(format!("{coordinates} has not been seen yet")),
                Live::Unknown(Address::NoNamespace) => {
                    tracing::debug!(object = %coordinates, "ignoring owner in a namespace: the object has none");
                }
                Live::Unknown(_) => waiting = Some(format!("{coordinates}: resource is not served")),
            }
        }
        match waiting {
            None => Ok(Next::Done),
            Some(why) => Err(ReconcileError::NotYet(why)),
        }
    }

    async fn judge(&self, api: &Api, item: &Item, mut verdicts: Vec<OwnerState>) -> ReconcileResult {
        for (owner, verdict) in item.owners.iter().zip(&mut verdicts) {
            // An owner that waited may have got another propagation policy since then.
            if !matches!(verdict, OwnerState::Unsure | OwnerState::Waiting) {
                continue;
            }
            let coordinates = owner.coordinates(&item.coordinates);
            *verdict = match self.look(api, &owner.uid, &coordinates).await? {
                Live::There(owner) if owner.marks().waits() => OwnerState::Waiting,
                Live::There(_) => OwnerState::Solid,
                Live::Absent => OwnerState::Dangling,
                // Never to be found. Upstream: what has such an owner is not collected.
                Live::Unknown(Address::NoNamespace) => OwnerState::Solid,
                Live::Unknown(_) => {
                    return Err(ReconcileError::NotYet(format!("{coordinates}: resource is not served")));
                }
            };
        }
        match plan::decide(item, &verdicts) {
            Decision::Keep => Ok(Next::Done),
            Decision::Loosen(owners) => {
                let path = self.path(&item.coordinates)?;
                loosen(api, &path, &item.uid, &owners).await?;
                Ok(Next::Done)
            }
            Decision::Delete(policy) => self.delete(api, item, policy).await,
        }
    }

    /// Deletes the object in the state that was judged; or in a later one, if its owners are still the same.
    async fn delete(&self, api: &Api, item: &Item, policy: Policy) -> ReconcileResult {
        let path = self.path(&item.coordinates)?;
        let mut revision = item.revision.to_string();
        for _ in 0..TRIES {
            let options = DeleteOptions {
                propagation_policy: Some(policy.name()),
                preconditions: Some(Preconditions {
                    uid: Some(item.uid.to_string()),
                    resource_version: Some(revision),
                }),
                ..DeleteOptions::default()
            };
            match api.delete(&path, &options).await {
                Ok(()) => {
                    tracing::debug!(object = %item.coordinates, propagation = policy.name(), "deleted object");
                    return Ok(Next::Done);
                }
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(Error::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let Live::There(live) = self.look(api, &item.uid, &item.coordinates).await? else {
                return Ok(Next::Done);
            };
            if live.deletion_timestamp.is_some() {
                return Ok(Next::Done);
            }
            if !same_owners(item, &live) {
                return Err(ReconcileError::NotYet(format!(
                    "{}: owner references have changed",
                    item.coordinates
                )));
            }
            revision = live.resource_version;
        }
        Err(ReconcileError::NotYet(format!(
            "{}: object kept changing while it was processed",
            item.coordinates
        )))
    }

    async fn orphan(
        &self,
        api: &Api,
        item: &Item,
        dependents: Vec<(Uid, Coordinates)>,
    ) -> std::result::Result<(), ReconcileError> {
        let owner = std::slice::from_ref(&item.uid);
        let mut done = stream::iter(dependents)
            .map(|(uid, coordinates)| async move {
                let path = self.path(&coordinates)?;
                loosen(api, &path, &uid, owner).await.map_err(ReconcileError::from)
            })
            .buffer_unordered(ORPHANS_AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = done.next().await {
            outcome = outcome.and(one);
        }
        outcome
    }

    async fn remove_finalizer(&self, api: &Api, item: &Item, finalizer: &str) -> ReconcileResult {
        let path = self.path(&item.coordinates)?;
        for _ in 0..TRIES {
            let Live::There(live) = self.look(api, &item.uid, &item.coordinates).await? else {
                return Ok(Next::Done);
            };
            let left: Vec<&String> = live.finalizers.iter().filter(|f| *f != finalizer).collect();
            if left.len() == live.finalizers.len() {
                return Ok(Next::Done);
            }
            let left = if left.is_empty() { Value::Null } else { json!(left) };
            let patch = json!({"metadata": {
                "uid": live.uid, "resourceVersion": live.resource_version, "finalizers": left,
            }});
            match api.patch_merge::<IgnoredAny>(&path, &patch).await {
                Ok(_) | Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(Error::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ReconcileError::NotYet(format!(
            "{}: object kept changing while it was processed",
            item.coordinates
        )))
    }
}

fn same_owners(item: &Item, live: &PartialMeta) -> bool {
    let mut pairs = item.owners.iter().zip(&live.owner_references);
    item.owners.len() == live.owner_references.len() && pairs.all(|(owner, live)| graph::is_same(owner, live))
}

/// Takes away an object's references to these owners.
async fn loosen(api: &Api, path: &str, uid: &str, owners: &[Uid]) -> Result<()> {
    let away: Vec<Value> = owners
        .iter()
        .map(|owner| json!({"$patch": "delete", "uid": &**owner}))
        .collect();
    let patch = json!({"metadata": {"uid": uid, "ownerReferences": away}});
    match api.patch_strategic::<IgnoredAny>(path, &patch).await {
        Ok(_) | Err(Error::NotFound(_)) => Ok(()),
        // Custom resources don't know this kind of patch.
        Err(Error::Invalid(status)) if status.code == 415 => loosen_plainly(api, path, uid, owners).await,
        Err(error) => Err(error),
    }
}

async fn loosen_plainly(api: &Api, path: &str, uid: &str, owners: &[Uid]) -> Result<()> {
    let live: Value = match api.get(path).await {
        Err(Error::NotFound(_)) => return Ok(()),
        live => live?,
    };
    let meta = &live["metadata"];
    if meta["uid"] != uid {
        return Ok(());
    }
    let references = meta["ownerReferences"].as_array().into_iter().flatten();
    let is_away = |reference: &&Value| owners.iter().any(|owner| reference["uid"] == **owner);
    let left: Vec<&Value> = references.filter(|reference| !is_away(reference)).collect();
    let left = if left.is_empty() { Value::Null } else { json!(left) };
    let patch = json!({"metadata": {
        "uid": uid, "resourceVersion": meta["resourceVersion"], "ownerReferences": left,
    }});
    match api.patch_merge::<IgnoredAny>(path, &patch).await {
        Ok(_) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
