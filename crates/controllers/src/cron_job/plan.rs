//! What a CronJob's Jobs tell about it, which of them can go, and whether it is time for the next.
// Upstream: pkg/controller/cronjob/cronjob_controllerv2.go (v1.36)

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::times::{self, Due, Times};
use crate::objects::cron_job::{CronJobStatus, JobReference};
use crate::objects::{CronJob, Job, Kind};
use crate::ownership::controller_reference;
use crate::runtime::Next;

/// The wall clock may be set while we wait for a time of day: look at it at least this often.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A little late rather than early.
const MARGIN: Duration = Duration::from_millis(100);
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// An event to record, once for each `about`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub text: String,
    pub about: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct Plan {
    /// As it is without the start.
    pub status: CronJobStatus,
    pub notes: Vec<Note>,
    /// Finished Jobs beyond the limits.
    pub forget: Vec<Arc<Job>>,
    pub start: Option<Start>,
    pub next: Next,
}

#[derive(Debug)]
pub(super) struct Start {
    pub at: Timestamp,
    /// Jobs that have to make room.
    pub replaced: Vec<JobReference>,
}

fn normal(reason: &'static str, text: String) -> Note {
    Note {
        warning: false,
        reason,
        text,
        about: None,
    }
}

fn warning(reason: &'static str, text: String) -> Note {
    Note {
        warning: true,
        ..normal(reason, text)
    }
}

/// Active Jobs that are not among those seen. The caller asks the API server which of them are really gone.
pub(super) fn unseen<'a>(cron: &'a CronJob, jobs: &[Arc<Job>]) -> Vec<&'a JobReference> {
    let seen: HashSet<&String> = jobs.iter().map(|job| &job.metadata.uid).collect();
    cron.status.active.iter().filter(|a| !seen.contains(&a.uid)).collect()
}

/// `jobs`: those it manages. `gone`: uids of active Jobs that are no more. `local`: the zone where none is given.
pub(super) fn plan(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    gone: &HashSet<String>,
    local: &TimeZone,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan {
        status: cron.status.clone(),
        notes: vec![],
        forget: to_forget(cron, jobs),
        start: None,
        next: Next::Done,
    };
    look_at_jobs(&mut plan, jobs, gone);
    if cron.metadata.is_deleted() {
        return plan;
    }
    let Some(zone) = read_zone(&mut plan, cron, local) else {
        return plan;
    };
    if cron.spec.suspend == Some(true) {
        return plan;
    }
    let Some(times) = read_schedule(&mut plan, cron, &zone) else {
        return plan;
    };
    match times.due(cron, now) {
        Err(why) => plan.notes.push(warning(
            "InvalidSchedule",
            format!("invalid schedule: {} : {why}", cron.spec.schedule),
        )),
        Ok(due) => {
            plan.start = due.and_then(|due| plan_start(&mut plan, cron, due, now));
            plan.next = next_look(&times, cron, plan.start.as_ref(), now);
        }
    }
    plan
}

fn next_look(times: &Times, cron: &CronJob, start: Option<&Start>, now: Timestamp) -> Next {
    let wait = match start {
        // Counted from the start that is about to be.
        Some(start) => times.next(start.at).map(|next| next.duration_since(now)),
        None => times.wait(cron, now).and_then(|wait| wait.try_into().ok()),
    };
    let Some(wait) = wait else { return Next::Done };
    let wait = Duration::try_from(wait).unwrap_or_default();
    Next::After(wait.saturating_add(MARGIN).min(LOOK_AGAIN))
}

/// What has ended leaves the list of the active.
fn look_at_jobs(plan: &mut Plan, jobs: &[Arc<Job>], gone: &HashSet<String>) {
    let status = &mut plan.status;
    for job in jobs {
        let (uid, name) = (&job.metadata.uid, &job.metadata.name);
        let listed = status.active.iter().position(|active| active.uid == *uid);
        match (listed, job.is_finished()) {
            (None, false) => plan.notes.push(warning(
                "UnexpectedJob",
                format!("Saw a job that the controller did not create or forgot: {name}"),
            )),
            (Some(place), true) => {
                status.active.remove(place);
                let how = if job.is_complete() { "Complete" } else { "Failed" };
                let text = format!("Saw completed job: {name}, condition: {how}");
                plan.notes.push(normal("SawCompletedJob", text));
            }
            _ => {}
        }
        if job.is_complete() {
            status.last_successful_time = status.last_successful_time.max(job.status.completion_time);
        }
    }
    for active in std::mem::take(&mut status.active) {
        if gone.contains(&active.uid) {
            let text = format!("Active job went missing: {}", active.name);
            plan.notes.push(normal("MissingJob", text));
        } else {
            status.active.push(active);
        }
    }
}

