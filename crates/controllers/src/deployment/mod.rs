//! Deployments: pods of one template, replaced step by step by pods of another when it changes.
//!
//! A Deployment has a ReplicaSet for each template it had; rolling out is giving replicas to one and taking them from the
//! others. `sizes` says how many each gets now, `history` what they remember, `status` what is reported.
// Upstream: pkg/controller/deployment (v1.36)

mod history;
pub(crate) mod plan;
pub(crate) mod sets;
mod sizes;
pub(crate) mod status;

use std::sync::Arc;

use orlop_base::Clock;
use orlop_client::{Error, path};
use serde_json::json;

use self::plan::{NewSet, Plan};
use self::sets::Sets;
use self::status::Made;
use crate::objects::{Deployment, Kind, Meta, Pod, ReplicaSet};
use crate::ownership;
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, precondition,
};

pub(crate) const DEF: Def = Def {
    name: "deployment-controller",
    account: "deployment-controller",
    on_by_default: true,
    start,
};

struct Controller {
    deployments: Cache<Deployment>,
    sets: Cache<ReplicaSet>,
    pods: Cache<Pod>,
    recorder: Recorder,
    clock: Clock,
}

fn start(setup: &Setup) {
    let queue = setup.queue("deployment");
    let (deployments, sets, pods) = (
        setup.cache::<Deployment>(),
        setup.cache::<ReplicaSet>(),
        setup.cache::<Pod>(),
    );
    queue.follow(&deployments);
    ownership::wake_owners(&queue, &deployments, &sets, |deployment, set| {
        deployment.selector().is_some_and(|s| ownership::matches(&s, set))
    });
    let (wake, known_sets, known) = (queue.clone(), sets.clone(), deployments.clone());
    pods.on_change(move |old, new| {
        // Only who replaces all at once waits for pods to be gone; the rest is in the sets' status.
        let ended = new.is_none_or(|pod| pod.is_terminal());
        let set = old
            .filter(|_| ended)
            .and_then(|pod| owner::<ReplicaSet>(&known_sets, &pod.metadata));
        let deployment = set.and_then(|set| owner::<Deployment>(&known, &set.metadata));
        if let Some(deployment) = deployment.filter(|d| !d.is_rolling()) {
            wake.add(Key::from_object(&*deployment));
        }
    });
    let (recorder, clock) = (setup.recorder.clone(), setup.clock.clone());
    setup.run(
        queue,
        setup.settings.concurrent_syncs,
        Controller {
            deployments,
            sets,
            pods,
            recorder,
            clock,
        },
    );
}

fn owner<O: Kind>(cache: &Cache<O>, meta: &Meta) -> Option<Arc<O>> {
    let reference = meta.controller().filter(|owner| owner.kind == O::KIND)?;
    let found = cache.get(&meta.namespace, &reference.name)?;
    Some(found).filter(|found| found.meta().uid == reference.uid)
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(deployment) = self.deployments.at(key) else {
            return Ok(Next::Done);
        };
        let Some(selector) = deployment.selector() else {
            return self.refuse_to_select_all(writer, &deployment).await;
        };
        let sets = ownership::claim(writer, &*deployment, Some(&selector), &self.sets).await?;
        let sets = Sets::classify(&deployment, sets);
        let plan = plan::plan(&deployment, &sets, self.old_pods_run(&sets));
        let (made, failed) = self.apply(writer, &deployment, &plan).await;
        match (failed, &made) {
            (Some(failure), Made::Nothing) => Err(failure),
            (Some(failure), _) => {
                self.report(writer, &deployment, &sets, &plan, &made).await?;
                Err(failure)
            }
            (None, _) => self.report(writer, &deployment, &sets, &plan, &made).await,
        }
    }
}

impl Controller {
    async fn refuse_to_select_all(&self, writer: &Writer, deployment: &Deployment) -> ReconcileResult {
        let note = "This deployment is selecting all pods. A non-empty selector is required.";
        self.recorder.warning(deployment, "SelectingAll", note);
        let meta = &deployment.metadata;
        if deployment.status.observed_generation < meta.generation {
            let patch = json!({"metadata": precondition(meta), "status": {"observedGeneration": meta.generation}});
            writer.patch_status::<Deployment>(meta, &patch).await?;
        }
        Ok(Next::Done)
    }

    /// Whether pods of old sets may still run.
    fn old_pods_run(&self, sets: &Sets) -> bool {
        sets.old.iter().any(|set| {
            let pods = self.pods.owned_by(&set.metadata.namespace, &set.metadata.uid);
            pods.iter().any(|pod| !pod.is_terminal())
        })
    }

