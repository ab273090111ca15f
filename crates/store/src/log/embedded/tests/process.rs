//! Real processes on a real disk: killed while many write, or stopped by a limit of the file system.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::{Action, CommitError, Expect, Op, Options, Store};

/// Tells a copy of the test program to be the writer, and where.
const DIR: &str = "ORLOP_STORE_TEST_DIR";
const TASKS: usize = 16;

fn open_store(dir: &Path) -> Store<Bytes> {
    let log = EmbeddedLog::open(
        dir,
        EmbeddedOptions {
            snapshot_bytes: 256 << 10,
            ..EmbeddedOptions::default()
        },
    )
    .unwrap();
    Store::open(Box::new(log), Options::default()).unwrap()
}

/// One call, so that lines of several tasks do not mix.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Writes until killed or refused, and says what was acknowledged.
async fn write(task: usize, store: Store<Bytes>) {
    for n in 0.. {
        let key = format!("/registry/pods/{task}/{}", n % 50);
        let text = Arc::new(Bytes::from(format!("{n} {}", "x".repeat(n % 700))));
        match store.commit(Op::new(key.clone(), Expect::Any, Action::Put(text))).await {
            Ok(revision) => say(&format!("acknowledged {revision} {key} {n}")),
            Err(CommitError::Unavailable(why)) => return say(&format!("refused {why}")),
            Err(other) => panic!("{other}"),
        }
    }
}

/// What the other process does; without its directory in the environment, nothing.
#[test]
fn writer_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = open_store(Path::new(&dir));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| tokio::spawn(write(task, store.clone())))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Starts the writer after some shell commands.
fn start(dir: &Path, before: &str) -> Child {
    let test = "log::embedded::tests::process::writer_process";
    Command::new("sh")
        .args(["-c", &format!("{before} exec \"$0\" --exact {test} --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads what the writer says to its end; kills it once it has acknowledged `enough` writes.
fn listen(mut child: Child, enough: usize) -> (BTreeMap<Revision, (String, String)>, Vec<String>) {
    let (mut acknowledged, mut refused) = (BTreeMap::new(), Vec::new());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        if let Some(why) = line.strip_prefix("refused ") {
            refused.push(why.to_string());
        } else if let ["acknowledged", revision, key, n] = line.split(' ').collect::<Vec<_>>()[..] {
            let before = acknowledged.insert(revision.parse().unwrap(), (key.to_string(), n.to_string()));
            assert!(before.is_none(), "one revision, one transaction");
        }
        if acknowledged.len() == enough {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    (acknowledged, refused)
}

fn check(store: &Store<Bytes>, acknowledged: BTreeMap<Revision, (String, String)>) {
    for (revision, (key, n)) in acknowledged {
        let item = store.get(&key).expect("nothing was ever deleted");
        assert!(item.mod_revision >= revision, "{key} {revision}");
        if item.mod_revision == revision {
            let text = std::str::from_utf8(&item.record).unwrap();
            assert_eq!(text.split(' ').next().unwrap(), n);
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut least = 1;
    for round in 0..5 {
        let enough = 500 + 371 * round;
        let (acknowledged, _) = listen(start(dir.path(), ""), enough);
        assert!(acknowledged.len() >= enough, "the writer ended early");
        let store = open_store(dir.path());
        let newest = acknowledged.keys().last().copied().unwrap();
        assert!(newest > least && store.revision() >= newest, "revisions never go back");
        least = store.revision();
        check(&store, acknowledged);
    }
}

#[test]
fn a_write_that_the_system_cuts_short_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    // The limit ends a write in the middle, as a full disk does, and needs no privilege.
    let (acknowledged, refused) = listen(start(dir.path(), "trap '' XFSZ; ulimit -f 100;"), usize::MAX);
    assert_eq!(refused.len(), TASKS, "each of them was told");
    assert!(refused[0].contains("nothing was changed") && refused[0].contains(dir.path().to_str().unwrap()));
    let newest = acknowledged.keys().last().copied().unwrap();
    let store = open_store(dir.path());
    assert_eq!(store.revision(), newest, "what was refused is not there");
    assert_eq!(acknowledged.len() as Revision, newest - 1);
    check(&store, acknowledged);
}
