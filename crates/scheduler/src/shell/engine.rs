//! The engine: one pod after the other, from the queue to an assumed node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::{Clock, Shutdown, v, v10_enabled};
use orlop_client::{Api, Election, Recorder};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::inbox::{Input, Kinds, watch_all};
use super::{Options, RunError};
use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::pod::PodInfo;
use crate::cycle::{Core, Feasible, ScheduleFailure, ScheduleResult};
use crate::extender::Extender;
use crate::fit_error::FitError;
use crate::framework::event::{Event, Hint};
use crate::framework::permit::WaitingPods;
use crate::framework::profile::Profile;
use crate::framework::verdict::Rejection;
use crate::metrics::Metrics;
use crate::plugins::profiles;
use crate::queue::{Advice, AttemptFailure, QueueConfig, QueuedPod, SchedulingQueue};
use crate::timing::{SAMPLE_EVERY, SUCCESS, Step, status};

/// Pods tried between two looks at the inbox.
const TRIES: usize = 32;
/// Bindings under way at most; the queue waits beyond that. Pods that wait for permission do not count: the one that
/// they wait for may still be in the queue.
const BINDINGS_MAX: usize = 512;
/// Between two looks at the clock when nothing else happens.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Engine {
    pub(super) api: Api,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    /// One for each profile: events name the scheduler.
    pub(super) recorders: Vec<Recorder>,
    pub(super) cluster: Cluster,
    pub(super) queue: SchedulingQueue,
    pub(super) core: Core,
    pub(super) by_name: FxHashMap<String, usize>,
    pub(super) extenders: Vec<Extender>,
    pub(super) preemption: Vec<Option<crate::preemption::DefaultPreemption>>,
    /// Pods without a node that are ours to place, by uid.
    pub(super) waiting: FxHashMap<Arc<str>, Arc<PodInfo>>,
    /// Pods that have a node by our decision, and are not bound yet.
    pub(super) binding: FxHashMap<Arc<str>, Attempt>,
    /// Those of them that a Permit plugin makes wait.
    pub(super) permits: WaitingPods,
    /// Pods for which others are being evicted.
    pub(super) preempting: HashSet<Arc<str>>,
    /// What the pod's condition says, by uid, so that it is written once.
    pub(super) reported: FxHashMap<Arc<str>, u64>,
    /// Names of what is there, of kinds that need no more.
    pub(super) tables: FxHashMap<&'static str, HashSet<super::observe::ObjectKey>>,
    pub(super) outbox: mpsc::Sender<Input>,
    pub(super) inbox: mpsc::Receiver<Input>,
    pub(super) listed: Kinds,
    /// Pods tried up to now.
    cycles: u64,
}

/// A pod between decision and binding.
pub(super) struct Attempt {
    pub queued: QueuedPod,
    pub id: NodeId,
    pub node: Arc<str>,
    pub profile: usize,
    pub started: Instant,
    /// When its last step (PreBind, Bind) began.
    pub step: Instant,
    /// Whether its plugins are timed one by one.
    pub sampled: bool,
    /// Waits for what PreBind wants to see, until then.
    pub pre_bind: Option<Timestamp>,
    /// Nodes that were looked at for it, and those of them that would do.
    pub evaluated: usize,
    pub feasible: usize,
}

/// The queueing hints of the plugins.
pub(super) struct Advisor<'a> {
    pub core: &'a Core,
    pub cluster: &'a Cluster,
    pub by_name: &'a FxHashMap<String, usize>,
    pub preempting: &'a HashSet<Arc<str>>,
    pub metrics: &'a Metrics,
}

impl Advice for Advisor<'_> {
    fn pre_enqueue(&self, pod: &PodInfo) -> Result<(), (&'static str, Rejection)> {
        if self.preempting.contains(&pod.uid) {
            let wait = "waiting for the preemption for this pod to be finished";
            return Err(("DefaultPreemption", Rejection::unresolvable(wait)));
        }
        let Some(index) = self.by_name.get(&pod.class.spec.scheduler_name) else {
            return Ok(());
        };
        let profile = &self.core.profiles[*index];
        let start = Instant::now();
        let mut plugins = profile.pre_enqueue.iter().map(|place| &profile.plugins[*place]);
        let result = plugins.try_for_each(|plugin| match plugin.pre_enqueue() {
            Some(point) => point.pre_enqueue(pod).map_err(|rejection| (plugin.name(), rejection)),
            None => Ok(()),
        });
        let outcome = result
            .as_ref()
            .map_or_else(|(_, rejection)| status(rejection), |()| SUCCESS);
        self.metrics
            .extension_point("PreEnqueue", outcome, &profile.name, start.elapsed());
        result
    }

    fn hint(&self, plugin: &'static str, pod: &PodInfo, event: &Event) -> Hint {
        let index = self.by_name.get(&pod.class.spec.scheduler_name);
        let found = index.and_then(|i| self.core.profiles[*i].plugin(plugin));
        found.map_or(Hint::Queue, |p| p.hint(pod, event, self.cluster))
    }
}

