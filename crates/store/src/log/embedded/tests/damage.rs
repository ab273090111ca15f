//! Files cut short, changed or missing.

use std::sync::Mutex as StdMutex;

use tracing::field::{Field, Visit};
use tracing::span;

use super::*;

/// A directory with one segment of four batches, and where each frame ends.
fn sample() -> (tempfile::TempDir, Vec<u8>, Vec<u64>, Vec<Vec<Writes>>) {
    let dir = scratch();
    let batches = vec![
        vec![
            vec![put("/registry/a/1", "one")],
            vec![put("/registry/a/2", "two"), put("/registry/b/1", "x")],
        ],
        vec![vec![put("/registry/a/1", "three")]],
        vec![
            vec![del("/registry/a/2")],
            vec![put("/registry/a/3", "")],
            vec![del("/registry/a/1")],
        ],
        vec![vec![put(
            "/registry/c/1",
            "some longer value, so that the last frame has some length",
        )]],
    ];
    let mut ends = vec![HEADER as u64];
    let (mut log, _) = open(dir.path()).unwrap();
    for batch in &batches {
        commit(&mut log, batch).unwrap();
        ends.push(log.active.as_ref().unwrap().good);
    }
    drop(log);
    let bytes = std::fs::read(dir.path().join(segment_name(2))).unwrap();
    assert_eq!(bytes.len() as u64, *ends.last().unwrap());
    (dir, bytes, ends, batches)
}

/// What there is after the first `count` batches.
fn prefix(batches: &[Vec<Writes>], count: usize) -> Replay {
    let mut expected = Replay {
        revision: 1,
        ..Replay::default()
    };
    for writes in batches[..count].iter().flatten() {
        expected.apply(expected.revision + 1, writes);
    }
    expected
}

/// A directory with this segment and no mark: its owner removed it, to start with what is left.
fn dir_with(bytes: &[u8]) -> tempfile::TempDir {
    let dir = scratch();
    std::fs::write(dir.path().join(segment_name(2)), bytes).unwrap();
    dir
}

/// The log opens with `expected`, takes another batch and has it after a restart.
fn check_usable(dir: &Path, mut expected: Replay) {
    let (mut log, seen) = open(dir).unwrap();
    assert_eq!(seen, expected);
    let more = vec![put("/registry/new", "after")];
    assert_eq!(
        commit(&mut log, std::slice::from_ref(&more)).unwrap(),
        expected.revision + 1
    );
    drop(log);
    expected.apply(expected.revision + 1, &more);
    assert_eq!(open(dir).unwrap().1, expected);
}

#[test]
fn cut_at_every_byte() {
    let (_dir, bytes, ends, batches) = sample();
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut as u64).count().saturating_sub(1);
        check_usable(dir_with(&bytes[..cut]).path(), prefix(&batches, whole));
    }
}

/// The revision after each count of batches.
fn revisions(batches: &[Vec<Writes>]) -> Vec<Revision> {
    (0..=batches.len())
        .map(|count| prefix(batches, count).revision)
        .collect()
}

/// Refused with advice, and nothing touched; after following the advice there is what is left.
fn check_refused(dir: &Path, bytes: &[u8], left: Replay) {
    let error = open(dir).err().expect("acknowledged writes are missing");
    let mark = dir.join("mark");
    let advice = format!(
        "restore the data directory from a backup, or delete {} to start without what is lost",
        mark.display()
    );
    assert!(matches!(error, OpenError::Lost { .. }), "{error}");
    assert!(error.to_string().ends_with(&advice), "{error}");
    assert_eq!(std::fs::read(dir.join(segment_name(2))).unwrap(), bytes, "left alone");
    std::fs::remove_file(mark).unwrap();
    check_usable(dir, left);
}

#[test]
fn a_log_cut_below_the_mark_is_refused() {
    let (_dir, bytes, ends, batches) = sample();
    for (count, revision) in revisions(&batches).into_iter().enumerate() {
        for cut in 0..=bytes.len() {
            let dir = dir_with(&bytes[..cut]);
            set_mark(dir.path(), 2, revision);
            match ends.iter().filter(|end| **end <= cut as u64).count().checked_sub(1) {
                Some(whole) if whole >= count => check_usable(dir.path(), prefix(&batches, whole)),
                whole => check_refused(dir.path(), &bytes[..cut], prefix(&batches, whole.unwrap_or(0))),
            }
        }
    }
}

