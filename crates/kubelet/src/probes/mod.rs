//! The prober manager: liveness, readiness and startup probes.
//!
//! One task keeps all probes of the node in one heap of deadlines and starts those that are due, a bounded number at once.
//! `machine` decides when a probe runs and what its results mean, `run` runs it (exec, httpGet, tcpSocket, grpc). The pod
//! worker says which containers run ([`Probes::update`]), is notified when a pod's results changed ([`Probes::changes`]) and
//! reads them ([`Probes::results`]).
//!
//! Results belong to a container id: when a container is replaced, its probes start over.

mod exec;
mod grpc;
pub mod http;
pub mod machine;
mod metrics;
mod run;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use orlop_api::types::core::{Container, Pod};
use orlop_base::clock::Shift;
use orlop_base::{Clock, Random, Shutdown};
use orlop_client::events::{EventType, ObjectReference};
use orlop_runtime::Runtime;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;

use self::machine::{Adopted, KINDS, Kind, Settings, Track};
use self::metrics::Counters;
use self::run::{Attempt, ProbeResult, Question};
use crate::events::{Events, container_reference};

/// Probes under way at once. Each waits for its container most of the time, and none longer than its timeout; this many
/// may hang before one of another pod has to wait.
const MOST_AT_ONCE: usize = 256;
/// Capacity of the channel of changes. What doesn't fit is sent a moment later.
const MOST_CHANGES: usize = 1024;
const RETELL: Duration = Duration::from_millis(50);
/// Upstream: a container that started this long before the kubelet was not started by it.
const BEFORE_AGENT: Duration = Duration::from_secs(10);

/// A container that runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    pub name: String,
    /// As the runtime calls it, or with `containerd://` before it.
    pub container_id: String,
    pub started_at: Timestamp,
}

/// What the probes of one container say. `None`: there is no such probe, or it is not known yet (startup).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerResults {
    pub container_id: String,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
    pub startup: Option<bool>,
}

/// By container name; only containers that run and have probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    pub containers: BTreeMap<String, ContainerResults>,
}

impl ProbeResults {
    fn of(&self, name: &str, container_id: &str) -> Option<&ContainerResults> {
        let results = self.containers.get(name)?;
        (results.container_id == bare_id(container_id)).then_some(results)
    }

    /// `Some(false)`: this very container is to be restarted.
    pub fn liveness(&self, name: &str, container_id: &str) -> Option<bool> {
        self.of(name, container_id)?.liveness
    }

    /// A container with a readiness probe is ready if this is `Some(true)`.
    pub fn readiness(&self, name: &str, container_id: &str) -> Option<bool> {
        self.of(name, container_id)?.readiness
    }

    /// A container with a startup probe has started if this is `Some(true)`, and is to be restarted if `Some(false)`.
    pub fn startup(&self, name: &str, container_id: &str) -> Option<bool> {
        self.of(name, container_id)?.startup
    }
}

/// Container ids in a pod's status have the runtime's name before them.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

type Prober = Arc<dyn Fn(Attempt) -> BoxFuture<'static, ProbeResult> + Send + Sync>;
/// Pod uid, container name, which probe.
type Key = (Arc<str>, Arc<str>, Kind);

struct Tracked {
    container_id: String,
    regarding: ObjectReference,
    container: Arc<Container>,
    track: Track,
}

struct PodProbes {
    uid: Arc<str>,
    ip: Option<String>,
    tracked: BTreeMap<Arc<str>, Tracked>,
    counters: BTreeMap<(Arc<str>, Kind), Counters>,
    namespace: String,
    name: String,
}

#[derive(Default)]
struct ProbeManagerState {
    pods: FxHashMap<Arc<str>, PodProbes>,
    /// May hold times that are no longer true: the tracks know.
    times: BinaryHeap<Reverse<(Instant, Key)>>,
    changes: Option<mpsc::Sender<String>>,
    untold: BTreeSet<String>,
}

