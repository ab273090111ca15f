//! Forwarded ports: over SPDY (also inside WebSocket messages) any number of connections, each a data and an error
//! stream of one request id; over plain WebSocket one connection per port named in the request.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, copy_bidirectional, split};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Pipe;
use crate::handshake::{Agreed, Refusal, agree};
use crate::idle::Idle;
use crate::server::{STREAM_CREATION_WAIT, Upgrade};
use crate::spdy::{Connection, Headers, Incoming, Side, Stream};
use crate::websocket::{self, ChannelFormat, Tunnel};

pub(crate) const SPDY_PORT_FORWARD: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const WEBSOCKET_PORT_FORWARD: [&str; 4] = [TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];
/// Channels are numbered by one byte and a port takes two.
const WEBSOCKET_PORTS_MAX: usize = 64;
/// An error text that is longer is cut.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Serves port-forward over what the client asks for. `open` is called for each connection; its error is told to the client
/// word for word. The server of the request must allow upgrades.
pub fn serve_port_forward<B, O, F, E>(
    request: &mut http::Request<B>,
    idle: Duration,
    open: O,
) -> Result<Upgrade, Refusal>
where
    O: Fn(u16) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Box<dyn Pipe>, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let (agreed, response) = agree(request.headers(), &[SPDY_PORT_FORWARD], &WEBSOCKET_PORT_FORWARD)?;
    let ports = match agreed {
        Agreed::WebSocket(protocol) if protocol != TUNNEL => parse_ports(request.uri().query().unwrap_or_default())?,
        _ => Vec::new(),
    };
    let upgraded = hyper::upgrade::on(request);
    let run = Box::pin(async move {
        let io = match upgraded.await {
            Ok(upgraded) => Idle::new(TokioIo::new(upgraded), idle),
            Err(error) => return tracing::debug!(err = %error, "failed to upgrade the client's connection"),
        };
        match agreed {
            Agreed::Spdy(_) => forward_streams(io, open).await,
            Agreed::WebSocket(TUNNEL) => forward_streams(Tunnel::new(websocket::accept(io).await), open).await,
            Agreed::WebSocket(protocol) => forward_channels(io, ChannelFormat::of(protocol), ports, open).await,
        }
    });
    Ok(Upgrade { response, run })
}

/// The ports that a request over plain WebSocket names.
fn parse_ports(query: &str) -> Result<Vec<u16>, Refusal> {
    let refused = |message: String| Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    let values = query.split('&').filter_map(|pair| pair.strip_prefix("port="));
    let mut ports = Vec::new();
    for value in values {
        if value.is_empty() {
            return refused("query parameter \"port\" cannot be empty".to_owned());
        }
        for port in value.replace("%2C", ",").replace("%2c", ",").split(',') {
            match port.parse() {
                Ok(0) => return refused(format!("port {value:?} must be > 0")),
                Ok(port) => ports.push(port),
                Err(_) => return refused(format!("unable to parse {value:?} as a port")),
            }
        }
    }
    match ports.len() {
        0 => refused("query parameter \"port\" is required".to_owned()),
        1..=WEBSOCKET_PORTS_MAX => Ok(ports),
        _ => refused(format!(
            "at most {WEBSOCKET_PORTS_MAX} ports can be forwarded over one connection"
        )),
    }
}

/// The two streams of a connection, as far as they have come.
struct Pair {
    data: Option<Stream>,
    error: Option<Stream>,
    since: Instant,
}

async fn forward_streams<O, F, E>(io: impl Pipe + 'static, open: O)
where
    O: Fn(u16) -> F,
    F: Future<Output = Result<Box<dyn Pipe>, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let (connection, mut incoming) = Connection::start(io, Side::Server);
    let mut pairs: HashMap<String, Pair> = HashMap::new();
    // Bounded by the number of streams that a connection may have.
    let mut forwards = JoinSet::new();
    let closed = connection.closed();
    tokio::pin!(closed);
    loop {
        let next = tokio::select! {
            next = incoming.recv() => next,
            () = &mut closed => return,
            Some(_) = forwards.join_next() => continue,
            () = tokio::time::sleep(STREAM_CREATION_WAIT), if !pairs.is_empty() => {
                pairs.retain(|_, pair| pair.since.elapsed() < STREAM_CREATION_WAIT);
                continue;
            }
        };
        let Some(next) = next else { return };
        if let Some((port, data, error)) = pair_up(&mut pairs, next) {
            forwards.spawn(forward(open(port), data, error));
        }
    }
}

/// Takes in a stream; both streams of a connection and its port once they are there. A stream that makes no sense is
/// dropped, which resets it.
fn pair_up(pairs: &mut HashMap<String, Pair>, Incoming { headers, stream }: Incoming) -> Option<(u16, Stream, Stream)> {
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    let is_error = match headers.get("streamType")? {
        "error" => true,
        "data" => false,
        _ => return None,
    };
    // Old clients send no request id, but open the error stream first and the data stream next.
    let id = match headers.get("requestID") {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ if is_error => stream.id().to_string(),
        _ => stream.id().wrapping_sub(2).to_string(),
    };
    let pair = pairs.entry(id.clone()).or_insert_with(|| Pair {
        data: None,
        error: None,
        since: Instant::now(),
    });
    let place = if is_error { &mut pair.error } else { &mut pair.data };
    if place.is_some() {
        return None;
    }
    *place = Some(stream);
    if pair.data.is_none() || pair.error.is_none() {
        return None;
    }
    let pair = pairs.remove(&id)?;
    Some((port, pair.data?, pair.error?))
}

