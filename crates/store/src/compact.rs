//! Compaction: forgetting the oldest revisions, by count, by bytes, by age, or because someone asks.
//!
//! There is one compacted revision for the whole store. History goes oldest revision first, whole revisions at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::state::MemoryImage;
use crate::{Event, EventKind, Record, Revision};

/// How much history to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub events: usize,
    pub bytes: u64,
    pub age: Duration,
}

impl Bounds {
    /// Commits at or before this moment (microseconds since the epoch) are too old to keep.
    pub(crate) fn too_old(&self, now_micros: i64) -> i64 {
        now_micros.saturating_sub(i64::try_from(self.age.as_micros()).unwrap_or(i64::MAX))
    }
}

impl<R: Record> MemoryImage<R> {
    /// Forgets what exceeds the bounds, about `budget` events at most, and moves the compacted revision along.
    /// Returns what was forgotten, for the caller to drop outside the lock; nothing means the bounds are kept.
    #[must_use]
    pub(crate) fn trim(&mut self, bounds: &Bounds, now_micros: i64, budget: usize) -> Vec<Arc<Event<R>>> {
        let too_old = bounds.too_old(now_micros);
        let mut forgotten = Vec::new();
        while let Some(oldest) = self.past.front()
            && forgotten.len() < budget
            && (self.past.len() > bounds.events || self.past_bytes > bounds.bytes || oldest.micros <= too_old)
        {
            let revision = self.oldest_revision().expect("history is not empty");
            self.compacted = self.compacted.max(revision);
            self.forget_to(revision, usize::MAX, &mut forgotten);
        }
        forgotten
    }

    /// Compacts at `at`, which must not lie in the future; forgets about `budget` events at most, so that the caller
    /// can let others have the lock in between. Reads before `at` are refused from the first call on.
    #[must_use]
    pub(crate) fn compact(&mut self, at: Revision, budget: usize) -> Vec<Arc<Event<R>>> {
        self.compacted = self.compacted.max(at);
        let mut forgotten = Vec::new();
        self.forget_to(at, budget, &mut forgotten);
        forgotten
    }

    fn oldest_revision(&self) -> Option<Revision> {
        let bucket = &self.buckets[self.past.front()?.bucket];
        bucket.ring.front().map(|event| event.revision)
    }

    fn forget_to(&mut self, revision: Revision, budget: usize, forgotten: &mut Vec<Arc<Event<R>>>) {
        while forgotten.len() < budget && self.oldest_revision().is_some_and(|oldest| oldest <= revision) {
            let past = self.past.pop_front().expect("there is an oldest event");
            let bucket = &mut self.buckets[past.bucket];
            let event = bucket
                .ring
                .pop_front()
                .expect("each entry of the past has its event in its bucket");
            bucket.trimmed = event.revision;
            if let Some(previous) = &event.previous {
                self.past_bytes -= previous.record.bytes().len() as u64;
            }
            self.forget_versions(&event);
            forgotten.push(event);
        }
    }

    /// Drops the versions that only readers before `event` could see.
    fn forget_versions(&mut self, event: &Event<R>) {
        let Some(versions) = self.keys.get_mut(&*event.key) else {
            return;
        };
        let older = &mut versions.older;
        while older.front().is_some_and(|version| version.modified < event.revision) {
            older.pop_front();
        }
        if event.kind == EventKind::Delete {
            if versions.current.modified == event.revision {
                self.keys.remove(&*event.key);
                return;
            }
            // The key came back later; without anything before it the tombstone says nothing.
            if older.front().is_some_and(|version| version.modified == event.revision) {
                older.pop_front();
            }
        }
        if older.is_empty() && older.capacity() > 0 {
            *older = VecDeque::new();
        }
    }
}
