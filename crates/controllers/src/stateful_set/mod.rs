//! StatefulSets: pods with names that stay, made and deleted in order, each with claims of its own.
// Upstream: pkg/controller/statefulset (v1.36)

mod identity;
mod plan;
mod retention;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::join_all;
use orlop_base::Clock;
use orlop_client::Error;
use serde_json::json;

use self::plan::{Claims, Plan, PodAction, Step, View, Which};
use crate::objects::{ControllerRevision, Meta, OwnerReference, PersistentVolumeClaim, Pod, StatefulSet};
use crate::revisions::{self, DesiredRevision, Ensured};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, precondition,
    status_patch,
};
use crate::{ownership, pod_template};

/// On revisions: the hash in their name.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// Pods worked on at the same time at most. Upstream: MaxBatchSize.
const BATCH_MAX: usize = 500;

pub(crate) const DEF: Def = Def {
    name: "statefulset-controller",
    account: "statefulset-controller",
    on_by_default: true,
    start,
};

struct Controller {
    sets: Cache<StatefulSet>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    revisions: Cache<ControllerRevision>,
    recorder: Recorder,
    clock: Clock,
}

/// The revision that pods were made from, and the one that they are to be made from.
struct Revisions {
    current: Arc<ControllerRevision>,
    update: Arc<ControllerRevision>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("statefulset");
    let controller = Controller {
        sets: setup.cache(),
        pods: setup.cache(),
        claims: setup.cache(),
        revisions: setup.cache(),
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
    };
    queue.follow(&controller.sets);
    ownership::wake_owners(&queue, &controller.sets, &controller.pods, belongs);
    ownership::wake_owners(&queue, &controller.sets, &controller.revisions, |_, _| false);
    let (wake, known) = (queue.clone(), controller.sets.clone());
    controller.claims.on_change(move |old, new| {
        // A pod may wait for a claim to go, or lack one that went.
        let (Some(gone), None) = (old, new) else { return };
        let sets = known.list_in(&gone.metadata.namespace);
        for set in sets.iter().filter(|set| is_claim_of(set, &gone.metadata.name)) {
            wake.add(Key::from_object(&**set));
        }
    });
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// By its labels and its name.
fn belongs(set: &StatefulSet, pod: &Meta) -> bool {
    identity::ordinal(&set.metadata.name, &pod.name).is_some()
        && set
            .selector()
            .is_some_and(|selector| ownership::matches(&selector, pod))
}

fn is_claim_of(set: &StatefulSet, claim: &str) -> bool {
    let mut templates = set.spec.volume_claim_templates.iter();
    templates.any(|template| {
        let volume = template["metadata"]["name"].as_str().unwrap_or_default();
        let of_volume = claim.strip_prefix(volume).and_then(|rest| rest.strip_prefix('-'));
        of_volume.is_some_and(|pod| identity::ordinal(&set.metadata.name, pod).is_some())
    })
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(set) = self.sets.at(key) else {
            return Ok(Next::Done);
        };
        let Some(selector) = set.selector() else {
            return Ok(Next::Done);
        };
        let named = |pod: &Pod| identity::ordinal(&set.metadata.name, &pod.metadata.name).is_some();
        let pods = ownership::claim_where(writer, &*set, Some(&selector), &self.pods, named).await?;
        let mut history = ownership::claim(writer, &*set, Some(&selector), &self.revisions).await?;
        revisions::sort(&mut history);
        let Some(revisions) = self.present_revisions(writer, &set, &history).await? else {
            return Ok(Next::Done);
        };
        let view = View {
            set: &set,
            current: &revisions.current.metadata.name,
            update: &revisions.update.metadata.name,
            pods: &pods,
            claim: &|name| self.claims.get(&set.metadata.namespace, name),
            now: self.clock.now(),
        };
        let (plan, forget) = (plan::plan(&view), plan::revisions_to_forget(&view, &history));
        let done = self.apply(writer, &set, &revisions, &plan).await;
        if plan.status != set.status {
            writer
                .patch_status::<StatefulSet>(&set.metadata, &status_patch(&set.metadata, &plan.status))
                .await?;
        }
        done?;
        revisions::delete(writer, &forget).await?;
        Ok(plan.look_again.map_or(Next::Done, Next::After))
    }
}

impl Controller {
    /// None: a name was taken, which the set's status now says; that wakes the set again.
    async fn present_revisions(
        &self,
        writer: &Writer,
        set: &StatefulSet,
        history: &[Arc<ControllerRevision>],
    ) -> Result<Option<Revisions>, ReconcileError> {
        let find = |name: &str| history.iter().find(|r| r.metadata.name == name).cloned();
        let status = &set.status;
        if set.metadata.is_deleted() {
            // Nothing is made any more, revisions neither.
            let update = find(&status.update_revision);
            return Ok(update.map(|update| Revisions {
                current: find(&status.current_revision).unwrap_or_else(|| update.clone()),
                update,
            }));
        }
        let patch = revisions::patch_of(&set.spec.template);
        let labels = &set.spec.template["metadata"]["labels"];
        let wanted = DesiredRevision {
            patch: &patch,
            template_labels: serde_json::from_value(labels.clone()).unwrap_or_default(),
            hash_label: HASH_LABEL,
            probe: Some(status.collision_count.unwrap_or(0)),
        };
        match revisions::ensure(writer, set, history, &wanted).await? {
            Ensured::There(update) => Ok(Some(Revisions {
                current: find(&status.current_revision).unwrap_or_else(|| update.clone()),
                update,
            })),
            Ensured::NameTaken => {
                let patch = revisions::count_collision(&set.metadata, status.collision_count);
                writer.patch_status::<StatefulSet>(&set.metadata, &patch).await?;
                Ok(None)
            }
        }
    }

