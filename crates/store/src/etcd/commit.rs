//! Transactions on their way to etcd.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use orlop_base::clock::Shift;
use tokio::time::Instant;

use super::client::{CallError, Outcome};
use super::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, PutRequest, Request, RequestOp, TargetUnion, TxnRequest,
};
use super::waiting::Sent;
use super::{Etcd, NotCurrent};
use crate::judge::{Lost, judge};
use crate::stats::Counters;
use crate::{Action, CommitError, Record, Revision, Txn};

/// A committed transaction is answered at the latest this long after its patience has ended, although the image is
/// behind.
const LAG: Duration = Duration::from_secs(1);

/// What one transaction sends, made once for all attempts.
struct Outgoing<'a, R: Record> {
    etcd: &'a Etcd<R>,
    /// What each operation puts, if anything.
    sent: Vec<Option<Arc<Sent<R>>>>,
    txn: &'a Txn<R>,
}

impl<'a, R: Record> Outgoing<'a, R> {
    /// Encoded, sealed, and known to those who will see it come back.
    fn new(etcd: &'a Etcd<R>, txn: &'a Txn<R>) -> Result<Outgoing<'a, R>, CommitError<R>> {
        let unavailable = |why: String| CommitError::Unavailable(why);
        let mut sent = Vec::with_capacity(txn.ops.len());
        for op in &txn.ops {
            let Action::Put(record) = &op.action else {
                sent.push(None);
                continue;
            };
            let encoded = etcd.codec.encode(&op.key, record.bytes());
            let value = encoded.map_err(|e| unavailable(e.to_string()))?;
            let sealed = match etcd.options.transformer.as_deref() {
                Some(transformer) => transformer.seal(&op.key, &value),
                None => Ok(None),
            };
            let sealed = sealed.map_err(|e| unavailable(e.to_string()))?;
            sent.push(Some(Sent::new(sealed.unwrap_or(value), record.clone())));
        }
        let outgoing = Outgoing { etcd, sent, txn };
        for (op, sent) in txn.ops.iter().zip(&outgoing.sent) {
            if let Some(sent) = sent {
                etcd.in_flight.add(&op.key, sent);
            }
        }
        Ok(outgoing)
    }

    /// The revision at which something of it came back in the watch.
    fn seen(&self) -> Option<Revision> {
        self.sent.iter().flatten().find_map(|sent| sent.seen())
    }
}

impl<R: Record> Drop for Outgoing<'_, R> {
    fn drop(&mut self) {
        for (op, sent) in self.txn.ops.iter().zip(&self.sent) {
            if let Some(sent) = sent {
                self.etcd.in_flight.remove(&op.key, sent);
            }
        }
    }
}

/// A transaction as the image has it now.
enum Attempt<R> {
    Send(TxnRequest),
    /// All comparisons hold and nothing changes.
    Nothing,
    Lost(Lost<R>),
}

impl<R: Record> Etcd<R> {
    pub(crate) async fn commit(&self, txn: &Txn<R>) -> Result<Revision, CommitError<R>> {
        let _room = self.room.acquire().await.map_err(|_| CommitError::Closed)?;
        let wait = self.pending.begin();
        let answer = self.commit_now(txn).await;
        let counters = &self.shared.counters;
        match &answer {
            Ok(_) => {
                Counters::add(&counters.commits, 1);
                Counters::add(&counters.batches, 1);
                self.recovered();
            }
            Err(CommitError::Conflict { .. }) => Counters::add(&counters.conflicts, 1),
            Err(CommitError::Unavailable(why) | CommitError::Unknown(why)) => {
                Counters::add(&counters.unavailable, 1);
                self.failed(why);
            }
            Err(_) => {}
        }
        let done = !matches!(answer, Err(CommitError::Unavailable(_) | CommitError::Unknown(_)));
        wait.end(done);
        answer
    }

    async fn commit_now(&self, txn: &Txn<R>) -> Result<Revision, CommitError<R>> {
        let until = Instant::now().later(self.patience);
        let outgoing = Outgoing::new(self, txn)?;
        // Whether the image is known to be as new as the transaction.
        let mut is_current = false;
        // Set once the answer to an attempt was lost.
        let mut doubt: Option<String> = None;
        let mut tries = 0;
        loop {
            if doubt.is_some()
                && let Some(revision) = outgoing.seen()
            {
                return Ok(revision);
            }
            let request = match self.attempt(&outgoing, until).await.map_err(|e| refusal(&e, &doubt))? {
                Attempt::Send(request) => request,
                // Only what is sure not to be old may refuse.
                _ if !is_current => {
                    let current = self.current(until).await;
                    current.map_err(|NotCurrent(why)| unavailable(why, &doubt))?;
                    is_current = true;
                    continue;
                }
                Attempt::Nothing => return Ok(self.revision()),
                Attempt::Lost(lost) => return Err(self.lost(lost, &outgoing, doubt)),
            };
            match self.client.txn(request, tries, until).await {
                Ok(answer) => {
                    let revision = answer.header.unwrap_or_default().revision as Revision;
                    let reached = self.reaches(revision, until.later(LAG)).await;
                    if answer.succeeded {
                        self.no_space.store(false, Ordering::Release);
                        return Ok(revision);
                    }
                    // Somebody was faster: decide again on what is there now.
                    if !reached {
                        let why = "the watch of etcd is behind".to_string();
                        return Err(unavailable(why, &doubt));
                    }
                    is_current = true;
                }
                Err(error) if error.is_lease_gone() => {
                    for op in &txn.ops {
                        if let Some(ttl) = self.codec.ttl(&op.key) {
                            self.leases.forget(ttl).await;
                        }
                    }
                    if Instant::now() >= until {
                        return Err(refusal(&error, &doubt));
                    }
                }
                Err(error) if error.outcome == Outcome::Refused => {
                    self.no_space.fetch_or(error.is_no_space(), Ordering::AcqRel);
                    return Err(refusal(&error, &doubt));
                }
                Err(error) => {
                    tries += 1;
                    if error.outcome == Outcome::Unknown {
                        doubt.get_or_insert_with(|| error.to_string());
                    }
                    if Instant::now() >= until {
                        return Err(refusal(&error, &doubt));
                    }
                    self.client.pause(tries).await;
                }
            }
        }
    }

