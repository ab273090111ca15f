//! Keeps the Node object up to date: registers it, reports its status, renews its lease, watches it. Without an API server
//! it only watches the runtime, and the Node object is for the kubelet's own use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::coordination::Lease;
use orlop_api::types::core::{Node, NodeStatus};
use orlop_base::clock::Shift;
use orlop_base::{Clock, Random, Shutdown};
use orlop_client::events::{Event, EventType, Recorder};
use orlop_client::{Api, Delta, Error, Failures, Selection, path};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::Image;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::register::{self, LEASE_NAMESPACE, LEASES};
use super::resources::{self, Resources};
use super::status::{self, NodeEvent, Observed, Pressure, RuntimeView};
use super::{Identity, Machine};
use crate::config::Config;
use crate::devices::book::Amounts;

/// Period of the runtime's status calls.
const RUNTIME_CHECK: Duration = Duration::from_secs(5);
/// Period while it is not ready: pods wait for it.
const RUNTIME_CHECK_SOON: Duration = Duration::from_millis(250);
/// How long a list of images is reported before it is refreshed.
const IMAGES_AGE: Duration = Duration::from_secs(30);
/// Back-off between attempts to register, from the first to the last.
const REGISTER_FIRST: Duration = Duration::from_millis(100);
const REGISTER_LAST: Duration = Duration::from_secs(7);
/// Attempts to write a status before waiting for the next period.
const STATUS_TRIES: usize = 5;
/// Requests about the node are small and soon out of date.
const REQUEST: Duration = Duration::from_secs(10);
/// A pod waits for this one.
const REFRESH: Duration = Duration::from_secs(2);

pub struct Settings {
    /// None: a standalone kubelet.
    pub api: Option<Api>,
    pub identity: Identity,
    pub config: Arc<Config>,
    pub root_dir: PathBuf,
    pub runtime: Arc<dyn Runtime>,
    pub recorder: Option<Recorder>,
    /// The pod CIDR where no controller assigns one; `a,b` for dual-stack.
    pub pod_cidr: Option<String>,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

/// Access to this node's Node object. Cheap to clone.
#[derive(Clone)]
pub struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    machine: Machine,
    /// The Node object as last seen.
    node: watch::Sender<Arc<Node>>,
    runtime: watch::Sender<RuntimeView>,
    pod_cidr: watch::Sender<Option<String>>,
    told: Mutex<Told>,
    /// Something changed: report now.
    changed: Notify,
}

/// Inputs from other parts of the kubelet.
#[derive(Clone, Default)]
struct Told {
    pressure: Pressure,
    volumes_in_use: Vec<String>,
    trouble: Option<String>,
    shutting_down: bool,
    devices: Amounts,
    images: Option<(Instant, Vec<Image>)>,
}

/// Whether the runtime can run pods, by its last status.
fn is_ready(view: &RuntimeView) -> bool {
    let status = view.status.as_ref();
    status.is_some_and(status::is_runtime_ready) && status::network_trouble(view).is_none()
}

impl Keeper {
    /// Starts the tasks, which end at the shutdown.
    pub fn start(settings: Settings) -> (Keeper, Vec<JoinHandle<()>>) {
        let machine = Machine::read(&settings.root_dir);
        let pod_cidr = settings.pod_cidr.clone();
        let shared = Arc::new(Shared {
            machine,
            node: watch::Sender::new(Arc::default()),
            runtime: watch::Sender::default(),
            pod_cidr: watch::Sender::new(pod_cidr),
            told: Mutex::default(),
            changed: Notify::new(),
            settings,
        });
        let picture = shared.new_node(shared.settings.clock.now()).0;
        shared.node.send_replace(Arc::new(picture));
        let keeper = Keeper { shared };
        let mut tasks = vec![keeper.spawn(|s| async move { s.watch_runtime().await })];
        if let Some(api) = &keeper.shared.settings.api {
            let api = api.with_timeout(REQUEST);
            let (a, b) = (api.clone(), api.clone());
            tasks.push(keeper.spawn(|s| async move { s.report(&a).await }));
            tasks.push(keeper.spawn(|s| async move { s.watch_node(b).await }));
            tasks.push(keeper.spawn(|s| async move { s.renew_lease(&api).await }));
        }
        (keeper, tasks)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, run: impl FnOnce(Arc<Shared>) -> F) -> JoinHandle<()> {
        let shutdown = self.shared.settings.shutdown.clone();
        let work = run(self.shared.clone());
        orlop_base::spawn(async move {
            tokio::select! {
                _ = work => {}
                _ = shutdown.wait() => {}
            }
        })
    }

