//! Counting pods that have ended, each once, whatever happens in between.
//!
//! A pod holds the Job's finalizer until it is counted, so it can't go before:
//!
//! ```text
//! ended, finalizer  ──►  uid in status.uncountedTerminatedPods  ──►  finalizer gone  ──►  in the counter, uid gone
//!                  write 1                             one write a pod              write 2
//! ```
//!
//! Whoever takes over after any of these writes sees from the status and the pods which ones are left. Indexes need no
//! uids: an index is in `completedIndexes` or not.
// Upstream: pkg/controller/job/job_controller.go trackJobStatusAndRemoveFinalizers (v1.36)

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::plan::{self, Decision, Done, Ending, PodAction};
use super::policy;
use super::view::{JobSnapshot, Tally, count, index_of};
use crate::objects::job::JobStatus;
use crate::objects::{Condition, Pod, condition};

/// Pods being counted at the same time at most, so that the status stays small.
const UNCOUNTED_MAX: usize = 500;

/// The first write, and what follows it.
#[derive(Debug)]
pub(super) struct Tracking {
    pub status: JobStatus,
    /// Pods that lose the finalizer once the status is written.
    pub release: Vec<Arc<Pod>>,
    pub ending: Option<Ending>,
    /// There are more pods to count, in the next reconcile.
    pub more: bool,
}

/// As `metav1.Time` is written.
fn whole_seconds(t: Timestamp) -> Timestamp {
    Timestamp::from_second(t.as_second()).expect("seconds of a timestamp are one")
}

/// After the act: which pods are to be counted, and how the Job ends if it does.
pub(super) fn track(seen: &JobSnapshot<'_>, tally: &Tally<'_>, decision: &Decision, done: &Done) -> Tracking {
    let now = whole_seconds(seen.now);
    let mut status = seen.job.status.clone();
    let active = count(tally.active.len()) + done.created - done.removed;
    status.active = active;
    status.ready = Some(tally.ready - done.removed_ready);
    status.terminating = Some(tally.terminating + done.removed);
    if status.start_time.is_none() && !seen.job.is_suspended() {
        status.start_time = Some(now);
    }
    let ending = match &decision.act {
        // Not all are stopped yet: it can't end now.
        PodAction::Stop(pods) if done.removed < count(pods.len()) => None,
        PodAction::Stop(_) => decision.ending.clone(),
        _ => plan::completed(seen, tally, active),
    };
    if decision.ending.is_none() && ending.is_none() && !seen.job.metadata.is_deleted() {
        note_suspension(seen.job.is_suspended(), &mut status, now);
    }
    if ending.is_some() && status.start_time.is_none() && seen.job.spec.completions != Some(0) {
        // Suspended when its last pods ended: what ends must have begun.
        status.start_time = Some(now);
    }
    count_released(&mut status, &held(seen));
    let (release, more) = list_uncounted(seen, tally, ending.as_ref(), &mut status);
    if seen.job.is_indexed() {
        status.succeeded = tally.completed.count();
        status.completed_indexes = tally.completed.to_string();
        status.failed_indexes = tally.failed_indexes.as_ref().map(ToString::to_string);
    }
    if let Some(ending) = ending.as_ref().filter(|ending| !ending.announced) {
        let kind = if ending.success {
            "SuccessCriteriaMet"
        } else {
            "FailureTarget"
        };
        status
            .conditions
            .push(new_condition(kind, "True", &ending.reason, &ending.message, now));
    }
    Tracking {
        status,
        release,
        ending,
        more,
    }
}

/// The uids of all pods that hold the finalizer.
fn held(seen: &JobSnapshot<'_>) -> HashSet<String> {
    let tracked = seen.pods.iter().filter(|pod| seen.is_tracked(pod));
    tracked.map(|pod| pod.metadata.uid.clone()).collect()
}

/// Moves pods that have lost the finalizer from the lists into the counters.
fn count_released(status: &mut JobStatus, held: &HashSet<String>) {
    let uncounted = &mut status.uncounted_terminated_pods;
    for (list, counter) in [
        (&mut uncounted.succeeded, &mut status.succeeded),
        (&mut uncounted.failed, &mut status.failed),
    ] {
        let before = list.len();
        list.retain(|uid| held.contains(uid));
        *counter += count(before - list.len());
    }
}

