//! A short-lived cache of fetched objects; one request at a time for each object.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Clock;
use parking_lot::Mutex;

use super::{ObjectError, Result};

/// How long an object is taken as it was. Pods look again about once a minute, so little is lost by it.
const FRESH: Duration = Duration::from_secs(10);
/// How long a failure is: those who waited for the same request need not all repeat it.
const FAILED: Duration = Duration::from_secs(1);
/// Objects kept at once.
const KEPT_MAX: usize = 4096;

pub(super) struct Cache<T> {
    slots: Mutex<HashMap<(String, String), Arc<Slot<T>>>>,
    /// Orders fetches and demands for fresh ones.
    ticket: AtomicU64,
}

struct Slot<T> {
    /// Held by whoever fetches.
    fetching: tokio::sync::Mutex<()>,
    known: Mutex<Known<T>>,
}

struct Known<T> {
    answer: Option<CachedObject<T>>,
    /// Fetches with a lower ticket are too old.
    wanted: u64,
}

struct CachedObject<T> {
    outcome: Result<Arc<T>>,
    at: Timestamp,
    /// For how long.
    holds: Duration,
    ticket: u64,
}

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache {
            slots: Mutex::default(),
            ticket: AtomicU64::new(0),
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot {
            fetching: tokio::sync::Mutex::new(()),
            known: Mutex::new(Known {
                answer: None,
                wanted: 0,
            }),
        }
    }
}

impl<T> Cache<T> {
    pub(super) async fn get<F>(
        &self,
        namespace: &str,
        name: &str,
        clock: &Clock,
        fetch: impl Fn() -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let slot = self.slot(namespace, name, clock.now());
        if let Some(outcome) = slot.known.lock().fresh(clock.now()) {
            return outcome;
        }
        let _fetching = slot.fetching.lock().await;
        if let Some(outcome) = slot.known.lock().fresh(clock.now()) {
            return outcome;
        }
        let ticket = self.ticket.fetch_add(1, Ordering::SeqCst);
        let outcome = fetch().await.map(Arc::new);
        slot.known.lock().learn(outcome, ticket, clock.now())
    }

    /// The next to ask gets what is fetched after this.
    pub(super) fn outdate(&self, namespace: &str, name: &str) {
        let slots = self.slots.lock();
        if let Some(slot) = slots.get(&(namespace.to_string(), name.to_string())) {
            slot.known.lock().wanted = self.ticket.load(Ordering::SeqCst);
        }
    }

    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.slots.lock().remove(&(namespace.to_string(), name.to_string()));
    }

    fn slot(&self, namespace: &str, name: &str, now: Timestamp) -> Arc<Slot<T>> {
        let key = (namespace.to_string(), name.to_string());
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&key) {
            return slot.clone();
        }
        if slots.len() >= KEPT_MAX {
            slots.retain(|_, slot| slot.known.lock().fresh(now).is_some());
        }
        let slot = Arc::new(Slot::default());
        // Where so many are fresh, this one is fetched for its caller alone.
        if slots.len() < KEPT_MAX {
            slots.insert(key, slot.clone());
        }
        slot
    }
}

impl<T> Known<T> {
    fn fresh(&self, now: Timestamp) -> Option<Result<Arc<T>>> {
        let answer = self.answer.as_ref()?;
        let holds = answer.ticket >= self.wanted && now.duration_since(answer.at).unsigned_abs() < answer.holds;
        holds.then(|| answer.outcome.clone())
    }

    fn learn(&mut self, outcome: Result<Arc<T>>, ticket: u64, now: Timestamp) -> Result<Arc<T>> {
        let known = self.answer.take().and_then(|answer| answer.outcome.ok());
        let (outcome, holds) = match (outcome, known) {
            (Ok(value), _) => (Ok(value), FRESH),
            (Err(ObjectError::Failed(_)), Some(known)) => (Ok(known), FAILED),
            (Err(error), _) => (Err(error), FAILED),
        };
        self.answer = Some(CachedObject {
            outcome: outcome.clone(),
            at: now,
            holds,
            ticket,
        });
        outcome
    }
}