    pub fn identity(&self) -> &Identity {
        &self.shared.settings.identity
    }

    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// The Node object as last seen; before it is registered, as it will be.
    pub fn node(&self) -> Arc<Node> {
        self.shared.node.borrow().clone()
    }

    /// Asks the API server for the Node object. True if it is newer than the one that was known.
    pub async fn refresh_node(&self) -> bool {
        let Some(api) = &self.shared.settings.api else {
            return false;
        };
        let known = revision(&self.node());
        let at = path::object("v1", None, "nodes", self.shared.name());
        match api.with_timeout(REFRESH).get::<Node>(&at).await {
            Ok(node) => self.shared.observe(node),
            Err(error) => tracing::debug!(err = %error.chain(), "failed to get the node"),
        }
        revision(&self.node()) > known
    }

    pub fn nodes(&self) -> watch::Receiver<Arc<Node>> {
        self.shared.node.subscribe()
    }

    pub fn runtime(&self) -> watch::Receiver<RuntimeView> {
        self.shared.runtime.subscribe()
    }

    /// The node's pod CIDR, `a,b` for dual-stack.
    pub fn pod_cidr(&self) -> watch::Receiver<Option<String>> {
        self.shared.pod_cidr.subscribe()
    }

    /// Why pods that need the pod network can't be started, if so.
    pub fn network_trouble(&self) -> Option<String> {
        status::network_trouble(&self.shared.runtime.borrow())
    }

    pub fn capacity(&self) -> Resources {
        resources::capacity(&self.shared.machine, &self.shared.settings.config)
    }

    pub fn allocatable(&self) -> Resources {
        resources::allocatable(&self.capacity(), &self.shared.settings.config)
    }

    pub fn pressure(&self) -> Pressure {
        self.shared.told.lock().pressure
    }

    pub fn set_pressure(&self, pressure: Pressure) {
        self.tell(|told| std::mem::replace(&mut told.pressure, pressure) != pressure);
    }

    pub fn set_volumes_in_use(&self, volumes: Vec<String>) {
        self.tell(|told| {
            let changed = told.volumes_in_use != volumes;
            told.volumes_in_use = volumes;
            changed
        });
    }

    /// Device plugin resources.
    pub fn set_devices(&self, devices: Amounts) {
        self.tell(|told| {
            let changed = told.devices != devices;
            told.devices = devices;
            changed
        });
    }

    /// A reason not to be ready, or that it is gone.
    pub fn set_trouble(&self, trouble: Option<String>) {
        self.tell(|told| {
            let changed = told.trouble != trouble;
            told.trouble = trouble;
            changed
        });
    }

    /// Whether the node is shutting down: it accepts no more pods then.
    pub fn set_shutting_down(&self, now: bool) {
        self.tell(|told| std::mem::replace(&mut told.shutting_down, now) != now);
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shared.told.lock().shutting_down
    }

    fn tell(&self, change: impl FnOnce(&mut Told) -> bool) {
        if change(&mut self.shared.told.lock()) {
            self.shared.changed.notify_one();
        }
    }
}

/// Revisions of one API server can be compared.
fn revision(node: &Node) -> u64 {
    let text = node.metadata.resource_version.as_deref().unwrap_or_default();
    text.parse().unwrap_or(0)
}

impl Shared {
    fn name(&self) -> &str {
        &self.settings.identity.name
    }

