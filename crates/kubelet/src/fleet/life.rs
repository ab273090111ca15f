//! The life of a simulated pod: what it is doing, and what it does next when. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::behaviour::{Behaviour, restart_delay};

/// What is read of a pod, once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Kind of the controlling owner.
    pub owner: Option<String>,
    pub host_network: bool,
    pub restart_policy: RestartPolicy,
    /// (name, image)
    pub init_containers: Vec<(String, String)>,
    pub containers: Vec<(String, String)>,
    pub deleting: Option<Deleting>,
    pub phase: String,
    pub ip: Option<String>,
    pub restarts: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// The pod is to go: at once, since nothing in it needs time to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleting;

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Bound, not started.
    Waiting,
    /// Running; ready since then or not yet.
    Running { ready: bool },
    /// Ended, to run again later.
    BackOff,
    /// Ended for good.
    Finished { failed: bool },
    /// Its object is being deleted.
    Leaving,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    pub stage: Stage,
    pub at: Timestamp,
}

/// Where a pod stands that is seen for the first time (at a start it may have lived for long).
pub fn first(pod: &PodView) -> Stage {
    match pod.phase.as_str() {
        _ if pod.deleting.is_some() => Stage::Leaving,
        "Succeeded" => Stage::Finished { failed: false },
        "Failed" => Stage::Finished { failed: true },
        "Running" => Stage::Running { ready: true },
        _ => Stage::Waiting,
    }
}

/// What follows on the stage that began at `since`, if anything does by itself.
pub fn next(
    stage: Stage,
    since: Timestamp,
    behaviour: &Behaviour,
    policy: RestartPolicy,
    restarts: u32,
) -> Option<Next> {
    let after = |delay: Duration| since.checked_add(delay).unwrap_or(Timestamp::MAX);
    match stage {
        Stage::Waiting => Some(Next {
            stage: Stage::Running {
                ready: behaviour.ready_delay.is_zero(),
            },
            at: after(behaviour.start_delay),
        }),
        Stage::Running { ready: false } => {
            let ready = Next {
                stage: Stage::Running { ready: true },
                at: after(behaviour.ready_delay),
            };
            // Some end before they are ready.
            Some(match ended(since, behaviour, policy) {
                Some(end) if end.at < ready.at => end,
                _ => ready,
            })
        }
        Stage::Running { ready: true } => ended(since, behaviour, policy),
        Stage::BackOff => Some(Next {
            stage: Stage::Running {
                ready: behaviour.ready_delay.is_zero(),
            },
            at: after(restart_delay(restarts)),
        }),
        Stage::Finished { .. } | Stage::Leaving => None,
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
