//! Connections to extension API servers: kept open and used again, one pool for each address. They know us by our
//! front-proxy certificate, and therefore believe what we say about users.

use std::error::Error as _;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use orlop_streaming::Pipe;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::AnyBody;
use super::relay;
use super::target::ConnectTarget;
use super::transport::{self, Unreached};
use crate::aggregator::resolve::Endpoint;
use crate::aggregator::service::{ServiceRef, Trusted};
use crate::authn::UserInfo;
use crate::pki::{Credential, PkiError};

/// Connections to one address that nobody uses, and for how long they are kept.
const IDLE_MAX: usize = 32;
const IDLE: Duration = Duration::from_secs(90);
/// As Go puts it.
const END: &str = "EOF";

/// The certificate with which we present ourselves to extension API servers.
pub(crate) struct FrontProxy {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl FrontProxy {
    pub(crate) fn new(credential: &Credential) -> Result<FrontProxy, PkiError> {
        let chain = CertificateDer::pem_slice_iter(credential.certificate.as_bytes());
        Ok(FrontProxy {
            chain: chain.collect::<Result<_, _>>().map_err(transport::pem_error)?,
            key: PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).map_err(transport::pem_error)?,
        })
    }
}

/// Why connections to a service can't be made at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BackendError {
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    CaBundle,
    #[error("{0:?} is not a valid server name")]
    Name(String),
    #[error("tls: {0}")]
    Tls(String),
}

/// The extension API server behind one port of a service.
pub(crate) struct Backend {
    pub(crate) service: ServiceRef,
    dialer: Dialer,
    client: Client<Dialer, AnyBody>,
    /// With which endpoint to begin next.
    turn: AtomicUsize,
}

/// What an extension API server answered to a question of our own.
pub(crate) struct Fetched {
    pub code: u16,
    pub content_type: String,
    pub bytes: Bytes,
}

/// Why there is no such answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Unreached(#[from] Unreached),
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    #[error("failed to read the answer: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl Backend {
    pub(crate) fn new(service: ServiceRef, trust: &Trusted, proxy: &FrontProxy) -> Result<Backend, BackendError> {
        let host = service.host();
        let name = ServerName::try_from(host.clone()).map_err(|_| BackendError::Name(host))?;
        let verifier = transport::extension_verifier(trust)?;
        let tls = transport::client_config(verifier, proxy.chain.clone(), proxy.key.clone_key());
        let dialer = Dialer {
            tls: Arc::new(tls.map_err(|error| BackendError::Tls(error.to_string()))?),
            name,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(dialer.clone());
        Ok(Backend {
            service,
            dialer,
            client,
            turn: AtomicUsize::new(0),
        })
    }

    /// Another one of the endpoints each time.
    pub(crate) fn choose<'e>(&self, endpoints: &'e [Endpoint]) -> Option<&'e Endpoint> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        endpoints.get(turn % endpoints.len().max(1))
    }

    /// Sends a request, whose address names the endpoint.
    pub(super) async fn send(&self, request: Request<AnyBody>) -> Result<Response<Incoming>, Unreached> {
        self.client.request(request).await.map_err(|error| words(&error))
    }

    /// A connection of its own, for what leaves HTTP.
    pub(super) async fn dial(&self, endpoint: &Endpoint) -> Result<Box<dyn Pipe>, Unreached> {
        Ok(Box::new(self.dialer.dial(endpoint.host.clone(), endpoint.port).await?))
    }

    /// Asks a question of our own, as `user`.
    pub(crate) async fn fetch(
        &self,
        endpoint: &Endpoint,
        target: &str,
        accept: &str,
        user: &UserInfo,
        limits: FetchLimits,
    ) -> Result<Fetched, FetchError> {
        let request = || -> Result<Request<AnyBody>, Unreached> {
            let mut request = Request::get(format!("https://{}{target}", endpoint.authority()))
                .header(HOST, self.service.host())
                .header(ACCEPT, accept)
                .body(AnyBody::default())
                .map_err(|error| Unreached(error.to_string()))?;
            relay::say_who_asks(request.headers_mut(), user).map_err(|error| Unreached(error.to_string()))?;
            Ok(request)
        };
        let fetching = async {
            let response = match self.send(request()?).await {
                Err(error) if error.is_end() => self.send(request()?).await?,
                answer => answer?,
            };
            let code = response.status().as_u16();
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let content_type = header(CONTENT_TYPE).unwrap_or_default().to_string();
            let body = Limited::new(response.into_body(), limits.bytes).collect().await;
            Ok(Fetched {
                code,
                content_type,
                bytes: body.map_err(FetchError::Body)?.to_bytes(),
            })
        };
        let answer = tokio::time::timeout(limits.wait, fetching).await;
        answer.unwrap_or(Err(FetchError::Timeout))
    }
}

impl Unreached {
    /// The connection ended before there was an answer. One that was kept open may have been closed by the other side
    /// just when it was used again: what changes nothing is asked once more.
    pub(super) fn is_end(&self) -> bool {
        self.0 == END
    }
}

/// How long an answer may be, and may take.
#[derive(Clone, Copy)]
pub(crate) struct FetchLimits {
    pub bytes: usize,
    pub wait: Duration,
}

/// The innermost reason why a request failed.
fn words(error: &hyper_util::client::legacy::Error) -> Unreached {
    let mut source = error.source();
    let mut last = error.to_string();
    while let Some(inner) = source {
        if let Some(unreached) = inner.downcast_ref::<Unreached>() {
            return Unreached(unreached.0.clone());
        }
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>() {
            if hyper.is_incomplete_message() {
                return Unreached(END.into());
            }
            if hyper.is_parse() {
                return Unreached(format!("net/http: HTTP/1.x transport connection broken: {hyper}"));
            }
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            let is_end = matches!(
                io.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            );
            if is_end {
                return Unreached(END.into());
            }
        }
        last = inner.to_string();
        source = inner.source();
    }
    Unreached(last)
}

/// Connects to an endpoint, where whoever answers must have the service's certificate.
#[derive(Clone)]
struct Dialer {
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Dialer {
    async fn dial(&self, host: String, port: u16) -> Result<TlsStream<TcpStream>, Unreached> {
        let place = ConnectTarget {
            https: true,
            hosts: vec![host],
            port,
            target: String::new(),
            node: None,
            only_proxyable: false,
        };
        let (_, stream) = transport::connect(&place).await?;
        let _ = stream.set_nodelay(true);
        transport::handshake(self.tls.clone(), self.name.clone(), stream).await
    }
}

impl tower::Service<Uri> for Dialer {
    type Response = Secured;
    type Error = Unreached;
    type Future = Pin<Box<dyn Future<Output = Result<Secured, Unreached>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unreached>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_string();
            let stream = dialer.dial(host, uri.port_u16().unwrap_or(443)).await?;
            Ok(Secured(TokioIo::new(stream)))
        })
    }
}

/// A connection as the pool wants it.
struct Secured(TokioIo<TlsStream<TcpStream>>);

impl Connection for Secured {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
    }
}