    async fn watch_runtime(&self) {
        // What was said last: once for each change.
        let mut failure: Option<String> = None;
        loop {
            let runtime = &self.settings.runtime;
            let mut view = self.runtime.borrow().clone();
            match runtime.status().await {
                Ok(status) => {
                    failure = None;
                    if status::is_runtime_ready(&status) {
                        view.ready_at = Some(self.settings.clock.now());
                    }
                    view.status = Some(status);
                    // A runtime that was updated says so once it is back.
                    if let Ok(version) = runtime.version().await {
                        view.version = Some(version);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if failure.as_ref() != Some(&text) {
                        tracing::error!(err = text, "failed to get container runtime status");
                    }
                    failure = Some(text);
                }
            }
            let said = |view: &RuntimeView| (view.status.clone(), view.version.clone(), view.ready_at.is_some());
            let changed = said(&view) != said(&self.runtime.borrow());
            self.runtime.send_replace(view);
            if changed {
                self.changed.notify_one();
            }
            let is_ready = is_ready(&self.runtime.borrow());
            tokio::time::sleep(if is_ready { RUNTIME_CHECK } else { RUNTIME_CHECK_SOON }).await;
        }
    }

    async fn watch_node(&self, api: Api) {
        let selection = Selection::all(path::collection("v1", None, "nodes"))
            .with_fields(&format!("metadata.name={}", self.name()));
        let (sender, mut deltas) = mpsc::channel(16);
        orlop_base::spawn(orlop_client::watch::<Node>(
            api,
            selection,
            sender,
            self.settings.shutdown.clone(),
        ));
        let mut unschedulable = None;
        while let Some(delta) = deltas.recv().await {
            let (node, anew) = match delta {
                Delta::Reset(nodes) => (nodes.into_iter().next(), true),
                Delta::Applied(node) => (Some(node), false),
                Delta::Deleted(_) | Delta::Bookmark(_) => (None, false),
            };
            let Some(node) = node else { continue };
            let now = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
            if unschedulable.replace(now).is_some_and(|before| before != now) {
                let reason = if now { "NodeNotSchedulable" } else { "NodeSchedulable" };
                self.record(&(reason, format!("Node {} status is now: {reason}", self.name())));
            }
            match anew {
                // Revisions of a server that was set back start over.
                true => self.adopt(node),
                false => self.observe(node),
            }
        }
    }

    /// Responses to our own requests and watch events come in any order: older objects are ignored.
    fn observe(&self, node: Node) {
        if revision(&node) >= revision(&self.node.borrow()) {
            self.adopt(node);
        }
    }

    fn adopt(&self, node: Node) {
        let cidrs = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone());
        if let Some(cidrs) = cidrs.filter(|c| !c.is_empty()) {
            let cidrs = cidrs.join(",");
            self.pod_cidr.send_if_modified(|known| {
                let changed = known.as_deref() != Some(&cidrs);
                *known = Some(cidrs);
                changed
            });
        }
        self.node.send_replace(Arc::new(node));
    }

    fn record(&self, (reason, note): &NodeEvent) {
        let Some(recorder) = &self.settings.recorder else {
            return;
        };
        recorder.record(Event {
            regarding: super::reference(self.name()),
            related: None,
            kind: match *reason {
                "Rebooted" => EventType::Warning,
                _ => EventType::Normal,
            },
            reason: (*reason).into(),
            action: "NodeStatus".into(),
            note: note.clone(),
        });
    }

    async fn observed(&self) -> Observed {
        let told = self.told.lock().clone();
        let fresh = told.images.as_ref().is_some_and(|(at, _)| at.elapsed() < IMAGES_AGE);
        let images = match fresh {
            true => told.images.map(|(_, images)| images),
            false => match self.settings.runtime.list_images().await {
                Ok(images) => {
                    self.told.lock().images = Some((Instant::now(), images.clone()));
                    Some(images)
                }
                Err(_) => None,
            },
        };
        Observed {
            runtime: self.runtime.borrow().clone(),
            images,
            pressure: told.pressure,
            volumes_in_use: told.volumes_in_use,
            shutting_down: told.shutting_down,
            trouble: told.trouble,
            devices: told.devices,
        }
    }

    fn new_node(&self, now: Timestamp) -> (Node, Vec<NodeEvent>) {
        let settings = &self.settings;
        let observed = Observed {
            runtime: self.runtime.borrow().clone(),
            ..Observed::default()
        };
        let (status, events) = self.status(&observed, &Node::default(), now);
        let cidr = settings.pod_cidr.as_deref();
        (
            register::new_node(&settings.identity, &settings.config, cidr, status),
            events,
        )
    }

    fn status(&self, observed: &Observed, old: &Node, now: Timestamp) -> (NodeStatus, Vec<NodeEvent>) {
        let Settings { identity, config, .. } = &self.settings;
        status::node_status(identity, config, &self.machine, observed, old, now)
    }

