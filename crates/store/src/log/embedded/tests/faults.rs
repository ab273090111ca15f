//! Disks that fail and power that goes: what was acknowledged stays, what was refused does not come back.

use std::io::ErrorKind;

use orlop_base::Random;
use proptest::prelude::*;

use super::super::faulty::{Call, FaultyDisk};
use super::*;

fn open_on(disk: &FaultyDisk, dir: &Path) -> (EmbeddedLog, Replay) {
    let options = EmbeddedOptions { snapshot_bytes: 300 };
    let mut log = EmbeddedLog::open_on(Arc::new(disk.clone()), dir, options).unwrap();
    let seen = replay(&mut log).unwrap();
    (log, seen)
}

fn one(n: usize) -> Vec<Writes> {
    vec![vec![put(&format!("/registry/pods/{}", n % 3), &format!("value {n}"))]]
}

#[test]
fn a_full_disk_refuses_and_works_again() {
    for (call, kind, advice) in [
        (Call::Write, ErrorKind::StorageFull, "free some space"),
        (
            Call::Write,
            ErrorKind::ReadOnlyFilesystem,
            "make the file system writable",
        ),
        (Call::Sync, ErrorKind::Other, "check the disk"),
        (Call::Create, ErrorKind::StorageFull, "free some space"),
        (Call::Rename, ErrorKind::StorageFull, "free some space"),
        (Call::SyncDir, ErrorKind::Other, "check the disk"),
    ] {
        for started in [false, true] {
            let (dir, disk) = (scratch(), FaultyDisk::default());
            let (mut log, mut expected) = open_on(&disk, dir.path());
            if started {
                commit(&mut log, &one(0)).unwrap();
                expected.apply(2, &one(0)[0]);
                if call != Call::Write && call != Call::Sync {
                    log.seal();
                }
            }
            disk.fail(call, kind);
            for n in 1..4 {
                let error = commit(&mut log, &one(n)).expect_err("refused").to_string();
                assert!(
                    error.contains(advice) && error.contains(dir.path().to_str().unwrap()),
                    "{error}"
                );
            }
            assert_eq!(log.meter.stats().failures, 3);
            disk.heal();
            let revision = expected.revision + 1;
            assert_eq!(commit(&mut log, &one(4)).unwrap(), revision, "{call:?}");
            expected.apply(revision, &one(4)[0]);
            drop(log);
            assert_eq!(open_on(&disk, dir.path()).1, expected, "{call:?}");
        }
    }
}

#[test]
fn nothing_is_written_before_a_failed_write_is_cut_off() {
    let (dir, disk) = (scratch(), FaultyDisk::default());
    let (mut log, mut expected) = open_on(&disk, dir.path());
    commit(&mut log, &one(0)).unwrap();
    expected.apply(2, &one(0)[0]);
    disk.fail(Call::Sync, ErrorKind::Other);
    disk.fail(Call::Truncate, ErrorKind::ReadOnlyFilesystem);
    let path = dir.path().join(segment_name(2));
    commit(&mut log, &one(1)).expect_err("refused");
    let left = std::fs::read(&path).unwrap();
    commit(&mut log, &one(2)).expect_err("refused without touching the file");
    assert_eq!(std::fs::read(&path).unwrap(), left);
    disk.heal();
    assert_eq!(commit(&mut log, &one(3)).unwrap(), 3);
    expected.apply(3, &one(3)[0]);
    assert!(
        dir.path().join(segment_name(3)).exists(),
        "a file whose sync failed is not written to again"
    );
    drop(log);
    assert_eq!(open_on(&disk, dir.path()).1, expected);
}

#[test]
fn a_failing_snapshot_costs_nothing_but_the_attempt() {
    let (dir, disk) = (scratch(), FaultyDisk::default());
    let (mut log, mut expected) = open_on(&disk, dir.path());
    for call in [
        Call::Available,
        Call::Create,
        Call::Write,
        Call::Sync,
        Call::Rename,
        Call::SyncDir,
    ] {
        grow_and_snapshot(&mut log, &mut expected, &disk, Some(call)).expect_err("it cannot be written");
        assert!(
            log.checkpoint(0).is_none(),
            "not at once again, but when the log has grown some more"
        );
    }
    grow_and_snapshot(&mut log, &mut expected, &disk, None).unwrap();
    assert_eq!(log.meter.stats().snapshots, 1);
    drop(log);
    let seen = open_on(&disk, dir.path()).1;
    assert_eq!(
        (&seen.state, seen.revision, seen.base),
        (&expected.state, expected.revision, expected.revision)
    );
}

