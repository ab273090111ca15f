//! Pod workers: one task a pod, which observes the runtime, publishes the status, takes the next steps, and sleeps until it
//! is woken.
//!
//! A worker is woken by a changed pod ([`Workers::update`]), by the runtime's events, by probes and by its own timer; a slow
//! relist of the whole runtime makes up for lost events and finds orphans. Wake-ups carry no data: a hundred of them are one.
//! Workers share nothing that one could block for another.
//!
//! Pods terminate in this order: containers, sandbox, release of the allocation, terminal phase in the status, volumes and
//! cgroup, containers and sandboxes in the runtime, API object. The allocation is released before the terminal phase is
//! published: the scheduler may reuse the resources at once. A worker ends when no source has its pod any more and nothing of
//! it is left.

mod act;
mod admit;
mod hooks;
mod ledger;
mod published_status;
mod relist;
mod stop;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodStatus};
use orlop_base::{Clock, Shutdown};
use orlop_runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::interfaces::{ContainerConfigurator, PodAllocator, PodEnvironment, PodProber};
use super::observed::ObservedPod;
use super::policy;
use super::status::Host;
use super::worker_state::{Eviction, Pace, Requests, Suspension};
use super::writer::Writer;
use crate::events::Events;
use crate::metrics::Metrics;
use ledger::Ledger;
use published_status::PublishedStatus;
use worker::Worker;

/// What workers need.
pub struct Options {
    pub runtime: Arc<dyn Runtime>,
    pub allocator: Arc<dyn PodAllocator>,
    pub environment: Arc<dyn PodEnvironment>,
    pub configurator: Arc<dyn ContainerConfigurator>,
    pub prober: Arc<dyn PodProber>,
    pub writer: Writer,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    /// The node, as pod statuses show it.
    pub host: Host,
    pub restart_pace: Pace,
    /// How often volumes are refreshed.
    pub sync_frequency: Duration,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

/// All pods of this node. Cheap to clone.
#[derive(Clone)]
pub struct Workers {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    runtime: Arc<dyn Runtime>,
    allocator: Arc<dyn PodAllocator>,
    environment: Arc<dyn PodEnvironment>,
    configurator: Arc<dyn ContainerConfigurator>,
    prober: Arc<dyn PodProber>,
    writer: Writer,
    events: Events,
    metrics: Arc<Metrics>,
    host: Host,
    restart_pace: Pace,
    sync_frequency: Duration,
    clock: Clock,
    /// When this process started.
    began: Timestamp,
    ledger: Ledger,
    /// Serializes pod admission. Taken before `live`.
    admission: Mutex<()>,
    live: Mutex<Live>,
    /// Requests a relist now.
    relist: Notify,
    /// Becomes true with `sources_ready`.
    sources_synced: watch::Sender<bool>,
    shutdown: Shutdown,
}

#[derive(Default)]
struct Live {
    pods: BTreeMap<String, Handle>,
    /// Owner uids by sandbox and container id, for runtime events.
    ids: HashMap<String, String>,
    /// Static pods that wait for another of the same name to terminate.
    queued: BTreeMap<String, Arc<Pod>>,
    /// What the runtime had of each pod at the last relist; `None` before the first.
    seen: Option<BTreeMap<String, relist::Digest>>,
    /// All sources are ready: pods that only the runtime has are orphans.
    sources_ready: bool,
    /// The node stops: no pod is started any more.
    suspension: Option<Suspension>,
}

impl Live {
    /// A source has the pod, and its phase is not terminal: its allocation counts.
    fn is_active(&self, uid: &str) -> bool {
        self.queued.contains_key(uid)
            || self
                .pods
                .get(uid)
                .is_some_and(|handle| handle.work.borrow().is_active())
    }
}

struct Handle {
    work: watch::Sender<PodWork>,
    wake: Arc<Notify>,
    view: watch::Receiver<View>,
    published: Arc<Mutex<PublishedStatus>>,
}

/// The input of a worker; the newest counts.
#[derive(Clone, Debug)]
pub(super) struct PodWork {
    pub pod: Arc<Pod>,
    pub requests: Requests,
    /// An orphan: the runtime has it and no source does.
    pub orphan: bool,
}

impl PodWork {
    fn is_active(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !self.requests.removed && !phase.is_some_and(policy::is_terminal)
    }
}

/// What a worker publishes about its pod.
#[derive(Clone, Debug)]
pub struct View {
    /// With the newest status.
    pub pod: Arc<Pod>,
    pub observed: Arc<ObservedPod>,
    /// It is being terminated.
    pub ending: bool,
    /// Nothing of it runs, or will run again.
    pub stopped: bool,
    /// The node stops, and nothing of the pod runs.
    pub suspended: bool,
    /// Its volumes and cgroups are removed, too.
    pub freed: bool,
}

impl Workers {
    /// Must be called inside the async runtime. `run` is to be awaited beside.
    pub fn new(options: Options) -> Workers {
        Workers {
            shared: Arc::new(Shared {
                runtime: options.runtime,
                allocator: options.allocator,
                environment: options.environment,
                configurator: options.configurator,
                prober: options.prober,
                writer: options.writer,
                events: options.events,
                metrics: options.metrics,
                host: options.host,
                restart_pace: options.restart_pace,
                sync_frequency: options.sync_frequency,
                began: options.clock.now(),
                clock: options.clock,
                ledger: Ledger::default(),
                admission: Mutex::default(),
                live: Mutex::default(),
                relist: Notify::new(),
                sources_synced: watch::Sender::new(false),
                shutdown: options.shutdown,
            }),
        }
    }

