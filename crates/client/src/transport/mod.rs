//! The way to an API server over the network: as a kubeconfig or a pod's service account says.
//!
//! `kubeconfig` and `in_cluster` make a `ClusterConfig` of what is configured; a `Client` sends requests by it. HTTP/1.1
//! with connections kept alive, one for each request under way. Everything is one concrete type: nothing is generic
//! over connectors or bodies.
//!
//! Invariants: credentials and files that change are picked up without a restart; secrets are in no error and no log.
//!
//! Left out on purpose: HTTP/2, proxies, compression, retries (whoever calls decides what to try again, and when).

mod credentials;
mod exec;
mod in_cluster;
mod kubeconfig;
#[cfg(test)]
mod tests;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orlop_base::{BoxFuture, Clock};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::credentials::CredentialError;
use self::credentials::{CredentialSource, Credentials, Current};
pub use self::exec::ExecError;
pub use self::in_cluster::InClusterError;
pub use self::kubeconfig::KubeconfigError;
pub use self::tls::TlsError;
use self::tls::{TlsMaterial, TlsSource, refused_certificate};
use crate::error::BoxError;

/// Upstream: client-go's dialer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// How long files of certificates and keys are taken to be as they were.
const TLS_FILES_PERIOD: Duration = Duration::from_secs(60);

