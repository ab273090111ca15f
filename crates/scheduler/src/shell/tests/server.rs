//! The API server of these tests: pods and nodes, bindings as Kubernetes has them, and faults on demand.

use std::collections::VecDeque;
use std::sync::Arc;

use http::Method;
use orlop_base::Clock;
use orlop_client::Api;
use orlop_client::testing::{self, Call, ObjectPath, Refusal, Reply, Store, StoreResult, collection};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

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

#[derive(Default)]
struct Bindings {
    faults: VecDeque<Fault>,
    /// Those that were asked for: pod, node.
    asked: Vec<(String, String)>,
    /// Those that were done.
    bound: Vec<(String, String)>,
}

#[derive(Clone)]
pub(super) struct Server {
    server: testing::Server,
    bindings: Arc<Mutex<Bindings>>,
}

fn pod_place(name: &str) -> ObjectPath {
    ObjectPath {
        collection: collection("", "pods"),
        namespace: "default".to_string(),
        name: name.to_string(),
    }
}

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// The name in `/api/v1/namespaces/default/pods/<name>/<part>`.
fn pod_of(call: &Call) -> &str {
    call.path.split('/').nth(6).unwrap_or("")
}

/// Kubernetes' rules: the pod must be there, be the one that is meant, and have no node.
fn bind(bindings: &Mutex<Bindings>, store: &mut Store, name: &str, binding: &Value) -> StoreResult<Value> {
    let pod = store.get(&pod_place(name))?;
    let conflict = |why: String| {
        let text = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
        Err(Refusal::new(409, "Conflict", text))
    };
    if binding["metadata"]["uid"] != pod["metadata"]["uid"] {
        return conflict("the UID in the precondition does not match".to_string());
    }
    if let Some(node) = pod["spec"]["nodeName"].as_str() {
        return conflict(format!("pod {name} is already assigned to node {node:?}"));
    }
    let node = binding["target"]["name"].clone();
    let done = (name.to_string(), node.as_str().unwrap().to_string());
    bindings.lock().bound.push(done);
    store.update(&pod_place(name), "", |pod| {
        pod["spec"]["nodeName"] = node;
        Ok(())
    })?;
    Ok(json!({"kind": "Status", "status": "Success"}))
}

fn answer_binding(bindings: &Arc<Mutex<Bindings>>, call: &Call, store: &mut Store) -> Reply {
    let (pod, sent) = (pod_of(call).to_string(), call.body.clone());
    let fault = {
        let mut bindings = bindings.lock();
        let node = sent["target"]["name"].as_str().unwrap().to_string();
        bindings.asked.push((pod.clone(), node));
        bindings.faults.pop_front()
    };
    match fault {
        None => Reply::Now(bind(bindings, store, &pod, &sent)),
        Some(Fault::Refuse(code, reason, message)) => Reply::Now(Err(Refusal::new(code, reason, message))),
        Some(Fault::Silence) => Reply::Never,
        Some(Fault::DoneInSilence) => {
            let _ = bind(bindings, store, &pod, &sent);
            Reply::Never
        }
        Some(Fault::Hold(held)) => {
            let bindings = bindings.clone();
            let released = Box::pin(async move { drop(held.await) });
            Reply::After(
                released,
                Box::new(move |store: &mut Store| bind(&bindings, store, &pod, &sent)),
            )
        }
    }
}

impl Server {
    pub(super) fn new() -> Server {
        let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
        let server = testing::Server::new(clock, 1);
        let bindings = Arc::<Mutex<Bindings>>::default();
        let known = bindings.clone();
        server.set_hook(move |call, store| match call.method {
            Method::GET => None,
            Method::POST if call.path.ends_with("/binding") => Some(answer_binding(&known, call, store)),
            // What else is written is only looked at.
            _ => Some(Reply::Now(Ok(json!({})))),
        });
        Server { server, bindings }
    }

