//! The shell against a small API server made of a map.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::service_fn;

use super::super::quiet::QuietRuntime;
use super::*;
use crate::testing::until;

/// Objects by path; writes bump a revision.
#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    revision: u64,
    log: Vec<String>,
    /// Refuse this many writes of a status with a conflict.
    conflicts: usize,
}

fn server(objects: Arc<Mutex<Objects>>) -> Api {
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        let objects = objects.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let (code, value) = match parts.uri.query().unwrap_or_default().contains("watch=true") {
                true => std::future::pending().await,
                false => answer(&mut objects.lock(), &parts.method, parts.uri.path(), &body),
            };
            let response = Response::builder()
                .status(code)
                .body(Full::new(Bytes::from(value.to_string())));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Api::in_process(service, "test")
}

fn answer(objects: &mut Objects, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
    objects.log.push(format!("{method} {path}"));
    let refusal = |code: u16, reason: &str| (code, json!({"code": code, "reason": reason, "message": reason}));
    let at = path.strip_suffix("/status").unwrap_or(path).to_string();
    let mut object: Value = serde_json::from_slice(body).unwrap_or_default();
    objects.revision += 1;
    let revision = objects.revision.to_string();
    match *method {
        Method::GET => match objects.by_path.get(&at) {
            Some(object) => (200, object.clone()),
            None => refusal(404, "NotFound"),
        },
        Method::POST => {
            let at = format!("{at}/{}", object["metadata"]["name"].as_str().unwrap());
            if objects.by_path.contains_key(&at) {
                return refusal(409, "AlreadyExists");
            }
            object["metadata"]["uid"] = json!("uid-1");
            object["metadata"]["resourceVersion"] = json!(revision);
            objects.by_path.insert(at, object.clone());
            (201, object)
        }
        Method::PATCH => {
            let stored = objects.by_path.get_mut(&at).unwrap();
            for (key, value) in object["metadata"]["labels"].as_object().unwrap() {
                stored["metadata"]["labels"][key] = value.clone();
            }
            (200, stored.clone())
        }
        Method::PUT if objects.conflicts > 0 => {
            objects.conflicts -= 1;
            refusal(409, "Conflict")
        }
        Method::PUT => {
            object["metadata"]["resourceVersion"] = json!(revision);
            objects.by_path.insert(at, object.clone());
            (200, object)
        }
        _ => refusal(405, "MethodNotAllowed"),
    }
}