/// The body of a response: frames as they come from the network.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("failed to load kubeconfig {}", .path.display())]
    Kubeconfig {
        path: PathBuf,
        source: Box<KubeconfigError>,
    },
    #[error("no kubeconfig (set one with --kubeconfig), and not running in a pod of a cluster")]
    InCluster(#[source] InClusterError),
    #[error("invalid API server address {address:?}: expected [http://|https://]HOST[:PORT]")]
    Address { address: String },
    #[error("invalid user agent {0:?}: it has characters that a header can't have")]
    UserAgent(String),
    #[error("failed to set up TLS")]
    Tls(#[source] TlsError),
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("failed to get credentials")]
    Credentials(#[from] CredentialError),
    #[error("failed to set up TLS")]
    Tls(#[from] TlsError),
    #[error("failed to verify the certificate of {server}: {reason}")]
    Certificate { server: Uri, reason: String },
    #[error("{server}")]
    Request {
        server: Uri,
        source: hyper_util::client::legacy::Error,
    },
}

/// A cluster: where it is, whom to trust, who we are.
struct ClusterConfig {
    server: Uri,
    tls: TlsSource,
    credentials: CredentialSource,
    /// Headers that ask the server to take us for somebody else.
    impersonate: Vec<(HeaderName, HeaderValue)>,
}

/// A client as the kubeconfig file says; without one, as a pod of the cluster. `master`, if given, takes the place of the
/// server's address; alone it is enough for a server that asks for no credentials.
///
/// A credential plugin runs before this returns.
pub async fn from_kubeconfig(
    path: Option<&Path>,
    master: Option<&str>,
    user_agent: &str,
) -> Result<Client, ConnectError> {
    let config = config(path, master)?;
    Client::start(config, user_agent, Clock::System)
        .await
        .map_err(|error| explain(path, error))
}

/// A client of the same cluster that sends no credentials: whoever sends with it adds them.
pub async fn without_credentials(
    path: Option<&Path>,
    master: Option<&str>,
    user_agent: &str,
) -> Result<Client, ConnectError> {
    let mut config = config(path, master)?;
    config.credentials = CredentialSource::None;
    config.tls.identity = None;
    config.impersonate.clear();
    Client::start(config, user_agent, Clock::System)
        .await
        .map_err(|error| explain(path, error))
}

fn config(path: Option<&Path>, master: Option<&str>) -> Result<ClusterConfig, ConnectError> {
    let master = master.map(|text| {
        server_address(text, false).ok_or_else(|| ConnectError::Address {
            address: text.to_string(),
        })
    });
    let master = master.transpose()?;
    if let Some(path) = path {
        let read = kubeconfig::read(path, master.as_ref());
        return read.map_err(|source| ConnectError::Kubeconfig {
            path: path.to_path_buf(),
            source: Box::new(source),
        });
    }
    match (in_cluster::config(), master) {
        (Ok(config), None) => Ok(config),
        (Ok(config), Some(server)) => Ok(ClusterConfig { server, ..config }),
        (Err(_), Some(server)) => Ok(ClusterConfig {
            server,
            tls: TlsSource::default(),
            credentials: CredentialSource::None,
            impersonate: vec![],
        }),
        (Err(error), None) => Err(ConnectError::InCluster(error)),
    }
}

enum StartError {
    UserAgent(String),
    Tls(TlsError),
    Credentials(CredentialError),
}

/// Says in whose configuration an error is.
fn explain(path: Option<&Path>, error: StartError) -> ConnectError {
    let source = match (error, path) {
        (StartError::UserAgent(text), _) => return ConnectError::UserAgent(text),
        (StartError::Tls(error), None) => return ConnectError::Tls(error),
        (StartError::Credentials(error), None) => return ConnectError::InCluster(error.into()),
        (StartError::Tls(error), Some(_)) => KubeconfigError::Tls(error),
        (StartError::Credentials(error), Some(_)) => KubeconfigError::Credentials(error),
    };
    ConnectError::Kubeconfig {
        path: path.unwrap_or(Path::new("")).to_path_buf(),
        source: Box::new(source),
    }
}

/// The address of a server. One without a scheme is `https` if there is anything about TLS beside it.
fn server_address(text: &str, is_tls: bool) -> Option<Uri> {
    let text = match (text.contains("://"), is_tls) {
        (true, _) => text.to_string(),
        (false, true) => format!("https://{text}"),
        (false, false) => format!("http://{text}"),
    };
    let uri: Uri = text.parse().ok()?;
    let is_known = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    (is_known && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
}

type HttpClient = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Sends requests to one API server. Clones are cheap and share connections and credentials.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    server: Uri,
    user_agent: HeaderValue,
    impersonate: Vec<(HeaderName, HeaderValue)>,
    tls: TlsSource,
    credentials: Credentials,
    connections: Mutex<Connections>,
}

/// The connections made with one set of certificates.
struct Connections {
    http: HttpClient,
    material: TlsMaterial,
    /// Of the credentials that `material` is of.
    generation: u64,
    /// When the files were last read.
    checked: Instant,
}

/// client-go would go through it; without a word, a connection that a firewall drops would be a riddle.
fn warn_of_proxy(server: &Uri) {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(variable) = ["HTTPS_PROXY", "https_proxy"].into_iter().find(is_set) {
        tracing::warn!(variable, %server, "proxies are not supported; connecting to the API server directly");
    }
}

impl Client {
    async fn start(config: ClusterConfig, user_agent: &str, clock: Clock) -> Result<Client, StartError> {
        let wrong = |_| StartError::UserAgent(user_agent.to_string());
        let user_agent = HeaderValue::from_str(user_agent).map_err(wrong)?;
        let credentials = Credentials::start(config.credentials, clock).await;
        let credentials = credentials.map_err(StartError::Credentials)?;
        let current = credentials.current().await.map_err(StartError::Credentials)?;
        let is_tls = config.server.scheme() == Some(&Scheme::HTTPS);
        if is_tls {
            warn_of_proxy(&config.server);
        }
        let tls = match is_tls {
            true => config.tls,
            // Nothing of it is used, so nothing of it needs to be there.
            false => TlsSource {
                skip_verify: true,
                ..TlsSource::default()
            },
        };
        let identity = current.identity.as_deref().filter(|_| is_tls);
        let material = tls.read(identity).map_err(StartError::Tls)?;
        let connections = Connections {
            http: http_client(&tls, &material).map_err(StartError::Tls)?,
            material,
            generation: current.generation,
            checked: Instant::now(),
        };
        Ok(Client {
            shared: Arc::new(Shared {
                server: config.server,
                user_agent,
                impersonate: config.impersonate,
                tls,
                credentials,
                connections: Mutex::new(connections),
            }),
        })
    }

    /// Sends a request whose URI is a path, and gives the response once its head is there; the body comes as the server
    /// sends it. There is no time limit but for the connection. A request that is refused with 401 is sent once more if
    /// there are new credentials by then.
    ///
    /// An `Authorization` or `User-Agent` header that is there already stays.
    pub fn send(&self, request: Request<Full<Bytes>>) -> BoxFuture<'_, Result<Response<ResponseBody>, TransportError>> {
        Box::pin(self.shared.send(request))
    }
}

impl Shared {
    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<ResponseBody>, TransportError> {
        *request.uri_mut() = join(&self.server, request.uri());
        let headers = request.headers_mut();
        headers.entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        for (name, value) in &self.impersonate {
            headers.append(name, value.clone());
        }
        let current = self.credentials.current().await?;
        let again = self.credentials.can_change().then(|| request.clone());
        let response = self.send_as(request, &current).await?;
        let Some(again) = again.filter(|_| response.status() == StatusCode::UNAUTHORIZED) else {
            return Ok(response);
        };
        match self.credentials.after_refusal(current.generation).await? {
            Some(current) => self.send_as(again, &current).await,
            None => Ok(response),
        }
    }

    async fn send_as(
        &self,
        mut request: Request<Full<Bytes>>,
        current: &Current,
    ) -> Result<Response<ResponseBody>, TransportError> {
        if let Some(authorization) = &current.authorization {
            let entry = request.headers_mut().entry(AUTHORIZATION);
            entry.or_insert_with(|| authorization.clone());
        }
        let response = self.http(current)?.request(request).await.map_err(|e| self.error(e))?;
        Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }

    /// The connections to use: new ones if certificate or authority changed. What is under way on the old ones goes on.
    fn http(&self, current: &Current) -> Result<HttpClient, TlsError> {
        let mut connections = self.connections.lock();
        // A request may come late, with credentials that were replaced meanwhile.
        let is_late = current.generation < connections.generation;
        let has_changed = current.generation > connections.generation;
        let is_due = self.tls.has_files() && connections.checked.elapsed() >= TLS_FILES_PERIOD;
        if is_late || !(has_changed || is_due) {
            return Ok(connections.http.clone());
        }
        let is_tls = self.server.scheme() == Some(&Scheme::HTTPS);
        let identity = current.identity.as_deref().filter(|_| is_tls);
        let renewed = self
            .tls
            .read(identity)
            .and_then(|material| match material == connections.material {
                true => Ok(None),
                false => Ok(Some((http_client(&self.tls, &material)?, material))),
            });
        match renewed {
            Ok(None) => {}
            Ok(Some((http, material))) => {
                connections.http = http;
                connections.material = material;
            }
            Err(error) if has_changed && identity.is_some() => return Err(error),
            // Perhaps one of two files is written and the other is not yet.
            Err(error) => {
                let err = crate::error::chain(&error);
                tracing::warn!(err, "failed to reload TLS certificates; using the previous ones");
            }
        }
        connections.generation = current.generation;
        connections.checked = Instant::now();
        Ok(connections.http.clone())
    }

    fn error(&self, source: legacy::Error) -> TransportError {
        let server = self.server.clone();
        match refused_certificate(&source) {
            Some(reason) => TransportError::Certificate {
                server,
                reason: self.tls.advice(reason),
            },
            None => TransportError::Request { server, source },
        }
    }
}

fn http_client(tls: &TlsSource, material: &TlsMaterial) -> Result<HttpClient, TlsError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(tls.client_config(material)?)
        .https_or_http();
    if let Some(name) = &tls.server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
    }
    let connector = builder.enable_http1().wrap_connector(tcp);
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector))
}

/// The path below the server's address, which may have a path of its own.
fn join(server: &Uri, path: &Uri) -> Uri {
    let mut parts = server.clone().into_parts();
    let below = path.path_and_query().map_or("/", PathAndQuery::as_str);
    parts.path_and_query = match server.path().trim_end_matches('/') {
        "" => path.path_and_query().cloned().or(Some(PathAndQuery::from_static("/"))),
        prefix => format!("{prefix}{below}").parse().ok(),
    };
    Uri::from_parts(parts).expect("scheme, host and path are all there")
}
