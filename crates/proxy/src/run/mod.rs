//! The shell: informers feed the planner, the engine syncs, and health, metrics and events report it.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use orlop_base::clock::Shift;
use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::{
    Api, Delta, Event, EventType, Inbox, ListQuery, ObjectReference, Recorder, Selection, informer, path,
};
use orlop_serving::{Page, Pages, plain};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::{self, Mode};
use crate::choice::{ModeError, choose_mode};
use crate::config::{self, Config};
use crate::conntrack;
use crate::engine::{Engine, SyncResult};
use crate::health::{Health, HealthPorts, ListenError, TO_BE_DELETED};
use crate::metrics::Metrics;
use crate::objects::{ConfigMap, EndpointSlice, Node, Service, ServiceCidr};
use crate::plan::{self, HEADLESS, PROXY_NAME, Planner};

/// Changes that may wait.
const QUEUE: usize = 1024;
/// After a sync that failed; doubled up to the period in which everything is looked at anyway.
const RETRY: Duration = Duration::from_secs(1);
/// Comparing everything may take one part in so many of the time.
const FULL_SHARE: u32 = 20;
/// How often modes that were switched away from are looked at.
const RETIRE: Duration = Duration::from_secs(1);
/// The ConfigMap that says in which mode to run, and where in it.
pub const CONFIG_MAP: &str = "kube-proxy";
pub const CONFIG_KEY: &str = "config.conf";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Why the proxy ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port is taken, and the configuration wants that to be fatal (`bindAddressHardFail`).
    #[error("{server} server: {error}")]
    Listen { server: &'static str, error: ListenError },
    /// This node supports no mode that may be used.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The back end of the chosen mode can't be set up.
    #[error("failed to start proxy in mode {mode}: {error}")]
    Start { mode: Mode, error: backend::Error },
}

/// How to run a proxy.
pub struct Options {
    /// Services, endpoint slices, nodes and the ConfigMap are watched, and events written, through it.
    pub api: Api,
    pub config: Config,
    pub node_name: String,
    /// If the Node object has none, or there is no Node object.
    pub node_addresses: Vec<IpAddr>,
    /// Where cluster addresses come from; empty: the cluster is asked.
    pub service_ranges: Vec<IpNet>,
    /// Take the configuration from the ConfigMap `kube-proxy` in kube-system whenever it has one.
    pub follows_config_map: bool,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
}

/// What an informer has observed, in order.
enum InformerEvent {
    Services(Vec<Delta<Service>>),
    Slices(Vec<Delta<EndpointSlice>>),
    Node(Vec<Delta<Node>>),
    ConfigMap(Vec<Delta<ConfigMap>>),
}

/// Which informers have delivered their first list.
#[derive(Default)]
struct SyncedInformers {
    services: bool,
    slices: bool,
    node: bool,
    config_map: bool,
}

struct Shell {
    options: Options,
    /// The configuration in use: the ConfigMap's, or that of the options.
    config: Config,
    node: plan::Node,
    synced_informers: SyncedInformers,
    /// Until the first state is whole there is only a planner.
    planner: Option<Planner>,
    engine: Option<Engine>,
    health: Arc<Health>,
    health_ports: HealthPorts,
    recorder: Recorder,
    timing: Timing,
    /// Logged once each, not at every sync.
    problems: Vec<String>,
}

struct Timing {
    last_sync: Option<Instant>,
    next_full: Instant,
    next_retire: Option<Instant>,
    retry: Duration,
    retry_at: Option<Instant>,
}

/// Runs until the shutdown. Rules stay in place afterwards, so that traffic goes on without a proxy.
pub fn run(options: Options) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(serve_until_shutdown(options))
}

async fn serve_until_shutdown(options: Options) -> Result<(), RunError> {
    let (sender, mut inputs) = mpsc::channel(QUEUE);
    start_informers(&options, &sender);
    drop(sender);
    let (clock, shutdown) = (options.clock.clone(), options.shutdown.clone());
    let (recorder, _) = Recorder::start(options.api.clone(), "kube-proxy", clock.clone(), shutdown.clone());
    let recorder = recorder.telling_notes_apart();
    let period = options.config.iptables.sync;
    let health = Arc::new(Health::new(clock, period, options.metrics.clone()));
    serve(&options, &health).await?;
    let mut shell = Shell::new(options, health, recorder);
    shell.record_start();
    loop {
        tokio::select! {
            _ = shutdown.wait() => return Ok(()),
            input = inputs.recv() => match input {
                None => return Ok(()),
                Some(input) => shell.observe(input).await,
            },
            _ = tokio::time::sleep_until(shell.wake_at()) => {}
        }
        // What came in the meantime goes into the same sync.
        while let Ok(input) = inputs.try_recv() {
            shell.observe(input).await;
        }
        shell.sync_if_due().await?;
    }
}

