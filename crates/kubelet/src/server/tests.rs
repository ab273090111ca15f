//! The server over real connections, with a runtime that has nothing in it.

use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::*;
use crate::node::quiet::QuietRuntime;

struct NoPods;

impl Pods for NoPods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        let pod =
            json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}});
        vec![Arc::new(orlop_api::types::from_value(pod).unwrap())]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods().into_iter().find(|_| (namespace, name) == ("d", "p"))
    }
}

struct Running {
    address: SocketAddr,
    directory: tempfile::TempDir,
    shutdown: Shutdown,
}

async fn running(flags: &[(&'static str, Value)]) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let shutdown = Shutdown::default();
    let runtime: Arc<dyn Runtime> = Arc::new(QuietRuntime);
    let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
    let (listener, address) = bind("127.0.0.1".parse().unwrap(), 0).await.unwrap();
    start(Options {
        listener,
        certificate: Certificate::Directory {
            directory: directory.path().to_path_buf(),
            names,
        },
        client_authority: None,
        api: None,
        config: Arc::new(crate::config::parse(None, flags).unwrap()),
        node_name: "n1".into(),
        machine: Machine::default(),
        runtime: runtime.clone(),
        pods: Arc::new(NoPods),
        hosted: HostedPods::none(),
        addresses: vec![],
        stats: Gatherer::new(crate::stats::Options {
            runtime,
            node_name: "n1".into(),
            root_dir: "/".into(),
            pod_logs_dir: "/nowhere".into(),
            cgroups: None,
            volumes: crate::stats::VolumeSizes::new(Arc::new(|_| Box::pin(async { vec![] })), None, Clock::System),
            hosted: HostedPods::none(),
            clock: Clock::System,
        }),
        metrics: Arc::default(),
        probe_metrics: Arc::new(|| "probes 1\n".to_string()),
        health: Health::default(),
        clock: Clock::System,
        shutdown: shutdown.clone(),
    })
    .unwrap();
    Running {
        address,
        directory,
        shutdown,
    }
}

impl Running {
    async fn ask(&self, method: Method, path: &str) -> (u16, String) {
        let pem = std::fs::read(self.directory.path().join("kubelet.crt")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build();
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
        let uri = format!("https://localhost:{}{path}", self.address.port());
        let request = Request::builder().method(method).uri(uri).body(Empty::new()).unwrap();
        let response = client.request(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }
}

#[tokio::test]
async fn pages_for_those_who_may() {
    let lenient = [
        ("authorization.mode", json!("AlwaysAllow")),
        ("authentication.anonymous.enabled", json!(true)),
    ];
    let server = running(&lenient).await;
    let cases = [
        ("/healthz", 200, "ok"),
        ("/healthz?verbose", 200, "[+]syncloop ok\nhealthz check passed\n"),
        ("/healthz/ping", 200, "ok"),
        ("/healthz/nothing", 404, "404 page not found"),
        ("/pods", 200, "\"name\":\"p\""),
        ("/pods/", 200, "PodList"),
        ("/runningpods/", 200, "\"items\":[]"),
        ("/stats/summary", 200, "\"nodeName\":\"n1\""),
        ("/stats/summary?only_cpu_and_memory=true", 200, "usageCoreNanoSeconds"),
        ("/metrics", 200, "kubelet_http_requests_total{"),
        ("/metrics/probes", 200, "probes 1\n"),
        ("/metrics/resource", 200, "node_memory_working_set_bytes"),
        ("/metrics/cadvisor", 200, "machine_cpu_cores"),
        ("/configz", 200, "\"kubeletconfig\":{"),
        ("/logs/../etc/passwd", 404, "404 page not found"),
        ("/containerLogs/d/x/c", 404, "pod \"x\" does not exist"),
        ("/containerLogs/d/p/x", 404, "container \"x\" not found in pod \"p\""),
        (
            "/containerLogs/d/p/c",
            400,
            "container \"c\" in pod \"p\" is not available",
        ),
        ("/containerLogs/d/p/c?tailLines=-1", 422, "Invalid request."),
        (
            "/exec/d/p/c?command=ls",
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/d/p/c?command=ls&output=1", 500, "container not found (\"c\")"),
        ("/exec/d/p/wrong/c?command=ls&output=1", 404, "pod does not exist"),
        ("/attach/d/x/c?output=1", 404, "pod does not exist"),
        ("/portForward/d/p", 500, "failed to find sandbox for pod \"p_d\""),
        ("/checkpoint/d/p/c", 404, "404 page not found"),
        ("/", 404, "404 page not found"),
    ];
    for (path, code, part) in cases {
        let (found, body) = server.ask(Method::GET, path).await;
        assert_eq!(found, code, "{path}: {body}");
        assert!(body.contains(part), "{path}: {body}");
    }
    assert_eq!(server.ask(Method::DELETE, "/pods").await.0, 405);
    assert_eq!(server.ask(Method::POST, "/run/d/p/c?cmd=ls").await.0, 500);
    server.shutdown.trigger();
}

#[tokio::test]
async fn strangers_get_nothing() {
    let server = running(&[]).await;
    for path in ["/healthz", "/pods", "/exec/d/p/c?command=ls&output=1", "/nothing"] {
        assert_eq!(
            server.ask(Method::GET, path).await,
            (401, "Unauthorized".to_string()),
            "{path}"
        );
    }
    server.shutdown.trigger();
}