#[test]
fn any_changed_byte_is_noticed() {
    let (_dir, bytes, ends, batches) = sample();
    let last_frame = ends[ends.len() - 2];
    let marks: Vec<_> = std::iter::once(None)
        .chain(revisions(&batches).into_iter().map(Some))
        .collect();
    for at in 0..bytes.len() {
        for mask in [0x01, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= mask;
            for mark in &marks {
                let dir = dir_with(&changed);
                if let Some(revision) = mark {
                    set_mark(dir.path(), 2, *revision);
                }
                if at as u64 >= last_frame {
                    let left = prefix(&batches, batches.len() - 1);
                    match mark.is_some_and(|revision| revision > left.revision) {
                        true => check_refused(dir.path(), &changed, left),
                        false => check_usable(dir.path(), left),
                    }
                    continue;
                }
                let error = open(dir.path())
                    .err()
                    .expect("damage to what was acknowledged is refused");
                let OpenError::Corrupt { file, offset, .. } = error else {
                    panic!("{error}")
                };
                let frame = ends.iter().rev().find(|end| **end <= at as u64).copied().unwrap_or(0);
                assert_eq!((file, offset), (dir.path().join(segment_name(2)), frame));
                assert_eq!(
                    std::fs::read(dir.path().join(segment_name(2))).unwrap(),
                    changed,
                    "left alone"
                );
            }
        }
    }
}

fn copy_dir(from: &Path) -> tempfile::TempDir {
    let to = scratch();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

#[test]
fn any_one_file_damaged_shortened_or_gone_loses_nothing_unnoticed() {
    let (dir, _, _, batches) = sample();
    let (mut log, state) = open(dir.path()).unwrap();
    log.options.snapshot_bytes = 0;
    let job = log.checkpoint(0).unwrap();
    // One batch while the snapshot is being written, which holds it too; one later.
    let (during, later) = (
        vec![put("/registry/d/1", "during")],
        vec![put("/registry/d/2", "later")],
    );
    commit(&mut log, std::slice::from_ref(&during)).unwrap();
    let mut expected = prefix(&batches, batches.len());
    assert_eq!(expected, state);
    expected.apply(9, &during);
    let items = expected.items();
    let count = items.len() as u64;
    job.write(9, count, &mut items.into_iter(), &false.into()).unwrap();
    commit(&mut log, std::slice::from_ref(&later)).unwrap();
    expected.apply(10, &later);
    drop(log);

    let check = |case: &str, file: &str, change: &dyn Fn(&Path)| {
        let copy = copy_dir(dir.path());
        change(&copy.path().join(file));
        match open(copy.path()) {
            Ok((_, seen)) => assert_eq!(seen.state, expected.state, "{case} {file}"),
            Err(error) => assert!(error.to_string().contains("from a backup"), "{case} {file}: {error}"),
        }
    };
    for file in [segment_name(9), snapshot_name(9), "mark".into()] {
        let bytes = std::fs::read(dir.path().join(&file)).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x04;
            check("changed", &file, &|path| std::fs::write(path, &changed).unwrap());
            check("cut", &file, &|path| std::fs::write(path, &bytes[..at]).unwrap());
        }
        check("removed", &file, &|path| std::fs::remove_file(path).unwrap());
    }

    // A power cut can leave an older mark: that of the beginning of the segment, or that of the one before.
    for (segment, revision) in [(9, 10), (9, 8), (2, 8)] {
        let copy = copy_dir(dir.path());
        set_mark(copy.path(), segment, revision);
        std::fs::remove_file(copy.path().join(segment_name(9))).unwrap();
        let error = open(copy.path()).err().expect("the last log is gone").to_string();
        assert!(
            error.contains(&format!("{} is missing", segment_name(9))) && error.contains("mark"),
            "{error}"
        );
        std::fs::remove_file(copy.path().join("mark")).unwrap();
        assert_eq!(open(copy.path()).unwrap().1.revision, 9, "as advised");
    }
}

#[test]
fn a_directory_without_its_log_is_refused() {
    let (dir, ..) = sample();
    std::fs::remove_file(dir.path().join(segment_name(2))).unwrap();
    let error = open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(&format!("{} is missing", segment_name(2))), "{error}");
}

#[test]
fn a_frame_of_another_log_is_refused() {
    // The same revisions and lengths, whole checksums; only the chain tells.
    let (_dir, mut bytes, ends, _) = sample();
    let other = scratch();
    let (mut log, _) = open(other.path()).unwrap();
    commit(
        &mut log,
        &[
            vec![put("/registry/a/1", "uno")],
            vec![put("/registry/a/2", "due"), put("/registry/b/1", "x")],
        ],
    )
    .unwrap();
    commit(&mut log, &[vec![put("/registry/a/1", "three")]]).unwrap();
    drop(log);
    let frame = ends[1] as usize..ends[2] as usize;
    let foreign = std::fs::read(other.path().join(segment_name(2))).unwrap();
    bytes[frame.clone()].copy_from_slice(&foreign[frame]);
    let error = open(dir_with(&bytes).path()).err().unwrap().to_string();
    assert!(error.contains("does not follow the one before it"), "{error}");
}

