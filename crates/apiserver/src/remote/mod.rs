//! Calls to services outside of the cluster that configuration files name: webhooks that a kubeconfig describes (tokens,
//! authorization, audit) and OpenID Connect providers. Every answer is bounded in size and in time.

mod cache;
mod kubeconfig;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orlop_base::{BoxFuture, Random};
use orlop_x509::AnyCertificate;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;

use crate::webhook_client::tls;

pub(crate) use cache::AnswerCache;
pub use kubeconfig::KubeconfigError;

/// Upper bound of an answer.
const MAX_ANSWER: usize = 4 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_MAX: usize = 16;

/// Why TLS to a service cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    #[error("no usable certificate authority")]
    Authority,
    #[error("client certificate and key can't be used together: {0}")]
    Identity(rustls::Error),
    #[error("no PEM certificate or private key found")]
    Pem,
    #[error("failed to load the system's root certificates: {0}")]
    SystemRoots(std::io::Error),
    #[error("failed to set up TLS: {0}")]
    Setup(rustls::Error),
}

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{method} {url:?}: {reason}")]
    Unreachable {
        method: Method,
        url: String,
        reason: String,
    },
    #[error("{method} {url:?}: timed out after {after:?}")]
    Timeout {
        method: Method,
        url: String,
        after: Duration,
    },
    #[error("{method} {url:?}: answer is not readable: {reason}")]
    Answer {
        method: Method,
        url: String,
        reason: String,
    },
    #[error("{method} {url:?}: the server answered {code}: {text}")]
    Refused {
        method: Method,
        url: String,
        code: StatusCode,
        text: String,
    },
    #[error("failed to read {path}: {source}", path = path.display())]
    Token { path: PathBuf, source: std::io::Error },
}

impl CallError {
    /// Whether another attempt may succeed.
    // Upstream: DefaultShouldRetry in staging/src/k8s.io/apiserver/pkg/util/webhook/webhook.go
    pub(crate) fn is_retriable(&self) -> bool {
        match self {
            CallError::Unreachable { .. } | CallError::Timeout { .. } => true,
            CallError::Refused { code, .. } => {
                matches!(*code, StatusCode::INTERNAL_SERVER_ERROR | StatusCode::TOO_MANY_REQUESTS)
            }
            CallError::Answer { .. } | CallError::Token { .. } => false,
        }
    }
}

/// What a TLS client trusts and shows. All in PEM.
#[derive(Default)]
pub(crate) struct TlsOptions {
    /// None: the system's root certificates.
    pub(crate) authority: Option<Vec<u8>>,
    /// Certificate and key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) server_name: Option<ServerName<'static>>,
    pub(crate) skip_verify: bool,
}

impl TlsOptions {
    fn client_config(&self) -> Result<ClientConfig, TlsSetupError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsSetupError::Setup)?;
        let builder = match &self.authority {
            _ if self.skip_verify => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            Some(pem) => {
                let verifier = tls::verifier(pem).map_err(|_| TlsSetupError::Authority)?;
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            None => builder.with_native_roots().map_err(TlsSetupError::SystemRoots)?,
        };
        let Some((certificate, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|_| TlsSetupError::Pem)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsSetupError::Pem)?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(TlsSetupError::Identity)
    }
}

/// An HTTP client with its own pool of connections.
#[derive(Clone)]
pub(crate) struct HttpClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl HttpClient {
    pub(crate) fn new(tls: &TlsOptions) -> Result<HttpClient, TlsSetupError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(tls.client_config()?)
            .https_or_http();
        let builder = match &tls.server_name {
            Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
            None => builder,
        };
        let connector = builder.enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        Ok(HttpClient(client))
    }

    /// Sends a request and reads the answer, whatever its status. Redirects are not followed.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap, Bytes), CallError> {
        let (method, url) = (request.method().clone(), request.uri().to_string());
        let exchange = async {
            let unreachable = |reason: String| CallError::Unreachable {
                method: method.clone(),
                url: url.clone(),
                reason,
            };
            let answer = self.0.request(request).await.map_err(|e| unreachable(chain(&e)))?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|e| unreachable(e.to_string()))?.to_bytes();
            Ok((parts.status, parts.headers, body))
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answered) => answered,
            Err(_) => Err(CallError::Timeout {
                method,
                url,
                after: timeout,
            }),
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A webhook as a kubeconfig describes it: one address, and who we are there.
pub(crate) struct Webhook {
    url: Uri,
    client: HttpClient,
    credentials: Credentials,
}

