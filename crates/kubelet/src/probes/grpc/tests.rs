use super::*;
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use tokio::net::TcpListener;

/// A server of one method that answers with this status, or refuses with this code.
async fn server(answer: Result<i32, (u8, &'static str)>) -> i32 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: ::http::Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let agent = request.headers()["user-agent"].to_str().unwrap().to_string();
            assert!(agent.starts_with("kube-probe/1.36"), "{agent}");
            let (code, message, body) = match answer {
                Ok(status) => (0, "", vec![0, 0, 0, 0, 2, 8, u8::try_from(status).unwrap()]),
                Err((code, message)) => (code, message, Vec::new()),
            };
            let mut trailers = ::http::HeaderMap::new();
            trailers.insert("grpc-status", ::http::HeaderValue::from(u16::from(code)));
            trailers.insert("grpc-message", ::http::HeaderValue::from_static(message));
            let frames = [Frame::data(Bytes::from(body)), Frame::trailers(trailers)];
            let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Infallible>)));
            let response = ::http::Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(body).unwrap())
        });
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    });
    i32::from(port)
}

#[tokio::test]
async fn the_health_protocol() {
    let failure = |text: &str| ProbeResult::Failure(text.to_string());
    for (answer, want) in [
        (Ok(1), ProbeResult::Success),
        (Ok(2), failure(r#"service unhealthy (responded with "NOT_SERVING")"#)),
        (Ok(0), failure(r#"service unhealthy (responded with "UNKNOWN")"#)),
        (
            Err((12, "unknown service")),
            failure(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service",
            ),
        ),
        (
            Err((5, "no such")),
            failure("error: health rpc probe failed: rpc error: code = NotFound desc = no such"),
        ),
    ] {
        let port = server(answer).await;
        let action = GRPCAction { port, service: None };
        assert_eq!(
            probe("127.0.0.1", &action, Duration::from_secs(20)).await,
            want,
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn nobody_there() {
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let action = GRPCAction {
        port: i32::from(port),
        service: Some("s".to_string()),
    };
    let address = format!("127.0.0.1:{port}");
    let want = format!("timeout: failed to connect service \"{address}\" within 300ms: context deadline exceeded");
    assert_eq!(
        probe("127.0.0.1", &action, Duration::from_millis(300)).await,
        ProbeResult::Failure(want)
    );
}
