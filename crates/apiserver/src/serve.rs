//! The listener: TLS, HTTP/1.1 and HTTP/2, one task a connection.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use orlop_base::{Busy, Limits, Peer, plain_http};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::chain::{Connection, Server};
use crate::respond::Body;

const MAX_CONNECTIONS: usize = 20_000;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may go on once the server is told to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// What clients may send ahead of what is read, on one stream and on one connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// As many connections as this process may have files open, but for a quarter that the rest of it needs.
pub fn limits() -> Limits {
    let files = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let files = files.map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
    Limits::of((files - files / 4).clamp(16, MAX_CONNECTIONS))
}

/// Serves until the server's shutdown is triggered, then lets requests under way finish.
pub async fn serve(server: Arc<Server>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let take = |stream: TcpStream, peer: Arc<Peer>| {
        let (server, acceptor) = (server.clone(), acceptor.clone());
        async move {
            let address = peer.address;
            if let Err(e) = connection(server, acceptor, stream, peer).await {
                tracing::debug!(peer = %address, err = %e, "ended connection");
            }
        }
    };
    let failed = |e| tracing::warn!(err = %e, "failed to accept connection");
    orlop_base::accept(listener, &server.connections, &server.shutdown, take, failed).await;
    let _ = tokio::time::timeout(DRAIN, server.connections.gone()).await;
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    mut stream: TcpStream,
    peer: Arc<Peer>,
) -> Result<(), AnyError> {
    let handshake = async {
        match plain_http::refused(&mut stream).await? {
            true => Ok(None),
            false => acceptor.accept(stream).await.map(Some),
        }
    };
    let Some(tls) = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await?? else {
        return Ok(());
    };
    let authenticator = &server.registry.authenticator;
    let certificate = authenticator.client_certificate(tls.get_ref().1.peer_certificates(), server.registry.now());
    let client = Arc::new(Connection {
        peer: Some(peer.address.ip()),
        certificate,
        trusted_user: None,
        client: Some(peer.clone()),
    });
    let shutdown = server.shutdown.clone();
    let requests = peer.clone();
    let service = service_fn(move |request| {
        let (answer, busy) = (server.handle(request, &client), requests.request());
        async move { Ok::<_, Infallible>(answer.await.map(|body| Held { body, _busy: busy })) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Also the time between two requests: that of `Limits::idle`, which ends connections without one.
        .header_read_timeout(Duration::from_secs(90));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .keep_alive_interval(Duration::from_secs(30))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(tls), service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = peer.overdue() => {}
        () = shutdown.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// An answer that keeps its connection busy until it is sent.
struct Held {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
