//! Takes the steps of a running pod, one after the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{Container, Pod};
use orlop_base::clock::{Shift, seconds};
use orlop_client::EventType::{Normal, Warning};
use orlop_runtime::cri::messages as cri;
use tokio::time::Instant;

use super::PodWork;
use super::hooks;
use super::worker::{NextSync, Worker};
use crate::cgroups::CgroupError;
use crate::gc::rotation;
use crate::pod::interfaces::{ConfigError, ContainerRequest, ContainerStartError};
use crate::pod::observed::ObservedSandbox;
use crate::pod::policy::{self, Kind};
use crate::pod::resize::{Applied, Pending};
use crate::pod::steps::{Resize, Run, SandboxStep, Start};
use crate::pod::worker_state::Failure;

/// Upstream: failures are retried after about this long.
const RETRY: Duration = Duration::from_secs(10);
/// Reasons of containers that were created but do not run.
const RUN_ERROR: &str = "RunContainerError";
const HOOK_ERROR: &str = "PostStartHookError";
const MADE: [&str; 2] = [RUN_ERROR, HOOK_ERROR];
/// Volumes are often ready a moment later.
const MOUNT_RETRY_FIRST: Duration = Duration::from_secs(1);

/// Why a container was not started.
enum NotStarted {
    Failed(ContainerStartError),
    /// The pod is being terminated.
    Interrupted,
}

impl NotStarted {
    fn because(reason: &'static str, message: impl Into<String>) -> NotStarted {
        NotStarted::Failed(ContainerStartError {
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
        })
    }
}

/// Why a sandbox was not created.
#[derive(Debug, thiserror::Error)]
enum SandboxError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", .0.with_code())]
    Runtime(#[from] orlop_runtime::Error),
}

/// Why a resize was not applied.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    #[error(
        "cannot decrease memory limits: attempting to set container {container:?} memory limit ({limit}) below current usage ({used})"
    )]
    MemoryInUse { container: String, limit: i64, used: u64 },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Runtime(#[from] orlop_runtime::Error),
}

impl Worker {
    pub(super) async fn act(&mut self, work: &PodWork, pod: &Arc<Pod>, run: Run) -> NextSync {
        self.memory.teardown = None;
        let mut did = !run.kill.is_empty() || !run.reset.is_empty() || !run.remove.is_empty();
        for kill in &run.kill {
            let grace = seconds(kill.grace_seconds);
            if let Err(error) = self.kill(pod, &kill.id, &kill.name, &kill.message, grace).await {
                tracing::debug!(
                    container = kill.name,
                    pod = %policy::described(pod),
                    err = %error,
                    "failed to kill container"
                );
                return NextSync::Wait(Some(self.retry_at()));
            }
        }
        for reset in &run.reset {
            if reset.running
                && self
                    .kill(pod, &reset.id, &reset.name, "killing", Duration::ZERO)
                    .await
                    .is_err()
            {
                return NextSync::Wait(Some(self.retry_at()));
            }
        }
        self.remove_logs(&run.remove).await;
        let reset = run.reset.iter().map(|reset| &reset.id);
        for id in reset.chain(&run.remove) {
            if let Err(error) = self.shared.runtime.remove_container(id).await {
                tracing::warn!(container = %id, pod = %policy::described(pod), err = %error, "failed to remove container");
                return NextSync::Wait(Some(self.retry_at()));
            }
        }
        did |= self.report_backoff(pod, &run);
        let wants_more = !run.start.is_empty() || matches!(run.sandbox, SandboxStep::Create { .. });
        let held = self.memory.hold.is_some_and(|hold| hold > self.shared.clock.now());
        if (wants_more || !self.prepared)
            && !held
            && let Some(then) = self.prepare(pod).await
        {
            return then;
        }
        let sandbox = match run.sandbox {
            SandboxStep::None => return if did { NextSync::Again } else { NextSync::Wait(run.wake) },
            SandboxStep::Keep { id, attempt } => (id, attempt),
            SandboxStep::Create { attempt } => {
                did = true;
                match self.create_sandbox(work, pod, attempt).await {
                    Ok(id) => (id, attempt),
                    Err(then) => return then,
                }
            }
        };
        if !run.resize.is_empty() || run.resize_pod {
            did |= self.resize(pod, &run.resize).await;
        }
        if !run.start.is_empty() {
            did = true;
            self.start_all(pod, &run.start, &sandbox.0, sandbox.1).await;
        }
        if did { NextSync::Again } else { NextSync::Wait(run.wake) }
    }

