//! Calls to webhooks: one JSON request over HTTPS, one answer, both bounded. Admission, conversion, token and
//! authorisation webhooks all name their server in a `clientConfig`: a URL, or a service of the cluster.
//!
//! A service is reached through its ready endpoints, straight over the pod network, and must show a certificate for
//! `NAME.NAMESPACE.svc`. Certificates are checked against the `caBundle`, or else against the machine's authorities.
//! Connections are kept for the next call, a bounded number for a bounded time. Redirects are answers like any other
//! that is not a success: they are refused. Whoever drops the future of a call ends it.
//!
//! Upstream: apiserver/pkg/util/{webhook/client.go,proxy/proxy.go}, client-go/rest (v1.36), for the texts of failures.

mod service;
pub(crate) mod tls;
mod url;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use orlop_api::{Status, Value};
use orlop_base::clock::monotonic;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::connect::connect_error_text;
use crate::lookup::{ObjectLookup, text};

pub(crate) use url::go_seconds;

/// The largest answer that is read. An object is 3 MiB at most, and a JSON patch that replaces all of it is base64.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Unused connections that are kept, to one server and to all.
const IDLE_PER_SERVER: usize = 8;
const IDLE_MAX: usize = 256;
/// Upstream: the idle timeout of Go's default transport.
const IDLE_FOR: Duration = Duration::from_secs(90);
/// How many of a service's endpoints are tried, one after the other, until one takes the connection.
const ENDPOINTS_TRIED: usize = 3;
/// Bundles of authorities that are kept ready to use.
const TLS_CONFIGS_MAX: usize = 256;

/// A `clientConfig` that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientConfig {
    to: Destination,
    path: String,
    /// PEM; empty: the machine's own authorities.
    ca_bundle: Arc<[u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    Url {
        /// Host and port as written.
        authority: String,
        host: String,
        port: u16,
    },
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

/// A `clientConfig` that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("webhook configuration must have either service or URL")]
    NoDestination,
    #[error("Unparsable URL: {0}")]
    Url(String),
    #[error("unable to load root certificates: {0}")]
    Authorities(String),
}

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nobody was reached, or not in time, or what came was no HTTP.
    #[error("Post {url:?}: {why}")]
    Unreached { url: String, why: Failure },
    /// The server answered, with something else than success.
    #[error("{0}")]
    Answered(Status),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("context deadline exceeded")]
    Deadline,
    #[error("http: response body too large")]
    TooLarge,
    #[error("{0}")]
    Text(String),
}

impl Destination {
    /// As it stands in the URL.
    fn authority(&self) -> String {
        match self {
            Destination::Url { authority, .. } => authority.clone(),
            Destination::Service { namespace, name, port } => format!("{name}.{namespace}.svc:{port}"),
        }
    }

    /// Whom the certificate must be for.
    fn server_name(&self) -> String {
        match self {
            Destination::Url { host, .. } => host.clone(),
            Destination::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }
}

impl ClientConfig {
    /// From the object form, as in webhook configurations and custom resource definitions.
    pub(crate) fn from_value(config: &Value) -> Result<ClientConfig, ConfigError> {
        let bundle = STANDARD.decode(text(config, &["caBundle"]));
        let ca_bundle: Arc<[u8]> = bundle.map_err(|e| ConfigError::Authorities(e.to_string()))?.into();
        if let Some(service) = config.get("service").filter(|service| service.is_object()) {
            let path = text(service, &["path"]);
            return Ok(ClientConfig {
                to: Destination::Service {
                    namespace: text(service, &["namespace"]).to_string(),
                    name: text(service, &["name"]).to_string(),
                    port: service["port"].as_u64().and_then(|p| p.try_into().ok()).unwrap_or(443),
                },
                path: if path.is_empty() { "/".into() } else { path.into() },
                ca_bundle,
            });
        }
        match text(config, &["url"]) {
            "" => Err(ConfigError::NoDestination),
            given => ClientConfig::from_url(given, ca_bundle),
        }
    }

    pub(crate) fn from_url(given: &str, ca_bundle: Arc<[u8]>) -> Result<ClientConfig, ConfigError> {
        let url = url::HttpsUrl::parse(given).map_err(|e| ConfigError::Url(e.to_string()))?;
        Ok(ClientConfig {
            to: Destination::Url {
                authority: url.authority,
                host: url.host,
                port: url.port,
            },
            path: url.path,
            ca_bundle,
        })
    }