    pub(super) fn api(&self) -> Api {
        self.server.api()
    }

    // ---- what is there ----

    pub(super) fn add_node(&self, name: &str, cpu: &str) {
        self.put_node(json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "pods": "110"}}}));
    }

    pub(super) fn put_node(&self, node: Value) {
        let path = node_path(node["metadata"]["name"].as_str().unwrap());
        self.server.put(&path, node);
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
        self.server.put(&pod_path(name), pod);
    }

    pub(super) fn delete_pod(&self, name: &str) {
        assert!(self.server.remove(&pod_path(name)), "it is there");
    }

    pub(super) fn delete_node(&self, name: &str) {
        assert!(self.server.remove(&node_path(name)), "it is there");
    }

    /// Somebody else binds the pod.
    pub(super) fn bind(&self, pod: &str, node: &str) -> u16 {
        let binding = json!({"metadata": {"uid": format!("uid-of-{pod}")}, "target": {"name": node}});
        let done = self.server.write(|store| bind(&self.bindings, store, pod, &binding));
        done.map_or_else(|refusal| refusal.code, |_| 201)
    }

    pub(super) fn node_of(&self, pod: &str) -> Option<String> {
        let pod = self.server.get(&pod_path(pod))?;
        pod["spec"]["nodeName"].as_str().map(str::to_string)
    }

    // ---- faults ----

    /// The next binding goes wrong this way; the others after it as they should.
    pub(super) fn fail_binding(&self, fault: Fault) {
        self.bindings.lock().faults.push_back(fault);
    }

    /// The next binding is answered when the sender says so (or is dropped).
    pub(super) fn hold_binding(&self) -> oneshot::Sender<()> {
        let (release, held) = oneshot::channel();
        self.fail_binding(Fault::Hold(held));
        release
    }

    /// Connections fail, those that are open included.
    pub(super) fn go_away(&self) {
        self.server.go_away();
    }

    pub(super) fn come_back(&self) {
        self.server.come_back();
    }

    /// Watches break and can't be had again; all else works.
    pub(super) fn hide(&self) {
        self.server.hide();
    }

    pub(super) fn show(&self) {
        self.server.show();
    }

    pub(super) fn break_watches(&self) {
        self.server.break_watches();
    }

    /// All watches end because they fell behind, and nothing before now can be had again.
    pub(super) fn compact(&self) {
        self.server.compact();
    }

    // ---- what was done ----

    pub(super) fn asked(&self) -> Vec<(String, String)> {
        self.bindings.lock().asked.clone()
    }

    pub(super) fn bound(&self) -> Vec<(String, String)> {
        self.bindings.lock().bound.clone()
    }

    /// Requests with this method to paths that end so.
    fn sent(&self, method: &Method, end: &str) -> Vec<Call> {
        let log = self.server.log().into_iter().map(|(call, _)| call);
        log.filter(|call| call.method == *method && call.path.ends_with(end))
            .collect()
    }

    /// reason: note, of each event that was new.
    pub(super) fn events(&self) -> Vec<String> {
        let text = |call: &Call, key: &str| call.body[key].as_str().unwrap_or("").to_string();
        let events = self.sent(&Method::POST, "/events").into_iter();
        events
            .map(|call| format!("{}: {}", text(&call, "reason"), text(&call, "note")))
            .collect()
    }

    /// `reason: message` of the conditions PodScheduled that were written for this pod.
    pub(super) fn conditions(&self, pod: &str) -> Vec<String> {
        let condition = |call: Call| {
            let c = &call.body["status"]["conditions"][0];
            assert_eq!((&c["type"], &c["status"]), (&json!("PodScheduled"), &json!("False")));
            format!("{}: {}", c["reason"].as_str().unwrap(), c["message"].as_str().unwrap())
        };
        let patches = self.sent(&Method::PATCH, "/status").into_iter();
        patches.filter(|call| pod_of(call) == pod).map(condition).collect()
    }
}
