//! An API server in a few lines: pods and nodes with watches, bindings as Kubernetes has them, and faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use orlop_client::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Line = Result<Bytes, BoxError>;

/// What becomes of a binding instead of what should.
pub(super) enum Fault {
    /// Refused with this status, in these words.
    Refuse(u16, &'static str, &'static str),
    /// Neither done nor answered.
    Silence,
    /// Done, but never answered.
    DoneInSilence,
    /// Answered as usual, but only then.
    Hold(oneshot::Receiver<()>),
}

struct Watcher {
    path: String,
    lines: mpsc::UnboundedSender<Line>,
}

#[derive(Default)]
struct State {
    revision: u64,
    /// Changes up to this one are forgotten.
    compacted: u64,
    down: bool,
    /// Nothing can be listed or watched.
    blind: bool,
    /// By path of the collection and key.
    objects: BTreeMap<(String, String), Value>,
    history: Vec<(u64, String, Value)>,
    watchers: Vec<Watcher>,
    faults: VecDeque<Fault>,
    /// Bindings that were asked for: pod, node.
    asked: Vec<(String, String)>,
    /// Bindings that were done.
    bound: Vec<(String, String)>,
    /// reason: note, of each event that was new.
    events: Vec<String>,
    /// What was patched into the status of pods: name, patch.
    patches: Vec<(String, Value)>,
}

#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<State>>);

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";

impl State {
    fn publish(&mut self, kind: &str, path: &str, object: &Value) {
        let line = json!({"type": kind, "object": object});
        self.history.push((self.revision, path.to_string(), line.clone()));
        self.watchers
            .retain(|watcher| watcher.path != path || watcher.lines.send(Ok(text(&line))).is_ok());
    }

    fn put(&mut self, path: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let key = (
            path.to_string(),
            object["metadata"]["name"].as_str().unwrap().to_string(),
        );
        let known = self.objects.insert(key, object.clone()).is_some();
        self.publish(if known { "MODIFIED" } else { "ADDED" }, path, &object);
    }

    fn delete(&mut self, path: &str, name: &str) {
        self.revision += 1;
        let mut object = self
            .objects
            .remove(&(path.to_string(), name.to_string()))
            .expect("it is there");
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.publish("DELETED", path, &object);
    }

    fn items(&self, path: &str) -> Vec<Value> {
        let of = self.objects.iter().filter(|((p, _), _)| p == path);
        of.map(|(_, object)| object.clone()).collect()
    }

    /// Kubernetes' rules: the pod must be there, be the one that is meant, and have no node.
    fn bind(&mut self, name: &str, binding: &Value) -> (u16, Value) {
        let Some(mut pod) = self.objects.get(&(PODS.to_string(), name.to_string())).cloned() else {
            return refusal(404, "NotFound", &format!("pods {name:?} not found"));
        };
        let conflict = |why: String| {
            let text = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
            refusal(409, "Conflict", &text)
        };
        if binding["metadata"]["uid"] != pod["metadata"]["uid"] {
            return conflict("the UID in the precondition does not match".to_string());
        }
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            return conflict(format!("pod {name} is already assigned to node {node:?}"));
        }
        let node = binding["target"]["name"].clone();
        self.bound.push((name.to_string(), node.as_str().unwrap().to_string()));
        pod["spec"]["nodeName"] = node;
        self.put(PODS, pod);
        (201, json!({"kind": "Status", "status": "Success"}))
    }
}

fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "code": code, "reason": reason, "message": message}),
    )
}

