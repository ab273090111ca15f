//! Requests of a client through a whole API server to an extension API server that is made here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orlop_api::Value;
use orlop_base::Clock;
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::API_SERVICES;
use crate::connect::AnyBody;
use crate::connect::through_tests::connect;
use crate::internal::Internal;
use crate::lookup::ObjectLookup;
use crate::pki::{Pki, San, Subject};
use crate::{Config, Running, kinds};

const GROUP: &str = "things.example.com";
const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// How the extension API server behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Well,
    /// Answers discovery in the older form only.
    Old,
    Broken,
    /// Answers, but with nonsense.
    Garbage,
    Hangs,
}

/// An extension API server. It lets nobody in without the certificate of a front proxy.
struct Extension {
    port: u16,
    /// Connections end when it changes.
    mood: watch::Sender<Mood>,
    /// What watchers are sent.
    events: Mutex<Option<mpsc::Receiver<String>>>,
}

type ExtensionBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

fn full(text: impl Into<Bytes>) -> ExtensionBody {
    Full::from(text.into()).boxed_unsync()
}

fn respond(code: u16, content_type: &str, text: impl Into<Bytes>) -> Response<ExtensionBody> {
    let response = Response::builder().status(code).header("content-type", content_type);
    response.body(full(text)).unwrap()
}

fn resource_list() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": [
        {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list", "watch"],
            "shortNames": ["th"]}]})
}

fn aggregated_list() -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [
        {"metadata": {"name": GROUP}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
            {"resource": "things", "responseKind": {"group": GROUP, "version": "v1", "kind": "Thing"},
                "scope": "Namespaced", "singularResource": "thing", "verbs": ["get", "list", "watch"]}]}]}]})
}

fn swagger() -> Value {
    json!({"swagger": "2.0", "paths": {THINGS: {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}}}}},
        "definitions": {"Thing": {"type": "object"}}})
}

impl Extension {
    async fn start(pki: &Pki) -> Arc<Extension> {
        let subject = Subject {
            common_name: "ext",
            organizations: &[],
        };
        let hour = Duration::from_secs(3600);
        let names = [San::parse("ext.default.svc")];
        let credential = pki.issue_server(subject, &names, hour, Clock::System.now()).unwrap();
        let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pem(&pki.front_proxy_ca.certificate)).unwrap();
        let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![pem(&credential.certificate)], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let extension = Arc::new(Extension {
            port: listener.local_addr().unwrap().port(),
            mood: watch::Sender::new(Mood::Well),
            events: Mutex::default(),
        });
        let served = extension.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, served) = (acceptor.clone(), served.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    if *served.mood.borrow() == Mood::Garbage {
                        let _ = stream.write_all(b"\0\0 who knows what \xff\xff\r\n\r\n").await;
                        return;
                    }
                    let mut mood = served.mood.subscribe();
                    let answer = service_fn(move |request| served.clone().answer(request));
                    let http = hyper::server::conn::http1::Builder::new();
                    tokio::select! {
                        _ = http.serve_connection(TokioIo::new(stream), answer).with_upgrades() => {}
                        _ = mood.changed() => {}
                    }
                });
            }
        });
        extension
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<ExtensionBody>, Infallible> {
        let mood = *self.mood.borrow();
        match mood {
            Mood::Hangs => std::future::pending().await,
            Mood::Broken => return Ok(respond(500, "text/plain", "broken")),
            _ => {}
        }
        let json = "application/json";
        let path = request.uri().path().to_string();
        Ok(match path.as_str() {
            "/apis" if mood == Mood::Well => respond(
                200,
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                aggregated_list().to_string(),
            ),
            "/apis/things.example.com/v1" => respond(200, json, resource_list().to_string()),
            "/apis/metrics.k8s.io/v1beta1" => respond(200, json, r#"{"kind":"APIResourceList","resources":[]}"#),
            "/apis/metrics.k8s.io/v1beta1/nodes" => respond(200, json, r#"{"kind":"NodeMetricsList","by":"extension"}"#),
            "/openapi/v3" => respond(
                200,
                json,
                json!({"paths": {"apis/things.example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/things.example.com/v1?hash=A"},
                    "apis/apps/v1": {"serverRelativeURL": "stolen"}}})
                .to_string(),
            ),
            "/openapi/v3/apis/things.example.com/v1" => respond(200, json, r#"{"openapi":"3.0.0"}"#),
            "/openapi/v2" => respond(200, json, swagger().to_string()),
            path if path.ends_with("/elsewhere") => {
                let mut response = respond(302, json, "");
                response.headers_mut().insert("location", "https://example.com/".parse().unwrap());
                response
            }
            path if path.ends_with("/echo") => {
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let (mut source, mut sink) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                    let _ = tokio::io::copy(&mut source, &mut sink).await;
                    let _ = sink.shutdown().await;
                });
                let mut response = respond(101, json, "");
                response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
                response.headers_mut().insert("upgrade", "echo".parse().unwrap());
                response
            }
            THINGS if request.uri().query() == Some("watch=1") => {
                let events = self.events.lock().take().expect("one watcher for each channel");
                let events = futures::stream::unfold(events, |mut events| async {
                    let event = events.recv().await?;
                    Some((Ok(Frame::data(Bytes::from(event))), events))
                });
                Response::new(StreamBody::new(events).boxed_unsync())
            }
            _ => {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let headers: Vec<(String, String)> = parts
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_string()))
                    .collect();
                let seen = json!({"method": parts.method.as_str(), "target": parts.uri.to_string(), "headers": headers,
                    "body": String::from_utf8_lossy(&body)});
                respond(if parts.method == Method::POST { 201 } else { 200 }, json, seen.to_string())
            }
        })
    }
}