struct Shared {
    state: Mutex<ProbeManagerState>,
    wake: Notify,
    permits: Arc<Semaphore>,
    random: Mutex<Random>,
    prober: Prober,
    events: Events,
    clock: Clock,
    began: Timestamp,
}

/// All probes of this node. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    shared: Arc<Shared>,
}

impl Probes {
    /// Must be called inside the async runtime: it starts the task that probes, which ends at the shutdown.
    pub fn start(runtime: Arc<dyn Runtime>, events: Events, clock: Clock, shutdown: Shutdown) -> Probes {
        let prober: Prober = Arc::new(move |attempt| {
            let runtime = runtime.clone();
            Box::pin(async move { run::probe(&attempt, &*runtime).await })
        });
        Probes::with_prober(prober, events, clock, Random::from_entropy(), shutdown)
    }

    fn with_prober(prober: Prober, events: Events, clock: Clock, random: Random, shutdown: Shutdown) -> Probes {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Notify::new(),
            permits: Arc::new(Semaphore::new(MOST_AT_ONCE)),
            random: Mutex::new(random),
            prober,
            events,
            began: clock.now(),
            clock,
        });
        orlop_base::spawn(drive(shared.clone(), shutdown));
        Probes { shared }
    }

    /// These containers of the pod run now, and no others. To be called whenever that, the pod's address or its
    /// deletion timestamp changes; doing it again is cheap.
    pub fn update(&self, pod: &Pod, containers: &[ProbeTarget], pod_ip: Option<&str>) {
        let shared = &*self.shared;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut state = shared.state.lock();
        if !state.pods.contains_key(uid) {
            if !containers.iter().any(|target| probed(pod, &target.name).is_some()) {
                return;
            }
            let uid: Arc<str> = uid.into();
            state.pods.insert(uid.clone(), PodProbes::new(uid, pod));
        }
        let ProbeManagerState { pods, times, .. } = &mut *state;
        let Some(probes) = pods.get_mut(uid) else { return };
        probes.ip = pod_ip.map(str::to_string);
        probes.tracked.retain(|name, tracked| {
            let same = |t: &&ProbeTarget| t.name == **name && bare_id(&t.container_id) == tracked.container_id;
            containers.iter().any(|target| same(&target))
        });
        let (now, mut random) = (Instant::now(), shared.random.lock());
        for target in containers {
            if probes.tracked.contains_key(target.name.as_str()) {
                continue;
            }
            if let Some(container) = probed(pod, &target.name) {
                let (age, adopted) = shared.seen_before(pod, target);
                let settings = KINDS.map(|kind| probe_of(container, kind).map(Settings::of));
                let tracked = Tracked {
                    container_id: bare_id(&target.container_id).to_string(),
                    regarding: container_reference(pod, &target.name),
                    container: Arc::new(container.clone()),
                    track: Track::new(settings, age, adopted, now, &mut random),
                };
                probes.tracked.insert(target.name.as_str().into(), tracked);
                probes.remember_times(&target.name, &KINDS, times);
            }
        }
        if pod.metadata.deletion_timestamp.is_some() {
            probes.stop_liveness_and_startup(now, &mut random, times);
        }
        drop(random);
        drop(state);
        shared.wake.notify_one();
    }

    /// The pod is being ended (deleted, evicted, out of time): liveness and startup no longer matter, readiness does.
    /// `update` does this by itself for a pod with a deletion timestamp.
    pub fn terminating(&self, uid: &str) {
        let mut state = self.shared.state.lock();
        let ProbeManagerState { pods, times, .. } = &mut *state;
        if let Some(probes) = pods.get_mut(uid) {
            probes.stop_liveness_and_startup(Instant::now(), &mut self.shared.random.lock(), times);
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        let mut state = self.shared.state.lock();
        state.pods.remove(uid);
        state.untold.remove(uid);
    }

    pub fn results(&self, uid: &str) -> ProbeResults {
        let state = self.shared.state.lock();
        let tracked = state.pods.get(uid).into_iter().flat_map(|pod| &pod.tracked);
        let containers = tracked.map(
            |(
                name,
                Tracked {
                    container_id, track, ..
                },
            )| {
                let results = ContainerResults {
                    container_id: container_id.clone(),
                    liveness: track.result(Kind::Liveness),
                    readiness: track.result(Kind::Readiness),
                    startup: track.result(Kind::Startup),
                };
                (name.to_string(), results)
            },
        );
        ProbeResults {
            containers: containers.collect(),
        }
    }

    /// The uids of pods whose results changed, from now on. There is one listener: a second call takes over.
    pub fn changes(&self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(MOST_CHANGES);
        self.shared.state.lock().changes = Some(sender);
        receiver
    }

    /// In the text format of Prometheus, for `/metrics/probes`.
    pub fn metrics(&self) -> String {
        let state = self.shared.state.lock();
        let mut pods: Vec<&PodProbes> = state.pods.values().collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        metrics::render(&pods)
    }
}

