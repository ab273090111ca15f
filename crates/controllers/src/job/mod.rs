//! Jobs: pods that run to their end, as many as wanted, each counted once.
//!
//! A reconcile looks at the Job and its pods (`view`), decides what to do (`plan`), does it, and then does the counting
//! (`tracking`) in writes that can be taken up again after each of them. `orphans` is a second queue, of pods that lost
//! their Job.
// Upstream: pkg/controller/job (v1.36)

mod backoff;
mod indexes;
mod orphans;
mod plan;
mod pods;
mod policy;
mod removal;
mod tracking;
mod view;

#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use orlop_base::Clock;
use orlop_client::Error;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;

use self::backoff::{Backoff, ended_at};
use self::plan::{Done, NewPod, PodAction};
use self::tracking::Tracking;
use self::view::{FINALIZER, JobSnapshot, Tally, count};
use crate::objects::job::JobStatus;
use crate::objects::{Job, Meta, Pod, condition};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer, status_patch};
use crate::{ownership, pod_template};

pub(crate) const DEF: Def = Def {
    name: "job-controller",
    account: "job-controller",
    on_by_default: true,
    start,
};

/// Changes of pods are let gather for this long, so that many pods ending at once cost few writes. (Upstream waits a second;
/// so much is not needed.)
const GATHER: Duration = Duration::from_millis(100);
/// After pods could not be made: 1 s, 2 s, … up to a minute.
const RETRY_MAX: Duration = Duration::from_secs(60);

struct Controller {
    jobs: Cache<Job>,
    pods: Cache<Pod>,
    recorder: Recorder,
    clock: Clock,
    /// Of unfinished Jobs.
    memory: Mutex<FxHashMap<Key, JobHistory>>,
}

/// What is known of a Job beyond what can be seen. All of it can be lost: it is rebuilt, or not needed after a restart.
#[derive(Clone, Default)]
struct JobHistory {
    job_uid: String,
    /// Failures in a row, of pods that are counted.
    backoff: Backoff,
    /// Pods whose finalizer is gone, as long as they do not look like it.
    released: HashSet<String>,
    /// How often in a row pods could not be made.
    failed_creates: u32,
}

fn start(setup: &Setup) {
    let (jobs, pods) = (setup.cache::<Job>(), setup.cache::<Pod>());
    let queue = setup.queue("job");
    let wake = queue.clone();
    jobs.on_change(move |old, new| {
        let Some(job) = new.or(old) else { return };
        let ours = old
            .zip(new)
            .is_some_and(|(a, b)| a.metadata.generation == b.metadata.generation);
        wake.add_after(Key::from_object(&**job), if ours { GATHER } else { Duration::ZERO });
    });
    let (wake, known) = (queue.clone(), jobs.clone());
    pods.on_change(move |old, new| {
        let might_adopt = |pod: &Meta| {
            let jobs = known.list_in(&pod.namespace).into_iter();
            let matching =
                jobs.filter(|job| !job.is_finished() && job.selector().is_some_and(|s| ownership::matches(&s, pod)));
            matching.map(|job| Key::from_object(&*job)).collect()
        };
        ownership::owners_to_wake::<Job, Pod>(old, new, |key| wake.add_after(key, GATHER), might_adopt);
    });
    let orphans = setup.queue("job_orphan_pod");
    orphans::watch(&jobs, &pods, &orphans);
    let workers = setup.settings.concurrent_syncs;
    let cleaner = orphans::Orphans {
        jobs: jobs.clone(),
        pods: pods.clone(),
    };
    setup.run(orphans, workers, cleaner);
    let controller = Controller {
        jobs,
        pods,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        memory: Mutex::default(),
    };
    setup.run(queue, workers, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let job = self
            .jobs
            .at(key)
            .filter(|job| !job.is_finished() && !job.is_managed_elsewhere());
        let Some(job) = job else {
            self.memory.lock().remove(key);
            return Ok(Next::Done);
        };
        if !matches!(
            job.spec.completion_mode.as_deref(),
            None | Some("NonIndexed" | "Indexed")
        ) {
            let note = "Skipped Job sync because completion mode is unknown";
            self.recorder.warning(&*job, "UnknownCompletionMode", note);
            return Ok(Next::Done);
        }
        let owned = |pod: &Arc<Pod>| {
            pod.metadata
                .controller()
                .is_some_and(|owner| owner.uid == job.metadata.uid)
        };
        let selector = job.selector();
        let pods = ownership::claim_with_finalizer(writer, &*job, selector.as_ref(), &self.pods, FINALIZER).await?;
        if !pods.iter().all(owned) {
            // Adopted just now: counted when they can be seen as they are.
            return Ok(Next::After(GATHER));
        }
        let memory = self.recall(key, &job, &pods);
        let seen = JobSnapshot {
            job: &job,
            pods: &pods,
            released: &memory.released,
            backoff: memory.backoff,
            now: self.clock.now(),
        };
        self.one_turn(key, writer, &seen).await
    }
}

