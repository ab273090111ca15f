//! The shell: objects come in, the engine is told, and what it does is shown.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use orlop_base::clock::Shift;
use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::{Api, Delta, Event, EventType, ListQuery, ObjectReference, Recorder, Selection, informer, path};
use orlop_serving::{Page, Pages, plain};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::{self, Error, Mode};
use crate::choice::choose;
use crate::config::{self, Config};
use crate::conntrack;
use crate::engine::{Engine, Synced};
use crate::health::{Health, HealthPorts, TO_BE_DELETED};
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

pub struct Options {
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

/// Something was seen.
enum Input {
    Service(Box<Delta<Service>>),
    Slice(Delta<EndpointSlice>),
    Node(Delta<Node>),
    ConfigMap(Delta<ConfigMap>),
}

/// What has been seen once.
#[derive(Default)]
struct Seen {
    services: bool,
    slices: bool,
    node: bool,
    config_map: bool,
}

struct Shell {
    options: Options,
    /// What counts now: the ConfigMap's, or that of the options.
    config: Config,
    node: plan::Node,
    seen: Seen,
    /// Until the first state is whole there is only a planner.
    planner: Option<Planner>,
    engine: Option<Engine>,
    health: Arc<Health>,
    health_ports: HealthPorts,
    recorder: Recorder,
    timing: Timing,
    /// Said once, not at every sync.
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
pub fn run(options: Options) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(serve_until_shutdown(options))
}

async fn serve_until_shutdown(options: Options) -> Result<(), String> {
    let (sender, mut inputs) = mpsc::channel(QUEUE);
    follow(&options, &sender);
    drop(sender);
    let (clock, shutdown) = (options.clock.clone(), options.shutdown.clone());
    let (recorder, _) = Recorder::start(options.api.clone(), "kube-proxy", clock.clone(), shutdown.clone());
    let recorder = recorder.telling_notes_apart();
    let timeout = options.config.iptables.sync.saturating_mul(2);
    let health = Arc::new(Health::new(clock, timeout, options.metrics.clone()));
    serve(&options, &health).await?;
    let any: Vec<IpAddr> = vec!["0.0.0.0".parse().expect("an address")];
    let mut shell = Shell {
        config: options.config.clone(),
        node: plan::Node {
            name: options.node_name.clone(),
            addresses: options.node_addresses.clone(),
            ..plan::Node::default()
        },
        seen: Seen {
            config_map: !options.follows_config_map,
            ..Seen::default()
        },
        planner: Some(Planner::default()),
        engine: None,
        health_ports: HealthPorts::new(health.clone(), any),
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
    };
    shell.announce();
    loop {
        tokio::select! {
            _ = shutdown.wait() => return Ok(()),
            input = inputs.recv() => match input {
                None => return Ok(()),
                Some(input) => shell.see(input).await,
            },
            _ = tokio::time::sleep_until(shell.wake_at()) => {}
        }
        // What came in the meantime goes into the same sync.
        while let Ok(input) = inputs.try_recv() {
            shell.see(input).await;
        }
        shell.act().await?;
    }
}

/// Starts an informer for each kind of object, and hands what they see to one queue.
fn follow(options: &Options, inputs: &mpsc::Sender<Input>) {
    let ours = format!("!{PROXY_NAME}");
    let services = Selection::all(path::collection("v1", None, "services")).with_labels(&ours);
    let slices = path::collection("discovery.k8s.io/v1", None, "endpointslices");
    let slices = Selection::all(slices).with_labels(&format!("{ours},!{HEADLESS}"));
    let node = Selection::all(path::collection("v1", None, "nodes"))
        .with_fields(&format!("metadata.name={}", options.node_name));
    start(options, services, inputs, |delta| Input::Service(Box::new(delta)));
    start(options, slices, inputs, Input::Slice);
    start(options, node, inputs, Input::Node);
    if options.follows_config_map {
        let map = Selection::all(path::collection("v1", Some("kube-system"), "configmaps"))
            .with_fields(&format!("metadata.name={CONFIG_MAP}"));
        start(options, map, inputs, Input::ConfigMap);
    }
}

fn start<T: DeserializeOwned + Send + 'static>(
    options: &Options,
    selection: Selection,
    inputs: &mpsc::Sender<Input>,
    wrap: fn(Delta<T>) -> Input,
) {
    let (sender, mut deltas) = mpsc::channel(QUEUE);
    orlop_base::spawn(informer::watch(
        options.api.clone(),
        selection,
        sender,
        options.shutdown.clone(),
    ));
    let inputs = inputs.clone();
    orlop_base::spawn(async move {
        while let Some(delta) = deltas.recv().await {
            if inputs.send(wrap(delta)).await.is_err() {
                break;
            }
        }
    });
}