/// The pods that may lose the finalizer; those that count are listed in the status first.
fn list_uncounted(
    seen: &JobSnapshot<'_>,
    tally: &Tally<'_>,
    ending: Option<&Ending>,
    status: &mut JobStatus,
) -> (Vec<Arc<Pod>>, bool) {
    let indexed = seen.job.is_indexed();
    let mut pods: Vec<&Arc<Pod>> = seen.pods.iter().filter(|pod| seen.is_tracked(pod)).collect();
    if indexed {
        pods.sort_by_key(|pod| index_of(pod));
    }
    let uncounted = &mut status.uncounted_terminated_pods;
    let listed: HashSet<String> = uncounted.succeeded.iter().chain(&uncounted.failed).cloned().collect();
    let (mut release, mut new_indexes) = (vec![], 0);
    for pod in pods {
        if !may_be_released(seen, tally, ending, pod) {
            continue;
        }
        release.push(pod.clone());
        let uid = &pod.metadata.uid;
        if listed.contains(uid) {
            // Somebody was here before.
        } else if pod.status.phase == "Succeeded" {
            if !indexed {
                uncounted.succeeded.push(uid.clone());
            } else if seen.valid_index(pod).is_some_and(|i| !tally.completed_before.has(i)) {
                new_indexes += 1;
            }
        } else if seen.is_failed(pod) || ending.is_some_and(|ending| !ending.success) {
            // Pods that run when the Job fails fail with it.
            if seen.has_place(pod) && policy::judge(seen.job, pod).counts() {
                uncounted.failed.push(uid.clone());
            }
        }
        if new_indexes + uncounted.succeeded.len() + uncounted.failed.len() >= UNCOUNTED_MAX {
            return (release, true);
        }
    }
    (release, false)
}

fn may_be_released(seen: &JobSnapshot<'_>, tally: &Tally<'_>, ending: Option<&Ending>, pod: &Pod) -> bool {
    if seen.job.metadata.is_deleted() || ending.is_some() || pod.status.phase == "Succeeded" {
        return true;
    }
    let next = index_of(pod).and_then(|index| tally.awaiting_next.get(&index));
    seen.is_failed(pod) && next.is_none_or(|held| held.metadata.uid != pod.metadata.uid)
}

fn note_suspension(suspended: bool, status: &mut JobStatus, now: Timestamp) {
    let (state, reason, message) = match suspended {
        true => ("True", "JobSuspended", "Job suspended"),
        false => ("False", "JobResumed", "Job resumed"),
    };
    let current = condition::find(&status.conditions, "Suspended");
    let changes = match current {
        // Going from nothing to false means nothing.
        None => suspended,
        Some(current) => (&*current.status, &*current.reason, &*current.message) != (state, reason, message),
    };
    if changes {
        set_condition(status, new_condition("Suspended", state, reason, message, now));
        // Time only runs while the Job is active, from the beginning each time.
        status.start_time = (!suspended).then_some(now);
    }
}

fn new_condition(kind: &str, state: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        r#type: kind.to_string(),
        status: state.to_string(),
        last_probe_time: Some(now),
        last_transition_time: Some(now),
        reason: reason.to_string(),
        message: message.to_string(),
        ..Condition::default()
    }
}

fn set_condition(status: &mut JobStatus, new: Condition) {
    match status.conditions.iter_mut().find(|c| c.r#type == new.r#type) {
        Some(old) => *old = new,
        None => status.conditions.push(new),
    }
}

/// Once the finalizers are gone: the second write. `released`: the uids of the pods that have lost theirs. Says whether the
/// Job has ended with it.
pub(super) fn conclude(seen: &JobSnapshot<'_>, tracking: &Tracking, released: &HashSet<String>) -> (JobStatus, bool) {
    let now = whole_seconds(seen.now);
    let mut status = tracking.status.clone();
    let mut held = held(seen);
    held.retain(|uid| !released.contains(uid));
    count_released(&mut status, &held);
    let all_released = tracking.release.iter().all(|pod| released.contains(&pod.metadata.uid));
    let Some(ending) = &tracking.ending else {
        return (status, false);
    };
    let settled = status.uncounted_terminated_pods.is_empty() && status.terminating.unwrap_or(0) == 0;
    if tracking.more || !all_released || !settled {
        return (status, false);
    }
    let kind = if ending.success { "Complete" } else { "Failed" };
    set_condition(
        &mut status,
        new_condition(kind, "True", &ending.reason, &ending.message, now),
    );
    if ending.success {
        status.completion_time = Some(now);
    }
    (status, true)
}
