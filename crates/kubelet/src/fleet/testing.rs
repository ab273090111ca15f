//! An API server for tests: keeps what it is given, merges patches as a real one does, and counts revisions.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use orlop_api::patch::strategic;
use orlop_api::schema::schema;
use orlop_client::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub(super) struct Server {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    revision: u64,
}

impl State {
    fn put(&mut self, path: String, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.objects.insert(path, object.clone());
        object
    }

    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let refused = |code: u16, reason: &str| (code, json!({"code": code, "reason": reason, "message": reason}));
        if method == "POST" {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            return match self.objects.contains_key(&path) {
                true => refused(409, "AlreadyExists"),
                false => (201, self.put(path, body)),
            };
        }
        let path = path.trim_end_matches("/status").to_string();
        let Some(mut object) = self.objects.get(&path).cloned() else {
            return refused(404, "NotFound");
        };
        let ty = schema().kind("v1", object["kind"].as_str().unwrap_or_default());
        match (method, ty) {
            ("DELETE", _) => (200, self.objects.remove(&path).unwrap()),
            // What else there is, are leases.
            (_, None) => (200, self.put(path, object)),
            (_, Some(ty)) => {
                strategic::apply(&mut object, body, ty).unwrap();
                (200, self.put(path, object))
            }
        }
    }
}

impl Server {
    pub(super) fn api(&self) -> Api {
        Api::in_process(self.clone(), "test")
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        self.state.lock().put(path.to_string(), object);
    }

    /// Somebody else's patch.
    pub(super) fn change(&self, path: &str, patch: Value) {
        assert_eq!(self.state.lock().answer("PATCH", path, patch).0, 200);
    }

    pub(super) fn get(&self, path: &str) -> Value {
        self.state.lock().objects[path].clone()
    }

    /// `Ready=True@5 …`: each condition, and the seconds since the epoch at which it turned.
    pub(super) fn conditions(&self, path: &str) -> String {
        let object = self.get(path);
        let told = object["status"]["conditions"].as_array().unwrap().iter().map(|c| {
            let turned: Timestamp = c["lastTransitionTime"].as_str().unwrap().parse().unwrap();
            let (kind, status) = (c["type"].as_str().unwrap(), c["status"].as_str().unwrap());
            format!("{kind}={status}@{}", turned.as_second())
        });
        told.collect::<Vec<_>>().join(" ")
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
        let state = self.state.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (code, answer) = state.lock().answer(parts.method.as_str(), parts.uri.path(), body);
            let body = Full::from(answer.to_string());
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}
