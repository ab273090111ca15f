//! The worker task of one pod: observe, publish the status, act, sleep.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodStatus};
use orlop_base::clock::Shift;
use orlop_client::EventType::{self, Normal};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::published_status::{PublishedStatus, StatusInputs};
use super::stop::Operation;
use super::{PodWork, Shared, View};
use crate::metrics::Started;
use crate::pod::interfaces::RunningContainer;
use crate::pod::observed::{self, ObservedPod, ObservedState};
use crate::pod::resize::{self, Applied};
use crate::pod::steps::{Steps, next_steps};
use crate::pod::worker_state::{Ending, Requests, WorkerState};
use crate::pod::{policy, status};

/// After a call to the runtime failed.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Upstream: a resize that had no room is tried again every three minutes, and when a pod has gone.
const RESIZE_RETRY: Duration = Duration::from_secs(180);

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) uid: String,
    work: watch::Receiver<PodWork>,
    wake: Arc<Notify>,
    pub(super) published: Arc<Mutex<PublishedStatus>>,
    pub(super) memory: WorkerState,
    pub(super) observed: ObservedPod,
    /// With what it was allocated.
    pub(super) allocated: Arc<Pod>,
    /// The runtime has nothing of a new pod: it need not be asked.
    skip_observation: bool,
    /// Cgroup and volumes were prepared by this process.
    pub(super) prepared: bool,
    pub(super) admitted: bool,
    pub(super) operations: JoinSet<Operation>,
    pub(super) failures: u32,
    refresh_at: Timestamp,
    /// Set until it runs for the first time, if this process saw it first.
    pub(super) starting: Option<Starting>,
    first_sync: bool,
    /// Everything of it has been removed.
    removed: bool,
    /// Its allocation was released.
    is_released: bool,
    /// It was stopped because the node stops.
    is_suspended: bool,
}

/// A pod that is being started for the first time.
pub(super) struct Starting {
    seen_at: Timestamp,
    pub(super) waited_for_images: Duration,
}

