//! The way into the writer thread: bounded, waited on asynchronously by writers, drained in batches by the thread.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use orlop_base::clock::{Shift, monotonic};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};

use crate::decide::Proposal;
use crate::transform::Sealed;
use crate::{Action, CommitError, Record, Revision, Txn};

/// Transactions that may wait; more writers than this wait for room instead.
const ROOM: usize = 4096;
/// A batch ends after this many transactions or bytes, so that one slow fsync answers nobody too late.
const BATCH_TXNS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;
/// Bytes of one transaction. Far above what the API server lets an object have: what is larger must not reach the log,
/// where a frame has a length that recovery believes.
const TXN_BYTES: usize = 32 << 20;
/// How long a batch waits for as many as came together lately.
const GATHER: Duration = Duration::from_micros(400);
const GATHER_MAX: usize = 32;

pub(crate) struct Request<R> {
    pub proposal: Proposal<R>,
    /// What the log is to hold of its records, where that is not the records themselves.
    pub sealed: Sealed,
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
    gather: Gather,
    /// Since when the writer thread has finished nothing although transactions wait for it, or are in its hands.
    pending_since: Option<Instant>,
}

/// How many transactions are worth waiting for. A sync costs the same for one as for many, so under load some patience
/// pays; but a lone writer must not wait for company that never comes. So the hope grows while it is met, shrinks to
/// what came when it is not, and is then left alone for longer and longer.
struct Gather {
    hope: usize,
    hold: u32,
    disappointments: u32,
}

impl Gather {
    fn new() -> Gather {
        Gather {
            hope: 1,
            hold: 0,
            disappointments: 0,
        }
    }

    fn came(&mut self, count: usize) {
        if count < self.hope {
            self.hope = count.max(1);
            self.disappointments = (self.disappointments + 1).min(6);
            self.hold = 1 << self.disappointments;
        } else if self.hold > 0 {
            self.hold -= 1;
        } else {
            if count > self.hope {
                self.disappointments = 0;
            }
            self.hope = (count + 1).min(GATHER_MAX);
        }
    }
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
    pub(crate) fn new() -> Queue<R> {
        Queue {
            waiting: Mutex::new(Waiting {
                requests: VecDeque::new(),
                closed: false,
                gather: Gather::new(),
                pending_since: None,
            }),
            wake: Condvar::new(),
            room: Semaphore::new(ROOM),
        }
    }

    pub(crate) async fn send(&self, proposal: Proposal<R>, sealed: Sealed) -> Result<Revision, CommitError<R>> {
        let bytes = weight(&proposal);
        if bytes > TXN_BYTES {
            let limit = TXN_BYTES;
            return Err(CommitError::TooLarge { bytes, limit });
        }
        // Given back by `take`.
        self.room.acquire().await.map_err(|_| CommitError::Closed)?.forget();
        let (answer, answered) = oneshot::channel();
        let wakes = {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(CommitError::Closed);
            }
            waiting.requests.push_back(Request {
                proposal,
                sealed,
                answer,
            });
            waiting.pending_since.get_or_insert_with(monotonic);
            // A thread that gathers is woken once, by the last one it hopes for.
            let count = waiting.requests.len();
            count == 1 || count >= waiting.gather.hope
        };
        if wakes {
            self.wake.notify_one();
        }
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Waits for work, at most for `patience` if given.
    pub(crate) fn take(&self, patience: Option<Duration>) -> Work<R> {
        let deadline = patience.map(|patience| monotonic().later(patience));
        let mut waiting = self.waiting.lock();
        // Whatever the thread had in its hands is done.
        waiting.pending_since = (!waiting.requests.is_empty()).then(monotonic);
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
        self.gather(&mut waiting);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_TXNS
            && bytes < BATCH_BYTES
            && let Some(request) = waiting.requests.pop_front()
        {
            bytes += weight(&request.proposal);
            batch.push(request);
        }
        drop(waiting);
        self.room.add_permits(batch.len());
        Work::Commit(batch)
    }

    fn gather(&self, waiting: &mut MutexGuard<'_, Waiting<R>>) {
        let until = monotonic().later(GATHER);
        while waiting.requests.len() < waiting.gather.hope && !waiting.closed {
            if self.wake.wait_until(waiting, until).timed_out() {
                break;
            }
        }
        let count = waiting.requests.len();
        waiting.gather.came(count);
    }

    /// How long the writer thread has finished nothing although transactions wait; zero if none do.
    pub(crate) fn pending_for(&self) -> Duration {
        let since = self.waiting.lock().pending_since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Nothing new comes in from here on; what waits is still served.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.room.close();
        self.wake.notify_all();
    }

    /// For when there is no one to serve it any more: those who wait learn that the store is closed.
    pub(crate) fn abandon(&self) {
        self.close();
        let left = std::mem::take(&mut self.waiting.lock().requests);
        drop(left);
    }
}

fn weight<R: Record>(proposal: &Proposal<R>) -> usize {
    match proposal {
        Proposal::Ops(txn) => txn_weight(txn),
        Proposal::Decide { bytes, .. } => *bytes,
    }
}

fn txn_weight<R: Record>(txn: &Txn<R>) -> usize {
    let op = |action: &Action<R>| match action {
        Action::Put(record) => record.bytes().len(),
        Action::Delete | Action::Check => 0,
    };
    txn.ops.iter().map(|o| o.key.len() + op(&o.action)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came in each batch, and how often a batch waited in vain.
    fn batches(arriving: usize, rounds: usize) -> (usize, usize) {
        let (mut gather, mut vain) = (Gather::new(), 0);
        for _ in 0..rounds {
            vain += usize::from(gather.hope > arriving);
            gather.came(arriving.max(1));
        }
        (gather.hope, vain)
    }

    #[test]
    fn the_hope_settles_at_what_comes_and_is_seldom_in_vain() {
        for arriving in [1, 2, 5, 30] {
            let (hope, vain) = batches(arriving, 1000);
            assert!(hope == arriving || hope == arriving + 1, "{arriving}: {hope}");
            assert!(vain < 30, "{arriving}: {vain} of 1000");
        }
        assert_eq!(batches(100, 50).0, GATHER_MAX);
    }
}
