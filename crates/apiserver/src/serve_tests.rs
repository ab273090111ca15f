//! Clients that misbehave, at a whole server in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use orlop_base::metrics::exposition;
use orlop_base::{Clock, Limits};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower::Service;

use crate::respond::Body;
use crate::{Config, Running, in_process};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start(directory: &tempfile::TempDir, set: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::new(directory.path().join("data"));
    config.port = 0;
    set(&mut config);
    crate::start(config, Clock::System).await.unwrap()
}

/// A TLS connection of nobody in particular.
async fn connect(running: &Running, protocol: &[u8]) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(running.pki.ca.certificate.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(("127.0.0.1", running.address.port())).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Resolves when the server has hung up.
async fn hung_up(mut stream: impl AsyncReadExt + Unpin) {
    let mut rest = vec![];
    let _ = stream.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn clients_that_say_nothing_are_hung_up_on_at_every_stage() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, |config| {
        config.connections = Limits {
            first_request: Duration::from_millis(200),
            ..Limits::of(100)
        };
    })
    .await;
    let tcp = TcpStream::connect(("127.0.0.1", running.address.port())).await.unwrap();
    let after_tls = connect(&running, b"http/1.1").await;
    let mut half_a_head = connect(&running, b"http/1.1").await;
    half_a_head.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.unwrap();
    let mut after_a_request = connect(&running, b"http/1.1").await;
    after_a_request
        .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    // The preface of HTTP/2 and empty settings, then no stream.
    let mut after_preface = connect(&running, b"h2").await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    after_preface.write_all(preface).await.unwrap();
    let all = async {
        tokio::join!(
            hung_up(tcp),
            hung_up(after_tls),
            hung_up(half_a_head),
            hung_up(after_a_request),
            hung_up(after_preface),
        )
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), all).await;
    assert!(ended.is_ok(), "a silent client is still connected");
    running.server.connections.gone().await;
    assert_eq!(running.server.connections.counts().expired, 5);
    running.stop().await;
}

/// Asks as an administrator from inside the process.
async fn ask(
    running: &Running,
    request: Request<impl http_body::Body<Data = Bytes, Error: Into<crate::connect::BodyError>> + Send + 'static>,
) -> Response<Body> {
    let mut service = in_process::service(running.server.clone(), "admin", &["system:masters"]);
    service.call(request).await.unwrap()
}

async fn status_of(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

/// A body that nobody can read.
fn broken() -> Result<Frame<Bytes>, std::io::Error> {
    panic!("a test's own")
}

#[tokio::test]
async fn a_panic_is_answered_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, |_| {}).await;
    for method in ["GET", "POST"] {
        let frames = futures::stream::once(async { broken() });
        let request = Request::builder()
            .method(method)
            .uri(MAPS)
            .body(StreamBody::new(frames));
        let response = ask(&running, request.unwrap()).await;
        assert_eq!(response.status(), 500);
        let status = status_of(response).await;
        assert_eq!(
            (&status["kind"], &status["reason"]),
            (&json!("Status"), &json!("InternalError"))
        );
    }
    let response = ask(
        &running,
        Request::get("/metrics").body(Full::<Bytes>::default()).unwrap(),
    )
    .await;
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    let counted = text
        .lines()
        .filter(|line| line.starts_with("apiserver_request_terminations_total{") && line.contains("code=\"500\""));
    assert_eq!(counted.count(), 2, "one for each verb");
    running.stop().await;
}

/// On one thread nobody else would get a turn while a large body is taken apart on it.
#[tokio::test]
async fn large_requests_leave_the_thread_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, |_| {}).await;
    let requirement = r#"{"key":"a","operator":"In","values":["b"]}"#;
    let body = format!(
        r#"{{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{{"resourceAttributes":{{"verb":"get","resource":"pods","fieldSelector":{{"requirements":[{}]}}}}}}}}"#,
        vec![requirement; 20_000].join(",")
    );
    let turns = Arc::new(AtomicUsize::new(0));
    let other = tokio::spawn({
        let turns = turns.clone();
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    tokio::task::yield_now().await;
    let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let before = turns.load(Ordering::Relaxed);
    let response = ask(&running, request).await;
    let others = turns.load(Ordering::Relaxed) - before;
    assert!(response.status().as_u16() < 500, "{}", response.status());
    assert!(others > 100, "others had {others} turns meanwhile");
    other.abort();
    running.stop().await;
}

#[tokio::test]
async fn a_write_is_done_and_written_down_though_nobody_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let running = start(&directory, |config| config.audit_log = Some(log.clone())).await;
    let names: Vec<String> = (0..20).map(|i| format!("left-{i}")).collect();
    for name in &names {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let request = Request::post(MAPS)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(object.to_string())))
            .unwrap();
        // It begins, and whoever asked is gone.
        let mut answer = Box::pin(ask(&running, request));
        assert!(futures::poll!(&mut answer).is_pending());
    }
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ended = |lines: &[Value], name: &str| {
        let of = |line: &&Value| line["objectRef"]["name"] == name;
        let stages: Vec<String> = lines.iter().filter(of).map(|line| line["stage"].to_string()).collect();
        stages == ["\"RequestReceived\"", "\"ResponseComplete\""]
    };
    let all = async {
        while !names.iter().all(|name| ended(&lines(), name)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), all).await;
    assert!(done.is_ok(), "{:#?}", lines());
    for name in &names {
        let request = Request::get(format!("{MAPS}/{name}"))
            .body(Full::<Bytes>::default())
            .unwrap();
        assert_eq!(ask(&running, request).await.status(), 200, "{name}");
    }
    running.stop().await;
}

#[tokio::test]
async fn each_metric_is_what_its_type_says() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, |_| {}).await;
    let get = |path: &str| Request::get(path).body(Full::<Bytes>::default()).unwrap();
    let watch = ask(&running, get("/api/v1/pods?watch=true")).await;
    for path in [MAPS, "/version", "/api/v1/namespaces/default/pods/p/no%22ne"] {
        ask(&running, get(path)).await;
    }
    let text = ask(&running, get("/metrics"))
        .await
        .into_body()
        .collect()
        .await
        .unwrap();
    drop(watch);
    let families = exposition::parse(std::str::from_utf8(&text.to_bytes()).unwrap()).unwrap();
    for (name, family) in &families {
        assert!(family.help.ends_with('.'), "{name}: {}", family.help);
    }
    let count = |name: &str| families[name].samples.len();
    assert!(count("apiserver_request_total") >= 3);
    assert!(count("apiserver_longrunning_requests") >= 1);
    assert_eq!(families["apiserver_request_duration_seconds"].kind, "histogram");
    let syncs = &families["etcd_disk_wal_fsync_duration_seconds"];
    assert!(syncs.samples.iter().any(|s| s.suffix == "_count" && s.value > 0.0));
    running.stop().await;
}