    /// Follows the runtime's events and relists periodically until the shutdown.
    pub async fn run(&self) {
        relist::run(self.shared.clone()).await;
    }

    /// Adds or updates a pod of a source. Mirror pods are not passed here.
    pub fn update(&self, pod: Arc<Pod>) {
        self.shared.update(pod);
    }

    /// No source has the pod any more: it is terminated and cleaned up.
    pub fn remove(&self, uid: &str) {
        let mut live = self.shared.live.lock();
        live.queued.remove(uid);
        if let Some(handle) = live.pods.get(uid) {
            handle.work.send_modify(|work| work.requests.removed = true);
        }
        drop(live);
        self.shared.release_allocation(uid);
    }

    /// Evicts a pod.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        self.shared.evict(uid, eviction);
    }

    /// The node stops: all pods are stopped, within their grace periods, and no other is started. Pods that are not evicted
    /// go on when the node is back.
    pub fn suspend(&self, suspension: Suspension) {
        let mut live = self.shared.live.lock();
        live.suspension = Some(suspension);
        for handle in live.pods.values() {
            handle.work.send_modify(|work| work.requests.suspend = Some(suspension));
        }
    }

    /// Waits until nothing of the pod runs any more, whether it goes on later or not.
    pub async fn suspended(&self, uid: &str) {
        self.wait_for(uid, |view| view.suspended || view.freed).await;
    }

    /// Waits until nothing of the pod runs any more and its volumes are free.
    pub async fn freed(&self, uid: &str) {
        self.wait_for(uid, |view| view.freed).await;
    }

    async fn wait_for(&self, uid: &str, is_so: impl FnMut(&View) -> bool) {
        let view = self.shared.live.lock().pods.get(uid).map(|handle| handle.view.clone());
        if let Some(mut view) = view {
            // An error means that the worker has gone, and all of the pod with it.
            let _ = view.wait_for(is_so).await;
        }
    }

    /// A probe result of the pod changed.
    pub fn probed(&self, uid: &str) {
        let published = {
            let live = self.shared.live.lock();
            let Some(handle) = live.pods.get(uid) else { return };
            handle.wake.notify_one();
            handle.published.clone()
        };
        published.lock().probed(&self.shared, uid);
    }

    /// All sources have delivered all their pods.
    pub fn sources_ready(&self) {
        self.shared.live.lock().sources_ready = true;
        self.shared.sources_synced.send_replace(true);
        self.shared.relist.notify_one();
        self.shared.retry_resizes();
    }

    /// Resolves when all sources have delivered all their pods.
    pub async fn wait_for_sources(&self) {
        let mut synced = self.shared.sources_synced.subscribe();
        // The sender lives as long as the workers, so this cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Whether all sources are ready, so that an unknown pod is gone.
    pub fn are_sources_ready(&self) -> bool {
        self.shared.live.lock().sources_ready
    }

    /// All pods, with their newest statuses.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.views().into_iter().map(|view| view.pod).collect()
    }