/// Files as version 1 had them.
mod version_1 {
    use super::*;

    fn file(magic: &[u8; 8], revision: Revision, count: u64, payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut out = magic.to_vec();
        out.extend(1u32.to_le_bytes());
        out.extend(revision.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(crc32fast::hash(&out).to_le_bytes());
        for payload in payloads {
            let length = (payload.len() as u32).to_le_bytes();
            let crc = crc32fast::hash(&[&length[..], payload].concat());
            out.extend(length);
            out.extend(crc.to_le_bytes());
            out.extend(payload);
        }
        out
    }

    pub(super) fn segment(first: Revision, batches: &[Vec<Writes>]) -> Vec<u8> {
        let mut revision = first - 1;
        let payload = |batch: &Vec<Writes>| {
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
            let mut out = Vec::new();
            frame::put_batch(&mut out, 1_000_000, &transactions);
            out
        };
        file(b"ORLOPLOG", first, 0, &batches.iter().map(payload).collect::<Vec<_>>())
    }

    pub(super) fn snapshot(state: &Replay) -> Vec<u8> {
        let mut payload = Vec::new();
        let items = state.items();
        frame::put_items(&mut payload, &items);
        file(b"ORLOPSNP", state.revision, items.len() as u64, &[payload])
    }
}

#[test]
fn files_of_version_1_are_read_and_left_behind() {
    let (_dir, _, _, batches) = sample();
    for torn in [0, 1, 30] {
        for with_snapshot in [false, true] {
            let dir = scratch();
            let mut expected = prefix(&batches, batches.len());
            let mut bytes = version_1::segment(2, &batches);
            if with_snapshot {
                let state = prefix(&batches, 2);
                std::fs::write(
                    dir.path().join(snapshot_name(state.revision)),
                    version_1::snapshot(&state),
                )
                .unwrap();
                bytes = version_1::segment(state.revision + 1, &batches[2..]);
                (expected.base, expected.transactions) =
                    (state.revision, expected.transactions.split_off(&(state.revision + 1)));
            }
            let first = if with_snapshot { expected.base + 1 } else { 2 };
            let path = dir.path().join(segment_name(first));
            std::fs::write(&path, [&bytes[..], &vec![7; torn]].concat()).unwrap();
            check_usable(dir.path(), expected);
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "not appended to");
            assert!(dir.path().join(segment_name(9)).exists());

            std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            let error = open(dir.path()).err().unwrap().to_string();
            assert!(error.contains("it ends inside a frame"), "{error}");
            std::fs::write(&path, &bytes).unwrap();

            let (mut log, state) = open(dir.path()).unwrap();
            snapshot(&mut log, &state);
            drop(log);
            assert!(!path.exists(), "the snapshot replaced it");
            assert_eq!(open(dir.path()).unwrap().1.state, state.state);
        }
    }
}

#[test]
fn garbage_at_the_end_is_cut() {
    let (_dir, bytes, _, batches) = sample();
    for garbage in [vec![0; 1], vec![0; 4096], vec![0xff; 100], bytes[40..90].to_vec()] {
        let mut longer = bytes.clone();
        longer.extend(&garbage);
        check_usable(dir_with(&longer).path(), prefix(&batches, batches.len()));
    }
}

#[test]
fn an_old_frame_at_the_end_is_refused() {
    // A whole frame of a revision that was there already is no torn end.
    let (_dir, mut bytes, ends, _) = sample();
    bytes.extend_from_within(ends[1] as usize..ends[2] as usize);
    let error = open(dir_with(&bytes).path()).err().unwrap().to_string();
    assert!(error.contains("does not follow the one before it"), "{error}");
}

#[test]
fn damage_before_the_last_segment_is_refused() {
    let dir = scratch();
    let (mut log, _) = open(dir.path()).unwrap();
    for n in 0..3 {
        commit(&mut log, &[vec![put("/registry/a/1", &n.to_string())]]).unwrap();
        log.seal();
    }
    drop(log);
    let path = |first| dir.path().join(segment_name(first));
    let first = std::fs::read(path(2)).unwrap();
    assert_eq!(open(dir.path()).unwrap().1.revision, 4);

    std::fs::write(path(2), &first[..first.len() - 1]).unwrap();
    let message = open(dir.path()).err().unwrap().to_string();
    let expected = format!(
        "{} is damaged at byte {HEADER}: it ends inside a frame",
        path(2).display()
    );
    assert!(message.starts_with(&expected), "{message}");

    std::fs::write(path(2), &first).unwrap();
    let middle = std::fs::read(path(3)).unwrap();
    std::fs::remove_file(path(3)).unwrap();
    let message = open(dir.path()).err().unwrap().to_string();
    assert!(message.contains("revisions 3 to 3 are missing before it"), "{message}");

    std::fs::write(path(3), &middle).unwrap();
    std::fs::remove_file(path(2)).unwrap();
    let message = open(dir.path()).err().unwrap().to_string();
    assert!(message.contains("revisions 2 to 2 are missing before it"), "{message}");
}

