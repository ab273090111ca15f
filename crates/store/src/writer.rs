//! The one thread that changes the state: judges transactions, has the log make them durable, applies and answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use orlop_base::Clock;
use tokio::sync::watch;

use crate::decide::{Proposal, View, Write};
use crate::judge::{Lost, judge};
use crate::log::{AppendResult, Checkpoint, Log, LogError, Transaction};
use crate::queue::{Queue, Request, Work};
use crate::state::MemoryImage;
use crate::stats::Counters;
use crate::store::{Options, Shared};
use crate::transform::{self, Transformer};
use crate::{CommitError, Event, Expect, Item, RangeQuery, Record, Revision, Txn, range};

/// Events forgotten after a batch beyond those it added: catches up without making a batch slow.
const TRIM_EXTRA: usize = 256;
/// While writes fail and nobody tries, how often to find out whether they work again.
const PROBE: Duration = Duration::from_millis(500);
/// How long those whose transaction is undecided wait for the log to be repaired before they are told that.
const HOLD_MICROS: i64 = 5_000_000;

pub(crate) struct Writer<R: Record> {
    shared: Arc<Shared<R>>,
    queue: Arc<Queue<R>>,
    log: Box<dyn Log>,
    options: Options,
    /// How often to look for history that has become too old while nobody writes.
    tick: Duration,
    snapshot: Option<Snapshot>,
    held: Option<Held<R>>,
}

/// A batch that failed, and that could not be undone yet. There is one at most: until it is, nothing else is written.
struct Held<R> {
    requests: Vec<Request<R>>,
    error: LogError,
    since: i64,
}

/// A checkpoint under way in its own thread.
struct Snapshot {
    thread: JoinHandle<()>,
    cancel: Arc<AtomicBool>,
}

/// What is to become of a transaction, as far as the comparisons go.
enum Verdict<R> {
    Write {
        revision: Revision,
        writes: Vec<(Arc<str>, Option<Arc<R>>)>,
    },
    /// All comparisons hold and nothing changes; true up to this revision.
    Nothing { revision: Revision },
    /// `pending`: what it lost to is in the same batch and so not durable yet.
    Conflict {
        key: Arc<str>,
        current: Option<Item<R>>,
        pending: bool,
    },
}

/// The state plus what the batch did so far.
struct Overlay<'a, R> {
    state: &'a MemoryImage<R>,
    revision: Revision,
    changed: BTreeMap<Arc<str>, Option<Item<R>>>,
}

impl<R: Record> Overlay<'_, R> {
    fn current(&self, key: &str) -> (Option<Item<R>>, bool) {
        match self.changed.get(key) {
            Some(pending) => (pending.clone(), true),
            None => (self.state.get(key), false),
        }
    }

    fn judge(&mut self, proposal: &mut Proposal<R>) -> Verdict<R> {
        match proposal {
            Proposal::Ops(txn) => self.judge_txn(txn),
            Proposal::Decide { decide, .. } => {
                let decide = decide.take().expect("a request is judged once");
                let writes = decide(&View {
                    state: self.state,
                    changed: &self.changed,
                    revision: self.revision,
                });
                let before = writes.iter().map(|write| self.current(&write.key).0).collect();
                self.write(writes, before)
            }
        }
    }

    fn judge_txn(&mut self, txn: &Txn<R>) -> Verdict<R> {
        match judge(txn, |key| self.current(key)) {
            Ok(judged) => self.write(judged.writes, judged.before),
            Err(Lost { key, current, pending }) => Verdict::Conflict { key, current, pending },
        }
    }

    /// Writes on what the keys held before the transaction.
    fn write(&mut self, wanted: Vec<Write<R>>, before: Vec<Option<Item<R>>>) -> Verdict<R> {
        let revision = self.revision + 1;
        let mut writes: Vec<(Arc<str>, Option<Arc<R>>)> = Vec::with_capacity(wanted.len());
        for (Write { key, record }, before) in wanted.into_iter().zip(before) {
            writes.retain(|(other, _)| *other != key);
            let item = record.as_ref().map(|record| Item {
                key: key.clone(),
                record: record.clone(),
                create_revision: before.as_ref().map_or(revision, |item| item.create_revision),
                mod_revision: revision,
            });
            self.changed.insert(key.clone(), item);
            if record.is_some() || before.is_some() {
                writes.push((key, record));
            }
        }
        if writes.is_empty() {
            return Verdict::Nothing {
                revision: self.revision,
            };
        }
        self.revision = revision;
        Verdict::Write { revision, writes }
    }
}

