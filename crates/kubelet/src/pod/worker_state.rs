//! A worker's state beyond what the runtime shows.
//!
//! All of it may be lost: a new kubelet process starts from the status that the API server has, which brings back start time,
//! restart counts, readiness and resources; back-off starts over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodCondition, PodStatus};
use orlop_base::clock::Shift;

use super::observed::ObservedPod;
use super::resize::{Applied, Pending};

/// A container that ran so long restarts without back-off.
pub const BACKOFF_FORGET: Duration = Duration::from_secs(600);

/// Restart back-off: none for the first restart, then `first`, doubling up to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub first: Duration,
    pub most: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            first: Duration::from_secs(10),
            most: Duration::from_secs(300),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerState {
    /// The last computed status, or that of the API server.
    pub status: PodStatus,
    pub pace: Pace,
    /// By container name.
    pub backoffs: BTreeMap<String, Backoff>,
    /// By container name: its probe results.
    pub probes: BTreeMap<String, Probed>,
    /// By container name: why its last start failed.
    pub failures: BTreeMap<String, Failure>,
    /// When to retry after the pod as a whole could not be prepared (volumes, sandbox).
    pub hold: Option<Timestamp>,
    /// How often in a row that was so.
    pub mount_failures: u32,
    /// Until when the BackOff event of a container was recorded.
    pub reported_backoffs: BTreeMap<String, Timestamp>,
    /// A resize failed: not to be retried before.
    pub resize_hold: Option<Timestamp>,
    /// By container name: what was last set for it in the runtime.
    pub applied: BTreeMap<String, Applied>,
    /// What of the pod's own resources its cgroup was last set to.
    pub applied_to_pod: Option<Applied>,
    /// A resize that is infeasible or deferred.
    pub resize_pending: Option<Pending>,
    /// A resize in progress, and its error.
    pub resize_in_progress: Option<Pending>,
    /// Requests to terminate the pod other than its deletion.
    pub requests: Requests,
    /// The pod is terminating; set once, its grace period only shrinks.
    pub ending: Option<Ending>,
    /// By container id: the state of its preStop hook.
    pub hooks: BTreeMap<String, Hook>,
    /// By container id: the deadline of its StopContainer call.
    pub stops: BTreeMap<String, Timestamp>,
    /// Sandboxes that were stopped.
    pub stopped_sandboxes: BTreeSet<String>,
    /// Since when the sandbox and its containers are being stopped to be recreated.
    pub teardown: Option<Timestamp>,
    /// It was rejected at admission: nothing of it was created.
    pub rejected: bool,
    /// Volumes, cgroups and the rest are cleaned up.
    pub freed: bool,
    /// When this process started; older containers were adopted.
    pub agent_started: Timestamp,
    /// The pod IPs of its last ready sandbox: they stay in the status afterwards.
    pub ips: Vec<String>,
}

impl WorkerState {
    pub fn new(pod: &Pod, agent_started: Timestamp) -> WorkerState {
        WorkerState {
            status: pod.status.clone().unwrap_or_default(),
            agent_started,
            ..Default::default()
        }
    }

    pub fn probed(&self, name: &str, container_id: &str) -> Option<&Probed> {
        self.probes
            .get(name)
            .filter(|probed| probed.container_id == container_id)
    }

    /// Drops entries of containers and sandboxes that the runtime has no more.
    pub fn retain(&mut self, observed: &ObservedPod) {
        let ids: BTreeSet<&str> = observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.hooks.retain(|id, _| ids.contains(id.as_str()));
        self.stops.retain(|id, _| ids.contains(id.as_str()));
        self.stopped_sandboxes
            .retain(|id| observed.sandboxes.iter().any(|s| s.id == *id));
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub delay: Duration,
    /// When the container was last started after an end.
    pub since: Timestamp,
    /// Another image or other resources are another container.
    pub of: String,
}

impl Backoff {
    /// The back-off to hold after starting again a container that ended at `finished`.
    pub fn after(before: Option<&Backoff>, of: &str, finished: Timestamp, now: Timestamp, pace: Pace) -> Backoff {
        let delay = match before {
            Some(before) if before.counts(of, finished) => before.delay.saturating_mul(2).min(pace.most),
            _ => pace.first,
        };
        Backoff {
            delay,
            since: now,
            of: of.to_string(),
        }
    }

    /// Until when a container that ended at `finished` has to wait.
    pub fn until(&self, of: &str, finished: Timestamp) -> Option<Timestamp> {
        self.counts(of, finished).then(|| finished.later(self.delay))
    }

    fn counts(&self, of: &str, finished: Timestamp) -> bool {
        self.of == of && finished <= self.since.later(BACKOFF_FORGET)
    }
}

/// Probe results of a container; `None` where there is no result yet, or no such probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    pub container_id: String,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
    pub startup: Option<bool>,
}

/// Why a container waits: it could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub message: String,
    /// Not to be tried before.
    pub retry_at: Timestamp,
    /// The container was created: its start or its postStart hook failed.
    pub was_made: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// No source has the pod any more.
    pub removed: bool,
    pub evict: Option<Eviction>,
    pub suspend: Option<Suspension>,
}

/// The node stops: the pod's containers are stopped, and started again when the node is back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspension {
    /// At most this much of the pod's own grace period.
    pub grace_seconds: Option<i64>,
}

impl Suspension {
    pub fn limit(self, grace_seconds: i64) -> i64 {
        self.grace_seconds.map_or(grace_seconds, |most| most.min(grace_seconds))
    }
}

/// The node ends a pod that nobody deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    /// `Evicted`, `NodeShutdown` …
    pub reason: String,
    pub message: String,
    pub grace_seconds: Option<i64>,
    /// DisruptionTarget.
    pub condition: Option<PodCondition>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub grace_seconds: i64,
    /// When the grace is over.
    pub deadline: Timestamp,
    /// The phase is Failed for this reason, whatever the containers say.
    pub failed: Option<(String, String)>,
    /// The object, or all we knew of it, is to go as well.
    pub deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Running,
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_is_bounded_and_forgets() {
        let mut now = Timestamp::from_second(1000).unwrap();
        let mut backoff = None;
        let mut delays = vec![];
        for _ in 0..7 {
            let next = Backoff::after(backoff.as_ref(), "x", now, now, Pace::default());
            delays.push(next.delay.as_secs());
            now = next.until("x", now + Duration::from_secs(1)).unwrap();
            backoff = Some(next);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        let backoff = backoff.unwrap();
        let late = backoff.since + Duration::from_secs(601);
        assert_eq!(backoff.until("x", late), None);
        let again = |pace| Backoff::after(Some(&backoff), "x", late, late, pace).delay.as_secs();
        assert_eq!(again(Pace::default()), 10);
        let quick = Pace {
            first: Duration::from_secs(2),
            most: Duration::from_secs(2),
        };
        assert_eq!(again(quick), 2);
        assert_eq!(backoff.until("other image", backoff.since), None);
    }
}
