//! The shell: informers feed the zone, the server answers from it, and the Service and endpoint slices by which pods
//! find it are kept.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use orlop_api::objects::endpoint_slice::TRIGGER_TIME;
use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::{Api, Delta, Inbox, Selection, informer, path};
use orlop_serving::{Page, Pages, plain};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::forward::{Forward, Stubs, config};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::objects::{ConfigMap, EndpointSlice, Namespace, Service};
use crate::server::{self, Handler, ListenError};
use crate::zone::{DNS_SERVICE, Directory, InvalidDomain, Zone};
use crate::{publish, resources};

/// Batches of changes that may wait.
const QUEUE: usize = 256;
/// How often the host's resolv.conf is looked at.
const RESOLV_CONF: Duration = Duration::from_secs(5);
/// The port at which pods ask.
const PORT: u16 = 53;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Domain(#[from] InvalidDomain),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// How to run a server.
pub struct Options {
    /// Namespaces, services, endpoint slices and the ConfigMap are watched through it, and the server's own objects
    /// written.
    pub api: Api,
    /// `cluster.local`
    pub cluster_domain: String,
    /// The cluster's: reverse names of addresses within them are answered here only.
    pub service_ranges: Vec<IpNet>,
    /// As `service_ranges`, of pods.
    pub pod_ranges: Vec<IpNet>,
    /// UDP and TCP on each. Give addresses of the node rather than 0.0.0.0, which would answer pods from whichever
    /// address is nearest to them, not from the one they asked.
    pub listen: Vec<SocketAddr>,
    /// Who is answered; empty: anyone.
    pub clients: Vec<IpNet>,
    /// The host's, usually /etc/resolv.conf.
    pub resolv_conf: PathBuf,
    /// /metrics; CoreDNS has port 9153.
    pub metrics: Option<SocketAddr>,
    /// /ready; CoreDNS has port 8181.
    pub ready: Option<SocketAddr>,
    /// /health; CoreDNS has port 8080.
    pub health: Option<SocketAddr>,
    /// None: someone else makes the objects by which pods find the server.
    pub publish: Option<Publish>,
    /// For the zone's serial and the time that changes took.
    pub clock: Clock,
    /// Ends the server, after its endpoint slices are deleted.
    pub shutdown: Shutdown,
}

/// What the Service `kube-dns` and the node's endpoint slices say.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The node's name, for the names of its endpoint slices.
    pub node: String,
    /// The node's, for listeners at 0.0.0.0 or ::.
    pub addresses: Vec<IpAddr>,
    /// The tenth address of each service range.
    pub service_ips: Vec<IpAddr>,
}

/// A server that listens.
pub struct Running {
    /// In the order of `Options::listen`.
    pub listening: Vec<SocketAddr>,
    /// Of `/metrics`, if it was asked for; so below.
    pub metrics: Option<SocketAddr>,
    /// Of `/ready`.
    pub ready: Option<SocketAddr>,
    /// Of `/health`.
    pub health: Option<SocketAddr>,
    synced: watch::Receiver<bool>,
    ended: JoinHandle<()>,
}

impl Running {
    /// All of the cluster's names are known.
    pub fn is_ready(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until all of the cluster's names are known. False if it was shut down before.
    pub async fn readied(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }

    /// After the shutdown: waits until the node's endpoint slices are taken away.
    pub async fn stopped(self) {
        let _ = self.ended.await;
    }
}

/// Starts the server. It listens when this returns; until all of the cluster's names are known it answers SERVFAIL for
/// them.
pub fn run(options: Options) -> BoxFuture<'static, Result<Running, StartError>> {
    Box::pin(start(options))
}

