//! What makes commits durable. The store keeps all state in memory; a log only has to remember, in order.
//!
//! The embedded log numbers revisions as the store proposes them. The trait leaves room for one that numbers them itself and
//! may refuse a transaction that the store found good. An etcd that servers share is no log, though: see [`crate::etcd`].

mod embedded;
mod memory;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

pub use embedded::{EmbeddedLog, EmbeddedOptions};
pub use memory::MemoryLog;

use crate::{Expect, RecordError, Revision};

pub trait Log: Send {
    /// Hands over what the log remembers: at most one base first, then transactions by revision. Called once, before
    /// anything else. Returns the largest revision ever confirmed (1 if there is none).
    fn replay(&mut self, sink: &mut dyn FnMut(Replayed)) -> Result<Revision, OpenError>;

    /// Makes a batch durable, in order; returns one outcome per transaction. On an error nothing of the batch
    /// happened, unless it is `undecided`; the next call tries anew.
    fn commit(&mut self, micros: i64, batch: &[Transaction<'_>]) -> Result<Vec<AppendResult>, LogError>;

    /// Undoes what failed commits may have left. When this returns well, nothing of an undecided batch happened.
    fn repair(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Finds out whether the log can be written, by doing it. Asked now and then after a failure while nobody commits.
    fn probe(&mut self, micros: i64) -> Result<(), LogError> {
        let _ = micros;
        Ok(())
    }

    /// Asked now and then, with the bytes of the live state: a log that has outgrown it returns a job that writes the
    /// state down, so that the log can be shortened. At most one such job runs at a time.
    fn checkpoint(&mut self, live_bytes: u64) -> Option<Box<dyn Checkpoint>> {
        let _ = live_bytes;
        None
    }

    /// Shared with whoever reports metrics while the writer thread owns the log.
    fn meter(&self) -> Arc<LogMeter>;
}

/// A transaction on its way to the log. The comparisons held in memory.
pub struct Transaction<'a> {
    /// What the store proposes: the next revision, and one more for each transaction of the batch.
    pub revision: Revision,
    /// All expectations but `Any`.
    pub compares: Vec<(&'a Arc<str>, Expect)>,
    /// Each key once; none: delete.
    pub writes: Vec<(&'a Arc<str>, Option<&'a Bytes>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendResult {
    Committed(Revision),
    /// Another writer of the same log was faster.
    Refused,
}

pub enum Replayed {
    /// The whole live state as of a revision, ascending by key.
    Base { revision: Revision, items: Vec<BaseItem> },
    Transaction {
        revision: Revision,
        micros: i64,
        writes: Vec<(Arc<str>, Option<Bytes>)>,
    },
}

#[derive(Clone, Debug)]
pub struct BaseItem {
    pub key: Arc<str>,
    pub created: Revision,
    pub modified: Revision,
    pub bytes: Bytes,
}

/// Writes the live state down; runs in a thread of its own while the log goes on.
pub trait Checkpoint: Send {
    /// `items` ascend by key and are all that was live at `revision`. Stops early, without harm, when `cancel` is set.
    fn write(
        self: Box<Self>,
        revision: Revision,
        count: u64,
        items: &mut dyn Iterator<Item = BaseItem>,
        cancel: &AtomicBool,
    ) -> Result<(), LogError>;
}

/// The log could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}; {changed}, {advice}", path = path.display(), changed = self.changed())]
pub struct LogError {
    pub path: PathBuf,
    pub source: std::io::Error,
    pub advice: &'static str,
    /// Whether a restart would find the batch is not known before `Log::repair` has worked.
    pub undecided: bool,
}

impl LogError {
    pub(crate) fn new(path: impl Into<PathBuf>, source: std::io::Error) -> LogError {
        use std::io::ErrorKind as Kind;
        let advice = match source.kind() {
            Kind::StorageFull | Kind::QuotaExceeded => "free some space there and try again",
            Kind::ReadOnlyFilesystem => "make the file system writable and try again",
            Kind::PermissionDenied => "check the permissions there and try again",
            _ => "check the disk and try again",
        };
        LogError {
            path: path.into(),
            source,
            advice,
            undecided: false,
        }
    }

    fn changed(&self) -> &'static str {
        match self.undecided {
            true => "whether this write will be there after a restart is not known",
            false => "nothing was changed",
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data directory {dir} is in use by another orlop (pid {pid})", dir = dir.display())]
    InUse { dir: PathBuf, pid: String },
    #[error("cannot use {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{file} is damaged at byte {offset}: {reason}; restore the data directory from a backup",
        file = file.display()
    )]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error(
        "{what}; restore the data directory from a backup, or delete {mark} to start without what is lost",
        mark = mark.display()
    )]
    Lost { what: String, mark: PathBuf },
    #[error("the record under {key} cannot be read: {reason}")]
    Record { key: String, reason: RecordError },
    #[error("cannot use etcd at {endpoints}: {reason}")]
    Etcd { endpoints: String, reason: String },
    #[error("cannot start the store's writer thread: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Io { path, source }
    }
}

/// Upper bounds in seconds of the buckets that syncs are counted in. Upstream: those of etcd's
/// etcd_disk_wal_fsync_duration_seconds.
pub const SYNC_BUCKETS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];

/// What a log did since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Bytes on disk now.
    pub disk_bytes: u64,
    pub written_bytes: u64,
    pub syncs: u64,
    /// Syncs in each of `SYNC_BUCKETS` alone; those that took longer are in `syncs` only.
    pub syncs_by_bucket: [u64; SYNC_BUCKETS.len()],
    pub sync_time: Duration,
    pub slowest_sync: Duration,
    pub failures: u64,
    pub snapshots: u64,
}

#[derive(Default)]
pub struct LogMeter {
    pub(crate) disk_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) syncs_by_bucket: [AtomicU64; SYNC_BUCKETS.len()],
    pub(crate) sync_nanos: AtomicU64,
    pub(crate) slowest_sync_nanos: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

impl LogMeter {
    pub fn stats(&self) -> LogStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStats {
            disk_bytes: load(&self.disk_bytes),
            written_bytes: load(&self.written_bytes),
            syncs_by_bucket: self
                .syncs_by_bucket
                .each_ref()
                .map(|count| count.load(Ordering::Acquire)),
            syncs: load(&self.syncs),
            sync_time: Duration::from_nanos(load(&self.sync_nanos)),
            slowest_sync: Duration::from_nanos(load(&self.slowest_sync_nanos)),
            failures: load(&self.failures),
            snapshots: load(&self.snapshots),
        }
    }

    pub(crate) fn synced(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        if let Some(i) = SYNC_BUCKETS.iter().position(|bound| seconds <= *bound) {
            // After `syncs` and read before it: a bucket never has more than all of them.
            self.syncs_by_bucket[i].fetch_add(1, Ordering::Release);
        }
        self.sync_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.slowest_sync_nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}