/// The container of that name if it has probes that run: an init container only if it is a sidecar.
fn probed<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let container = spec.containers.iter().chain(sidecars).find(|c| c.name == name)?;
    KINDS
        .iter()
        .any(|&kind| probe_of(container, kind).is_some())
        .then_some(container)
}

fn probe_of(container: &Container, kind: Kind) -> Option<&orlop_api::types::core::Probe> {
    match kind {
        Kind::Liveness => container.liveness_probe.as_ref(),
        Kind::Readiness => container.readiness_probe.as_ref(),
        Kind::Startup => container.startup_probe.as_ref(),
    }
}

impl PodProbes {
    fn new(uid: Arc<str>, pod: &Pod) -> PodProbes {
        PodProbes {
            uid,
            ip: None,
            tracked: BTreeMap::new(),
            counters: BTreeMap::new(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        }
    }

    fn remember_times(&self, container: &str, kinds: &[Kind], times: &mut BinaryHeap<Reverse<(Instant, Key)>>) {
        let Some((name, tracked)) = self.tracked.get_key_value(container) else {
            return;
        };
        for &kind in kinds {
            if let Some(at) = tracked.track.due(kind) {
                times.push(Reverse((at, (self.uid.clone(), name.clone(), kind))));
            }
        }
    }

    fn stop_liveness_and_startup(
        &mut self,
        now: Instant,
        random: &mut Random,
        times: &mut BinaryHeap<Reverse<(Instant, Key)>>,
    ) {
        let mut restarted = Vec::new();
        for (name, tracked) in &mut self.tracked {
            if tracked.track.stop_liveness_and_startup(now, random) {
                restarted.push(name.clone());
            }
        }
        for name in restarted {
            self.remember_times(&name, &[Kind::Readiness], times);
        }
    }
}

impl Shared {
    /// How long the container has run, and what the pod's status said of it if this kubelet did not start it.
    fn seen_before(&self, pod: &Pod, target: &ProbeTarget) -> (Duration, Option<Adopted>) {
        let age = Duration::try_from(self.clock.now().duration_since(target.started_at)).unwrap_or_default();
        let before = self.began.duration_since(target.started_at);
        if Duration::try_from(before).is_ok_and(|before| before > BEFORE_AGENT) {
            let status = pod.status.as_ref();
            let regular = status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
            let init = status
                .and_then(|s| s.init_container_statuses.as_ref())
                .into_iter()
                .flatten();
            let same = |id: &Option<String>| id.as_deref().map(bare_id) == Some(bare_id(&target.container_id));
            let known = regular
                .chain(init)
                .find(|c| c.name == target.name && same(&c.container_id));
            let adopted = Adopted {
                started: known.is_some_and(|c| c.started == Some(true)),
                ready: known.is_some_and(|c| c.ready),
            };
            return (age, Some(adopted));
        }
        (age, None)
    }

