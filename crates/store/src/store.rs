//! The store as its users see it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use orlop_base::Clock;
use orlop_base::clock::Shift;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::compact::Bounds;
use crate::decide::{Decide, Proposal};
use crate::etcd::{self, Etcd, EtcdOptions, NotCurrent};
use crate::health::{Health, LogFailure};
use crate::log::{Log, LogMeter, OpenError};
use crate::queue::Queue;
use crate::state::MemoryImage;
use crate::stats::{Counters, Stats};
use crate::transform::{self, Transformer};
use crate::writer::Writer;
use crate::{CommitError, Item, Page, RangeError, RangeQuery, Record, Revision, Txn, Watcher, range, recover};

/// Events forgotten per hold of the write lock by an explicit compaction.
const COMPACT_STRIDE: usize = 4096;

/// How much history to keep for watches and for reads at older revisions; whichever bound is hit first.
#[derive(Clone)]
pub struct Options {
    pub history_events: usize,
    /// Bytes of superseded records. Current records do not count.
    pub history_bytes: u64,
    pub history_age: Duration,
    pub clock: Clock,
    /// None: the log holds records as they are.
    pub transformer: Option<Arc<dyn Transformer>>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("history_events", &self.history_events)
            .field("history_bytes", &self.history_bytes)
            .field("history_age", &self.history_age)
            .field("transforms", &self.transformer.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history_events: 100_000,
            // About as much as the live objects of a small cluster: memory use is at most doubled by history.
            history_bytes: 32 << 20,
            // Upstream: kube-apiserver has etcd compact every five minutes (--etcd-compaction-interval, v1.36).
            history_age: Duration::from_secs(300),
            clock: Clock::System,
            transformer: None,
        }
    }
}

impl Options {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            events: self.history_events,
            bytes: self.history_bytes,
            age: self.history_age,
        }
    }

    /// How often to look for history that has become too old while nobody writes.
    pub(crate) fn tick(&self) -> Duration {
        self.history_age
            .checked_div(16)
            .unwrap_or_default()
            .clamp(Duration::from_millis(10), Duration::from_secs(10))
    }
}

/// A handle on the store; clones share it. When the last one goes the store closes, as after [`Store::close`].
pub struct Store<R: Record> {
    handle: Arc<Handle<R>>,
}

impl<R: Record> Clone for Store<R> {
    fn clone(&self) -> Self {
        Store {
            handle: self.handle.clone(),
        }
    }
}

/// What readers, watchers and the writer share.
pub(crate) struct Shared<R> {
    pub state: RwLock<MemoryImage<R>>,
    pub counters: Counters,
    pub meter: Arc<LogMeter>,
    pub health: Health,
}

struct Handle<R: Record> {
    shared: Arc<Shared<R>>,
    backend: Backend<R>,
    transformer: Option<Arc<dyn Transformer>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Its sender goes when the writer thread is done and the log is closed.
    stopped: watch::Receiver<()>,
}

/// Where commits go.
enum Backend<R: Record> {
    /// To the writer thread of a log that is ours alone.
    Log(Arc<Queue<R>>),
    /// To a cluster that other servers share.
    Etcd(Arc<Etcd<R>>),
}