/// Starts an informer for each kind of object, and hands what they see to one queue.
fn start_informers(options: &Options, inputs: &mpsc::Sender<InformerEvent>) {
    let ours = format!("!{PROXY_NAME}");
    let services = Selection::all(path::collection("v1", None, "services")).with_labels(&ours);
    let slices = path::collection("discovery.k8s.io/v1", None, "endpointslices");
    let slices = Selection::all(slices).with_labels(&format!("{ours},!{HEADLESS}"));
    let node = Selection::all(path::collection("v1", None, "nodes"))
        .with_fields(&format!("metadata.name={}", options.node_name));
    let (api, shutdown) = (&options.api, &options.shutdown);
    informer::start(api, services, Inbox::new(inputs, InformerEvent::Services), shutdown);
    informer::start(api, slices, Inbox::new(inputs, InformerEvent::Slices), shutdown);
    informer::start(api, node, Inbox::new(inputs, InformerEvent::Node), shutdown);
    if options.follows_config_map {
        let map = Selection::all(path::collection("v1", Some("kube-system"), "configmaps"))
            .with_fields(&format!("metadata.name={CONFIG_MAP}"));
        informer::start(api, map, Inbox::new(inputs, InformerEvent::ConfigMap), shutdown);
    }
}

/// The ports for health and metrics. One that is taken is only fatal if the configuration wants it so.
async fn serve(options: &Options, health: &Arc<Health>) -> Result<(), RunError> {
    let config = &options.config;
    let metrics: Arc<dyn Pages> = Arc::new(MetricsPages(options.metrics.clone()));
    for (what, address, pages) in [
        ("healthz", config.healthz, health.clone() as Arc<dyn Pages>),
        ("metrics", config.metrics, metrics),
    ] {
        let Some(address) = address else { continue };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                orlop_base::spawn(plain::serve(listener, pages, options.shutdown.clone()));
            }
            Err(error) if config.bind_address_hard_fail => {
                let error = ListenError { address, error };
                return Err(RunError::Listen { server: what, error });
            }
            Err(e) => tracing::warn!(server = what, %address, err = %e, "failed to listen"),
        }
    }
    Ok(())
}

struct MetricsPages(Arc<Metrics>);

impl Pages for MetricsPages {
    fn show(&self, path: &str, _: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page::metrics(self.0.render())),
            "/healthz" => Some(Page::plain(200, "ok".to_string())),
            "/proxyMode" => Some(match self.0.mode() {
                Some(mode) => Page::plain(200, mode.as_str().to_string()),
                None => Page::plain(503, "not running yet\n".to_string()),
            }),
            _ => None,
        }
    }
}

impl Shell {
    fn new(options: Options, health: Arc<Health>, recorder: Recorder) -> Shell {
        Shell {
            config: options.config.clone(),
            node: plan::Node {
                name: options.node_name.clone(),
                addresses: options.node_addresses.clone(),
                ..plan::Node::default()
            },
            synced_informers: SyncedInformers {
                config_map: !options.follows_config_map,
                ..SyncedInformers::default()
            },
            planner: Some(Planner::default()),
            engine: None,
            health_ports: HealthPorts::new(health.clone(), vec![Ipv4Addr::UNSPECIFIED.into()]),
            health,
            recorder,
            timing: Timing {
                last_sync: None,
                next_full: Instant::now(),
                next_retire: None,
                retry: RETRY,
                retry_at: None,
            },
            problems: vec![],
            options,
        }
    }

    fn record_start(&self) {
        self.record_event(EventType::Normal, "Starting", String::new());
    }

