//! Stopping containers: each hook and each stop is an operation of its own, so that the worker stays awake for a grace
//! period that is made shorter.

use std::time::Duration;

use orlop_api::types::core::{Container, Pod};
use orlop_base::clock::Shift;
use orlop_client::EventType::{Normal, Warning};

use super::hooks::{self, HookError};
use super::worker::{NextSync, Worker};
use crate::pod::policy;
use crate::pod::steps::{Stop, StopContainer, StopWhy};
use crate::pod::worker_state::Hook;

/// A finished operation.
pub(super) enum Operation {
    Hook {
        id: String,
        name: String,
        answer: Result<(), HookError>,
    },
    Stop {
        id: String,
        answer: Result<(), orlop_runtime::Error>,
    },
}

/// Why a container of a pod that goes on could not be stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum KillError {
    #[error("the pod is to end")]
    PodTerminating,
    #[error(transparent)]
    Runtime(#[from] orlop_runtime::Error),
}

impl Worker {
    pub(super) async fn stop(&mut self, pod: &Pod, stop: Stop) -> NextSync {
        if stop.why == StopWhy::SandboxChanged && self.memory.teardown.is_none() {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.event(pod, None, Normal, "SandboxChanged", text);
        }
        self.memory.teardown = Some(stop.since);
        for step in stop.hooks {
            self.announce(pod, &step);
            self.memory.hooks.insert(step.id.clone(), Hook::Running);
            self.start_hook(pod, step);
        }
        for step in stop.containers {
            self.announce(pod, &step);
            self.memory
                .stops
                .insert(step.id.clone(), self.shared.clock.now().later(step.grace));
            let runtime = self.shared.runtime.clone();
            self.operations.spawn(async move {
                let answer = match runtime.stop_container(&step.id, step.grace).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    answer => answer,
                };
                Operation::Stop { id: step.id, answer }
            });
        }
        let mut stopped = false;
        for id in stop.sandboxes {
            match self.shared.runtime.stop_pod_sandbox(&id).await {
                Err(error) if !error.is_not_found() => {
                    self.event(
                        pod,
                        None,
                        Warning,
                        "FailedKillPod",
                        format!("error killing pod: {error}"),
                    );
                    self.memory.hold = Some(self.retry_at());
                    return NextSync::Again;
                }
                _ => stopped |= self.memory.stopped_sandboxes.insert(id),
            }
        }
        if stopped {
            self.failures = 0;
            return NextSync::Again;
        }
        NextSync::Wait(stop.wake)
    }

    fn announce(&self, pod: &Pod, step: &StopContainer) {
        if !self.memory.hooks.contains_key(&step.id) && !self.memory.stops.contains_key(&step.id) {
            self.event(
                pod,
                Some(&step.name),
                Normal,
                "Killing",
                format!("Stopping container {}", step.name),
            );
        }
    }

    fn start_hook(&mut self, pod: &Pod, step: StopContainer) {
        let seen = self.observed.containers.iter().find(|c| c.id == step.id);
        let kept = seen.and_then(|c| c.pre_stop.as_deref().cloned());
        // The hook of an orphan is kept in the runtime's annotations.
        let container = policy::container_named(pod, &step.name).cloned();
        let container = container.unwrap_or_else(|| Container {
            name: step.name.clone(),
            ..Default::default()
        });
        let handler = hooks::pre_stop(&container).cloned().or(kept);
        let ip = self.pod_ips(pod).into_iter().next();
        let (shared, pod) = (self.shared.clone(), pod.clone());
        self.operations.spawn(async move {
            let hook = async {
                let Some(handler) = &handler else { return Ok(()) };
                hooks::run(&*shared.runtime, &pod, &container, &step.id, ip.as_deref(), handler).await
            };
            let answer = tokio::time::timeout(step.grace, hook).await;
            let answer = answer.unwrap_or_else(|_| hooks::timed_out(handler.as_ref()));
            Operation::Hook {
                id: step.id,
                name: step.name,
                answer,
            }
        });
    }

    /// Handles a finished operation.
    pub(super) fn finished(&mut self, done: Operation) {
        let pod = self.work().borrow().pod.clone();
        match done {
            Operation::Hook { id, name, answer } => {
                self.memory.hooks.insert(id, Hook::Done);
                if let Err(error) = answer {
                    tracing::debug!(err = %error, "failed to run preStop hook");
                    // The server's response must not be visible to everybody.
                    self.event(&pod, Some(&name), Warning, "FailedPreStopHook", "PreStopHook failed");
                }
            }
            Operation::Stop { id, answer: Ok(()) } => {
                // A container in an unknown state counts as stopped.
                self.memory.stops.entry(id).or_insert(self.shared.clock.now());
            }
            Operation::Stop { id, answer: Err(error) } => {
                self.memory.stops.remove(&id);
                self.memory.hold = Some(self.retry_at());
                self.event(
                    &pod,
                    None,
                    Warning,
                    "FailedKillPod",
                    format!("error killing pod: {error}"),
                );
            }
        }
    }

    /// Stops one container of a running pod: preStop hook, then StopContainer, within the grace period.
    pub(super) async fn kill(
        &mut self,
        pod: &Pod,
        id: &str,
        name: &str,
        message: &str,
        grace: Duration,
    ) -> Result<(), KillError> {
        self.event(pod, Some(name), Normal, "Killing", message);
        let container = policy::container_named(pod, name).cloned().unwrap_or_default();
        let began = tokio::time::Instant::now();
        if let Some(handler) = hooks::pre_stop(&container).filter(|_| !self.memory.hooks.contains_key(id)) {
            self.memory.hooks.insert(id.to_string(), Hook::Done);
            let ip = self.pod_ips(pod).into_iter().next();
            let runtime = &*self.shared.runtime;
            let mut work = self.work();
            let hook = hooks::run(runtime, pod, &container, id, ip.as_deref(), handler);
            tokio::select! {
                answer = tokio::time::timeout(grace, hook) => if let Err(error) = answer.unwrap_or_else(|_| hooks::timed_out(Some(handler))) {
                    tracing::debug!(err = %error, "failed to run preStop hook");
                    self.event(pod, Some(name), Warning, "FailedPreStopHook", "PreStopHook failed");
                },
                () = Worker::asked_to_terminate(&mut work) => return Err(KillError::PodTerminating),
            }
        }
        let left = grace.saturating_sub(began.elapsed()).max(Duration::from_secs(2));
        let mut work = self.work();
        tokio::select! {
            answer = self.shared.runtime.stop_container(id, left) => match answer {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(()),
            },
            () = Worker::asked_to_terminate(&mut work) => Err(KillError::PodTerminating),
        }
    }
}
