//! Pod termination: preStop hooks first, then the containers, sidecars after the others and in reverse order, then the
//! sandbox; all within the grace period, which may be shortened on the way.

use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::Pod;
use orlop_base::clock::{Shift, elapsed, seconds};

use super::GRACE_MIN;
use crate::pod::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pod::worker_state::{Ending, Hook, WorkerState};
use crate::pod::{policy, status};

/// Stops what runs. Steps that were taken already are not repeated, unless their grace period was shortened.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// `None`: the pod goes on in a new sandbox, or is found to be over once all has stopped.
    pub ending: Option<Ending>,
    pub why: StopWhy,
    /// Since when, to be remembered until all has stopped.
    pub since: Timestamp,
    /// preStop hooks to run.
    pub hooks: Vec<StopContainer>,
    pub containers: Vec<StopContainer>,
    pub sandboxes: Vec<String>,
    pub wake: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWhy {
    Ending,
    SandboxChanged,
    /// The node stops.
    Suspended,
    /// Only sidecars are left, or nothing at all.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopContainer {
    pub id: String,
    pub name: String,
    pub grace: Duration,
}

const DEADLINE_REASON: &str = "DeadlineExceeded";
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// When `activeDeadlineSeconds` is exceeded.
pub(super) fn active_deadline(pod: &Pod, memory: &WorkerState) -> Option<Timestamp> {
    let allowed = policy::spec(pod).active_deadline_seconds?;
    let start = memory.status.start_time.as_ref()?.0;
    Some(start.later(seconds(allowed)))
}

/// Whether and how the pod terminates: irrevocably, with a grace period that only shrinks.
pub(super) fn ending(pod: &Pod, observed: &ObservedPod, memory: &WorkerState, now: Timestamp) -> Option<Ending> {
    let deleted = pod.metadata.deletion_timestamp.is_some() || memory.requests.removed;
    let evict = memory.requests.evict.as_ref();
    let late = active_deadline(pod, memory).is_some_and(|deadline| now >= deadline);
    let failed = evict.map(|e| (e.reason.clone(), e.message.clone()));
    let failed = failed.or_else(|| late.then(|| (DEADLINE_REASON.to_string(), DEADLINE_MESSAGE.to_string())));
    let asked = [
        pod.metadata.deletion_grace_period_seconds,
        evict.and_then(|e| e.grace_seconds),
    ];
    let asked = asked.into_iter().flatten().min();
    if let Some(before) = &memory.ending {
        let mut ending = before.clone();
        ending.deleted |= deleted;
        ending.failed = ending.failed.or(failed);
        if let Some(grace) = asked
            .map(|grace| grace.max(1))
            .filter(|grace| *grace < ending.grace_seconds)
        {
            ending.grace_seconds = grace;
            ending.deadline = ending.deadline.min(now.later_by_seconds(grace));
        }
        return Some(ending);
    }
    let finished = || policy::is_terminal(&status::current_phase(pod, observed, memory));
    if !deleted && failed.is_none() && !finished() {
        return None;
    }
    let grace = asked
        .or(policy::spec(pod).termination_grace_period_seconds)
        .unwrap_or(0)
        .max(1);
    Some(Ending {
        grace_seconds: grace,
        deadline: now.later_by_seconds(grace),
        failed,
        deleted,
    })
}

/// What is still to be stopped; `None` if nothing is.
pub(super) fn stop(
    pod: &Pod,
    observed: &ObservedPod,
    memory: &WorkerState,
    ending: Option<Ending>,
    why: StopWhy,
    now: Timestamp,
) -> Option<Stop> {
    let since = memory.teardown.unwrap_or(now);
    let own_grace = || {
        let grace = policy::spec(pod).termination_grace_period_seconds.unwrap_or(0).max(0);
        memory
            .requests
            .suspend
            .map_or(grace, |suspension| suspension.limit(grace))
    };
    let deadline = ending
        .as_ref()
        .map_or_else(|| since.later_by_seconds(own_grace()), |ending| ending.deadline);
    let mut stop = Stop {
        ending,
        why,
        since,
        hooks: vec![],
        containers: vec![],
        sandboxes: vec![],
        wake: None,
    };
    let alive: Vec<&ObservedContainer> = observed.containers.iter().filter(|c| is_alive(c, memory)).collect();
    let held = memory.hold.filter(|hold| *hold > now);
    if alive.is_empty() {
        let unstopped = observed
            .sandboxes
            .iter()
            .filter(|s| !memory.stopped_sandboxes.contains(&s.id));
        stop.sandboxes = unstopped.map(|s| s.id.clone()).collect();
        if stop.sandboxes.is_empty() {
            return None;
        }
    }
    if let Some(hold) = held {
        stop.sandboxes.clear();
        stop.wake = Some(hold);
        return Some(stop);
    }
    let remaining = remaining(deadline, now);
    for container in &alive {
        let step = || StopContainer {
            id: container.id.clone(),
            name: container.name.clone(),
            grace: remaining,
        };
        let in_time = now < deadline;
        let hook = memory.hooks.get(&container.id);
        if in_time && hook.is_none() && has_pre_stop(pod, container) {
            stop.hooks.push(step());
        }
        let hook_pending = hook == Some(&Hook::Running) || (hook.is_none() && has_pre_stop(pod, container));
        if in_time && (hook_pending || waits_for_others(pod, container, &alive)) {
            stop.wake = Some(deadline);
            continue;
        }
        // A second of difference is not worth another call.
        let told = memory.stops.get(&container.id);
        if told.is_none_or(|by| *by > now.later(remaining).later(Duration::from_secs(1))) {
            stop.containers.push(step());
        }
    }
    Some(stop)
}

fn remaining(deadline: Timestamp, now: Timestamp) -> Duration {
    elapsed(now, deadline).max(Duration::from_secs(GRACE_MIN as u64))
}

/// A container in an unknown state may run; after StopContainer there is no more to do about it.
fn is_alive(container: &ObservedContainer, memory: &WorkerState) -> bool {
    match container.state {
        ObservedState::Running => true,
        ObservedState::Unknown => !memory.stops.contains_key(&container.id),
        ObservedState::Created | ObservedState::Exited => false,
    }
}

fn has_pre_stop(pod: &Pod, container: &ObservedContainer) -> bool {
    match policy::container_named(pod, &container.name) {
        Some(spec) => spec.lifecycle.as_ref().is_some_and(|l| l.pre_stop.is_some()),
        None => container.pre_stop.is_some(),
    }
}

/// Sidecars end after all regular containers, and after the sidecars that started later.
fn waits_for_others(pod: &Pod, container: &ObservedContainer, alive: &[&ObservedContainer]) -> bool {
    let init = policy::init_containers(pod);
    let Some(own) = init
        .iter()
        .position(|c| c.name == container.name && policy::is_sidecar(c))
    else {
        return false;
    };
    let later = init[own + 1..].iter().filter(|c| policy::is_sidecar(c));
    let mut before = later.chain(policy::regular_containers(pod));
    before.any(|c| alive.iter().any(|other| other.name == c.name))
}
