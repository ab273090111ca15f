//! Watching: a watcher is a cursor into its bucket's ring of events and a wake-up call, not a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use crate::state::bucket_name;
use crate::store::Shared;
use crate::{Event, RangeError, Record, Revision};

/// Events handed out at once, give or take the rest of the last one's revision.
const BATCH: usize = 256;
/// Events looked at per hold of the lock; those of other prefixes in the bucket cost a string comparison each.
const STRIDE: usize = 4096;

/// Sees every event under its prefix after its cursor, in order, once. Falls off if it gets slower than history is long.
pub struct Watcher<R: Record> {
    shared: Arc<Shared<R>>,
    bucket: usize,
    prefix: Box<str>,
    /// Every event under the prefix up to here has been handed out.
    cursor: Revision,
    wake: watch::Receiver<()>,
}

impl<R: Record> Watcher<R> {
    pub(crate) fn open(shared: &Arc<Shared<R>>, prefix: &str, after: Revision) -> Result<Watcher<R>, RangeError> {
        let name = bucket_name(prefix);
        debug_assert!(
            name.matches('/').count() >= 2,
            "a watch stays inside one bucket, `{prefix}` spans several"
        );
        let existing = {
            let state = shared.state.read();
            state.readable(after)?;
            state
                .find_bucket(name)
                .map(|index| (index, state.buckets[index].wake.subscribe()))
        };
        let (bucket, wake) = match existing {
            Some(found) => found,
            None => {
                let mut state = shared.state.write();
                state.readable(after)?;
                let index = state.bucket(name);
                (index, state.buckets[index].wake.subscribe())
            }
        };
        shared.counters.watchers.fetch_add(1, Ordering::Relaxed);
        Ok(Watcher {
            shared: shared.clone(),
            bucket,
            prefix: prefix.into(),
            cursor: after,
            wake,
        })
    }

    /// Waits until there is something after the cursor; returns a bounded batch of events, never a part of a
    /// revision, and moves the cursor. Safe to cancel: what was not returned comes next time. After the store is
    /// closed this waits for ever.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<R>>>, RangeError> {
        loop {
            // Before looking, so that a commit right after the look still wakes.
            self.wake.mark_unchanged();
            let events = self.try_next()?;
            if !events.is_empty() {
                return Ok(events);
            }
            self.wake
                .changed()
                .await
                .expect("the sender lives in the state, which the watcher keeps alive");
        }
    }

    /// The same without waiting; empty if there is nothing now.
    pub fn try_next(&mut self) -> Result<Vec<Arc<Event<R>>>, RangeError> {
        let mut found = Vec::new();
        loop {
            let state = self.shared.state.read();
            let bucket = &state.buckets[self.bucket];
            // Not the store's compacted revision: a watcher of a quiet bucket has missed nothing.
            if bucket.trimmed > self.cursor {
                return Err(RangeError::Compacted {
                    compacted: state.compacted,
                });
            }
            if bucket.ring.back().is_none_or(|last| last.revision <= self.cursor) {
                self.cursor = state.revision;
                return Ok(found);
            }
            let first = bucket.ring.partition_point(|event| event.revision <= self.cursor);
            let mut ended = true;
            for (looked, event) in bucket.ring.range(first..).enumerate() {
                if (found.len() >= BATCH || looked >= STRIDE) && event.revision > self.cursor {
                    ended = false;
                    break;
                }
                self.cursor = event.revision;
                if event.key.starts_with(&*self.prefix) {
                    found.push(event.clone());
                }
            }
            if ended {
                self.cursor = state.revision;
            }
            if ended || !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// Every event up to this revision under the prefix has been handed out: what a bookmark may say.
    pub fn progress(&self) -> Revision {
        let state = self.shared.state.read();
        let last = state.buckets[self.bucket].ring.back();
        match last.is_none_or(|last| last.revision <= self.cursor) && state.buckets[self.bucket].trimmed <= self.cursor
        {
            true => state.revision,
            false => self.cursor,
        }
    }
}

impl<R: Record> Drop for Watcher<R> {
    fn drop(&mut self) {
        self.shared.counters.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
