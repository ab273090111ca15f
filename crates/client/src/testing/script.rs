//! The other end of a connection: answers by script, or by a function, and remembers what it was asked. For what an
//! API server would never say.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::Api;
use crate::error::BoxError;

pub enum FakeReply {
    Whole(u16, Bytes),
    /// Frames as they come; an `Err` breaks the connection, the sender's end ends the answer.
    Stream(mpsc::Receiver<Result<Bytes, BoxError>>),
    /// The connection fails.
    Broken,
    Never,
}

#[derive(Clone, Debug, Default)]
pub struct ReceivedRequest {
    /// Method and URI.
    pub line: String,
    pub user_agent: String,
    pub content_type: String,
    pub body: String,
}

type Handler = Box<dyn FnMut(&ReceivedRequest) -> FakeReply + Send>;

#[derive(Default)]
struct FakeState {
    replies: VecDeque<FakeReply>,
    handler: Option<Handler>,
    seen: Vec<ReceivedRequest>,
}

#[derive(Clone, Default)]
pub struct Fake {
    state: Arc<Mutex<FakeState>>,
    asked: Arc<Notify>,
}

impl Fake {
    pub fn new() -> Fake {
        Fake::default()
    }

    /// Answers every request with what the function says.
    pub fn serving(handler: impl FnMut(&ReceivedRequest) -> FakeReply + Send + 'static) -> Fake {
        let fake = Fake::default();
        fake.state.lock().handler = Some(Box::new(handler));
        fake
    }

    pub fn reply(&self, reply: FakeReply) {
        self.state.lock().replies.push_back(reply);
    }

    pub fn answer(&self, code: u16, body: &str) {
        self.reply(FakeReply::Whole(code, Bytes::copy_from_slice(body.as_bytes())));
    }

    /// The next request is answered by what is sent here.
    pub fn stream(&self) -> mpsc::Sender<Result<Bytes, BoxError>> {
        let (sender, receiver) = mpsc::channel(1000);
        self.reply(FakeReply::Stream(receiver));
        sender
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.lock().seen.clone()
    }

    /// Waits until this many requests have come.
    pub async fn asked(&self, count: usize) -> ReceivedRequest {
        loop {
            let notified = self.asked.notified();
            if let Some(seen) = self.state.lock().seen.get(count - 1) {
                return seen.clone();
            }
            notified.await;
        }
    }

    pub fn service(&self) -> Fake {
        self.clone()
    }

    pub fn api(&self) -> Api {
        Api::in_process(self.service(), "test")
    }
}

impl<B> tower::Service<Request<B>> for Fake
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let header = |name| parts.headers.get(name).map_or("", |v| v.to_str().unwrap()).to_string();
            let seen = ReceivedRequest {
                line: format!("{} {}", parts.method, parts.uri),
                user_agent: header("user-agent"),
                content_type: header("content-type"),
                body: String::from_utf8(body.to_vec()).unwrap(),
            };
            let reply = {
                let mut state = fake.state.lock();
                let reply = match &mut state.handler {
                    Some(handler) => handler(&seen),
                    None => state.replies.pop_front().unwrap_or(FakeReply::Never),
                };
                state.seen.push(seen);
                reply
            };
            fake.asked.notify_waiters();
            let (code, stream) = match reply {
                FakeReply::Never => std::future::pending().await,
                FakeReply::Broken => return Err("broken".into()),
                FakeReply::Stream(receiver) => (200, receiver),
                FakeReply::Whole(code, bytes) => {
                    let (sender, receiver) = mpsc::channel(1);
                    sender.try_send(Ok(bytes)).unwrap();
                    (code, receiver)
                }
            };
            let frames = futures::stream::unfold(stream, async |mut stream| {
                let frame = stream.recv().await?.map(Frame::data);
                Some((frame, stream))
            });
            let body = UnsyncBoxBody::new(StreamBody::new(Box::pin(frames)));
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}
