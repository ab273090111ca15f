//! HTTP probes: success is a status code from 200 to 399. Lifecycle hooks use the same requests ([`hook`]).
//!
//! Each probe opens a new connection, so that it finds out whether new connections are served. Certificates are not verified.
//! Redirects are followed to the same host only.
//!
//! Upstream: pkg/probe/http (v1.36). Differs in that only HTTP/1.1 is supported.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    USER_AGENT as USER_AGENT_HEADER,
};
use ::http::{Request, Response, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use orlop_api::types::core::{Container, HTTPGetAction};
use orlop_base::clock::Shift;
use orlop_serving::AnyCertificate;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::run::{PortError, ProbeResult, dial_error, join_host_port, resolve_port};

pub const USER_AGENT: &str = "kube-probe/1.36";
const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";
/// How much of the response body is read and reported.
const MOST_BODY: usize = 10 << 10;
const MOST_REDIRECTS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    https: bool,
    host: String,
    port: u16,
    /// With the query.
    path: String,
}

impl Target {
    fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    fn authority(&self) -> String {
        join_host_port(&self.host, self.port)
    }

    /// Where a redirect leads; whether its location was relative.
    fn redirected(&self, location: &str) -> Option<(Target, bool)> {
        if location.starts_with('/') && !location.starts_with("//") {
            let path = escape(location);
            return Some((Target { path, ..self.clone() }, true));
        }
        let whole = match location.strip_prefix("//") {
            Some(rest) => format!("{}://{rest}", if self.https { "https" } else { "http" }),
            None => location.to_string(),
        };
        let Some((scheme, _)) = whole.split_once("://") else {
            let folder = self.path.split('?').next().unwrap_or_default();
            let folder = folder.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = escape(&format!("{folder}/{location}"));
            return Some((Target { path, ..self.clone() }, true));
        };
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let uri: Uri = whole.parse().ok()?;
        let target = Target {
            https,
            host: uri.host()?.trim_matches(['[', ']']).to_string(),
            port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_string(),
        };
        Some((target, false))
    }
}

/// Why a request was not sent or got no answer, in the words of Go's net/http.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("net/http: invalid header field name {0:?}")]
    HeaderName(String),
    #[error("net/http: invalid header field value for {0:?}")]
    HeaderValue(String),
    #[error("Get {url:?}: {source}")]
    Get { url: String, source: ExchangeError },
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("dial tcp {0}: i/o timeout (Client.Timeout exceeded while awaiting headers)")]
    DialTimeout(String),
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    HeaderTimeout,
    #[error("context deadline exceeded (Client.Timeout or context cancellation while reading body)")]
    BodyTimeout,
    #[error("unexpected EOF")]
    UnexpectedEof,
    /// Go's words for a server that speaks no TLS.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainAnswer,
    #[error("stopped after 10 redirects")]
    TooManyRedirects,
    #[error("invalid path {0:?}")]
    InvalidPath(String),
    /// Of the connection, TLS or HTTP, already in Go's words.
    #[error("{0}")]
    Transport(String),
}

impl ExchangeError {
    fn transport(error: impl std::fmt::Display) -> ExchangeError {
        ExchangeError::Transport(error.to_string())
    }
}

