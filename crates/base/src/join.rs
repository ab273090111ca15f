//! Futures: several at once on one task, and one behind a box.

use std::pin::Pin;
use std::task::Poll;

/// A future whose code is compiled where it is made. An `async fn` is compiled by whoever awaits it, and with it all that it
/// awaits in turn: what starts a whole component is boxed, or every binary and test binary would compile it anew.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs the futures together and gives their results in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for (future, result) in &mut pending {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    pending
        .into_iter()
        .map(|(_, result)| result.expect("all are done"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_order_though_the_work_overlaps() {
        let gate = tokio::sync::Barrier::new(3);
        let results = join_all((0..3).map(|i| {
            let gate = &gate;
            async move {
                gate.wait().await;
                i
            }
        }));
        assert_eq!(results.await, [0, 1, 2]);
    }
}