enum Credentials {
    None,
    Header(HeaderValue),
    /// Read for each call, as its content is rotated.
    TokenFile(PathBuf),
}

impl Webhook {
    /// Posts an object and reads the one that comes back.
    pub(crate) async fn post(&self, object: &Value, timeout: Duration) -> Result<Value, CallError> {
        let body = Bytes::from(object.to_string());
        let bytes = self.post_bytes(body, timeout).await?;
        serde_json::from_slice(&bytes).map_err(|e| CallError::Answer {
            method: Method::POST,
            url: self.url.to_string(),
            reason: e.to_string(),
        })
    }

    /// The same for an object in JSON; what is answered with 2xx need not be read.
    pub(crate) async fn post_bytes(&self, body: Bytes, timeout: Duration) -> Result<Bytes, CallError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(CONTENT_TYPE, json);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        headers.insert(USER_AGENT, HeaderValue::from_static("orlop"));
        if let Some(value) = self.credentials.header()? {
            headers.insert(AUTHORIZATION, value);
        }
        let (code, _, bytes) = self.client.send(request, timeout).await?;
        if code.is_success() {
            return Ok(bytes);
        }
        let text: String = String::from_utf8_lossy(&bytes).chars().take(256).collect();
        Err(CallError::Refused {
            method: Method::POST,
            url: self.url.to_string(),
            code,
            text,
        })
    }
}

impl Credentials {
    fn header(&self) -> Result<Option<HeaderValue>, CallError> {
        match self {
            Credentials::None => Ok(None),
            Credentials::Header(value) => Ok(Some(value.clone())),
            Credentials::TokenFile(path) => {
                let failed = |source| CallError::Token {
                    path: path.clone(),
                    source,
                };
                let token = std::fs::read_to_string(path).map_err(failed)?;
                let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
                let value = value.map_err(|_| failed(std::io::ErrorKind::InvalidData.into()))?;
                Ok(Some(value))
            }
        }
    }
}

/// How attempts are spread: each pause is longer than the last by a factor, and random by a fifth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) initial: Duration,
    pub(crate) attempts: u32,
}

impl Backoff {
    /// Upstream: DefaultRetryBackoffWithInitialDelay
    const FACTOR: f64 = 1.5;
    const JITTER: f64 = 0.2;

    pub(crate) const fn new(initial: Duration) -> Backoff {
        Backoff { initial, attempts: 5 }
    }

    /// The pause before attempt `n` (from 1 on).
    fn pause(&self, n: u32) -> Duration {
        let fraction = f64::from(u32::try_from(random_below(1000)).unwrap_or(0)) / 1000.0;
        let factor = Backoff::FACTOR.powi(i32::try_from(n).unwrap_or(0).saturating_sub(1));
        self.initial.mul_f64(factor * (1.0 + Backoff::JITTER * fraction))
    }

    /// Calls until it works, fails for good or has been tried often enough.
    pub(crate) async fn retry<'a, T>(
        &self,
        is_retriable: fn(&CallError) -> bool,
        call: impl Fn() -> BoxFuture<'a, Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let mut attempt = 1;
        loop {
            match call().await {
                Err(e) if is_retriable(&e) && attempt < self.attempts => {
                    tracing::debug!(err = %e, attempt, "failed to call webhook; trying again");
                    tokio::time::sleep(self.pause(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

fn random_below(bound: u64) -> u64 {
    static RANDOM: Mutex<Option<Random>> = Mutex::new(None);
    RANDOM.lock().get_or_insert_with(Random::from_entropy).below(bound)
}

/// Waits for a future where no one else can: in code that is not asynchronous, on a thread of a runtime. The runtime's other
/// tasks go on elsewhere.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| runtime.block_on(future))
}
