//! What to do next for a Job: make pods, remove some, or bring it to its end.
// Upstream: pkg/controller/job/job_controller.go syncJob, manageJob (v1.36)

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::backoff;
use super::indexes::Indexes;
use super::policy::{self, Failure};
use super::removal::to_remove;
use super::view::{JobSnapshot, Tally, count, failures_before, index_of};
use crate::objects::{Job, Pod, condition};
use crate::runtime::Next;

/// Pods made or removed in one reconcile at most.
const BURST: usize = 500;

#[derive(Debug)]
pub(super) enum PodAction {
    Nothing,
    Create(Vec<NewPod>),
    /// Not needed any more: they go without being counted, so the finalizer goes first.
    Remove(Vec<Arc<Pod>>),
    /// The Job has come to its end, theirs comes too. They keep the finalizer until they are counted.
    Stop(Vec<Arc<Pod>>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NewPod {
    /// Of an indexed Job.
    pub index: Option<i64>,
    /// With a limit per index: failures of this index so far, those that count and those ignored.
    pub failures: Option<(i64, i64)>,
}

/// What became of an `PodAction`.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub created: i64,
    pub removed: i64,
    pub removed_ready: i64,
}

/// How the Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub success: bool,
    pub reason: String,
    pub message: String,
    /// The status says already that it is going to end so.
    pub announced: bool,
}

#[derive(Debug)]
pub(super) struct Decision {
    pub act: PodAction,
    pub ending: Option<Ending>,
    /// Look again then, should nothing happen before.
    pub next: Next,
}

pub(super) fn decide(seen: &JobSnapshot<'_>, tally: &Tally<'_>) -> Decision {
    let job = seen.job;
    if let Some(ending) = ending(seen, tally) {
        return Decision {
            act: PodAction::Stop(tally.active.iter().map(|pod| (*pod).clone()).collect()),
            ending: Some(ending),
            next: Next::Done,
        };
    }
    let (act, mut next) = match job.metadata.is_deleted() {
        true => (PodAction::Nothing, Next::Done),
        false => manage(seen, tally),
    };
    if let Some(left) = time_left(seen) {
        next = next.or(Next::After(left));
    }
    Decision {
        act,
        ending: None,
        next,
    }
}

/// Reasons to end that need no more doing. What was announced once holds; failure goes before success.
fn ending(seen: &JobSnapshot<'_>, tally: &Tally<'_>) -> Option<Ending> {
    let (job, spec) = (seen.job, &seen.job.spec);
    for (kind, success) in [("SuccessCriteriaMet", true), ("FailureTarget", false)] {
        if let Some(met) = condition::find(&job.status.conditions, kind).filter(|c| c.is_true()) {
            return Some(Ending {
                success,
                reason: met.reason.clone(),
                message: met.message.clone(),
                announced: true,
            });
        }
    }
    if let Some(message) = failed_by_policy(seen) {
        return Some(failure("PodFailurePolicy", message));
    }
    if tally.failed > backoff_limit(job) || restarted_too_often(seen) {
        return Some(failure(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        ));
    }
    if time_left(seen).is_some_and(|left| left.is_zero()) {
        return Some(failure(
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
        ));
    }
    if let Some(failed) = tally.failed_indexes.as_ref().map(Indexes::count) {
        if spec.max_failed_indexes.is_some_and(|max| failed > max) {
            return Some(failure(
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            ));
        }
        if failed > 0 && failed + tally.completed.count() >= seen.completions() {
            return Some(failure("FailedIndexes", "Job has failed indexes"));
        }
    }
    if !job.is_indexed() {
        return None;
    }
    policy::success(job, &tally.completed).map(|message| success("SuccessPolicy", message))
}

fn failure(reason: &str, message: impl Into<String>) -> Ending {
    Ending {
        success: false,
        reason: reason.to_string(),
        message: message.into(),
        announced: false,
    }
}

fn success(reason: &str, message: impl Into<String>) -> Ending {
    Ending {
        success: true,
        ..failure(reason, message)
    }
}

/// A Job with all its completions, and nothing running any more, is done.
pub(super) fn completed(seen: &JobSnapshot<'_>, tally: &Tally<'_>, active: i64) -> Option<Ending> {
    let enough = match seen.job.spec.completions {
        // Any success means that the work is done; who still runs may finish.
        None => tally.succeeded > 0,
        Some(completions) => tally.succeeded >= completions,
    };
    (enough && active == 0).then(|| success("CompletionsReached", "Reached expected number of succeeded pods"))
}

fn backoff_limit(job: &Job) -> i64 {
    job.spec.backoff_limit.unwrap_or(6)
}

fn failed_by_policy(seen: &JobSnapshot<'_>) -> Option<String> {
    seen.job.spec.pod_failure_policy.as_ref()?;
    let failed = seen.pods.iter().filter(|pod| seen.is_failed(pod));
    failed
        .filter_map(|pod| match policy::judge(seen.job, pod) {
            Failure::FailsJob(message) => Some(message),
            _ => None,
        })
        .next()
}

/// Where containers are restarted in place, their restarts count against the limit.
fn restarted_too_often(seen: &JobSnapshot<'_>) -> bool {
    if seen.job.spec.template.spec["restartPolicy"] != "OnFailure" {
        return false;
    }
    let alive = seen
        .pods
        .iter()
        .filter(|p| matches!(&*p.status.phase, "Running" | "Pending"));
    let statuses = alive.flat_map(|pod| {
        pod.status
            .container_statuses
            .iter()
            .chain(&pod.status.init_container_statuses)
    });
    let restarts: i64 = statuses.map(|status| status.restart_count).sum();
    restarts >= backoff_limit(seen.job).max(1)
}

