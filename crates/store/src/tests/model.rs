//! The store against a naive model: every state that ever was, kept whole.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::log::{EmbeddedLog, EmbeddedOptions};
use crate::{RangeError, Txn};

type Snapshot = BTreeMap<String, (String, Revision, Revision)>;

/// `states[n]` is the state at revision n + `first`.
struct Model {
    first: Revision,
    states: Vec<Snapshot>,
    events: Vec<String>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Transactions that are sent at once, so that they may share a batch.
    Commit(Vec<Vec<(usize, Guess, Deed)>>),
    Compact(f64),
    Reopen,
}

/// What a writer believes, relative to the model so that it is right now and then.
#[derive(Clone, Copy, Debug)]
enum Guess {
    Absent,
    Current,
    Stale,
    Present,
    Any,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Put(u8),
    Delete,
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    let guess = prop_oneof![
        1 => Just(Guess::Absent),
        3 => Just(Guess::Current),
        1 => Just(Guess::Stale),
        1 => Just(Guess::Present),
        2 => Just(Guess::Any)
    ];
    let deed = prop_oneof![4 => any::<u8>().prop_map(Deed::Put), 2 => Just(Deed::Delete), 1 => Just(Deed::Check)];
    let txn = proptest::collection::vec((0..KEYS.len(), guess, deed), 1..4);
    prop_oneof![
        12 => proptest::collection::vec(txn, 1..4).prop_map(Step::Commit),
        1 => (0.0..1.0f64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

const KEYS: [&str; 6] = [
    "/registry/nodes/a",
    "/registry/pods/a/x",
    "/registry/pods/a/y",
    "/registry/pods/ab/x",
    "/registry/pods/b/x",
    "/registry/podtemplates/a/x",
];

impl Model {
    fn now(&self) -> &Snapshot {
        self.states.last().unwrap()
    }

    fn revision(&self) -> Revision {
        self.first + self.states.len() as Revision - 1
    }

    fn expect(&self, key: &str, guess: Guess) -> Expect {
        let current = self.now().get(key).map(|(_, modified, _)| *modified);
        match guess {
            Guess::Absent => Expect::Absent,
            Guess::Current => current.map_or(Expect::Absent, Expect::At),
            Guess::Stale => Expect::At(current.unwrap_or(7) - 1),
            Guess::Present => Expect::Present,
            Guess::Any => Expect::Any,
        }
    }

    /// The revision, or the key in conflict.
    fn commit(&mut self, txn: &[(&str, Expect, Deed)]) -> Result<Revision, String> {
        for (key, expect, _) in txn {
            let current = self.now().get(*key).map(|(_, modified, _)| *modified);
            let holds = match expect {
                Expect::Absent => current.is_none(),
                Expect::At(revision) => current == Some(*revision),
                Expect::Present => current.is_some(),
                Expect::Any => true,
            };
            if !holds {
                return Err(key.to_string());
            }
        }
        let revision = self.revision() + 1;
        let before = self.now().clone();
        let mut after = before.clone();
        // The last write to a key counts, and its event stands where that write stood.
        let is_last = |at: usize, key: &str| {
            !txn[at + 1..]
                .iter()
                .any(|(later, _, deed)| *later == key && !matches!(deed, Deed::Check))
        };
        let mut events = Vec::new();
        for (_, (key, _, deed)) in txn.iter().enumerate().filter(|(at, (key, ..))| is_last(*at, key)) {
            let was = before
                .get(*key)
                .map(|(text, ..)| format!(" was {text}"))
                .unwrap_or_default();
            match deed {
                Deed::Check => {}
                Deed::Put(n) => {
                    let created = before.get(*key).map_or(revision, |(_, _, created)| *created);
                    after.insert(key.to_string(), (n.to_string(), revision, created));
                    events.push(format!("+{key}={n}@{revision}{was}"));
                }
                Deed::Delete if before.contains_key(*key) => {
                    after.remove(*key);
                    events.push(format!("-{key}@{revision}{was}"));
                }
                Deed::Delete => {}
            }
        }
        if events.is_empty() {
            return Ok(self.revision());
        }
        self.events.extend(events);
        self.states.push(after);
        Ok(revision)
    }

    fn list(&self, prefix: &str, at: Revision) -> Vec<String> {
        let line = |(key, (text, modified, created)): (&String, &(String, Revision, Revision))| {
            format!("{key}={text}@{modified}({created})")
        };
        self.states[(at - self.first) as usize]
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(line)
            .collect()
    }
}

/// Everything that can be asked, asked of both.
fn compare(store: &TestStore, model: &Model) {
    assert_eq!(store.revision(), model.revision());
    let compacted = store.compacted();
    for at in model.first..=model.revision() {
        let query = RangeQuery {
            at: Some(at),
            ..RangeQuery::default()
        };
        if at < compacted {
            let gone = RangeError::Compacted { compacted };
            assert_eq!(store.range(query, &mut |_| true).err(), Some(gone));
            assert_eq!(store.watch("/registry/pods/", at).err(), Some(gone));
            continue;
        }
        for prefix in ["", "/registry/pods/", "/registry/pods/a/", "/registry/nodes/"] {
            assert_eq!(
                list(store, prefix, Some(at)),
                model.list(prefix, at),
                "{prefix} at {at}"
            );
        }
        for prefix in ["/registry/pods/", "/registry/pods/a/", "/registry/podtemplates/"] {
            let mut watcher = store.watch(prefix, at).unwrap();
            let wanted: Vec<&String> = model
                .events
                .iter()
                .filter(|event| is_after(event, prefix, at))
                .collect();
            let seen = show_events(&watcher.try_next().unwrap());
            assert_eq!(seen.iter().collect::<Vec<_>>(), wanted, "{prefix} after {at}");
            assert_eq!(watcher.progress(), model.revision());
        }
        pages(store, model, at);
    }
    for prefix in ["/", "/registry/pods/", "/registry/pods/a", "/registry/none/"] {
        assert_eq!(
            store.count(prefix),
            model.list(prefix, model.revision()).len(),
            "{prefix}"
        );
    }
    let stats = store.stats();
    let sizes = model.now().iter().map(|(key, (text, ..))| key.len() + text.len());
    assert_eq!(
        (stats.keys, stats.live_bytes),
        (model.now().len(), sizes.sum::<usize>() as u64)
    );
    // A key's newest version, or one that an event in history superseded, or the tombstone of one.
    assert!(
        store.versions() <= stats.keys + 2 * stats.history_events,
        "versions leak"
    );
}

fn is_after(event: &str, prefix: &str, after: Revision) -> bool {
    let revision: Revision = event
        .split(" was ")
        .next()
        .unwrap()
        .rsplit('@')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    event[1..].starts_with(prefix) && revision > after
}

/// Page by page gives what a whole list gives.
fn pages(store: &TestStore, model: &Model, at: Revision) {
    let mut lines = Vec::new();
    let mut after: Option<Arc<str>> = None;
    let whole = model.list("/registry/", at);
    loop {
        let query = RangeQuery {
            prefix: "/registry/",
            start_after: after.as_deref(),
            at: Some(at),
            limit: Some(2),
            ..RangeQuery::default()
        };
        let page = store.range(query, &mut |_| true).unwrap();
        lines.extend(show(&page));
        assert_eq!(page.remaining as usize, whole.len() - lines.len());
        if !page.more {
            break;
        }
        after = page.items.last().map(|item| item.key.clone());
    }
    assert_eq!(lines, whole);
}

fn run_embedded(steps: Vec<Step>, history_events: usize) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history_events,
        ..Options::default()
    };
    run(steps, history_events, || {
        let log = EmbeddedOptions {
            snapshot_bytes: 1500,
            ..EmbeddedOptions::default()
        };
        let log = EmbeddedLog::open(dir.path(), log).unwrap();
        Store::open(Box::new(log), options.clone()).unwrap()
    });
}

/// `open` gives the store, first when it is empty, and the same again.
fn run(steps: Vec<Step>, history_events: usize, open: impl Fn() -> TestStore) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut store = open();
    let mut model = Model {
        first: store.revision(),
        states: vec![Snapshot::new()],
        events: Vec::new(),
    };
    for step in steps {
        match step {
            Step::Commit(txns) => {
                let expected: Vec<Vec<(&str, Expect, Deed)>> = txns
                    .iter()
                    .map(|ops| {
                        ops.iter()
                            .map(|(k, g, d)| (KEYS[*k], model.expect(KEYS[*k], *g), *d))
                            .collect()
                    })
                    .collect();
                let sent = expected.iter().map(|ops| store.commit(txn(ops)));
                let answers = runtime.block_on(async {
                    if !store.is_shared() {
                        return join_all(sent.collect()).await;
                    }
                    // Those that are under way at once have no order there.
                    let mut answers = Vec::new();
                    for sent in sent {
                        answers.push(sent.await);
                    }
                    answers
                });
                for (ops, answer) in expected.iter().zip(answers) {
                    let answer = answer.map_err(|error| match error {
                        CommitError::Conflict { key, .. } => key.to_string(),
                        other => panic!("{other}"),
                    });
                    assert_eq!(answer, model.commit(ops));
                }
            }
            Step::Compact(share) => {
                let span = (model.revision() - model.first) as f64;
                store.compact(model.first + (share * span) as Revision);
            }
            Step::Reopen => {
                drop(store);
                store = open();
            }
        }
        assert!(store.stats().history_events <= history_events);
        compare(&store, &model);
    }
    store.compact(store.revision());
    assert_eq!((store.versions(), store.stats().history_bytes), (model.now().len(), 0));
    compare(&store, &model);
}

