//! The kubelet's server (port 10250): logs, exec, port-forward, stats. The API server is its main client.
//!
//! HTTPS only, and every request is authenticated and authorized first ([`access`]). HTTP/1.1 alone, as streams take
//! connections over.
// Upstream: pkg/kubelet/server/server.go (v1.36). Left out: checkpoints, profiles, /flagz, /statusz, the read-only port.

pub mod access;
pub mod containers;
pub mod health;
pub mod healthz;
mod query;
mod streams;
mod system_logs;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use orlop_api::types::core::Pod;
use orlop_base::{Clock, Connections, Limits, Peer, Shutdown};
use orlop_client::Api;
use orlop_runtime::Runtime;
pub use orlop_serving::Certificate;
use orlop_serving::metrics::process;
use orlop_serving::reviews::CertificateIdentity as Certified;
use orlop_serving::{BusyBody, CertificateError, ClientAuthority, certificate};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use self::access::{Access, Denial};
pub(crate) use self::containers::container_of_log;
pub use self::health::Health;
pub(crate) use self::query::{Query, segments};
use crate::config::Config;
use crate::hosted::HostedPods;
use crate::metrics::Metrics;
use crate::node::Machine;
use crate::pod::policy;
use crate::stats::{Gatherer, StatsError, cadvisor, metrics};

const CONNECTIONS_MAX: usize = 1024;
/// How long requests may go on after the shutdown was triggered.
const DRAIN: Duration = Duration::from_secs(2);

/// The first parts of the paths that are served.
const PATHS: [&str; 14] = [
    "attach",
    "configz",
    "containerLogs",
    "exec",
    "healthz",
    "livez",
    "logs",
    "metrics",
    "pods",
    "portForward",
    "readyz",
    "run",
    "runningpods",
    "stats",
];

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
pub(crate) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;
pub(crate) type HttpResponse = Response<Body>;

/// The pods of this node, with their newest statuses.
pub trait Pods: Send + Sync + 'static {
    fn pods(&self) -> Vec<Arc<Pod>>;
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
}

/// Lines to add to a page of metrics.
pub type MoreMetrics = Arc<dyn Fn() -> String + Send + Sync>;

