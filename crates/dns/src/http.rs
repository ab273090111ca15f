//! /metrics, /ready and /health, each at an address of its own, in plain HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use orlop_base::Shutdown;
use tokio::net::TcpListener;

const CONNECTIONS_MAX: usize = 100;
const HEADERS: Duration = Duration::from_secs(5);
const PLAIN: &str = "text/plain; charset=utf-8";

/// The code and the text of a path; none if there is nothing.
pub type Pages = Arc<dyn Fn(&str) -> Option<(StatusCode, String)> + Send + Sync>;

/// Serves until the shutdown. Gives the address once it listens.
pub async fn start(address: SocketAddr, pages: Pages, shutdown: Shutdown) -> Result<SocketAddr, String> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|e| format!("{address}: {e}"))?;
    let bound = listener.local_addr().map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        let stop = shutdown.clone();
        let take = |stream, _| {
            let (pages, stop) = (pages.clone(), stop.clone());
            async move {
                let service = service_fn(move |request| {
                    let response = respond(&request, &pages);
                    async move { Ok::<_, Infallible>(response) }
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    _ = connection => {}
                    _ = stop.wait() => {}
                }
            }
        };
        let failed = |error| tracing::warn!("a connection could not be accepted: {error}");
        orlop_base::accept(listener, CONNECTIONS_MAX, &shutdown, take, failed).await;
    });
    Ok(bound)
}

fn respond(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let (code, text) = match *request.method() {
        Method::GET | Method::HEAD => {
            let nothing = || (StatusCode::NOT_FOUND, "404 page not found\n".to_string());
            pages(request.uri().path()).unwrap_or_else(nothing)
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n".to_string()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(PLAIN));
    response
}
