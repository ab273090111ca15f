//! What reaches the API server, and when.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};

use super::*;
use crate::pod::testing::pod as pod_of;

/// Takes patches of one pod's status, keeps conditions by type, and writes down what it was asked.
#[derive(Clone, Default)]
struct Server {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    seen: Vec<String>,
    patches: Vec<Value>,
    status: Map<String, Value>,
    conditions: BTreeMap<String, Value>,
    revision: u64,
    down: bool,
    gone: bool,
}

impl Server {
    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut state = self.state.lock();
        state.seen.push(format!("{method} {path}"));
        if state.down {
            return (
                503,
                json!({"code": 503, "reason": "ServiceUnavailable", "message": "down"}),
            );
        }
        if state.gone {
            return (404, json!({"code": 404, "reason": "NotFound", "message": "no"}));
        }
        if method == "PATCH" {
            assert_eq!(body["metadata"]["uid"], "uid");
            for (key, value) in body["status"].as_object().unwrap() {
                if key == "conditions" {
                    for condition in value.as_array().unwrap() {
                        let type_ = condition["type"].as_str().unwrap().to_string();
                        match condition["$patch"] == "delete" {
                            true => drop(state.conditions.remove(&type_)),
                            false => drop(state.conditions.insert(type_, condition.clone())),
                        }
                    }
                } else {
                    state.status.insert(key.clone(), value.clone());
                }
            }
            state.patches.push(body["status"].clone());
            state.revision += 1;
        }
        state.gone |= method == "DELETE";
        let mut status = state.status.clone();
        status.insert("conditions".into(), state.conditions.values().cloned().collect());
        for key in ["podIPs", "hostIPs"] {
            if let Some(Value::Array(list)) = status.get_mut(key) {
                list.retain(|entry| entry.get("$patch").is_none());
            }
        }
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "uid", "resourceVersion": (100 + state.revision).to_string()});
        (
            200,
            json!({"metadata": metadata, "spec": {"containers": []}, "status": status}),
        )
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().seen)
    }
}

impl tower::Service<Request<Full<Bytes>>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (code, answer) = server.answer(parts.method.as_str(), parts.uri.path(), body);
            tokio::task::yield_now().await;
            Ok(Response::builder()
                .status(code)
                .body(Full::from(answer.to_string()))
                .unwrap())
        })
    }
}

const STATUS_PATH: &str = "PATCH /api/v1/namespaces/ns/pods/p/status";

fn start(server: &Server, mirrors: Mirrors) -> Writer {
    let api = Api::in_process(server.clone(), "test");
    Writer::start(Some(api), mirrors, Shutdown::default()).0
}

fn no_mirrors() -> Mirrors {
    Arc::new(|_| None)
}

fn status(text: Value) -> PodStatus {
    orlop_api::types::from_value(text).unwrap()
}

fn pending() -> PodStatus {
    status(
        json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]}),
    )
}

fn running() -> PodStatus {
    status(
        json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]}),
    )
}

fn api_pod(text: &str, revision: u64) -> Arc<Pod> {
    let mut pod = pod_of(text);
    pod.metadata.resource_version = Some(revision.to_string());
    Arc::new(pod)
}

async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_soon_takes_one_write() {
    let server = Server::default();
    let writer = start(&server, no_mirrors());
    let pod = api_pod("containers=a", 5);
    writer.set(&pod, &pending(), false);
    pass(200).await;
    writer.set(&pod, &running(), false);
    pass(1000).await;
    assert_eq!(server.take(), [STATUS_PATH]);
    // Nothing new, nothing written.
    writer.set(&pod, &running(), false);
    pass(1000).await;
    assert_eq!(server.take(), [""; 0]);
    assert_eq!(writer.status("uid"), Some(running()));
}

#[tokio::test(start_paused = true)]
async fn only_what_changed_is_sent() {
    let server = Server::default();
    let writer = start(&server, no_mirrors());
    let pod = api_pod("containers=a", 5);
    writer.set(&pod, &pending(), false);
    pass(500).await;
    writer.set(&pod, &running(), false);
    pass(500).await;
    let patches = server.state.lock().patches.clone();
    assert_eq!(patches.len(), 2);
    let expected = json!({
        "phase": "Running",
        "podIPs": [{"ip": "10.0.0.1"}, {"$patch": "replace"}],
        "containerStatuses": null,
        "conditions": [{"type": "Ready", "status": "True", "reason": null}],
    });
    assert_eq!(patches[1], expected);
    let mut bare = running();
    bare.conditions = None;
    writer.set(&pod, &bare, false);
    pass(500).await;
    let last = server.state.lock().patches.last().unwrap().clone();
    assert_eq!(last, json!({"conditions": [{"$patch": "delete", "type": "Ready"}]}));
}