struct Cluster {
    running: Running,
    extension: Arc<Extension>,
    internal: Internal,
    _directory: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new(directory.path().join("data"));
        config.port = 0;
        config.request_timeout = Duration::from_secs(1);
        let running = crate::start(config, Clock::System).await.unwrap();
        let extension = Extension::start(&running.pki).await;
        let internal = Internal::new(running.server.registry.clone());
        let cluster = Cluster {
            running,
            extension,
            internal,
            _directory: directory,
        };
        cluster.create_service().await;
        cluster
    }

    /// Services that are names lead anywhere, to this machine too.
    async fn create_service(&self) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ext", "namespace": "default"},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let kind = kinds::of_resource("", "v1", "services").unwrap();
        self.internal.create(kind, service).await.unwrap();
    }

    fn api_service(&self, group: &str, version: &str) -> Value {
        use base64::Engine;
        let bundle = base64::prelude::BASE64_STANDARD.encode(&self.running.pki.ca.certificate);
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": bundle,
                "service": {"namespace": "default", "name": "ext", "port": self.extension.port}}})
    }

    async fn put(&self, object: Value) {
        let kind = kinds::of_stored(API_SERVICES).unwrap();
        self.internal.ensure_members(kind, object, &["spec"]).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        let kind = kinds::of_stored(API_SERVICES).unwrap();
        self.internal.delete(kind, "", name).await.unwrap();
    }

    fn stored(&self, name: &str) -> Option<Arc<Value>> {
        ObjectLookup::get(&*self.running.server.registry, API_SERVICES, "", name)
    }

    /// Waits until the condition has that reason, and returns its message.
    async fn condition(&self, name: &str, reason: &str) -> String {
        let condition = || {
            let stored = self.stored(name)?;
            let condition = stored.pointer("/status/conditions/0")?.clone();
            (condition["reason"] == reason).then_some(condition)
        };
        let condition = until(&format!("{name} is {reason}"), async || condition()).await;
        let is_true = matches!(reason, "Passed" | "Local");
        assert_eq!(condition["status"], if is_true { "True" } else { "False" });
        condition["message"].as_str().unwrap().to_string()
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(connect(&self.running).await))
                .await
                .unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    async fn ask(&self, target: &str, accept: &str) -> (u16, HeaderMap, String) {
        let request = Request::get(target).header("host", "server").header("accept", accept);
        let response = self.send(request.body(Full::default()).unwrap()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        (parts.status.as_u16(), parts.headers, text)
    }

    async fn get(&self, target: &str) -> (u16, String) {
        let (code, _, text) = self.ask(target, "application/json").await;
        (code, text)
    }

    async fn json(&self, target: &str) -> Value {
        let (code, text) = self.get(target).await;
        assert_eq!(code, 200, "{target}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn aggregated(&self) -> Value {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let (code, headers, text) = self.ask("/apis", accept).await;
        assert_eq!(code, 200);
        assert!(
            headers["content-type"]
                .to_str()
                .unwrap()
                .contains("as=APIGroupDiscoveryList")
        );
        serde_json::from_str(&text).unwrap()
    }

    /// The version of the group in aggregated discovery.
    async fn discovered(&self) -> Option<Value> {
        let list = self.aggregated().await;
        let items = list["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["metadata"]["name"] == GROUP)?;
        Some(item["versions"][0].clone())
    }

    async fn freshness(&self, wanted: &str) -> Value {
        let what = format!("discovery is {wanted}");
        until(&what, async || {
            self.discovered().await.filter(|v| v["freshness"] == wanted)
        })
        .await
    }
}

/// Looks until there is what is looked for.
async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), looking).await;
    found.unwrap_or_else(|_| panic!("not in time: {what}"))
}

