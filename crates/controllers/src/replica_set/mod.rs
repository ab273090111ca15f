//! ReplicaSets and ReplicationControllers: as many pods as wanted, of those that the selector matches.
// Upstream: pkg/controller/replicaset (v1.36)

pub(crate) mod plan;
mod rank;

use std::sync::Arc;

use futures::future::join_all;
use orlop_base::Clock;
use orlop_client::Error;

use self::plan::{Failed, Plan};
use crate::objects::replica_set::Replicated;
use crate::objects::{Kind, Pod, ReplicaSet, ReplicationController};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer, status_patch};
use crate::{ownership, pod_template};

pub(crate) const REPLICA_SET: Def = Def {
    name: "replicaset-controller",
    account: "replicaset-controller",
    on_by_default: true,
    start: start::<ReplicaSet>,
};

pub(crate) const REPLICATION_CONTROLLER: Def = Def {
    name: "replicationcontroller-controller",
    account: "replication-controller",
    on_by_default: true,
    start: start::<ReplicationController>,
};

/// What a reconcile did.
#[derive(Default)]
struct Done {
    made: Vec<Pod>,
    deleted: Vec<Arc<Pod>>,
    failed: Option<Failed>,
}

struct Controller<R: Kind> {
    sets: Cache<R>,
    pods: Cache<Pod>,
    recorder: Recorder,
    clock: Clock,
}

fn start<R: Replicated>(setup: &Setup) {
    let queue = setup.queue(R::KIND.to_lowercase().as_str());
    let (sets, pods) = (setup.cache::<R>(), setup.cache::<Pod>());
    queue.follow(&sets);
    ownership::wake_owners(&queue, &sets, &pods, |set: &R, pod| {
        set.selector().is_some_and(|s| ownership::matches(&s, pod))
    });
    let (recorder, clock) = (setup.recorder.clone(), setup.clock.clone());
    setup.run(
        queue,
        setup.settings.concurrent_syncs,
        Controller {
            sets,
            pods,
            recorder,
            clock,
        },
    );
}

impl<R: Replicated> Reconcile for Controller<R> {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(set) = self.sets.at(key) else {
            return Ok(Next::Done);
        };
        let selector = set.selector();
        let pods = ownership::claim_where(writer, &*set, selector.as_ref(), &self.pods, Pod::is_active).await?;
        let now = self.clock.now();
        let plan = match set.meta().is_deleted() {
            true => Plan::Nothing,
            false => plan::plan(&*set, &pods, || self.related_pods(&set), now),
        };
        let Done { made, deleted, failed } = self.apply(writer, &set, plan).await;
        let pods = plan::pods_after(pods, &deleted, made, now);
        let now = self.clock.now();
        let status = plan::status(&*set, &pods, failed.as_ref(), now);
        if status != *set.status() {
            writer
                .patch_status::<R>(set.meta(), &status_patch(set.meta(), &status))
                .await?;
        }
        match failed {
            Some(Failed { error, .. }) => Err(error.into()),
            _ => Ok(plan::next_look(&*set, &pods, now)),
        }
    }
}

impl<R: Replicated> Controller<R> {
    /// Pods of all sets with the same owner: of a Deployment's old and new ones.
    fn related_pods(&self, set: &R) -> Vec<Arc<Pod>> {
        let meta = set.meta();
        let Some(owner) = meta.controller() else {
            return self.pods.owned_by(&meta.namespace, &meta.uid);
        };
        let siblings = self.sets.owned_by(&meta.namespace, &owner.uid);
        siblings
            .iter()
            .flat_map(|set| self.pods.owned_by(&meta.namespace, &set.meta().uid))
            .collect()
    }

    async fn apply(&self, writer: &Writer, set: &R, plan: Plan) -> Done {
        match plan {
            Plan::Nothing => Done::default(),
            Plan::Create(count) => self.create(writer, set, count).await,
            Plan::Delete(pods) => self.delete(writer, set, pods).await,
        }
    }

    /// In batches that double as long as all goes well, so that a quota or a bad template costs a few requests, not hundreds.
    async fn create(&self, writer: &Writer, set: &R, count: usize) -> Done {
        let mut done = Done::default();
        let body = pod_template::encoded(&pod_template::pod(set, &set.spec().template));
        let namespace = &set.meta().namespace;
        let (mut left, mut batch) = (count, 1);
        while left > 0 {
            let size = batch.min(left);
            let made = join_all((0..size).map(|_| writer.create_encoded::<Pod>(namespace, body.clone()))).await;
            let mut failed = None;
            for made in made {
                match made {
                    Ok(pod) => {
                        self.recorder
                            .normal(set, "SuccessfulCreate", format!("Created pod: {}", pod.metadata.name));
                        done.made.push(pod);
                    }
                    // Nothing more can come to life here; its end will come to us.
                    Err(Error::Forbidden(status)) if ownership::is_terminating(&status) => return done,
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                self.recorder
                    .warning(set, "FailedCreate", format!("Error creating: {error}"));
                done.failed = Some(Failed {
                    reason: "FailedCreate",
                    error,
                });
                return done;
            }
            left -= size;
            batch *= 2;
        }
        done
    }

    async fn delete(&self, writer: &Writer, set: &R, pods: Vec<Arc<Pod>>) -> Done {
        let gone = join_all(pods.iter().map(|pod| writer.delete::<Pod>(&pod.metadata))).await;
        let mut done = Done::default();
        for (pod, gone) in pods.into_iter().zip(gone) {
            let name = &pod.metadata.name;
            match gone {
                Ok(()) => {
                    self.recorder
                        .normal(set, "SuccessfulDelete", format!("Deleted pod: {name}"));
                    done.deleted.push(pod);
                }
                Err(Error::NotFound(_)) => {}
                Err(error) => {
                    self.recorder
                        .warning(set, "FailedDelete", format!("Error deleting: {error}"));
                    done.failed = Some(Failed {
                        reason: "FailedDelete",
                        error,
                    });
                }
            }
        }
        done
    }
}

#[cfg(test)]
mod tests;