impl Controller {
    async fn one_turn(&self, key: &Key, writer: &Writer, seen: &JobSnapshot<'_>) -> ReconcileResult {
        let job = seen.job;
        let tally = seen.tally();
        let decision = plan::decide(seen, &tally);
        let (done, failed) = self.apply(key, writer, job, &decision.act).await;
        let tracking = tracking::track(seen, &tally, &decision, &done);
        let meta = self
            .write(writer, job, &job.metadata, &job.status, &tracking.status)
            .await?;
        self.remember_ended(key, seen, &tally, &tracking);
        let (released, not_released) = self.release(key, writer, &tracking.release).await;
        let (status, ended) = tracking::conclude(seen, &tracking, &released);
        self.write(writer, job, &meta, &tracking.status, &status).await?;
        if ended {
            self.report_end(job, &status, &tracking);
            self.memory.lock().remove(key);
        }
        if let Some(error) = not_released.or(failed) {
            return Err(error.into());
        }
        Ok(match (&decision.act, tracking.more) {
            (PodAction::Create(wanted), _) if done.created < count(wanted.len()) => self.retry_creation(key),
            (_, true) => Next::After(GATHER),
            _ => decision.next,
        })
    }

    /// What is known of the Job; of a new one (or after a restart) what its pods tell.
    fn recall(&self, key: &Key, job: &Job, pods: &[Arc<Pod>]) -> JobHistory {
        let mut all = self.memory.lock();
        let memory = all.entry(key.clone()).or_default();
        if memory.job_uid != job.metadata.uid {
            *memory = JobHistory {
                job_uid: job.metadata.uid.clone(),
                backoff: view::backoff_so_far(job, pods),
                ..JobHistory::default()
            };
        }
        if !memory.released.is_empty() {
            let held = pods.iter().filter(|pod| pod.metadata.has_finalizer(FINALIZER));
            let held: HashSet<&String> = held.map(|pod| &pod.metadata.uid).collect();
            memory.released.retain(|uid| held.contains(uid));
        }
        memory.clone()
    }

    fn remember_ended(&self, key: &Key, seen: &JobSnapshot<'_>, tally: &Tally<'_>, tracking: &Tracking) {
        let released: HashSet<&String> = tracking.release.iter().map(|pod| &pod.metadata.uid).collect();
        let ended = |pods: &[&Arc<Pod>]| -> Vec<_> {
            let counted = pods.iter().filter(|pod| released.contains(&pod.metadata.uid));
            counted.map(|pod| ended_at(pod)).collect()
        };
        if let Some(memory) = self.memory.lock().get_mut(key) {
            memory.backoff = seen
                .backoff
                .after(&ended(&tally.new_succeeded), &ended(&tally.new_failed));
        }
    }

    fn retry_creation(&self, key: &Key) -> Next {
        let mut all = self.memory.lock();
        let memory = all.entry(key.clone()).or_default();
        let wait = Duration::from_secs(1 << memory.failed_creates.min(6)).min(RETRY_MAX);
        memory.failed_creates += 1;
        Next::After(wait)
    }

    /// The status if it has changed; says how the Job's metadata are then.
    async fn write(
        &self,
        writer: &Writer,
        job: &Job,
        meta: &Meta,
        before: &JobStatus,
        status: &JobStatus,
    ) -> Result<Meta, Error> {
        if before == status {
            return Ok(meta.clone());
        }
        let written: Job = writer
            .patch_status(meta, &status_patch(meta, &status.for_patch()))
            .await?;
        let suspended = |status: &JobStatus| condition::find(&status.conditions, "Suspended").map(|c| c.is_true());
        match suspended(status) {
            now if now == suspended(before) => {}
            Some(true) => self.recorder.normal(job, "Suspended", "Job suspended"),
            _ => self.recorder.normal(job, "Resumed", "Job resumed"),
        }
        Ok(written.metadata)
    }

