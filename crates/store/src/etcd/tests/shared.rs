//! Several stores on one etcd.

use std::sync::Arc;
use std::time::Duration;

use super::super::compact::CompactionClock;
use super::{Members, far};
use crate::tests::{conflict, delete, list, put, show_events, value};
use crate::{Action, CommitError, Expect, Op, Options, RangeError, RangeQuery, Store, Transformer};

const A: &str = "/registry/pods/ns/a";
const B: &str = "/registry/pods/ns/b";

#[tokio::test]
async fn what_one_writes_the_others_see_in_order_and_at_etcds_revisions() {
    let etcd = Members::start(1);
    let (one, two) = (etcd.store(), etcd.store());
    let begin = one.revision();
    let mut watcher = two.watch("/registry/pods/", begin).unwrap();
    assert_eq!(one.commit(Op::create(A, value("1"))).await.unwrap(), begin + 1);
    // One store has seen it, the other one asks.
    assert_eq!(two.current().await.unwrap(), begin + 1);
    assert_eq!(list(&two, "/", None), [format!("{A}=1@{0}({0})", begin + 1)]);
    // Decided on what is there, whether or not the image had it already.
    assert_eq!(
        conflict(two.commit(Op::create(A, value("2"))).await),
        (A.into(), Some(begin + 1))
    );
    assert_eq!(
        two.commit(Op::update(A, begin + 1, value("2"))).await.unwrap(),
        begin + 2
    );
    let stale = one.commit(Op::update(A, begin + 1, value("3"))).await;
    assert_eq!(conflict(stale), (A.into(), Some(begin + 2)));
    let both = vec![Op::delete(A, begin + 2), Op::create(B, value("4"))];
    assert_eq!(one.commit(both).await.unwrap(), begin + 3);
    assert_eq!(
        one.commit(Op::new(A, Expect::Any, Action::Delete)).await.unwrap(),
        begin + 3
    );
    assert!(two.reaches(begin + 3, Duration::from_secs(10)).await);
    let wanted = [
        format!("+{A}=1@{}", begin + 1),
        format!("+{A}=2@{} was 1", begin + 2),
        format!("-{A}@{} was 2", begin + 3),
        format!("+{B}=4@{}", begin + 3),
    ];
    assert_eq!(show_events(&watcher.next().await.unwrap()), wanted);
    assert_eq!(
        list(&two, "/", Some(begin + 2)),
        [format!("{A}=2@{}({})", begin + 2, begin + 1)]
    );
    // A third one goes on from where the others were, pages and watches alike.
    let three = etcd.store();
    assert_eq!(list(&three, "/", Some(begin + 1)), list(&one, "/", Some(begin + 1)));
    let mut watcher = three.watch("/registry/pods/", begin).unwrap();
    assert_eq!(show_events(&watcher.next().await.unwrap()), wanted);
    let decided = three.decide(0, Box::new(|_| vec![])).await;
    assert!(matches!(decided, Err(CommitError::Unavailable(why)) if why == "etcd only compares keys"));
    assert!(one.is_shared() && one.health().is_ok() && one.is_running());
    one.close().await;
    assert!(!one.is_running());
    assert!(matches!(
        one.commit(Op::create(A, value("5"))).await,
        Err(CommitError::Closed)
    ));
    assert!(one.get(B).is_some(), "reads go on");
}