impl<R: Record> Store<R> {
    /// Replays the log and starts the writer thread.
    pub fn open(mut log: Box<dyn Log>, options: Options) -> Result<Store<R>, OpenError> {
        let state = recover::replay(&mut *log, &options)?;
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            counters: Counters::default(),
            meter: log.meter(),
            health: Health::default(),
        });
        let queue = Arc::new(Queue::new());
        let (running, stopped) = watch::channel(());
        let transformer = options.transformer.clone();
        let writer = Writer::new(shared.clone(), queue.clone(), log, options);
        let thread = std::thread::Builder::new()
            .name("orlop-store".into())
            .spawn(move || {
                writer.run();
                drop(running);
            })
            .map_err(OpenError::Thread)?;
        Ok(Store {
            handle: Arc::new(Handle {
                shared,
                backend: Backend::Log(queue),
                transformer,
                threads: Mutex::new(vec![thread]),
                stopped,
            }),
        })
    }

    /// Loads what etcd has and starts to follow it. Blocks until the image is there: not on a thread that serves.
    pub fn connect(etcd: EtcdOptions, options: Options) -> Result<Store<R>, OpenError> {
        let shared = Arc::new(Shared {
            state: RwLock::new(MemoryImage::new(1, 1)),
            counters: Counters::default(),
            meter: Arc::default(),
            health: Health::default(),
        });
        let transformer = options.transformer.clone();
        let opened = etcd::open(shared.clone(), etcd, options)?;
        Ok(Store {
            handle: Arc::new(Handle {
                shared,
                backend: Backend::Etcd(opened.etcd),
                transformer,
                threads: Mutex::new(opened.threads),
                stopped: opened.stopped,
            }),
        })
    }

    /// Whether other servers write to it, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.handle.backend, Backend::Etcd(_))
    }

    /// Waits until what is read is at least as new as the moment of the call. At once where nobody else writes.
    pub async fn current(&self) -> Result<Revision, NotCurrent> {
        match &self.handle.backend {
            Backend::Log(_) => Ok(self.revision()),
            Backend::Etcd(etcd) => etcd.current_now().await,
        }
    }

    /// Waits until a revision can be read that another server may have told of; says whether it can.
    pub async fn reaches(&self, revision: Revision, patience: Duration) -> bool {
        match &self.handle.backend {
            Backend::Log(_) => revision <= self.revision(),
            Backend::Etcd(etcd) => {
                etcd.reaches(revision, tokio::time::Instant::now().later(patience))
                    .await
            }
        }
    }

    /// The revision of the last durable, visible commit.
    pub fn revision(&self) -> Revision {
        self.handle.shared.state.read().revision
    }

    /// Reads and watches at a smaller revision are refused.
    pub fn compacted(&self) -> Revision {
        self.handle.shared.state.read().compacted
    }

    pub fn get(&self, key: &str) -> Option<Item<R>> {
        self.handle.shared.state.read().get(key)
    }

    /// Keys with a prefix, ascending, at one revision. `keep` filters while scanning (labels, fields) and should be
    /// quick: writers wait meanwhile. It must not call the store, and may see a key twice if the scan starts over.
    pub fn range(&self, query: RangeQuery<'_>, keep: &mut dyn FnMut(&Item<R>) -> bool) -> Result<Page<R>, RangeError> {
        range::range(&self.handle.shared.state, &query, keep)
    }

    /// Grows whenever a key of the bucket in which `prefix` lies is written or deleted.
    pub fn bucket_revision(&self, prefix: &str) -> Revision {
        let state = self.handle.shared.state.read();
        let bucket = state
            .find_bucket(crate::state::bucket_name(prefix))
            .map(|i| &state.buckets[i]);
        bucket.map_or(0, |b| b.ring.back().map_or(b.trimmed, |event| event.revision))
    }

    /// Keys with a prefix, now. Constant time for a whole bucket (`/registry/pods/`).
    pub fn count(&self, prefix: &str) -> usize {
        range::count(&self.handle.shared.state, prefix)
    }

    /// All-or-nothing, at one revision. When this returns a revision, the transaction is durable and visible to
    /// readers and watchers. A transaction that changes nothing takes no revision and returns the current one.
    ///
    /// If the future is dropped while it waits, the transaction may or may not happen.
    pub async fn commit(&self, txn: impl Into<Txn<R>>) -> Result<Revision, CommitError<R>> {
        let txn = txn.into();
        let queue = match &self.handle.backend {
            Backend::Log(queue) => queue,
            Backend::Etcd(etcd) => return etcd.commit(&txn).await,
        };
        let sealed = match self.handle.transformer.as_deref() {
            // By whoever commits: one that can't be sealed is nobody else's trouble.
            Some(transformer) => {
                let sealed = transform::seal(transformer, &txn);
                sealed.map_err(|e| CommitError::Unavailable(e.to_string()))?
            }
            None => vec![],
        };
        queue.send(Proposal::Ops(txn), sealed).await
    }

    /// Whether the log may hold a record in another form than it would be written in now: writing it again, even without
    /// a change, then has a point.
    pub fn is_stale(&self, key: &str) -> bool {
        let transformer = self.handle.transformer.as_deref();
        transformer.is_some_and(|transformer| transformer.is_stale(key))
    }

    /// As [`Store::commit`], for transactions that depend on more than comparisons of keys: what is written is decided by
    /// the writer thread, between the transaction before and the one after it. `bytes` is about how many that may be.
    /// `decide` must be quick and must not panic or call the store: all writers wait for it. It is called once, at
    /// most; what it saw is durable if and when this returns a revision.
    pub async fn decide(&self, bytes: usize, decide: Decide<R>) -> Result<Revision, CommitError<R>> {
        let Backend::Log(queue) = &self.handle.backend else {
            return Err(CommitError::Unavailable("etcd only compares keys".to_string()));
        };
        if self.handle.transformer.is_some() {
            return Err(CommitError::Unavailable(
                "what the writer thread decides can't be sealed".to_string(),
            ));
        }
        let decide = Some(decide);
        queue.send(Proposal::Decide { bytes, decide }, vec![]).await
    }

    /// Events under `prefix` after a revision, in order. The prefix lies inside one bucket: it starts with two whole
    /// path segments and a slash, as in `/registry/pods/`.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watcher<R>, RangeError> {
        Watcher::open(&self.handle.shared, prefix, after)
    }

    /// Forgets history up to a revision: reads at older ones are refused from now on.
    pub fn compact(&self, at: Revision) {
        let shared = &self.handle.shared;
        let at = at.min(self.revision());
        Counters::add(&shared.counters.compactions, 1);
        loop {
            let forgotten = shared.state.write().compact(at, COMPACT_STRIDE);
            if forgotten.is_empty() {
                return;
            }
        }
    }

    /// Commits what waits, refuses what comes, stops the writer thread and releases the log. Reads keep working.
    pub async fn close(&self) {
        match &self.handle.backend {
            Backend::Log(queue) => queue.close(),
            Backend::Etcd(etcd) => etcd.close().await,
        }
        self.stopped().await;
    }

    /// The writer thread is there: the store was not closed, nor did the thread panic.
    pub fn is_running(&self) -> bool {
        self.handle.stopped.has_changed().is_ok()
    }

    /// How long the writer thread has finished nothing although transactions wait for it: more than a moment means that
    /// the disk hangs. Zero if nobody waits.
    pub fn pending_for(&self) -> Duration {
        match &self.handle.backend {
            Backend::Log(queue) => queue.pending_for(),
            Backend::Etcd(etcd) => etcd.pending_for(),
        }
    }

    /// Waits until the writer thread is gone.
    pub async fn stopped(&self) {
        let mut stopped = self.handle.stopped.clone();
        while stopped.changed().await.is_ok() {}
    }

    /// Whether writes work. An error from the first write that the log could not take until one that it took again, and
    /// for good once the writer thread has ended.
    pub fn health(&self) -> Result<(), LogFailure> {
        match &self.handle.backend {
            Backend::Log(_) => self.handle.shared.health.get(),
            Backend::Etcd(etcd) => etcd.health(),
        }
    }

    /// Bytes of keys, of current records and of those that history keeps.
    pub fn used_bytes(&self) -> u64 {
        let state = self.handle.shared.state.read();
        state.live_bytes + state.past_bytes
    }

    pub fn stats(&self) -> Stats {
        let shared = &self.handle.shared;
        shared.counters.stats(&shared.state.read(), shared.meter.stats())
    }
}

#[cfg(test)]
impl<R: Record> Store<R> {
    pub(crate) fn etcd(&self) -> &Etcd<R> {
        match &self.handle.backend {
            Backend::Etcd(etcd) => etcd,
            Backend::Log(_) => panic!("this store has a log of its own"),
        }
    }

    /// Versions in memory, tombstones included.
    pub fn versions(&self) -> usize {
        self.handle
            .shared
            .state
            .read()
            .keys
            .values()
            .map(|versions| 1 + versions.older.len())
            .sum()
    }
}

impl<R: Record> Drop for Handle<R> {
    fn drop(&mut self) {
        match &self.backend {
            Backend::Log(queue) => queue.close(),
            Backend::Etcd(etcd) => etcd.abandon(),
        }
        // Takes one batch at most. Whoever opens the directory next should not find it in use.
        for thread in self.threads.get_mut().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}
