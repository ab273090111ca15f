//! CronJobs: a Job at each time of a schedule.
//!
//! A Job's name tells its time, so a start that was made but not written down is found again and never made twice.
// Upstream: pkg/controller/cronjob (v1.36)

mod plan;
mod times;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use jiff::tz::TimeZone;
use orlop_base::Clock;
use orlop_client::{DeleteOptions, Error, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use self::plan::{Note, Start};
use crate::objects::cron_job::CronJobStatus;
use crate::objects::{CronJob, Job, Kind};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, status_patch,
};
use crate::{job, ownership};

pub(crate) const DEF: Def = Def {
    name: "cronjob-controller",
    account: "cronjob-controller",
    on_by_default: true,
    start,
};

struct Controller {
    cron_jobs: Cache<CronJob>,
    jobs: Cache<Job>,
    recorder: Recorder,
    clock: Clock,
    /// Where a CronJob names no zone, ours counts.
    zone: TimeZone,
    /// Events recorded in the last reconcile, which are not recorded again.
    told: Mutex<FxHashMap<Key, Vec<Note>>>,
}

fn start(setup: &Setup) {
    let (cron_jobs, jobs) = (setup.cache::<CronJob>(), setup.cache::<Job>());
    let queue = setup.queue("cronjob");
    queue.follow(&cron_jobs);
    let wake = queue.clone();
    jobs.on_change(move |old, new| {
        ownership::owners_to_wake::<CronJob, Job>(old, new, |key| wake.add(key), |_| vec![]);
    });
    let controller = Controller {
        cron_jobs,
        jobs,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        zone: TimeZone::system(),
        told: Mutex::default(),
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(cron) = self.cron_jobs.at(key) else {
            self.told.lock().remove(key);
            return Ok(Next::Done);
        };
        let jobs = self.jobs.owned_by(&key.namespace, &cron.metadata.uid);
        let gone = self.find_missing_jobs(writer, &cron, &jobs).await?;
        let plan = plan::plan(&cron, &jobs, &gone, &self.zone, self.clock.now());
        let mut status = plan.status.clone();
        for job in &plan.forget {
            self.delete(writer, &cron, job).await?;
        }
        let started = match &plan.start {
            Some(start) => self.begin(writer, &cron, start, &jobs, &mut status).await,
            None => Ok(()),
        };
        // What was done before a failure is written down all the same.
        if status != cron.status {
            let patch = status_patch(&cron.metadata, &status.for_patch());
            writer.patch_status::<CronJob>(&cron.metadata, &patch).await?;
        }
        self.record_events(key, &cron, plan.notes);
        started?;
        Ok(plan.next)
    }
}

impl Controller {
    /// Active Jobs that are no more: asked for, since the two caches may be at different points in time.
    async fn find_missing_jobs(
        &self,
        writer: &Writer,
        cron: &CronJob,
        jobs: &[Arc<Job>],
    ) -> Result<HashSet<String>, Error> {
        let mut gone = HashSet::new();
        for active in plan::unseen(cron, jobs) {
            let at = path::object(Job::API_VERSION, Some(&active.namespace), Job::RESOURCE, &active.name);
            match writer.api().get::<Job>(&at).await {
                Ok(job) if job.metadata.uid == active.uid => {}
                Ok(_) | Err(Error::NotFound(_)) => drop(gone.insert(active.uid.clone())),
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    fn record_events(&self, key: &Key, cron: &CronJob, notes: Vec<Note>) {
        let before = self.told.lock().insert(key.clone(), notes.clone()).unwrap_or_default();
        for note in notes.into_iter().filter(|note| !before.contains(note)) {
            match note.warning {
                true => self.recorder.warning(cron, note.reason, note.text),
                false => self.recorder.normal(cron, note.reason, note.text),
            }
        }
    }

    async fn delete(&self, writer: &Writer, cron: &CronJob, job: &Job) -> Result<(), Error> {
        let options = DeleteOptions {
            propagation_policy: Some("Background"),
            ..DeleteOptions::default()
        };
        match writer.delete_with::<Job>(&job.metadata, options).await {
            Ok(()) => {
                let text = format!("Deleted job {}", job.metadata.name);
                self.recorder.normal(cron, "SuccessfulDelete", text);
                Ok(())
            }
            Err(Error::NotFound(_)) => Ok(()),
            Err(error) => {
                self.recorder
                    .warning(cron, "FailedDelete", format!("Deleted job: {error}"));
                Err(error)
            }
        }
    }

    async fn begin(
        &self,
        writer: &Writer,
        cron: &CronJob,
        start: &Start,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<(), ReconcileError> {
        for old in &start.replaced {
            let Some(job) = jobs.iter().find(|job| job.metadata.uid == old.uid) else {
                return Err(ReconcileError::NotYet(format!(
                    "informer cache has not observed job {}",
                    old.name
                )));
            };
            self.delete(writer, cron, job).await?;
            status.active.retain(|active| active.uid != old.uid);
        }
        let Some(job) = self.create(writer, cron, start).await? else {
            return Ok(());
        };
        status.active.push(plan::reference(&job));
        status.last_schedule_time = Some(start.at);
        Ok(())
    }

    /// None if another's Job has the name, or nothing can be made here any more.
    async fn create(&self, writer: &Writer, cron: &CronJob, start: &Start) -> Result<Option<Job>, Error> {
        let namespace = &cron.metadata.namespace;
        match writer.create::<Job>(namespace, &plan::job(cron, start.at)).await {
            Ok(job) => {
                let text = format!("Created job {}", job.metadata.name);
                self.recorder.normal(cron, "SuccessfulCreate", text);
                Ok(Some(job))
            }
            Err(Error::AlreadyExists(_)) => {
                // Made in an earlier life, before it could be written down.
                let name = plan::job_name(cron, start.at);
                let at = path::object(Job::API_VERSION, Some(namespace), Job::RESOURCE, &name);
                let job: Job = writer.api().get(&at).await?;
                let owner = job.metadata.controller();
                Ok(owner.is_some_and(|owner| owner.uid == cron.metadata.uid).then_some(job))
            }
            Err(error) if job::is_terminating(&error) => Ok(None),
            Err(error) => {
                self.recorder
                    .warning(cron, "FailedCreate", format!("Error creating job: {error}"));
                Err(error)
            }
        }
    }
}