/// Until the deadline, if the Job has one and its time runs.
fn time_left(seen: &JobSnapshot<'_>) -> Option<Duration> {
    let seconds = seen.job.spec.active_deadline_seconds?;
    if seen.job.is_suspended() {
        return None;
    }
    let start = seen.job.status.start_time.unwrap_or(seen.now);
    let end = start
        .checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX);
    Some(end.duration_since(seen.now).try_into().unwrap_or_default())
}

fn manage(seen: &JobSnapshot<'_>, tally: &Tally<'_>) -> (PodAction, Next) {
    let job = seen.job;
    let active = count(tally.active.len());
    if job.is_suspended() {
        let all = to_remove(job, &tally.active, tally.active.len());
        return match all.is_empty() {
            true => (PodAction::Nothing, Next::Done),
            false => (PodAction::Remove(all), Next::Done),
        };
    }
    let wanted = wanted_active(job, tally);
    let mut surplus = to_remove(job, &tally.active, usize::try_from(active - wanted).unwrap_or(0));
    surplus.truncate(BURST);
    if !surplus.is_empty() {
        // Either remove or make pods in one reconcile; the rest in the next.
        return (PodAction::Remove(surplus), Next::Done);
    }
    let waiting_for = if job.replaces_only_ended_pods() {
        tally.terminating
    } else {
        0
    };
    match usize::try_from(wanted - waiting_for - active) {
        Ok(missing) if missing > 0 => create(seen, tally, missing.min(BURST)),
        _ => (PodAction::Nothing, Next::Done),
    }
}

fn wanted_active(job: &Job, tally: &Tally<'_>) -> i64 {
    let parallelism = job.spec.parallelism.unwrap_or(1);
    match job.spec.completions {
        // Who runs may go on, but nobody new is needed.
        None if tally.succeeded > 0 => count(tally.active.len()),
        None => parallelism,
        Some(completions) => (completions - tally.succeeded).min(parallelism).max(0),
    }
}

fn create(seen: &JobSnapshot<'_>, tally: &Tally<'_>, missing: usize) -> (PodAction, Next) {
    let job = seen.job;
    let pods: Vec<NewPod> = if job.spec.backoff_limit_per_index.is_some() {
        // Each index waits for itself.
        let waits = pending_indexes(seen, tally, missing).into_iter();
        let waits: Vec<(i64, Duration)> = waits.map(|index| (index, index_wait(seen, tally, index))).collect();
        let ready = waits.iter().filter(|(_, wait)| wait.is_zero());
        let ready: Vec<NewPod> = ready.map(|(index, _)| next_of_index(seen, tally, *index)).collect();
        let soonest = waits.iter().map(|(_, wait)| *wait).filter(|wait| !wait.is_zero()).min();
        let next = soonest.map_or(Next::Done, Next::After);
        return match ready.is_empty() {
            true => (PodAction::Nothing, next),
            false => (PodAction::Create(ready), next),
        };
    } else if job.is_indexed() {
        let indexes = pending_indexes(seen, tally, missing).into_iter();
        indexes
            .map(|index| NewPod {
                index: Some(index),
                ..NewPod::default()
            })
            .collect()
    } else {
        vec![NewPod::default(); missing]
    };
    let ended = |pods: &'_ [&Arc<Pod>]| pods.iter().map(|pod| backoff::ended_at(pod)).collect::<Vec<_>>();
    let row = seen
        .backoff
        .after(&ended(&tally.new_succeeded), &ended(&tally.new_failed));
    match row.wait(seen.now) {
        Duration::ZERO if !pods.is_empty() => (PodAction::Create(pods), Next::Done),
        Duration::ZERO => (PodAction::Nothing, Next::Done),
        wait => (PodAction::Nothing, Next::After(wait)),
    }
}

/// The first indexes that are not done, have not failed for good and have no pod.
fn pending_indexes(seen: &JobSnapshot<'_>, tally: &Tally<'_>, count: usize) -> Vec<i64> {
    let mut taken: Indexes = tally.active.iter().filter_map(|pod| index_of(pod)).collect();
    if seen.job.replaces_only_ended_pods() {
        let leaving = seen.pods.iter().filter(|p| p.metadata.is_deleted() && !p.is_terminal());
        taken = taken.union(&leaving.filter_map(|pod| index_of(pod)).collect());
    }
    taken = taken.union(&tally.completed);
    if let Some(failed) = &tally.failed_indexes {
        taken = taken.union(failed);
    }
    taken.missing(seen.completions(), count)
}

fn index_wait(seen: &JobSnapshot<'_>, tally: &Tally<'_>, index: i64) -> Duration {
    let Some(last) = tally.awaiting_next.get(&index) else {
        return Duration::ZERO;
    };
    let (counted, ignored) = failures_before(last);
    backoff::wait(counted + ignored + 1, Some(backoff::ended_at(last)), seen.now)
}

/// The failures so far go from the pod that failed to the one that takes its place.
fn next_of_index(seen: &JobSnapshot<'_>, tally: &Tally<'_>, index: i64) -> NewPod {
    let failures = tally.awaiting_next.get(&index).map_or((0, 0), |last| {
        let (counted, ignored) = failures_before(last);
        match policy::judge(seen.job, last).counts() {
            true => (counted + 1, ignored),
            false => (counted, ignored + 1),
        }
    });
    NewPod {
        index: Some(index),
        failures: Some(failures),
    }
}