    /// What could not be done comes again; what was done before it stays.
    async fn apply(&self, writer: &Writer, deployment: &Deployment, plan: &Plan) -> (Made, Option<ReconcileError>) {
        let mut made = Made::Nothing;
        if let Some(new) = &plan.create {
            match self.create(writer, deployment, new).await {
                Ok(done) => made = done,
                Err(failure) => return (made, Some(failure)),
            }
        }
        if let Made::Failed(_, why) = &made {
            let failure = ReconcileError::NotYet(why.clone());
            return (made, Some(failure));
        }
        for update in &plan.updates {
            match writer.patch::<ReplicaSet>(&update.set.metadata, &update.patch()).await {
                Ok(_) => {
                    if let Some(note) = update.described() {
                        self.recorder.normal(deployment, "ScalingReplicaSet", note);
                    }
                }
                Err(error) => return (made, Some(error.into())),
            }
        }
        for set in &plan.deletes {
            match writer.delete::<ReplicaSet>(&set.metadata).await {
                Ok(()) | Err(Error::NotFound(_)) => {}
                Err(error) => return (made, Some(error.into())),
            }
        }
        (made, None)
    }

    async fn create(&self, writer: &Writer, deployment: &Deployment, new: &NewSet) -> Result<Made, ReconcileError> {
        let (namespace, name) = (&deployment.metadata.namespace, &new.name);
        match writer.create::<ReplicaSet>(namespace, &new.body).await {
            Ok(_) => {
                if new.replicas > 0 {
                    let note = format!("Scaled up replica set {name} from 0 to {}", new.replicas);
                    self.recorder.normal(deployment, "ScalingReplicaSet", note);
                }
                Ok(Made::Created(name.clone()))
            }
            Err(Error::AlreadyExists(_)) => self.met(writer, deployment, name).await,
            Err(Error::Forbidden(status)) if ownership::is_terminating(&status) => Ok(Made::Nothing),
            Err(error) => {
                let note = format!("Failed to create new replica set \"{name}\": {error}");
                self.recorder.warning(deployment, "ReplicaSetCreateError", note);
                Ok(Made::Failed(name.clone(), error.to_string()))
            }
        }
    }

    /// A set of that name is there: the very one, made in a reconcile whose end was not seen, or another with the same hash.
    async fn met(&self, writer: &Writer, deployment: &Deployment, name: &str) -> Result<Made, ReconcileError> {
        let meta = &deployment.metadata;
        let at = path::object(
            ReplicaSet::API_VERSION,
            Some(&meta.namespace),
            ReplicaSet::RESOURCE,
            name,
        );
        let there: ReplicaSet = writer.api().get(&at).await?;
        let ours = there.metadata.controller().is_some_and(|owner| owner.uid == meta.uid);
        if ours && sets::same_template(&there.spec.template, &deployment.spec.template) {
            return Err(ReconcileError::NotYet(format!(
                "informer cache has not observed ReplicaSet {name}"
            )));
        }
        let collisions = deployment.status.collision_count.unwrap_or(0) + 1;
        let patch = json!({"metadata": precondition(meta), "status": {"collisionCount": collisions}});
        writer.patch_status::<Deployment>(meta, &patch).await?;
        Err(ReconcileError::NotYet(format!(
            "ReplicaSet name {name} is taken; collisionCount is {collisions}"
        )))
    }

    /// Writes the status and the revision, if they have changed.
    async fn report(
        &self,
        writer: &Writer,
        deployment: &Deployment,
        sets: &Sets,
        plan: &Plan,
        made: &Made,
    ) -> ReconcileResult {
        let now = self.clock.now();
        let meta = &deployment.metadata;
        let status = status::status(deployment, sets, plan.total(sets), made, now);
        let next = status::next_look(deployment, &status, now);
        let revision = match made {
            Made::Created(_) => plan.create.as_ref().map(|new| new.revision.clone()),
            _ => plan.revision(sets),
        };
        let revision = revision.filter(|revision| meta.annotation(history::REVISION) != Some(revision));
        if status == deployment.status && revision.is_none() {
            return Ok(next);
        }
        let mut metadata = precondition(meta);
        if let Some(revision) = revision {
            metadata["annotations"] = json!({history::REVISION: revision});
        }
        let patch = json!({"metadata": metadata, "status": status::written(&status)});
        writer.patch_status::<Deployment>(meta, &patch).await?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests;