/// What to do after a sync.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NextSync {
    /// Something was done: sync again at once.
    Again,
    /// Wait for a wake-up, no longer than this.
    Wait(Option<Timestamp>),
    Gone,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        work: PodWork,
        wake: Arc<Notify>,
        is_new: bool,
    ) -> (Worker, watch::Sender<PodWork>, watch::Receiver<View>) {
        let pod = work.pod.clone();
        let now = shared.clock.now();
        let (view, views) = watch::channel(View {
            pod: pod.clone(),
            observed: Arc::default(),
            ending: false,
            stopped: false,
            suspended: false,
            freed: false,
        });
        let (sender, receiver) = watch::channel(work);
        let worker = Worker {
            uid: policy::uid(&pod).to_string(),
            work: receiver,
            wake,
            published: Arc::new(Mutex::new(PublishedStatus::new(view))),
            memory: WorkerState {
                pace: shared.restart_pace,
                ..WorkerState::new(&pod, shared.began)
            },
            observed: ObservedPod::default(),
            allocated: resize::adopted(&pod),
            skip_observation: is_new,
            prepared: false,
            admitted: false,
            operations: JoinSet::new(),
            failures: 0,
            refresh_at: now.later(shared.sync_frequency),
            removed: false,
            is_released: false,
            is_suspended: false,
            starting: is_new.then_some(Starting {
                seen_at: now,
                waited_for_images: Duration::ZERO,
            }),
            first_sync: true,
            shared,
        };
        (worker, sender, views)
    }

    pub(super) async fn run(mut self) {
        let shutdown = self.shared.shutdown.clone();
        loop {
            let has_update = self.work.has_changed().unwrap_or(false);
            let work = self.work.borrow_and_update().clone();
            let pod = self.accept_work(&work);
            let operation = match std::mem::take(&mut self.first_sync) {
                true => "create",
                false if has_update => "update",
                false => "sync",
            };
            let began = tokio::time::Instant::now();
            self.published.lock().busy = true;
            // A sync may take minutes (a hook, a pull) and must not go on when another kubelet process has taken over.
            let then = tokio::select! {
                biased;
                () = shutdown.wait() => return,
                // Boxed: most of a worker's state is needed only during a sync.
                then = Box::pin(self.sync(&work, &pod)) => then,
            };
            self.adopt_published_status();
            self.shared.metrics.pod_synced(operation, began.elapsed());
            match then {
                NextSync::Again => tokio::task::yield_now().await,
                NextSync::Gone => break,
                NextSync::Wait(until) => self.wait(until).await,
            }
        }
        self.shared.remove_worker(&self.uid);
    }

    /// After a sync: takes over the status that was published meanwhile.
    fn adopt_published_status(&mut self) {
        let mut published = self.published.lock();
        published.busy = false;
        if let Some(inputs) = &published.inputs {
            self.memory.status = inputs.memory.status.clone();
        }
    }

    /// Syncs once: observes, publishes the status, takes the next steps.
    async fn sync(&mut self, work: &PodWork, pod: &Arc<Pod>) -> NextSync {
        if let Err(error) = self.observe(pod).await {
            tracing::warn!(pod = %policy::described(pod), err = %error, "failed to get pod status from the runtime");
            return NextSync::Wait(Some(self.retry_at()));
        }
        let now = self.shared.clock.now();
        self.update_probes(pod);
        self.finish_resize(pod);
        self.admit(pod).await;
        let steps = next_steps(pod, &self.observed, &self.memory, now);
        self.remember_ending(pod, &steps);
        self.is_suspended = matches!(steps, Steps::Suspended);
        self.publish(work, pod, matches!(steps, Steps::Done(_)));
        let then = match steps {
            Steps::Run(run) => self.act(work, pod, *run).await,
            Steps::Stop(stop) => self.stop(pod, *stop).await,
            Steps::Suspended => NextSync::Wait(None),
            Steps::Free(_) => self.clean_up(pod).await,
            Steps::Done(ending) => self.finish(work, pod, &ending).await,
        };
        match then {
            NextSync::Wait(until) if self.memory.ending.is_none() => self.refresh(pod, until).await,
            then => then,
        }
    }

    /// Observes the pod in the runtime.
    pub(super) async fn observe(&mut self, pod: &Pod) -> orlop_runtime::Result<()> {
        if std::mem::take(&mut self.skip_observation) {
            return Ok(());
        }
        self.observed = observed::look(&*self.shared.runtime, &self.uid, &self.observed).await?;
        self.failures = 0;
        self.register();
        self.memory.retain(&self.observed);
        if !self.observed.ips().is_empty() {
            self.memory.ips = self.observed.ips().to_vec();
        }
        // Containers of a former kubelet process have the resources in the status.
        for container in self.observed.running() {
            if !self.memory.applied.contains_key(&container.name)
                && let Some(own) = policy::container_named(pod, &container.name)
            {
                let applied = Applied::in_pod(pod, own);
                self.memory.applied.insert(container.name.clone(), applied);
            }
        }
        if self.observed.running().next().is_some() {
            self.memory.applied_to_pod.get_or_insert(Applied::of_pod(pod));
        }
        Ok(())
    }

    /// Lets events about the pod's parts find it.
    pub(super) fn register(&self) {
        let ids = self.observed.sandboxes.iter().map(|s| &s.id);
        let ids = ids.chain(self.observed.containers.iter().map(|c| &c.id));
        let mut live = self.shared.live.lock();
        for id in ids {
            if !live.ids.contains_key(id) {
                live.ids.insert(id.clone(), self.uid.clone());
            }
        }
    }

    fn update_probes(&mut self, pod: &Pod) {
        let running: Vec<RunningContainer> = self
            .observed
            .running()
            .map(|c| RunningContainer {
                name: c.name.clone(),
                id: c.id.clone(),
                started_at: c.started_at.unwrap_or(c.created_at),
            })
            .collect();
        let ips = self.pod_ips(pod);
        self.shared
            .prober
            .update_probes(pod, &running, ips.first().map(String::as_str));
        self.memory.probes = self.shared.prober.probe_results(&self.uid).into_iter().collect();
    }

    /// A pod on the node's network has the node's addresses.
    pub(super) fn pod_ips(&self, pod: &Pod) -> Vec<String> {
        match policy::is_host_network(pod) {
            true => self.shared.host.ips.clone(),
            false => self.observed.ips().to_vec(),
        }
    }

    fn finish_resize(&mut self, pod: &Pod) {
        let runs = |name: &str| {
            self.observed
                .latest(name)
                .is_some_and(|c| c.state == ObservedState::Running)
        };
        if resize::in_progress(pod, runs, &self.memory) {
            return;
        }
        if let Some(done) = self.memory.resize_in_progress.take() {
            let summary = resize::summary(pod, done.generation, "");
            self.event(
                pod,
                None,
                Normal,
                "ResizeCompleted",
                format!("Pod resize completed: {summary}"),
            );
        }
    }

    fn remember_ending(&mut self, pod: &Pod, steps: &Steps) {
        let ending = match steps {
            Steps::Stop(stop) => stop.ending.as_ref(),
            Steps::Free(ending) | Steps::Done(ending) => Some(ending),
            Steps::Run(_) | Steps::Suspended => None,
        };
        let Some(ending) = ending else { return };
        if self.memory.ending.is_none() {
            // What delayed its start must not delay its termination.
            self.memory.hold = None;
            self.shared.prober.stop_liveness_and_startup(&self.uid);
            if let Some((reason, message)) = &ending.failed
                && reason == "DeadlineExceeded"
            {
                self.event(pod, None, Normal, "DeadlineExceeded", message.clone());
            }
        }
        self.memory.ending = Some(ending.clone());
    }

    /// Computes the status and publishes it.
    pub(super) fn publish(&mut self, work: &PodWork, pod: &Arc<Pod>, finished: bool) {
        let now = self.shared.clock.now();
        let status = status::pod_status(pod, &self.observed, &self.memory, &self.shared.host, now);
        self.update_metrics(pod, &status, now);
        self.release_if_terminal(&status);
        self.memory.status = status.clone();
        if !work.orphan {
            let removed = self.removed || !self.memory.ending.as_ref().is_some_and(|e| e.deleted);
            self.shared.writer.set(&work.pod, &status, finished && removed);
        }
        let mut with_status = (*work.pod).clone();
        with_status.status = Some(status);
        let observed = Arc::new(self.observed.clone());
        let view = View {
            pod: Arc::new(with_status),
            observed: observed.clone(),
            ending: self.memory.ending.is_some(),
            stopped: self.memory.ending.is_some() && self.observed.running().next().is_none(),
            suspended: self.is_suspended,
            freed: self.memory.freed,
        };
        let mut published = self.published.lock();
        published.view.send_replace(view);
        published.inputs = Some(StatusInputs {
            work: work.clone(),
            pod: pod.clone(),
            observed,
            memory: self.memory.clone(),
        });
    }

    /// Once a terminal phase is published the scheduler uses the pod's resources again: they have to be free by then.
    fn release_if_terminal(&mut self, status: &PodStatus) {
        if !self.is_released && status.phase.as_deref().is_some_and(policy::is_terminal) {
            self.is_released = true;
            self.shared.release_allocation(&self.uid);
        }
    }

    /// Updates the metrics from what changed in the status.
    fn update_metrics(&mut self, pod: &Pod, status: &PodStatus, now: Timestamp) {
        let metrics = &self.shared.metrics;
        for (kind, ended) in status::newly_ended(&self.memory.status, status) {
            let reason = ended.reason.as_deref().unwrap_or_default();
            metrics.container_ended(kind.label(), ended.exit_code, reason);
        }
        if status.phase.as_deref() != Some("Running") {
            return;
        }
        let Some(starting) = self.starting.take() else { return };
        let since = |then: Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref();
        metrics.pod_runs(&Started {
            since_seen: since(starting.seen_at),
            since_created: since(created.map_or(starting.seen_at, |time| time.0)),
            excluded: starting.waited_for_images.saturating_add(status::spent_on_init(status)),
        });
    }

    /// Cleans up the pod's environment.
    async fn clean_up(&mut self, pod: &Pod) -> NextSync {
        match self.shared.environment.clean_up_pod(&self.uid).await {
            Ok(()) => {
                self.memory.freed = true;
                self.shared.release_allocation(&self.uid);
                self.failures = 0;
                NextSync::Again
            }
            Err(error) => {
                tracing::warn!(pod = %policy::described(pod), err = %error, "failed to release pod resources");
                NextSync::Wait(Some(self.retry_at()))
            }
        }
    }

    /// Nothing runs and everything is cleaned up. Of a deleted pod, containers, sandboxes, logs and the API object are removed.
    async fn finish(&mut self, work: &PodWork, pod: &Arc<Pod>, ending: &Ending) -> NextSync {
        if !ending.deleted {
            return NextSync::Wait(None);
        }
        if !self.removed {
            if let Err(error) = self.remove_remains().await {
                tracing::warn!(pod = %policy::described(pod), err = %error, "failed to remove terminated pod");
                return NextSync::Wait(Some(self.retry_at()));
            }
            let (namespace, name) = (policy::namespace(pod), policy::name(pod));
            self.shared.prober.remove_pod(&self.uid);
            self.shared.configurator.forget_image_backoffs(&self.uid);
            self.shared
                .environment
                .remove_pod_logs(namespace, name, &self.uid)
                .await;
            self.removed = true;
            self.publish(work, pod, true);
        }
        match work.requests.removed {
            true => NextSync::Gone,
            false => NextSync::Wait(None),
        }
    }

    async fn remove_remains(&mut self) -> orlop_runtime::Result<()> {
        // The status keeps what it says of them: they are not observed again.
        for container in &self.observed.containers {
            self.shared.runtime.remove_container(&container.id).await?;
        }
        for sandbox in &self.observed.sandboxes {
            self.shared.runtime.remove_pod_sandbox(&sandbox.id).await?;
        }
        self.skip_observation = true;
        Ok(())
    }

    async fn refresh(&mut self, pod: &Pod, until: Option<Timestamp>) -> NextSync {
        let now = self.shared.clock.now();
        if now >= self.refresh_at {
            self.refresh_at = now.later(self.shared.sync_frequency);
            if self.prepared {
                self.shared.environment.refresh_volumes(pod).await;
            }
        }
        let resize = self.memory.resize_pending.as_ref().map(|_| now.later(RESIZE_RETRY));
        NextSync::Wait([until, Some(self.refresh_at), resize].into_iter().flatten().min())
    }

    async fn wait(&mut self, until: Option<Timestamp>) {
        let now = self.shared.clock.now();
        let delay = until.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
        // A manual clock and timers are independent; one more millisecond avoids a second wake-up.
        let delay = delay.map_or(Duration::from_secs(3600), |delay| {
            delay.saturating_add(Duration::from_millis(1))
        });
        tokio::select! {
            () = self.shared.shutdown.wait() => {}
            // An error means that the sender is gone.
            _ = self.work.changed() => self.retry_failures(),
            () = self.wake.notified() => {}
            Some(done) = self.operations.join_next(), if !self.operations.is_empty() => {
                if let Ok(done) = done {
                    self.finished(done);
                }
            }
            () = tokio::time::sleep(delay) => {}
        }
    }

    /// The pod has changed: failures are retried at once.
    fn retry_failures(&mut self) {
        let now = self.shared.clock.now();
        let spec = |pod: &Pod| pod.spec.clone();
        let changed = spec(&self.work.borrow().pod) != spec(&self.published.lock().view.borrow().pod);
        if changed {
            self.memory.hold = None;
            self.memory
                .failures
                .values_mut()
                .for_each(|f| f.retry_at = f.retry_at.min(now));
        }
    }

    /// Whether the pod has been asked to terminate since this sync began.
    pub(super) fn is_asked_to_terminate(work: &PodWork) -> bool {
        work.pod.metadata.deletion_timestamp.is_some() || work.requests != Requests::default()
    }

    /// Resolves when the pod is asked to terminate.
    pub(super) async fn asked_to_terminate(work: &mut watch::Receiver<PodWork>) {
        if work.wait_for(Worker::is_asked_to_terminate).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn work(&self) -> watch::Receiver<PodWork> {
        self.work.clone()
    }

    pub(super) fn retry_at(&mut self) -> Timestamp {
        let delay = RETRY_FIRST.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.shared.clock.now().later(delay)
    }

    pub(super) fn event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventType,
        reason: &'static str,
        note: impl Into<String>,
    ) {
        match container {
            Some(name) => self.shared.events.container(pod, name, kind, reason, note),
            None => self.shared.events.pod(pod, kind, reason, note),
        }
    }
}