#[tokio::test(start_paused = true)]
async fn the_last_word_arrives_when_the_server_is_back() {
    let server = Server::default();
    server.state.lock().down = true;
    let writer = start(&server, no_mirrors());
    let pod = api_pod("containers=a", 5);
    writer.set(&pod, &running(), false);
    pass(600_000).await;
    let tries = server.take().len();
    assert!((10..100).contains(&tries), "{tries}");
    let mut failed = running();
    failed.phase = Some("Failed".into());
    writer.set(&pod, &failed, false);
    server.state.lock().down = false;
    pass(30_000).await;
    assert_eq!(server.state.lock().status["phase"], "Failed");
    let seen = server.take();
    assert_eq!(seen.iter().filter(|s| *s == STATUS_PATH).count(), 1, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_wrote_over_is_put_right() {
    let server = Server::default();
    let writer = start(&server, no_mirrors());
    writer.set(&api_pod("containers=a", 5), &running(), false);
    pass(500).await;
    server.take();
    server.state.lock().revision = 200;
    let mut changed = pod_of("containers=a");
    changed.metadata.resource_version = Some("200".into());
    changed.status = Some(pending());
    writer.set(&Arc::new(changed), &running(), false);
    pass(500).await;
    assert_eq!(server.take(), [STATUS_PATH]);
    // News older than our own write are no news.
    writer.set(&api_pod("containers=a", 6), &running(), false);
    pass(500).await;
    assert_eq!(server.take(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_object_goes_last() {
    let server = Server::default();
    let writer = start(&server, no_mirrors());
    let pod = api_pod("deleted=30 containers=a", 5);
    writer.set(&pod, &running(), false);
    pass(500).await;
    let mut failed = running();
    failed.phase = Some("Failed".into());
    writer.set(&pod, &failed, true);
    pass(500).await;
    assert_eq!(
        server.take(),
        [STATUS_PATH, STATUS_PATH, "DELETE /api/v1/namespaces/ns/pods/p"]
    );
    writer.set(&pod, &failed, true);
    pass(5000).await;
    assert_eq!(server.take(), [""; 0]);
    // A pod that nobody wants to delete stays.
    let server = Server::default();
    let writer = start(&server, no_mirrors());
    writer.set(&api_pod("containers=a", 5), &failed, true);
    pass(500).await;
    assert_eq!(server.take(), [STATUS_PATH]);
    // Finished already, deleted later.
    writer.set(&api_pod("deleted=0 containers=a", 300), &failed, true);
    pass(500).await;
    assert!(
        server
            .take()
            .contains(&"DELETE /api/v1/namespaces/ns/pods/p".to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_writes_to_its_mirror() {
    let server = Server::default();
    let mirror = Arc::new(Mutex::new(None::<Arc<Pod>>));
    let found = mirror.clone();
    let writer = start(
        &server,
        Arc::new(move |uid| found.lock().clone().filter(|_| uid == "static-uid")),
    );
    let mut pod = pod_of("static containers=a");
    pod.metadata.uid = Some("static-uid".into());
    writer.set(&Arc::new(pod), &running(), false);
    pass(5000).await;
    assert_eq!(server.take(), [""; 0]);
    *mirror.lock() = Some(api_pod("containers=a", 7));
    pass(5000).await;
    assert_eq!(server.take(), [STATUS_PATH]);
    // Others write to it, too: a node that was taken for lost.
    writer.mirror_seen("static-uid", &with_status(101, running()));
    pass(5000).await;
    assert_eq!(server.take(), [""; 0]);
    writer.mirror_seen("static-uid", &with_status(102, pending()));
    pass(5000).await;
    assert_eq!(server.take(), [STATUS_PATH]);
}

fn with_status(revision: u64, status: PodStatus) -> Pod {
    let mut pod = Pod::clone(&api_pod("containers=a", revision));
    pod.status = Some(status);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_left_alone() {
    let server = Server::default();
    server.state.lock().gone = true;
    let writer = start(&server, no_mirrors());
    writer.set(&api_pod("containers=a", 5), &running(), false);
    pass(60_000).await;
    assert_eq!(server.take(), [STATUS_PATH]);
    writer.forget("uid");
    assert_eq!(writer.status("uid"), None);
}
