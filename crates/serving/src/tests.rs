use http_body_util::BodyExt;
use parking_lot::Mutex;

use serde_json::{Value, json};

use super::*;

/// Knows the token `good` as ann, who may see /metrics; counts what it is asked.
fn cluster(log: &Arc<Mutex<Vec<String>>>) -> Api {
    let log = log.clone();
    let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
        let log = log.clone();
        async move {
            let path = request.uri().path().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let spec = &body["spec"];
            let (code, answer) = match path.rsplit('/').next().unwrap() {
                "tokenreviews" if spec["token"] == "good" => {
                    let user = json!({"username": "ann", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}});
                    (201, json!({"status": {"authenticated": true, "user": user}}))
                }
                "tokenreviews" => (201, json!({"status": {"authenticated": false}})),
                "subjectaccessreviews" => {
                    let asked = &spec["nonResourceAttributes"];
                    log.lock()
                        .push(format!("{} {} {}", spec["user"], spec["groups"], asked["path"]));
                    let allowed = spec["user"] == "ann" && *asked == json!({"path": "/metrics", "verb": "get"});
                    (201, json!({"status": {"allowed": allowed}}))
                }
                _ => (404, json!({"reason": "NotFound", "message": "none"})),
            };
            let response = Response::builder()
                .status(code)
                .body(Full::new(Bytes::from(answer.to_string())));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Api::in_process(service, "test")
}

/// Ready once told to be.
#[derive(Default)]
struct TestPages {
    ready: std::sync::atomic::AtomicBool,
}

impl Pages for TestPages {
    fn show(&self, path: &str, query: &str) -> Option<Page> {
        let passes = self.ready.load(std::sync::atomic::Ordering::Relaxed);
        let checks = [
            health::Check {
                name: "ping",
                at: &["healthz", "livez"],
                passes: true,
            },
            health::Check {
                name: "sync",
                at: &["readyz"],
                passes,
            },
        ];
        match path {
            "/metrics" => Some(Page::metrics("up 1\n".to_string())),
            "/configz" => Some(Page::json("{}".into())),
            _ => health::respond(&checks, path, query).map(|(code, text)| Page::plain(code, text)),
        }
    }
}

fn server(log: &Arc<Mutex<Vec<String>>>, pages: Arc<dyn Pages>) -> Server {
    Server {
        access: Access::new(cluster(log), cluster(log), ALWAYS_ALLOWED.map(str::to_string).to_vec()),
        clients: None,
        pages,
        clock: Clock::manual("2026-11-16T00:00:00Z".parse().unwrap()),
        shutdown: Shutdown::default(),
    }
}

async fn get(server: &Server, path: &str, token: &str, certified: &CertificateIdentity) -> (u16, String) {
    let mut request = Request::get(path);
    if !token.is_empty() {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = server.respond(&request.body(()).unwrap(), certified).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn who_may_see_what() {
    let log = Arc::default();
    let pages = Arc::new(TestPages::default());
    let server = server(&log, pages.clone());
    let admin = |valid| {
        let user = reviews::User {
            name: "admin".to_string(),
            groups: vec!["system:masters".to_string()],
            ..reviews::User::default()
        };
        CertificateIdentity::User { user, valid }
    };
    let (admin, expired) = (admin(0..=i64::MAX), admin(0..=1));
    let (none, invalid) = (CertificateIdentity::Nobody, CertificateIdentity::Invalid);
    let unauthorized = || "Unauthorized".to_string();
    let forbidden = |user: &str, path: &str| format!("forbidden: User \\\"{user}\\\" cannot get path \\\"{path}\\\"");
    let cases = [
        ("/healthz", "", &none, 200, "ok".to_string()),
        (
            "/livez?verbose",
            "",
            &none,
            200,
            "[+]ping ok\nlivez check passed\n".to_string(),
        ),
        ("/readyz", "", &none, 500, "[-]sync failed".to_string()),
        ("/metrics", "", &none, 403, forbidden("system:anonymous", "/metrics")),
        ("/metrics", "bad", &none, 401, "Unauthorized".to_string()),
        ("/healthz", "bad", &none, 401, "Unauthorized".to_string()),
        ("/metrics", "good", &none, 200, "up 1\n".to_string()),
        ("/configz", "good", &none, 403, forbidden("ann", "/configz")),
        ("/configz", "", &admin, 200, "{}".to_string()),
        // A bad certificate is no obstacle to a good token, and worth nothing by itself.
        ("/metrics", "good", &invalid, 200, "up 1\n".to_string()),
        ("/metrics", "good", &expired, 200, "up 1\n".to_string()),
        ("/healthz", "", &invalid, 401, unauthorized()),
        ("/configz", "", &expired, 401, unauthorized()),
        ("/configz", "bad", &expired, 401, unauthorized()),
        ("/none", "", &admin, 404, "404 page not found\n".to_string()),
    ];
    for (path, token, certified, code, text) in cases {
        let answer = get(&server, path, token, certified).await;
        assert_eq!(answer.0, code, "{path} {token}: {}", answer.1);
        assert!(answer.1.contains(&text), "{path} {token}: {}", answer.1);
    }
    // Asked once each: answers are remembered for a while.
    let asked = [
        r#""system:anonymous" ["system:unauthenticated"] "/metrics""#,
        r#""ann" ["dev"] "/metrics""#,
        r#""ann" ["dev"] "/configz""#,
    ];
    assert_eq!(*log.lock(), asked);
    server.clock.advance(Duration::from_secs(11));
    assert_eq!(get(&server, "/metrics", "good", &none).await.0, 200);
    assert_eq!(log.lock().len(), 4);
    pages.ready.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(get(&server, "/readyz", "", &none).await, (200, "ok".to_string()));
}

#[tokio::test]
async fn the_port_speaks_tls() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let shutdown = Shutdown::default();
    let options = Options {
        bind: IpAddr::from([127, 0, 0, 1]),
        port: 0,
        certificate: Certificate::Temporary,
        always_allow_paths: ALWAYS_ALLOWED.map(str::to_string).to_vec(),
        authentication: cluster(&Arc::default()),
        authorization: cluster(&Arc::default()),
        name: "it",
        pages: Arc::new(TestPages::default()),
        clock: Clock::System,
        shutdown: shutdown.clone(),
    };
    let address = start(options).await.unwrap();
    // No trust in a certificate that signs itself: the handshake says what is spoken here.
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let refused = connector
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.ends_with("\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"),
        "{answer}"
    );
    shutdown.trigger();
}
