//! Events that are sent in the background, several at a time: a queue of bounded length, a pause until a batch is full or
//! old enough, a bound on how many batches are sent a second.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::backend::Output;
use super::{BatchOptions, ThrottleOptions};

/// Batches under way at once: a receiver that is away is tried again for a while, and others need not wait for that.
const IN_FLIGHT: u32 = 16;
/// How long the end of the server waits for what is left.
const FLUSH: Duration = Duration::from_secs(10);

pub(super) struct Batcher {
    events: Mutex<Option<mpsc::Sender<Value>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Batcher {
    pub(super) fn start(output: Arc<Output>, options: BatchOptions) -> Batcher {
        let (events, waiting) = mpsc::channel(options.buffer_size.max(1));
        let task = tokio::spawn(send_batches(waiting, output, options));
        Batcher {
            events: Mutex::new(Some(events)),
            task: Mutex::new(Some(task)),
        }
    }

    /// False if there is no room for it.
    pub(super) fn push(&self, event: Value) -> bool {
        match &*self.events.lock() {
            Some(events) => events.try_send(event).is_ok(),
            None => false,
        }
    }

    /// Sends what waits.
    pub(super) async fn close(&self) {
        self.events.lock().take();
        let task = self.task.lock().take();
        if let Some(mut task) = task
            && tokio::time::timeout(FLUSH, &mut task).await.is_err()
        {
            task.abort();
            tracing::warn!("failed to send all audit events before the end");
        }
    }
}

async fn send_batches(mut waiting: mpsc::Receiver<Value>, output: Arc<Output>, options: BatchOptions) {
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT as usize));
    let mut throttle = options.throttle.map(Throttle::new);
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        let gather = async {
            while batch.len() < options.max_size {
                match waiting.recv().await {
                    Some(event) => batch.push(event),
                    None => break,
                }
            }
        };
        let _ = tokio::time::timeout(options.max_wait, gather).await;
        if let Some(throttle) = &mut throttle {
            throttle.enter().await;
        }
        let permit = in_flight.clone().acquire_owned().await;
        let output = output.clone();
        tokio::spawn(async move {
            let _permit = permit;
            output.send(batch).await;
        });
    }
    // All that is under way.
    let _ = in_flight.acquire_many(IN_FLIGHT).await;
}

/// A token bucket.
struct Throttle {
    options: ThrottleOptions,
    tokens: f64,
    at: Instant,
}

impl Throttle {
    fn new(options: ThrottleOptions) -> Throttle {
        Throttle {
            options,
            tokens: f64::from(options.burst),
            at: Instant::now(),
        }
    }

    async fn enter(&mut self) {
        loop {
            let now = Instant::now();
            let gained = now.duration_since(self.at).as_secs_f64() * self.options.qps;
            self.tokens = (self.tokens + gained).min(f64::from(self.options.burst));
            self.at = now;
            if self.tokens >= 1.0 {
                self.tokens -= 1.0;
                return;
            }
            let missing = (1.0 - self.tokens) / self.options.qps;
            tokio::time::sleep(Duration::from_secs_f64(missing.clamp(0.001, 60.0))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn batches_are_throttled() {
        let mut throttle = Throttle::new(ThrottleOptions { qps: 10.0, burst: 3 });
        let start = Instant::now();
        for _ in 0..3 {
            throttle.enter().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            throttle.enter().await;
        }
        let took = start.elapsed().as_secs_f64();
        assert!((0.99..1.1).contains(&took), "{took}");
    }
}