    /// Starts what is due and says when to look again.
    fn start_due(self: &Arc<Shared>) -> Option<Instant> {
        let mut state = self.state.lock();
        state.tell();
        let now = Instant::now();
        let retell = (!state.untold.is_empty()).then(|| now.later(RETELL));
        loop {
            let ProbeManagerState { pods, times, .. } = &mut *state;
            let at = match times.peek() {
                Some(Reverse((at, _))) if *at <= now => *at,
                Some(Reverse((at, _))) => return Some(retell.map_or(*at, |retell| retell.min(*at))),
                None => return retell,
            };
            // With none left, the end of a run wakes us.
            let Ok(permit) = self.permits.clone().try_acquire_owned() else {
                return retell;
            };
            let Some(Reverse((_, key))) = times.pop() else {
                return retell;
            };
            let (uid, name, kind) = &key;
            let Some(pod) = pods.get_mut(uid) else { continue };
            let Some(tracked) = pod.tracked.get_mut(name) else {
                continue;
            };
            if tracked.track.due(*kind) != Some(at) {
                continue;
            }
            tracked.track.begin(*kind);
            let attempt = Attempt {
                question: Question {
                    kind: *kind,
                    container: tracked.container.clone(),
                    pod: format!("{}_{}({})", pod.name, pod.namespace, pod.uid),
                },
                container_id: tracked.container_id.clone(),
                pod_ip: pod.ip.clone(),
            };
            let shared = self.clone();
            orlop_base::spawn(async move {
                let container_id = attempt.container_id.clone();
                let outcome = (shared.prober)(attempt).await;
                shared.finish(&key, &container_id, now, outcome);
                drop(permit);
                shared.wake.notify_one();
            });
        }
    }

    fn finish(&self, key: &Key, container_id: &str, began: Instant, outcome: ProbeResult) {
        let (uid, name, kind) = key;
        let now = Instant::now();
        let mut state = self.state.lock();
        let ProbeManagerState { pods, times, .. } = &mut *state;
        let Some(pod) = pods.get_mut(uid) else { return };
        // Answers about a container that was replaced meanwhile are of no interest.
        let Some(tracked) = pod.tracked.get_mut(name).filter(|t| t.container_id == container_id) else {
            return;
        };
        let success = outcome.success();
        let changed = tracked.track.finish(*kind, success, now, &mut self.random.lock());
        let regarding = tracked.regarding.clone();
        if let Some(success) = success {
            let counters = pod.counters.entry((name.clone(), *kind)).or_default();
            counters.count(success, now.duration_since(began));
        }
        // The end of startup lets the others begin.
        let kinds = if *kind == Kind::Startup {
            &KINDS[..]
        } else {
            std::slice::from_ref(kind)
        };
        pod.remember_times(name, kinds, times);
        if changed {
            tracing::debug!(pod = format!("{}/{}", pod.namespace, pod.name), container = %name, probe = ?kind, success = ?success, "probe result changed");
            state.untold.insert(uid.to_string());
        }
        drop(state);
        if let Some((reason, note)) = outcome.event(*kind) {
            self.events.record(regarding, EventType::Warning, reason, note);
        }
    }
}

impl ProbeManagerState {
    fn tell(&mut self) {
        let Some(sender) = &self.changes else {
            return self.untold.clear();
        };
        while let Some(uid) = self.untold.pop_first() {
            match sender.try_send(uid) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(uid)) => {
                    self.untold.insert(uid);
                    return;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
        }
    }
}

async fn drive(shared: Arc<Shared>, shutdown: Shutdown) {
    loop {
        let next = shared.start_due();
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = shutdown.wait() => return,
            _ = shared.wake.notified() => {}
            _ = sleep => {}
        }
    }
}

#[cfg(test)]
mod tests;
