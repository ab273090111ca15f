//! Container statuses: current state, last state, and why a container waits.

use orlop_api::types::core::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, Pod, PodStatus, ResourceRequirements, VolumeMountStatus,
};
use orlop_api::types::meta::Time;

use super::{Host, restarting_all, whole_seconds};
use crate::pod::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pod::policy::{self, Kind};
use crate::pod::resize;
use crate::pod::steps;
use crate::pod::worker_state::WorkerState;

pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const RESTARTING_ALL_MESSAGE: &str = "The container is removed because RestartAllContainers in place";
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Upstream: MaxPodTerminationMessageLogLength, for all containers of a pod together.
const MESSAGES_MAX: usize = 12 * 1024;

pub(super) struct Statuses {
    /// In the order of the spec.
    pub init: Vec<ContainerStatus>,
    /// By name.
    pub regular: Vec<ContainerStatus>,
    /// By name.
    pub ephemeral: Vec<ContainerStatus>,
}

pub(super) fn statuses(pod: &Pod, observed: &ObservedPod, memory: &WorkerState, host: &Host) -> Statuses {
    let old = &memory.status;
    let maker = Maker {
        pod,
        observed,
        memory,
        host,
        restarting: restarting_all(pod, observed, old),
    };
    let ephemeral = policy::ephemeral_containers(pod);
    let mut regular = maker.list(Kind::Regular, policy::regular_containers(pod), &old.container_statuses);
    let mut ephemeral = maker.list(Kind::Ephemeral, &ephemeral, &old.ephemeral_container_statuses);
    regular.sort_by(|a, b| a.name.cmp(&b.name));
    ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    let init = maker.list(Kind::Init, policy::init_containers(pod), &old.init_container_statuses);
    Statuses {
        init,
        regular,
        ephemeral,
    }
}

struct Maker<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    memory: &'a WorkerState,
    host: &'a Host,
    restarting: bool,
}