    fn record_event(&self, kind: EventType, reason: &'static str, note: String) {
        let name = &self.options.node_name;
        self.recorder.record(Event {
            regarding: ObjectReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: name.clone(),
                uid: name.clone(),
                ..ObjectReference::default()
            },
            related: None,
            kind,
            reason: reason.into(),
            action: "StartKubeProxy".into(),
            note,
        });
    }

    fn planner(&mut self) -> &mut Planner {
        match &mut self.engine {
            Some(engine) => &mut engine.planner,
            None => self.planner.as_mut().expect("a planner until there is an engine"),
        }
    }

    async fn observe(&mut self, input: InformerEvent) {
        match input {
            InformerEvent::Services(deltas) => deltas.into_iter().for_each(|delta| self.observe_service(delta)),
            InformerEvent::Slices(deltas) => deltas.into_iter().for_each(|delta| self.observe_slice(delta)),
            InformerEvent::Node(deltas) => {
                for node in deltas.into_iter().filter_map(only_object) {
                    self.observe_node(node).await;
                }
            }
            InformerEvent::ConfigMap(deltas) => {
                for map in deltas.into_iter().filter_map(only_object) {
                    self.observe_config_map(map).await;
                }
            }
        }
        if self.engine.as_ref().is_none_or(|engine| !engine.is_settled()) {
            self.health.queued();
            self.options.metrics.queued(self.options.clock.now());
        }
    }

    fn observe_service(&mut self, delta: Delta<Service>) {
        let planner = self.planner();
        match delta {
            Delta::Bookmark(_) => return,
            Delta::Reset(services) => {
                planner.replace_services(&services);
                self.synced_informers.services = true;
            }
            Delta::Applied(service) => planner.apply_service(&service),
            Delta::Deleted(service) => planner.forget_service(&service.metadata.namespace, &service.metadata.name),
        }
        self.options.metrics.service_changed();
    }

    fn observe_slice(&mut self, delta: Delta<EndpointSlice>) {
        let planner = self.planner();
        match delta {
            Delta::Bookmark(_) => return,
            Delta::Reset(slices) => {
                planner.replace_slices(&slices);
                self.synced_informers.slices = true;
            }
            Delta::Applied(slice) => planner.apply_slice(&slice),
            Delta::Deleted(slice) => planner.forget_slice(&slice.metadata.namespace, &slice.metadata.name),
        }
        self.options.metrics.endpoints_changed();
    }

    async fn observe_node(&mut self, node: Option<Node>) {
        self.synced_informers.node = true;
        self.health.set_node_eligible(node.as_ref().is_some_and(is_eligible));
        let known = self.options.node_addresses.clone();
        let next = node.map_or_else(
            || plan::Node {
                addresses: known.clone(),
                name: self.options.node_name.clone(),
                ..plan::Node::default()
            },
            |node| plan_node(&node, &known),
        );
        if next != self.node {
            self.node = next.clone();
            self.planner().set_node(next);
            self.reconfigure().await;
        }
    }

    async fn observe_config_map(&mut self, map: Option<ConfigMap>) {
        self.synced_informers.config_map = true;
        let text = map.and_then(|map| map.data.get(CONFIG_KEY).cloned());
        let next = match text.as_deref().map(|text| config::parse(text, &[])) {
            None => self.options.config.clone(),
            Some(Ok((config, warnings))) => {
                for warning in warnings {
                    tracing::warn!(
                        configmap = CONFIG_MAP,
                        warning,
                        "ignoring part of the proxy configuration"
                    );
                }
                config
            }
            Some(Err(problems)) => {
                let problems = problems.join("; ");
                tracing::error!(
                    configmap = CONFIG_MAP,
                    err = problems,
                    "invalid proxy configuration; keeping the current one"
                );
                let note = format!("Invalid configuration in ConfigMap kube-system/{CONFIG_MAP}: {problems}");
                self.record_event(EventType::Warning, "InvalidProxyConfiguration", note);
                return;
            }
        };
        self.config = Config {
            // Where this process is reached does not change under way.
            healthz: self.config.healthz,
            metrics: self.config.metrics,
            kubeconfig: self.config.kubeconfig.clone(),
            hostname_override: self.config.hostname_override.clone(),
            cluster_cidrs: match next.cluster_cidrs.is_empty() {
                true => self.options.config.cluster_cidrs.clone(),
                false => next.cluster_cidrs.clone(),
            },
            ..next
        };
        self.reconfigure().await;
    }

    /// Applies the configuration to the engine, if there is one already.
    async fn reconfigure(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let before = engine.mode();
        let chosen = choose_mode(self.config.mode, &backend::check_support);
        let outcome = match chosen {
            Ok((mode, _)) => {
                let settings = self.config.settings(mode, &self.node, &self.options.service_ranges);
                let (engine, switched) = blocking(move || {
                    let switched = engine.switch(mode, settings);
                    (engine, switched)
                })
                .await;
                if switched.is_err() {
                    self.options.metrics.sync_failed(mode, true);
                }
                (engine, switched.map_err(|error| RunError::Start { mode, error }))
            }
            Err(error) => (engine, Err(RunError::Mode(error))),
        };
        let mode = outcome.0.mode();
        self.engine = Some(outcome.0);
        match outcome.1 {
            Ok(Some(synced)) if mode == before => self.report(synced),
            Ok(Some(synced)) => {
                tracing::info!(%mode, previous = %before, "switched proxy mode");
                self.record_event(
                    EventType::Normal,
                    "ProxyModeChanged",
                    format!("Switched proxy mode from {before} to {mode}"),
                );
                self.note_mode(mode);
                self.report(synced);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(mode = %before, err = %error, "failed to switch proxy mode; keeping the current one");
                let note = format!("Failed to switch proxy mode, keeping {before}: {error}");
                self.record_event(EventType::Warning, "ProxyModeNotChanged", note);
            }
        }
    }

    fn note_mode(&mut self, mode: Mode) {
        let families = vec!["IPv4", "IPv6"];
        self.health.set_mode(families.clone(), self.config.periods(mode).sync);
        self.options.metrics.set_mode(mode, families);
        self.timing.next_retire = Some(Instant::now().later(RETIRE));
    }

    /// When there is something to do even if nothing comes in.
    fn wake_at(&self) -> Instant {
        let timing = &self.timing;
        let mut wakes = vec![];
        if let Some(engine) = &self.engine {
            wakes.push(timing.next_full);
            wakes.extend(timing.next_retire);
            if !engine.is_settled() {
                wakes.push(self.may_sync_at(Instant::now()));
            }
        }
        let never = Instant::now().later(Duration::from_secs(3600));
        wakes.into_iter().min().unwrap_or(never)
    }

    /// After this long everything is compared with the kernel.
    fn period(&self) -> Duration {
        let mode = self.engine.as_ref().map_or(Mode::Iptables, Engine::mode);
        self.config.periods(mode).sync
    }

    /// Not before what is said now.
    fn may_sync_at(&self, now: Instant) -> Instant {
        let mode = self.engine.as_ref().map_or(Mode::Iptables, Engine::mode);
        let pause = self.config.periods(mode).min_sync;
        let spaced = self.timing.last_sync.map_or(now, |last| now.max(last.later(pause)));
        self.timing.retry_at.map_or(spaced, |retry| spaced.max(retry))
    }

    async fn sync_if_due(&mut self) -> Result<(), RunError> {
        if self.engine.is_none() {
            let synced_informers = &self.synced_informers;
            if !(synced_informers.services
                && synced_informers.slices
                && synced_informers.node
                && synced_informers.config_map)
            {
                return Ok(());
            }
            self.start_engine().await?;
        }
        let now = Instant::now();
        if now >= self.timing.next_full {
            self.timing.next_full = now.later(self.period());
            self.engine.iter_mut().for_each(Engine::require_full_sync);
        }
        let is_settled = self.engine.as_ref().is_none_or(Engine::is_settled);
        if !is_settled && now >= self.may_sync_at(now) {
            self.sync().await;
        }
        if self.timing.next_retire.is_some_and(|at| now >= at) {
            self.retire().await;
        }
        Ok(())
    }

    /// The first state is whole.
    async fn start_engine(&mut self) -> Result<(), RunError> {
        let mut planner = self.planner.take().expect("a planner until there is an engine");
        planner.set_node(self.node.clone());
        if self.options.service_ranges.is_empty() {
            self.options.service_ranges = service_ranges(&self.options.api).await;
        }
        let (mode, why) = choose_mode(self.config.mode, &backend::check_support).or_else(|error| {
            // A ConfigMap that asks for what this machine can't do must not leave it without a proxy.
            match self.options.follows_config_map {
                true => {
                    tracing::error!(err = %error, "failed to use the configured proxy mode; choosing another");
                    choose_mode(None, &backend::check_support)
                }
                false => Err(error),
            }
        })?;
        tracing::info!(%mode, reason = why, "starting proxy");
        let settings = self.config.settings(mode, &self.node, &self.options.service_ranges);
        let runtime = tokio::runtime::Handle::current();
        let engine = blocking(move || Engine::new(planner, mode, settings, runtime)).await;
        self.engine = Some(engine.map_err(|error| RunError::Start { mode, error })?);
        if mode != Mode::Userspace {
            let wanted = conntrack::sysctls(&self.config.conntrack, conntrack::cores());
            for problem in conntrack::apply(Path::new("/"), &wanted) {
                tracing::warn!(err = problem, "failed to configure conntrack");
            }
        }
        self.note_mode(mode);
        Ok(())
    }

    async fn sync(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        self.health.sync_begun();
        let (engine, outcome) = blocking(move || {
            let outcome = engine.sync();
            (engine, outcome)
        })
        .await;
        let now = Instant::now();
        self.timing.last_sync = Some(now);
        let mode = engine.mode();
        let engine = self.engine.insert(engine);
        let failed = self.health_ports.sync(engine.planner.health_checks()).await;
        match outcome {
            Ok(synced) => {
                self.timing.retry = RETRY;
                self.timing.retry_at = None;
                self.report(synced);
            }
            Err(error) => {
                tracing::error!(%mode, err = %error, "failed to sync proxy rules");
                self.options.metrics.sync_failed(mode, error.was_full);
                self.timing.retry_at = Some(now.later(self.timing.retry));
                self.timing.retry = self.timing.retry.saturating_mul(2).min(self.config.periods(mode).sync);
            }
        }
        for (service, error) in failed {
            self.warn_once(format!(
                "health check node port of {}/{}: {error}",
                service.namespace, service.name
            ));
        }
    }

    fn report(&mut self, synced: SyncResult) {
        if synced.was_full {
            // With very many services a comparison takes seconds: it must not take all of the time.
            let pause = synced.took.saturating_mul(FULL_SHARE).max(self.period());
            self.timing.next_full = Instant::now().later(pause);
        }
        let now = self.options.clock.now();
        let next_full = self.timing.next_full.saturating_duration_since(Instant::now());
        self.health.updated(next_full);
        self.options
            .metrics
            .synced(now, synced.took, synced.was_full, &synced.report);
        let (internal, external) = synced.no_local;
        self.options.metrics.no_local_endpoints(internal, external);
        if let Some((deleted, took)) = synced.flows {
            self.options.metrics.flows_cleaned(took, deleted);
        }
        for triggered in synced.triggered {
            let age = now.duration_since(triggered);
            if age.is_positive() {
                self.options.metrics.programmed(age.unsigned_abs());
            }
        }
        tracing::debug!(took = ?synced.took, full = synced.was_full, "synced proxy rules");
        for problem in synced.report.problems {
            self.warn_once(problem);
        }
    }

    fn warn_once(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            tracing::warn!(err = problem, "failed to sync part of the proxy rules");
            if self.problems.len() >= QUEUE {
                self.problems.remove(0);
            }
            self.problems.push(problem);
        }
    }

    async fn retire(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let mut engine = blocking(move || {
            engine.clean_leftovers();
            engine
        })
        .await;
        for mode in engine.take_failed_cleanups() {
            self.options.metrics.cleanup_failed(mode);
        }
        self.timing.next_retire = engine.is_retiring().then(|| Instant::now().later(RETIRE));
        self.engine = Some(engine);
    }
}

