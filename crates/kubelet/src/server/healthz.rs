//! The healthz endpoint (port 10248): unauthenticated, for probes on this node.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use orlop_base::{Connections, Limits, Peer, Shutdown};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS_MAX: usize = 32;

/// Serves `/healthz` until the shutdown.
pub async fn serve(listener: TcpListener, shutdown: Shutdown) {
    let connections = Connections::new(Limits::of(CONNECTIONS_MAX));
    let take = |stream: TcpStream, peer: Arc<Peer>| async move {
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = peer.request();
            async move {
                let _busy = busy;
                let (code, text) = match request.uri().path() {
                    "/healthz" | "/healthz/" => (200, "ok"),
                    _ => (404, "404 page not found\n"),
                };
                let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
                *response.status_mut() = http::StatusCode::from_u16(code).expect("a code of HTTP");
                Ok::<_, Infallible>(response)
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10));
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    };
    let failed = |e| tracing::warn!(err = %e, "failed to accept connection");
    orlop_base::accept(listener, &connections, &shutdown, take, failed).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn it_says_ok() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::default();
        tokio::spawn(serve(listener, shutdown.clone()));
        for (path, wanted) in [("/healthz", "200 OK"), ("/pods", "404 Not Found")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {wanted}")), "{answer}");
        }
        shutdown.trigger();
    }
}