/// The ports for health and metrics. One that is taken is only fatal if the configuration wants it so.
async fn serve(options: &Options, health: &Arc<Health>) -> Result<(), String> {
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
            Err(e) if config.bind_address_hard_fail => return Err(format!("no {what} port: {address}: {e}")),
            Err(e) => tracing::warn!("no {what} port: {address} can't be listened on: {e}"),
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
                None => Page::plain(503, "not known yet\n".to_string()),
            }),
            _ => None,
        }
    }
}

impl Shell {
    fn announce(&self) {
        self.tell_node(EventType::Normal, "Starting", String::new());
    }

    fn tell_node(&self, kind: EventType, reason: &'static str, note: String) {
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

    async fn see(&mut self, input: Input) {
        match input {
            Input::Service(delta) => self.see_service(*delta),
            Input::Slice(delta) => self.see_slice(delta),
            Input::Node(delta) => {
                let node = match delta {
                    Delta::Reset(nodes) => nodes.into_iter().next(),
                    Delta::Applied(node) => Some(node),
                    Delta::Deleted(_) => None,
                    Delta::Bookmark(_) => return,
                };
                self.see_node(node).await;
            }
            Input::ConfigMap(delta) => {
                let map = match delta {
                    Delta::Reset(maps) => maps.into_iter().next(),
                    Delta::Applied(map) => Some(map),
                    Delta::Deleted(_) => None,
                    Delta::Bookmark(_) => return,
                };
                self.see_config_map(map).await;
            }
        }
        if self.engine.as_ref().is_none_or(|engine| !engine.is_settled()) {
            self.health.queued();
            self.options.metrics.queued(self.options.clock.now());
        }
    }

    fn see_service(&mut self, delta: Delta<Service>) {
        let planner = self.planner();
        match delta {
            Delta::Bookmark(_) => return,
            Delta::Reset(services) => {
                planner.replace_services(&services);
                self.seen.services = true;
            }
            Delta::Applied(service) => planner.apply_service(&service),
            Delta::Deleted(service) => planner.forget_service(&service.metadata.namespace, &service.metadata.name),
        }
        self.options.metrics.service_changed();
    }

    fn see_slice(&mut self, delta: Delta<EndpointSlice>) {
        let planner = self.planner();
        match delta {
            Delta::Bookmark(_) => return,
            Delta::Reset(slices) => {
                planner.replace_slices(&slices);
                self.seen.slices = true;
            }
            Delta::Applied(slice) => planner.apply_slice(&slice),
            Delta::Deleted(slice) => planner.forget_slice(&slice.metadata.namespace, &slice.metadata.name),
        }
        self.options.metrics.endpoints_changed();
    }

    async fn see_node(&mut self, node: Option<Node>) {
        self.seen.node = true;
        self.health.set_eligible(node.as_ref().is_some_and(is_eligible));
        let known = self.options.node_addresses.clone();
        let next = node.map_or_else(
            || plan::Node {
                addresses: known.clone(),
                name: self.options.node_name.clone(),
                ..plan::Node::default()
            },
            |node| understood(&node, &known),
        );
        if next != self.node {
            self.node = next.clone();
            self.planner().set_node(next);
            self.reconfigure().await;
        }
    }

    async fn see_config_map(&mut self, map: Option<ConfigMap>) {
        self.seen.config_map = true;
        let text = map.and_then(|map| map.data.get(CONFIG_KEY).cloned());
        let next = match text.as_deref().map(|text| config::parse(text, &[])) {
            None => self.options.config.clone(),
            Some(Ok((config, warnings))) => {
                for warning in warnings {
                    tracing::warn!("ConfigMap kube-system/{CONFIG_MAP}: {warning}");
                }
                config
            }
            Some(Err(problems)) => {
                let note = format!(
                    "ConfigMap kube-system/{CONFIG_MAP} can't be used: {}",
                    problems.join("; ")
                );
                tracing::error!("{note}; the configuration stays as it is");
                self.tell_node(EventType::Warning, "InvalidProxyConfiguration", note);
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

    /// Brings the engine to the configuration, if there is one already.
    async fn reconfigure(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let before = engine.mode();
        let chosen = choose(self.config.mode, &backend::supported);
        let outcome = match chosen {
            Ok((mode, _)) => {
                let settings = self.config.settings(mode, &self.node, &self.options.service_ranges);
                blocking(move || {
                    let outcome = engine.switch(mode, settings);
                    (engine, outcome)
                })
                .await
            }
            Err(why) => (engine, Err(Error(why))),
        };
        let mode = outcome.0.mode();
        self.engine = Some(outcome.0);
        match outcome.1 {
            Ok(Some(synced)) if mode == before => self.report(synced),
            Ok(Some(synced)) => {
                tracing::info!("the proxy's mode is {mode} now, no longer {before}");
                self.tell_node(
                    EventType::Normal,
                    "ProxyModeChanged",
                    format!("Proxy mode is {mode} now, was {before}"),
                );
                self.switched(mode);
                self.report(synced);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!("{error}; the proxy's mode is still {before}");
                let note = format!("Proxy mode stays {before}: {error}");
                self.tell_node(EventType::Warning, "ProxyModeNotChanged", note);
            }
        }
    }

    fn switched(&mut self, mode: Mode) {
        let families = vec!["IPv4", "IPv6"];
        self.health.set_families(families.clone());
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

    async fn act(&mut self) -> Result<(), String> {
        if self.engine.is_none() {
            let seen = &self.seen;
            if !(seen.services && seen.slices && seen.node && seen.config_map) {
                return Ok(());
            }
            self.begin().await?;
        }
        let now = Instant::now();
        if now >= self.timing.next_full {
            self.timing.next_full = now.later(self.period());
            self.engine.iter_mut().for_each(Engine::distrust);
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
    async fn begin(&mut self) -> Result<(), String> {
        let mut planner = self.planner.take().expect("a planner until there is an engine");
        planner.set_node(self.node.clone());
        if self.options.service_ranges.is_empty() {
            self.options.service_ranges = service_ranges(&self.options.api).await;
        }
        let (mode, why) = choose(self.config.mode, &backend::supported).or_else(|error| {
            // A ConfigMap that asks for what this machine can't do must not leave it without a proxy.
            match self.options.follows_config_map {
                true => {
                    tracing::error!("{error}; another mode is taken");
                    choose(None, &backend::supported)
                }
                false => Err(error),
            }
        })?;
        tracing::info!("the proxy's mode is {mode}: {why}");
        let settings = self.config.settings(mode, &self.node, &self.options.service_ranges);
        let runtime = tokio::runtime::Handle::current();
        let engine = blocking(move || Engine::new(planner, mode, settings, runtime)).await;
        self.engine = Some(engine.map_err(|e| format!("mode {mode}: {e}"))?);
        if mode != Mode::Userspace {
            let wanted = conntrack::sysctls(&self.config.conntrack, conntrack::cores());
            for problem in conntrack::apply(Path::new("/"), &wanted) {
                tracing::warn!("{problem}");
            }
        }
        self.switched(mode);
        Ok(())
    }

    async fn sync(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
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
                self.options.metrics.failed(match mode {
                    Mode::Nftables => "nftables_sync_failures_total",
                    _ => "iptables_restore_failures_total",
                });
                self.timing.retry_at = Some(now.later(self.timing.retry));
                self.timing.retry = self.timing.retry.saturating_mul(2).min(self.config.periods(mode).sync);
            }
        }
        for (service, why) in failed {
            self.tell_once(format!(
                "health check node port of {}/{}: {why}",
                service.namespace, service.name
            ));
        }
    }

    fn report(&mut self, synced: Synced) {
        if synced.was_full {
            // With very many services a comparison takes seconds: it must not take all of the time.
            let pause = synced.took.saturating_mul(FULL_SHARE).max(self.period());
            self.timing.next_full = Instant::now().later(pause);
        }
        let now = self.options.clock.now();
        self.health.updated();
        self.options
            .metrics
            .synced(now, synced.took, synced.was_full, &synced.report);
        if let Some((deleted, took)) = synced.flows {
            self.options.metrics.flows_cleaned(took, deleted);
        }
        for triggered in synced.triggered {
            let age = now.duration_since(triggered);
            if age.is_positive() {
                self.options.metrics.programmed(age.unsigned_abs());
            }
        }
        tracing::debug!(took = ?synced.took, full = synced.was_full, "services are in place");
        for problem in synced.report.problems {
            self.tell_once(problem);
        }
    }

    fn tell_once(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            tracing::warn!("{problem}");
            if self.problems.len() >= QUEUE {
                self.problems.remove(0);
            }
            self.problems.push(problem);
        }
    }

    async fn retire(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let engine = blocking(move || {
            engine.clean_leftovers();
            engine
        })
        .await;
        self.timing.next_retire = engine.is_retiring().then(|| Instant::now().later(RETIRE));
        self.engine = Some(engine);
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

fn understood(node: &Node, known: &[IpAddr]) -> plan::Node {
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
