//! The engine: one pod after the other, from the queue to an assumed node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, Election, Recorder};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;

use super::Options;
use super::inbox::{Input, Kinds, watch_all};
use crate::cluster::Cluster;
use crate::cluster::pod::PodInfo;
use crate::cycle::{Choice, Core, Failure};
use crate::extender::Extender;
use crate::fit_error::FitError;
use crate::framework::event::{Event, Hint};
use crate::framework::points::Permission;
use crate::framework::verdict::Rejection;
use crate::metrics::Metrics;
use crate::plugins::profiles;
use crate::queue::{Advice, Outcome, QueueConfig, QueuedPod, SchedulingQueue};

/// Pods tried between two looks at the inbox.
const TRIES: usize = 32;
/// Bindings under way at most; the queue waits beyond that.
const BINDINGS_MAX: usize = 512;
/// Between two looks at the clock when nothing else happens.
const IDLE: Duration = Duration::from_secs(1);

pub struct Engine {
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
    /// Pods for which others are being evicted.
    pub(super) preempting: HashSet<Arc<str>>,
    /// What the pod's condition says, by uid, so that it is written once.
    pub(super) reported: FxHashMap<Arc<str>, u64>,
    /// Names of what is there, of kinds that need no more.
    pub(super) tables: FxHashMap<&'static str, HashSet<(String, String)>>,
    pub(super) outbox: mpsc::Sender<Input>,
    pub(super) inbox: mpsc::Receiver<Input>,
    pub(super) listed: Kinds,
}

/// A pod between decision and binding.
pub(super) struct Attempt {
    pub queued: QueuedPod,
    pub node: Arc<str>,
    pub profile: usize,
    pub started: Instant,
    /// Waits for what PreBind wants to see, until then.
    pub pre_bind: Option<Timestamp>,
}

/// What plugins tell the queue.
pub(super) struct Advisor<'a> {
    pub core: &'a Core,
    pub cluster: &'a Cluster,
    pub by_name: &'a FxHashMap<String, usize>,
    pub preempting: &'a HashSet<Arc<str>>,
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
        for place in &profile.pre_enqueue {
            let plugin = &profile.plugins[*place];
            if let Some(point) = plugin.pre_enqueue() {
                point.pre_enqueue(pod).map_err(|rejection| (plugin.name(), rejection))?;
            }
        }
        Ok(())
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
        }
    };
}
pub(super) use advisor;

impl Engine {
    pub fn start(options: &Options) -> Result<Engine, String> {
        let config = &options.config;
        let built = profiles(config)?;
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
        Ok(Engine {
            api: options.api.clone(),
            clock: options.clock.clone(),
            metrics: options.metrics.clone(),
            recorders: built.iter().map(|p| recorder.reporting_as(&p.name)).collect(),
            cluster: Cluster::default(),
            queue: SchedulingQueue::new(queue_config, kinds),
            preemption: crate::plugins::preemption_args(config),
            core: Core::new(built, options.seed),
            by_name,
            extenders: Extender::all(&config.extenders, &options.api)?,
            waiting: FxHashMap::default(),
            binding: FxHashMap::default(),
            preempting: HashSet::new(),
            reported: FxHashMap::default(),
            tables: FxHashMap::default(),
            outbox,
            inbox,
            listed: Kinds::default(),
        })
    }