/// Borrows what the queue's advisor needs, beside the queue itself.
macro_rules! advisor {
    ($engine:expr) => {
        $crate::shell::engine::Advisor {
            core: &$engine.core,
            cluster: &$engine.cluster,
            by_name: &$engine.by_name,
            preempting: &$engine.preempting,
            metrics: &$engine.metrics,
        }
    };
}
pub(super) use advisor;

impl Engine {
    pub(super) fn start(options: &Options) -> Result<Engine, RunError> {
        Engine::with_profiles(options, profiles(&options.config)?)
    }

    /// With these profiles, one for each of the configuration.
    pub(super) fn with_profiles(options: &Options, built: Vec<Profile>) -> Result<Engine, RunError> {
        let config = &options.config;
        let by_name = built.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let mut kinds: Vec<(&'static str, Vec<_>)> = vec![];
        for plugin in built.iter().flat_map(|p| &p.plugins) {
            if !kinds.iter().any(|(name, _)| *name == plugin.name()) {
                kinds.push((plugin.name(), plugin.events()));
            }
        }
        let queue_config = QueueConfig {
            initial_backoff: config.pod_initial_backoff,
            max_backoff: config.pod_max_backoff,
            max_in_unschedulable: config.pod_max_in_unschedulable,
            ..QueueConfig::default()
        };
        let (recorder, _) = Recorder::start(
            options.api.clone(),
            "default-scheduler",
            options.clock.clone(),
            options.shutdown.clone(),
        );
        let (outbox, inbox) = watch_all(&options.api, &options.shutdown);
        let recorders = built.iter().map(|p| recorder.reporting_as(&p.name)).collect();
        let mut core = Core::new(built, options.seed);
        core.measure();
        Ok(Engine {
            api: options.api.clone(),
            clock: options.clock.clone(),
            metrics: options.metrics.clone(),
            recorders,
            cluster: Cluster::default(),
            queue: SchedulingQueue::new(queue_config, kinds),
            preemption: crate::plugins::preemption_args(config),
            core,
            by_name,
            extenders: Extender::all(&config.extenders, &options.api)?,
            waiting: FxHashMap::default(),
            binding: FxHashMap::default(),
            permits: WaitingPods::default(),
            preempting: HashSet::new(),
            reported: FxHashMap::default(),
            tables: FxHashMap::default(),
            outbox,
            inbox,
            listed: Kinds::default(),
            cycles: 0,
        })
    }

    /// Schedules while we lead, until the shutdown. False if the lease was lost.
    pub(super) async fn run(mut self, shutdown: Shutdown, election: Option<&Election>) -> bool {
        let mut leading = election.map(Election::subscribe);
        loop {
            let may = leading
                .as_ref()
                .is_none_or(|l| *l.borrow() == orlop_client::Leadership::Leading);
            self.metrics.set_leading(may);
            self.metrics.set_synced(self.listed.all());
            let now = self.clock.now();
            self.queue.flush(now, &advisor!(self));
            self.process_permits();
            let busy = may && self.listed.all() && self.schedule_batch().await;
            self.metrics.observe_queue(self.queue.counts(), self.queue.incoming());
            if let Some(rejected) = self.queue.rejected() {
                self.metrics.observe_rejected(rejected);
            }
            self.metrics
                .observe_cache(self.cluster.len(), self.cluster.pod_count(), self.binding.len());
            if busy {
                // Take what is there, and go on.
                let mut taken = 0;
                while taken < TRIES
                    && let Ok(input) = self.inbox.try_recv()
                {
                    self.handle(input);
                    taken += 1;
                }
                tokio::task::yield_now().await;
                if shutdown.is_triggered() {
                    return true;
                }
                continue;
            }
            let wait = self.time_until_due(now);
            let changed = async {
                match &mut leading {
                    Some(leading) => leading.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = shutdown.wait() => return true,
                alive = changed => {
                    if !alive || leading.as_ref().is_some_and(|l| *l.borrow() == orlop_client::Leadership::Lost) {
                        return shutdown.is_triggered();
                    }
                }
                input = self.inbox.recv() => match input {
                    Some(input) => self.handle(input),
                    None => return true,
                },
                _ = self.permits.wait() => {}
                _ = tokio::time::sleep(wait) => self.tick(),
            }
        }
    }

    fn time_until_due(&self, now: Timestamp) -> Duration {
        let due = [self.queue.next_deadline(), self.permits.next_deadline()];
        let due = due.into_iter().flatten().min().map(|at| at.duration_since(now));
        due.map_or(IDLE, |d| {
            Duration::try_from(d)
                .unwrap_or_default()
                .clamp(Duration::from_millis(1), IDLE)
        })
    }

    /// Whatever waits for time to pass.
    fn tick(&mut self) {
        self.check_pre_binds();
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Changes(changes) => {
                changes.mark(&mut self.listed);
                self.observe(changes);
            }
            Input::Bound { uid, result } => self.bound(uid, result),
            Input::PreBound { uid, result } => self.pre_bound(uid, result),
            Input::Preempted { uid, result } => self.preempted(uid, result),
        }
    }

    /// Tries some pods. True if there may be more to try at once.
    async fn schedule_batch(&mut self) -> bool {
        for _ in 0..TRIES {
            if self.binding.len().saturating_sub(self.permits.len()) >= BINDINGS_MAX {
                return false;
            }
            let Some(queued) = self.queue.pop() else { return false };
            self.try_one(queued).await;
        }
        true
    }

    async fn try_one(&mut self, queued: QueuedPod) {
        let pod = queued.pod.clone();
        let Some(profile) = self.by_name.get(&pod.class.spec.scheduler_name).copied() else {
            self.queue.done(&pod.uid);
            return;
        };
        if pod.is_terminating() {
            v!(3, pod = pod.key.to_string(), "Skip schedule deleting pod");
            let note = format!("skip schedule deleting pod: {}", pod.key);
            self.warn(profile, &pod, "FailedScheduling", "Scheduling", note);
            self.queue.done(&pod.uid);
            return;
        }
        if self.cluster.is_assumed(&pod.uid) {
            self.queue.done(&pod.uid);
            return;
        }
        v!(3, pod = pod.key.to_string(), "Attempting to schedule pod");
        let started = Instant::now();
        self.cycles += 1;
        let decision = self.decide(profile, &pod).await;
        self.metrics.algorithm(started.elapsed());
        self.observe_decision(profile, &pod, &decision);
        match decision {
            Ok(choice) => self.reserve_and_bind(profile, queued, choice, started),
            Err(ScheduleFailure::Unfit(error)) => self.unfit(profile, queued, *error, started).await,
            Err(ScheduleFailure::Error(error)) => self.error(profile, queued, error.to_string(), started),
        }
    }

    async fn decide(&mut self, profile: usize, pod: &Arc<PodInfo>) -> Result<ScheduleResult, ScheduleFailure> {
        let extenders = self.interested_extenders(pod);
        if extenders.is_empty() && !v10_enabled!() {
            return self.core.schedule(profile, &self.cluster, pod);
        }
        let mut feasible = self.core.feasible(profile, &self.cluster, pod)?;
        for extender in &extenders {
            let request = extender.filter_request(&self.cluster, pod, &feasible.nodes);
            let response = extender.send(request).await;
            extender
                .apply_filter(response, &self.cluster, &mut feasible)
                .map_err(|error| ScheduleFailure::Error(error.into()))?;
            if feasible.nodes.is_empty() {
                let mut diagnosis = std::mem::take(&mut feasible.diagnosis);
                diagnosis.rejected_by.insert("Extender");
                return Err(ScheduleFailure::Unfit(Box::new(FitError {
                    all_nodes: self.cluster.len(),
                    diagnosis,
                    post_filter: String::new(),
                })));
            }
        }
        if extenders.is_empty() {
            self.log_scores(profile, pod, &feasible, &[]);
            return self.core.choose(profile, &self.cluster, pod, &feasible, None);
        }
        let mut extra = vec![0; feasible.nodes.len()];
        for extender in &extenders {
            let request = extender.prioritize_request(&self.cluster, pod, &feasible.nodes);
            let response = extender.send(request).await;
            extender.add_scores(response, &self.cluster, &feasible.nodes, &mut extra);
        }
        self.log_scores(profile, pod, &feasible, &extra);
        self.core.choose(profile, &self.cluster, pod, &feasible, Some(&extra))
    }

    /// Every plugin's score of every node, as it counts: with its weight. Only worked out if somebody wants to know.
    // Upstream: prioritizeNodes in pkg/scheduler/schedule_one.go (v1.36)
    fn log_scores(&mut self, profile: usize, pod: &PodInfo, feasible: &Feasible, extra: &[i64]) {
        if !v10_enabled!() || (feasible.nodes.len() == 1 && extra.is_empty()) {
            return;
        }
        let Ok(scores) = self.core.scores(profile, &self.cluster, pod, &feasible.nodes) else {
            // The decision fails for the same reason, and that is logged.
            return;
        };
        let name = |id: NodeId| self.cluster.node(id).map_or("", |node| &*node.name);
        let key = pod.key.to_string();
        for (id, lines) in &scores {
            for line in lines {
                let (plugin, score) = (line.plugin, line.weight * line.normalized);
                v!(
                    10,
                    pod = key,
                    plugin,
                    node = name(*id),
                    score,
                    "Plugin scored node for pod"
                );
            }
        }
        for (at, (id, lines)) in scores.iter().enumerate() {
            let plugins: i64 = lines.iter().map(|line| line.weight * line.normalized).sum();
            let score = plugins + extra.get(at).copied().unwrap_or(0);
            v!(
                10,
                pod = key,
                node = name(*id),
                score,
                "Calculated node's final score for pod"
            );
        }
    }

    pub(super) fn interested_extenders(&self, pod: &PodInfo) -> Vec<Extender> {
        (self.extenders.iter())
            .filter(|e| e.is_interested(&pod.class.spec))
            .cloned()
            .collect()
    }

    // ---- figures ----

    pub(super) fn is_sampled(&self) -> bool {
        self.cycles % SAMPLE_EVERY == 1
    }

    pub(super) fn observe_point(&self, name: &str, profile: usize, status: &str, took: Duration) {
        let profile = &self.core.profiles[profile].name;
        self.metrics.extension_point(name, status, profile, took);
    }

    fn observe_decision(&mut self, profile: usize, pod: &PodInfo, decision: &Result<ScheduleResult, ScheduleFailure>) {
        let laps = self.core.laps();
        let ruled_out = match decision {
            Err(ScheduleFailure::Unfit(error)) => error.diagnosis.pre_filter.as_ref(),
            _ => None,
        };
        let points = [
            (
                Step::PreFilter,
                "PreFilter",
                ruled_out.map_or(SUCCESS, |(_, rejection)| status(rejection)),
            ),
            // Also if no node fits. Upstream: findNodesThatPassFilters in pkg/scheduler/schedule_one.go (v1.36).
            (Step::Filter, "Filter", SUCCESS),
            (Step::Score, "Score", SUCCESS),
        ];
        for (step, name, status) in points {
            if let Some(took) = laps.of(step) {
                self.observe_point(name, profile, status, took);
            }
        }
        if self.is_sampled() {
            self.sample(profile, pod, decision);
        }
    }

    /// Times each plugin on the chosen node, or on one that was rejected.
    fn sample(&mut self, profile: usize, pod: &PodInfo, decision: &Result<ScheduleResult, ScheduleFailure>) {
        let node = match decision {
            Ok(choice) => Some(choice.node),
            Err(ScheduleFailure::Unfit(error)) => error.diagnosis.nodes.first().map(|(node, _, _)| *node),
            Err(ScheduleFailure::Error(_)) => None,
        };
        if let Some(node) = node.and_then(|node| self.cluster.node(node)) {
            let metrics = &self.metrics;
            self.core.sample(profile, &self.cluster, pod, node, |sample| {
                metrics.plugin(sample.plugin, sample.point, sample.status, sample.took);
            });
        }
    }

    pub(super) fn requeue(&mut self, queued: QueuedPod, outcome: AttemptFailure<'_>) {
        let now = self.clock.now();
        self.queue.failed(queued, outcome, now, &advisor!(self));
    }
}
