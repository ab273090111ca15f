//! Keys that wait to be reconciled.
//!
//! A key is in the queue once, however often it is added, and is never processed twice at the same time: what is added
//! while it is processed is queued again afterwards. So a thousand events on one object cost one reconcile or two, and
//! the queue is never longer than there are objects.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use orlop_base::clock::Shift;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cache::Cache;
use super::key::Key;
use super::metrics::QueueMetrics;
use crate::objects::Kind;

/// Upstream: client-go's default controller rate limiter.
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(1000);

/// A deduplicating queue of keys with delays and back-off, after client-go's work queue. Clones share it.
#[derive(Clone)]
pub struct WorkQueue {
    state: Arc<Mutex<QueueState>>,
    changed: Arc<Notify>,
    metrics: Arc<QueueMetrics>,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<(Key, Instant)>,
    /// In `ready`, or to be queued again after the reconcile in progress.
    dirty: FxHashSet<Key>,
    processing: FxHashSet<Key>,
    /// What to add later, soonest first; entries that `due` does not confirm are out of date.
    later: BinaryHeap<Reverse<(Instant, Key)>>,
    due: FxHashMap<Key, Instant>,
    failures: FxHashMap<Key, u32>,
}

impl WorkQueue {
    pub fn new(metrics: Arc<QueueMetrics>) -> WorkQueue {
        WorkQueue {
            state: Arc::default(),
            changed: Arc::default(),
            metrics,
        }
    }

    /// Adds every object of the cache now, and each one again whenever it changes, comes or goes.
    pub fn follow<T: Kind>(&self, cache: &Cache<T>) {
        let queue = self.clone();
        cache.on_any_change(move |key| queue.add(key));
    }

    pub fn add(&self, key: Key) {
        if self.state.lock().add(key, &self.metrics) {
            self.changed.notify_one();
        }
    }

    /// Adds the key after a while, or sooner if it was to be added sooner anyway.
    pub fn add_after(&self, key: Key, wait: Duration) {
        if wait.is_zero() {
            return self.add(key);
        }
        // Far beyond any deadline; more would overflow.
        let at = Instant::now().later(wait.min(Duration::from_secs(365 * 86_400)));
        let mut state = self.state.lock();
        if state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        state.due.insert(key.clone(), at);
        state.later.push(Reverse((at, key)));
        drop(state);
        self.changed.notify_one();
    }

    /// Adds the key after a wait that doubles with each failure.
    pub fn retry(&self, key: Key) {
        let failures = {
            let mut state = self.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            *failures = failures.saturating_add(1);
            *failures
        };
        self.metrics.retried();
        let wait = RETRY_FIRST.saturating_mul(1 << (failures - 1).min(20)).min(RETRY_MAX);
        self.add_after(key, wait);
    }

    /// All is well with the key.
    pub fn forget(&self, key: &Key) {
        self.state.lock().failures.remove(key);
    }

    /// How often the key has failed in a row.
    pub fn failures(&self, key: &Key) -> u32 {
        self.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.state.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing to do now, and nothing being done. (What is to be added later does not count.)
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.processing.is_empty()
    }

    /// Takes the next key, which is being processed from now on until `done`.
    pub async fn next(&self) -> Key {
        loop {
            let changed = self.changed.notified();
            let first_due = {
                let mut state = self.state.lock();
                state.add_due(Instant::now(), &self.metrics);
                if let Some((key, since)) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    self.metrics.taken(since.elapsed(), state.ready.len());
                    return key;
                }
                state.later.peek().map(|Reverse((at, _))| *at)
            };
            match first_due {
                None => changed.await,
                Some(at) => tokio::select! {
                    _ = changed => {}
                    _ = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    pub(super) fn began(&self) -> u64 {
        self.metrics.began()
    }

    pub(super) fn ended(&self, id: u64) {
        self.metrics.ended(id);
    }

    pub fn done(&self, key: &Key) {
        let mut state = self.state.lock();
        state.processing.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back((key.clone(), Instant::now()));
            self.metrics.depth(state.ready.len());
            drop(state);
            self.changed.notify_one();
        }
    }
}

impl QueueState {
    /// Whether there is more to take now.
    fn add(&mut self, key: Key, metrics: &QueueMetrics) -> bool {
        if !self.dirty.insert(key.clone()) {
            return false;
        }
        metrics.added();
        if self.processing.contains(&key) {
            return false;
        }
        self.ready.push_back((key, Instant::now()));
        metrics.depth(self.ready.len());
        true
    }

    fn add_due(&mut self, now: Instant, metrics: &QueueMetrics) {
        while let Some(Reverse((at, _))) = self.later.peek()
            && *at <= now
        {
            let Some(Reverse((at, key))) = self.later.pop() else {
                return;
            };
            if self.due.get(&key) == Some(&at) {
                self.due.remove(&key);
                self.add(key, metrics);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue {
        WorkQueue::new(Arc::default())
    }

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_never_processed_twice() {
        let queue = queue();
        for name in ["a", "b", "a", "a"] {
            queue.add(key(name));
        }
        assert_eq!((queue.next().await, queue.len()), (key("a"), 1));
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(queue.next().await, key("b"));
        assert!(queue.is_empty() && !queue.is_idle());
        queue.done(&key("a"));
        assert_eq!(queue.next().await, key("a"));
        queue.done(&key("a"));
        queue.done(&key("b"));
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn later_is_the_sooner_of_two() {
        let queue = queue();
        let start = Instant::now();
        queue.add_after(key("a"), Duration::from_secs(10));
        queue.add_after(key("a"), Duration::from_secs(3));
        queue.add_after(key("a"), Duration::from_secs(20));
        queue.add_after(key("b"), Duration::from_secs(5));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 3);
        queue.done(&key("a"));
        assert_eq!(queue.next().await, key("b"));
        queue.done(&key("b"));
        queue.add_after(key("c"), Duration::from_secs(60));
        assert_eq!((queue.next().await, start.elapsed().as_secs()), (key("c"), 65));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer() {
        let queue = queue();
        let mut waits = vec![];
        for _ in 0..20 {
            let start = Instant::now();
            queue.retry(key("a"));
            queue.next().await;
            queue.done(&key("a"));
            waits.push(start.elapsed().as_millis());
        }
        assert_eq!(waits[..5], [5, 10, 20, 40, 80]);
        assert_eq!(waits[19], 1_000_000);
        queue.forget(&key("a"));
        assert_eq!(queue.failures(&key("a")), 0);
    }
}
