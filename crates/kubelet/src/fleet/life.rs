//! The life of a simulated pod: what it is doing, and what it does next when. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::admission::{Placement, PodResources};
use super::behaviour::Behaviour;
use super::conditions::{ReportedCondition, standing};
use super::report::{CONDITIONS, CONTAINERS_READY};
use crate::pod::worker_state::{BACKOFF_FORGET, Pace};

/// What is read of a pod, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub revision: u64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Kind of the controlling owner.
    pub owner: Option<String>,
    pub host_network: bool,
    pub restart_policy: RestartPolicy,
    pub init_containers: Vec<InitContainer>,
    /// (name, image)
    pub containers: Vec<(String, String)>,
    pub pod_resources: PodResources,
    pub placement: Placement,
    /// The conditions that must hold for it to be ready.
    pub gates: Vec<String>,
    pub deleting: Option<Deleting>,
    pub phase: String,
    pub started: Option<Timestamp>,
    pub ip: Option<String>,
    pub conditions: Vec<ReportedCondition>,
    pub restarts: u32,
    /// Whether its containers run, and since when.
    pub runs: bool,
    pub run_began: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct InitContainer {
    /// (name, image)
    pub container: (String, String),
    /// It is restartable: instead of coming to an end it runs beside the containers.
    pub sidecar: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub(super) enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// The pod is to go: at once, since nothing in it needs time to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deleting;

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Bound, not started.
    Waiting,
    /// Running; ready since then or not yet.
    Running { ready: bool },
    /// Termination, to run again: at once or later.
    BackOff,
    /// Termination for good.
    Finished { failed: bool },
    /// Its object is being deleted.
    Leaving,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub stage: Stage,
    pub at: Timestamp,
}

/// Where a pod stands and how it came there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub stage: Stage,
    /// When the stage began; a run goes on when it becomes ready.
    pub since: Timestamp,
    /// When it was first started.
    pub started: Timestamp,
    pub restarts: u32,
    /// How often it was started again since it last ran long enough to be considered healthy.
    pub in_row: u8,
}

/// Where a pod stands that is seen for the first time (at a start it may have lived for long).
pub(super) fn first(pod: &PodView, now: Timestamp) -> Life {
    let containers_ready = standing(CONDITIONS, &pod.conditions)[CONTAINERS_READY];
    let stage = match pod.phase.as_str() {
        _ if pod.deleting.is_some() => Stage::Leaving,
        "Succeeded" => Stage::Finished { failed: false },
        "Failed" => Stage::Finished { failed: true },
        "Running" if pod.runs => Stage::Running {
            ready: containers_ready == Some(true),
        },
        // Upstream: a new kubelet knows of no back-off.
        "Running" => Stage::BackOff,
        _ => Stage::Waiting,
    };
    Life {
        stage,
        since: pod.run_began.unwrap_or(now),
        started: pod.started.unwrap_or(now),
        restarts: pod.restarts,
        in_row: 0,
    }
}

impl Life {
    /// What follows, if anything does by itself.
    pub(super) fn next(&self, behaviour: &Behaviour, policy: RestartPolicy) -> Option<Next> {
        let after = |delay: Duration| self.since.checked_add(delay).unwrap_or(Timestamp::MAX);
        let running = |delay: Duration| Next {
            stage: Stage::Running {
                ready: behaviour.ready_delay.is_zero(),
            },
            at: after(delay),
        };
        match self.stage {
            Stage::Waiting => Some(running(behaviour.start_delay)),
            Stage::Running { ready: false } => {
                let ready = Next {
                    stage: Stage::Running { ready: true },
                    at: after(behaviour.ready_delay),
                };
                // Some end before they are ready.
                Some(match ended(self.since, behaviour, policy) {
                    Some(end) if end.at < ready.at => end,
                    _ => ready,
                })
            }
            Stage::Running { ready: true } => ended(self.since, behaviour, policy),
            Stage::BackOff => Some(running(self.back_off())),
            Stage::Finished { .. } | Stage::Leaving => None,
        }
    }

    pub(super) fn enter(&mut self, stage: Stage, now: Timestamp) {
        let before = std::mem::replace(&mut self.stage, stage);
        match (before, stage) {
            // How long a pod runs counts from its start.
            (Stage::Running { .. }, Stage::Running { .. }) => return,
            (Stage::Waiting, _) => self.started = now,
            (Stage::Running { .. }, Stage::BackOff) if ran_long(self.since, now) => self.in_row = 0,
            (Stage::BackOff, _) => {
                self.restarts += 1;
                self.in_row = self.in_row.saturating_add(1);
            }
            _ => {}
        }
        self.since = now;
    }

    /// How long it waits to run again once it has ended.
    pub(super) fn back_off(&self) -> Duration {
        back_off(self.in_row)
    }

    /// When the last run that came to an end did so.
    pub(super) fn ended(&self) -> Timestamp {
        let waited = match self.stage {
            Stage::Running { .. } => back_off(self.in_row.saturating_sub(1)),
            _ => Duration::ZERO,
        };
        self.since.checked_sub(waited).unwrap_or(self.since)
    }
}

fn ended(since: Timestamp, behaviour: &Behaviour, policy: RestartPolicy) -> Option<Next> {
    let at = since.checked_add(behaviour.run_for?).unwrap_or(Timestamp::MAX);
    let failed = behaviour.exit_code != 0;
    let again = match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => failed,
        RestartPolicy::Never => false,
    };
    let stage = if again {
        Stage::BackOff
    } else {
        Stage::Finished { failed }
    };
    Some(Next { stage, at })
}

/// The first time nobody waits.
// Upstream: pkg/kubelet/kuberuntime doBackOff, client-go util/flowcontrol Backoff (v1.36)
fn back_off(in_row: u8) -> Duration {
    let Some(doubled) = in_row.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1u32.checked_shl(doubled.into()).unwrap_or(u32::MAX);
    let pace = Pace::default();
    pace.first.saturating_mul(factor).min(pace.most)
}

/// Whether a run was so long that what went wrong before it does not count any more.
fn ran_long(since: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|ran| ran > BACKOFF_FORGET)
}