/// Of an informer that watches one object: what there is of it now. None for a bookmark.
fn only_object<T>(delta: Delta<T>) -> Option<Option<T>> {
    match delta {
        Delta::Reset(objects) => Some(objects.into_iter().next()),
        Delta::Applied(object) => Some(Some(object)),
        Delta::Deleted(_) => Some(None),
        Delta::Bookmark(_) => None,
    }
}

/// Older clusters don't tell; then nobody needs to know but the userspace mode, which says so.
async fn service_ranges(api: &Api) -> Vec<IpNet> {
    let path = path::collection("networking.k8s.io/v1", None, "servicecidrs");
    match api.list::<ServiceCidr>(&path, &ListQuery::default()).await {
        Ok(list) => {
            let ranges = list.items.iter().flat_map(|object| &object.spec.cidrs);
            ranges.filter_map(|range| range.parse().ok()).collect()
        }
        Err(error) => {
            if !error.is_away() {
                tracing::info!(err = error.chain(), "failed to list service CIDRs");
            }
            vec![]
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn is_eligible(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none() && !node.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED)
}

fn plan_node(node: &Node, known: &[IpAddr]) -> plan::Node {
    let of_type = |wanted: &str| {
        let addresses = node.status.addresses.iter().filter(move |a| a.r#type == wanted);
        addresses
            .filter_map(|a| a.address.parse().ok())
            .collect::<Vec<IpAddr>>()
    };
    let mut addresses = of_type("InternalIP");
    if addresses.is_empty() {
        addresses = of_type("ExternalIP");
    }
    if addresses.is_empty() {
        addresses = known.to_vec();
    }
    plan::Node {
        name: node.metadata.name.clone(),
        addresses,
        zone: node.metadata.labels.get(ZONE).cloned(),
        pod_ranges: node
            .spec
            .pod_cidrs
            .iter()
            .filter_map(|range| range.parse().ok())
            .collect(),
    }
}
