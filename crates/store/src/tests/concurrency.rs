//! Many writers at once: nothing is lost, nothing happens twice.

use super::*;
use crate::log::{EmbeddedLog, EmbeddedOptions};

const TASKS: usize = 32;
const ROUNDS: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_incremented_by_compare_and_set() {
    let dir = tempfile::tempdir().unwrap();
    // A tiny log, so that snapshots are written meanwhile.
    let open = || {
        EmbeddedLog::open(
            dir.path(),
            EmbeddedOptions {
                snapshot_bytes: 4096,
                ..EmbeddedOptions::default()
            },
        )
        .unwrap()
    };
    let store: TestStore = Store::open(Box::new(open()), Options::default()).unwrap();
    let keys: Vec<String> = (0..4).map(|n| format!("/registry/counters/{n}")).collect();
    for key in &keys {
        put(&store, key, "0").await;
    }
    let mut watcher = store.watch("/registry/counters/", store.revision()).unwrap();
    let watching = tokio::spawn(async move {
        let (mut seen, mut last) = (0, 0);
        while seen < TASKS * ROUNDS {
            for event in watcher.next().await.unwrap() {
                assert!(event.revision > last, "each increment is its own transaction");
                (last, seen) = (event.revision, seen + 1);
            }
        }
        last
    });
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (store, key) = (store.clone(), keys[task % keys.len()].clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                increment(&store, &key).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(watching.await.unwrap(), store.revision());
    let expected = (TASKS * ROUNDS / keys.len()).to_string();
    let check = |store: &TestStore| {
        for key in &keys {
            assert_eq!(&store.get(key).unwrap().record[..], expected.as_bytes());
        }
        assert_eq!(store.revision(), 1 + (keys.len() + TASKS * ROUNDS) as u64);
    };
    check(&store);
    let stats = store.stats();
    assert!(
        stats.batches <= stats.commits && stats.log.syncs >= stats.batches,
        "{stats:?}"
    );
    assert!(stats.log.snapshots > 0, "{stats:?}");
    store.close().await;
    drop(store);
    check(&Store::open(Box::new(open()), Options::default()).unwrap());
}

async fn increment(store: &TestStore, key: &str) {
    let mut item = store.get(key).unwrap();
    loop {
        let n: u64 = std::str::from_utf8(&item.record).unwrap().parse().unwrap();
        match store
            .commit(Op::update(key, item.mod_revision, value(&(n + 1).to_string())))
            .await
        {
            Ok(revision) => {
                assert!(store.revision() >= revision, "visible once answered");
                return;
            }
            Err(CommitError::Conflict {
                current: Some(current), ..
            }) => item = current,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Long lists let writers in between; what they see is of one revision all the same, even if it is compacted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn long_lists_are_of_one_revision() {
    const KEYS: usize = 3000;
    let store = memory(Options::default());
    let key = |n: usize| format!("/registry/pods/ns/{n:06}");
    let all = (0..KEYS).map(|n| Op::create(key(n * 2), value("")));
    store.commit(all.collect::<Vec<_>>()).await.unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mover = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move {
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // Each step moves one key past its neighbour, from the first half of the list to the second.
                let n = round * 7919 % KEYS;
                let (from, to) = if store.get(&key(n * 2)).is_some() {
                    (n * 2, n * 2 + 1)
                } else {
                    (n * 2 + 1, n * 2)
                };
                let ops = vec![
                    Op::new(key(from), Expect::Present, Action::Delete),
                    Op::create(key(to), value("")),
                ];
                store.commit(ops).await.unwrap();
                if round % 500 == 0 {
                    store.compact(store.revision());
                }
                round += 1;
            }
        }
    });
    for _ in 0..100 {
        let query = RangeQuery {
            prefix: "/registry/pods/",
            ..RangeQuery::default()
        };
        let page = store.range(query, &mut |_| true).unwrap();
        assert_eq!(page.items.len(), KEYS);
        assert!(page.items.iter().all(|item| item.mod_revision <= page.revision));
        assert_eq!(store.count("/registry/"), KEYS);
        let again = RangeQuery {
            at: Some(page.revision),
            ..query
        };
        // Compacted by now, or the same.
        if let Ok(same) = store.range(again, &mut |_| true) {
            assert_eq!(show(&same), show(&page));
        }
        tokio::task::yield_now().await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    mover.await.unwrap();
}
