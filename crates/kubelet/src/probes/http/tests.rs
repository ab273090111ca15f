use super::*;
use std::convert::Infallible;

use http_body_util::Full;
use hyper::service::service_fn;
use tokio::net::TcpListener;

const PLENTY: Duration = Duration::from_secs(20);

/// A server whose answer says what it was asked; the path decides what it does.
async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(answer);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name| {
        request
            .headers()
            .get(name)
            .map(|v: &HeaderValue| v.to_str().unwrap().to_string())
    };
    let path = request.uri().path();
    let (status, location) = match path {
        "/fail" => (500, None),
        "/teapot" => (418, None),
        "/away" => (302, Some("http://example.invalid/x".to_string())),
        "/here" => (301, Some("/ok".to_string())),
        "/near" => (307, Some("ok".to_string())),
        "/round" => (302, Some("/round".to_string())),
        "/nowhere" => (302, None),
        "/hang" => std::future::pending().await,
        "/headers" => {
            let want = (
                Some("kube-probe/1.36".to_string()),
                Some("*/*".to_string()),
                Some("b".to_string()),
            );
            let got = (header("user-agent"), header("accept"), header("x-a"));
            (if got == want { 200 } else { 500 }, None)
        }
        "/host" => (
            if header("host").as_deref() == Some("other.example") {
                200
            } else {
                500
            },
            None,
        ),
        "/query" => (
            if request.uri().query() == Some("a=b%20c") {
                204
            } else {
                500
            },
            None,
        ),
        _ => (200, None),
    };
    let mut response = Response::builder().status(status);
    if let Some(location) = location {
        response = response.header("Location", location);
    }
    Ok(response.body(Full::new(Bytes::from("the body"))).unwrap())
}

fn action(port: u16, path: &str, headers: &[(&str, &str)]) -> HTTPGetAction {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
        .collect();
    orlop_api::types::from_value(serde_json::json!({"port": port, "path": path, "httpHeaders": headers})).unwrap()
}

#[tokio::test]
async fn answers_by_status_and_redirect() {
    let port = server().await;
    let container = Container::default();
    let failure = |text: &str| ProbeResult::Failure(text.to_string());
    let ended = ProbeResult::Warning("Probe terminated redirects, Response body: the body".to_string());
    for (path, headers, want) in [
        ("/ok", &[][..], ProbeResult::Success),
        ("ok", &[], ProbeResult::Success),
        ("/fail", &[], failure("HTTP probe failed with statuscode: 500")),
        ("/teapot", &[], failure("HTTP probe failed with statuscode: 418")),
        ("/away", &[], ended.clone()),
        ("/nowhere", &[], ended.clone()),
        ("/here", &[], ProbeResult::Success),
        ("/near", &[], ProbeResult::Success),
        (
            "/round",
            &[],
            failure(&format!(
                "Get \"http://127.0.0.1:{port}/round\": stopped after 10 redirects"
            )),
        ),
        ("/headers", &[("X-A", "b")], ProbeResult::Success),
        (
            "/headers",
            &[("X-A", "b"), ("user-agent", "x")],
            failure("HTTP probe failed with statuscode: 500"),
        ),
        ("/host", &[("Host", "other.example")], ProbeResult::Success),
        ("/query?a=b c", &[], ProbeResult::Success),
        (
            "/x",
            &[("a b", "c")],
            ProbeResult::unknown("net/http: invalid header field name \"a b\""),
        ),
    ] {
        let got = probe(&action(port, path, headers), &container, "127.0.0.1", PLENTY).await;
        assert_eq!(got, want, "{path} {headers:?}");
    }
}

#[tokio::test]
async fn connections_that_fail() {
    let port = server().await;
    let container = Container::default();
    let soon = Duration::from_millis(50);
    let url = format!("http://127.0.0.1:{port}/hang");
    let want = format!("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
    let got = probe(&action(port, "/hang", &[]), &container, "127.0.0.1", soon).await;
    assert_eq!(got, ProbeResult::Failure(want));

    let mut https = action(port, "/", &[]);
    https.scheme = Some("HTTPS".to_string());
    let want = format!("Get \"https://127.0.0.1:{port}/\": http: server gave HTTP response to HTTPS client");
    assert_eq!(
        probe(&https, &container, "127.0.0.1", PLENTY).await,
        ProbeResult::Failure(want)
    );

    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{closed}");
    let want = format!("Get \"http://{address}/\": dial tcp {address}: connect: connection refused");
    let got = probe(&action(closed, "/", &[]), &container, "127.0.0.1", PLENTY).await;
    assert_eq!(got, ProbeResult::Failure(want));

    // Takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    tokio::spawn(async move { drop(silent.accept().await) });
    let got = probe(&action(port, "/", &[]), &container, "127.0.0.1", PLENTY).await;
    assert!(
        matches!(&got, ProbeResult::Failure(text) if text.contains(": EOF") || text.contains("reset")),
        "{got:?}"
    );
}

#[tokio::test]
async fn certificates_are_not_verified() {
    let key = rcgen::generate_simple_self_signed(vec!["somebody.else".to_string()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            rustls_pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        let http = hyper::server::conn::http1::Builder::new();
        let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
    });
    let mut https = action(port, "/ok", &[]);
    https.scheme = Some("HTTPS".to_string());
    assert_eq!(
        probe(&https, &Container::default(), "127.0.0.1", PLENTY).await,
        ProbeResult::Success
    );
}

#[tokio::test]
async fn hooks_only_have_to_answer() {
    let port = server().await;
    let container = Container::default();
    for path in ["/ok", "/fail", "/away"] {
        let mut hooked = action(port, path, &[]);
        hook(&hooked, &container, "127.0.0.1", PLENTY).await.unwrap();
        hooked.scheme = Some("HTTPS".to_string());
        let plain = hook(&hooked, &container, "127.0.0.1", PLENTY).await;
        plain.expect("plain HTTP will do");
    }
    let silent = hook(
        &action(port, "/hang", &[]),
        &container,
        "127.0.0.1",
        Duration::from_millis(50),
    )
    .await;
    assert!(silent.unwrap_err().to_string().contains("context deadline exceeded"));
}

#[test]
fn where_redirects_lead() {
    let (from, _) = request(&action(8080, "/a/b?c", &[]), &Container::default(), "::1", USER_AGENT).unwrap();
    assert_eq!(from.url(), "http://[::1]:8080/a/b?c");
    for (location, want) in [
        ("/x", Some("http://[::1]:8080/x")),
        ("x", Some("http://[::1]:8080/a/x")),
        ("//other/x", Some("http://other:80/x")),
        ("https://other", Some("https://other:443/")),
        ("https://[::2]:1/y?z", Some("https://[::2]:1/y?z")),
        ("ftp://x", None),
    ] {
        let got = from.redirected(location).map(|(target, _)| target.url());
        assert_eq!(got.as_deref(), want, "{location}");
    }
}