    fn url(&self, timeout: Duration) -> String {
        format!("https://{}{}", self.to.authority(), self.target(timeout))
    }

    /// Path and query. The server learns how long it has.
    fn target(&self, timeout: Duration) -> String {
        format!("{}?timeout={}", self.path, go_seconds(timeout))
    }
}

/// Whose connections are alike.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ServerKey {
    authority: String,
    ca_bundle: Arc<[u8]>,
}

/// A connection nobody uses now.
struct Idle {
    sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
    since: Instant,
}

/// The client. One for the whole server.
#[derive(Default)]
pub(crate) struct WebhookClient {
    idle: Mutex<HashMap<ServerKey, Vec<Idle>>>,
    tls: Mutex<HashMap<Arc<[u8]>, Arc<rustls::ClientConfig>>>,
}

impl WebhookClient {
    /// Posts a JSON body, and gives back the body of a successful answer.
    pub(crate) async fn post(
        &self,
        lookup: &(dyn ObjectLookup + Sync),
        config: &ClientConfig,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let tls = self.tls_config(&config.ca_bundle)?;
        let failed = |why: Failure| CallError::Unreached {
            url: config.url(timeout),
            why,
        };
        let exchange = async {
            let (response, key, idle) = self.exchange(lookup, config, tls, body, timeout).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
                true => Failure::TooLarge,
                false => Failure::Text(e.to_string()),
            })?;
            self.keep(key, idle);
            Ok::<_, Failure>((head.status, body.to_bytes()))
        };
        let answer = tokio::time::timeout(timeout, exchange).await;
        let (status, body) = answer.map_err(|_| failed(Failure::Deadline))?.map_err(failed)?;
        match status.is_success() {
            true => Ok(body),
            false => Err(CallError::Answered(answered(status.as_u16(), &body))),
        }
    }

    /// Sends the request over a kept connection, or a new one.
    async fn exchange(
        &self,
        lookup: &(dyn ObjectLookup + Sync),
        config: &ClientConfig,
        tls: Arc<rustls::ClientConfig>,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(Response<Incoming>, ServerKey, Idle), Failure> {
        let key = ServerKey {
            authority: config.to.authority(),
            ca_bundle: config.ca_bundle.clone(),
        };
        let endpoints = match &config.to {
            Destination::Url { .. } => None,
            Destination::Service { namespace, name, port } => {
                Some(service::endpoints(lookup, namespace, name, *port).map_err(|e| Failure::Text(e.to_string()))?)
            }
        };
        let mut request = request(config, &key.authority, body, timeout)?;
        // A kept connection may have been closed by the other side meanwhile. A request that was not sent goes on to
        // the next one; one that was is not repeated.
        while let Some(mut idle) = self.take(&key, endpoints.as_deref()) {
            if idle.sender.ready().await.is_err() {
                continue;
            }
            match idle.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, key, idle)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(http_failure(error.error())),
                },
            }
        }
        let mut fresh = connect(config, endpoints, tls).await?;
        let response = fresh.sender.send_request(request).await;
        Ok((response.map_err(|e| http_failure(&e))?, key, fresh))
    }

    /// A kept connection to the server, if there is one. Of a service only one to an endpoint that is still ready.
    fn take(&self, key: &ServerKey, endpoints: Option<&[SocketAddr]>) -> Option<Idle> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(key)?;
        let found = loop {
            let Some(connection) = connections.pop() else {
                break None;
            };
            let serves = endpoints.is_none_or(|list| list.contains(&connection.address));
            if serves && !connection.sender.is_closed() && connection.since.elapsed() < IDLE_FOR {
                break Some(connection);
            }
        };
        if connections.is_empty() {
            idle.remove(key);
        }
        found
    }

    fn keep(&self, key: ServerKey, connection: Idle) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.values().map(Vec::len).sum::<usize>() >= IDLE_MAX {
            idle.retain(|_, list| {
                list.retain(|c| !c.sender.is_closed() && c.since.elapsed() < IDLE_FOR);
                !list.is_empty()
            });
            if idle.values().map(Vec::len).sum::<usize>() >= IDLE_MAX {
                return;
            }
        }
        let connections = idle.entry(key).or_default();
        if connections.len() < IDLE_PER_SERVER {
            connections.push(Idle {
                since: monotonic(),
                ..connection
            });
        }
    }

    fn tls_config(&self, ca_bundle: &Arc<[u8]>) -> Result<Arc<rustls::ClientConfig>, ConfigError> {
        if let Some(config) = self.tls.lock().get(ca_bundle) {
            return Ok(config.clone());
        }
        let config = tls::config(ca_bundle).map_err(|e| ConfigError::Authorities(e.to_string()))?;
        let mut configs = self.tls.lock();
        if configs.len() >= TLS_CONFIGS_MAX {
            configs.clear();
        }
        configs.insert(ca_bundle.clone(), config.clone());
        Ok(config)
    }
}

