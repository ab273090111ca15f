//! etcd's semantics in process: one revision counter, compare-and-set on mod-revision, ranges at a revision, ordered
//! watches, compaction. The state and a bounded history live in memory; a [`log::Log`] behind them makes every commit
//! durable before anyone sees it.
//!
//! ```text
//!   commit ──queue──► writer thread: judge ─► log.commit (one fsync a batch) ─► apply ─► wake watchers ─► answer
//!                                                                                 │
//!   get, range, count, watch ◄───────────── RwLock<MemoryImage> ◄───────────────────────┘
//! ```
//!
//! Invariants:
//! - What a reader or a watcher sees is durable. There is no way to see a write that a crash could take back.
//! - Revisions grow by one per transaction that changes something, and never go back, not even over a restart.
//! - Only the writer thread adds to the state; compaction (from any thread) only forgets what no reader may ask for.
//! - While an fsync runs the next batch gathers in the queue; nothing ever waits for a timer to fill a batch.

mod compact;
mod decide;
pub mod etcd;
mod health;
mod judge;
pub mod log;
mod queue;
mod range;
mod record;
mod recover;
mod state;
mod stats;
mod store;
mod transform;
mod txn;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

pub use decide::{Decide, View, Write};
pub use health::LogFailure;
pub use log::{EmbeddedLog, EmbeddedOptions, Log, OpenError, SYNC_BUCKETS};
pub use range::{Page, RangeError, RangeQuery};
pub use record::{Event, EventKind, Item, Record, RecordError};
pub use stats::Stats;
pub use store::{Options, Store};
pub use transform::{TransformError, Transformer};
pub use txn::{Action, CommitError, Expect, Op, Txn};
pub use watch::Watcher;

/// The position of a transaction in the one order of all transactions. An empty store stands at 1, as etcd does.
pub type Revision = u64;