#[tokio::test]
async fn requests_reach_the_extension_server() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.get(THINGS).await.0, 404);
    cluster.put(cluster.api_service(GROUP, "v1")).await;
    assert_eq!(
        cluster.condition("v1.things.example.com", "Passed").await,
        "all checks passed"
    );
    who_asks(&cluster).await;
    watches(&cluster).await;
    upgrades(&cluster).await;
    let (code, text) = cluster.get(&format!("{THINGS}/elsewhere")).await;
    assert_eq!(
        (code, text.as_str()),
        (
            502,
            "the backend attempted to redirect this request, which is not permitted\n"
        )
    );
    let metrics = cluster.get("/metrics").await.1;
    assert!(metrics.contains("aggregator_unavailable_apiservice{name=\"v1.things.example.com\"} 0\n"));
    cluster.delete("v1.things.example.com").await;
    until("requests are ours again", async || {
        (cluster.get(THINGS).await.0 == 404).then_some(())
    })
    .await;
    cluster.running.stop().await;
}

async fn who_asks(cluster: &Cluster) {
    let request = Request::post(format!("{THINGS}?dryRun=All&a=%20b"))
        .header("host", "server")
        .header("x-remote-user", "somebody")
        .header("x-remote-group", "system:masters")
        .header("x-remote-extra-scopes", "all")
        .header("x-kept", "1");
    let response = cluster.send(request.body(Full::from("{\"a\":1}")).unwrap()).await;
    assert_eq!(response.status(), 201);
    assert!(response.headers().contains_key("audit-id"));
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let seen: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(seen["method"], "POST");
    assert_eq!(seen["target"], format!("{THINGS}?dryRun=All&a=%20b"));
    assert_eq!(seen["body"], "{\"a\":1}");
    let all = |name: &str| -> Vec<&str> {
        let headers = seen["headers"].as_array().unwrap().iter();
        headers
            .filter(|pair| pair[0] == name)
            .map(|pair| pair[1].as_str().unwrap())
            .collect()
    };
    assert_eq!(all("x-remote-user"), ["kubernetes-admin"]);
    assert_eq!(all("x-remote-group"), ["system:masters", "system:authenticated"]);
    assert!(all("x-remote-extra-scopes").is_empty());
    assert_eq!((all("x-kept"), all("host")), (vec!["1"], vec!["ext.default.svc"]));
    assert_eq!(all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(all("audit-id").len(), 1);
}

async fn watches(cluster: &Cluster) {
    let (sender, receiver) = mpsc::channel(1);
    *cluster.extension.events.lock() = Some(receiver);
    sender.send("{\"type\":\"ADDED\"}\n".into()).await.unwrap();
    let request = Request::get(format!("{THINGS}?watch=1")).header("host", "server");
    let response = cluster.send(request.body(Full::default()).unwrap()).await;
    let mut events = response.into_body().into_data_stream();
    assert_eq!(events.next().await.unwrap().unwrap(), "{\"type\":\"ADDED\"}\n");
    // One that was not there before the first one was read.
    sender.send("{\"type\":\"DELETED\"}\n".into()).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "{\"type\":\"DELETED\"}\n");
    drop(events);
    // Whoever stops watching is not watched for any more.
    tokio::time::timeout(Duration::from_secs(20), sender.closed())
        .await
        .unwrap();
}

