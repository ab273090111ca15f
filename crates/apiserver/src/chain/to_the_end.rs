//! Requests that end whether or not anybody waits for them.

use std::pin::Pin;
use std::task::Poll;

use orlop_base::BoxFuture;

/// A future that goes on by itself when nobody waits for it any more: a write that has begun is carried out and written
/// down, whether or not its client hangs up meanwhile.
pub(super) struct ToTheEnd<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> ToTheEnd<T> {
    pub(super) fn new(future: impl Future<Output = T> + Send + 'static) -> ToTheEnd<T> {
        ToTheEnd(Some(Box::pin(future)))
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<T> {
        let future = self.0.as_mut().expect("a future is not polled after its end");
        let output = std::task::ready!(future.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}