    pub fn views(&self) -> Vec<View> {
        let live = self.shared.live.lock();
        live.pods.values().map(|handle| handle.view.borrow().clone()).collect()
    }

    pub fn view(&self, uid: &str) -> Option<View> {
        let live = self.shared.live.lock();
        live.pods.get(uid).map(|handle| handle.view.borrow().clone())
    }

    pub fn by_name(&self, namespace: &str, name: &str) -> Option<View> {
        let of = |view: &View| policy::namespace(&view.pod) == namespace && policy::name(&view.pod) == name;
        let (mut found, live) = (None, self.shared.live.lock());
        for handle in live.pods.values() {
            let view = handle.view.borrow();
            // Of two pods of one name, the one that is not being terminated counts.
            if of(&view) && (found.is_none() || !view.ending) {
                found = Some(view.clone());
            }
        }
        found
    }

    pub fn status(&self, uid: &str) -> Option<PodStatus> {
        self.view(uid)?.pod.status.clone()
    }
}

impl Shared {
    fn update(self: &Arc<Shared>, pod: Arc<Pod>) {
        let uid = policy::uid(&pod).to_string();
        let mut live = self.live.lock();
        if live
            .pods
            .get(&uid)
            .is_some_and(|handle| handle.work.borrow().requests.removed)
        {
            // It was removed and is back: it is started again once what is left of it is cleaned up.
            live.queued.insert(uid, pod);
            return;
        }
        if let Some(handle) = live.pods.get(&uid) {
            handle.work.send_modify(|work| {
                work.pod = pod;
                work.orphan = false;
            });
            return;
        }
        let same_name = |handle: &Handle| {
            let other = &handle.work.borrow().pod;
            (policy::namespace(other), policy::name(other)) == (policy::namespace(&pod), policy::name(&pod))
        };
        if policy::is_static(&pod) && live.pods.values().any(same_name) {
            live.queued.insert(uid, pod);
            return;
        }
        self.start(
            &mut live,
            PodWork {
                pod,
                requests: Requests::default(),
                orphan: false,
            },
        );
    }

    fn start(self: &Arc<Shared>, live: &mut Live, mut work: PodWork) {
        work.requests.suspend = live.suspension;
        let uid = policy::uid(&work.pod).to_string();
        // Only this kubelet creates sandboxes: the runtime has none of a pod that is new and was not there at the last relist.
        let is_new = live.seen.as_ref().is_some_and(|seen| !seen.contains_key(&uid));
        let wake = Arc::new(Notify::new());
        let (worker, work, view) = Worker::new(self.clone(), work, wake.clone(), is_new);
        let published = worker.published.clone();
        live.pods.insert(
            uid,
            Handle {
                work,
                wake,
                view,
                published,
            },
        );
        orlop_base::spawn(worker.run());
    }

    fn evict(&self, uid: &str, eviction: Eviction) {
        if let Some(handle) = self.live.lock().pods.get(uid) {
            handle.work.send_modify(|work| work.requests.evict = Some(eviction));
        }
    }

    fn wake(&self, uid: &str) {
        if let Some(handle) = self.live.lock().pods.get(uid) {
            handle.wake.notify_one();
        }
    }

    /// The worker is finished.
    fn remove_worker(self: &Arc<Shared>, uid: &str) {
        // First: the next pod may have the same uid.
        self.release_allocation(uid);
        let mut live = self.live.lock();
        let Some(handle) = live.pods.remove(uid) else { return };
        let pod = handle.work.borrow().pod.clone();
        live.ids.retain(|_, owner| owner != uid);
        if let Some(seen) = &mut live.seen {
            seen.remove(uid);
        }
        self.writer.forget(uid);
        let name = (policy::namespace(&pod), policy::name(&pod));
        let next = live
            .queued
            .values()
            .find(|p| (policy::namespace(p), policy::name(p)) == name)
            .cloned();
        if let Some(next) = next {
            live.queued.remove(policy::uid(&next));
            self.start(
                &mut live,
                PodWork {
                    pod: next,
                    requests: Requests::default(),
                    orphan: false,
                },
            );
        }
    }
}