impl Maker<'_> {
    fn list(&self, kind: Kind, list: &[Container], old: &Option<Vec<ContainerStatus>>) -> Vec<ContainerStatus> {
        let one = |container: &Container| {
            let old = old.iter().flatten().find(|s| s.name == container.name);
            self.one(kind, container, old)
        };
        list.iter().map(one).collect()
    }

    fn one(&self, kind: Kind, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let mut seen = self.observed.containers.iter().filter(|c| c.name == container.name);
        let mut status = match seen.next() {
            None => self.unseen(container, old),
            Some(newest) => {
                let mut status = self.seen(container, newest, old);
                if let Some(before) = seen.next() {
                    status.last_state = Some(self.state(before, None));
                }
                status
            }
        };
        self.explain_waiting(kind, container, &mut status);
        if kind != Kind::Ephemeral {
            self.probed(kind, container, old, &mut status);
        }
        status
    }

    /// The runtime has none of that name.
    fn unseen(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let first = match policy::init_containers(self.pod).is_empty() {
            true => "ContainerCreating",
            false => "PodInitializing",
        };
        let mut status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(waiting(first, "")),
            volume_mounts: self.volume_mounts(container),
            ..Default::default()
        };
        let Some(old) = old else { return status };
        let old_state = old.state.clone().unwrap_or_default();
        if old_state.terminated.is_some() {
            status = old.clone();
        } else {
            status.restart_count = old.restart_count;
            status.last_state = old.last_state.clone();
        }
        if self.restarting && old_state.waiting.is_none() {
            status.state = Some(waiting(RESTARTING_ALL, RESTARTING_ALL_MESSAGE));
            status.last_state = Some(lost(RESTARTING_ALL, RESTARTING_ALL_MESSAGE));
            status.restart_count = old.restart_count + 1;
            status.container_id = None;
        } else if old_state.running.is_some() && status.last_state.as_ref().is_none_or(|s| s.terminated.is_none()) {
            // It ran and is gone: without an end the pod would seem never to have run.
            let message =
                "The container could not be located when the pod was deleted.  The container used to be Running";
            status.last_state = Some(lost(STATUS_UNKNOWN, message));
            status.restart_count += i32::from(self.pod.metadata.deletion_timestamp.is_none());
        }
        status
    }

    fn seen(&self, container: &Container, seen: &ObservedContainer, old: Option<&ContainerStatus>) -> ContainerStatus {
        let id = self.id(seen);
        let mut status = ContainerStatus {
            name: seen.name.clone(),
            image: seen.image.clone(),
            image_id: seen.image_ref.clone(),
            container_id: Some(id.clone()),
            restart_count: seen.restart_count as i32,
            state: Some(self.state(seen, old)),
            volume_mounts: self.volume_mounts(container),
            resources: Some(self.resources(container, seen)),
            allocated_resources: container.resources.as_ref().and_then(|r| r.requests.clone()),
            user: seen.user.as_ref().map(|user| ContainerUser {
                linux: Some(LinuxContainerUser {
                    uid: user.uid,
                    gid: user.gid,
                    supplemental_groups: super::some(user.supplemental_groups.clone()),
                }),
            }),
            ..Default::default()
        };
        let Some(old) = old else { return status };
        status.restart_count = status.restart_count.max(old.restart_count);
        let old_end = old.state.as_ref().and_then(|s| s.terminated.clone());
        let another = old.container_id.as_deref() != Some(id.as_str());
        match old_end.filter(|_| another) {
            Some(end) => {
                // Its predecessor was removed and took its count along.
                if seen.state == ObservedState::Running && old.restart_count >= seen.restart_count as i32 {
                    status.restart_count = old.restart_count + 1;
                }
                status.last_state = Some(ContainerState {
                    terminated: Some(end),
                    ..Default::default()
                });
            }
            None => status.last_state = old.last_state.clone().filter(|s| s.terminated.is_some()),
        }
        // How it ended does not change, but the file with its last words may be gone.
        if !another && seen.state == ObservedState::Exited && old.state.as_ref().is_some_and(|s| s.terminated.is_some())
        {
            status.state = old.state.clone();
        }
        if seen.state == ObservedState::Unknown && old.state.as_ref().is_some_and(|s| s.running.is_some()) {
            status.restart_count = old.restart_count + 1;
        }
        status
    }

    fn id(&self, seen: &ObservedContainer) -> String {
        format!("{}://{}", self.host.runtime_name, seen.id)
    }

    fn state(&self, seen: &ObservedContainer, old: Option<&ContainerStatus>) -> ContainerState {
        // As upstream: what never started did so in 1970.
        let time = |t: Option<jiff::Timestamp>| Some(Time(whole_seconds(t.unwrap_or_default())));
        match seen.state {
            ObservedState::Running => ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: time(seen.started_at),
                }),
                ..Default::default()
            },
            ObservedState::Exited => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: seen.exit_code,
                    reason: told(&seen.reason),
                    message: told(&seen.message),
                    started_at: time(seen.started_at),
                    finished_at: time(seen.finished_at),
                    container_id: Some(self.id(seen)),
                    signal: None,
                }),
                ..Default::default()
            },
            ObservedState::Unknown if old.and_then(|s| s.state.as_ref()).is_some_and(|s| s.running.is_some()) => {
                let reason = if self.restarting {
                    RESTARTING_ALL
                } else {
                    STATUS_UNKNOWN
                };
                lost(reason, "The container could not be located when the pod was terminated")
            }
            ObservedState::Created | ObservedState::Unknown => waiting("", ""),
        }
    }

    /// A container that is about to be (re)started is waiting, if there is a reason.
    fn explain_waiting(&self, kind: Kind, container: &Container, status: &mut ContainerStatus) {
        let seen = self.observed.latest(&container.name);
        let sidecar = policy::is_sidecar(container);
        if kind == Kind::Init {
            if seen.is_some_and(|seen| seen.state == ObservedState::Exited && seen.exit_code == 0) {
                return;
            }
            let follower = |c: &Container| {
                let seen = self.observed.latest(&c.name);
                seen.is_some_and(|seen| seen.state != ObservedState::Unknown)
            };
            let waits = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
            if seen.is_none() && !sidecar && waits && policy::regular_containers(self.pod).iter().any(follower) {
                status.state = Some(assumed_completed());
                return;
            }
        }
        let again = match seen {
            _ if self.pod.metadata.deletion_timestamp.is_some() => false,
            None => true,
            Some(seen) => match seen.state {
                ObservedState::Running => false,
                ObservedState::Created | ObservedState::Unknown => true,
                ObservedState::Exited if kind == Kind::Ephemeral => false,
                ObservedState::Exited => policy::restarts_after_exit(self.pod, container, seen.exit_code),
            },
        };
        let Some((reason, message)) = self.waiting_reason(container, seen).filter(|_| again) else {
            return;
        };
        if let Some(state) = status.state.take().filter(|state| state.terminated.is_some()) {
            status.last_state = Some(state);
        }
        status.state = Some(waiting(&reason, &message));
    }

    fn waiting_reason(&self, container: &Container, seen: Option<&ObservedContainer>) -> Option<(String, String)> {
        if let Some(failure) = self.memory.failures.get(&container.name) {
            return Some((failure.reason.clone(), failure.message.clone()));
        }
        let ended = seen.filter(|seen| seen.state == ObservedState::Exited)?;
        let backoff = self.memory.backoffs.get(&container.name)?;
        let until = backoff.until(&steps::identity(container), ended.finished_at?)?;
        // How it ended is shown once before it is shown that it waits.
        self.memory
            .reported_backoffs
            .get(&container.name)
            .filter(|told| **told == until)?;
        let (delay, name) = (go_duration(backoff.delay), &container.name);
        let message = format!(
            "back-off {delay} restarting failed container={name} pod={}",
            policy::described(self.pod)
        );
        Some(("CrashLoopBackOff".into(), message))
    }

    /// `started` and `ready`, as the probes say.
    fn probed(&self, kind: Kind, container: &Container, old: Option<&ContainerStatus>, status: &mut ContainerStatus) {
        let seen = self
            .observed
            .latest(&container.name)
            .filter(|seen| seen.state == ObservedState::Running);
        let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
        let probed = seen.and_then(|seen| self.memory.probed(&container.name, &seen.id));
        let same = old.filter(|old| old.container_id == status.container_id);
        let started = runs
            && match probed.and_then(|p| p.startup) {
                Some(started) => started,
                None => container.startup_probe.is_none() || same.is_some_and(|old| old.started == Some(true)),
            };
        status.started = Some(started);
        if kind == Kind::Init && !policy::is_sidecar(container) {
            let end = status.state.as_ref().and_then(|s| s.terminated.as_ref());
            status.ready = end.is_some_and(|end| end.exit_code == 0);
            return;
        }
        status.ready = started
            && match probed.and_then(|p| p.readiness) {
                Some(ready) => ready,
                None if container.readiness_probe.is_none() => true,
                // Adopted by a new kubelet process: what it was holds until its probe says otherwise.
                None => {
                    let adopted = seen
                        .and_then(|seen| seen.started_at)
                        .is_some_and(|t| t < self.memory.agent_started);
                    adopted && same.is_some_and(|old| old.ready)
                }
            };
    }

    fn volume_mounts(&self, container: &Container) -> Option<Vec<VolumeMountStatus>> {
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        let status = |mount: &orlop_api::types::core::VolumeMount| {
            let read_only = mount.read_only == Some(true);
            let recursive = match mount.recursive_read_only.as_deref() {
                Some("Enabled") => true,
                Some("IfPossible") => self.host.recursive_read_only,
                _ => false,
            };
            let recursive = if recursive { "Enabled" } else { "Disabled" };
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| recursive.to_string()),
                volume_status: None,
            }
        };
        super::some(mounts.iter().map(status).collect())
    }

    /// The container's actual resources, as written in the spec where they are the same.
    fn resources(&self, container: &Container, seen: &ObservedContainer) -> ResourceRequirements {
        let wanted = container.resources.clone().unwrap_or_default();
        let applied = self.memory.applied.get(&container.name);
        match applied.filter(|_| seen.state == ObservedState::Running) {
            Some(applied) => resize::told(wanted, applied),
            None => wanted,
        }
    }
}