/// Each reads, adds one, and compares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_between_servers_that_write_the_same() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 15;
    let etcd = Members::start(1);
    let stores = [etcd.store(), etcd.store(), etcd.store()];
    put(&stores[0], A, "0").await;
    let mut tasks = Vec::new();
    for store in &stores {
        for writer in 0..WRITERS {
            let (store, own) = (store.clone(), format!("/registry/pods/ns/{writer}"));
            tasks.push(tokio::spawn(async move {
                store.current().await.unwrap();
                for _ in 0..ROUNDS {
                    loop {
                        let item = store.get(A).unwrap();
                        let count: usize = std::str::from_utf8(&item.record).unwrap().parse().unwrap();
                        // Two keys at once: one contested, one that is written whatever it holds.
                        let ops = vec![
                            Op::update(A, item.mod_revision, value(&(count + 1).to_string())),
                            Op::new(own.as_str(), Expect::Any, Action::Put(value("x"))),
                        ];
                        match store.commit(ops).await {
                            Ok(revision) => break assert!(store.revision() >= revision),
                            Err(CommitError::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let total = (stores.len() * WRITERS * ROUNDS).to_string();
    let whole = |at| list(&stores[1], "/", at);
    for store in &stores {
        store.current().await.unwrap();
        assert_eq!(store.get(A).unwrap().record.as_ref(), total.as_bytes());
        assert_eq!(list(store, "/", None), whole(Some(store.revision())));
    }
    let commits: u64 = stores.iter().map(|store| store.stats().commits).sum();
    assert_eq!(commits as usize, stores.len() * WRITERS * ROUNDS + 1);
}

#[tokio::test]
async fn history_is_compacted_once_for_all_and_readers_list_again() {
    let etcd = Members::start(1);
    let (one, two) = (etcd.store(), etcd.store());
    for n in 0..5 {
        put(&one, A, &n.to_string()).await;
    }
    let clock = one.etcd().compact_once(CompactionClock::default()).await.unwrap();
    let other = two.etcd().compact_once(CompactionClock::default()).await.unwrap();
    let before = one.current().await.unwrap();
    put(&one, B, "1").await;
    // The second one has learnt the time, and is the first to use it.
    two.etcd().compact_once(other).await.unwrap();
    assert_eq!(one.etcd().last_compaction(far()).await.unwrap().0, Some(before as i64));
    // The first one's time is over: it learns the new one and compacts nothing.
    one.etcd().compact_once(clock).await.unwrap();
    assert_eq!(one.etcd().last_compaction(far()).await.unwrap().0, Some(before as i64));
    // A fresh image begins there.
    let three = etcd.store();
    assert_eq!(three.compacted(), before);
    let gone = RangeQuery {
        at: Some(before - 1),
        ..RangeQuery::default()
    };
    assert_eq!(
        three.range(gone, &mut |_| true).err(),
        Some(RangeError::Compacted { compacted: before })
    );
    assert_eq!(list(&three, "/", Some(before)), list(&one, "/", Some(before)));
}

#[tokio::test]
async fn what_lives_for_a_while_hangs_on_shared_leases() {
    let etcd = Members::start(1);
    let store = etcd.store();
    let of = |name: &str| format!("/registry/leases/ns/{name}");
    for name in ["a", "b"] {
        put(&store, &of(name), "1").await;
    }
    put(&store, A, "1").await;
    let lease = |key: String| {
        let store = store.clone();
        async move { store.etcd().lease_of(&key).await }
    };
    let shared = lease(of("a")).await;
    assert!(shared > 0 && lease(of("b")).await == shared && lease(A.to_string()).await == 0);
    // It is as if their time had come.
    store.etcd().revoke(shared).await;
    store.current().await.unwrap();
    assert_eq!(list(&store, "/", None).len(), 1);
    // The lease that the store remembers is gone; it gets another one.
    put(&store, &of("c"), "1").await;
    assert!(lease(of("c")).await > 0);
}

/// Capital letters are what encryption is here.
struct Capitals;

impl Transformer for Capitals {
    fn seal(&self, _: &str, plain: &bytes::Bytes) -> Result<Option<bytes::Bytes>, crate::TransformError> {
        Ok(Some(plain.to_ascii_uppercase().into()))
    }

    fn open(&self, _: &str, sealed: &bytes::Bytes) -> Result<Option<bytes::Bytes>, crate::TransformError> {
        match sealed.iter().any(u8::is_ascii_lowercase) {
            true => Err(crate::TransformError("it is not sealed".to_string())),
            false => Ok(Some(sealed.to_ascii_lowercase().into())),
        }
    }
}

#[tokio::test]
async fn etcd_gets_what_is_sealed_and_what_cannot_be_read_is_no_deletion() {
    let etcd = Members::start(1);
    let options = Options {
        transformer: Some(Arc::new(Capitals)),
        ..Options::default()
    };
    let sealing = Store::connect(etcd.options(), options.clone()).unwrap();
    put(&sealing, A, "secret").await;
    let plain = etcd.store();
    assert_eq!(plain.get(A).unwrap().record.as_ref(), &b"SECRET"[..]);
    let again: crate::tests::TestStore = Store::connect(etcd.options(), options.clone()).unwrap();
    assert_eq!(again.get(A).unwrap().record.as_ref(), &b"secret"[..]);
    // Somebody writes what the others cannot open: they keep what they had, and say so.
    let revision = put(&plain, A, "plain").await;
    assert!(sealing.reaches(revision, Duration::from_secs(10)).await);
    assert_eq!(sealing.get(A).unwrap().record.as_ref(), &b"secret"[..]);
    let why = sealing.health().unwrap_err().error;
    assert!(why.contains(A) && why.contains("it is not sealed"), "{why}");
    let Err(error) = Store::<bytes::Bytes>::connect(etcd.options(), options) else {
        panic!("it cannot be read")
    };
    assert_eq!(
        error.to_string(),
        format!("the record under {A} cannot be read: it is not sealed")
    );
    delete(&plain, A).await;
    sealing.current().await.unwrap();
    assert!(sealing.get(A).is_none() && sealing.health().is_ok());
}
