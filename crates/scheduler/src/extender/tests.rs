use std::convert::Infallible;

use http::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orlop_client::testing::{Fake, FakeReply};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::*;
use crate::fit_error::Diagnosis;

type Handler = dyn Fn(&str, Value) -> Option<(u16, String)> + Send + Sync;

/// An extender that answers what the handler says; `None` never answers.
async fn serve(handler: impl Fn(&str, Value) -> Option<(u16, String)> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/scheduler/", listener.local_addr().unwrap());
    let handler: Arc<Handler> = Arc::new(handler);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handler = handler.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let handler = handler.clone();
                async move {
                    let path = request.uri().path().to_string();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let Some((code, text)) = handler(&path, serde_json::from_slice(&body).unwrap()) else {
                        return std::future::pending().await;
                    };
                    let response = Response::builder().status(code).body(Full::new(Bytes::from(text)));
                    Ok::<_, Infallible>(response.unwrap())
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

/// An API server that has the pods p and v and the nodes a, b, c, and takes bindings.
fn api(log: &Arc<Mutex<Vec<String>>>) -> Api {
    let log = log.clone();
    let server = Fake::serving(move |request| {
        log.lock().push(request.line.clone());
        let (code, body) = match request.line.as_str() {
            "GET /api/v1/namespaces/ns/pods/p" => (200, object("p", "uid-p")),
            "GET /api/v1/namespaces/ns/pods/v" => (200, object("v", "uid-v")),
            "POST /api/v1/namespaces/ns/pods/p/binding" => (201, json!({"kind": "Status"})),
            "GET /api/v1/nodes/a" => (200, object("a", "uid-a")),
            "GET /api/v1/nodes/b" => (200, object("b", "uid-b")),
            _ => (
                404,
                json!({"kind": "Status", "reason": "NotFound", "message": "not found"}),
            ),
        };
        FakeReply::Whole(code, Bytes::from(body.to_string()))
    });
    server.api()
}

fn object(name: &str, uid: &str) -> Value {
    json!({"metadata": {"name": name, "uid": uid}})
}

struct World {
    cluster: Cluster,
    pod: Arc<PodInfo>,
    nodes: Vec<NodeId>,
    log: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new() -> World {
        let mut cluster = Cluster::default();
        let mut node = |name: &str| {
            let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            cluster.observe_node(&node)
        };
        let nodes = vec![node("a"), node("b"), node("c")];
        let mut pod = |name: &str, node: &str| {
            cluster.decode(
                serde_json::from_value(json!({
                    "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
                    "spec": {"nodeName": node, "containers": [{
                        "name": "c", "resources": {"requests": {"example.com/gpu": "1"}},
                    }]},
                }))
                .unwrap(),
            )
        };
        let (waiting, victim) = (pod("p", ""), pod("v", "a"));
        cluster.add_pod(victim);
        World {
            cluster,
            pod: waiting,
            nodes,
            log: Arc::default(),
        }
    }

    fn extender(&self, config: config::Extender) -> Extender {
        Extender::all(&[config], &api(&self.log)).unwrap().remove(0)
    }

    fn feasible(&self) -> Feasible {
        Feasible {
            nodes: self.nodes.clone(),
            evaluated: 3,
            diagnosis: Diagnosis::default(),
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let (victim, node) = self.cluster.placed("uid-v").unwrap();
        vec![Candidate {
            node: self.nodes[0],
            name: node.clone(),
            victims: vec![victim.clone()],
            violations: 1,
        }]
    }

    /// The outcome of a filter: names of nodes left, and reasons.
    async fn filter(&self, extender: &Extender) -> Result<(String, String), ExtenderError> {
        let mut feasible = self.feasible();
        let request = extender.filter_request(&self.cluster, &self.pod, &feasible.nodes);
        let response = extender.send(request).await;
        extender.apply_filter(response, &self.cluster, &mut feasible)?;
        let name = |id: &NodeId| self.cluster.node(*id).unwrap().name.to_string();
        let names: Vec<String> = feasible.nodes.iter().map(name).collect();
        let reasons = feasible.diagnosis.nodes.iter().map(|(id, by, r)| {
            let kind = if r.unresolvable { "never" } else { "now" };
            format!("{} {by} {kind} {}", name(id), r.message())
        });
        let reasons: Vec<String> = reasons.collect();
        let by: Vec<&str> = feasible.diagnosis.rejected_by.iter().copied().collect();
        Ok((names.join(","), format!("{} [{}]", reasons.join("; "), by.join(","))))
    }
}

fn config(url: &str) -> config::Extender {
    config::Extender {
        url_prefix: url.to_string(),
        filter_verb: "filter".to_string(),
        prioritize_verb: "prioritize".to_string(),
        preempt_verb: "preempt".to_string(),
        bind_verb: "bind".to_string(),
        weight: 2,
        http_timeout: Duration::from_secs(20),
        node_cache_capable: true,
        ..config::Extender::default()
    }
}

#[tokio::test]
async fn filters_by_names() {
    let world = World::new();
    let seen = Arc::new(Mutex::new(vec![]));
    let asked = seen.clone();
    let url = serve(move |path, body| {
        asked.lock().push(format!(
            "{path} {} {}",
            body["Pod"]["metadata"]["uid"], body["NodeNames"]
        ));
        let response = json!({
            "NodeNames": ["b"],
            "FailedNodes": {"a": "busy", "c": "busy"},
            "FailedAndUnresolvableNodes": {"c": "broken", "gone": "x"},
        });
        Some((200, response.to_string()))
    });
    let extender = world.extender(config(&url.await));
    let outcome = world.filter(&extender).await.unwrap();
    let reasons = "c Extender never broken; a Extender now busy [Extender]";
    assert_eq!(outcome, ("b".to_string(), reasons.to_string()));
    assert_eq!(*seen.lock(), ["/scheduler/filter \"uid-p\" [\"a\",\"b\",\"c\"]"]);
    assert_eq!(*world.log.lock(), ["GET /api/v1/namespaces/ns/pods/p"]);
}

#[tokio::test]
async fn filters_by_whole_nodes() {
    let world = World::new();
    // c has gone meanwhile. Names in lower case are understood, too.
    let url = serve(|_, body| {
        let items = body["Nodes"]["items"].as_array().unwrap().clone();
        assert_eq!((items.len(), &body["NodeNames"]), (2, &Value::Null));
        Some((
            200,
            json!({"nodes": {"items": [items[1]]}, "nodeNames": ["a"], "error": ""}).to_string(),
        ))
    });
    let extender = world.extender(config::Extender {
        node_cache_capable: false,
        ..config(&url.await)
    });
    let outcome = world.filter(&extender).await.unwrap();
    assert_eq!(outcome, ("b".to_string(), " [Extender]".to_string()));
}

#[tokio::test]
async fn bad_answers_fail_the_attempt_unless_the_extender_may_fail() {
    let world = World::new();
    let gone = {
        // Nobody listens there any more.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let cases: Vec<(Option<(u16, &'static str)>, &str)> = vec![
        (Some((200, r#"{"Error": "no mood"}"#)), "no mood"),
        (
            Some((200, r#"{"NodeNames": ["z"]}"#)),
            "claims a filtered node \"z\" which is not found in the input",
        ),
        (Some((200, r#"{"NodeNames": "a"}"#)), "NodeNames must be a list"),
        (
            Some((200, r#"{"NodeNames": [], "FailedNodes": {"a": 1}}"#)),
            "FailedNodes must give a message for each node",
        ),
        (Some((200, "[]")), "the response must be an object"),
        (Some((200, "{")), "is not valid JSON"),
        (Some((500, "{}")), "failed filter with extender at URL http://127.0.0.1"),
        (None, "no response within 50ms"),
    ];
    for (reply, expected) in cases {
        let url = serve(move |_, _| reply.map(|(code, text)| (code, text.to_string()))).await;
        check_failure(&world, &url, expected, reply.is_none()).await;
    }
    check_failure(&world, &gone, "Post \"http://127.0.0.1", false).await;
}

async fn check_failure(world: &World, url: &str, expected: &str, slow: bool) {
    let mut config = config(url);
    if slow {
        config.http_timeout = Duration::from_millis(50);
    }
    let error = world.filter(&world.extender(config.clone())).await.unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    config.ignorable = true;
    let outcome = world.filter(&world.extender(config)).await.unwrap();
    assert_eq!(outcome, ("a,b,c".to_string(), " []".to_string()), "{expected}");
}

#[tokio::test]
async fn scores_are_weighed_and_failures_give_none() {
    let world = World::new();
    let cases = [
        (
            r#"[{"Host": "c", "Score": 3}, {"host": "a", "score": 1}, {"Host": "z", "Score": 9}]"#,
            [21, 1, 61],
        ),
        (r#"[{"Host": "c", "Score": 3}, {"Host": "a", "Score": 1.5}]"#, [1, 1, 1]),
        ("null", [1, 1, 1]),
        ("{}", [1, 1, 1]),
    ];
    for (reply, expected) in cases {
        let url = serve(move |path, _| {
            assert_eq!(path, "/scheduler/prioritize");
            Some((200, reply.to_string()))
        });
        let extender = world.extender(config(&url.await));
        let request = extender.prioritize_request(&world.cluster, &world.pod, &world.nodes);
        let response = extender.send(request).await;
        let mut scores = [1, 1, 1];
        extender.add_scores(response, &world.cluster, &world.nodes, &mut scores);
        assert_eq!(scores, expected, "{reply}");
    }
}

#[tokio::test]
async fn preemption() {
    let world = World::new();
    let kept = r#"{"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 4}}}"#;
    // reply, node by name only, may fail, what becomes of the candidates
    let cases = [
        (kept, true, false, "a v 4"),
        (kept, false, false, "a v 4"),
        (r#"{"NodeNameToMetaVictims": {}}"#, true, false, ""),
        ("{}", true, true, ""),
        (r#"{"NodeNameToMetaVictims": {"a": {"Pods": []}}}"#, true, false, ""),
        (r#"{"NodeNameToMetaVictims": {"a": null}}"#, true, true, ""),
        (
            r#"{"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-v"}]}}}"#,
            true,
            false,
            "",
        ),
        (
            r#"{"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-v"}]}}}"#,
            true,
            true,
            "a v 1",
        ),
        (r#"{"NodeNameToMetaVictims": []}"#, true, true, "a v 1"),
    ];
    for (reply, names, ignorable, expected) in cases {
        let url = serve(move |path, body| {
            assert_eq!(path, "/scheduler/preempt");
            let meta = json!({"a": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 1}});
            let whole = json!({"a": {"Pods": [object("v", "uid-v")], "NumPDBViolations": 1}});
            let (want, want_meta) = if names {
                (Value::Null, meta)
            } else {
                (whole, Value::Null)
            };
            assert_eq!(
                (&body["NodeNameToVictims"], &body["NodeNameToMetaVictims"]),
                (&want, &want_meta)
            );
            Some((200, reply.to_string()))
        });
        let extender = world.extender(config::Extender {
            node_cache_capable: names,
            ignorable,
            ..config(&url.await)
        });
        assert!(extender.preempts());
        let response = extender
            .send(extender.preempt_request(&world.pod, &world.candidates()))
            .await;
        let after = extender.apply_preempt(response, &world.cluster, world.candidates());
        let shown: Vec<String> = after
            .iter()
            .map(|c| format!("{} {} {}", c.name, c.victims[0].key.name, c.violations))
            .collect();
        assert_eq!(shown.join(";"), expected, "{reply}");
    }
}

#[tokio::test]
async fn binding() {
    let world = World::new();
    for (reply, ignorable, expected) in [
        ("{}", false, ""),
        (r#"{"Error": "full"}"#, false, "full"),
        ("-", true, ""),
    ] {
        let url = serve(move |path, body| {
            assert_eq!(path, "/scheduler/bind");
            let want = json!({"PodName": "p", "PodNamespace": "ns", "PodUID": "uid-p", "Node": "b"});
            assert_eq!(body, want);
            Some((200, reply.to_string()))
        });
        let extender = world.extender(config::Extender {
            ignorable,
            ..config(&url.await)
        });
        assert!(extender.binds(&world.pod.class.spec));
        let result = extender.bind(&world.pod, "b").await;
        assert_eq!(result.map_or_else(|e| e.to_string(), |()| String::new()), expected);
    }
    assert_eq!(*world.log.lock(), ["POST /api/v1/namespaces/ns/pods/p/binding"]);
}

#[tokio::test]
async fn who_is_asked_at_all() {
    let world = World::new();
    let spec = &world.pod.class.spec;
    let managing = |name: &str| config::Extender {
        managed_resources: vec![config::ManagedResource {
            name: name.to_string(),
            ignored_by_scheduler: false,
        }],
        ..config("http://127.0.0.1:1")
    };
    assert!(world.extender(config("http://127.0.0.1:1")).is_interested(spec));
    assert!(world.extender(managing("example.com/gpu")).is_interested(spec));
    let other = world.extender(managing("example.com/tpu"));
    assert!(!other.is_interested(spec) && !other.binds(spec));
    let silent = world.extender(config::Extender {
        url_prefix: "http://127.0.0.1:1".to_string(),
        ..config::Extender::default()
    });
    assert!(
        silent
            .filter_request(&world.cluster, &world.pod, &world.nodes)
            .is_none()
    );
    assert!(
        silent
            .prioritize_request(&world.cluster, &world.pod, &world.nodes)
            .is_none()
    );
    assert!(silent.preempt_request(&world.pod, &world.candidates()).is_none());
    assert!(silent.send(None).await.is_none() && !silent.preempts() && !silent.binds(spec));
    let mut feasible = world.feasible();
    silent.apply_filter(None, &world.cluster, &mut feasible).unwrap();
    assert_eq!(feasible.nodes.len(), 3);
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_the_start() {
    let tls = |tls: config::Tls| config::Extender {
        tls: Some(tls),
        ..config("https://127.0.0.1:1")
    };
    let both = config::Tls {
        insecure: true,
        ca_data: b"x".to_vec(),
        ..config::Tls::default()
    };
    let missing = config::Tls {
        ca_file: "/nowhere/ca".to_string(),
        ..config::Tls::default()
    };
    let half = config::Tls {
        insecure: true,
        cert_data: b"x".to_vec(),
        ..config::Tls::default()
    };
    let cases = [
        (config("127.0.0.1:1"), "must begin with http:// or https://"),
        (config("http://a b"), "urlPrefix is not a valid URL"),
        (tls(both), "a CA and insecure are mutually exclusive"),
        (tls(missing), "failed to read /nowhere/ca for caData"),
        (tls(half), "certificate and private key must be set together"),
    ];
    for (config, expected) in cases {
        let error = Extender::all(&[config], &api(&Arc::default()))
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("extender \"") && error.contains(expected), "{error}");
    }
}

/// With TLS: by its authority, and without looking.
#[tokio::test]
async fn https() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["helper.example".to_string()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let (der, pem) = (certificate.der().clone(), certificate.pem().into_bytes());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![der],
            rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = service_fn(|_: Request<Incoming>| {
                let response = Response::new(Full::new(Bytes::from(r#"{"NodeNames": ["a"]}"#)));
                std::future::ready(Ok::<_, Infallible>(response))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let world = World::new();
    let trusted = config::Tls {
        ca_data: pem.clone(),
        server_name: "helper.example".to_string(),
        ..config::Tls::default()
    };
    let insecure = config::Tls {
        insecure: true,
        ..config::Tls::default()
    };
    let wrong_name = config::Tls {
        ca_data: pem,
        ..config::Tls::default()
    };
    let with = |tls: Option<config::Tls>, enable_https| config::Extender {
        tls,
        enable_https,
        ..config(&url)
    };
    let cases = [
        (with(Some(trusted), false), true),
        (with(Some(insecure), false), true),
        (with(None, true), true),
        (with(Some(wrong_name), true), false),
    ];
    for (config, works) in cases {
        let outcome = world.filter(&world.extender(config.clone())).await;
        assert_eq!(outcome.is_ok(), works, "{config:?}: {outcome:?}");
    }
}
