//! Init containers: one after the other, each to completion; sidecars among them until they have started, and from then on
//! for as long as the pod lives.

use orlop_api::types::core::{Container, Pod};

use super::{Kill, kill, own_grace, unknown};
use crate::pod::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pod::policy;
use crate::pod::worker_state::WorkerState;

#[derive(Default)]
pub(super) struct InitPlan {
    pub kill: Vec<Kill>,
    /// Indexes, in no order.
    pub start: Vec<usize>,
    /// One failed for good.
    pub kill_pod: bool,
    pub initialized: bool,
    /// Those that run and go on.
    pub resizable: Vec<usize>,
}

/// What one init container means for the next.
enum InitProgress {
    /// It ran, or a sidecar has started.
    Passed,
    /// Still at it, or to be started again.
    Pending,
    FailedForGood,
}

/// Goes backwards: the last init container that has been created is the one that counts, since those before it may have
/// been removed from the runtime; before it only sidecars are of interest.
pub(super) fn plan(pod: &Pod, observed: &ObservedPod, memory: &WorkerState) -> InitPlan {
    let containers = policy::init_containers(pod);
    let mut plan = InitPlan {
        initialized: containers.is_empty(),
        ..Default::default()
    };
    let Some(last) = containers.len().checked_sub(1) else {
        return plan;
    };
    // Containers that have ended don't count: they may have run in a former sandbox.
    let regular_runs = policy::regular_containers(pod).iter().any(|c| {
        let state = observed.latest(&c.name).map(|seen| seen.state);
        matches!(state, Some(ObservedState::Created | ObservedState::Running))
    });
    plan.initialized = regular_runs;
    let mut passed = regular_runs;
    for (index, container) in containers.iter().enumerate().rev() {
        let sidecar = policy::is_sidecar(container);
        let Some(seen) = observed.latest(&container.name) else {
            if passed && sidecar {
                plan.start.push(index);
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let outcome = match sidecar {
            true => sidecar_outcome(&mut plan, pod, container, index, seen, memory),
            false => outcome(&mut plan, pod, container, index, seen),
        };
        match outcome {
            InitProgress::Passed if index == last => plan.initialized = true,
            InitProgress::Passed if !passed => plan.start.push(index + 1),
            InitProgress::Passed | InitProgress::Pending => {}
            InitProgress::FailedForGood => {
                return InitPlan {
                    kill_pod: true,
                    ..Default::default()
                };
            }
        }
        passed = true;
    }
    if !passed {
        plan.start.push(0);
    }
    plan
}

fn outcome(
    plan: &mut InitPlan,
    pod: &Pod,
    container: &Container,
    index: usize,
    seen: &ObservedContainer,
) -> InitProgress {
    let again = match seen.state {
        ObservedState::Running => {
            plan.resizable.push(index);
            return InitProgress::Pending;
        }
        // The runtime could not start it.
        ObservedState::Created => true,
        ObservedState::Exited if seen.exit_code == 0 => return InitProgress::Passed,
        ObservedState::Exited => policy::restarts_after_exit(pod, container, seen.exit_code),
        ObservedState::Unknown => policy::restarts_when_killed(pod, container),
    };
    if !again {
        return InitProgress::FailedForGood;
    }
    if seen.state == ObservedState::Unknown {
        plan.kill
            .push(kill(pod, container, seen, unknown("Init container"), None));
    }
    plan.start.push(index);
    InitProgress::Pending
}

fn sidecar_outcome(
    plan: &mut InitPlan,
    pod: &Pod,
    container: &Container,
    index: usize,
    seen: &ObservedContainer,
    memory: &WorkerState,
) -> InitProgress {
    let name = &container.name;
    match seen.state {
        ObservedState::Running => {}
        ObservedState::Unknown => {
            plan.kill
                .push(kill(pod, container, seen, unknown("Init container"), None));
            plan.start.push(index);
            return InitProgress::Pending;
        }
        ObservedState::Created | ObservedState::Exited => {
            plan.start.push(index);
            return InitProgress::Pending;
        }
    }
    let probed = memory.probed(name, &seen.id);
    let mut restart = |message: String, grace| {
        plan.kill.push(kill(pod, container, seen, message, grace));
        plan.start.push(index);
    };
    if container.startup_probe.is_some() {
        match probed.and_then(|p| p.startup) {
            Some(true) => {}
            Some(false) => {
                restart(
                    format!("Init container {name} failed startup probe"),
                    own_grace(&container.startup_probe),
                );
                return InitProgress::Pending;
            }
            None => return InitProgress::Pending,
        }
    }
    // It has started, whatever comes now: the next may start.
    if seen.hash != policy::fingerprint(container) {
        restart(format!("Init container {name} definition changed"), None);
    } else if probed.is_some_and(|p| p.liveness == Some(false)) {
        restart(
            format!("Init container {name} failed liveness probe"),
            own_grace(&container.liveness_probe),
        );
    } else {
        plan.resizable.push(index);
    }
    InitProgress::Passed
}