/// What the log gets to see of a transaction that may be written.
fn transaction<'a, R: Record>(request: &'a Request<R>, verdict: &'a Verdict<R>) -> Option<Transaction<'a>> {
    let Verdict::Write { revision, writes } = verdict else {
        return None;
    };
    let ops = match &request.proposal {
        Proposal::Ops(txn) => &txn.ops[..],
        // A log that several servers share could not compare: see `Proposal`.
        Proposal::Decide { .. } => &[],
    };
    let compares = ops
        .iter()
        .filter(|op| op.expect != Expect::Any)
        .map(|op| (&op.key, op.expect));
    let writes = writes.iter().map(|(key, record)| {
        let bytes = |record| transform::find(&request.sealed, key).unwrap_or(Record::bytes(record));
        (key, record.as_deref().map(bytes))
    });
    Some(Transaction {
        revision: *revision,
        compares: compares.collect(),
        writes: writes.collect(),
    })
}

impl<R: Record> Writer<R> {
    pub(crate) fn new(shared: Arc<Shared<R>>, queue: Arc<Queue<R>>, log: Box<dyn Log>, options: Options) -> Writer<R> {
        let tick = options.tick();
        Writer {
            shared,
            queue,
            log,
            options,
            tick,
            snapshot: None,
            held: None,
        }
    }

    pub(crate) fn run(mut self) {
        /// Even if the thread panics nobody may wait for an answer that never comes.
        struct Abandon<R: Record>(Arc<Queue<R>>, Arc<Shared<R>>, Clock);
        impl<R: Record> Drop for Abandon<R> {
            fn drop(&mut self) {
                self.0.abandon();
                self.1.health.failed(self.2.now().into(), "the store is closed".into());
            }
        }
        let _abandon = Abandon(self.queue.clone(), self.shared.clone(), self.options.clock.clone());
        loop {
            let has_history = !self.shared.state.read().past.is_empty();
            let patience = match self.shared.health.is_failing() {
                true => Some(self.tick.min(PROBE)),
                false => has_history.then_some(self.tick),
            };
            match self.queue.take(patience) {
                Work::Commit(batch) => self.commit(batch),
                Work::Idle => {
                    self.probe();
                    self.trim();
                }
                Work::Stop => break,
            }
            self.checkpoint();
        }
        if self.repair().is_err() {
            self.give_up_held();
        }
        if let Some(snapshot) = self.snapshot.take() {
            snapshot.cancel.store(true, Ordering::Relaxed);
            join(snapshot);
        }
    }

    fn commit(&mut self, mut batch: Vec<Request<R>>) {
        let micros = self.options.clock.now().as_microsecond();
        let verdicts: Vec<Verdict<R>> = {
            let state = self.shared.state.read();
            let mut overlay = Overlay {
                state: &state,
                revision: state.revision,
                changed: BTreeMap::new(),
            };
            batch
                .iter_mut()
                .map(|request| overlay.judge(&mut request.proposal))
                .collect()
        };
        let transactions: Vec<_> = batch
            .iter()
            .zip(&verdicts)
            .filter_map(|(request, verdict)| transaction(request, verdict))
            .collect();
        let outcomes = if transactions.is_empty() {
            Ok(Vec::new())
        } else {
            let repaired = repair(&mut *self.log, &mut self.held);
            repaired.and_then(|()| self.log.commit(micros, &transactions))
        };
        let counters = &self.shared.counters;
        if !transactions.is_empty() {
            Counters::add(&counters.batches, 1);
            counters
                .largest_batch
                .fetch_max(transactions.len() as u64, Ordering::Relaxed);
        }
        drop(transactions);
        match outcomes {
            Ok(outcomes) => {
                if !outcomes.is_empty() {
                    self.recovered();
                }
                self.apply(micros, batch, verdicts, outcomes)
            }
            Err(error) => self.refuse(micros, batch, verdicts, error),
        }
    }