fn text(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

impl Server {
    pub(super) fn api(&self) -> Api {
        Api::in_process(self.clone(), "test")
    }

    // ---- what is there ----

    pub(super) fn add_node(&self, name: &str, cpu: &str) {
        self.put_node(json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "pods": "110"}}}));
    }

    pub(super) fn put_node(&self, node: Value) {
        self.0.lock().put(NODES, node);
    }

    pub(super) fn add_pod(&self, name: &str, cpu: &str) {
        self.put_pod(
            name,
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}),
        );
    }

    /// With this spec; the rest is as the API server fills it in.
    pub(super) fn put_pod(&self, name: &str, mut spec: Value) {
        if spec["schedulerName"].is_null() {
            spec["schedulerName"] = json!("default-scheduler");
        }
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}")});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.0.lock().put(PODS, pod);
    }

    pub(super) fn delete_pod(&self, name: &str) {
        self.0.lock().delete(PODS, name);
    }

    pub(super) fn delete_node(&self, name: &str) {
        self.0.lock().delete(NODES, name);
    }

    /// Somebody else binds the pod.
    pub(super) fn bind(&self, pod: &str, node: &str) -> u16 {
        let binding = json!({"metadata": {"uid": format!("uid-of-{pod}")}, "target": {"name": node}});
        self.0.lock().bind(pod, &binding).0
    }

    pub(super) fn node_of(&self, pod: &str) -> Option<String> {
        let state = self.0.lock();
        let pod = state.objects.get(&(PODS.to_string(), pod.to_string()))?;
        pod["spec"]["nodeName"].as_str().map(str::to_string)
    }

    // ---- faults ----

    /// The next binding goes wrong this way; the others after it as they should.
    pub(super) fn fail_binding(&self, fault: Fault) {
        self.0.lock().faults.push_back(fault);
    }

    /// The next binding is answered when the sender says so (or is dropped).
    pub(super) fn hold_binding(&self) -> oneshot::Sender<()> {
        let (release, held) = oneshot::channel();
        self.fail_binding(Fault::Hold(held));
        release
    }

    /// Connections fail, those that are open included.
    pub(super) fn go_away(&self) {
        self.0.lock().down = true;
        self.break_watches();
    }

    pub(super) fn come_back(&self) {
        self.0.lock().down = false;
    }

    /// Watches break and can't be had again; all else works.
    pub(super) fn hide(&self) {
        self.0.lock().blind = true;
        self.break_watches();
    }

    pub(super) fn show(&self) {
        self.0.lock().blind = false;
    }

    pub(super) fn break_watches(&self) {
        for watcher in self.0.lock().watchers.drain(..) {
            let _ = watcher.lines.send(Err("connection reset".into()));
        }
    }

    /// All watches end because they fell behind, and nothing before now can be had again.
    pub(super) fn compact(&self) {
        let mut state = self.0.lock();
        state.compacted = state.revision;
        let (code, status) = refusal(410, "Expired", "too old resource version");
        assert_eq!(code, 410);
        let line = json!({"type": "ERROR", "object": status});
        for watcher in state.watchers.drain(..) {
            let _ = watcher.lines.send(Ok(text(&line)));
        }
    }

    // ---- what was done ----

    pub(super) fn asked(&self) -> Vec<(String, String)> {
        self.0.lock().asked.clone()
    }

    pub(super) fn bound(&self) -> Vec<(String, String)> {
        self.0.lock().bound.clone()
    }

    pub(super) fn events(&self) -> Vec<String> {
        self.0.lock().events.clone()
    }

    /// `reason: message` of the conditions PodScheduled that were written for this pod.
    pub(super) fn conditions(&self, pod: &str) -> Vec<String> {
        let state = self.0.lock();
        let of = state.patches.iter().filter(|(name, _)| name == pod);
        let condition = |patch: &Value| {
            let c = &patch["status"]["conditions"][0];
            assert_eq!((&c["type"], &c["status"]), (&json!("PodScheduled"), &json!("False")));
            format!("{}: {}", c["reason"].as_str().unwrap(), c["message"].as_str().unwrap())
        };
        of.map(|(_, patch)| condition(patch)).collect()
    }

    // ---- HTTP ----

    async fn answer(self, request: Request<Bytes>) -> Result<(u16, mpsc::UnboundedReceiver<Line>), BoxError> {
        let (parts, body) = request.into_parts();
        let (down, blind) = {
            let state = self.0.lock();
            (state.down, state.blind)
        };
        if down || (blind && parts.method == Method::GET) {
            return Err("connection refused".into());
        }
        let path = parts.uri.path().to_string();
        let query = parts.uri.query().unwrap_or("").to_string();
        let name = path.split('/').nth(6).unwrap_or("").to_string();
        if parts.method == Method::GET && query.contains("watch=true") {
            return Ok((200, self.watch(&path, &query)));
        }
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (code, answer) = match parts.method {
            Method::GET => {
                let state = self.0.lock();
                let metadata = json!({"resourceVersion": state.revision.to_string()});
                (200, json!({"metadata": metadata, "items": state.items(&path)}))
            }
            Method::POST if path.ends_with("/binding") => self.binding(&name, &sent).await?,
            Method::POST if path.ends_with("/events") => {
                let of = |key: &str| sent[key].as_str().unwrap_or("").to_string();
                self.0.lock().events.push(format!("{}: {}", of("reason"), of("note")));
                (201, sent)
            }
            Method::PATCH if path.ends_with("/status") => {
                self.0.lock().patches.push((name, sent));
                (200, json!({}))
            }
            _ => (200, json!({})),
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = sender.send(Ok(text(&answer)));
        Ok((code, receiver))
    }

    async fn binding(&self, pod: &str, sent: &Value) -> Result<(u16, Value), BoxError> {
        let node = sent["target"]["name"].as_str().unwrap().to_string();
        let fault = {
            let mut state = self.0.lock();
            state.asked.push((pod.to_string(), node));
            state.faults.pop_front()
        };
        match fault {
            None => {}
            Some(Fault::Refuse(code, reason, message)) => return Ok(refusal(code, reason, message)),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::DoneInSilence) => {
                self.0.lock().bind(pod, sent);
                std::future::pending().await
            }
            Some(Fault::Hold(held)) => drop(held.await),
        }
        let mut state = self.0.lock();
        if state.down {
            return Err("connection reset".into());
        }
        Ok(state.bind(pod, sent))
    }

    fn watch(&self, path: &str, query: &str) -> mpsc::UnboundedReceiver<Line> {
        let (lines, receiver) = mpsc::unbounded_channel();
        let send = |line: &Value| drop(lines.send(Ok(text(line))));
        let mut state = self.0.lock();
        let from = query.split('&').find_map(|p| p.strip_prefix("resourceVersion="));
        match from.and_then(|revision| revision.parse::<u64>().ok()) {
            Some(from) if from < state.compacted => {
                send(&json!({"type": "ERROR", "object": refusal(410, "Expired", "too old resource version").1}));
                return receiver;
            }
            Some(from) => {
                let missed = state.history.iter().filter(|(at, p, _)| *at > from && p == path);
                missed.for_each(|(_, _, line)| send(line));
            }
            None => {
                for object in state.items(path) {
                    send(&json!({"type": "ADDED", "object": object}));
                }
                send(&json!({"type": "BOOKMARK", "object": {"metadata": {
                    "resourceVersion": state.revision.to_string(),
                    "annotations": {"k8s.io/initial-events-end": "true"}}}}));
            }
        }
        state.watchers.push(Watcher {
            path: path.to_string(),
            lines,
        });
        receiver
    }
}

impl<B> tower::Service<Request<B>> for Server
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let (code, lines) = server.answer(Request::from_parts(parts, body)).await?;
            let frames = futures::stream::unfold(lines, async |mut lines| {
                let frame = lines.recv().await?.map(Frame::data);
                Some((frame, lines))
            });
            let body = UnsyncBoxBody::new(StreamBody::new(Box::pin(frames)));
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}