async fn upgrades(cluster: &Cluster) {
    let request = Request::get(format!("{THINGS}/x/echo"))
        .header("host", "server")
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connect(&cluster.running).await))
        .await
        .unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut response = sender
        .send_request(request.body(AnyBody::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
}

#[tokio::test]
async fn documents_are_merged() {
    let cluster = Cluster::start().await;
    let groups_before = cluster.json("/apis").await["groups"].as_array().unwrap().len();
    cluster.put(cluster.api_service(GROUP, "v1")).await;
    let version = cluster.freshness("Current").await;
    assert_eq!(version["resources"][0]["responseKind"]["kind"], "Thing");
    let list = cluster.aggregated().await;
    assert_eq!(list["items"][0]["metadata"]["name"], "apiregistration.k8s.io");
    assert_eq!(list["items"].as_array().unwrap().len(), groups_before + 1);

    let groups = cluster.json("/apis").await;
    assert_eq!(groups["groups"].as_array().unwrap().len(), groups_before + 1);
    let group = cluster.json("/apis/things.example.com").await;
    assert_eq!(
        (&group["kind"], &group["preferredVersion"]["version"]),
        (&json!("APIGroup"), &json!("v1"))
    );
    assert_eq!(cluster.json("/apis/things.example.com/v1").await, resource_list());
    let paths = cluster.json("/").await;
    let paths = paths["paths"].as_array().unwrap();
    assert!(
        paths.contains(&json!("/apis/things.example.com")) && paths.contains(&json!("/apis/things.example.com/v1"))
    );

    let index = cluster.json("/openapi/v3").await;
    assert_eq!(
        index["paths"]["apis/things.example.com/v1"]["serverRelativeURL"],
        "/openapi/v3/apis/things.example.com/v1?hash=A"
    );
    assert_ne!(index["paths"]["apis/apps/v1"]["serverRelativeURL"], "stolen");
    assert_eq!(
        cluster.json("/openapi/v3/apis/things.example.com/v1").await,
        json!({"openapi": "3.0.0"})
    );
    let swagger = cluster.json("/openapi/v2").await;
    assert!(swagger["paths"][THINGS].is_object() && swagger["paths"]["/api/v1/pods"].is_object());
    assert!(swagger["definitions"]["Thing"].is_object());
    let (code, _, _) = {
        let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let request = Request::get("/openapi/v2")
            .header("host", "server")
            .header("accept", accept);
        let response = cluster.send(request.body(Full::default()).unwrap()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.windows(THINGS.len()).any(|window| window == THINGS.as_bytes()));
        (code, (), ())
    };
    assert_eq!(code, 200);
    cluster.running.stop().await;
}

#[tokio::test]
async fn servers_that_misbehave() {
    let cluster = Cluster::start().await;
    let name = "v1.things.example.com";
    let mut priority = 1;
    let mut touch = async |mood: Mood| {
        cluster.extension.mood.send_replace(mood);
        priority += 1;
        let mut object = cluster.api_service(GROUP, "v1");
        object["spec"]["versionPriority"] = priority.into();
        cluster.put(object).await;
    };
    touch(Mood::Old).await;
    cluster.condition(name, "Passed").await;
    let version = cluster.freshness("Current").await;
    assert_eq!(version["resources"][0]["shortNames"], json!(["th"]));
    assert_eq!(version["resources"][0]["scope"], "Namespaced");

    touch(Mood::Broken).await;
    let message = cluster.condition(name, "FailedDiscoveryCheck").await;
    let url = format!(
        "https://localhost:{}/apis/things.example.com/v1",
        cluster.extension.port
    );
    assert_eq!(
        message,
        format!("failing or missing response from {url}: bad status from {url}: 500")
    );
    until("requests are refused", async || {
        (cluster.get(THINGS).await == (503, "service unavailable\n".into())).then_some(())
    })
    .await;
    let version = cluster.freshness("Stale").await;
    assert!(version.get("resources").is_none());
    let metrics = cluster.get("/metrics").await.1;
    assert!(metrics.contains("aggregator_unavailable_apiservice{name=\"v1.things.example.com\"} 1\n"));
    assert!(metrics.contains(
        "aggregator_unavailable_apiservice_total{name=\"v1.things.example.com\",reason=\"FailedDiscoveryCheck\"} 1\n"
    ));
    // It gets well without anybody saying so.
    cluster.extension.mood.send_replace(Mood::Well);
    cluster.condition(name, "Passed").await;
    cluster.freshness("Current").await;

    // What worked a moment ago does not any more: nobody waits for ever.
    cluster.extension.mood.send_replace(Mood::Hangs);
    let (code, text) = cluster.get(THINGS).await;
    assert_eq!(code, 504, "{text}");
    touch(Mood::Garbage).await;
    let message = cluster.condition(name, "FailedDiscoveryCheck").await;
    assert!(message.contains("transport connection broken"), "{message}");

    cluster.extension.mood.send_replace(Mood::Well);
    let services = kinds::of_resource("", "v1", "services").unwrap();
    cluster.internal.delete(services, "default", "ext").await.unwrap();
    let message = cluster.condition(name, "ServiceNotFound").await;
    assert_eq!(message, "service/ext in \"default\" is not present");
    cluster.create_service().await;
    cluster.condition(name, "Passed").await;

    // A bundle of another authority, and none at all.
    let mut object = cluster.api_service(GROUP, "v1");
    object["spec"]["caBundle"] = {
        use base64::Engine;
        base64::prelude::BASE64_STANDARD
            .encode(&cluster.running.pki.front_proxy_ca.certificate)
            .into()
    };
    cluster.put(object.clone()).await;
    let message = cluster.condition(name, "FailedDiscoveryCheck").await;
    assert!(
        message.ends_with("x509: certificate signed by unknown authority"),
        "{message}"
    );
    object["spec"]["caBundle"] = Value::Null;
    object["spec"]["insecureSkipTLSVerify"] = true.into();
    cluster.put(object).await;
    cluster.condition(name, "Passed").await;
    assert_eq!(cluster.get(THINGS).await.0, 200);
    // Given back.
    let local = json!({"group": GROUP, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15});
    cluster.put(json!({"metadata": {"name": name}, "spec": local})).await;
    cluster.condition(name, "Local").await;
    cluster.running.stop().await;
}

#[tokio::test]
async fn metrics_can_be_taken_over_and_given_back() {
    let cluster = Cluster::start().await;
    let (name, nodes) = ("v1beta1.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1/nodes");
    assert_eq!(cluster.json(nodes).await["items"], json!([]));
    cluster.put(cluster.api_service("metrics.k8s.io", "v1beta1")).await;
    cluster.condition(name, "Passed").await;
    until("the extension answers", async || {
        let (code, text) = cluster.get(nodes).await;
        (code == 200 && text.contains("extension")).then_some(())
    })
    .await;
    cluster.delete(name).await;
    until("the server answers itself again", async || {
        let (code, text) = cluster.get(nodes).await;
        (code == 200 && !text.contains("extension")).then_some(())
    })
    .await;
    cluster.condition(name, "Local").await;
    let again = cluster.stored(name).unwrap();
    assert!(again.pointer("/spec/service").is_none());
    cluster.running.stop().await;
}