async fn start(options: Options) -> Result<Running, StartError> {
    let ranges = [options.service_ranges, options.pod_ranges].concat();
    let zone = Arc::new(Zone::new(&options.cluster_domain, ranges)?);
    let metrics = Arc::new(Metrics::default());
    let forward = Forward::new(metrics.clone());
    let handler = Handler::new(zone.clone(), forward.clone(), metrics.clone());
    let handler = Arc::new(handler.for_clients(options.clients));
    let (synced_sender, synced) = watch::channel(false);

    let mut listeners = vec![];
    for address in &options.listen {
        listeners.push(server::listen(*address).await?);
    }
    let listening: Vec<SocketAddr> = listeners.iter().map(|l| l.address).collect();
    // The server stops when pods are no longer sent here.
    let end = Shutdown::default();
    let health = Arc::new(Health::default());
    let is_ready = {
        let (synced, shutdown, health) = (synced.clone(), options.shutdown.clone(), health.clone());
        move || *synced.borrow() && !shutdown.is_triggered() && health.check_listeners().is_ok()
    };
    let pages = [
        (options.metrics, metrics_page(&metrics)),
        (options.ready, ready_page(is_ready)),
        (options.health, health_page(&health)),
    ];
    let [metrics_at, ready_at, health_at] = match start_pages(pages, &end).await {
        Ok(bound) => bound,
        Err(error) => {
            end.trigger();
            return Err(error.into());
        }
    };

    let own = own_addresses(&listening, options.publish.as_ref());
    let mut host = ResolverConfig {
        forward,
        resolv_conf: options.resolv_conf,
        resolvers: vec![],
        stubs: Stubs::default(),
        own,
    };
    host.read_resolv_conf();
    if host.resolvers.is_empty() {
        tracing::warn!(path = %host.resolv_conf.display(), "failed to find a resolver in resolv.conf");
    }
    let changed = Arc::new(Notify::new());
    let follower = Follower {
        directory: Directory::new(zone.clone()),
        zone,
        host,
        metrics,
        clock: options.clock,
        changed: changed.clone(),
        synced: synced_sender,
        health: health.clone(),
    };
    for listener in listeners {
        server::serve(&handler, listener, &health, &end);
    }
    orlop_base::spawn(follower.follow(options.api.clone(), options.shutdown.clone()));
    let reachable = metrics_at.filter(|at| !at.ip().is_loopback()).map(|at| at.port());
    let resources = options.publish.map(|publish| {
        let endpoints = endpoints(&listening, &publish.addresses);
        resources::resources(&publish.service_ips, &publish.node, &endpoints, reachable)
    });
    let ended = orlop_base::spawn(publish_until_shutdown(
        options.api,
        resources,
        changed,
        synced.clone(),
        options.shutdown,
        end,
    ));
    Ok(Running {
        listening,
        metrics: metrics_at,
        ready: ready_at,
        health: health_at,
        synced,
        ended,
    })
}

/// Keeps the objects from when the server is ready until the shutdown, and only then stops it.
async fn publish_until_shutdown(
    api: Api,
    resources: Option<resources::Resources>,
    changed: Arc<Notify>,
    mut synced: watch::Receiver<bool>,
    shutdown: Shutdown,
    end: Shutdown,
) {
    let ready = tokio::select! {
        ready = async { synced.wait_for(|synced| *synced).await.is_ok() } => ready,
        _ = shutdown.wait() => false,
    };
    if let (true, Some(resources)) = (ready, resources) {
        publish::keep(api, resources, changed, shutdown.clone()).await;
    }
    shutdown.wait().await;
    end.trigger();
}

async fn start_pages(
    pages: [(Option<SocketAddr>, Arc<dyn Pages>); 3],
    end: &Shutdown,
) -> Result<[Option<SocketAddr>; 3], ListenError> {
    let mut bound = [None; 3];
    for (place, (address, pages)) in bound.iter_mut().zip(pages) {
        if let Some(address) = address {
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|error| ListenError {
                address,
                protocol: "tcp",
                error,
            })?;
            *place = listener.local_addr().ok();
            orlop_base::spawn(plain::serve(listener, pages, end.clone()));
        }
    }
    Ok(bound)
}

/// One page at an address of its own.
struct OnePage<F> {
    path: &'static str,
    show: F,
}

impl<F: Fn() -> Page + Send + Sync + 'static> Pages for OnePage<F> {
    fn show(&self, path: &str, _: &str) -> Option<Page> {
        (path == self.path).then(&self.show)
    }
}

fn metrics_page(metrics: &Arc<Metrics>) -> Arc<dyn Pages> {
    let metrics = metrics.clone();
    Arc::new(OnePage {
        path: "/metrics",
        show: move || Page::metrics(metrics.render()),
    })
}

fn ready_page(is_ready: impl Fn() -> bool + Send + Sync + 'static) -> Arc<dyn Pages> {
    Arc::new(OnePage {
        path: "/ready",
        show: move || match is_ready() {
            true => Page::plain(200, "OK".to_string()),
            false => Page::plain(503, "kubernetes".to_string()),
        },
    })
}

fn health_page(health: &Arc<Health>) -> Arc<dyn Pages> {
    let health = health.clone();
    Arc::new(OnePage {
        path: "/health",
        show: move || match health.check() {
            Ok(()) => Page::plain(200, "OK".to_string()),
            Err(problem) => Page::plain(503, problem.to_string()),
        },
    })
}

/// Where pods of any node reach the listeners.
fn endpoints(listening: &[SocketAddr], node: &[IpAddr]) -> Vec<SocketAddr> {
    let reached = listening.iter().flat_map(|listener| {
        let everywhere = listener.ip().is_unspecified();
        let own = (!everywhere && !listener.ip().is_loopback()).then_some(listener.ip());
        let of_node = node
            .iter()
            .copied()
            .filter(move |a| everywhere && a.is_ipv4() == listener.is_ipv4());
        let addresses = own.into_iter().chain(of_node);
        addresses.map(|address| SocketAddr::new(address, listener.port()))
    });
    reached.collect()
}

