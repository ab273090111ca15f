//! Pods that no Job counts any more, but that still hold the tracking finalizer: it is taken from them, or they could never
//! go.

use std::sync::Arc;

use orlop_client::{Error, path};
use serde_json::json;

use super::view::FINALIZER;
use crate::objects::{Job, Kind, OwnerReference, Pod};
use crate::runtime::{Cache, Key, Next, Reconcile, ReconcileResult, WorkQueue, Writer};

pub(super) struct Orphans {
    pub jobs: Cache<Job>,
    pub pods: Cache<Pod>,
}

/// Whom a pod belongs to, as far as counting goes.
enum Owner<'a> {
    Nobody,
    Job(&'a OwnerReference),
    SomebodyElse,
}

fn owner(pod: &Pod) -> Owner<'_> {
    match pod.metadata.controller() {
        None => Owner::Nobody,
        Some(owner) if owner.kind == Job::KIND && owner.api_version == Job::API_VERSION => Owner::Job(owner),
        Some(_) => Owner::SomebodyElse,
    }
}

/// Puts pods into the queue that may have lost their Job.
pub(super) fn watch(jobs: &Cache<Job>, pods: &Cache<Pod>, queue: &WorkQueue) {
    let (wake, known) = (queue.clone(), jobs.clone());
    pods.on_change(move |_, new| {
        let Some(pod) = new.filter(|pod| pod.metadata.has_finalizer(FINALIZER)) else {
            return;
        };
        let is_orphan = match owner(pod) {
            Owner::Nobody => true,
            Owner::Job(owner) => {
                let job = known.get(&pod.metadata.namespace, &owner.name);
                job.is_none_or(|job| job.metadata.uid != owner.uid || job.is_finished())
            }
            Owner::SomebodyElse => false,
        };
        if is_orphan {
            wake.add(Key::from_object(&**pod));
        }
    });
    let (wake, pods) = (queue.clone(), pods.clone());
    jobs.on_change(move |old: Option<&Arc<Job>>, new| {
        let was = old.is_some_and(|job| job.is_finished());
        let Some(job) = new.or(old) else { return };
        if new.is_none() || (job.is_finished() && !was) {
            let left = pods.owned_by(&job.metadata.namespace, &job.metadata.uid);
            for pod in left.iter().filter(|pod| pod.metadata.has_finalizer(FINALIZER)) {
                wake.add(Key::from_object(&**pod));
            }
        }
    });
}

impl Reconcile for Orphans {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(pod) = self.pods.at(key).filter(|pod| pod.metadata.has_finalizer(FINALIZER)) else {
            return Ok(Next::Done);
        };
        let orphaned = match owner(&pod) {
            Owner::Nobody => true,
            Owner::SomebodyElse => false,
            Owner::Job(owner) => self.has_lost_its_job(writer, &pod, owner).await?,
        };
        if orphaned {
            // Only as it was seen: somebody may adopt it just now.
            let meta = &pod.metadata;
            let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version,
                "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
            match writer.patch_strategic::<Pod>(meta, &patch).await {
                Ok(_) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Next::Done)
    }
}

impl Orphans {
    async fn has_lost_its_job(&self, writer: &Writer, pod: &Pod, owner: &OwnerReference) -> Result<bool, Error> {
        let namespace = &pod.metadata.namespace;
        if let Some(job) = self.jobs.get(namespace, &owner.name)
            && job.metadata.uid == owner.uid
        {
            return Ok(!job.is_managed_elsewhere() && job.is_finished());
        }
        if pod.metadata.is_deleted() {
            return Ok(true);
        }
        // The two caches may be at different points in time: the pod's Job may be too new for ours.
        let at = path::object(Job::API_VERSION, Some(namespace), Job::RESOURCE, &owner.name);
        match writer.api().get::<Job>(&at).await {
            Ok(job) => Ok(job.metadata.uid != owner.uid || (job.is_finished() && !job.is_managed_elsewhere())),
            Err(Error::NotFound(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
