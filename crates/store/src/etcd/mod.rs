//! The same store on an etcd cluster that several servers share.
//!
//! ```text
//!   commit ─► judge (pure, on the image) ─► seal ─► Txn: compare mod revisions ─► etcd
//!      ▲            ▲ lost: again on the newer image                               │ watch, in order
//!      │            │                                                              ▼
//!      └── answered once the image is there ◄── image ◄── apply (thread) ◄── follow (resumes, lists again if compacted)
//! ```
//!
//! Invariants:
//! - The image changes by the watch only: at each revision it is etcd's state at that revision, history included.
//! - What a transaction decided on is compared: every key that it read or wrote has the mod revision it had in the image. So
//!   it may be sent again after an answer was lost: it cannot happen twice.
//! - A refusal is told on a state that etcd had after the transaction came in. So is a read that waits for
//!   [`crate::Store::current`].
//! - Revisions are etcd's. The whole key space is watched, so that every revision arrives, whoever made it.
//!
//! Deliberately absent: users and passwords (certificates say who we are), and clusters whose etcd has several other uses:
//! it works, but their traffic passes here too.

mod apply;
mod client;
mod codec;
mod commit;
mod compact;
mod follow;
mod leases;
pub mod messages;
mod reads;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orlop_base::Shutdown;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

pub use client::EndpointError;
pub use codec::{PlainCodec, StorageCodec};

use crate::log::OpenError;
use crate::store::{Options, Shared};
use crate::{LogFailure, Record, Revision};

use apply::Applier;
use client::Client;
use leases::Leases;
use waiting::{InFlight, Pending, Reached};

/// Transactions on their way at once; more writers than this wait for room.
const ROOM: usize = 1024;
/// Answers of the watch that wait to be applied.
const FEED: usize = 64;

const NO_SPACE: &str = "etcd's quota is used up, so it takes no writes: compact and defragment it and disarm the alarm \
                        (etcdctl alarm disarm), or give it a larger --quota-backend-bytes";

/// Which etcd, and how.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://10.0.0.1:2379`, one for each member that may be asked.
    pub endpoints: Vec<String>,
    /// For endpoints with https.
    pub tls: Option<Arc<ClientConfig>>,
    pub codec: Arc<dyn StorageCodec>,
    /// How often history is compacted, by one of all servers; zero: never, somebody else does so.
    pub compaction_interval: Duration,
    /// How long to try at the start.
    pub start_patience: Duration,
    /// How long a transaction or a consistent read may wait for etcd, leader elections and all.
    pub patience: Duration,
}

impl EtcdOptions {
    pub fn new(endpoints: Vec<String>, codec: Arc<dyn StorageCodec>) -> EtcdOptions {
        EtcdOptions {
            endpoints,
            tls: None,
            codec,
            // Upstream: --etcd-compaction-interval
            compaction_interval: Duration::from_secs(300),
            start_patience: Duration::from_secs(20),
            // Clients' requests have a minute.
            patience: Duration::from_secs(10),
        }
    }
}

impl std::fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// etcd, or enough of it, does not answer: what would be read may be old.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotCurrent(pub String);

/// What committers, readers and the two threads share.
pub(crate) struct Etcd<R: Record> {
    shared: Arc<Shared<R>>,
    client: Client,
    options: Options,
    codec: Arc<dyn StorageCodec>,
    patience: Duration,
    room: Semaphore,
    pending: Pending,
    in_flight: InFlight<R>,
    reached: Reached,
    /// Questions for etcd's present revision.
    asked: mpsc::Sender<oneshot::Sender<Result<Revision, NotCurrent>>>,
    leases: Leases,
    /// Records that cannot be opened or decoded, with the reason. The image keeps what was there before.
    unreadable: Mutex<BTreeMap<String, String>>,
    /// Its quota is used up: it takes no writes.
    no_space: AtomicBool,
    /// The watch does not get on: open another one.
    rewatch: Notify,
    stop: Shutdown,
}

/// A store's threads, and what it shares with them.
pub(crate) struct Opened<R: Record> {
    pub etcd: Arc<Etcd<R>>,
    pub threads: Vec<std::thread::JoinHandle<()>>,
    pub stopped: watch::Receiver<()>,
}