    /// Decides, and writes down what that was decided on.
    async fn attempt(&self, outgoing: &Outgoing<'_, R>, until: Instant) -> Result<Attempt<R>, CallError> {
        let mut leases = Vec::with_capacity(outgoing.txn.ops.len());
        for op in &outgoing.txn.ops {
            let ttl = match op.action {
                Action::Put(_) => self.codec.ttl(&op.key),
                _ => None,
            };
            leases.push(match ttl {
                Some(ttl) => self.leases.get(&self.client, ttl, until).await?,
                None => 0,
            });
        }
        let state = self.shared.state.read();
        if let Err(lost) = judge(outgoing.txn, |key| (state.get(key), false)) {
            return Ok(Attempt::Lost(lost));
        }
        let revision = |key: &str| state.get(key).map_or(0, |item| item.mod_revision as i64);
        Ok(self.request(outgoing, &leases, revision))
    }

    fn request(&self, outgoing: &Outgoing<'_, R>, leases: &[i64], revision: impl Fn(&str) -> i64) -> Attempt<R> {
        let mut request = TxnRequest::default();
        let mut compared: Vec<&str> = Vec::with_capacity(outgoing.txn.ops.len());
        for op in &outgoing.txn.ops {
            if compared.contains(&&*op.key) {
                continue;
            }
            compared.push(&op.key);
            request.compare.push(Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Mod as i32,
                key: self.codec.etcd_key(&op.key),
                target_union: Some(TargetUnion::ModRevision(revision(&op.key))),
                range_end: Bytes::new(),
            });
        }
        // Of several writes of a key the last one counts, and stands where it stood.
        let mut writes: Vec<(&str, Request)> = Vec::with_capacity(outgoing.txn.ops.len());
        for ((op, sent), lease) in outgoing.txn.ops.iter().zip(&outgoing.sent).zip(leases) {
            let key = self.codec.etcd_key(&op.key);
            let write = match (&op.action, sent) {
                (Action::Put(_), Some(sent)) => Request::Put(PutRequest {
                    key,
                    value: sent.value.clone(),
                    lease: *lease,
                    ..PutRequest::default()
                }),
                (Action::Delete, _) => Request::DeleteRange(DeleteRangeRequest {
                    key,
                    ..DeleteRangeRequest::default()
                }),
                _ => continue,
            };
            writes.retain(|(other, _)| *other != &*op.key);
            writes.push((&op.key, write));
        }
        // What is not there need not be deleted, and the comparison says that it is not.
        let writes = writes
            .into_iter()
            .filter(|(key, write)| !matches!(write, Request::DeleteRange(_)) || revision(key) > 0);
        request.success = writes.map(|(_, write)| RequestOp { request: Some(write) }).collect();
        match request.success.is_empty() {
            true => Attempt::Nothing,
            false => Attempt::Send(request),
        }
    }

    /// It lost, on an image that is new enough. Unless what it lost to is itself.
    fn lost(&self, lost: Lost<R>, outgoing: &Outgoing<'_, R>, doubt: Option<String>) -> CommitError<R> {
        match doubt {
            // A deletion does not say whose it was; and a list after a compaction does not say what was there in between.
            Some(why) if outgoing.sent.iter().all(Option::is_none) => CommitError::Unknown(why),
            _ => CommitError::Conflict {
                key: lost.key,
                current: lost.current,
            },
        }
    }
}

fn unavailable<R>(why: String, doubt: &Option<String>) -> CommitError<R> {
    match doubt {
        Some(doubt) => CommitError::Unknown(format!("etcd may have carried out this write or not: {doubt}")),
        None => CommitError::Unavailable(why),
    }
}

fn refusal<R>(error: &CallError, doubt: &Option<String>) -> CommitError<R> {
    if error.outcome == Outcome::Refused && !error.is_no_space() {
        return CommitError::Refused(error.to_string());
    }
    let why = match error.is_no_space() {
        true => format!("{error}; {}", super::NO_SPACE),
        false => format!("etcd does not take writes: {error}"),
    };
    unavailable(why, doubt)
}
