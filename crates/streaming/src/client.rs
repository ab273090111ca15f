//! Connecting to a server of sessions and forwarded ports: the kubelet's side towards a runtime's streaming server, and
//! the API server's towards a kubelet.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::handshake::{PROTOCOL_VERSION, SPDY};
use crate::port_forward::{PortForward, SPDY_PORT_FORWARD};
use crate::server::SPDY_SESSIONS;
use crate::session::{BoxRead, BoxWrite, client_session};
use crate::spdy::{Connection, Headers, Side, Stream};
use crate::status::StatusFormat;
use crate::{Pipe, Session, Streams};

const CONNECT_WAIT: Duration = Duration::from_secs(10);
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Of the text of an error.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0:?} is not a plain http address with a host")]
    Address(String),
    #[error("unable to connect to {0}")]
    Unreachable(String, #[source] io::Error),
    /// The server answered, but not by switching protocols: its status and text.
    #[error("unable to upgrade connection: {1}")]
    Refused(StatusCode, String),
    #[error("the connection failed during the protocol upgrade")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Streams(#[from] io::Error),
    #[error("timed out waiting for the protocol upgrade")]
    TimedOut,
}

/// Connects to exec or attach at a plain `http` address, as a runtime's streaming server hands out.
pub async fn connect_session(url: &str, streams: Streams) -> Result<Session, ConnectError> {
    let (io, request) = dial(url).await?;
    session_over(io, request, streams).await
}

/// Connects to port-forward at a plain `http` address.
pub async fn connect_port_forward(url: &str) -> Result<PortForward, ConnectError> {
    let (io, request) = dial(url).await?;
    port_forward_over(io, request).await
}

/// Like [`connect_session`], over a connection that is made already. The request has the path and what
/// headers the caller adds.
pub async fn session_over(
    io: impl Pipe + 'static,
    request: Request<()>,
    streams: Streams,
) -> Result<Session, ConnectError> {
    let (io, version) = upgrade(io, request, &SPDY_SESSIONS[1..]).await?;
    let (connection, _) = Connection::start(io, Side::Client);
    let open = async |kind: &str, wanted: bool| -> Result<Option<Stream>, ConnectError> {
        if !wanted {
            return Ok(None);
        }
        Ok(Some(connection.open(Headers::new(&[("streamType", kind)])).await?))
    };
    let resizable = !matches!(version.as_str(), "v2.channel.k8s.io" | "channel.k8s.io");
    let json = matches!(version.as_str(), "v5.channel.k8s.io" | "v4.channel.k8s.io");
    let error = connection.open(Headers::new(&[("streamType", "error")])).await?;
    let stdin = open("stdin", streams.stdin).await?;
    let stdout = open("stdout", streams.stdout).await?;
    let stderr = open("stderr", streams.stderr && !streams.tty).await?;
    let resize = open("resize", streams.tty && resizable).await?;
    Ok(client_session(
        stdin.map(|stream| Box::new(stream) as BoxWrite),
        stdout.map(|stream| Box::new(stream) as BoxRead),
        stderr.map(|stream| Box::new(stream) as BoxRead),
        resize.map(|stream| Box::new(stream) as BoxWrite),
        Box::new(error),
        if json { StatusFormat::Json } else { StatusFormat::Text },
    ))
}

/// Like [`connect_port_forward`], over a connection that is made already.
pub async fn port_forward_over(io: impl Pipe + 'static, request: Request<()>) -> Result<PortForward, ConnectError> {
    let (io, _) = upgrade(io, request, &[SPDY_PORT_FORWARD]).await?;
    Ok(PortForward::new(Connection::start(io, Side::Client).0))
}

/// Connects to the host of an address and prepares a request for its path.
async fn dial(url: &str) -> Result<(TcpStream, Request<()>), ConnectError> {
    let wrong = || ConnectError::Address(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let authority = uri
        .authority()
        .filter(|_| uri.scheme_str() == Some("http"))
        .ok_or_else(wrong)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let connecting = TcpStream::connect((host, authority.port_u16().unwrap_or(80)));
    let unreachable = |error| ConnectError::Unreachable(authority.to_string(), error);
    let io = match tokio::time::timeout(CONNECT_WAIT, connecting).await {
        Ok(connected) => connected.map_err(unreachable)?,
        Err(_) => return Err(unreachable(io::ErrorKind::TimedOut.into())),
    };
    let _ = io.set_nodelay(true);
    let mut request = Request::new(());
    request
        .headers_mut()
        .insert(HOST, HeaderValue::try_from(authority.as_str()).map_err(|_| wrong())?);
    *request.uri_mut() = uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .parse()
        .map_err(|_| wrong())?;
    Ok((io, request))
}

/// Asks the server to switch to SPDY; returns the raw connection and the version of the protocol on it.
async fn upgrade(
    io: impl Pipe + 'static,
    request: Request<()>,
    versions: &[&'static str],
) -> Result<(TokioIo<hyper::upgrade::Upgraded>, String), ConnectError> {
    let mut request = request.map(|()| Empty::<Bytes>::new());
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    for version in versions {
        headers.append(PROTOCOL_VERSION, HeaderValue::from_static(version));
    }
    let switched = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        tokio::spawn(connection.with_upgrades());
        let response = sender.send_request(request).await?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await;
            let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned());
            return Err(ConnectError::Refused(
                status,
                text.unwrap_or_else(|_| status.to_string()),
            ));
        }
        let version = response
            .headers()
            .get(PROTOCOL_VERSION)
            .and_then(|value| value.to_str().ok());
        // A server that names none speaks the first version.
        let version = version.unwrap_or("channel.k8s.io").to_owned();
        Ok((TokioIo::new(hyper::upgrade::on(response).await?), version))
    };
    tokio::time::timeout(ANSWER_WAIT, switched)
        .await
        .map_err(|_| ConnectError::TimedOut)?
}
