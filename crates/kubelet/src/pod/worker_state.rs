//! What a worker remembers of its pod beyond what the runtime shows.
//!
//! All of it may be lost: a new agent starts from the status that the API server has, which brings back start time,
//! restart counts, readiness and resources; back-off starts over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodCondition, PodStatus};
use orlop_base::clock::Shift;

use super::observed::ObservedPod;
use super::resize::{Applied, Pending};

/// After so long without an end of it a container starts at once again.
pub const BACKOFF_FORGET: Duration = Duration::from_secs(600);

/// A container that ended starts again at once, then after this long, doubling up to the most.
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
    /// The last status made, or what the API server had.
    pub status: PodStatus,
    pub pace: Pace,
    /// By container name.
    pub backoffs: BTreeMap<String, Backoff>,
    /// By container name: what its probes say.
    pub probes: BTreeMap<String, Probed>,
    /// By container name: why it could not be started the last time.
    pub failures: BTreeMap<String, Failure>,
    /// Why the pod as a whole could not be prepared (volumes, sandbox), and when to try again.
    pub hold: Option<Timestamp>,
    /// How often in a row that was so.
    pub mount_failures: u32,
    /// Until when the back-off of a container was told of.
    pub told_back_off: BTreeMap<String, Timestamp>,
    /// A resize failed: not to be tried before.
    pub resize_hold: Option<Timestamp>,
    /// By container name: what was last set for it in the runtime.
    pub applied: BTreeMap<String, Applied>,
    /// What of the pod's own resources its cgroup was last set to.
    pub applied_to_pod: Option<Applied>,
    /// A resize that the node has no room for, or not yet.
    pub resize_pending: Option<Pending>,
    /// A resize that is being carried out, and what went wrong with it.
    pub resize_in_progress: Option<Pending>,
    /// Someone asked to end the pod, other than by deleting it.
    pub requests: Requests,
    /// The pod ends; set once, its grace only shrinks.
    pub ending: Option<Ending>,
    /// By container id: what has been done to end it.
    pub hooks: BTreeMap<String, Hook>,
    /// By container id: the time by which it was told to end.
    pub stops: BTreeMap<String, Timestamp>,
    /// Sandboxes that were told to stop, and did.
    pub stopped_sandboxes: BTreeSet<String>,
    /// What runs is being taken down, though the pod goes on: since when.
    pub teardown: Option<Timestamp>,
    /// The node did not let it in: there was never anything of it.
    pub rejected: bool,
    /// Volumes, cgroups and the rest are freed.
    pub freed: bool,
    /// When this agent began; containers older than that were adopted.
    pub agent_started: Timestamp,
    /// The addresses it had while its sandbox was up: they stay in the status when it is gone.
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

    /// Forgets containers and sandboxes that the runtime has no more.
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

/// What the probes of a container say; `None` where there is no word yet, or no such probe.
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
    /// The container was made: it is its start that failed, or what was to follow.
    pub was_made: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// No source has the pod any more.
    pub removed: bool,
    pub evict: Option<Eviction>,
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
