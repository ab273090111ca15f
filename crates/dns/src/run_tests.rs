//! The whole of it against an API server in memory.

use std::net::SocketAddr;

use ::http::Method;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use orlop_base::{Clock, Shutdown};
use orlop_client::testing::{Server, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::testing::{Manner, PATIENCE, Resolver, addresses, ask_udp, query};
use crate::{Options, Publish, Running};

fn server() -> Server {
    Server::new(Clock::manual("2026-01-01T00:00:00Z".parse().unwrap()), 1)
}

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const DNS: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
const DNS_SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns-n1";
const STUBS: &str = "/api/v1/namespaces/kube-system/configmaps/kube-dns";

fn web(addresses: &[&str]) -> Value {
    let endpoints: Vec<_> = addresses.iter().map(|a| json!({"addresses": [a]})).collect();
    json!({"metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 80}]})
}

struct Started {
    cluster: Server,
    running: Running,
    shutdown: Shutdown,
    resolv_conf: tempfile::NamedTempFile,
}

async fn start(cluster: Server, resolver: &Resolver) -> Started {
    cluster.put("/api/v1/namespaces/default", json!({"metadata": {"name": "default"}}));
    let spec = json!({"clusterIP": "None"});
    cluster.put(
        &format!("{SERVICES}/web"),
        json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}),
    );
    cluster.put(&format!("{SLICES}/web-1"), web(&["10.244.0.1"]));
    // The host's resolvers listen on port 53; the test's come by the ConfigMap.
    let stubs = json!({"upstreamNameservers": format!("[\"{}\"]", resolver.address)});
    cluster.put(
        STUBS,
        json!({"metadata": {"name": "kube-dns", "namespace": "kube-system"}, "data": stubs}),
    );
    let shutdown = Shutdown::default();
    let resolv_conf = tempfile::NamedTempFile::new().unwrap();
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let options = Options {
        api: cluster.api(),
        cluster_domain: "cluster.local".into(),
        clients: vec![],
        service_ranges: vec!["10.96.0.0/12".parse().unwrap()],
        pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
        listen: vec!["0.0.0.0:0".parse().unwrap()],
        resolv_conf: resolv_conf.path().to_path_buf(),
        metrics: Some(local),
        ready: Some(local),
        health: Some(local),
        publish: Some(Publish {
            node: "n1".into(),
            addresses: vec!["192.0.2.77".parse().unwrap()],
            service_ips: vec!["10.96.0.10".parse().unwrap()],
        }),
        clock: Clock::manual("2026-01-01T00:00:01Z".parse().unwrap()),
        shutdown: shutdown.clone(),
    };
    let running = crate::run(options).await.unwrap();
    Started {
        cluster,
        running,
        shutdown,
        resolv_conf,
    }
}

impl Started {
    fn address(&self) -> SocketAddr {
        SocketAddr::new("127.0.0.1".parse().unwrap(), self.running.listening[0].port())
    }

    async fn ask(&self, name: &str) -> (ResponseCode, Vec<String>) {
        let answer = ask_udp(self.address(), &query(name, RecordType::A)).await;
        let mut found = addresses(&answer);
        found.sort();
        (answer.metadata.response_code, found)
    }

    async fn until(&self, name: &str, expected: &[&str]) {
        eventually(name, async || self.ask(name).await.1 == expected).await;
    }
}

async fn page(address: Option<SocketAddr>, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address.unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn answers_follow_the_cluster() {
    let resolver = Resolver::start(Manner::Well).await;
    let started = start(server(), &resolver).await;
    assert!(tokio::time::timeout(PATIENCE, started.running.readied()).await.unwrap());
    let web_name = "web.default.svc.cluster.local.";
    assert_eq!(
        started.ask(web_name).await,
        (ResponseCode::NoError, vec!["10.244.0.1".into()])
    );
    let slice = format!("{SLICES}/web-1");
    started.cluster.put(&slice, web(&["10.244.0.1", "10.244.0.2"]));
    started.until(web_name, &["10.244.0.1", "10.244.0.2"]).await;
    started.cluster.remove(&slice);
    started.until(web_name, &[]).await;
    assert_eq!(started.ask(web_name).await.0, ResponseCode::NXDomain);
    assert_eq!(started.ask("x.svc.cluster.local.").await.0, ResponseCode::NXDomain);
    started
        .cluster
        .put("/api/v1/namespaces/x", json!({"metadata": {"name": "x"}}));
    eventually("the namespace is known", async || {
        started.ask("x.svc.cluster.local.").await.0 == ResponseCode::NoError
    })
    .await;
    let metrics = page(started.running.metrics, "/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    let programming =
        "coredns_kubernetes_dns_programming_duration_seconds_count{service_kind=\"headless_with_selector\"} 1\n";
    assert!(metrics.contains(programming), "{metrics}");
    started.shutdown.trigger();
    started.running.stopped().await;
}

#[tokio::test]
async fn not_ready_before_all_is_known() {
    let cluster = server();
    cluster.refuse_watches(true);
    let resolver = Resolver::start(Manner::Well).await;
    let started = start(cluster, &resolver).await;
    let running = &started.running;
    assert_eq!(
        started.ask("web.default.svc.cluster.local.").await.0,
        ResponseCode::ServFail
    );
    assert!(page(running.ready, "/ready").await.starts_with("HTTP/1.1 503"));
    assert!(page(running.health, "/health").await.starts_with("HTTP/1.1 200"));
    assert!(page(running.health, "/other").await.starts_with("HTTP/1.1 404"));
    assert!(!running.is_ready());
    assert_eq!(started.cluster.get(DNS), None, "pods are not sent here yet");
    started.cluster.refuse_watches(false);
    eventually("it is ready", async || running.is_ready()).await;
    assert!(page(running.ready, "/ready").await.starts_with("HTTP/1.1 200"));
    assert_eq!(
        started.ask("web.default.svc.cluster.local.").await.0,
        ResponseCode::NoError
    );
}

#[tokio::test]
async fn the_service_and_the_slice_are_kept() {
    let resolver = Resolver::start(Manner::Well).await;
    let started = start(server(), &resolver).await;
    let cluster = &started.cluster;
    eventually("the slice is there", async || cluster.get(DNS_SLICE).is_some()).await;
    assert_eq!(cluster.get(DNS).unwrap()["spec"]["clusterIP"], "10.96.0.10");
    let slice = cluster.get(DNS_SLICE).unwrap();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.77"]));
    assert_eq!(slice["ports"][0]["port"], started.running.listening[0].port());
    // Others' doings are undone, and what is not ours to say stays.
    cluster.remove(DNS_SLICE);
    eventually("the slice is there", async || cluster.get(DNS_SLICE).is_some()).await;
    let mut changed = cluster.get(DNS).unwrap();
    changed["spec"]["ports"][0]["port"] = json!(54);
    changed["metadata"]["labels"]["own"] = json!("x");
    cluster.put(DNS, changed);
    eventually("the port is ours again", async || {
        cluster.get(DNS).unwrap()["spec"]["ports"][0]["port"] == 53
    })
    .await;
    assert_eq!(cluster.get(DNS).unwrap()["metadata"]["labels"]["own"], "x");
    // The zone has it too, of course.
    started
        .until("kube-dns.kube-system.svc.cluster.local.", &["10.96.0.10"])
        .await;
    let address = started.address();
    started.shutdown.trigger();
    started.running.stopped().await;
    assert_eq!(cluster.get(DNS_SLICE), None);
    assert!(cluster.get(DNS).is_some());
    eventually("nobody listens", async || {
        tokio::net::TcpStream::connect(address).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn a_service_with_a_selector_is_someone_elses() {
    let resolver = Resolver::start(Manner::Well).await;
    let cluster = server();
    let theirs = json!({"metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": "10.96.0.10", "selector": {"k8s-app": "kube-dns"}}});
    cluster.put(DNS, theirs);
    let started = start(cluster, &resolver).await;
    started
        .until("kube-dns.kube-system.svc.cluster.local.", &["10.96.0.10"])
        .await;
    let spec = started.cluster.get(DNS).unwrap();
    started.shutdown.trigger();
    started.running.stopped().await;
    let log = started.cluster.log();
    let writes = log
        .iter()
        .filter(|(call, _)| call.is_write() && call.method != Method::DELETE);
    assert_eq!(writes.count(), 0, "{log:?}");
    assert_eq!(spec["spec"]["selector"]["k8s-app"], "kube-dns");
}

#[tokio::test]
async fn whom_to_ask_comes_from_the_config_map_and_the_host() {
    let (first, second) = (
        Resolver::start(Manner::Well).await,
        Resolver::start(Manner::Denying).await,
    );
    let started = start(server(), &first).await;
    started.until("a.example.", &["192.0.2.1"]).await;
    let stubs = |text: String| {
        json!({"metadata": {"name": "kube-dns", "namespace": "kube-system"}, "data": {
            "stubDomains": text, "upstreamNameservers": format!("[\"{}\"]", first.address)}})
    };
    started
        .cluster
        .put(STUBS, stubs(format!("{{\"acme.local\": [\"{}\"]}}", second.address)));
    eventually("the stub domain is asked", async || {
        started.ask("b.acme.local.").await.0 == ResponseCode::NXDomain
    })
    .await;
    // Nonsense changes nothing.
    started.cluster.put(STUBS, stubs("{".to_string()));
    started.cluster.put(&format!("{SLICES}/web-1"), web(&["10.244.0.9"]));
    started.until("web.default.svc.cluster.local.", &["10.244.0.9"]).await;
    assert_eq!(started.ask("c.acme.local.").await.0, ResponseCode::NXDomain);
    // Without the map it is the host's resolvers: here ourselves, who are never asked.
    std::fs::write(started.resolv_conf.path(), "nameserver 10.96.0.10\n").unwrap();
    started.cluster.remove(STUBS);
    eventually("nobody is asked", async || {
        started.ask("d.example.").await.0 == ResponseCode::ServFail
    })
    .await;
}
