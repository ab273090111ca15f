//! The whole of it against an API server in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Method, Request, Response};
use bytes::Bytes;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use orlop_base::{Clock, Shutdown};
use orlop_client::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::testing::{Manner, PATIENCE, Resolver, addresses, ask_udp, query};
use crate::{Options, Publish, Running};

type Line = Result<::http_body::Frame<Bytes>, std::convert::Infallible>;

#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<ClusterState>>);

#[derive(Default)]
struct ClusterState {
    revision: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Path of the collection, and where its changes go.
    watches: Vec<(String, mpsc::UnboundedSender<Line>)>,
    /// Nothing can be listed.
    closed: bool,
    writes: Vec<String>,
}

/// `/api/v1/namespaces/a/services/b` is in `/api/v1/services` and in `/api/v1/namespaces/a/services`.
fn is_in(object: &str, collection: &str) -> bool {
    let (own, _) = object.rsplit_once('/').unwrap();
    let all = match own.split_once("/namespaces/") {
        Some((start, rest)) => rest.split_once('/').map(|(_, kind)| format!("{start}/{kind}")),
        None => None,
    };
    own == collection || all.as_deref() == Some(collection)
}

fn line(kind: &str, object: &Value) -> Line {
    let text = format!("{}\n", json!({"type": kind, "object": object}));
    Ok(::http_body::Frame::data(text.into()))
}

impl Cluster {
    fn api(&self) -> Api {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
            let cluster = cluster.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a whole body").to_bytes();
                Ok::<_, std::convert::Infallible>(cluster.answer(&parts.method, &parts.uri, &body))
            }
        });
        Api::in_process(service, "test")
    }

    fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let known = state.objects.insert(path.to_string(), object.clone()).is_some();
        state.tell(path, if known { "MODIFIED" } else { "ADDED" }, &object);
    }

    fn remove(&self, path: &str) {
        let mut state = self.0.lock();
        state.revision += 1;
        if let Some(object) = state.objects.remove(path) {
            state.tell(path, "DELETED", &object);
        }
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    fn answer(
        &self,
        method: &Method,
        uri: &::http::Uri,
        body: &[u8],
    ) -> Response<UnsyncBoxBody<Bytes, std::convert::Infallible>> {
        let whole = |code: u16, body: Value| {
            let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
            Response::builder().status(code).body(body).unwrap()
        };
        let (path, watch) = (uri.path(), uri.query().unwrap_or("").contains("watch=true"));
        if watch {
            return match self.watch(path) {
                Some(body) => Response::new(body),
                None => whole(429, json!({"reason": "TooManyRequests"})),
            };
        }
        let object = || serde_json::from_slice::<Value>(body).unwrap();
        if *method != Method::GET {
            self.0.lock().writes.push(format!("{method} {path}"));
        }
        match *method {
            Method::GET => match self.get(path) {
                Some(object) => whole(200, object),
                None => whole(404, json!({"reason": "NotFound"})),
            },
            Method::POST => {
                let object = object();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                self.put(&path, object.clone());
                whole(201, object)
            }
            Method::PATCH => {
                let mut known = self.get(path).unwrap();
                merge(&mut known, &object());
                self.put(path, known.clone());
                whole(200, known)
            }
            _ => {
                self.remove(path);
                whole(200, json!({}))
            }
        }
    }

    fn watch(&self, path: &str) -> Option<UnsyncBoxBody<Bytes, std::convert::Infallible>> {
        let mut state = self.0.lock();
        if state.closed {
            return None;
        }
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for (_, object) in state.objects.iter().filter(|(place, _)| is_in(place, path)) {
            sender.send(line("ADDED", object)).unwrap();
        }
        let end = json!({"metadata": {"resourceVersion": state.revision.to_string(),
            "annotations": {"k8s.io/initial-events-end": "true"}}});
        sender.send(line("BOOKMARK", &end)).unwrap();
        state.watches.push((path.to_string(), sender));
        let frames = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        Some(StreamBody::new(frames).boxed_unsync())
    }
}

impl ClusterState {
    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let concerned = |(collection, _): &&(String, _)| is_in(path, collection);
        for (_, sender) in self.watches.iter().filter(concerned) {
            let _ = sender.send(line(kind, object));
        }
    }
}