/// Asking there is asking ourselves.
fn own_addresses(listening: &[SocketAddr], publish: Option<&Publish>) -> Vec<SocketAddr> {
    let mut own = listening.to_vec();
    let everywhere = listening.iter().filter(|a| a.ip().is_unspecified());
    own.extend(everywhere.map(|a| match a.is_ipv4() {
        true => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), a.port()),
        false => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), a.port()),
    }));
    if let Some(publish) = publish {
        own.extend(endpoints(listening, &publish.addresses));
        own.extend(publish.service_ips.iter().map(|ip| SocketAddr::new(*ip, PORT)));
    }
    own
}

/// Whom to ask for names outside the cluster, as the host and the `kube-dns` ConfigMap say.
struct ResolverConfig {
    forward: Arc<Forward>,
    resolv_conf: PathBuf,
    resolvers: Vec<SocketAddr>,
    stubs: Stubs,
    own: Vec<SocketAddr>,
}

impl ResolverConfig {
    fn read_resolv_conf(&mut self) {
        match std::fs::read_to_string(&self.resolv_conf) {
            Ok(text) => {
                self.resolvers = config::read_resolv_conf(&text, interface_index);
                self.configure();
            }
            // It may be in the middle of being replaced.
            Err(error) => {
                tracing::debug!(path = %self.resolv_conf.display(), err = %error, "failed to read resolv.conf");
            }
        }
    }

    fn read_stubs(&mut self, map: Option<&ConfigMap>) {
        match map.map_or_else(|| Ok(Stubs::default()), |map| config::read_stubs(&map.data)) {
            Ok(stubs) => self.stubs = stubs,
            Err(error) => tracing::warn!(
                configmap = "kube-system/kube-dns",
                err = %error,
                "invalid DNS configuration; keeping the current one"
            ),
        }
        self.configure();
    }

    fn configure(&self) {
        self.forward.configure(&self.resolvers, &self.stubs, &self.own);
    }
}

fn interface_index(name: &str) -> Option<u32> {
    let path = Path::new("/sys/class/net").join(name).join("ifindex");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Follows the cluster.
struct Follower {
    directory: Directory,
    zone: Arc<Zone>,
    host: ResolverConfig,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Someone changed what we publish.
    changed: Arc<Notify>,
    synced: watch::Sender<bool>,
    health: Arc<Health>,
}

/// Which informers have delivered their first list.
#[derive(Default)]
struct SyncedInformers {
    namespaces: bool,
    services: bool,
    slices: bool,
}

/// What an informer has observed, in order.
enum InformerEvent {
    Namespaces(Vec<Delta<Namespace>>),
    Services(Vec<Delta<Service>>),
    Slices(Vec<Delta<EndpointSlice>>),
    Maps(Vec<Delta<ConfigMap>>),
}

/// Starts an informer for each kind of object; all of them feed one queue.
fn start_informers(api: &Api, shutdown: &Shutdown) -> mpsc::Receiver<InformerEvent> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let all = |version, resource| Selection::all(path::collection(version, None, resource));
    let namespaces = Inbox::new(&sender, InformerEvent::Namespaces);
    informer::start(api, all("v1", "namespaces"), namespaces, shutdown);
    let services = Inbox::new(&sender, InformerEvent::Services);
    informer::start(api, all("v1", "services"), services, shutdown);
    let slices = Inbox::new(&sender, InformerEvent::Slices);
    informer::start(api, all("discovery.k8s.io/v1", "endpointslices"), slices, shutdown);
    let maps = Selection::all(path::collection("v1", Some(DNS_SERVICE.0), "configmaps"));
    let maps = maps.with_fields("metadata.name=kube-dns");
    informer::start(api, maps, Inbox::new(&sender, InformerEvent::Maps), shutdown);
    receiver
}

fn has_list<T>(deltas: &[Delta<T>]) -> bool {
    deltas.iter().any(|delta| matches!(delta, Delta::Reset(_)))
}

impl Follower {
    async fn follow(mut self, api: Api, shutdown: Shutdown) {
        let mut events = start_informers(&api, &shutdown);
        let mut look = tokio::time::interval(RESOLV_CONF);
        let mut synced_informers = SyncedInformers::default();
        loop {
            self.health.beat();
            tokio::select! {
                Some(event) = events.recv() => self.observe(event, &mut synced_informers),
                _ = look.tick() => self.host.read_resolv_conf(),
                _ = shutdown.wait() => return,
            }
            self.zone.set_serial(self.clock.now().as_second() as u32);
            if synced_informers.namespaces
                && synced_informers.services
                && synced_informers.slices
                && !self.zone.is_synced()
            {
                self.zone.set_synced();
                self.synced.send_replace(true);
                tracing::info!("synced informers; DNS is ready");
            }
        }
    }

