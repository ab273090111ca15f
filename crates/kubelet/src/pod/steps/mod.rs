//! What to do next for a pod, given its spec, the observed containers, the worker's state and the time.
//!
//! ```text
//!            Run ──────────────▶ Stop ──▶ Free ──▶ Done
//!             ▲  all ended, deleted,  │
//!             │  evicted, too late    │
//!             └───────────────────────┘
//!              only the sandbox is to be recreated
//! ```
//!
//! When the node stops, a pod that is to go on is stopped and stays so: Run, Stop, Suspended.
//!
//! The shell takes the steps in the order of the fields, looks at the runtime, and asks again. Nothing here depends on
//! having been asked before: lost events, a restart of the kubelet or a failed step only mean that the same steps come
//! out once more.

mod ending;
mod init;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Container, Pod};

use super::observed::{ObservedContainer, ObservedPod, ObservedState};
use super::policy::{self, ContainerRef, Kind};
use super::resize::{self, Applied};
use super::status;
use super::worker_state::{Backoff, Ending, Failure, WorkerState};

pub use ending::{Stop, StopContainer, StopWhy};

/// Upstream: whatever the grace period, a container has this long between being asked and being killed.
pub const GRACE_MIN: i64 = 2;

#[derive(Clone, Debug, PartialEq)]
pub enum Steps {
    /// Sync the containers with the pod's spec.
    Run(Box<Run>),
    /// Stop what runs.
    Stop(Box<Stop>),
    /// The node stops, and nothing of the pod runs: it goes on when the node is back.
    Suspended,
    /// Nothing of the pod runs any more, or will: clean up volumes, cgroups and the rest.
    Free(Ending),
    /// There is nothing left to do here.
    Done(Ending),
}

/// Steps of a pod that is to run, to be taken in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    pub kill: Vec<Kill>,
    /// Containers to remove, running or not, so that all can restart.
    pub reset: Vec<Reset>,
    /// Dead containers to remove.
    pub remove: Vec<String>,
    pub sandbox: SandboxStep,
    pub resize: Vec<Resize>,
    /// The pod's own cgroup is to be updated.
    pub resize_pod: bool,
    /// In this order. If an init container that is no sidecar can't be started, nothing after it is.
    pub start: Vec<Start>,
    /// Containers that wait for their back-off to pass.
    pub held: Vec<Held>,
    /// When to sync again at the latest.
    pub wake: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxStep {
    #[default]
    None,
    Create {
        attempt: u32,
    },
    /// It is there already.
    Keep {
        id: String,
        attempt: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub grace_seconds: i64,
    /// What the event says.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    pub id: String,
    pub name: String,
    pub running: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    pub id: String,
    pub name: String,
    pub from: Applied,
    pub to: Applied,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub place: ContainerRef,
    pub name: String,
    /// `None` if the runtime has no container of that name: it is counted from the logs then.
    pub restart_count: Option<u32>,
    /// To be remembered when it is started.
    pub backoff: Option<Backoff>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub place: ContainerRef,
    pub name: String,
    pub delay: Duration,
    pub until: Timestamp,
}

/// The steps to take now.
pub fn next_steps(pod: &Pod, observed: &ObservedPod, memory: &WorkerState, now: Timestamp) -> Steps {
    if let Some(ending) = ending::ending(pod, observed, memory, now) {
        let stop = ending::stop(pod, observed, memory, Some(ending.clone()), StopWhy::Ending, now);
        return match (stop, memory.freed) {
            (Some(stop), _) => Steps::Stop(Box::new(stop)),
            (None, false) => Steps::Free(ending),
            (None, true) => Steps::Done(ending),
        };
    }
    if memory.requests.suspend.is_some() {
        let stop = ending::stop(pod, observed, memory, None, StopWhy::Suspended, now);
        return stop.map_or(Steps::Suspended, |stop| Steps::Stop(Box::new(stop)));
    }
    let mut planner = Planner::new(pod, observed, memory, now);
    if let Some(why) = planner.plan()
        && let Some(stop) = ending::stop(pod, observed, memory, None, why, now)
    {
        return Steps::Stop(Box::new(stop));
    }
    planner.at(ending::active_deadline(pod, memory));
    Steps::Run(Box::new(planner.run))
}

/// The sandbox the pod needs: whether a new one, which attempt it is, and the one there is.
pub fn sandbox_needed<'a>(pod: &Pod, observed: &'a ObservedPod) -> (bool, u32, Option<&'a str>) {
    let Some(newest) = observed.sandboxes.first() else {
        return (true, 0, None);
    };
    let several = observed.sandboxes.iter().filter(|s| s.ready).count() > 1;
    let host_network = policy::is_host_network(pod);
    let no_address = !host_network && newest.has_network && newest.ips.is_empty();
    if several || !newest.ready || newest.host_network != host_network || no_address {
        return (true, newest.attempt + 1, Some(&newest.id));
    }
    (false, newest.attempt, Some(&newest.id))
}