    /// A phase that does not get through stops those after it.
    async fn apply(
        &self,
        writer: &Writer,
        set: &StatefulSet,
        revisions: &Revisions,
        plan: &Plan,
    ) -> Result<(), ReconcileError> {
        for phase in &plan.phases {
            // In batches that double as long as all goes well. In order there is little in a phase, and one after the other.
            let most = if set.spec.pod_management_policy == "Parallel" {
                BATCH_MAX
            } else {
                1
            };
            let (mut left, mut batch) = (phase.as_slice(), 1);
            while !left.is_empty() {
                let (now, later) = left.split_at(batch.min(left.len()));
                let done = join_all(now.iter().map(|step| self.take(writer, set, revisions, step))).await;
                done.into_iter().collect::<Result<Vec<()>, ReconcileError>>()?;
                (left, batch) = (later, (batch * 2).min(most));
            }
        }
        Ok(())
    }

    async fn take(
        &self,
        writer: &Writer,
        set: &StatefulSet,
        revisions: &Revisions,
        step: &Step,
    ) -> Result<(), ReconcileError> {
        let name = identity::pod_name(set, step.ordinal);
        let (verb, done) = match &step.act {
            PodAction::Nothing => return self.settle_claims(writer, set, step).await,
            PodAction::Create(which) => {
                let revision = match which {
                    Which::Current => &revisions.current,
                    Which::Update => &revisions.update,
                };
                ("Create", self.create(writer, set, step, revision).await)
            }
            PodAction::Delete(pod) => match writer.delete::<Pod>(&pod.metadata).await {
                Err(Error::NotFound(_)) => return Ok(()),
                done => ("Delete", done.map_err(ReconcileError::from)),
            },
            PodAction::Label(pod) => {
                self.settle_claims(writer, set, step).await?;
                let patch = identity::label_patch(pod, step.ordinal);
                let labelled = writer.patch::<Pod>(&pod.metadata, &patch).await;
                ("Update", labelled.map(|_| ()).map_err(ReconcileError::from))
            }
            PodAction::LacksStorage => {
                let why = "the pod lacks volumes for its claims".to_string();
                ("Update", Err(ReconcileError::NotYet(why)))
            }
        };
        match &done {
            // Somebody was faster; the next reconcile sees it.
            Err(ReconcileError::Api(Error::AlreadyExists(_) | Error::Conflict(_))) => {}
            // Nothing more can come to life here; the end of it all will come to us.
            Err(ReconcileError::Api(Error::Forbidden(status))) if pod_template::is_namespace_ending(status) => {
                return Ok(());
            }
            Ok(()) => {
                let note = format!("{verb} Pod {name} in StatefulSet {} successful", set.metadata.name);
                self.recorder.normal(set, format!("Successful{verb}"), note);
            }
            Err(error) => {
                let note = format!(
                    "{verb} Pod {name} in StatefulSet {} failed error: {error}",
                    set.metadata.name
                );
                self.recorder.warning(set, format!("Failed{verb}"), note);
            }
        }
        done
    }

    async fn create(
        &self,
        writer: &Writer,
        set: &StatefulSet,
        step: &Step,
        revision: &ControllerRevision,
    ) -> Result<(), ReconcileError> {
        if let Some(claim) = &step.claims.leaving {
            return Err(ReconcileError::NotYet(format!("pvc {claim} is being deleted")));
        }
        self.settle_claims(writer, set, step).await?;
        let template = revisions::template_in(revision);
        let pod = identity::pod(set, step.ordinal, template, &revision.metadata.name);
        writer.create::<Pod>(&set.metadata.namespace, &pod).await?;
        Ok(())
    }

    /// Makes the claims that are missing, and gives those that are there the owners they should have.
    async fn settle_claims(&self, writer: &Writer, set: &StatefulSet, step: &Step) -> Result<(), ReconcileError> {
        let Claims {
            create,
            owners,
            conflicts,
            ..
        } = &step.claims;
        for (template, owners) in create {
            self.create_claim(writer, set, step.ordinal, *template, owners).await?;
        }
        for claim in conflicts {
            let note = format!(
                "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging controller, the \
                 retention policy is ignored for this claim"
            );
            self.recorder.warning(set, "ConflictingController", note);
        }
        for (claim, owners) in owners {
            let mut patch = json!({"metadata": precondition(&claim.metadata)});
            patch["metadata"]["ownerReferences"] = json!(owners);
            writer.patch::<PersistentVolumeClaim>(&claim.metadata, &patch).await?;
        }
        Ok(())
    }

    async fn create_claim(
        &self,
        writer: &Writer,
        set: &StatefulSet,
        ordinal: i64,
        template: usize,
        owners: &[OwnerReference],
    ) -> Result<(), ReconcileError> {
        let mut claim = identity::claim(set, ordinal, template);
        if !owners.is_empty() {
            claim["metadata"]["ownerReferences"] = json!(owners);
        }
        let made = writer
            .create::<PersistentVolumeClaim>(&set.metadata.namespace, &claim)
            .await;
        let (name, pod) = (
            claim["metadata"]["name"].as_str().unwrap_or_default(),
            identity::pod_name(set, ordinal),
        );
        match made {
            Ok(_) => {
                let note = format!(
                    "Create Claim {name} Pod {pod} in StatefulSet {} success",
                    set.metadata.name
                );
                self.recorder.normal(set, "SuccessfulCreate", note);
                Ok(())
            }
            Err(error) => {
                if !matches!(error, Error::AlreadyExists(_)) {
                    let note = format!(
                        "Create Claim {name} for Pod {pod} in StatefulSet {} failed error: {error}",
                        set.metadata.name
                    );
                    self.recorder.warning(set, "FailedCreate", note);
                }
                Err(error.into())
            }
        }
    }
}
