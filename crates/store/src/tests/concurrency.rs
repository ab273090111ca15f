//! Many writers at once: nothing is lost, nothing happens twice.

use super::*;
use crate::log::{EmbeddedLog, EmbeddedOptions};

const TASKS: usize = 32;
const ROUNDS: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_incremented_by_compare_and_set() {
    let dir = tempfile::tempdir().unwrap();
    // A tiny log, so that snapshots are written meanwhile.
    let open = || EmbeddedLog::open(dir.path(), EmbeddedOptions { snapshot_bytes: 4096 }).unwrap();
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