    /// Schedules while we lead, until the shutdown. False if the lease was lost.
    pub async fn run(mut self, shutdown: Shutdown, election: Option<&Election>) -> bool {
        let mut leading = election.map(Election::subscribe);
        loop {
            let may = leading
                .as_ref()
                .is_none_or(|l| *l.borrow() == orlop_client::Leadership::Leading);
            self.metrics.set_leading(may);
            self.metrics.set_synced(self.listed.all());
            let now = self.clock.now();
            self.queue.flush(now, &advisor!(self));
            let busy = may && self.listed.all() && self.try_some().await;
            self.metrics.observe_queue(self.queue.counts(), self.queue.incoming());
            self.metrics
                .observe_cache(self.cluster.len(), self.cluster.pod_count(), self.binding.len());
            if busy {
                // Take what is there, and go on.
                let mut taken = 0;
                while taken < TRIES
                    && let Ok(input) = self.inbox.try_recv()
                {
                    self.take(input);
                    taken += 1;
                }
                tokio::task::yield_now().await;
                if shutdown.is_triggered() {
                    return true;
                }
                continue;
            }
            let wait = self.sleep(now);
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
                    Some(input) => self.take(input),
                    None => return true,
                },
                _ = tokio::time::sleep(wait) => self.tick(),
            }
        }
    }

    fn sleep(&self, now: Timestamp) -> Duration {
        let due = self.queue.next_deadline().map(|at| at.duration_since(now));
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

    fn take(&mut self, input: Input) {
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
    async fn try_some(&mut self) -> bool {
        for _ in 0..TRIES {
            if self.binding.len() >= BINDINGS_MAX {
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
            let note = format!("skip schedule deleting pod: {}", pod.key);
            self.warn(profile, &pod, "FailedScheduling", "Scheduling", note);
            self.queue.done(&pod.uid);
            return;
        }
        if self.cluster.is_assumed(&pod.uid) {
            self.queue.done(&pod.uid);
            return;
        }
        let started = Instant::now();
        let decision = self.decide(profile, &pod).await;
        self.metrics.algorithm(started.elapsed());
        match decision {
            Ok(choice) => self.place(profile, queued, choice, started),
            Err(Failure::Unfit(error)) => self.unfit(profile, queued, *error, started).await,
            Err(Failure::Error(message)) => self.error(profile, queued, message, started),
        }
    }

    async fn decide(&mut self, profile: usize, pod: &Arc<PodInfo>) -> Result<Choice, Failure> {
        let extenders = self.interested_extenders(pod);
        if extenders.is_empty() {
            return self.core.schedule(profile, &self.cluster, pod);
        }
        let mut feasible = self.core.feasible(profile, &self.cluster, pod)?;
        for extender in &extenders {
            let question = extender.filter_question(&self.cluster, pod, &feasible.nodes);
            let answer = extender.ask(question).await;
            extender
                .apply_filter(answer, &self.cluster, &mut feasible)
                .map_err(Failure::Error)?;
            if feasible.nodes.is_empty() {
                let mut diagnosis = std::mem::take(&mut feasible.diagnosis);
                diagnosis.rejected_by.insert("Extender");
                return Err(Failure::Unfit(Box::new(FitError {
                    all_nodes: self.cluster.len(),
                    diagnosis,
                    post_filter: String::new(),
                })));
            }
        }
        let mut extra = vec![0; feasible.nodes.len()];
        for extender in &extenders {
            let question = extender.prioritize_question(&self.cluster, pod, &feasible.nodes);
            let answer = extender.ask(question).await;
            extender.add_scores(answer, &self.cluster, &feasible.nodes, &mut extra);
        }
        self.core.choose(profile, &self.cluster, pod, &feasible, Some(&extra))
    }

    pub(super) fn interested_extenders(&self, pod: &PodInfo) -> Vec<Extender> {
        (self.extenders.iter())
            .filter(|e| e.is_interested(&pod.class.spec))
            .cloned()
            .collect()
    }

    /// The pod has a node: reserve, ask for permission, assume, and bind beside the next cycles.
    fn place(&mut self, profile: usize, queued: QueuedPod, choice: Choice, started: Instant) {
        let pod = queued.pod.clone();
        let Some(node) = self.cluster.node(choice.node) else {
            return self.error(profile, queued, "the chosen node is gone".to_string(), started);
        };
        let name = node.name.clone();
        let plugins = &self.core.profiles[profile];
        for (n, place) in plugins.reserve.iter().enumerate() {
            let Some(reserve) = plugins.plugins[*place].reserve() else {
                continue;
            };
            if let Err(rejection) = reserve.reserve(&pod, node, &self.cluster) {
                for place in plugins.reserve[..=n].iter().rev() {
                    if let Some(reserve) = plugins.plugins[*place].reserve() {
                        reserve.unreserve(&pod, &name);
                    }
                }
                let by = plugins.plugins[*place].name();
                return self.rejected(profile, queued, by, &rejection, started);
            }
        }
        for place in &plugins.permit {
            let Some(permit) = plugins.plugins[*place].permit() else {
                continue;
            };
            let by = plugins.plugins[*place].name();
            match permit.permit(&pod, node) {
                Permission::Allow => {}
                Permission::Reject(rejection) => {
                    self.unreserve(profile, &pod, &name);
                    return self.rejected(profile, queued, by, &rejection, started);
                }
                Permission::Wait(_) => {
                    // Nobody can answer yet, as no plugin here lets others decide: the time is over at once.
                    self.unreserve(profile, &pod, &name);
                    let timeout = Rejection::because("rejected due to timeout after waiting", false);
                    return self.rejected(profile, queued, by, &timeout, started);
                }
            }
        }
        let writes = self.pre_bind_writes(profile, &pod, node);
        self.cluster.assume(&pod, choice.node);
        self.cluster.nominated.remove(&pod.uid);
        let attempt = Attempt {
            queued,
            node: name,
            profile,
            started,
            pre_bind: None,
        };
        self.binding.insert(pod.uid.clone(), attempt);
        self.start_binding(pod, writes);
    }

    /// Undoes `reserve`, last one first.
    pub(super) fn unreserve(&self, profile: usize, pod: &PodInfo, node: &str) {
        let plugins = &self.core.profiles[profile];
        for place in plugins.reserve.iter().rev() {
            if let Some(reserve) = plugins.plugins[*place].reserve() {
                reserve.unreserve(pod, node);
            }
        }
    }

    pub(super) fn requeue(&mut self, queued: QueuedPod, outcome: Outcome<'_>) {
        let now = self.clock.now();
        self.queue.failed(queued, outcome, now, &advisor!(self));
    }
}