/// Carries one connection. An error ends its data without a proper end, so that a cut does not look like one.
async fn forward<E: Display>(
    open: impl Future<Output = Result<Box<dyn Pipe>, E>>,
    mut data: Stream,
    mut error: Stream,
) {
    let failure = match open.await {
        Ok(mut pipe) => match copy_bidirectional(&mut data, &mut pipe).await {
            // The client closed it: nobody to report to.
            Err(broken) if broken.kind() == io::ErrorKind::ConnectionReset => None,
            Err(broken) => Some(broken.to_string()),
            Ok(_) => None,
        },
        Err(error) => Some(error.to_string()),
    };
    close_error_stream(&mut error, failure).await;
}

/// Ends the error stream, with the text of the failure if there was one.
async fn close_error_stream(error: &mut (impl AsyncWrite + Unpin), failure: Option<String>) {
    if let Some(text) = failure {
        let _ = error.write_all(text.as_bytes()).await;
    }
    let _ = error.shutdown().await;
}

async fn forward_channels<O, F, E>(io: impl Pipe + 'static, format: ChannelFormat, ports: Vec<u16>, open: O)
where
    O: Fn(u16) -> F,
    F: Future<Output = Result<Box<dyn Pipe>, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let socket = websocket::accept(io).await;
    let (pipes, mut closed) = websocket::channels(socket, format, ports.len() as u8 * 2, None);
    let mut pipes = pipes.into_iter();
    let mut forwards = JoinSet::new();
    for port in ports {
        let (Some(data), Some(error)) = (pipes.next(), pipes.next()) else {
            return;
        };
        forwards.spawn(forward_channel(open(port), port, data, error));
    }
    tokio::select! {
        () = async { while forwards.join_next().await.is_some() {} } => {}
        _ = closed.wait_for(|ended| *ended) => {}
    }
}

async fn forward_channel<E: Display>(
    open: impl Future<Output = Result<Box<dyn Pipe>, E>>,
    port: u16,
    mut data: DuplexStream,
    mut error: DuplexStream,
) {
    // Both channels begin with the port, so that the client can assign them.
    let named = async {
        data.write_all(&port.to_le_bytes()).await?;
        error.write_all(&port.to_le_bytes()).await
    };
    if named.await.is_err() {
        return;
    }
    let failure = match open.await {
        Ok(pipe) => {
            let ((mut from_client, mut to_client), (mut from_pod, mut to_pod)) = (split(data), split(pipe));
            // A client can't end a channel, so the pod's end is the end.
            let input = async {
                let _ = tokio::io::copy(&mut from_client, &mut to_pod).await;
                std::future::pending().await
            };
            tokio::select! {
                copied = tokio::io::copy(&mut from_pod, &mut to_client) => copied.err().map(|error| error.to_string()),
                never = input => never,
            }
        }
        Err(error) => Some(error.to_string()),
    };
    close_error_stream(&mut error, failure).await;
}

/// A client's connection to a server of forwarded ports, cheap to clone.
#[derive(Clone)]
pub struct PortForward {
    connection: Connection,
    requests: Arc<AtomicU64>,
}

impl PortForward {
    pub(crate) fn new(connection: Connection) -> Self {
        PortForward {
            connection,
            requests: Arc::default(),
        }
    }

    /// Connects to a port. Whether somebody listens there may turn out only when the pipe is read.
    pub async fn open(&self, port: u16) -> io::Result<Box<dyn Pipe>> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed).to_string();
        let port = port.to_string();
        let headers = |kind: &str| Headers::new(&[("streamType", kind), ("port", &port), ("requestID", &request)]);
        let mut error = self.connection.open(headers("error")).await?;
        error.shutdown().await?;
        let data = self.connection.open(headers("data")).await?;
        Ok(Box::new(Forwarded {
            data,
            error,
            message: Vec::new(),
        }))
    }
}

/// The client's end of a forwarded connection: an error on the error stream becomes a read error.
struct Forwarded {
    data: Stream,
    error: Stream,
    message: Vec<u8>,
}

impl Forwarded {
    /// What the error stream has brought so far. The server writes it before it ends the data, so there is nothing to wait for.
    fn told(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let mut space = [0; 512];
        while self.message.len() < ERROR_BYTES_MAX {
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut self.error).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => self.message.extend_from_slice(buf.filled()),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&self.message);
        (!text.is_empty()).then(|| io::Error::other(text.into_owned()))
    }
}

impl AsyncRead for Forwarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = std::task::ready!(Pin::new(&mut self.data).poll_read(cx, buf));
        if outcome.is_ok() && buf.filled().len() > before {
            return Poll::Ready(outcome);
        }
        Poll::Ready(self.told(cx).map_or(outcome, Err))
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.data).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.data).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.data).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed() {
        for (query, ports) in [
            ("port=80", Ok(vec![80])),
            ("a=b&port=80,81&port=82", Ok(vec![80, 81, 82])),
            ("port=80%2C81", Ok(vec![80, 81])),
            ("", Err("query parameter \"port\" is required")),
            ("port=", Err("query parameter \"port\" cannot be empty")),
            ("port=0", Err("port \"0\" must be > 0")),
            ("port=65536", Err("unable to parse \"65536\" as a port")),
        ] {
            let parsed = parse_ports(query).map_err(|refusal| refusal.message);
            assert_eq!(parsed, ports.map_err(str::to_owned), "{query}");
        }
    }
}
