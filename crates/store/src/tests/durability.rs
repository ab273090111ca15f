//! The store over the embedded log: what it was is what it is after a restart.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use orlop_base::Clock;

use super::*;
use crate::OpenError;
use crate::log::{EmbeddedLog, EmbeddedOptions};

fn open(dir: &Path, options: Options) -> TestStore {
    let log = EmbeddedLog::open(
        dir,
        EmbeddedOptions {
            snapshot_bytes: 2000,
            ..EmbeddedOptions::default()
        },
    )
    .unwrap();
    Store::open(Box::new(log), options).unwrap()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_restart_keeps_state_revision_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let options = || Options {
        clock: clock.clone(),
        ..Options::default()
    };
    let (a, b) = ("/registry/pods/ns/a", "/registry/pods/ns/b");
    let store = open(dir.path(), options());
    put(&store, a, "1").await;
    put(&store, b, "1").await;
    put(&store, a, "2").await;
    delete(&store, b).await;
    let before = list(&store, "/", Some(4));
    drop(store);

    let store = open(dir.path(), options());
    assert_eq!((store.revision(), store.compacted()), (5, 0));
    assert_eq!(list(&store, "/", None), [format!("{a}=2@4(2)")]);
    assert_eq!(list(&store, "/", Some(4)), before);
    let mut watcher = store.watch("/registry/pods/", 3).unwrap();
    assert_eq!(
        show_events(&watcher.next().await.unwrap()),
        [format!("+{a}=2@4 was 1"), format!("-{b}@5 was 1")]
    );
    drop(store);

    clock.advance(Duration::from_secs(600));
    let store = open(dir.path(), options());
    assert_eq!(
        (store.revision(), store.compacted()),
        (5, 5),
        "history aged while the store was closed"
    );
    assert_eq!(put(&store, b, "2").await, 6);
    assert_eq!(list(&store, "/", None), [format!("{a}=2@4(2)"), format!("{b}=2@6(6)")]);
}

#[tokio::test]
async fn snapshots_shorten_the_log_and_keep_the_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Options::default());
    let key = "/registry/pods/ns/a";
    while store.stats().log.snapshots < 2 {
        put(&store, key, &"x".repeat(200)).await;
    }
    // Ends in deletes, which a snapshot does not hold.
    let revision = delete(&store, key).await;
    let other = put(&store, "/registry/pods/ns/b", "1").await;
    assert_eq!(other, revision + 1);
    let last = delete(&store, "/registry/pods/ns/b").await;
    drop(store);
    assert!(std::fs::metadata(dir.path()).unwrap().is_dir());
    let names = files(dir.path());
    assert_eq!(
        names.iter().filter(|name| name.starts_with("snapshot-")).count(),
        1,
        "{names:?}"
    );
    for name in &names {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let store = open(dir.path(), Options::default());
    assert_eq!((store.revision(), store.stats().keys), (last, 0));
    let bytes: u64 = names
        .iter()
        .map(|name| std::fs::metadata(dir.path().join(name)).unwrap().len())
        .sum();
    let others = ["lock", "mark"].map(|name| std::fs::metadata(dir.path().join(name)).unwrap().len());
    assert_eq!(store.stats().log.disk_bytes, bytes - others.iter().sum::<u64>());
}

#[tokio::test]
async fn a_directory_has_one_owner() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("deep/data");
    let store = open(&dir, Options::default());
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    let second = EmbeddedLog::open(&dir, EmbeddedOptions::default());
    let message = second.err().unwrap().to_string();
    let pid = std::process::id();
    assert_eq!(
        message,
        format!(
            "data directory {} is in use by another orlop (pid {pid})",
            dir.display()
        )
    );
    store.close().await;
    // Closed is enough; the handle may still be there.
    let again = open(&dir, Options::default());
    assert!(matches!(
        EmbeddedLog::open(&dir, EmbeddedOptions::default()),
        Err(OpenError::InUse { .. })
    ));
    drop(again);
    open(&dir, Options::default());
}

#[tokio::test]
async fn a_record_that_cannot_be_decoded_is_named() {
    struct Picky(Bytes);
    impl crate::Record for Picky {
        fn bytes(&self) -> &Bytes {
            &self.0
        }
        fn decode(_: &str, bytes: Bytes) -> Result<Self, crate::RecordError> {
            if bytes.starts_with(b"{") {
                Ok(Picky(bytes))
            } else {
                Err(crate::RecordError("not JSON".into()))
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path(), Options::default()), "/registry/pods/ns/a", "text").await;
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
    let error = Store::<Picky>::open(Box::new(log), Options::default()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the record under /registry/pods/ns/a cannot be read: not JSON"
    );
}