fn request(
    config: &ClientConfig,
    authority: &str,
    body: Bytes,
    timeout: Duration,
) -> Result<Request<Full<Bytes>>, Failure> {
    Request::post(config.target(timeout))
        .header(HOST, authority)
        .header(USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"))
        .header(ACCEPT, HeaderValue::from_static("application/json, */*"))
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Full::new(body))
        .map_err(|e| Failure::Text(e.to_string()))
}

async fn connect(
    config: &ClientConfig,
    endpoints: Option<Vec<SocketAddr>>,
    tls: Arc<rustls::ClientConfig>,
) -> Result<Idle, Failure> {
    let addresses = match (endpoints, &config.to) {
        (Some(endpoints), _) => endpoints,
        (None, Destination::Url { host, port, .. }) => {
            let found = tokio::net::lookup_host((host.as_str(), *port)).await;
            let missing = |_| Failure::Text(format!("dial tcp: lookup {host}: no such host"));
            found.map_err(missing)?.collect()
        }
        (None, Destination::Service { .. }) => vec![],
    };
    let (stream, address) = dial(&addresses).await?;
    let _ = stream.set_nodelay(true);
    let host = config.to.server_name();
    let name = ServerName::try_from(host.clone()).map_err(|e| Failure::Text(e.to_string()))?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    let stream = stream.map_err(|e| Failure::Text(tls::error_text(&e, &host)))?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| http_failure(&e))?;
    // Ends with the sender: both are dropped together.
    tokio::spawn(connection);
    Ok(Idle {
        sender,
        address,
        since: monotonic(),
    })
}

async fn dial(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut last = Failure::Text("dial tcp: no address".into());
    for address in addresses.iter().take(ENDPOINTS_TRIED) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok((stream, *address)),
            Err(error) => last = Failure::Text(format!("dial tcp {address}: {}", connect_error_text(&error))),
        }
    }
    Err(last)
}

fn http_failure(error: &hyper::Error) -> Failure {
    if error.is_incomplete_message() {
        return Failure::Text("EOF".into());
    }
    Failure::Text(match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

/// What an answer without success means: the Status in it, or what Kubernetes' clients make of the code.
// Upstream: NewGenericServerResponse
fn answered(code: u16, body: &[u8]) -> Status {
    let given = serde_json::from_slice::<Value>(body).ok();
    if let Some(status) = given.filter(|v| v["kind"] == "Status" && v["apiVersion"] == "v1") {
        return Status::from_value(&status, code);
    }
    let shown = String::from_utf8_lossy(&body[..body.len().min(2048)])
        .trim()
        .to_string();
    let shown = if shown.is_empty() { "unknown".to_string() } else { shown };
    let (reason, message) = match code {
        400 => (
            "BadRequest",
            "the server rejected our request for an unknown reason".into(),
        ),
        401 => (
            "Unauthorized",
            "the server has asked for the client to provide credentials".into(),
        ),
        403 => ("Forbidden", shown),
        404 => ("NotFound", "the server could not find the requested resource".into()),
        405 => (
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".into(),
        ),
        406 => ("NotAcceptable", shown),
        409 => ("AlreadyExists", "the server reported a conflict".into()),
        415 => ("UnsupportedMediaType", shown),
        422 => (
            "Invalid",
            "the server rejected our request due to an error in our request".into(),
        ),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later".into(),
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request".into(),
        ),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .into(),
        ),
        500.. => (
            "InternalError",
            format!("an error on the server ({shown:?}) has prevented the request from succeeding"),
        ),
        _ => (
            "",
            format!("the server responded with the status code {code} but did not return more information"),
        ),
    };
    Status::new(code, reason, message)
}

#[cfg(test)]
mod tests;
