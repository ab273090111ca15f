//! What etcd promises, one promise per test.

use std::time::Duration;

use orlop_base::Clock;
use orlop_base::clock::monotonic;

use super::*;
use crate::RangeError;

const A: &str = "/registry/pods/ns/a";
const B: &str = "/registry/pods/ns/b";

#[tokio::test]
async fn a_transaction_has_a_size_that_it_may_not_exceed() {
    let store = memory(Options::default());
    let put = |bytes: usize| {
        let record = Arc::new(Bytes::from(vec![0; bytes]));
        Op::new("/registry/pods/ns/a", Expect::Any, Action::Put(record))
    };
    let error = store.commit(put(32 << 20)).await.unwrap_err();
    assert!(matches!(error, CommitError::TooLarge { .. }), "{error}");
    store.commit(put(31 << 20)).await.unwrap();
}

#[tokio::test]
async fn revisions_count_transactions_that_change_something() {
    let store = memory(Options::default());
    assert_eq!((store.revision(), store.compacted()), (1, 0));
    assert_eq!(put(&store, A, "1").await, 2);
    assert_eq!(delete(&store, B).await, 2, "deleting nothing takes no revision");
    let both = vec![Op::create(B, value("1")), Op::update(A, 2, value("2"))];
    assert_eq!(store.commit(both).await.unwrap(), 3);
    assert_eq!(store.commit(Op::check(A, Expect::At(3))).await.unwrap(), 3);
    assert_eq!(store.revision(), 3);
    assert_eq!(
        list(&store, "/registry/pods/", None),
        [format!("{A}=2@3(2)"), format!("{B}=1@3(3)")]
    );
}

