//! The listener: TLS, HTTP/1.1 and HTTP/2, one task a connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::authn::CertIdentity;
use crate::chain::{Connection, Server};

/// Connections beyond this wait to be accepted.
const MAX_CONNECTIONS: usize = 20_000;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may go on once the server is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until the server's shutdown is triggered, then lets requests under way finish.
pub async fn serve(server: Arc<Server>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    let take = |stream: TcpStream, peer: SocketAddr| {
        let (server, acceptor, watcher) = (server.clone(), acceptor.clone(), graceful.watcher());
        async move {
            if let Err(e) = connection(server, acceptor, stream, peer, watcher).await {
                tracing::debug!(%peer, "connection ended: {e}");
            }
        }
    };
    let failed = |e| tracing::warn!("a connection could not be accepted: {e}");
    orlop_base::accept(listener, MAX_CONNECTIONS, &server.shutdown, take, failed).await;
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), AnyError> {
    stream.set_nodelay(true)?;
    let tls = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
    let certificate = match tls.get_ref().1.peer_certificates().and_then(|c| c.first()) {
        Some(der) => Some(CertIdentity::from_der(der)?),
        None => None,
    };
    let client = Arc::new(Connection {
        peer: Some(peer.ip()),
        certificate,
        trusted_user: None,
    });
    let service = service_fn(move |request| {
        let (server, client) = (server.clone(), client.clone());
        async move { Ok::<_, Infallible>(server.handle(request, &client).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .keep_alive_interval(Duration::from_secs(30))
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    watcher.watch(connection.into_owned()).await
}