fn txn(ops: &[(&str, Expect, Deed)]) -> Txn<Bytes> {
    let op = |(key, expect, deed): &(&str, Expect, Deed)| {
        let action = match deed {
            Deed::Put(n) => Action::Put(value(&n.to_string())),
            Deed::Delete => Action::Delete,
            Deed::Check => Action::Check,
        };
        Op::new(*key, *expect, action)
    };
    Txn {
        ops: ops.iter().map(op).collect(),
    }
}

/// Polls all futures in order, so that the transactions enter the queue in order.
pub(super) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(done) = future.as_mut().poll(context)
            {
                *output = Some(done);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_the_model(
        steps in proptest::collection::vec(step(), 1..40),
        history_events in prop_oneof![Just(100_000usize), 3..12usize],
    ) {
        run_embedded(steps, history_events);
    }
}

/// Members are slow beside files: some cases on one etcd, each below a prefix of its own.
#[test]
fn the_store_on_etcd_agrees_with_the_model() {
    let etcd = crate::etcd::tests::Members::start(1);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(8));
    let case = std::cell::Cell::new(0);
    let steps = proptest::collection::vec(step(), 1..30);
    let history = prop_oneof![Just(100_000usize), 3..12usize];
    let tested = runner.run(&(steps, history), |(steps, history_events)| {
        case.set(case.get() + 1);
        let prefix = format!("/case{}", case.get());
        let options = Options {
            history_events,
            ..Options::default()
        };
        run(steps, history_events, || etcd.store_below(&prefix, options.clone()));
        Ok(())
    });
    tested.unwrap_or_else(|failed| panic!("{failed}"));
}
