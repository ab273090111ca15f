//! Pages without TLS, for the ports that are plain HTTP in Kubernetes, too: health checks of load balancers and of the
//! proxy, and metrics on loopback.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use orlop_base::{Connections, Limits, Peer, Shutdown};
use tokio::net::{TcpListener, TcpStream};

use crate::Pages;

const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves GET and HEAD until the shutdown.
pub async fn serve(listener: TcpListener, pages: Arc<dyn Pages>, shutdown: Shutdown) {
    let connections = Connections::new(Limits::of(CONNECTIONS_MAX));
    let take = |stream: TcpStream, peer: Arc<Peer>| {
        let (pages, shutdown) = (pages.clone(), shutdown.clone());
        async move {
            let address = peer.address;
            let service = service_fn(move |request: Request<Incoming>| {
                let _busy = peer.request();
                let response = respond(&request, &*pages);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                ended = connection => {
                    if let Err(e) = ended {
                        tracing::debug!(peer = %address, err = %e, "connection failed");
                    }
                }
                _ = shutdown.wait() => {}
            }
        }
    };
    let failed = |e| tracing::warn!(err = %e, "failed to accept connection");
    orlop_base::accept(listener, &connections, &shutdown, take, failed).await;
}

/// The page for a request.
pub(crate) fn respond<B>(request: &Request<B>, pages: &dyn Pages) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return crate::page_response(405, crate::PLAIN, "only GET is served here\n");
    }
    let uri = request.uri();
    let Some(page) = pages.show(uri.path(), uri.query().unwrap_or("")) else {
        return crate::page_response(404, crate::PLAIN, "404 page not found\n");
    };
    let mut response = crate::page_response(page.code, page.media_type, page.body);
    for (name, value) in page.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::Page;

    struct HealthPage;

    impl Pages for HealthPage {
        fn show(&self, path: &str, _: &str) -> Option<Page> {
            (path == "/healthz").then(|| {
                let mut page = Page::plain(503, "no\n".to_string());
                page.headers.push(("x-weight", "0".to_string()));
                page
            })
        }
    }

    #[tokio::test]
    async fn pages_with_their_codes_and_headers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::default();
        let server = tokio::spawn(serve(listener, Arc::new(HealthPage), shutdown.clone()));
        for (request, first, wanted) in [
            ("GET /healthz", "HTTP/1.1 503", "x-weight: 0"),
            ("GET /other", "HTTP/1.1 404", "not found"),
            ("POST /healthz", "HTTP/1.1 405", "only GET"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(first) && answer.contains(wanted), "{answer}");
        }
        shutdown.trigger();
        server.await.unwrap();
    }
}
