//! A cluster for tests: JSON under paths, whatever the verb.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use orlop_client::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct FakeCluster {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, Value>,
    requests: Vec<(String, Value)>,
    down: bool,
}

impl FakeCluster {
    pub fn api(&self) -> Api {
        Api::in_process(self.clone(), "test")
    }

    /// What a request for this path (a GET, or a POST such as a token's) is answered with from now on.
    pub fn put(&self, path: &str, object: Value) {
        self.state.lock().objects.insert(path.to_string(), object);
    }

    pub fn remove(&self, path: &str) {
        self.state.lock().objects.remove(path);
    }

    /// While it is down every answer is a 503.
    pub fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    /// Method and path with the body (null without one) of all requests so far.
    pub fn requests(&self) -> Vec<(String, Value)> {
        self.state.lock().requests.clone()
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let mut state = self.state.lock();
        state.requests.push((format!("{method} {path}"), body.clone()));
        if state.down {
            return (
                503,
                json!({"code": 503, "reason": "ServiceUnavailable", "message": "down"}),
            );
        }
        if *method == Method::PUT {
            state.objects.insert(path.to_string(), body.clone());
            return (200, body);
        }
        match state.objects.get(path) {
            Some(object) => (200, object.clone()),
            None => (
                404,
                json!({"code": 404, "reason": "NotFound", "message": format!("{path} not found")}),
            ),
        }
    }
}

impl tower::Service<Request<Full<Bytes>>> for FakeCluster {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let cluster = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.expect("a whole body").to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (code, answer) = cluster.answer(&parts.method, parts.uri.path(), body);
            // Lets others run, as a real server would.
            tokio::task::yield_now().await;
            let response = Response::builder().status(code);
            Ok(response.body(Full::from(answer.to_string())).expect("a plain response"))
        })
    }
}