    /// Log paths are only known as long as the containers exist.
    async fn remove_logs(&self, ids: &[String]) {
        let of = |id: &String| self.observed.containers.iter().find(|c| c.id == *id);
        let paths = ids.iter().filter_map(of).map(|c| PathBuf::from(&c.log_path));
        let paths: Vec<PathBuf> = paths.filter(|path| path.is_absolute()).collect();
        if paths.is_empty() {
            return;
        }
        let removed = crate::blocking::run(move || paths.iter().try_for_each(|path| rotation::remove_logs(path)));
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(err = %error, "failed to remove container logs");
        }
    }

    /// Records one BackOff event for each termination. Whether there was one to record.
    fn report_backoff(&mut self, pod: &Pod, run: &Run) -> bool {
        let mut is_new = false;
        for held in &run.held {
            let told = self.memory.reported_backoffs.insert(held.name.clone(), held.until);
            if told != Some(held.until) {
                is_new = true;
                // From now on it waits for the back-off, not for the earlier failure.
                self.memory.failures.remove(&held.name);
                let text = format!(
                    "Back-off restarting failed container {} in pod {}",
                    held.name,
                    policy::described(pod)
                );
                self.event(pod, Some(&held.name), Warning, "BackOff", text);
            }
        }
        is_new
    }

    /// Prepares cgroup and volumes; returns what to do instead if that fails.
    async fn prepare(&mut self, pod: &Pod) -> Option<NextSync> {
        let mut work = self.work();
        let answer = tokio::select! {
            answer = self.shared.environment.prepare_pod(pod) => answer,
            () = Worker::asked_to_terminate(&mut work) => return Some(NextSync::Again),
        };
        match answer {
            Ok(()) => {
                self.prepared = true;
                self.memory.hold = None;
                self.memory.mount_failures = 0;
                None
            }
            Err(troubles) => {
                for trouble in troubles {
                    self.event(pod, None, Warning, trouble.reason, trouble.message);
                }
                let delay = MOUNT_RETRY_FIRST
                    .saturating_mul(1 << self.memory.mount_failures.min(4))
                    .min(RETRY);
                self.memory.mount_failures = self.memory.mount_failures.saturating_add(1);
                let hold = self.shared.clock.now().later(delay);
                self.memory.hold = Some(hold);
                Some(NextSync::Wait(Some(hold)))
            }
        }
    }

    async fn create_sandbox(&mut self, work: &PodWork, pod: &Arc<Pod>, attempt: u32) -> Result<String, NextSync> {
        let made = async {
            let handler = self.shared.configurator.prepare_runtime_handler(pod).await?;
            let config = self.shared.configurator.generate_sandbox_config(pod, attempt)?;
            Ok::<_, SandboxError>(self.shared.runtime.run_pod_sandbox(config, &handler).await?)
        };
        let id = match made.await {
            Ok(id) => id,
            Err(error) => {
                if !Worker::is_asked_to_terminate(&self.work().borrow()) {
                    let text = format!("Failed to create pod sandbox: {error}");
                    self.event(pod, None, Warning, "FailedCreatePodSandBox", text);
                }
                let hold = self.shared.clock.now().later(RETRY);
                self.memory.hold = Some(hold);
                // It may have been created partially.
                return Err(NextSync::Again);
            }
        };
        match self.shared.runtime.pod_sandbox_status(&id).await {
            Ok(status) => self.observed.sandboxes.insert(0, ObservedSandbox::of(&status)),
            Err(error) => {
                let text = format!("Unable to get pod sandbox status: {}", error.with_code());
                self.event(pod, None, Warning, "FailedPodSandBoxStatus", text);
                return Err(NextSync::Wait(Some(self.retry_at())));
            }
        }
        self.register();
        self.memory.ips = self.observed.ips().to_vec();
        self.publish(work, pod, false);
        Ok(id)
    }

    /// Starts containers in order; failures become the reason of the waiting state.
    async fn start_all(&mut self, pod: &Arc<Pod>, starts: &[Start], sandbox: &str, attempt: u32) {
        let config = match self.shared.configurator.generate_sandbox_config(pod, attempt) {
            Ok(config) => config,
            Err(error) => {
                self.event(
                    pod,
                    None,
                    Warning,
                    "FailedSync",
                    format!("error determining status: {error}"),
                );
                self.memory.hold = Some(self.shared.clock.now().later(RETRY));
                return;
            }
        };
        for start in starts {
            let Some(container) = policy::container_at(pod, start.place) else {
                continue;
            };
            if Worker::is_asked_to_terminate(&self.work().borrow()) {
                return;
            }
            if let Some(backoff) = &start.backoff {
                self.memory.backoffs.insert(start.name.clone(), backoff.clone());
            }
            let answer = self.start(pod, &container, start, sandbox, &config).await;
            self.count_start(start.place.kind, &answer);
            match answer {
                Ok(()) => {
                    self.memory.failures.remove(&start.name);
                }
                Err(NotStarted::Interrupted) => return,
                Err(NotStarted::Failed(refusal)) => {
                    let delay = refusal
                        .retry_after
                        .map_or(RETRY, |after| after.max(Duration::from_secs(1)));
                    let failure = Failure {
                        was_made: MADE.contains(&refusal.reason.as_str()),
                        reason: refusal.reason,
                        message: refusal.message,
                        retry_at: self.shared.clock.now().later(delay),
                    };
                    self.memory.failures.insert(start.name.clone(), failure);
                    if start.place.kind == Kind::Init && !policy::is_sidecar(&container) {
                        return;
                    }
                }
            }
        }
    }

    fn count_start(&self, kind: Kind, answer: &Result<(), NotStarted>) {
        let failure = match answer {
            Ok(()) => None,
            Err(NotStarted::Failed(refusal)) => Some(refusal.reason.as_str()),
            Err(NotStarted::Interrupted) => return,
        };
        self.shared.metrics.container_started(kind.label(), failure);
    }

    /// Pulls, creates, starts, and runs the postStart hook.
    async fn start(
        &mut self,
        pod: &Arc<Pod>,
        container: &Container,
        start: &Start,
        sandbox: &str,
        config: &cri::PodSandboxConfig,
    ) -> Result<(), NotStarted> {
        let name = container.name.as_str();
        let mut work = self.work();
        let asked = Instant::now();
        let image = tokio::select! {
            image = self.shared.configurator.ensure_images_exist(pod, container, config) => image,
            () = Worker::asked_to_terminate(&mut work) => return Err(NotStarted::Interrupted),
        };
        if let Some(starting) = &mut self.starting {
            starting.waited_for_images = starting.waited_for_images.saturating_add(asked.elapsed());
        }
        let image = image.map_err(NotStarted::Failed)?;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => self.shared.configurator.count_restarts_from_logs(pod, name).await,
        };
        let ips = self.pod_ips(pod);
        let made = match self.target(pod, start) {
            Err(error) => Err(error),
            Ok(target) => {
                let request = ContainerRequest {
                    pod,
                    container,
                    place: start.place,
                    restart_count,
                    image: &image,
                    pod_ips: &ips,
                    target: target.as_deref(),
                };
                self.shared.configurator.generate_container_config(&request).await
            }
        };
        let fail = |worker: &Worker, id: &str, reason: &'static str, error: String| {
            // An id would make each event distinct.
            let text = if id.is_empty() {
                error.clone()
            } else {
                error.replace(id, name)
            };
            worker.event(pod, Some(name), Warning, "Failed", format!("Error: {text}"));
            NotStarted::because(reason, error)
        };
        let made = made.map_err(|error| fail(self, "", "CreateContainerConfigError", error.to_string()))?;
        let created = self
            .shared
            .runtime
            .create_container(sandbox, made, config.clone())
            .await;
        let id = created.map_err(|error| fail(self, "", "CreateContainerError", error.to_string()))?;
        self.shared.live.lock().ids.insert(id.clone(), self.uid.clone());
        self.event(pod, Some(name), Normal, "Created", "Container created");
        self.memory
            .applied
            .insert(name.to_string(), Applied::in_pod(pod, container));
        if let Err(error) = self.shared.runtime.start_container(&id).await {
            return Err(fail(self, &id, RUN_ERROR, error.to_string()));
        }
        self.event(pod, Some(name), Normal, "Started", "Container started");
        self.post_start(pod, container, &id).await
    }

    async fn post_start(&mut self, pod: &Arc<Pod>, container: &Container, id: &str) -> Result<(), NotStarted> {
        let Some(handler) = hooks::post_start(container) else {
            return Ok(());
        };
        let ip = self.pod_ips(pod).into_iter().next();
        let runtime = &*self.shared.runtime;
        let mut work = self.work();
        let answer = tokio::select! {
            answer = hooks::run(runtime, pod, container, id, ip.as_deref(), handler) => answer,
            () = Worker::asked_to_terminate(&mut work) => return Err(NotStarted::Interrupted),
        };
        let Err(error) = answer else { return Ok(()) };
        self.event(
            pod,
            Some(&container.name),
            Warning,
            "FailedPostStartHook",
            "PostStartHook failed",
        );
        let grace = policy::spec(pod).termination_grace_period_seconds.unwrap_or(0).max(0) as u64;
        // If it can't be stopped now, the next sync observes it running.
        let _ = self
            .kill(
                pod,
                id,
                &container.name,
                "FailedPostStartHook",
                Duration::from_secs(grace),
            )
            .await;
        Err(NotStarted::because(HOOK_ERROR, error.to_string()))
    }

    /// The container whose process namespace an ephemeral container shares.
    fn target(&self, pod: &Pod, start: &Start) -> Result<Option<String>, ConfigError> {
        if start.place.kind != Kind::Ephemeral {
            return Ok(None);
        }
        let list = policy::spec(pod).ephemeral_containers.as_deref().unwrap_or_default();
        let target = list
            .get(start.place.index)
            .and_then(|c| c.target_container_name.as_deref());
        let Some(target) = target.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        match self.observed.latest(target) {
            Some(seen) => Ok(Some(seen.id.clone())),
            None => Err(ConfigError::TargetContainer(target.to_string())),
        }
    }

    /// Applies new cpu and memory: the pod's own cgroup first where it grows, last where it shrinks. Whether anything was done.
    async fn resize(&mut self, pod: &Pod, steps: &[Resize]) -> bool {
        let answer = self.apply_resize(pod, steps).await;
        let Err(error) = answer else { return true };
        let error = error.to_string();
        let generation = self.memory.resize_in_progress.as_ref().map(|p| p.generation);
        let generation = generation.or(pod.metadata.generation).unwrap_or(0);
        let told = self
            .memory
            .resize_in_progress
            .as_ref()
            .is_some_and(|p| p.message == error);
        if !told {
            let summary = crate::pod::resize::summary(pod, generation, &error);
            self.event(
                pod,
                None,
                Warning,
                "ResizeError",
                format!("Pod resize error: {summary}"),
            );
        }
        self.memory.resize_in_progress = Some(Pending {
            reason: "Error".into(),
            message: error,
            generation,
        });
        self.memory.resize_hold = Some(self.shared.clock.now().later(RETRY));
        false
    }

    async fn apply_resize(&mut self, pod: &Pod, steps: &[Resize]) -> Result<(), ResizeError> {
        for step in steps {
            self.check_memory(step).await?;
        }
        self.shared.environment.grow_pod_cgroup(pod).await?;
        for step in steps {
            let Some(container) = policy::container_named(pod, &step.name) else {
                continue;
            };
            let resources = self.shared.configurator.generate_container_resources(pod, container);
            let runtime = &self.shared.runtime;
            runtime.update_container_resources(&step.id, resources).await?;
            self.memory.applied.insert(step.name.clone(), step.to);
        }
        self.shared.environment.update_pod_cgroup(pod).await?;
        if self.memory.applied_to_pod.is_some() {
            self.memory.applied_to_pod = Some(Applied::of_pod(pod));
        }
        Ok(())
    }

    /// A limit below the current usage would get the container OOM-killed.
    async fn check_memory(&self, step: &Resize) -> Result<(), ResizeError> {
        let (from, to) = (step.from.memory_max(), step.to.memory_max());
        if to == 0 || (from != 0 && to >= from) {
            return Ok(());
        }
        let Ok(stats) = self.shared.runtime.container_stats(&step.id).await else {
            return Ok(());
        };
        let used = stats
            .memory
            .and_then(|memory| memory.usage_bytes)
            .map(|used| used.value);
        match used {
            Some(used) if used >= to as u64 => Err(ResizeError::MemoryInUse {
                container: step.name.clone(),
                limit: to,
                used,
            }),
            _ => Ok(()),
        }
    }
}