    fn observe(&mut self, event: InformerEvent, synced: &mut SyncedInformers) {
        match event {
            InformerEvent::Namespaces(deltas) => {
                synced.namespaces |= has_list(&deltas);
                deltas.into_iter().for_each(|delta| self.observe_namespaces(delta));
            }
            InformerEvent::Services(deltas) => {
                synced.services |= has_list(&deltas);
                deltas.into_iter().for_each(|delta| self.observe_services(delta));
            }
            InformerEvent::Slices(deltas) => {
                synced.slices |= has_list(&deltas);
                deltas.into_iter().for_each(|delta| self.observe_slices(delta));
            }
            InformerEvent::Maps(deltas) => deltas.into_iter().for_each(|delta| self.observe_maps(delta)),
        }
    }

    fn observe_namespaces(&mut self, delta: Delta<Namespace>) {
        match delta {
            Delta::Reset(all) => self.directory.reset_namespaces(all),
            Delta::Applied(one) => self.directory.apply_namespace(one),
            Delta::Deleted(one) => self.directory.remove_namespace(&one.metadata.name),
            Delta::Bookmark(_) => {}
        }
    }

    fn observe_services(&mut self, delta: Delta<Service>) {
        if let Delta::Applied(one) | Delta::Deleted(one) = &delta
            && (one.metadata.namespace.as_str(), one.metadata.name.as_str()) == DNS_SERVICE
        {
            self.changed.notify_one();
        }
        match delta {
            Delta::Reset(all) => self.directory.reset_services(all),
            Delta::Applied(one) => self.directory.apply_service(one),
            Delta::Deleted(one) => self
                .directory
                .remove_service(&one.metadata.namespace, &one.metadata.name),
            Delta::Bookmark(_) => {}
        }
    }

    fn observe_slices(&mut self, delta: Delta<EndpointSlice>) {
        if let Delta::Applied(one) | Delta::Deleted(one) = &delta {
            let meta = &one.metadata;
            if (meta.namespace.as_str(), one.service().unwrap_or_default()) == DNS_SERVICE {
                self.changed.notify_one();
            }
        }
        match delta {
            Delta::Reset(all) => self.directory.reset_slices(all),
            Delta::Applied(one) => {
                let meta = &one.metadata;
                let triggered = meta.annotation(TRIGGER_TIME);
                let triggered = triggered.and_then(|text| text.parse::<jiff::Timestamp>().ok());
                let service = one.service().unwrap_or_default();
                let headless = self.directory.is_headless(&meta.namespace, service);
                self.directory.apply_slice(one);
                if let (Some(triggered), Some(headless)) = (triggered, headless) {
                    let took = self.clock.now().duration_since(triggered);
                    self.metrics
                        .programmed(headless, took.try_into().unwrap_or(Duration::ZERO));
                }
            }
            Delta::Deleted(one) => self.directory.remove_slice(&one.metadata.namespace, &one.metadata.name),
            Delta::Bookmark(_) => {}
        }
    }

    fn observe_maps(&mut self, delta: Delta<ConfigMap>) {
        match delta {
            Delta::Reset(all) => self.host.read_stubs(all.first()),
            Delta::Applied(one) => self.host.read_stubs(Some(&one)),
            Delta::Deleted(_) => self.host.read_stubs(None),
            Delta::Bookmark(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use orlop_client::testing::{Fake, FakeReply};

    use super::*;

    fn follower(health: &Arc<Health>) -> Follower {
        let zone = Arc::new(Zone::new("cluster.local", vec![]).unwrap());
        let metrics = Arc::new(Metrics::default());
        Follower {
            directory: Directory::new(zone.clone()),
            zone,
            host: ResolverConfig {
                forward: Forward::new(metrics.clone()),
                resolv_conf: "/nonexistent".into(),
                resolvers: vec![],
                stubs: Stubs::default(),
                own: vec![],
            },
            metrics,
            clock: Clock::manual("2026-01-01T00:00:00Z".parse().unwrap()),
            changed: Arc::default(),
            synced: watch::channel(false).0,
            health: health.clone(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_is_alive_without_an_api_server_and_stalled_once_it_ended() {
        let api = Fake::serving(|_| FakeReply::Whole(503, Bytes::new())).api();
        let health = Arc::new(Health::default());
        for _ in 0..2 {
            let following = tokio::spawn(follower(&health).follow(api.clone(), Shutdown::default()));
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                assert_eq!(health.check(), Ok(()));
            }
            following.abort();
            tokio::time::sleep(Duration::from_secs(30)).await;
            let problem = health.check().unwrap_err().to_string();
            assert!(problem.starts_with("informer loop has been stalled"), "{problem}");
        }
    }
}
