//! The store over a log that does as it is told: what is seen while it writes, when it fails, when it disagrees.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::model::join_all;
use super::*;
use crate::log::{AppendResult, Log, LogError, LogMeter, OpenError, Replayed, Transaction};

const A: &str = "/registry/pods/ns/a";
const B: &str = "/registry/pods/ns/b";

enum ScriptStep {
    Commit,
    Fail,
    Outcomes(Vec<AppendResult>),
}

/// Says when it got a batch and how many transactions that has; answers when told.
struct ScriptedLog {
    batches: Sender<usize>,
    answers: Receiver<ScriptStep>,
    meter: Arc<LogMeter>,
}

impl Log for ScriptedLog {
    fn replay(&mut self, _: &mut dyn FnMut(Replayed)) -> Result<Revision, OpenError> {
        Ok(1)
    }

    fn commit(&mut self, _: i64, batch: &[Transaction<'_>]) -> Result<Vec<AppendResult>, LogError> {
        self.batches.send(batch.len()).unwrap();
        match self.answers.recv().unwrap() {
            ScriptStep::Commit => Ok(batch.iter().map(|t| AppendResult::Committed(t.revision)).collect()),
            ScriptStep::Fail => Err(LogError::new("/data", std::io::ErrorKind::StorageFull.into())),
            ScriptStep::Outcomes(outcomes) => Ok(outcomes),
        }
    }

    fn meter(&self) -> Arc<LogMeter> {
        self.meter.clone()
    }
}

fn scripted() -> (TestStore, Receiver<usize>, Sender<ScriptStep>) {
    let (batches, seen) = channel();
    let (tell, answers) = channel();
    let log = ScriptedLog {
        batches,
        answers,
        meter: Arc::default(),
    };
    (Store::open(Box::new(log), Options::default()).unwrap(), seen, tell)
}

fn create(store: &TestStore, key: &str) -> tokio::task::JoinHandle<Result<Revision, CommitError<Bytes>>> {
    let (store, key) = (store.clone(), key.to_string());
    tokio::spawn(async move { store.commit(Op::create(key, value("1"))).await })
}

#[tokio::test]
async fn nothing_is_seen_before_it_is_durable_and_waiting_writers_share_a_batch() {
    let (store, batches, tell) = scripted();
    let mut watcher = store.watch("/registry/pods/", 1).unwrap();
    let first = create(&store, A);
    tokio::task::yield_now().await;
    assert_eq!(batches.recv().unwrap(), 1);
    assert_eq!(
        (store.revision(), store.get(A).is_none(), store.count("/")),
        (1, true, 0)
    );
    assert!(watcher.try_next().unwrap().is_empty() && watcher.progress() == 1);

    let rest: Vec<_> = (0..5)
        .map(|n| create(&store, &format!("/registry/pods/ns/{n}")))
        .collect();
    tokio::task::yield_now().await;
    tell.send(ScriptStep::Commit).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), 2);
    assert_eq!(batches.recv().unwrap(), 5, "they gathered while the log was busy");
    assert_eq!(show_events(&watcher.next().await.unwrap()), [format!("+{A}=1@2")]);
    tell.send(ScriptStep::Commit).unwrap();
    for (n, task) in rest.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap(), 3 + n as u64);
    }
    let stats = store.stats();
    assert_eq!((stats.batches, stats.largest_batch, stats.commits), (2, 5, 6));
}

/// Sends transactions so that they share one batch: while another one occupies the log.
async fn together(
    store: &TestStore,
    batches: &Receiver<usize>,
    tell: &Sender<ScriptStep>,
    ops: Vec<Op<Bytes>>,
    answer: ScriptStep,
) -> Vec<Result<Revision, CommitError<Bytes>>> {
    let occupy = create(store, "/registry/others/occupy");
    tokio::task::yield_now().await;
    assert_eq!(batches.recv().unwrap(), 1);
    let store = store.clone();
    let answers = tokio::spawn(async move { join_all(ops.into_iter().map(|op| store.commit(op)).collect()).await });
    tokio::task::yield_now().await;
    tell.send(ScriptStep::Commit).unwrap();
    tell.send(answer).unwrap();
    occupy.await.unwrap().unwrap();
    answers.await.unwrap()
}

#[tokio::test]
async fn a_log_that_fails_changes_nothing_and_hides_no_conflict() {
    let (store, batches, tell) = scripted();
    tell.send(ScriptStep::Commit).unwrap();
    assert_eq!(create(&store, B).await.unwrap().unwrap(), 2);
    assert_eq!(batches.recv().unwrap(), 1);

    let ops = vec![
        Op::create(A, value("1")),
        // Loses to what is durable: true whatever becomes of the batch.
        Op::create(B, value("2")),
        // Loses to the first one, which did not happen either.
        Op::create(A, value("2")),
        Op::check(A, Expect::Present),
    ];
    let mut answers = together(&store, &batches, &tell, ops, ScriptStep::Fail)
        .await
        .into_iter();
    let message = answers.next().unwrap().unwrap_err().to_string();
    assert!(message.starts_with("cannot write /data:") && message.ends_with("free some space there and try again"));
    assert_eq!(conflict(answers.next().unwrap()), (B.into(), Some(2)));
    assert!(answers.all(|answer| matches!(answer, Err(CommitError::Unavailable(_)))));
    assert_eq!(
        (store.revision(), store.get(A).is_none(), store.stats().unavailable),
        (3, true, 4)
    );

    assert_eq!(batches.recv().unwrap(), 1);
    tell.send(ScriptStep::Commit).unwrap();
    assert_eq!(
        create(&store, A).await.unwrap().unwrap(),
        4,
        "the refused batch took no revision"
    );
}

#[tokio::test]
async fn a_log_of_several_servers_numbers_and_refuses() {
    let (store, batches, tell) = scripted();
    let ops = vec![Op::create(A, value("1")), Op::create(B, value("1"))];
    let outcomes = ScriptStep::Outcomes(vec![AppendResult::Refused, AppendResult::Committed(9)]);
    let mut answers = together(&store, &batches, &tell, ops, outcomes).await.into_iter();
    assert_eq!(conflict(answers.next().unwrap()), (A.into(), None));
    assert_eq!(answers.next().unwrap().unwrap(), 9);
    assert_eq!((store.revision(), store.get(A).is_none()), (9, true));
    assert_eq!(list(&store, B, None), [format!("{B}=1@9(9)")]);
}
