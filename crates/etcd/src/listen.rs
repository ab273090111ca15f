//! Ports: gRPC and plain HTTP on the same one, with TLS or without.

use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use orlop_base::{Connections, Limits};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::server::Server;
use crate::{grpc, web};

/// Connections to all ports of one kind. Clients of etcd keep theirs for good: a kube-apiserver has a hundred.
const CONNECTIONS: usize = 16_384;
/// Without a request; a watch is one.
const IDLE: Duration = Duration::from_secs(7 * 86_400);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests that are under way may take once the member stops.
const DRAIN: Duration = Duration::from_secs(3);
/// Calls and watches on one connection at the same time. Upstream: no bound.
const STREAMS: u32 = 100_000;
const WINDOW: u32 = 1 << 20;

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// gRPC, and what the other one has.
    Clients,
    /// Health, version and metrics.
    Metrics,
}

/// One port.
pub struct Port {
    pub listener: TcpListener,
    pub tls: Option<Arc<ServerConfig>>,
    pub serves: Serves,
}

/// Serves until told to stop, then lets what is under way end.
pub async fn serve(server: Arc<Server>, ports: Vec<Port>) {
    let limits = Limits {
        per_address: CONNECTIONS,
        idle: IDLE,
        ..Limits::of(CONNECTIONS)
    };
    let connections = Connections::new(limits);
    let graceful = Arc::new(parking_lot::Mutex::new(Some(GracefulShutdown::new())));
    let mut loops = tokio::task::JoinSet::new();
    for port in ports {
        let (server, connections, graceful) = (server.clone(), connections.clone(), graceful.clone());
        loops.spawn(async move {
            let stopping = server.stopping.clone();
            let acceptor = port.tls.map(TlsAcceptor::from);
            let serves = port.serves;
            let take = |stream: TcpStream, peer: Arc<orlop_base::Peer>| {
                // Nobody proves who they are here, unless in the handshake.
                peer.authenticated();
                connection(server.clone(), acceptor.clone(), serves, stream, peer, graceful.clone())
            };
            let failed = |error| tracing::warn!(%error, "failed to accept a connection");
            orlop_base::accept(port.listener, &connections, &stopping, take, failed).await;
        });
    }
    while loops.join_next().await.is_some() {}
    let under_way = graceful.lock().take();
    if let Some(under_way) = under_way
        && tokio::time::timeout(DRAIN, under_way.shutdown()).await.is_err()
    {
        tracing::info!("closing connections with requests under way");
    }
}

type Graceful = Arc<parking_lot::Mutex<Option<GracefulShutdown>>>;

async fn connection(
    server: Arc<Server>,
    acceptor: Option<TlsAcceptor>,
    serves: Serves,
    mut stream: TcpStream,
    peer: Arc<orlop_base::Peer>,
    graceful: Graceful,
) {
    let Some(acceptor) = acceptor else {
        return http(server, serves, stream, peer, graceful).await;
    };
    let handshake = async {
        if orlop_base::plain_http::refused(&mut stream).await? {
            return Ok(None);
        }
        acceptor.accept(stream).await.map(Some)
    };
    match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(Some(stream))) => http(server, serves, stream, peer, graceful).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::info!(%error, from = %peer.address, "rejected a connection"),
        Err(_) => tracing::info!(from = %peer.address, "rejected a connection: no handshake in time"),
    }
}

async fn http<S>(server: Arc<Server>, serves: Serves, stream: S, peer: Arc<orlop_base::Peer>, graceful: Graceful)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let is_local = peer.address.ip().to_canonical().is_loopback();
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (server, busy) = (server.clone(), peer.request());
        async move {
            let _busy = busy;
            let is_grpc = request
                .headers()
                .get(http::header::CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            match is_grpc && serves == Serves::Clients {
                true => grpc::call(server, request).await,
                false => {
                    let uri = request.uri();
                    Ok(web::answer(
                        &server,
                        is_local,
                        request.method(),
                        uri.path(),
                        uri.query(),
                    ))
                }
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let watched = graceful.lock().as_ref().map(|graceful| graceful.watch(connection));
    // A connection that breaks is its client's business.
    if let Some(connection) = watched {
        let _ = connection.await;
    }
}