/// The oldest of too many finished Jobs, those that succeeded and those that failed apart.
fn to_forget(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let mut all = vec![];
    for (limit, complete) in [
        (cron.spec.successful_jobs_history_limit, true),
        (cron.spec.failed_jobs_history_limit, false),
    ] {
        let Some(limit) = limit else { continue };
        let mut finished: Vec<&Arc<Job>> = jobs
            .iter()
            .filter(|job| job.is_finished() && job.is_complete() == complete && !job.metadata.is_deleted())
            .collect();
        let key = |job: &Job| {
            (
                job.status.start_time.is_none(),
                job.status.start_time,
                job.metadata.name.clone(),
            )
        };
        finished.sort_by_key(|job| key(job));
        let surplus = finished.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        all.extend(finished.into_iter().take(surplus).cloned());
    }
    all
}

fn read_zone(plan: &mut Plan, cron: &CronJob, local: &TimeZone) -> Option<TimeZone> {
    let name = cron.spec.time_zone.as_deref();
    let zone = times::zone(name, local);
    zone.map_err(|why| {
        let name = name.unwrap_or("");
        plan.notes
            .push(warning("UnknownTimeZone", format!("invalid timeZone: {name:?}: {why}")));
    })
    .ok()
}

fn read_schedule(plan: &mut Plan, cron: &CronJob, zone: &TimeZone) -> Option<Times> {
    let schedule = &cron.spec.schedule;
    if schedule.contains("TZ") {
        let text = format!(
            "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        );
        plan.notes.push(warning("UnsupportedSchedule", text));
    }
    Times::parse(schedule, zone)
        .map_err(|why| {
            let text = format!("unparseable schedule: {schedule:?} : {why}");
            plan.notes.push(warning("UnparseableSchedule", text));
        })
        .ok()
}

fn plan_start(plan: &mut Plan, cron: &CronJob, due: Due, now: Timestamp) -> Option<Start> {
    let mut note = |note: Note| {
        plan.notes.push(Note {
            about: Some(due.at),
            ..note
        });
    };
    if due.many_missed {
        let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        note(warning("TooManyMissedTimes", text.to_string()));
    }
    let deadline = cron.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.is_some_and(|deadline| now.duration_since(due.at) > deadline) {
        let at = due.at.strftime("%a, %d %b %Y %H:%M:%S +0000");
        note(warning(
            "MissSchedule",
            format!("Missed scheduled time to start a job: {at}"),
        ));
        return None;
    }
    let name = job_name(cron, due.at);
    let status = &plan.status;
    if status.active.iter().any(|active| active.name == name) || status.last_schedule_time == Some(due.at) {
        return None;
    }
    let mut replaced = vec![];
    match cron.spec.concurrency_policy.as_str() {
        "Forbid" if !status.active.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            note(normal("JobAlreadyActive", text.to_string()));
            return None;
        }
        "Replace" => replaced.clone_from(&status.active),
        _ => {}
    }
    Some(Start { at: due.at, replaced })
}

pub(super) fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.metadata.name, at.as_second().div_euclid(60))
}

/// The Job of a start.
pub(super) fn job(cron: &CronJob, at: Timestamp) -> Value {
    let template = &cron.spec.job_template;
    let zone = times::zone(cron.spec.time_zone.as_deref(), &TimeZone::UTC).unwrap_or(TimeZone::UTC);
    let shown = match zone.to_offset(at).seconds() {
        0 => at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        _ => at.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    };
    let mut annotations = template.metadata.annotations.clone();
    annotations.insert(SCHEDULED_AT.to_string(), shown);
    json!({
        "apiVersion": Job::API_VERSION, "kind": Job::KIND,
        "metadata": {"name": job_name(cron, at), "namespace": cron.metadata.namespace,
                     "labels": template.metadata.labels, "annotations": annotations,
                     "ownerReferences": [controller_reference(cron)]},
        "spec": template.spec,
    })
}

pub(super) fn reference(job: &Job) -> JobReference {
    let meta = &job.metadata;
    JobReference {
        kind: Job::KIND.to_string(),
        api_version: Job::API_VERSION.to_string(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
    }
}
