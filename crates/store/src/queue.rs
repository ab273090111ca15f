//! The way into the writer thread: bounded, waited on asynchronously by writers, drained in batches by the thread.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};

use crate::{Action, CommitError, Record, Revision, Txn};

/// Transactions that may wait; more writers than this wait for room instead.
const ROOM: usize = 4096;
/// A batch ends after this many transactions or bytes, so that one slow fsync answers nobody too late.
const BATCH_TXNS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;

pub(crate) struct Request<R> {
    pub txn: Txn<R>,
    pub answer: oneshot::Sender<Result<Revision, CommitError<R>>>,
}

pub(crate) struct Queue<R> {
    waiting: Mutex<Waiting<R>>,
    wake: Condvar,
    room: Semaphore,
}

struct Waiting<R> {
    requests: VecDeque<Request<R>>,
    closed: bool,
}

/// What the writer thread is to do next.
pub(crate) enum Work<R> {
    Commit(Vec<Request<R>>),
    /// Nothing came for a while.
    Idle,
    /// Closed, and everything that came before is done.
    Stop,
}

impl<R: Record> Queue<R> {
    pub fn new() -> Queue<R> {
        Queue {
            waiting: Mutex::new(Waiting {
                requests: VecDeque::new(),
                closed: false,
            }),
            wake: Condvar::new(),
            room: Semaphore::new(ROOM),
        }
    }

    pub async fn send(&self, txn: Txn<R>) -> Result<Revision, CommitError<R>> {
        // Given back by `take`.
        self.room.acquire().await.map_err(|_| CommitError::Closed)?.forget();
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(CommitError::Closed);
            }
            waiting.requests.push_back(Request { txn, answer });
        }
        self.wake.notify_one();
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Waits for work, at most for `patience` if given.
    pub fn take(&self, patience: Option<Duration>) -> Work<R> {
        #[allow(
            clippy::disallowed_methods,
            reason = "a wait of the thread, not a decision that depends on time"
        )]
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.closed {
                return Work::Stop;
            }
            match deadline {
                None => self.wake.wait(&mut waiting),
                Some(deadline) => {
                    if self.wake.wait_until(&mut waiting, deadline).timed_out() {
                        return Work::Idle;
                    }
                }
            }
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_TXNS
            && bytes < BATCH_BYTES
            && let Some(request) = waiting.requests.pop_front()
        {
            bytes += weight(&request.txn);
            batch.push(request);
        }
        drop(waiting);
        self.room.add_permits(batch.len());
        Work::Commit(batch)
    }

    /// Nothing new comes in from here on; what waits is still served.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.room.close();
        self.wake.notify_all();
    }

    /// For when there is no one to serve it any more: those who wait learn that the store is closed.
    pub fn abandon(&self) {
        self.close();
        let left = std::mem::take(&mut self.waiting.lock().requests);
        drop(left);
    }
}

fn weight<R: Record>(txn: &Txn<R>) -> usize {
    let op = |action: &Action<R>| match action {
        Action::Put(record) => record.bytes().len(),
        Action::Delete | Action::Check => 0,
    };
    txn.ops.iter().map(|o| o.key.len() + op(&o.action)).sum()
}