struct Planner<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    memory: &'a WorkerState,
    now: Timestamp,
    run: Run,
    /// Init containers to start, by index; then regular ones.
    init: Vec<usize>,
    regular: Vec<usize>,
}

impl<'a> Planner<'a> {
    fn new(pod: &'a Pod, observed: &'a ObservedPod, memory: &'a WorkerState, now: Timestamp) -> Planner<'a> {
        Planner {
            pod,
            observed,
            memory,
            now,
            run: Run::default(),
            init: vec![],
            regular: vec![],
        }
    }

    fn at(&mut self, time: Option<Timestamp>) {
        self.run.wake = [self.run.wake, time].into_iter().flatten().min();
    }

    /// Plans; the answer is why all that runs is to be taken down first.
    fn plan(&mut self) -> Option<StopWhy> {
        let (changed, attempt, id) = sandbox_needed(self.pod, self.observed);
        let new = changed && self.wants_sandbox(attempt);
        self.run.sandbox = match (new, id) {
            (true, _) => SandboxStep::Create { attempt },
            (false, Some(id)) if !changed => SandboxStep::Keep {
                id: id.to_string(),
                attempt,
            },
            _ => SandboxStep::None,
        };
        if status::restarting_all(self.pod, self.observed, &self.memory.status) {
            self.reset_all();
            return None;
        }
        if changed {
            if new {
                self.start_over();
            }
            self.starts();
            return Some(if new {
                StopWhy::SandboxChanged
            } else {
                StopWhy::Finished
            });
        }
        let kill_all = self.plan_containers();
        if kill_all {
            return Some(StopWhy::Finished);
        }
        self.prune_init();
        self.starts();
        None
    }

    /// Whether a pod without a usable sandbox still has something to run.
    fn wants_sandbox(&self, attempt: u32) -> bool {
        if !policy::restarts_on_failure(self.pod) && attempt != 0 && !self.observed.containers.is_empty() {
            // The containers have ended, and the pod says that they do not start again.
            let again = |c: &Container| {
                let seen = self.observed.latest(&c.name);
                seen.is_none_or(|seen| c.restart_policy.is_some() && self.may_restart(c, seen))
            };
            let has_own_policies = policy::regular_containers(self.pod)
                .iter()
                .any(|c| c.restart_policy.is_some());
            return has_own_policies && policy::regular_containers(self.pod).iter().any(again);
        }
        !self.starting_over().is_empty() || !self.any_regular_created()
    }

    fn may_restart(&self, container: &Container, seen: &ObservedContainer) -> bool {
        match seen.state {
            ObservedState::Exited => policy::restarts_after_exit(self.pod, container, seen.exit_code),
            _ => policy::restarts_when_killed(self.pod, container),
        }
    }

    fn any_regular_created(&self) -> bool {
        let mut regular = policy::regular_containers(self.pod).iter();
        regular.any(|c| {
            self.observed
                .latest(&c.name)
                .is_some_and(|seen| seen.state != ObservedState::Unknown)
        })
    }

    /// Regular containers that start in a new sandbox: all but those which succeeded and need not run again.
    fn starting_over(&self) -> Vec<usize> {
        let indexed = policy::regular_containers(self.pod).iter().enumerate();
        let due = indexed.filter(|(_, c)| {
            let own = c.restart_policy.as_deref();
            let once = own.or(policy::spec(self.pod).restart_policy.as_deref()) == Some("OnFailure");
            let succeeded = |seen: &ObservedContainer| seen.state == ObservedState::Exited && seen.exit_code == 0;
            !(once && self.observed.latest(&c.name).is_some_and(succeeded))
        });
        due.map(|(index, _)| index).collect()
    }

    fn start_over(&mut self) {
        if policy::init_containers(self.pod).is_empty() {
            self.regular = self.starting_over();
            return;
        }
        self.init = vec![0];
        // Init containers of the old sandbox would look as if they had run in the new one.
        let old = policy::init_containers(self.pod).iter();
        let old = old.flat_map(|c| self.observed.containers.iter().filter(|seen| seen.name == c.name));
        self.run.remove = old.map(|seen| seen.id.clone()).collect();
    }

    /// Removes all containers, those that triggered it last, so that the trigger survives an interruption.
    fn reset_all(&mut self) {
        let caused = |c: &Container, seen: &ObservedContainer| {
            seen.state == ObservedState::Exited && policy::restarts_all(c, seen.exit_code)
        };
        for causes in [false, true] {
            let lists = [policy::regular_containers(self.pod), policy::init_containers(self.pod)];
            for container in lists.into_iter().flatten() {
                let seen = self
                    .observed
                    .containers
                    .iter()
                    .filter(|seen| seen.name == container.name);
                let seen = seen.filter(|seen| caused(container, seen) == causes);
                self.run.reset.extend(seen.map(|seen| Reset {
                    id: seen.id.clone(),
                    name: seen.name.clone(),
                    running: seen.state != ObservedState::Exited,
                }));
            }
        }
    }

    /// Init containers that ended and were followed by another of their name.
    fn prune_init(&mut self) {
        for container in policy::init_containers(self.pod) {
            let dead = |seen: &&ObservedContainer| {
                seen.name == container.name && matches!(seen.state, ObservedState::Exited | ObservedState::Unknown)
            };
            let old = self.observed.containers.iter().filter(dead).skip(1);
            self.run.remove.extend(old.map(|seen| seen.id.clone()));
        }
    }

    /// The containers in a sandbox that stays. Whether all are to be killed since none has anything left to do.
    fn plan_containers(&mut self) -> bool {
        let ephemeral = policy::spec(self.pod)
            .ephemeral_containers
            .as_deref()
            .unwrap_or_default();
        for (index, container) in ephemeral.iter().enumerate() {
            // Never started again.
            if self.observed.latest(&container.name).is_none() {
                self.queue(
                    ContainerRef {
                        kind: Kind::Ephemeral,
                        index,
                    },
                    &container.name,
                    "",
                    true,
                );
            }
        }
        let init = init::plan(self.pod, self.observed, self.memory);
        if init.kill_pod {
            return true;
        }
        self.run.kill.extend(init.kill);
        self.init = init.start;
        for index in init.resizable {
            self.resize(
                &policy::init_containers(self.pod)[index],
                ContainerRef {
                    kind: Kind::Init,
                    index,
                },
            );
        }
        self.resize_pod();
        if !init.initialized {
            return false;
        }
        let kept = self.plan_regular();
        kept == 0 && self.regular.is_empty()
    }

    /// How many regular containers run and go on.
    fn plan_regular(&mut self) -> usize {
        let mut kept = 0;
        for (index, container) in policy::regular_containers(self.pod).iter().enumerate() {
            let seen = self.observed.latest(&container.name);
            let Some(seen) = seen.filter(|seen| seen.state == ObservedState::Running) else {
                if seen.is_none_or(|seen| self.is_started_again(container, seen)) {
                    self.regular.push(index);
                    if let Some(seen) = seen.filter(|seen| seen.state == ObservedState::Unknown) {
                        self.run
                            .kill
                            .push(kill(self.pod, container, seen, unknown("Container"), None));
                    }
                }
                continue;
            };
            let name = &container.name;
            let mut restart = policy::restarts_when_killed(self.pod, container);
            let probed = self.memory.probed(name, &seen.id);
            let (message, grace) = if seen.hash != policy::fingerprint(container) {
                restart = true;
                (format!("Container {name} definition changed"), None)
            } else if probed.is_some_and(|p| p.liveness == Some(false)) {
                (
                    format!("Container {name} failed liveness probe"),
                    own_grace(&container.liveness_probe),
                )
            } else if probed.is_some_and(|p| p.startup == Some(false)) {
                (
                    format!("Container {name} failed startup probe"),
                    own_grace(&container.startup_probe),
                )
            } else {
                let restarts = self.resize(
                    container,
                    ContainerRef {
                        kind: Kind::Regular,
                        index,
                    },
                );
                kept += usize::from(!restarts);
                continue;
            };
            let message = if restart {
                format!("{message}, will be restarted")
            } else {
                message
            };
            if restart {
                self.regular.push(index);
            }
            self.run.kill.push(kill(self.pod, container, seen, message, grace));
        }
        kept
    }

    /// Whether a container that does not run starts again.
    fn is_started_again(&self, container: &Container, seen: &ObservedContainer) -> bool {
        match seen.state {
            ObservedState::Running => false,
            ObservedState::Created | ObservedState::Unknown => true,
            ObservedState::Exited => policy::restarts_after_exit(self.pod, container, seen.exit_code),
        }
    }

    /// Plans a change of what the pod says beside its containers.
    fn resize_pod(&mut self) {
        let applied = self.memory.applied_to_pod;
        if applied.is_none_or(|applied| applied == Applied::of_pod(self.pod)) {
            return;
        }
        match self.memory.resize_hold.filter(|hold| *hold > self.now) {
            Some(hold) => self.at(Some(hold)),
            None => self.run.resize_pod = true,
        }
    }

    /// Plans a change of cpu and memory; whether it starts the container again.
    fn resize(&mut self, container: &Container, place: ContainerRef) -> bool {
        let Some(seen) = self
            .observed
            .latest(&container.name)
            .filter(|seen| seen.state == ObservedState::Running)
        else {
            return false;
        };
        let to = Applied::in_pod(self.pod, container);
        let Some(from) = self.memory.applied.get(&container.name).filter(|from| **from != to) else {
            return false;
        };
        if let Some(hold) = self.memory.resize_hold.filter(|hold| *hold > self.now) {
            self.at(Some(hold));
            return false;
        }
        self.run.resize_pod = true;
        let restart = (from.cpu_differs(&to) && resize::needs_restart(container, "cpu"))
            || (from.memory_differs(&to) && resize::needs_restart(container, "memory"));
        if !restart {
            let step = Resize {
                id: seen.id.clone(),
                name: seen.name.clone(),
                from: *from,
                to,
            };
            // What shrinks makes room for what grows.
            let shrinks = to.memory_max() < from.memory_max() || to.cpu_max_milli() < from.cpu_max_milli();
            let position = if shrinks { 0 } else { self.run.resize.len() };
            self.run.resize.insert(position, step);
            return false;
        }
        let message = format!("Container {} resize requires restart", container.name);
        self.run.kill.push(kill(self.pod, container, seen, message, None));
        match place.kind {
            Kind::Init => self.init.push(place.index),
            _ => self.regular.push(place.index),
        }
        true
    }

    /// Turns what is to be started into steps, as far as back-off and former failures allow.
    fn starts(&mut self) {
        // Volumes or the sandbox failed: nothing can start before the retry.
        if let Some(hold) = self.memory.hold.filter(|hold| *hold > self.now) {
            self.run.sandbox = match std::mem::take(&mut self.run.sandbox) {
                SandboxStep::Create { .. } => SandboxStep::None,
                keep => keep,
            };
            self.run.start.clear();
            return self.at(Some(hold));
        }
        let mut init = std::mem::take(&mut self.init);
        init.sort_unstable();
        init.dedup();
        for index in init {
            let container = &policy::init_containers(self.pod)[index];
            let due = self.queue(
                ContainerRef {
                    kind: Kind::Init,
                    index,
                },
                &container.name,
                &identity(container),
                false,
            );
            if !due && !policy::is_sidecar(container) {
                return;
            }
        }
        let mut regular = std::mem::take(&mut self.regular);
        regular.sort_unstable();
        regular.dedup();
        for index in regular {
            let container = &policy::regular_containers(self.pod)[index];
            self.queue(
                ContainerRef {
                    kind: Kind::Regular,
                    index,
                },
                &container.name,
                &identity(container),
                false,
            );
        }
    }

    /// Starts a container now, or says when. Whether it is now.
    fn queue(&mut self, place: ContainerRef, name: &str, identity: &str, once: bool) -> bool {
        let latest = self.observed.latest(name).map(|seen| seen.state);
        // One that was created and terminated waits for its back-off like any other.
        let holds = |f: &&Failure| f.retry_at > self.now && !(f.was_made && latest == Some(ObservedState::Exited));
        if let Some(failure) = self.memory.failures.get(name).filter(holds) {
            self.at(Some(failure.retry_at));
            return false;
        }
        let ended = self
            .observed
            .containers
            .iter()
            .find(|c| c.name == name && c.state == ObservedState::Exited);
        let finished = ended.filter(|_| !once).map(|c| c.finished_at.unwrap_or(c.created_at));
        let before = self.memory.backoffs.get(name);
        if let (Some(finished), Some(before)) = (finished, before)
            && let Some(until) = before.until(identity, finished)
            && until > self.now
        {
            self.run.held.push(Held {
                place,
                name: name.to_string(),
                delay: before.delay,
                until,
            });
            self.at(Some(until));
            return false;
        }
        self.run.start.push(Start {
            place,
            name: name.to_string(),
            restart_count: self.observed.latest(name).map(|seen| seen.restart_count + 1),
            backoff: finished.map(|finished| Backoff::after(before, identity, finished, self.now, self.memory.pace)),
        });
        true
    }
}

/// The identity of a container for its back-off.
pub(super) fn identity(container: &Container) -> String {
    let resources = serde_json::to_string(&container.resources).unwrap_or_default();
    format!("{} {resources}", container.image.as_deref().unwrap_or_default())
}

fn own_grace(probe: &Option<orlop_api::types::core::Probe>) -> Option<i64> {
    probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds)
}

fn unknown(what: &str) -> String {
    format!("{what} is in \"unknown\" state, try killing it before restart")
}

fn kill(pod: &Pod, container: &Container, seen: &ObservedContainer, message: String, grace: Option<i64>) -> Kill {
    let pods = pod.metadata.deletion_grace_period_seconds;
    let specs = policy::spec(pod).termination_grace_period_seconds;
    Kill {
        id: seen.id.clone(),
        name: container.name.clone(),
        grace_seconds: pods.or(grace).or(specs).unwrap_or(GRACE_MIN).max(GRACE_MIN),
        message,
    }
}