#[tokio::test]
async fn expectations() {
    let store = memory(Options::default());
    let at = put(&store, A, "1").await;
    let absent = "/registry/pods/ns/none";
    for (key, expect, holds) in [
        (A, Expect::Absent, false),
        (A, Expect::At(at), true),
        (A, Expect::At(at + 1), false),
        (A, Expect::Present, true),
        (A, Expect::Any, true),
        (absent, Expect::Absent, true),
        (absent, Expect::At(at), false),
        (absent, Expect::Present, false),
        (absent, Expect::Any, true),
    ] {
        let result = store.commit(Op::check(key, expect)).await;
        match holds {
            true => assert_eq!(result.unwrap(), at, "{key} {expect:?}"),
            false => assert_eq!(
                conflict(result),
                (key.into(), (key == A).then_some(at)),
                "{key} {expect:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not() {
    let store = memory(Options::default());
    put(&store, A, "1").await;
    let result = store
        .commit(vec![Op::create(B, value("1")), Op::update(A, 99, value("2"))])
        .await;
    assert_eq!(conflict(result), (A.into(), Some(2)));
    assert_eq!((store.revision(), store.get(B).is_none()), (2, true));

    // Comparisons see the state before the transaction, and the last write to a key counts.
    let twice = vec![
        Op::create(B, value("x")),
        Op::check(B, Expect::Absent),
        Op::create(B, value("y")),
    ];
    assert_eq!(store.commit(twice).await.unwrap(), 3);
    assert_eq!(list(&store, B, None), [format!("{B}=y@3(3)")]);
    let undone = vec![Op::create("/registry/pods/ns/c", value("x")), {
        Op::new("/registry/pods/ns/c", Expect::Any, Action::Delete)
    }];
    assert_eq!(store.commit(undone).await.unwrap(), 3);
}

#[tokio::test]
async fn a_key_that_comes_back_is_new() {
    let store = memory(Options::default());
    put(&store, A, "1").await;
    put(&store, A, "2").await;
    delete(&store, A).await;
    put(&store, A, "3").await;
    assert_eq!(list(&store, A, None), [format!("{A}=3@5(5)")]);
    assert_eq!(list(&store, A, Some(4)), [""; 0]);
    assert_eq!(list(&store, A, Some(3)), [format!("{A}=2@3(2)")]);
    assert_eq!(list(&store, A, Some(1)), [""; 0]);
}

#[tokio::test]
async fn pages_at_one_revision_do_not_change_under_writes() {
    let store = memory(Options::default());
    for n in 0..10 {
        put(&store, &format!("/registry/pods/ns/{n}"), "old").await;
    }
    put(&store, "/registry/podtemplates/ns/0", "other").await;
    let mut keep_even = |item: &crate::Item<Bytes>| item.key.as_bytes().last().unwrap().is_multiple_of(2);
    let query = RangeQuery {
        prefix: "/registry/pods/",
        limit: Some(2),
        ..RangeQuery::default()
    };
    let first = store.range(query, &mut keep_even).unwrap();
    assert_eq!(
        (first.items.len(), first.more, first.remaining, first.revision),
        (2, true, 7, 12)
    );

    put(&store, "/registry/pods/ns/4", "new").await;
    delete(&store, "/registry/pods/ns/6").await;
    put(&store, "/registry/pods/ns/5a", "new").await;
    let next = RangeQuery {
        start_after: Some(&first.items[1].key),
        at: Some(12),
        limit: Some(3),
        ..query
    };
    let second = store.range(next, &mut keep_even).unwrap();
    assert_eq!((second.more, second.remaining, second.revision), (true, 1, 12));
    assert!(
        show(&second).iter().all(|line| line.contains("=old@")),
        "{:?}",
        show(&second)
    );
    let last = RangeQuery {
        start_after: Some(&second.items[2].key),
        ..next
    };
    let last = store.range(last, &mut keep_even).unwrap();
    assert_eq!((last.items.len(), last.more, last.remaining), (0, false, 0));
    assert_eq!(store.count("/registry/pods/"), 10);
    assert_eq!(store.count("/registry/pods/ns/5"), 2);
    assert_eq!(store.count("/registry/"), 11);
}

#[tokio::test]
async fn watchers_see_each_event_of_their_prefix_once_and_in_order() {
    let store = memory(Options::default());
    put(&store, A, "1").await;
    let mut all = store.watch("/registry/pods/", 1).unwrap();
    let mut one = store.watch("/registry/pods/ns/b", 2).unwrap();
    let mut later = store.watch("/registry/nodes/", 2).unwrap();
    assert_eq!(later.progress(), 2);
    store
        .commit(vec![Op::create(B, value("1")), Op::update(A, 2, value("2"))])
        .await
        .unwrap();
    delete(&store, A).await;
    assert_eq!(
        show_events(&all.next().await.unwrap()),
        [
            format!("+{A}=1@2"),
            format!("+{B}=1@3"),
            format!("+{A}=2@3 was 1"),
            format!("-{A}@4 was 2")
        ]
    );
    assert_eq!(one.progress(), 2, "nothing was handed out yet");
    assert_eq!(show_events(&one.next().await.unwrap()), [format!("+{B}=1@3")]);
    assert_eq!((one.progress(), all.progress(), later.progress()), (4, 4, 4));
    assert!(all.try_next().unwrap().is_empty() && later.try_next().unwrap().is_empty());
    assert_eq!(store.stats().watchers, 3);

    let waiting = tokio::spawn(async move { show_events(&later.next().await.unwrap()) });
    tokio::task::yield_now().await;
    put(&store, "/registry/nodes/n", "1").await;
    assert_eq!(waiting.await.unwrap(), ["+/registry/nodes/n=1@5"]);
    assert_eq!(
        store.watch("/registry/pods/", 6).err(),
        Some(RangeError::Future { current: 5 })
    );
}

#[tokio::test]
async fn batches_of_events_are_bounded_and_keep_revisions_whole() {
    let store = memory(Options::default());
    for n in 0..200 {
        let op = |half: &str| Op::create(format!("/registry/pods/{half}/{n}"), value(""));
        store.commit(vec![op("x"), op("y"), op("z")]).await.unwrap();
    }
    let mut watcher = store.watch("/registry/pods/", 1).unwrap();
    let first = watcher.next().await.unwrap();
    assert_eq!(first.len(), 258);
    assert_eq!((first[257].revision, watcher.progress()), (87, 87));
    let mut seen = first.len();
    while seen < 600 {
        seen += watcher.next().await.unwrap().len();
    }
    assert_eq!((seen, watcher.progress()), (600, 201));
}

#[tokio::test]
async fn a_watcher_gets_past_any_number_of_events_of_others() {
    let store = memory(Options::default());
    let many = |n: usize| Op::create(format!("/registry/pods/others/{n}"), value(""));
    for batch in 0..100 {
        store
            .commit((batch * 100..batch * 100 + 100).map(many).collect::<Vec<_>>())
            .await
            .unwrap();
    }
    put(&store, A, "1").await;
    let mut watcher = store.watch("/registry/pods/ns/", 1).unwrap();
    assert_eq!(watcher.progress(), 1);
    assert_eq!(show_events(&watcher.next().await.unwrap()), [format!("+{A}=1@102")]);
    assert_eq!(watcher.progress(), 102);
}

#[tokio::test]
async fn compaction_refuses_the_past_and_keeps_the_present() {
    let store = memory(Options::default());
    put(&store, A, "1").await;
    put(&store, A, "2").await;
    delete(&store, A).await;
    put(&store, B, "1").await;
    put(&store, B, "2").await;
    let mut behind = store.watch("/registry/pods/", 2).unwrap();
    let mut elsewhere = store.watch("/registry/nodes/", 2).unwrap();
    store.compact(5);
    let gone = RangeError::Compacted { compacted: 5 };
    let query = RangeQuery {
        at: Some(4),
        ..RangeQuery::default()
    };
    assert_eq!(store.range(query, &mut |_| true).err(), Some(gone));
    assert_eq!(store.watch("/registry/pods/", 4).err(), Some(gone));
    assert_eq!(behind.try_next().err(), Some(gone));
    assert!(
        elsewhere.try_next().unwrap().is_empty(),
        "nothing of its bucket was lost"
    );
    assert_eq!(list(&store, "/", Some(5)), [format!("{B}=1@5(5)")]);
    assert_eq!(list(&store, "/", None), [format!("{B}=2@6(5)")]);
    let mut watcher = store.watch("/registry/pods/", 5).unwrap();
    assert_eq!(show_events(&watcher.next().await.unwrap()), [format!("+{B}=2@6 was 1")]);
    store.compact(99);
    assert_eq!(store.compacted(), 6, "not beyond the present");
    store.compact(3);
    assert_eq!(store.compacted(), 6, "not backwards");
    let stats = store.stats();
    assert_eq!((stats.keys, stats.history_events, stats.history_bytes), (1, 0, 0));
    assert_eq!(store.versions(), 1, "no tombstone and no old version is left");
}

#[tokio::test]
async fn history_is_bounded_by_events_bytes_and_age() {
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let options = || Options {
        clock: clock.clone(),
        history_age: Duration::from_secs(300),
        ..Options::default()
    };

    let store = memory(Options {
        history_events: 10,
        ..options()
    });
    for _ in 0..30 {
        put(&store, A, "1").await;
    }
    assert_eq!((store.compacted(), store.stats().history_events), (21, 10));

    let store = memory(Options {
        history_bytes: 100,
        ..options()
    });
    for _ in 0..30 {
        put(&store, A, "0123456789").await;
    }
    assert_eq!((store.compacted(), store.stats().history_bytes), (21, 100));

    let store = memory(options());
    put(&store, A, "1").await;
    clock.advance(Duration::from_secs(299));
    put(&store, A, "2").await;
    assert_eq!(store.compacted(), 0);
    clock.advance(Duration::from_secs(2));
    put(&store, A, "3").await;
    assert_eq!(store.compacted(), 2);
}

#[tokio::test]
async fn history_ages_while_nobody_writes() {
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    // A short age makes the writer look often.
    let options = Options {
        clock: clock.clone(),
        history_age: Duration::from_millis(100),
        ..Options::default()
    };
    let store = memory(options);
    put(&store, A, "1").await;
    assert_eq!(store.compacted(), 0);
    clock.advance(Duration::from_secs(1));
    let limit = monotonic() + Duration::from_secs(20);
    while store.compacted() < 2 {
        assert!(monotonic() < limit, "history never aged");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_closed_store_refuses_writes_and_serves_reads() {
    let store = memory(Options::default());
    put(&store, A, "1").await;
    let pending = store.commit(Op::create(B, value("1")));
    store.close().await;
    assert!(matches!(pending.await, Err(CommitError::Closed)));
    assert!(matches!(
        store.commit(Op::create(B, value("1"))).await,
        Err(CommitError::Closed)
    ));
    assert_eq!(list(&store, "/", None), [format!("{A}=1@2(2)")]);
}