/// The first request: where to and with which headers.
pub fn request(
    action: &HTTPGetAction,
    container: &Container,
    ip: &str,
    user_agent: &'static str,
) -> Result<(Target, HeaderMap), HttpError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let target = Target {
        https: given(&action.scheme).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: given(&action.host).unwrap_or_else(|| ip.to_string()),
        port: resolve_port(&action.port, container)?,
        path: escape(action.path.as_deref().unwrap_or_default()),
    };
    let mut headers = HeaderMap::new();
    for header in action.http_headers.iter().flatten() {
        let name = HeaderName::try_from(&header.name).map_err(|_| HttpError::HeaderName(header.name.clone()))?;
        let value = HeaderValue::try_from(&header.value).map_err(|_| HttpError::HeaderValue(header.name.clone()))?;
        headers.append(name, value);
    }
    for (name, default) in [(USER_AGENT_HEADER, user_agent), (ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => drop(headers.insert(name, HeaderValue::from_static(default))),
            // Given and empty: not to be sent.
            Some(value) if value.is_empty() => drop(headers.remove(name)),
            Some(_) => {}
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok((target, headers))
}

/// A path that can stand in a request: with a slash first, without a fragment, other characters written as %XX.
fn escape(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut out = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        out.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'?' | b'%' => out.push(char::from(byte)),
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' => {
                out.push(char::from(byte))
            }
            b',' | b';' | b'=' | b':' | b'@' | b'[' | b']' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub async fn probe(action: &HTTPGetAction, container: &Container, ip: &str, timeout: Duration) -> ProbeResult {
    let (target, headers) = match request(action, container, ip, USER_AGENT) {
        Ok(request) => request,
        Err(error) => return ProbeResult::unknown(error.to_string()),
    };
    let deadline = Instant::now().later(timeout);
    match follow(target, headers, deadline).await {
        Ok(response) => judge(response, deadline).await,
        Err(error) => ProbeResult::Failure(error.to_string()),
    }
}

/// A container's lifecycle hook: that it answers is enough, whatever it says. One that speaks plain HTTP where HTTPS was
/// to be spoken is asked again that way.
pub async fn hook(action: &HTTPGetAction, container: &Container, ip: &str, timeout: Duration) -> Result<(), HttpError> {
    let (target, mut headers) = request(action, container, ip, HOOK_USER_AGENT)?;
    let deadline = Instant::now().later(timeout);
    let mut answer = follow(target.clone(), headers.clone(), deadline).await;
    let spoke_plain = |error: &HttpError| {
        let HttpError::Get { source, .. } = error else {
            return false;
        };
        matches!(source, ExchangeError::PlainAnswer)
    };
    if target.https && answer.as_ref().is_err_and(spoke_plain) {
        headers.remove(AUTHORIZATION);
        let plain = Target { https: false, ..target };
        answer = follow(plain, headers, deadline).await.or(answer);
    }
    answer.map(drop)
}

/// The answer after redirects to the same host.
async fn follow(
    mut target: Target,
    mut headers: HeaderMap,
    deadline: Instant,
) -> Result<Response<Incoming>, HttpError> {
    let mut requests = 0;
    loop {
        let failed = |source| HttpError::Get {
            url: target.url(),
            source,
        };
        let response = get(&target, &headers, deadline).await.map_err(failed)?;
        requests += 1;
        match next(&target, &response) {
            Some(_) if requests >= MOST_REDIRECTS => return Err(failed(ExchangeError::TooManyRedirects)),
            Some((followed, relative)) => {
                if !relative {
                    headers.remove(HOST);
                }
                target = followed;
            }
            None => return Ok(response),
        }
    }
}

/// Where to go on to, if the answer is a redirect to the same host.
fn next(target: &Target, response: &Response<Incoming>) -> Option<(Target, bool)> {
    let redirects = [301, 302, 303, 307, 308].contains(&response.status().as_u16());
    let location = response.headers().get(LOCATION).filter(|_| redirects)?;
    let (followed, relative) = target.redirected(location.to_str().ok()?)?;
    followed
        .host
        .eq_ignore_ascii_case(&target.host)
        .then_some((followed, relative))
}

async fn judge(response: Response<Incoming>, deadline: Instant) -> ProbeResult {
    let status = response.status();
    let body = match read(response.into_body(), deadline).await {
        Ok(body) => body,
        Err(error) => {
            return ProbeResult::Error {
                state: "failure",
                text: error.to_string(),
            };
        }
    };
    if status < StatusCode::OK || status >= StatusCode::BAD_REQUEST {
        // Without the body: it may contain what others must not see.
        return ProbeResult::Failure(format!("HTTP probe failed with statuscode: {}", status.as_u16()));
    }
    if status >= StatusCode::MULTIPLE_CHOICES {
        return ProbeResult::Warning(format!("Probe terminated redirects, Response body: {body}"));
    }
    ProbeResult::Success
}

async fn read(mut body: Incoming, deadline: Instant) -> Result<String, ExchangeError> {
    let mut read = Vec::new();
    while read.len() < MOST_BODY {
        let frame = timeout_at(deadline, body.frame()).await;
        let frame = frame.map_err(|_| ExchangeError::BodyTimeout)?;
        let Some(frame) = frame else { break };
        if let Some(data) = frame.map_err(|_| ExchangeError::UnexpectedEof)?.data_ref() {
            read.extend_from_slice(data);
        }
    }
    read.truncate(MOST_BODY);
    Ok(String::from_utf8_lossy(&read).into_owned())
}

async fn get(target: &Target, headers: &HeaderMap, deadline: Instant) -> Result<Response<Incoming>, ExchangeError> {
    let address = target.authority();
    let stream = match timeout_at(deadline, TcpStream::connect(&address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(ExchangeError::Transport(dial_error(&address, &error))),
        Err(_) => {
            return Err(ExchangeError::DialTimeout(address));
        }
    };
    let exchange = async {
        if !target.https {
            return send(stream, target, headers).await;
        }
        let name = ServerName::try_from(target.host.clone()).map_err(ExchangeError::transport)?;
        let stream = TlsConnector::from(TLS.clone()).connect(name, stream).await;
        send(stream.map_err(|error| tls_error(&error))?, target, headers).await
    };
    timeout_at(deadline, exchange)
        .await
        .unwrap_or(Err(ExchangeError::HeaderTimeout))
}

fn tls_error(error: &std::io::Error) -> ExchangeError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => ExchangeError::PlainAnswer,
        _ if error.kind() == std::io::ErrorKind::UnexpectedEof => ExchangeError::Transport("EOF".to_string()),
        _ => ExchangeError::transport(error),
    }
}

async fn send<S>(stream: S, target: &Target, headers: &HeaderMap) -> Result<Response<Incoming>, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(ExchangeError::transport)?;
    // Ends when the answer was read or is no longer wanted.
    tokio::spawn(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = target
        .path
        .parse()
        .map_err(|_| ExchangeError::InvalidPath(target.path.clone()))?;
    *request.headers_mut() = headers.clone();
    if !headers.contains_key(HOST) {
        let host = HeaderValue::try_from(target.authority()).map_err(ExchangeError::transport)?;
        request.headers_mut().insert(HOST, host);
    }
    let answer = sender.send_request(request).await;
    answer.map_err(|error| ExchangeError::Transport(answer_error(&error)))
}

fn answer_error(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    match source.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::ConnectionReset) => "read: connection reset by peer".to_string(),
        Some(std::io::ErrorKind::BrokenPipe) => "write: broken pipe".to_string(),
        _ if error.is_incomplete_message() || error.is_closed() => "EOF".to_string(),
        _ if error.is_parse() => format!("net/http: HTTP/1.x transport connection broken: {error}"),
        _ => error.to_string(),
    }
}

/// A probe asks whether the container answers, not who it is.
static TLS: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(AnyCertificate(provider.clone()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for these versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Arc::new(config)
});

#[cfg(test)]
mod tests;
