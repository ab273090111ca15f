//! Tests of the files on disk: what a crash or a fault may leave, and what must come back from it.

mod damage;
mod faults;
mod process;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::log::BaseItem;

/// In memory where there is such a place: these tests sync thousands of times, and none of them needs a real disk.
pub(super) fn scratch() -> tempfile::TempDir {
    let shared_memory = Path::new("/dev/shm");
    match shared_memory.is_dir() {
        true => tempfile::tempdir_in(shared_memory),
        false => tempfile::tempdir(),
    }
    .unwrap()
}

/// One transaction: keys and their new values.
pub(super) type Writes = Vec<(Arc<str>, Option<Bytes>)>;

pub(super) fn put(key: &str, value: &str) -> (Arc<str>, Option<Bytes>) {
    (key.into(), Some(Bytes::copy_from_slice(value.as_bytes())))
}

pub(super) fn del(key: &str) -> (Arc<str>, Option<Bytes>) {
    (key.into(), None)
}

/// What a log handed over.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Replay {
    pub base: Revision,
    pub revision: Revision,
    pub state: BTreeMap<Arc<str>, (Revision, Revision, Bytes)>,
    pub transactions: BTreeMap<Revision, Writes>,
}

impl Replay {
    pub(super) fn apply(&mut self, revision: Revision, writes: &Writes) {
        for (key, value) in writes {
            match value {
                None => {
                    self.state.remove(key);
                }
                Some(value) => {
                    let created = self.state.get(key).map_or(revision, |(created, ..)| *created);
                    self.state.insert(key.clone(), (created, revision, value.clone()));
                }
            }
        }
        self.transactions.insert(revision, writes.clone());
        self.revision = revision;
    }

    pub(super) fn items(&self) -> Vec<BaseItem> {
        let item = |(key, (created, modified, bytes)): (&Arc<str>, &(Revision, Revision, Bytes))| BaseItem {
            key: key.clone(),
            created: *created,
            modified: *modified,
            bytes: bytes.clone(),
        };
        self.state.iter().map(item).collect()
    }
}

pub(super) fn replay(log: &mut EmbeddedLog) -> Result<Replay, OpenError> {
    let mut seen = Replay {
        revision: 1,
        ..Replay::default()
    };
    let revision = log.replay(&mut |replayed| match replayed {
        Replayed::Base { revision, items } => {
            let state = items
                .into_iter()
                .map(|item| (item.key, (item.created, item.modified, item.bytes)));
            seen.state = state.collect();
            (seen.base, seen.revision) = (revision, revision);
        }
        Replayed::Transaction { revision, writes, .. } => {
            assert_eq!(revision, seen.revision + 1);
            seen.apply(revision, &writes);
        }
    })?;
    assert_eq!(revision, seen.revision);
    Ok(seen)
}

pub(super) fn commit(log: &mut EmbeddedLog, batch: &[Writes]) -> Result<Revision, LogError> {
    let mut revision = log.revision;
    let transactions: Vec<Transaction<'_>> = batch
        .iter()
        .map(|writes| {
            revision += 1;
            let writes = writes.iter().map(|(key, value)| (key, value.as_ref())).collect();
            Transaction {
                revision,
                compares: Vec::new(),
                writes,
            }
        })
        .collect();
    let outcomes = log.commit(1_000_000, &transactions)?;
    assert_eq!(outcomes.len(), batch.len());
    Ok(revision)
}

/// Writes the mark of a log whose segment began with `segment` and that was durable up to `revision`.
pub(super) fn set_mark(dir: &Path, segment: Revision, revision: Revision) {
    Mark::new(dir).store(&RealDisk, Marked { segment, revision }).unwrap();
}

pub(super) fn open(dir: &Path) -> Result<(EmbeddedLog, Replay), OpenError> {
    let mut log = EmbeddedLog::open(dir, EmbeddedOptions::default())?;
    let seen = replay(&mut log)?;
    Ok((log, seen))
}
