//! A component's secure port: health for anyone, metrics and configuration for those who are authorized.
//!
//! HTTPS only. Clients authenticate with a certificate of the cluster's client CA or a bearer token (TokenReview), and the
//! API server authorizes them (SubjectAccessReview).
//!
//! Upstream: the secure port of kube-scheduler and kube-controller-manager (v1.36). Left out: profiles, /flagz, /statusz,
//! /metrics/slis, /metrics/resources, the front proxy's headers; files and authorities are read once, at the start.

mod access;
mod busy_body;
pub mod certificate;
pub mod health;
pub mod plain;
pub mod reviews;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use orlop_base::{BoxFuture, Clock, Connections, Limits, Peer, Shutdown, plain_http};
use orlop_client::Api;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use access::{Access, Denial};
pub use busy_body::BusyBody;
pub use certificate::{Certificate, CertificateError};
pub use orlop_base::metrics;
use orlop_x509::AuthorityError;
pub use orlop_x509::{AnyCertificate, ClientAuthority};
use reviews::CertificateIdentity;

/// Paths that need no authorization by default.
pub const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/readyz", "/livez"];

const CONNECTIONS_MAX: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests may go on once the process is told to stop.
const DRAIN: Duration = Duration::from_secs(2);

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Upstream: expfmt's text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Why a component's port is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error("failed to create listener: {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    ClientAuthority(#[from] AuthorityError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// What to serve, where, and who decides about access.
pub struct Options {
    pub bind: IpAddr,
    /// 0: any free one.
    pub port: u16,
    pub certificate: Certificate,
    /// The component's name, and so that of certificate and key in a directory.
    pub name: &'static str,
    /// Paths that need no permission; one that ends with `*` stands for all that begin with the rest.
    pub always_allow_paths: Vec<String>,
    /// For TokenReviews and the client CA.
    pub authentication: Api,
    /// For SubjectAccessReviews.
    pub authorization: Api,
    pub pages: Arc<dyn Pages>,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

/// The pages of a component.
pub trait Pages: Send + Sync + 'static {
    /// The page at this path; none for 404. Called for GET and HEAD only, on a thread of the runtime: it must not block.
    fn show(&self, path: &str, query: &str) -> Option<Page>;
}

/// A response of a component.
pub struct Page {
    pub code: u16,
    pub media_type: &'static str,
    pub body: Bytes,
    /// Further headers, their names in lower case.
    pub headers: Vec<(&'static str, String)>,
}

impl Page {
    /// Metrics in the Prometheus text format.
    pub fn metrics(text: String) -> Page {
        let (code, media_type) = (200, PROMETHEUS);
        Page {
            code,
            media_type,
            body: text.into(),
            headers: vec![],
        }
    }

    /// 200 with JSON.
    pub fn json(body: Bytes) -> Page {
        let (code, media_type) = (200, JSON);
        Page {
            code,
            media_type,
            body,
            headers: vec![],
        }
    }

    /// Plain text.
    pub fn plain(code: u16, text: String) -> Page {
        Page {
            code,
            media_type: PLAIN,
            body: text.into(),
            headers: vec![],
        }
    }
}

struct Server {
    access: Access,
    /// None: client certificates are not requested.
    clients: Option<ClientAuthority>,
    pages: Arc<dyn Pages>,
    clock: Clock,
    shutdown: Shutdown,
}

/// Listens, and serves until the shutdown. Gives the address once it listens.
pub fn start(options: Options) -> BoxFuture<'static, Result<SocketAddr, ServingError>> {
    Box::pin(listen(options))
}

async fn listen(options: Options) -> Result<SocketAddr, ServingError> {
    let address = SocketAddr::new(options.bind, options.port);
    let failed = |source| ServingError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let clients = access::client_authority(&options.authentication).await;
    let clients = clients.map(|pem| ClientAuthority::from_pem(&pem)).transpose()?;
    let tls = certificate::server_config(
        &options.certificate,
        options.name,
        clients.as_ref(),
        &["h2", "http/1.1"],
        options.clock.now(),
    )?;
    let server = Arc::new(Server {
        access: Access::new(
            options.authentication,
            options.authorization,
            options.always_allow_paths,
        ),
        clients,
        pages: options.pages,
        clock: options.clock,
        shutdown: options.shutdown,
    });
    orlop_base::spawn(serve(server, listener, TlsAcceptor::from(Arc::new(tls))));
    Ok(address)
}

async fn serve(server: Arc<Server>, listener: TcpListener, acceptor: TlsAcceptor) {
    let connections = Connections::new(Limits::of(CONNECTIONS_MAX));
    let take = |stream: TcpStream, peer: Arc<Peer>| {
        let (server, acceptor) = (server.clone(), acceptor.clone());
        async move {
            let address = peer.address;
            if let Err(e) = connection(server, acceptor, stream, peer).await {
                tracing::debug!(peer = %address, err = %e, "connection failed");
            }
        }
    };
    let failed = |e| tracing::warn!(err = %e, "failed to accept connection");
    orlop_base::accept(listener, &connections, &server.shutdown, take, failed).await;
    let _ = tokio::time::timeout(DRAIN, connections.gone()).await;
}

/// Accepts TLS within ten seconds. None for a client that speaks plain HTTP, which got a 400 instead.
pub async fn handshake(
    acceptor: &TlsAcceptor,
    mut stream: TcpStream,
) -> Result<Option<TlsStream<TcpStream>>, Box<dyn std::error::Error + Send + Sync>> {
    let handshake = async {
        match plain_http::refused(&mut stream).await? {
            true => Ok(None),
            false => acceptor.accept(stream).await.map(Some),
        }
    };
    Ok(tokio::time::timeout(HANDSHAKE, handshake).await??)
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: Arc<Peer>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let Some(tls) = handshake(&acceptor, stream).await? else {
        return Ok(());
    };
    let chain = tls.get_ref().1.peer_certificates();
    let certified = Arc::new(CertificateIdentity::new(
        server.clients.as_ref(),
        chain,
        server.clock.now(),
    ));
    let (shutdown, requests) = (server.shutdown.clone(), peer.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, certified, requests) = (server.clone(), certified.clone(), requests.clone());
        async move {
            let busy = requests.request();
            let response = server.respond(&request, &certified).await;
            if response.status() != StatusCode::UNAUTHORIZED && is_credited(&request, &certified) {
                requests.authenticated();
            }
            Ok::<_, Infallible>(response.map(|body| BusyBody::new(body, busy)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30));
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(100);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(tls), service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = peer.overdue() => {}
        () = shutdown.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Whether a client whose request was not refused is authenticated: by its certificate, or by a token where one is
/// checked.
pub fn is_credited<B>(request: &Request<B>, certified: &CertificateIdentity) -> bool {
    let is_open = ALWAYS_ALLOWED.iter().any(|path| request.uri().path().starts_with(path));
    matches!(certified, CertificateIdentity::User { .. }) || (!is_open && request.headers().contains_key(AUTHORIZATION))
}

type PageResponse = Response<Full<Bytes>>;

impl Server {
    async fn respond<B>(&self, request: &Request<B>, certified: &CertificateIdentity) -> PageResponse {
        let header = request.headers().get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let verb = request.method().as_str().to_ascii_lowercase();
        let path = request.uri().path();
        let now = self.clock.now();
        match self.access.check(certified, header, &verb, path, now).await {
            Ok(()) => plain::respond(request, &*self.pages),
            Err(denial) => refuse(&denial),
        }
    }
}

fn page_response(code: u16, media_type: &'static str, body: impl Into<Bytes>) -> PageResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a code from above");
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn refuse(denial: &Denial) -> PageResponse {
    let (code, reason, message) = match denial {
        Denial::Unauthenticated => (401, "Unauthorized", "Unauthorized".to_string()),
        Denial::Forbidden { user, verb, path } => (
            403,
            "Forbidden",
            format!("forbidden: User {user:?} cannot {verb} path {path:?}"),
        ),
        Denial::Unknown(why) => return page_response(500, PLAIN, format!("Internal Server Error: {why}\n")),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    page_response(code, JSON, status.to_string())
}