    fn report_end(&self, job: &Job, status: &JobStatus, tracking: &Tracking) {
        let Some(ending) = &tracking.ending else { return };
        if !ending.success {
            return self
                .recorder
                .warning(job, ending.reason.clone(), ending.message.clone());
        }
        if job.spec.completions.is_some_and(|wanted| status.succeeded > wanted) {
            let note = "Too many succeeded pods running after completion count reached";
            self.recorder.warning(job, "TooManySucceededPods", note);
        }
        self.recorder.normal(job, "Completed", "Job completed");
    }

    async fn apply(&self, key: &Key, writer: &Writer, job: &Job, act: &PodAction) -> (Done, Option<Error>) {
        match act {
            PodAction::Nothing => (Done::default(), None),
            PodAction::Create(pods) => (self.create(key, writer, job, pods).await, None),
            PodAction::Remove(pods) => {
                // They are not to be counted.
                let (released, failed) = self.release(key, writer, pods).await;
                let free = pods.iter().filter(|pod| released.contains(&pod.metadata.uid));
                let (done, error) = self.delete(writer, job, free).await;
                (done, error.or(failed))
            }
            PodAction::Stop(pods) => self.delete(writer, job, pods.iter()).await,
        }
    }

    /// In batches that double as long as all goes well.
    async fn create(&self, key: &Key, writer: &Writer, job: &Job, pods: &[NewPod]) -> Done {
        let base = pods::base(job);
        let namespace = &job.metadata.namespace;
        let mut done = Done::default();
        let (mut rest, mut batch) = (pods, 1);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            let encoded = |new| pod_template::encoded(&pods::pod(job, &base, new));
            let made = join_all(
                now.iter()
                    .map(|new| writer.create_encoded::<Pod>(namespace, encoded(new))),
            )
            .await;
            let mut failed = false;
            for made in made {
                match made {
                    Ok(pod) => {
                        done.created += 1;
                        let note = format!("Created pod: {}", pod.metadata.name);
                        self.recorder.normal(job, "SuccessfulCreate", note);
                    }
                    Err(error) => {
                        failed = true;
                        if !is_terminating(&error) {
                            let note = format!("Error creating: {error}");
                            self.recorder.warning(job, "FailedCreate", note);
                        }
                    }
                }
            }
            if failed {
                return done;
            }
            (rest, batch) = (later, batch * 2);
        }
        if let Some(memory) = self.memory.lock().get_mut(key) {
            memory.failed_creates = 0;
        }
        done
    }

    async fn delete(&self, writer: &Writer, job: &Job, pods: impl Iterator<Item = &Arc<Pod>>) -> (Done, Option<Error>) {
        let pods: Vec<_> = pods.collect();
        let gone = join_all(pods.iter().map(|pod| writer.delete::<Pod>(&pod.metadata))).await;
        let (mut done, mut failed) = (Done::default(), None);
        for (pod, gone) in pods.iter().zip(gone) {
            match gone {
                Ok(()) => {
                    let note = format!("Deleted pod: {}", pod.metadata.name);
                    self.recorder.normal(job, "SuccessfulDelete", note);
                }
                Err(Error::NotFound(_)) => {}
                Err(error) => {
                    let note = format!("Error deleting: {error}");
                    self.recorder.warning(job, "FailedDelete", note);
                    failed = Some(error);
                    continue;
                }
            }
            done.removed += 1;
            done.removed_ready += i64::from(pod.is_ready());
        }
        (done, failed)
    }

    /// Takes the finalizer from the pods; the uids of those that do not have it any more.
    async fn release(&self, key: &Key, writer: &Writer, pods: &[Arc<Pod>]) -> (HashSet<String>, Option<Error>) {
        let one = async |pod: &Arc<Pod>| {
            let meta = &pod.metadata;
            if !meta.has_finalizer(FINALIZER) {
                return Ok(());
            }
            let patch = json!({"metadata": {"uid": meta.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
            match writer.patch_strategic::<Pod>(meta, &patch).await {
                Ok(_) | Err(Error::NotFound(_)) => Ok(()),
                Err(error) => Err(error),
            }
        };
        let (mut released, mut failed) = (HashSet::new(), None);
        for (pod, outcome) in pods.iter().zip(join_all(pods.iter().map(one)).await) {
            match outcome {
                Ok(()) => drop(released.insert(pod.metadata.uid.clone())),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(memory) = self.memory.lock().get_mut(key) {
            memory.released.extend(released.iter().cloned());
        }
        (released, failed)
    }
}

/// Nothing more can come to life in a namespace that is being deleted.
pub(crate) fn is_terminating(error: &Error) -> bool {
    let Error::Forbidden(status) = error else { return false };
    status
        .details
        .causes
        .iter()
        .any(|cause| cause.reason == "NamespaceTerminating")
}
