//! Serving sessions: the kubelet's side of exec and attach.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use hyper_util::rt::TokioIo;

use crate::handshake::{Agreed, Refusal, agree};
use crate::idle::Idle;
use crate::session::{Wires, carry};
use crate::spdy::{Connection, Side, Stream};
use crate::status::StatusFormat;
use crate::websocket::{self, ChannelFormat};
use crate::{Pipe, Session, Streams};

/// How long a client may take to open its streams.
pub(crate) const STREAM_CREATION_WAIT: Duration = Duration::from_secs(30);
/// How long a session lasts without any traffic, unless configured otherwise.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(4 * 60 * 60);

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
    F: Future<Output = Result<Session, String>> + Send + 'static,
{
    let (agreed, response) = agree(request.headers(), &SPDY_SESSIONS, &WEBSOCKET_SESSIONS)?;
    let upgraded = hyper::upgrade::on(request);
    let run = Box::pin(async move {
        let io = match upgraded.await {
            Ok(upgraded) => Idle::new(TokioIo::new(upgraded), idle),
            Err(error) => return tracing::debug!(%error, "a client asked to switch protocols and did not"),
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
    let resizable = !matches!(version, "v2.channel.k8s.io" | "channel.k8s.io");
    let mut wanted = vec!["error"];
    wanted.extend(streams.stdin.then_some("stdin"));
    wanted.extend(streams.stdout.then_some("stdout"));
    wanted.extend((streams.stderr && !streams.tty).then_some("stderr"));
    wanted.extend((streams.tty && resizable).then_some("resize"));
    let gathered = tokio::time::timeout(STREAM_CREATION_WAIT, async {
        let mut found: Vec<(&str, Stream)> = Vec::new();
        while found.len() < wanted.len() {
            let next = incoming.recv().await?;
            let kind = next.headers.get("streamType").unwrap_or_default();
            // A stream of another kind, or a second of one kind, is dropped and thereby refused.
            match wanted.iter().find(|wanted| **wanted == kind) {
                Some(kind) if !found.iter().any(|(known, _)| known == kind) => found.push((kind, next.stream)),
                _ => tracing::debug!(kind, "an unexpected stream"),
            }
        }
        Some(found)
    });
    let Ok(Some(found)) = gathered.await else {
        tracing::debug!("a client did not create its streams in time");
        return None;
    };
    let format = match version {
        "v5.channel.k8s.io" | "v4.channel.k8s.io" => StatusFormat::Json,
        _ => StatusFormat::Text,
    };
    let (mut stdin, mut stdout, mut stderr, mut resize, mut error) = (None, None, None, None, None);
    for (kind, stream) in found {
        let place = match kind {
            "stdin" => &mut stdin,
            "stdout" => &mut stdout,
            "stderr" => &mut stderr,
            "resize" => &mut resize,
            _ => &mut error,
        };
        *place = Some(stream);
    }
    Some(Wires {
        stdin: stdin.map(|stream| Box::new(stream) as _),
        stdout: stdout.map(|stream| Box::new(stream) as _),
        stderr: stderr.map(|stream| Box::new(stream) as _),
        resize: resize.map(|stream| Box::new(stream) as _),
        error: Box::new(error?),
        format,
        closed: Box::pin(connection.closed()),
    })
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