pub struct Options {
    pub listener: TcpListener,
    pub certificate: Certificate,
    /// The authority whose certificates clients may show, as PEM.
    pub client_authority: Option<String>,
    /// Who is asked about tokens and permissions.
    pub api: Option<Api>,
    pub config: Arc<Config>,
    pub node_name: String,
    pub machine: Machine,
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<dyn Pods>,
    pub hosted: HostedPods,
    /// The node's.
    pub addresses: Vec<IpAddr>,
    pub stats: Gatherer,
    pub metrics: Arc<Metrics>,
    /// For `/metrics/probes`.
    pub probe_metrics: MoreMetrics,
    pub health: Health,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

pub(crate) struct Server {
    access: Access,
    /// Without one, certificates are not asked for.
    clients: Option<ClientAuthority>,
    config: Arc<Config>,
    node_name: String,
    machine: Machine,
    runtime: Arc<dyn Runtime>,
    pods: Arc<dyn Pods>,
    hosted: HostedPods,
    addresses: Vec<IpAddr>,
    stats: Gatherer,
    metrics: Arc<Metrics>,
    probe_metrics: MoreMetrics,
    health: Health,
    clock: Clock,
    /// Where `/logs/` leads.
    log_dir: PathBuf,
}

/// Why the server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("failed to create listener: {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    ClientAuthority(Box<dyn std::error::Error + Send + Sync>),
    #[error("{}", chain(.0))]
    Certificate(#[from] CertificateError),
}

fn chain(error: &CertificateError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Listens; port 0 takes any free one. Connections wait until the server is started.
pub async fn bind(ip: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), ServerError> {
    let address = SocketAddr::new(ip, port);
    let failed = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Serves until the shutdown. An error says what is wrong with the certificate.
pub fn start(options: Options) -> Result<(), ServerError> {
    let started = options.clock.now();
    let clients = options.client_authority.as_deref().map(ClientAuthority::from_pem);
    let clients = clients
        .transpose()
        .map_err(|error| ServerError::ClientAuthority(error.into()))?;
    let tls = certificate::server_config(
        &options.certificate,
        "kubelet",
        clients.as_ref(),
        // Streams of exec and port-forward are upgrades, which HTTP/2 has none of.
        &["http/1.1"],
        started,
    )?;
    let shutdown = options.shutdown.clone();
    let server = Arc::new(Server {
        access: Access::new(options.api, &options.node_name, &options.config),
        clients,
        config: options.config,
        node_name: options.node_name,
        machine: options.machine,
        runtime: options.runtime,
        pods: options.pods,
        hosted: options.hosted,
        addresses: options.addresses,
        stats: options.stats,
        metrics: options.metrics,
        probe_metrics: options.probe_metrics,
        health: options.health,
        clock: options.clock,
        log_dir: PathBuf::from("/var/log"),
    });
    orlop_base::spawn(serve(
        server,
        options.listener,
        TlsAcceptor::from(Arc::new(tls)),
        shutdown,
    ));
    Ok(())
}

async fn serve(server: Arc<Server>, listener: TcpListener, acceptor: TlsAcceptor, shutdown: Shutdown) {
    let connections = Connections::new(Limits::of(CONNECTIONS_MAX));
    let take = |stream: TcpStream, peer: Arc<Peer>| {
        let (server, acceptor, shutdown) = (server.clone(), acceptor.clone(), shutdown.clone());
        async move {
            let address = peer.address;
            if let Err(e) = connection(server, acceptor, stream, peer, shutdown).await {
                tracing::debug!(peer = %address, err = %e, "lost connection");
            }
        }
    };
    let failed = |e| tracing::warn!(err = %e, "failed to accept connection");
    orlop_base::accept(listener, &connections, &shutdown, take, failed).await;
    let _ = tokio::time::timeout(DRAIN, connections.gone()).await;
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: Arc<Peer>,
    shutdown: Shutdown,
) -> Result<(), BoxError> {
    // Keystrokes of a terminal are small, and must not be delayed.
    let Some(tls) = orlop_serving::handshake(&acceptor, stream).await? else {
        return Ok(());
    };
    let chain = tls.get_ref().1.peer_certificates();
    let certified = Arc::new(Certified::new(server.clients.as_ref(), chain, server.clock.now()));
    let requests = peer.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, certified, requests) = (server.clone(), certified.clone(), requests.clone());
        async move {
            let busy = requests.request();
            let is_credited = orlop_serving::is_credited(&request, &certified);
            let answer = server.respond(request, &certified).await;
            if is_credited && answer.status() != StatusCode::UNAUTHORIZED {
                requests.authenticated();
            }
            Ok::<_, Infallible>(answer.map(|body| BusyBody::new(body, busy)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30));
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(tls), service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = peer.overdue() => {}
        () = shutdown.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

impl Server {
    async fn respond<B: Send>(self: Arc<Self>, request: Request<B>, certified: &Certified) -> HttpResponse {
        let header = request.headers().get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let path = request.uri().path();
        let checked = self
            .access
            .check(certified, header, request.method(), path, self.clock.now())
            .await;
        match checked {
            Ok(_) => self.served(request).await,
            Err(denial) => refuse(&denial),
        }
    }

    /// Serves a request and counts it.
    async fn served<B: Send>(self: Arc<Self>, request: Request<B>) -> HttpResponse {
        let method = match request.method().as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE") => known.to_string(),
            _ => "other".to_string(),
        };
        let first = segments(request.uri().path()).into_iter().next().unwrap_or_default();
        let (metrics, began) = (self.metrics.clone(), Instant::now());
        let answer = self.serve(request).await;
        // What nobody serves could be anything, and must not fill the memory.
        let path = PATHS.into_iter().find(|path| *path == first).unwrap_or("other");
        metrics.request(&method, path, began.elapsed());
        answer
    }

    async fn serve<B: Send>(self: Arc<Self>, request: Request<B>) -> HttpResponse {
        let path = request.uri().path().to_string();
        let parts = segments(&path);
        let words: Vec<&str> = parts.iter().map(String::as_str).collect();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let debugging = self.config.enable_debugging_handlers;
        match words.as_slice() {
            ["exec", rest @ ..] if debugging => self.exec(request, rest, &query).await,
            ["attach", rest @ ..] if debugging => self.attach(request, rest, &query).await,
            ["portForward", rest @ ..] if debugging => self.port_forward(request, rest).await,
            ["run", rest @ ..] if debugging && *request.method() == Method::POST => self.run(rest, &query).await,
            _ if !is_read => text(405, "405: Method Not Allowed"),
            ["healthz" | "livez" | "readyz", ..] => self.health(&path, request.uri().query().unwrap_or_default()),
            ["pods"] => self.show_pods(self.all_pods()),
            ["runningpods"] if debugging => self.running_pods().await,
            ["containerLogs", namespace, pod, container] if debugging => {
                self.container_logs(namespace, pod, container, &query).await
            }
            ["stats"] | ["stats", "summary"] => {
                let only = query.flag("only_cpu_and_memory");
                match self.stats.summary(&self.pods.pods(), only).await {
                    Ok(summary) => json_answer(&summary),
                    Err(error) => text(500, format!("Internal Error: {error}")),
                }
            }
            ["metrics"] => self.own_metrics().await,
            ["metrics", "probes"] => answer(200, PROMETHEUS, (self.probe_metrics)()),
            ["metrics", page @ ("resource" | "cadvisor")] => self.measured(page).await,
            ["configz"] => json_answer(&json!({"kubeletconfig": self.config.document})),
            ["logs", ..] if debugging && self.config.enable_system_log_handler => {
                system_logs::serve(&self.log_dir, path.strip_prefix("/logs").unwrap_or_default()).await
            }
            _ => text(404, "404 page not found"),
        }
    }

    fn health(&self, path: &str, query: &str) -> HttpResponse {
        match orlop_serving::health::respond(&self.health.checks(), path, query) {
            Some((code, said)) => text(code, said),
            None => text(404, "404 page not found"),
        }
    }

    async fn own_metrics(&self) -> HttpResponse {
        let pods = self.pods.pods();
        let mut page = metrics::own(&self.node_name, &pods);
        self.metrics.write(&mut page);
        if pods.iter().any(|pod| policy::has_claims(pod))
            && let Ok(summary) = self.stats.summary(&pods, false).await
        {
            page.push_str(&metrics::volume_stats(&summary));
        }
        process::write(&mut page);
        answer(200, PROMETHEUS, page)
    }

    /// A runtime that can't be asked fails no page: the page says so itself, as in Kubernetes.
    async fn measured(&self, page: &str) -> HttpResponse {
        let pods = self.pods.pods();
        let failed = |error: &StatsError| tracing::error!(page, err = %error, "failed to collect container metrics");
        let text = match page {
            "resource" => {
                let totals = self.stats.totals(&pods).await.inspect_err(failed).ok();
                totals.as_ref().map_or_else(metrics::no_resource, metrics::resource)
            }
            _ => {
                let rows = self.stats.rows(&pods).await.inspect_err(failed).ok();
                cadvisor::render(rows.as_deref(), &self.machine, self.clock.now())
            }
        };
        answer(200, PROMETHEUS, text)
    }

    /// With those that nothing runs for.
    fn all_pods(&self) -> Vec<Arc<Pod>> {
        let hosted = self.hosted.all().into_iter();
        let hosted = hosted.map(|hosted| Arc::new(hosted.with_status(&self.addresses)));
        self.pods.pods().into_iter().chain(hosted).collect()
    }

    fn show_pods(&self, pods: Vec<Arc<Pod>>) -> HttpResponse {
        let mut list: Value = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}});
        // Go leaves out the kind of each item of a list.
        let items = pods.iter().map(|pod| {
            let mut item = orlop_api::types::to_value(&**pod);
            if let Some(map) = item.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            item
        });
        list["items"] = items.collect();
        json_answer(&list)
    }
}

pub(crate) fn answer(code: u16, media_type: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let body = Full::new(body.into()).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a code of HTTP");
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// As Go's `http.Error` writes it.
pub(crate) fn text(code: u16, message: impl Into<String>) -> HttpResponse {
    answer(code, PLAIN, message.into())
}

/// A request that can't be served, before it becomes an answer.
pub(crate) struct Refused {
    code: u16,
    message: String,
}

impl Refused {
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Refused {
        let message = message.into();
        Refused { code, message }
    }
}

impl From<Refused> for HttpResponse {
    fn from(refused: Refused) -> HttpResponse {
        text(refused.code, refused.message)
    }
}

pub(crate) fn json_answer(value: &impl serde::Serialize) -> HttpResponse {
    let body = serde_json::to_vec(value).expect("plain JSON");
    answer(200, JSON, body)
}

fn refuse(denial: &Denial) -> HttpResponse {
    match denial {
        Denial::Unauthenticated => text(401, "Unauthorized"),
        Denial::Forbidden {
            user,
            verb,
            subresource,
        } => text(
            403,
            format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresource}])"),
        ),
        Denial::Unknown(why) => text(500, format!("Authorization error: {why}")),
    }
}
