//! Members that die, ways that are cut, quotas that are used up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::super::EtcdOptions;
use super::Members;
use super::members::Link;
use crate::tests::{TestStore, list, put, value};
use crate::{CommitError, Op, Options, RangeError, Revision, Store};

const A: &str = "/registry/pods/ns/a";

/// Answers after half a second without etcd.
fn impatient(etcd: &Members, endpoints: Vec<String>) -> TestStore {
    let options = EtcdOptions {
        endpoints,
        patience: Duration::from_millis(500),
        ..etcd.options()
    };
    Store::connect(options, Options::default()).unwrap()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let holding = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), holding).await;
    waited.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn without_etcd_there_is_no_store() {
    let options = EtcdOptions {
        start_patience: Duration::from_millis(200),
        ..EtcdOptions::new(
            vec!["http://127.0.0.1:1".to_string()],
            Arc::new(super::super::PlainCodec),
        )
    };
    let Err(error) = Store::<Bytes>::connect(options, Options::default()) else {
        panic!("nobody listens there")
    };
    let text = error.to_string();
    assert!(
        text.starts_with("cannot use etcd at http://127.0.0.1:1:") && text.contains("refused"),
        "{text}"
    );
}

/// Three members, one of them killed and started again in turn, under load by three servers. What was acknowledged is
/// there, once, at its revision; nothing else is there but what was in doubt; nobody saw anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_may_die() {
    let etcd = Arc::new(Members::start(3));
    let stores: Vec<TestStore> = (0..3).map(|_| etcd.store()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let begin = stores[0].revision();
    let mut writers = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        for writer in 0..4 {
            let (store, stop) = (store.clone(), stop.clone());
            writers.push(tokio::spawn(async move {
                let (mut acknowledged, mut doubtful, mut last) = (Vec::new(), Vec::new(), 0);
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    count += 1;
                    let key = format!("/registry/pods/{n}-{writer}/{count}");
                    match store.commit(Op::create(key.as_str(), value(&key))).await {
                        Ok(revision) => {
                            assert!(revision > last, "revisions of one client grow");
                            last = revision;
                            acknowledged.push((key, revision));
                        }
                        Err(CommitError::Unavailable(_)) => {}
                        Err(CommitError::Unknown(_)) => doubtful.push(key),
                        Err(error) => panic!("{key}: {error}"),
                    }
                }
                (acknowledged, doubtful)
            }));
        }
    }
    let mut watchers: Vec<_> = stores
        .iter()
        .map(|store| store.watch("/registry/pods/", begin).unwrap())
        .collect();
    for round in 0..4 {
        let member = round % 3;
        etcd.kill(member);
        // Two of three go on.
        let before = stores[2].revision();
        until("two members are enough", async || {
            stores.iter().all(|s| s.revision() > before + 20)
        })
        .await;
        etcd.run(member);
        let before = stores[2].revision();
        until("it goes on with three", async || {
            stores.iter().all(|s| s.revision() > before + 20)
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut doubtful) = (BTreeMap::new(), Vec::new());
    for writer in writers {
        let (some, doubts) = writer.await.unwrap();
        acknowledged.extend(some);
        doubtful.extend(doubts);
    }
    for (store, watcher) in stores.iter().zip(&mut watchers) {
        let present = store.current().await.unwrap();
        let mut seen: Vec<(Revision, String)> = Vec::new();
        while watcher.progress() < present {
            let events = watcher.next().await.unwrap();
            seen.extend(events.iter().map(|event| (event.revision, event.key.to_string())));
        }
        assert!(
            seen.is_sorted() && seen.len() == store.count("/registry/pods/"),
            "no gap, no repeat"
        );
        for (key, revision) in &acknowledged {
            let item = store.get(key).unwrap_or_else(|| panic!("{key} was acknowledged"));
            assert_eq!((item.mod_revision, &item.record[..]), (*revision, key.as_bytes()));
            assert!(seen.binary_search(&(*revision, key.clone())).is_ok());
        }
        for (_, key) in &seen {
            assert!(
                acknowledged.contains_key(key) || doubtful.contains(key),
                "{key} was refused"
            );
        }
    }
    assert_eq!(list(&stores[0], "/", None), list(&stores[1], "/", None));
    assert!(acknowledged.len() > 100);
}

#[tokio::test]
async fn without_a_quorum_only_old_state_is_read_and_it_comes_back_by_itself() {
    let etcd = Members::start(3);
    let store = impatient(&etcd, etcd.urls());
    put(&store, A, "1").await;
    etcd.kill(0);
    etcd.kill(1);
    let refused = store.commit(Op::create("/registry/pods/ns/b", value("1"))).await;
    let why = match refused {
        Err(CommitError::Unavailable(why) | CommitError::Unknown(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains("etcd"), "{why}");
    assert!(store.current().await.is_err());
    assert!(store.health().is_err() && store.pending_for() > Duration::ZERO);
    assert!(
        store.get(A).is_some(),
        "what was there can be read by who asks for no more"
    );
    etcd.run(0);
    etcd.run(1);
    until("it works again", async || store.current().await.is_ok()).await;
    until("and says so", async || store.health().is_ok()).await;
    put(&store, A, "2").await;
}

#[tokio::test]
async fn who_is_cut_off_reads_nothing_old_and_lists_again_when_history_is_gone() {
    let etcd = Members::start(1);
    let link = Link::to(&etcd.url(0)).await;
    let (url, options) = (link.url.clone(), etcd.options());
    let connecting = tokio::task::spawn_blocking(move || {
        let options = EtcdOptions {
            endpoints: vec![url],
            patience: Duration::from_millis(500),
            ..options
        };
        Store::connect(options, Options::default())
    });
    let (cut, other): (TestStore, TestStore) = (connecting.await.unwrap().unwrap(), etcd.store());
    put(&other, A, "1").await;
    put(&other, "/registry/pods/ns/gone", "1").await;
    assert!(cut.current().await.is_ok());
    let seen = cut.revision();
    let (mut watcher, mut idle) = (
        cut.watch("/registry/pods/", seen).unwrap(),
        cut.watch("/registry/nodes/", seen).unwrap(),
    );
    link.cut();
    put(&other, A, "2").await;
    crate::tests::delete(&other, "/registry/pods/ns/gone").await;
    assert!(cut.current().await.is_err(), "it cannot know");
    assert_eq!(cut.get(A).unwrap().record.as_ref(), &b"1"[..]);
    // While it is away, history goes.
    let present = other.current().await.unwrap();
    other.etcd().client_compact(present).await;
    put(&other, "/registry/pods/ns/late", "1").await;
    link.heal();
    until("it follows again", async || cut.current().await.is_ok()).await;
    assert_eq!(list(&cut, "/", None), list(&other, "/", None));
    // What was cut in the middle of a stream came after all, or it had to list again: no watcher may miss a thing.
    match watcher.next().await {
        Ok(events) => assert_eq!(events[0].revision, seen + 1),
        Err(error) => {
            assert!(matches!(error, RangeError::Compacted { .. }));
            assert!(idle.try_next().is_err());
        }
    }
}

#[tokio::test]
async fn a_used_up_quota_is_said_clearly_and_goes_by_itself() {
    let etcd = Members::with(1, &["--quota-backend-bytes", "1048576"]);
    let store = etcd.store();
    let large = "x".repeat(200_000);
    let mut n = 0;
    let why = loop {
        n += 1;
        let key = format!("/registry/pods/ns/{n}");
        match store.commit(Op::create(key, value(&large))).await {
            Ok(_) => {}
            Err(CommitError::Unavailable(why)) => break why,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(
        why.contains("quota is used up") && why.contains("alarm disarm"),
        "{why}"
    );
    assert!(store.health().is_err());
    store.current().await.expect("reads go on");
    store.etcd().disarm().await;
    until("the alarm is over", async || store.health().is_ok()).await;
}

#[tokio::test]
async fn what_etcd_will_never_take_is_refused() {
    let etcd = Members::start(1);
    let store = etcd.store();
    let too_large = store.commit(Op::create(A, value(&"x".repeat(1_700_000)))).await;
    assert!(
        matches!(&too_large, Err(CommitError::Refused(why)) if why.contains("too large")),
        "{too_large:?}"
    );
    assert!(store.health().is_ok(), "that is nobody else's trouble");
}

#[tokio::test]
async fn who_gives_up_waiting_leaves_nothing_behind() {
    let etcd = Members::start(1);
    let store = etcd.store();
    let abandoned = store.commit(Op::create(A, value("1")));
    assert!(futures::poll!(std::pin::pin!(abandoned)).is_pending());
    store.current().await.unwrap();
    assert_eq!(store.pending_for(), Duration::ZERO);
}
