//! `kill -9` while many write: whatever the writer said was committed is there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;
use crate::{Expect, Op, Options, Store};

const DIR: &str = "ORLOP_STORE_TEST_DIR";
const ROUNDS: usize = 5;

/// What the killed process does; without its directory in the environment, nothing.
#[test]
fn writer_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let log = EmbeddedLog::open(
        dir,
        EmbeddedOptions {
            snapshot_bytes: 64 << 10,
        },
    )
    .unwrap();
    let store: Store<Bytes> = Store::open(Box::new(log), Options::default()).unwrap();
    let write = |task: usize, store: Store<Bytes>| async move {
        for n in 0.. {
            let key = format!("/registry/pods/{task}/{}", n % 50);
            let text = Arc::new(Bytes::from(format!("{n} {}", "x".repeat(n % 700))));
            let op = Op::new(key.clone(), Expect::Any, crate::Action::Put(text));
            let revision = store.commit(op).await.unwrap();
            // One write call a line, so that lines of several tasks do not mix.
            std::io::stdout()
                .write_all(format!("acknowledged {revision} {key} {n}\n").as_bytes())
                .unwrap();
        }
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(write(task, store.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut least = 1;
    for round in 0..ROUNDS {
        let acknowledged = write_and_kill(dir.path(), 500 + 371 * round);
        let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let store: Store<Bytes> = Store::open(Box::new(log), Options::default()).unwrap();
        let newest = acknowledged.keys().last().copied().unwrap();
        assert!(newest > least && store.revision() >= newest, "revisions never go back");
        least = store.revision();
        for (revision, (key, n)) in acknowledged {
            let item = store.get(&key).expect("nothing was ever deleted");
            assert!(item.mod_revision >= revision, "{key} {revision}");
            if item.mod_revision == revision {
                let text = std::str::from_utf8(&item.record).unwrap();
                assert_eq!(text.split(' ').next().unwrap(), n);
            }
        }
    }
}

/// Runs the writer until it has acknowledged `count` writes, kills it; what it acknowledged, by revision.
fn write_and_kill(dir: &Path, count: usize) -> BTreeMap<Revision, (String, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "log::embedded::tests::kill::writer_process", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = BTreeMap::new();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["acknowledged", revision, key, n] = words[..] {
            let before = acknowledged.insert(revision.parse().unwrap(), (key.to_string(), n.to_string()));
            assert!(before.is_none(), "one revision, one transaction");
        }
        if acknowledged.len() == count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= count, "the writer ended early");
    acknowledged
}