/// RFC 7396.
fn merge(object: &mut Value, patch: &Value) {
    let (Some(fields), Some(patch)) = (object.as_object_mut(), patch.as_object()) else {
        *object = patch.clone();
        return;
    };
    for (key, value) in patch {
        merge(fields.entry(key).or_insert(Value::Null), value);
    }
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
    cluster: Cluster,
    running: Running,
    shutdown: Shutdown,
    resolv_conf: tempfile::NamedTempFile,
}

async fn start(cluster: Cluster, resolver: &Resolver) -> Started {
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
        eventually(async || self.ask(name).await.1 == expected).await;
    }
}

async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it comes to hold");
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
    let started = start(Cluster::default(), &resolver).await;
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
    eventually(async || started.ask("x.svc.cluster.local.").await.0 == ResponseCode::NoError).await;
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
    let cluster = Cluster::default();
    cluster.0.lock().closed = true;
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
    started.cluster.0.lock().closed = false;
    eventually(async || running.is_ready()).await;
    assert!(page(running.ready, "/ready").await.starts_with("HTTP/1.1 200"));
    assert_eq!(
        started.ask("web.default.svc.cluster.local.").await.0,
        ResponseCode::NoError
    );
}

#[tokio::test]
async fn the_service_and_the_slice_are_kept() {
    let resolver = Resolver::start(Manner::Well).await;
    let started = start(Cluster::default(), &resolver).await;
    let cluster = &started.cluster;
    eventually(async || cluster.get(DNS_SLICE).is_some()).await;
    assert_eq!(cluster.get(DNS).unwrap()["spec"]["clusterIP"], "10.96.0.10");
    let slice = cluster.get(DNS_SLICE).unwrap();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.77"]));
    assert_eq!(slice["ports"][0]["port"], started.running.listening[0].port());
    // Others' doings are undone, and what is not ours to say stays.
    cluster.remove(DNS_SLICE);
    eventually(async || cluster.get(DNS_SLICE).is_some()).await;
    let mut changed = cluster.get(DNS).unwrap();
    changed["spec"]["ports"][0]["port"] = json!(54);
    changed["metadata"]["labels"]["own"] = json!("x");
    cluster.put(DNS, changed);
    eventually(async || cluster.get(DNS).unwrap()["spec"]["ports"][0]["port"] == 53).await;
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
    eventually(async || tokio::net::TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test]
async fn a_service_with_a_selector_is_someone_elses() {
    let resolver = Resolver::start(Manner::Well).await;
    let cluster = Cluster::default();
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
    let state = started.cluster.0.lock();
    let writes = state.writes.iter().filter(|w| !w.starts_with("DELETE")).count();
    assert_eq!(writes, 0, "{:?}", state.writes);
    assert_eq!(spec["spec"]["selector"]["k8s-app"], "kube-dns");
}

#[tokio::test]
async fn whom_to_ask_comes_from_the_config_map_and_the_host() {
    let (first, second) = (
        Resolver::start(Manner::Well).await,
        Resolver::start(Manner::Denying).await,
    );
    let started = start(Cluster::default(), &first).await;
    started.until("a.example.", &["192.0.2.1"]).await;
    let stubs = |text: String| {
        json!({"metadata": {"name": "kube-dns", "namespace": "kube-system"}, "data": {
            "stubDomains": text, "upstreamNameservers": format!("[\"{}\"]", first.address)}})
    };
    started
        .cluster
        .put(STUBS, stubs(format!("{{\"acme.local\": [\"{}\"]}}", second.address)));
    eventually(async || started.ask("b.acme.local.").await.0 == ResponseCode::NXDomain).await;
    // Nonsense changes nothing.
    started.cluster.put(STUBS, stubs("{".to_string()));
    started.cluster.put(&format!("{SLICES}/web-1"), web(&["10.244.0.9"]));
    started.until("web.default.svc.cluster.local.", &["10.244.0.9"]).await;
    assert_eq!(started.ask("c.acme.local.").await.0, ResponseCode::NXDomain);
    // Without the map it is the host's resolvers: here ourselves, who are never asked.
    std::fs::write(started.resolv_conf.path(), "nameserver 10.96.0.10\n").unwrap();
    started.cluster.remove(STUBS);
    eventually(async || started.ask("d.example.").await.0 == ResponseCode::ServFail).await;
}