/// Loads the image and starts to follow. Blocks meanwhile.
pub(crate) fn open<R: Record>(
    shared: Arc<Shared<R>>,
    etcd: EtcdOptions,
    options: Options,
) -> Result<Opened<R>, OpenError> {
    let endpoints = etcd.endpoints.join(",");
    let failed = |reason: String| OpenError::Etcd {
        endpoints: endpoints.clone(),
        reason,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OpenError::Thread)?;
    let client = {
        let _entered = runtime.enter();
        // Servers start at different members.
        let first = std::process::id() as usize;
        Client::new(&etcd.endpoints, etcd.tls.as_deref(), first).map_err(|e| failed(e.to_string()))?
    };
    let (asked, questions) = mpsc::channel(4 * ROOM);
    let (feed, fed) = mpsc::channel(FEED);
    let (running, stopped) = watch::channel(());
    let this = Arc::new(Etcd {
        shared,
        client,
        options,
        codec: etcd.codec,
        patience: etcd.patience,
        room: Semaphore::new(ROOM),
        pending: Pending::default(),
        in_flight: InFlight::default(),
        reached: Reached::default(),
        asked,
        leases: Leases::default(),
        unreadable: Mutex::default(),
        no_space: AtomicBool::new(false),
        rewatch: Notify::new(),
        stop: Shutdown::default(),
    });
    let applier = Applier::new(this.clone(), fed);
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(run).map_err(OpenError::Thread)
    };
    let apply = spawn(
        "orlop-store",
        Box::new(move || {
            applier.run();
            drop(running);
        }),
    )?;
    let (tell, told) = std::sync::mpsc::channel();
    let follower = this.clone();
    let follow = spawn(
        "orlop-etcd",
        Box::new(move || {
            runtime.block_on(follower.run(feed, questions, etcd.compaction_interval, etcd.start_patience, tell));
            // Connections end with it; what still runs there is of no use to anybody.
            runtime.shutdown_background();
        }),
    )?;
    let threads = vec![follow, apply];
    let opened = told
        .recv()
        .unwrap_or_else(|_| Err(failed("its thread panicked".to_string())));
    match opened {
        Ok(()) => Ok(Opened {
            etcd: this,
            threads,
            stopped,
        }),
        Err(error) => {
            this.abandon();
            threads.into_iter().for_each(|thread| drop(thread.join()));
            Err(match error {
                OpenError::Etcd { reason, .. } => failed(reason),
                error => error,
            })
        }
    }
}

impl<R: Record> Etcd<R> {
    /// What makes the store unhealthy beside writes and reads that fail.
    pub(crate) fn health(&self) -> Result<(), LogFailure> {
        self.shared.health.get()?;
        let failure = |error: String| {
            let since = self.options.clock.now().into();
            Err(LogFailure { since, error })
        };
        if self.no_space.load(Ordering::Acquire) {
            return failure(NO_SPACE.to_string());
        }
        let unreadable = self.unreadable.lock();
        match unreadable.first_key_value() {
            Some((key, reason)) => failure(format!(
                "{} records of etcd cannot be read, {key} for one: {reason}",
                unreadable.len()
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn pending_for(&self) -> Duration {
        self.pending.pending_for()
    }

    fn failed(&self, error: &str) {
        if self
            .shared
            .health
            .failed(self.options.clock.now().into(), error.to_string())
        {
            tracing::error!(
                error,
                "failed to reach etcd; refusing writes and consistent reads until that works"
            );
        }
    }

    fn recovered(&self) {
        if self.shared.health.is_failing()
            && let Some(failure) = self.shared.health.recovered()
        {
            tracing::info!(error = failure.error, "recovered: etcd answers again");
        }
    }

    /// Transactions under way get a moment; no more are taken.
    pub(crate) async fn close(&self) {
        const MOMENT: Duration = Duration::from_secs(5);
        let all = tokio::time::timeout(MOMENT, self.room.acquire_many(ROOM as u32)).await;
        self.room.close();
        drop(all);
        self.stop.trigger();
    }

    /// The same without waiting for anything.
    pub(crate) fn abandon(&self) {
        self.room.close();
        self.stop.trigger();
    }
}
