//! One task a pod: it looks at the runtime, tells the status, takes the next steps, and sleeps until it is woken.
//!
//! A worker is woken by a changed pod ([`Workers::update`]), by the runtime's events, by probes (`Workers::poke`) and
//! by its own timer; a slow relist of the whole runtime makes up for lost events and finds what belongs to no pod. Wakes
//! carry nothing but "look": a hundred of them are one. Workers share nothing that one could hold up for another.
//!
//! Pods end here in order: containers, sandbox, the room they have on the node, the word that they are over, volumes and
//! cgroup, then what is left in the runtime, then the API object. The room comes before the word: whoever hears it, the
//! scheduler above all, may fill that room at once. A worker goes when no source has its pod any more and nothing of it is left.

mod act;
mod admit;
mod hooks;
mod ledger;
mod relist;
mod shown;
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
use super::worker_state::{Eviction, Pace, Requests};
use super::writer::Writer;
use crate::events::Events;
use crate::metrics::Metrics;
use ledger::Ledger;
use shown::PublishedStatus;
use worker::Worker;

/// What workers are made of.
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
    /// When this agent began.
    began: Timestamp,
    ledger: Ledger,
    /// Pods are let in one by one. Taken before `live`.
    admission: Mutex<()>,
    live: Mutex<Live>,
    /// A relist is wanted now.
    relist: Notify,
    /// Becomes true with `sources_ready`, for who waits for it.
    all_known: watch::Sender<bool>,
    shutdown: Shutdown,
}

#[derive(Default)]
struct Live {
    pods: BTreeMap<String, Handle>,
    /// Sandbox and container ids, to know whom an event is about.
    ids: HashMap<String, String>,
    /// Static pods that wait for another of their name to end.
    queued: BTreeMap<String, Arc<Pod>>,
    /// What the runtime had of each pod at the last relist; `None` before the first.
    seen: Option<BTreeMap<String, relist::Digest>>,
    /// All sources have told what they have: what the runtime has beside that belongs to nobody.
    sources_ready: bool,
}

impl Live {
    /// A source has the pod, and it is not over for the API server: what it was allocated is its own.
    fn is_active(&self, uid: &str) -> bool {
        self.queued.contains_key(uid)
            || self
                .pods
                .get(uid)
                .is_some_and(|handle| handle.mail.borrow().is_active())
    }
}

struct Handle {
    mail: watch::Sender<PodWork>,
    poke: Arc<Notify>,
    view: watch::Receiver<View>,
    shown: Arc<Mutex<PublishedStatus>>,
}

/// What a worker is told; the newest counts.
#[derive(Clone, Debug)]
pub(super) struct PodWork {
    pub pod: Arc<Pod>,
    pub requests: Requests,
    /// A pod that no source has and the runtime does.
    pub orphan: bool,
}

impl PodWork {
    fn is_active(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !self.requests.removed && !phase.is_some_and(policy::is_terminal)
    }
}

/// What a worker shows to others.
#[derive(Clone, Debug)]
pub struct View {
    /// With the newest status.
    pub pod: Arc<Pod>,
    pub observed: Arc<ObservedPod>,
    /// It is being ended.
    pub ending: bool,
    /// Nothing of it runs, and nothing will.
    pub stopped: bool,
    /// Its volumes and control groups are gone, too.
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
                all_known: watch::Sender::new(false),
                shutdown: options.shutdown,
            }),
        }
    }

    /// Follows the runtime until the shutdown: events, and a relist now and then.
    pub async fn run(&self) {
        relist::run(self.shared.clone()).await;
    }

    /// A source has this pod, new or changed. Mirror pods are not for here.
    pub fn update(&self, pod: Arc<Pod>) {
        self.shared.update(pod);
    }

    /// No source has the pod any more: what is left of it ends.
    pub fn remove(&self, uid: &str) {
        let mut live = self.shared.live.lock();
        live.queued.remove(uid);
        if let Some(handle) = live.pods.get(uid) {
            handle.mail.send_modify(|mail| mail.requests.removed = true);
        }
        drop(live);
        self.shared.leave(uid);
    }

    /// Ends a pod for a reason of the node's.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        self.shared.evict(uid, eviction);
    }

    /// Waits until nothing of the pod runs any more and its volumes are free.
    pub async fn freed(&self, uid: &str) {
        let view = self.shared.live.lock().pods.get(uid).map(|handle| handle.view.clone());
        if let Some(mut view) = view {
            // An error means that the worker has gone, and all of the pod with it.
            let _ = view.wait_for(|view| view.freed).await;
        }
    }

    /// A probe of the pod has another result.
    pub fn probed(&self, uid: &str) {
        let shown = {
            let live = self.shared.live.lock();
            let Some(handle) = live.pods.get(uid) else { return };
            handle.poke.notify_one();
            handle.shown.clone()
        };
        shown.lock().probed(&self.shared, uid);
    }

    /// All sources have told all their pods.
    pub fn sources_ready(&self) {
        self.shared.live.lock().sources_ready = true;
        self.shared.all_known.send_replace(true);
        self.shared.relist.notify_one();
        self.shared.retry_resizes();
    }

    /// Whether all sources have told all their pods, so that one that is not known is gone.
    pub fn knows_all(&self) -> bool {
        self.shared.live.lock().sources_ready
    }

    /// All pods there are, with their newest statuses.
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
            // Of two of one name the one that goes on counts.
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
            .is_some_and(|handle| handle.mail.borrow().requests.removed)
        {
            // It was taken away and is back: once what is left of it has gone, it starts anew.
            live.queued.insert(uid, pod);
            return;
        }
        if let Some(handle) = live.pods.get(&uid) {
            handle.mail.send_modify(|mail| {
                mail.pod = pod;
                mail.orphan = false;
            });
            return;
        }
        let same_name = |handle: &Handle| {
            let other = &handle.mail.borrow().pod;
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

    fn start(self: &Arc<Shared>, live: &mut Live, mail: PodWork) {
        let uid = policy::uid(&mail.pod).to_string();
        // Only this agent makes sandboxes: of a pod that was not there at the start and is new there is nothing.
        let is_new = live.seen.as_ref().is_some_and(|seen| !seen.contains_key(&uid));
        let poke = Arc::new(Notify::new());
        let (worker, mail, view) = Worker::new(self.clone(), mail, poke.clone(), is_new);
        let shown = worker.shown.clone();
        live.pods.insert(
            uid,
            Handle {
                mail,
                poke,
                view,
                shown,
            },
        );
        orlop_base::spawn(worker.run());
    }

    fn evict(&self, uid: &str, eviction: Eviction) {
        if let Some(handle) = self.live.lock().pods.get(uid) {
            handle.mail.send_modify(|mail| mail.requests.evict = Some(eviction));
        }
    }

    fn poke(&self, uid: &str) {
        if let Some(handle) = self.live.lock().pods.get(uid) {
            handle.poke.notify_one();
        }
    }

    /// The worker is done for good.
    fn gone(self: &Arc<Shared>, uid: &str) {
        // First: the next pod may have the same uid.
        self.leave(uid);
        let mut live = self.live.lock();
        let Some(handle) = live.pods.remove(uid) else { return };
        let pod = handle.mail.borrow().pod.clone();
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
