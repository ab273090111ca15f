//! Answers that go on for as long as their connection counts as busy.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use orlop_base::Busy;

/// An answer's body that keeps its connection busy until it is sent.
pub struct Held<B> {
    body: B,
    _busy: Busy,
}

impl<B> Held<B> {
    pub fn new(body: B, busy: Busy) -> Held<B> {
        Held { body, _busy: busy }
    }
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
