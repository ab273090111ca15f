//! Who waits for what: transactions under way, and revisions that the image has not reached yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use orlop_base::clock::monotonic;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Revision;

/// How long nothing got done although somebody waits.
#[derive(Default)]
pub(super) struct Pending(Mutex<Since>);

#[derive(Default)]
struct Since {
    waiting: usize,
    /// Since when nothing was done, if somebody waits or the last one waited in vain.
    since: Option<Instant>,
}

/// Somebody waits. It says how that ended, or goes.
pub(super) struct Wait<'p> {
    pending: &'p Pending,
    done: Option<bool>,
}

impl Wait<'_> {
    pub(super) fn end(mut self, done: bool) {
        self.done = Some(done);
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = self.pending.0.lock();
        state.waiting -= 1;
        match self.done {
            Some(true) => state.since = (state.waiting > 0).then(monotonic),
            Some(false) => {}
            // Who went away says nothing about the others.
            None if state.waiting == 0 => state.since = None,
            None => {}
        }
    }
}

impl Pending {
    pub(super) fn begin(&self) -> Wait<'_> {
        let mut state = self.0.lock();
        state.waiting += 1;
        state.since.get_or_insert_with(monotonic);
        Wait {
            pending: self,
            done: None,
        }
    }

    pub(super) fn pending_for(&self) -> Duration {
        self.0.lock().since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Who waits for the image to reach a revision.
#[derive(Default)]
pub(super) struct Reached(Mutex<BTreeMap<Revision, Vec<oneshot::Sender<()>>>>);

impl Reached {
    /// `now` is asked under the lock that `announce` takes after the image has changed: nothing is missed in between.
    pub(super) fn wait(&self, revision: Revision, now: impl FnOnce() -> Revision) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.0.lock();
        if now() >= revision {
            return None;
        }
        let (tell, told) = oneshot::channel();
        waiting.entry(revision).or_default().push(tell);
        Some(told)
    }

    pub(super) fn announce(&self, revision: Revision) {
        let mut waiting = self.0.lock();
        let still = waiting.split_off(&(revision + 1));
        let there = std::mem::replace(&mut *waiting, still);
        drop(waiting);
        for tell in there.into_values().flatten() {
            let _ = tell.send(());
        }
    }

    /// Nobody will announce anything any more.
    pub(super) fn abandon(&self) {
        self.0.lock().clear();
    }
}

/// A record on its way to etcd: it comes back in the watch, and need not be opened and decoded again then.
pub(super) struct Sent<R> {
    pub value: Bytes,
    pub record: Arc<R>,
    /// At which revision it came back; 0: not yet.
    seen: AtomicU64,
}

impl<R> Sent<R> {
    pub(super) fn new(value: Bytes, record: Arc<R>) -> Arc<Sent<R>> {
        Arc::new(Sent {
            value,
            record,
            seen: AtomicU64::new(0),
        })
    }

    pub(super) fn seen(&self) -> Option<Revision> {
        Some(self.seen.load(Ordering::Acquire)).filter(|revision| *revision > 0)
    }
}

pub(super) struct InFlight<R>(Mutex<HashMap<Arc<str>, Vec<Arc<Sent<R>>>>>);

impl<R> Default for InFlight<R> {
    fn default() -> Self {
        InFlight(Mutex::default())
    }
}

impl<R> InFlight<R> {
    pub(super) fn add(&self, key: &Arc<str>, sent: &Arc<Sent<R>>) {
        self.0.lock().entry(key.clone()).or_default().push(sent.clone());
    }

    pub(super) fn remove(&self, key: &str, sent: &Arc<Sent<R>>) {
        let mut all = self.0.lock();
        if let Some(of_key) = all.get_mut(key) {
            of_key.retain(|other| !Arc::ptr_eq(other, sent));
            if of_key.is_empty() {
                all.remove(key);
            }
        }
    }

    /// The record that was sent as this value, if it was sent from here.
    pub(super) fn find(&self, key: &str, value: &Bytes, revision: Revision) -> Option<Arc<R>> {
        let all = self.0.lock();
        let sent = all.get(key)?.iter().find(|sent| sent.value == *value)?;
        sent.seen.store(revision, Ordering::Release);
        Some(sent.record.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_revision_is_told_at_it_and_not_before() {
        let reached = Reached::default();
        assert!(reached.wait(3, || 3).is_none());
        let mut third = reached.wait(3, || 2).unwrap();
        let mut fifth = reached.wait(5, || 2).unwrap();
        reached.announce(2);
        assert!(third.try_recv().is_err());
        reached.announce(4);
        assert!(third.try_recv().is_ok() && fifth.try_recv().is_err());
        reached.abandon();
        assert!(fifth.await.is_err());
    }

    #[test]
    fn what_came_back_is_known_by_its_value() {
        let in_flight = InFlight::default();
        let key: Arc<str> = "/a/b/c".into();
        let (one, two) = (Sent::new("1".into(), Arc::new(1)), Sent::new("2".into(), Arc::new(2)));
        in_flight.add(&key, &one);
        in_flight.add(&key, &two);
        assert_eq!(in_flight.find(&key, &"2".into(), 7).as_deref(), Some(&2));
        assert_eq!((one.seen(), two.seen()), (None, Some(7)));
        in_flight.remove(&key, &two);
        assert!(in_flight.find(&key, &"2".into(), 8).is_none());
        in_flight.remove(&key, &one);
        assert!(in_flight.0.lock().is_empty());
    }

    #[test]
    fn waiting_in_vain_goes_on_until_something_gets_done() {
        let pending = Pending::default();
        pending.begin().end(false);
        assert!(pending.0.lock().since.is_some());
        pending.begin().end(true);
        assert_eq!(pending.pending_for(), Duration::ZERO);
        let (one, other) = (pending.begin(), pending.begin());
        drop(one);
        assert!(pending.0.lock().since.is_some(), "the other one still waits");
        drop(other);
        assert_eq!(pending.pending_for(), Duration::ZERO);
    }
}
