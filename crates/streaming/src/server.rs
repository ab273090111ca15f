//! Serving sessions: the kubelet's side of exec and attach.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use crate::handshake::{Agreed, Refusal, agree};
use crate::idle::Idle;
use crate::session::{Wires, carry};
use crate::spdy::{Connection, Incoming, Side, Stream};
use crate::status::StatusFormat;
use crate::websocket::{self, ChannelFormat};
use crate::{Pipe, Session, Streams};

/// How long a client may take to open its streams.
pub(crate) const STREAM_CREATION_WAIT: Duration = Duration::from_secs(30);
/// How long a session lasts without any traffic, unless configured otherwise.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(4 * 60 * 60);

/// Streams of a session that are kept, whatever they are called.
const KINDS_MAX: usize = 8;

pub(crate) const SPDY_SESSIONS: [&str; 5] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
const WEBSOCKET_SESSIONS: [&str; 6] = [
    "",
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

/// A request that is to be answered by leaving HTTP: send the response, and run the future beside it (it waits for
/// the switch by itself). Dropping the future ends what it carries.
pub struct Upgrade {
    pub response: http::Response<()>,
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why a session could not be opened: its text is sent to the client.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenError(Box<dyn std::error::Error + Send + Sync>);

impl OpenError {
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
        OpenError(error.into())
    }
}

/// Serves exec or attach over what the client asks for, SPDY or WebSocket. `open` is called once the client's streams
/// are there; its error, like a session's [`crate::Exit::Failed`], is told to the client word for word. The server of the
/// request must allow upgrades.
pub fn serve_session<B, O, F>(
    request: &mut http::Request<B>,
    streams: Streams,
    idle: Duration,
    open: O,
) -> Result<Upgrade, Refusal>
where
    O: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<Session, OpenError>> + Send + 'static,
{
    let (agreed, response) = agree(request.headers(), &SPDY_SESSIONS, &WEBSOCKET_SESSIONS)?;
    let upgraded = hyper::upgrade::on(request);
    let run = Box::pin(async move {
        let io = match upgraded.await {
            Ok(upgraded) => Idle::new(TokioIo::new(upgraded), idle),
            Err(error) => return tracing::debug!(err = %error, "failed to upgrade the client's connection"),
        };
        let wires = match agreed {
            Agreed::Spdy(version) => spdy_wires(io, version, streams).await,
            Agreed::WebSocket(protocol) => Some(websocket_wires(io, protocol, streams).await),
        };
        if let Some(wires) = wires {
            carry(wires, async { open().await }).await;
        }
    });
    Ok(Upgrade { response, run })
}

/// Waits for the streams that the client must open; `None` if it does not.
async fn spdy_wires(io: impl Pipe + 'static, version: &str, streams: Streams) -> Option<Wires> {
    let (connection, mut incoming) = Connection::start(io, Side::Server);
    let mut wanted = vec!["error"];
    wanted.extend(streams.stdin.then_some("stdin"));
    wanted.extend(streams.stdout.then_some("stdout"));
    wanted.extend((streams.stderr && !streams.tty).then_some("stderr"));
    let mut found: HashMap<String, Stream> = HashMap::new();
    let gathered = tokio::time::timeout(STREAM_CREATION_WAIT, async {
        while !wanted.iter().all(|kind| found.contains_key(*kind)) {
            let next = incoming.recv().await?;
            let kind = next.headers.get("streamType").unwrap_or_default();
            // A second stream of one kind is dropped and thereby reset.
            if found.len() < KINDS_MAX && !found.contains_key(kind) {
                found.insert(kind.to_owned(), next.stream);
            }
        }
        Some(())
    });
    if !matches!(gathered.await, Ok(Some(()))) {
        tracing::debug!("timed out waiting for the client to create its streams");
        return None;
    }
    let format = match version {
        "v5.channel.k8s.io" | "v4.channel.k8s.io" => StatusFormat::Json,
        _ => StatusFormat::Text,
    };
    let mut take = |kind: &str| wanted.contains(&kind).then(|| found.remove(kind)).flatten();
    let (stdin, stdout, stderr, error) = (take("stdin"), take("stdout"), take("stderr"), take("error"));
    let resize = LateResize {
        resize: found.remove("resize"),
        others: found.into_values().collect(),
        incoming,
    };
    Some(Wires {
        stdin: stdin.map(|stream| Box::new(stream) as _),
        stdout: stdout.map(|stream| Box::new(stream) as _),
        stderr: stderr.map(|stream| Box::new(stream) as _),
        resize: Some(Box::new(resize)),
        error: Box::new(error?),
        format,
        closed: Box::pin(connection.closed()),
    })
}

/// The stream of terminal sizes, which a client opens last, or never: whether there is a terminal at all may be known to
/// the container alone. Other streams that the client thinks there should be are kept open and unused.
struct LateResize {
    resize: Option<Stream>,
    others: Vec<Stream>,
    incoming: mpsc::Receiver<Incoming>,
}

impl AsyncRead for LateResize {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while let Poll::Ready(Some(Incoming { headers, stream })) = self.incoming.poll_recv(cx) {
            if self.resize.is_none() && headers.get("streamType") == Some("resize") {
                self.resize = Some(stream);
            } else if self.others.len() < KINDS_MAX {
                self.others.push(stream);
            }
        }
        match &mut self.resize {
            Some(stream) => Pin::new(stream).poll_read(cx, buf),
            // Woken by the next stream; the session ends with the connection anyway.
            None => Poll::Pending,
        }
    }
}

async fn websocket_wires(io: impl Pipe + 'static, protocol: &str, streams: Streams) -> Wires {
    let socket = websocket::accept(io).await;
    let greeting = match streams {
        Streams { stdout: true, .. } => 1,
        Streams {
            stderr: true,
            tty: false,
            ..
        } => 2,
        _ => 3,
    };
    let (pipes, mut closed) = websocket::channels(socket, ChannelFormat::of(protocol), 5, Some(greeting));
    let [stdin, stdout, stderr, error, resize] = <[_; 5]>::try_from(pipes).expect("five channels were asked for");
    Wires {
        stdin: streams.stdin.then(|| Box::new(stdin) as _),
        stdout: streams.stdout.then(|| Box::new(stdout) as _),
        stderr: (streams.stderr && !streams.tty).then(|| Box::new(stderr) as _),
        resize: streams.tty.then(|| Box::new(resize) as _),
        error: Box::new(error),
        format: if protocol.starts_with('v') {
            StatusFormat::Json
        } else {
            StatusFormat::Text
        },
        closed: Box::pin(async move {
            let _ = closed.wait_for(|ended| *ended).await;
        }),
    }
}