/// Commits until a snapshot is due, then writes it, with some call failing.
fn grow_and_snapshot(
    log: &mut EmbeddedLog,
    expected: &mut Replay,
    disk: &FaultyDisk,
    failing: Option<Call>,
) -> Result<(), LogError> {
    loop {
        let writes = one(expected.revision as usize);
        let revision = commit(log, &writes).unwrap();
        expected.apply(revision, &writes[0]);
        if let Some(job) = log.checkpoint(0) {
            let items = expected.items();
            if let Some(call) = failing {
                disk.fail(call, ErrorKind::StorageFull);
            }
            let result = job.write(revision, items.len() as u64, &mut items.into_iter(), &false.into());
            disk.heal();
            return result;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Vec<(u8, Option<u8>)>>),
    Fail(Call),
    Heal,
    TakeJob,
    RunJob { cancelled: bool },
    Kill,
    CutPower(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..5u8, proptest::option::weighted(0.8, any::<u8>()));
    let txn = proptest::collection::vec(write, 1..3);
    let call = proptest::sample::select(vec![
        Call::Create,
        Call::Append,
        Call::Write,
        Call::Sync,
        Call::Truncate,
        Call::Rename,
        Call::Remove,
        Call::SyncDir,
    ]);
    prop_oneof![
        10 => proptest::collection::vec(txn, 1..4).prop_map(Step::Commit),
        3 => call.prop_map(Step::Fail),
        3 => Just(Step::Heal),
        2 => Just(Step::TakeJob),
        2 => any::<bool>().prop_map(|cancelled| Step::RunJob { cancelled }),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(Step::CutPower),
    ]
}

struct Machine {
    dir: tempfile::TempDir,
    disk: FaultyDisk,
    log: Option<EmbeddedLog>,
    job: Option<Box<dyn Checkpoint>>,
    /// All that was acknowledged, and the state it makes.
    acknowledged: Replay,
    /// A batch that was refused while what it left could not be cut off. The one thing whose fate is open.
    open: Option<Vec<Writes>>,
}

impl Machine {
    fn step(&mut self, step: Step) {
        match step {
            Step::Fail(call) => self.disk.fail(call, ErrorKind::StorageFull),
            Step::Heal => self.disk.heal(),
            Step::Commit(batch) => {
                let txn = |writes: Vec<(u8, Option<u8>)>| -> Writes {
                    let distinct: BTreeMap<u8, Option<u8>> = writes.into_iter().collect();
                    let write = |(key, value): (u8, Option<u8>)| {
                        let key: Arc<str> = format!("/registry/k/{key}").into();
                        (key, value.map(|n| Bytes::from(vec![n; n as usize % 40])))
                    };
                    distinct.into_iter().map(write).collect()
                };
                self.commit(batch.into_iter().map(txn).collect());
            }
            Step::TakeJob => {
                if self.job.is_none() {
                    self.job = self.log.as_mut().unwrap().checkpoint(0);
                }
            }
            Step::RunJob { cancelled } => {
                if let Some(job) = self.job.take() {
                    let items = self.acknowledged.items();
                    let count = items.len() as u64;
                    let _ = job.write(
                        self.acknowledged.revision,
                        count,
                        &mut items.into_iter(),
                        &cancelled.into(),
                    );
                }
            }
            Step::Kill => self.restart(None),
            Step::CutPower(seed) => self.restart(Some(seed)),
        }
    }

    fn commit(&mut self, batch: Vec<Writes>) {
        let log = self.log.as_mut().unwrap();
        match commit(log, &batch) {
            Ok(_) => {
                for writes in &batch {
                    let revision = self.acknowledged.revision + 1;
                    self.acknowledged.apply(revision, writes);
                }
                self.open = None;
            }
            Err(_) => {
                let is_cut = log.active.as_ref().is_none_or(|segment| segment.health == Health::Good);
                if is_cut {
                    self.open = None;
                } else if self.open.is_none() {
                    self.open = Some(batch);
                }
            }
        }
    }

    fn restart(&mut self, power_cut: Option<u64>) {
        self.job = None;
        self.log = None;
        self.disk.heal();
        if let Some(seed) = power_cut {
            self.disk.cut_power(self.dir.path(), &mut Random::seeded(seed));
        }
        let (log, seen) = open_on(&self.disk, self.dir.path());
        self.log = Some(log);
        if seen.revision > self.acknowledged.revision {
            let open = self
                .open
                .take()
                .expect("nothing comes back that was refused and cut off");
            for writes in &open {
                let revision = self.acknowledged.revision + 1;
                self.acknowledged.apply(revision, writes);
            }
        }
        self.open = None;
        assert_eq!(
            (seen.revision, &seen.state),
            (self.acknowledged.revision, &self.acknowledged.state)
        );
        for (revision, writes) in &seen.transactions {
            assert_eq!(Some(writes), self.acknowledged.transactions.get(revision));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_stays_and_what_was_refused_is_gone(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let (dir, disk) = (scratch(), FaultyDisk::default());
        let (log, acknowledged) = open_on(&disk, dir.path());
        let mut machine = Machine { dir, disk, log: Some(log), job: None, acknowledged, open: None };
        for step in steps {
            machine.step(step);
        }
        machine.restart(None);
        machine.restart(Some(7));
    }
}