    /// The log has the batch: make it visible, wake who watches, answer who asked.
    fn apply(&mut self, micros: i64, batch: Vec<Request<R>>, verdicts: Vec<Verdict<R>>, outcomes: Vec<AppendResult>) {
        let mut outcomes = outcomes.into_iter();
        let mut answers = Vec::with_capacity(batch.len());
        let mut touched: Vec<usize> = Vec::new();
        let (calls, forgotten) = {
            let mut state = self.shared.state.write();
            for verdict in verdicts {
                answers.push(match verdict {
                    Verdict::Nothing { revision } => Ok(revision),
                    Verdict::Conflict { key, current, .. } => Err(CommitError::Conflict { key, current }),
                    Verdict::Write { writes, .. } => match outcomes.next().expect("the log answers each transaction") {
                        AppendResult::Committed(revision) => {
                            debug_assert!(revision > state.revision, "revisions only grow");
                            for (key, record) in writes {
                                touched.extend(state.write(revision, micros, &key, record));
                            }
                            state.revision = revision;
                            Ok(revision)
                        }
                        AppendResult::Refused => {
                            let key = writes[0].0.clone();
                            let current = state.get(&key);
                            Err(CommitError::Conflict { key, current })
                        }
                    },
                });
            }
            let budget = touched.len() * 2 + TRIM_EXTRA;
            touched.sort_unstable();
            touched.dedup();
            let calls: Vec<watch::Sender<()>> = touched.iter().map(|b| state.buckets[*b].wake.clone()).collect();
            (calls, state.trim(&self.options.bounds(), micros, budget))
        };
        for call in calls {
            call.send_replace(());
        }
        self.count(&answers, &forgotten);
        for (request, answer) in batch.into_iter().zip(answers) {
            // Whoever asked may have gone; the commit stands.
            let _ = request.answer.send(answer);
        }
    }

    fn count(&self, answers: &[Result<Revision, CommitError<R>>], forgotten: &[Arc<Event<R>>]) {
        let counters = &self.shared.counters;
        let committed = answers.iter().filter(|answer| answer.is_ok()).count();
        Counters::add(&counters.commits, committed);
        Counters::add(&counters.conflicts, answers.len() - committed);
        Counters::add(&counters.compactions, usize::from(!forgotten.is_empty()));
    }

    /// The log could not take the batch. A conflict with what is durable is still a conflict; the rest is unknown.
    fn refuse(&mut self, micros: i64, batch: Vec<Request<R>>, verdicts: Vec<Verdict<R>>, error: LogError) {
        self.failed(&error, batch.len());
        Counters::add(&self.shared.counters.unavailable, batch.len());
        let mut undecided = Vec::new();
        for (request, verdict) in batch.into_iter().zip(verdicts) {
            let answer = match verdict {
                Verdict::Conflict {
                    key,
                    current,
                    pending: false,
                } => CommitError::Conflict { key, current },
                _ if error.undecided => {
                    undecided.push(request);
                    continue;
                }
                _ => CommitError::Unavailable(error.to_string()),
            };
            let _ = request.answer.send(Err(answer));
        }
        if error.undecided {
            debug_assert!(
                self.held.is_none(),
                "nothing is written before what is undecided is decided"
            );
            self.held = Some(Held {
                requests: undecided,
                error,
                since: micros,
            });
        }
        self.limit_held(micros);
    }

    fn failed(&self, error: &LogError, transactions: usize) {
        let is_first = self
            .shared
            .health
            .failed(self.options.clock.now().into(), error.to_string());
        if is_first {
            tracing::error!(%error, transactions, "failed to write the log; refusing writes until that works");
        } else {
            tracing::debug!(%error, transactions, "failed to write the log again");
        }
    }

    fn recovered(&self) {
        if self.shared.health.is_failing()
            && let Some(failure) = self.shared.health.recovered()
        {
            tracing::info!(error = failure.error, "recovered from failed writes of the log");
        }
    }

    fn repair(&mut self) -> Result<(), LogError> {
        repair(&mut *self.log, &mut self.held)
    }