    /// Registers the node, then reports its status until the shutdown.
    async fn report(&self, api: &Api) {
        self.record(&("Starting", "Starting kubelet.".to_string()));
        if self.settings.config.register_node {
            let (mut pause, mut failures) = (REGISTER_FIRST, Failures::default());
            while let Err(error) = self.register(api).await {
                if failures.is_news(&error) {
                    tracing::error!(
                        node = self.name(),
                        err = error.chain(),
                        "failed to register node; retrying"
                    );
                }
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2).min(REGISTER_LAST);
            }
            tracing::info!(node = self.name(), "successfully registered node");
        }
        let mut random = Random::from_entropy();
        let every = self.settings.config.node_status_report_frequency;
        // None: at once.
        let mut due: Option<Instant> = None;
        let mut failures = Failures::default();
        loop {
            match self.sync(api, due.is_none_or(|at| Instant::now() >= at)).await {
                // Nodes that report together once shall not do so ever after: a half to one and a half times the period.
                Ok(true) => {
                    failures.succeeded();
                    let spread = 0.5 + random.below(1001) as f64 / 1000.0;
                    due = Some(Instant::now().later(every.mul_f64(spread)));
                }
                Ok(false) => {}
                Err(error) if failures.is_news(&error) => {
                    tracing::error!(node = self.name(), err = error.chain(), "failed to update node status");
                }
                Err(_) => {}
            }
            let pause = self.settings.config.node_status_update_frequency;
            let _ = tokio::time::timeout(pause, self.changed.notified()).await;
        }
    }

    async fn register(&self, api: &Api) -> Result<(), Error> {
        let (node, events) = self.new_node(self.settings.clock.now());
        match api.create::<Node>(&path::collection("v1", None, "nodes"), &node).await {
            Ok(made) => {
                self.observe(made);
                events.iter().for_each(|event| self.record(event));
                return Ok(());
            }
            Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
        let at = path::object("v1", None, "nodes", self.name());
        let existing: Node = api.get(&at).await?;
        let existing = match register::reconcile(&existing, &node) {
            Some(patch) => api.patch_strategic(&at, &patch).await?,
            None => existing,
        };
        self.observe(existing);
        Ok(())
    }

    /// Writes the status if it changed or is due. Says whether it wrote.
    async fn sync(&self, api: &Api, due: bool) -> Result<bool, Error> {
        let observed = self.observed().await;
        let mut node = (*self.node.borrow()).clone();
        let at = path::object("v1", None, "nodes", self.name());
        let mut tries = 0;
        loop {
            let mut current = Node::clone(&node);
            if tries > 0 || current.metadata.uid.is_none() {
                current = api.get(&at).await?;
            }
            let (status, events) = self.status(&observed, &current, self.settings.clock.now());
            if !due && !status::has_changed(current.status.as_ref(), &status) {
                return Ok(false);
            }
            current.status = Some(status);
            let written = api.replace::<Node>(&format!("{at}/status"), &current).await;
            match written {
                Ok(written) => {
                    events.iter().for_each(|event| self.record(event));
                    self.observe(written);
                    return Ok(true);
                }
                Err(Error::Conflict(_)) if tries + 1 < STATUS_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
            node = Arc::new(current);
        }
    }

    async fn renew_lease(&self, api: &Api) {
        let seconds = self.settings.config.node_lease_duration_seconds;
        let mut turns = tokio::time::interval(Duration::from_secs_f64(f64::from(seconds) * 0.25));
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut known, mut failures): (Option<Lease>, _) = (None, Failures::default());
        // Before the node is there the lease could not name its owner.
        let mut nodes = self.node.subscribe();
        let _ = nodes.wait_for(|node| node.metadata.uid.is_some()).await;
        loop {
            turns.tick().await;
            match self.renew(api, known.take(), seconds).await {
                Ok(lease) => {
                    known = Some(lease);
                    failures.succeeded();
                }
                Err(error) if failures.is_news(&error) => {
                    tracing::error!(node = self.name(), err = error.chain(), "failed to update node lease");
                }
                Err(_) => {}
            }
        }
    }

    async fn renew(&self, api: &Api, known: Option<Lease>, seconds: i32) -> Result<Lease, Error> {
        let at = path::object(LEASES, Some(LEASE_NAMESPACE), "leases", self.name());
        let uid = self.node.borrow().metadata.uid.clone();
        let renewed = |old: Option<Lease>| {
            let now = self.settings.clock.now();
            register::lease(old, &self.settings.identity, uid.as_deref(), seconds, now)
        };
        if let Some(known) = known {
            match api.replace::<Lease>(&at, &renewed(Some(known))).await {
                Err(Error::Conflict(_) | Error::NotFound(_)) => {}
                other => return other,
            }
        }
        match api.get::<Lease>(&at).await {
            Ok(found) => api.replace(&at, &renewed(Some(found))).await,
            Err(Error::NotFound(_)) => {
                let collection = path::collection(LEASES, Some(LEASE_NAMESPACE), "leases");
                api.create(&collection, &renewed(None)).await
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
