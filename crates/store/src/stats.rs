//! Counters for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::log::LogStats;
use crate::state::MemoryImage;
use crate::{Record, Revision};

/// A look at the store, for metrics. Counters count since the store was opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub revision: Revision,
    pub compacted: Revision,
    pub keys: usize,
    /// Bytes of keys and current records.
    pub live_bytes: u64,
    /// Keys per bucket (`/registry/pods`), in no order.
    pub buckets: Vec<(Arc<str>, usize)>,
    pub history_events: usize,
    /// Bytes of superseded records that history keeps.
    pub history_bytes: u64,
    pub watchers: usize,
    /// Transactions that changed something, that were refused by a comparison, that the log could not take.
    pub commits: u64,
    pub conflicts: u64,
    pub unavailable: u64,
    /// Calls of the log: `commits / batches` is the mean size of a batch.
    pub batches: u64,
    pub largest_batch: u64,
    /// Times that history was cut.
    pub compactions: u64,
    pub log: LogStats,
}

/// The parts of `Stats` that nobody else counts.
#[derive(Default)]
pub(crate) struct Counters {
    pub watchers: AtomicUsize,
    pub commits: AtomicU64,
    pub conflicts: AtomicU64,
    pub unavailable: AtomicU64,
    pub batches: AtomicU64,
    pub largest_batch: AtomicU64,
    pub compactions: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn stats<R: Record>(&self, state: &MemoryImage<R>, log: LogStats) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            revision: state.revision,
            compacted: state.compacted,
            keys: state.live_keys,
            live_bytes: state.live_bytes,
            buckets: state.buckets.iter().map(|b| (b.name.clone(), b.live_keys)).collect(),
            history_events: state.past.len(),
            history_bytes: state.past_bytes,
            watchers: self.watchers.load(Ordering::Relaxed),
            commits: load(&self.commits),
            conflicts: load(&self.conflicts),
            unavailable: load(&self.unavailable),
            batches: load(&self.batches),
            largest_batch: load(&self.largest_batch),
            compactions: load(&self.compactions),
            log,
        }
    }
}