fn snapshot(log: &mut EmbeddedLog, state: &Replay) {
    log.options.snapshot_bytes = 0;
    let job = log.checkpoint(0).unwrap();
    let items = state.items();
    let count = items.len() as u64;
    job.write(state.revision, count, &mut items.into_iter(), &false.into())
        .unwrap();
}

#[test]
fn a_damaged_snapshot_is_refused_unless_the_log_has_it_all() {
    let (dir, segment, _, batches) = sample();
    let (mut log, state) = open(dir.path()).unwrap();
    snapshot(&mut log, &state);
    drop(log);
    let path = dir.path().join(snapshot_name(8));
    let good = std::fs::read(&path).unwrap();
    assert!(!dir.path().join(segment_name(2)).exists());
    let (_, seen) = open(dir.path()).unwrap();
    assert_eq!((seen.base, seen.revision, &seen.state), (8, 8, &state.state));

    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 0x10;
        for bytes in [&changed, &good[..at]] {
            std::fs::write(&path, bytes).unwrap();
            let error = open(dir.path()).err().expect("refused");
            assert!(
                matches!(&error, OpenError::Corrupt { file, .. } if *file == path),
                "{error}"
            );
        }
    }
    // As after a crash between renaming the snapshot and removing the log before it.
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    std::fs::write(dir.path().join(segment_name(2)), segment).unwrap();
    assert_eq!(open(dir.path()).unwrap().1, prefix(&batches, batches.len()));
    assert!(!path.exists(), "the broken one is gone");
}

#[test]
fn what_a_snapshot_replaced_is_removed_at_open() {
    let (dir, segment, _, _) = sample();
    let (mut log, mut state) = open(dir.path()).unwrap();
    snapshot(&mut log, &state);
    let more = vec![put("/registry/a/9", "9")];
    commit(&mut log, std::slice::from_ref(&more)).unwrap();
    drop(log);
    std::fs::write(dir.path().join(segment_name(2)), &segment).unwrap();
    std::fs::write(dir.path().join("snapshot-00000000000000000099.tmp"), "half").unwrap();
    let (_, seen) = open(dir.path()).unwrap();
    state.apply(9, &more);
    assert_eq!((seen.base, &seen.state, seen.revision), (8, &state.state, 9));
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["lock".into(), segment_name(9), "mark".into(), snapshot_name(8)].map(std::ffi::OsString::from)
    );
}

#[test]
fn a_log_cut_back_behind_its_snapshot_keeps_the_revision() {
    // The snapshot was taken after the segment had begun; then the segment lost its end.
    let (dir, segment, ends, _) = sample();
    let (mut log, state) = open(dir.path()).unwrap();
    snapshot(&mut log, &state);
    drop(log);
    std::fs::write(dir.path().join(segment_name(2)), &segment[..ends[1] as usize]).unwrap();
    let mut expected = Replay {
        base: 8,
        revision: 8,
        state: state.state,
        ..Replay::default()
    };
    let (mut log, seen) = open(dir.path()).unwrap();
    assert_eq!(seen, expected);
    let more = vec![put("/registry/a/9", "9")];
    assert_eq!(commit(&mut log, std::slice::from_ref(&more)).unwrap(), 9);
    drop(log);
    expected.apply(9, &more);
    assert_eq!(open(dir.path()).unwrap().1, expected);
}

/// Remembers warnings.
#[derive(Default)]
struct Ears(StdMutex<Vec<String>>);

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl tracing::Subscriber for Ears {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = String::new();
        event.record(&mut Words(&mut words));
        self.0.lock().unwrap().push(words);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_cut_is_reported_with_its_bytes() {
    let (_dir, bytes, _, _) = sample();
    let dir = dir_with(&bytes[..bytes.len() - 3]);
    let ears = Arc::new(Ears::default());
    tracing::subscriber::with_default(ears.clone(), || open(dir.path()).unwrap());
    let heard = ears.0.lock().unwrap().join("\n");
    let cut = std::fs::metadata(dir.path().join(segment_name(2))).unwrap().len();
    let lost = bytes.len() as u64 - 3 - cut;
    assert!(
        heard.contains(&format!("bytes={lost} ")) && heard.contains("torn end"),
        "{heard}"
    );
}