fn settings(api: Option<Api>, shutdown: &Shutdown) -> Settings {
    Settings {
        api,
        identity: Identity {
            name: "n1".into(),
            hostname: "n1".into(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            labels: BTreeMap::new(),
            port: 10250,
        },
        config: Arc::default(),
        root_dir: "/".into(),
        runtime: Arc::new(QuietRuntime),
        recorder: None,
        pod_cidr: Some("10.244.0.0/24".into()),
        clock: Clock::System,
        shutdown: shutdown.clone(),
    }
}

const NODE: &str = "/api/v1/nodes/n1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

fn ready(objects: &Mutex<Objects>) -> String {
    let objects = objects.lock();
    let conditions = objects.by_path.get(NODE).map(|n| n["status"]["conditions"].clone());
    let last = conditions
        .and_then(|c| c.as_array()?.last().cloned())
        .unwrap_or_default();
    last["status"].as_str().unwrap_or_default().to_string()
}

#[tokio::test(start_paused = true)]
async fn registers_becomes_ready_and_beats() {
    let objects = Arc::new(Mutex::new(Objects::default()));
    let shutdown = Shutdown::default();
    let (keeper, tasks) = Keeper::start(settings(Some(server(objects.clone())), &shutdown));
    until("the node is ready", || ready(&objects), "True".to_string()).await;
    until("the lease is made", || objects.lock().by_path.contains_key(LEASE), true).await;
    assert_eq!(keeper.pod_cidr().borrow().as_deref(), Some("10.244.0.0/24"));
    assert_eq!(keeper.node().metadata.uid.as_deref(), Some("uid-1"));
    let beats = |objects: &Mutex<Objects>| {
        let log = &objects.lock().log;
        let count = |line: String| log.iter().filter(|l| **l == line).count();
        (count(format!("PUT {LEASE}")), count(format!("PUT {NODE}/status")))
    };
    // A minute without news: the lease is renewed, the status is not.
    let before = beats(&objects);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let after = beats(&objects);
    assert!((5..=7).contains(&(after.0 - before.0)), "{before:?} {after:?}");
    assert_eq!(after.1, before.1);
    // Pressure is told at once, over a conflict, too.
    objects.lock().conflicts = 1;
    keeper.set_pressure(Pressure {
        disk: true,
        ..Pressure::default()
    });
    let pressed = || {
        let objects = objects.lock();
        objects.by_path[NODE]["status"]["conditions"][1]["status"] == "True"
    };
    tokio::time::timeout(Duration::from_secs(1), until("disk pressure", pressed, true))
        .await
        .unwrap();
    keeper.set_shutting_down(true);
    until("not ready", || ready(&objects), "False".to_string()).await;
    keeper.set_shutting_down(false);
    until("ready again", || ready(&objects), "True".to_string()).await;
    // Every so often the status is written though nothing changed.
    let before = beats(&objects).1;
    tokio::time::sleep(Duration::from_secs(460)).await;
    assert!(beats(&objects).1 > before);
    shutdown.trigger();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_there_is_put_right() {
    let objects = Arc::new(Mutex::new(Objects::default()));
    let old = json!({
        "metadata": {"name": "n1", "uid": "old", "labels": {"kubernetes.io/os": "plan9", "mine": "1"},
                     "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "spec": {"podCIDRs": ["10.7.0.0/24"], "unschedulable": true},
    });
    objects.lock().by_path.insert(NODE.into(), old);
    let shutdown = Shutdown::default();
    let (keeper, _) = Keeper::start(settings(Some(server(objects.clone())), &shutdown));
    until("the node is ready", || ready(&objects), "True".to_string()).await;
    let node = objects.lock().by_path[NODE].clone();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["metadata"]["labels"]["mine"], "1");
    assert_eq!(
        (&node["metadata"]["uid"], &node["spec"]["unschedulable"]),
        (&json!("old"), &json!(true))
    );
    assert_eq!(keeper.pod_cidr().borrow().as_deref(), Some("10.7.0.0/24"));
    shutdown.trigger();
}

#[tokio::test(start_paused = true)]
async fn alone_it_has_a_picture_of_itself() {
    let shutdown = Shutdown::default();
    let (keeper, _) = Keeper::start(settings(None, &shutdown));
    assert_eq!(keeper.node().metadata.name.as_deref(), Some("n1"));
    let mut runtime = keeper.runtime();
    runtime.wait_for(|view| view.ready_at.is_some()).await.unwrap();
    assert_eq!(keeper.network_trouble(), None);
    assert!(keeper.allocatable().contains_key("cpu"));
    shutdown.trigger();
}

#[tokio::test(start_paused = true)]
async fn what_is_older_tells_nothing() {
    let objects = Arc::new(Mutex::new(Objects::default()));
    let shutdown = Shutdown::default();
    let (keeper, _) = Keeper::start(settings(Some(server(objects.clone())), &shutdown));
    until("the node is ready", || ready(&objects), "True".to_string()).await;
    // Somebody adds a resource; the watch is slow to tell.
    let known = (*keeper.node()).clone();
    {
        let mut objects = objects.lock();
        objects.revision += 1;
        let revision = objects.revision.to_string();
        let node = objects.by_path.get_mut(NODE).unwrap();
        node["metadata"]["resourceVersion"] = json!(revision);
        node["status"]["allocatable"]["scheduling.k8s.io/foo"] = json!("5");
    }
    let has_it = || {
        let node = keeper.node();
        let amounts = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        amounts.is_some_and(|amounts| amounts.contains_key("scheduling.k8s.io/foo"))
    };
    assert!(!has_it());
    assert!(keeper.refresh_node().await && has_it());
    assert!(!keeper.refresh_node().await, "it is the same as before");
    // The answer to a request of before comes late.
    keeper.shared.observe(known.clone());
    assert!(has_it());
    // A list is the truth, whatever its revision.
    keeper.shared.adopt(known);
    assert!(!has_it());
    shutdown.trigger();
}