    /// While nobody writes, finds out whether writes that failed would work again.
    fn probe(&mut self) {
        if !self.shared.health.is_failing() {
            return;
        }
        let micros = self.options.clock.now().as_microsecond();
        match self.repair().and_then(|()| self.log.probe(micros)) {
            Ok(()) => self.recovered(),
            Err(error) => self.failed(&error, 0),
        }
        self.limit_held(micros);
    }

    fn limit_held(&mut self, now: i64) {
        if self
            .held
            .as_ref()
            .is_some_and(|held| now.saturating_sub(held.since) >= HOLD_MICROS)
        {
            self.give_up_held();
        }
    }

    fn give_up_held(&mut self) {
        if let Some(held) = self.held.take() {
            for request in held.requests {
                let _ = request.answer.send(Err(CommitError::Unknown(held.error.to_string())));
            }
        }
    }

    /// Forgets what has become too old while nobody wrote.
    fn trim(&mut self) {
        loop {
            let micros = self.options.clock.now().as_microsecond();
            let forgotten = self.shared.state.write().trim(&self.options.bounds(), micros, 4096);
            if forgotten.is_empty() {
                return;
            }
            Counters::add(&self.shared.counters.compactions, 1);
        }
    }

    /// If the log has outgrown what it describes, writes the live state beside it in another thread.
    fn checkpoint(&mut self) {
        if self
            .snapshot
            .as_ref()
            .is_some_and(|snapshot| !snapshot.thread.is_finished())
        {
            return;
        }
        if let Some(done) = self.snapshot.take() {
            join(done);
        }
        let live_bytes = self.shared.state.read().live_bytes;
        let Some(job) = self.log.checkpoint(live_bytes) else {
            return;
        };
        let cancel = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (self.shared.clone(), cancel.clone());
        let transformer = self.options.transformer.clone();
        let spawned = std::thread::Builder::new()
            .name("orlop-snapshot".into())
            .spawn(move || write_snapshot(&shared, transformer.as_deref(), job, &stop));
        match spawned {
            Ok(thread) => self.snapshot = Some(Snapshot { thread, cancel }),
            Err(error) => tracing::warn!(%error, "failed to start a thread to write a snapshot; the log keeps growing"),
        }
    }
}

/// Undoes what failed; those who wait for that can be told that nothing of theirs happened.
fn repair<R>(log: &mut dyn Log, held: &mut Option<Held<R>>) -> Result<(), LogError> {
    log.repair()?;
    if let Some(mut held) = held.take() {
        held.error.undecided = false;
        for request in held.requests {
            let _ = request
                .answer
                .send(Err(CommitError::Unavailable(held.error.to_string())));
        }
    }
    Ok(())
}

fn join(snapshot: Snapshot) {
    if snapshot.thread.join().is_err() {
        tracing::error!("writing a snapshot panicked");
    }
}

fn write_snapshot<R: Record>(
    shared: &Shared<R>,
    transformer: Option<&dyn Transformer>,
    job: Box<dyn Checkpoint>,
    cancel: &AtomicBool,
) {
    let page = range::range(&shared.state, &RangeQuery::default(), &mut |_| true)
        .expect("a range over the present can always be read");
    let sealed = |item: &Item<R>| {
        let plain = item.record.bytes();
        match transformer.map_or(Ok(None), |transformer| transformer.reseal(&item.key, plain)) {
            Ok(sealed) => Some(sealed.unwrap_or_else(|| plain.clone())),
            Err(error) => {
                tracing::warn!(key = %item.key, %error, "failed to encrypt a record for a snapshot; the log keeps growing");
                cancel.store(true, Ordering::Relaxed);
                None
            }
        }
    };
    let mut items = page.items.iter().map_while(|item| {
        Some(crate::log::BaseItem {
            key: item.key.clone(),
            created: item.create_revision,
            modified: item.mod_revision,
            bytes: sealed(item)?,
        })
    });
    if let Err(error) = job.write(page.revision, page.items.len() as u64, &mut items, cancel) {
        tracing::warn!(%error, "failed to write a snapshot; the log keeps growing until one succeeds");
    }
}