fn told(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: told(reason),
            message: told(message),
        }),
        ..Default::default()
    }
}

/// The end of a container that nobody saw.
fn lost(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: told(reason),
            message: told(message),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn assumed_completed() -> ContainerState {
    let message = "Unable to get init container status from container runtime and pod has been initialized, \
                   treat it as exited normally";
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: told("Completed"),
            message: told(message),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// As Go prints whole seconds: `10s`, `1m20s`, `5m0s`.
fn go_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

/// The last status of a pod of which nothing is left: what never came to an end that was seen has one now.
pub(super) fn finalize(pod: &Pod, status: &mut PodStatus) {
    let message = "The container could not be located when the pod was terminated";
    let end = |status: &mut ContainerStatus| {
        if status.state.as_ref().is_none_or(|s| s.terminated.is_none()) {
            status.state = Some(lost(STATUS_UNKNOWN, message));
            status.ready = false;
            status.started = status.started.map(|_| false);
        }
    };
    if was_initialized(pod, status) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    let init = status.init_container_statuses.iter_mut().flatten();
    let begun = |s: &ContainerStatus| {
        let waits = s.state.as_ref().is_some_and(|s| s.waiting.is_some());
        !waits || s.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
    };
    let mut init: Vec<&mut ContainerStatus> = init.collect();
    let count = init.iter().rposition(|s| begun(s)).map_or(1, |last| last + 1);
    init.iter_mut().take(count).for_each(|status| end(status));
}

fn was_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let init = policy::init_containers(pod);
    let Some(last) = init.last() else { return true };
    let moved = |s: &ContainerStatus| {
        let ended = s.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
        ended || s.state.as_ref().is_none_or(|s| s.waiting.is_none())
    };
    if status.container_statuses.iter().flatten().any(moved) {
        return true;
    }
    let of_last = status
        .init_container_statuses
        .iter()
        .flatten()
        .find(|s| s.name == last.name);
    of_last.is_some_and(|s| match policy::is_sidecar(last) {
        true => s.started == Some(true),
        false => s.ready,
    })
}

/// Messages of all containers share a bound.
pub(super) fn cut_messages(pod: &Pod, status: &mut PodStatus) {
    let ephemeral = policy::spec(pod).ephemeral_containers.as_deref().unwrap_or_default();
    let count = policy::init_containers(pod).len() + policy::regular_containers(pod).len() + ephemeral.len();
    let max = MESSAGES_MAX / count.max(1);
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for status in lists.into_iter().flat_map(|list| list.iter_mut().flatten()) {
        for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
            if let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut())
                && message.len() > max
            {
                message.truncate(message.floor_char_boundary(max));
            }
        }
    }
}
