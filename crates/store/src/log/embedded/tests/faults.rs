//! Disks that fail and power that goes: what was acknowledged stays, what was refused does not come back.

use std::io::ErrorKind;

use orlop_base::Random;
use proptest::prelude::*;

use super::super::faulty::{Call, FaultyDisk};
use super::*;

fn open_on(disk: &FaultyDisk, dir: &Path) -> (EmbeddedLog, Replay) {
    let options = EmbeddedOptions {
        snapshot_bytes: 300,
        ..EmbeddedOptions::default()
    };
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
    let error = commit(&mut log, &one(1)).expect_err("refused");
    assert!(
        error.undecided && error.to_string().contains("after a restart is not known"),
        "{error}"
    );
    let left = std::fs::read(&path).unwrap();
    let error = commit(&mut log, &one(2)).expect_err("refused without touching the file");
    assert!(
        !error.undecided && error.to_string().contains("nothing was changed"),
        "{error}"
    );
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
fn what_cannot_be_cut_off_is_left_behind() {
    for started in [false, true] {
        let (dir, disk) = (scratch(), FaultyDisk::default());
        let (mut log, mut expected) = open_on(&disk, dir.path());
        if started {
            commit(&mut log, &one(0)).unwrap();
            expected.apply(2, &one(0)[0]);
        } else {
            log.prepare().unwrap();
        }
        disk.fail_once(Call::Sync, ErrorKind::Other);
        disk.fail(Call::Truncate, ErrorKind::PermissionDenied);
        let error = commit(&mut log, &one(1)).expect_err("refused");
        assert!(!error.undecided, "{error}");
        drop(log);
        let (mut log, seen) = open_on(&disk, dir.path());
        assert_eq!(seen, expected, "what was refused is not there");
        let revision = commit(&mut log, &one(2)).unwrap();
        expected.apply(revision, &one(2)[0]);
        drop(log);
        assert_eq!(open_on(&disk, dir.path()).1, expected);
    }
}

#[test]
fn a_probe_is_a_write_that_changes_nothing() {
    let (dir, disk) = (scratch(), FaultyDisk::default());
    let (mut log, mut expected) = open_on(&disk, dir.path());
    for n in 0..3 {
        log.probe(1).unwrap();
        log.probe(1).unwrap();
        if n == 1 {
            log.seal();
        }
        let revision = commit(&mut log, &one(n)).unwrap();
        expected.apply(revision, &one(n)[0]);
        disk.fail(Call::Sync, ErrorKind::Other);
        log.probe(1).expect_err("the disk cannot be written");
        disk.heal();
    }
    drop(log);
    let (mut log, seen) = open_on(&disk, dir.path());
    assert_eq!(seen, expected);
    // A segment with nothing else in it is replaced, and never removed under another name.
    log.probe(1).unwrap();
    grow_and_snapshot(&mut log, &mut expected, &disk, None).unwrap();
    log.probe(1).unwrap();
    log.seal();
    grow_and_snapshot(&mut log, &mut expected, &disk, None).unwrap();
    drop(log);
    assert_eq!(open_on(&disk, dir.path()).1.state, expected.state);
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
    FailOnce(Call),
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
        Call::WriteAt,
        Call::Sync,
        Call::Truncate,
        Call::Rename,
        Call::Remove,
        Call::SyncDir,
    ]);
    prop_oneof![
        10 => proptest::collection::vec(txn, 1..4).prop_map(Step::Commit),
        3 => call.clone().prop_map(Step::Fail),
        2 => call.prop_map(Step::FailOnce),
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
    /// A batch of which the log did not say that nothing of it happened. The one thing whose fate is open.
    open: Option<Vec<Writes>>,
}

impl Machine {
    fn step(&mut self, step: Step) {
        match step {
            Step::Fail(call) => self.disk.fail(call, ErrorKind::StorageFull),
            Step::FailOnce(call) => self.disk.fail_once(call, ErrorKind::StorageFull),
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
            Err(error) => {
                let is_undone = log.active.as_ref().is_none_or(|segment| segment.health == Health::Good);
                if is_undone {
                    self.open = None;
                }
                if error.undecided {
                    assert!(self.open.is_none(), "one at a time");
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

/// A whole store on a disk that fails: what its users are told is what they find, also after restarts.
mod store {
    use std::time::Duration;

    use orlop_base::Clock;

    use super::*;
    use crate::{Action, CommitError, Expect, Op, Options, Store};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Told {
        Committed,
        Refused,
        Unknown,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write,
        Fail(Call),
        FailOnce(Call),
        Heal,
        Restart { power_cut: Option<u64> },
    }

    fn step() -> impl Strategy<Value = Step> {
        let call = proptest::sample::select(vec![
            Call::Append,
            Call::Create,
            Call::Write,
            Call::WriteAt,
            Call::Sync,
            Call::Sync,
            Call::Truncate,
            Call::Rename,
            Call::SyncDir,
        ]);
        prop_oneof![
            8 => Just(Step::Write),
            3 => call.clone().prop_map(Step::Fail),
            3 => call.prop_map(Step::FailOnce),
            2 => Just(Step::Heal),
            2 => proptest::option::of(any::<u64>()).prop_map(|power_cut| Step::Restart { power_cut }),
        ]
    }

    struct World {
        dir: tempfile::TempDir,
        disk: FaultyDisk,
        clock: Clock,
        store: Option<Store<Bytes>>,
        told: Vec<Told>,
    }

    impl World {
        fn new() -> World {
            let mut world = World {
                dir: scratch(),
                disk: FaultyDisk::default(),
                clock: Clock::manual("2026-01-02T03:04:05Z".parse().unwrap()),
                store: None,
                told: Vec::new(),
            };
            world.open();
            world
        }

        fn open(&mut self) {
            let options = EmbeddedOptions {
                snapshot_bytes: 300,
                ..EmbeddedOptions::default()
            };
            let log = EmbeddedLog::open_on(Arc::new(self.disk.clone()), self.dir.path(), options).unwrap();
            // The writer looks around every ten milliseconds.
            let options = Options {
                history_age: Duration::from_millis(160),
                clock: self.clock.clone(),
                ..Options::default()
            };
            self.store = Some(Store::open(Box::new(log), options).unwrap());
        }

        fn store(&self) -> &Store<Bytes> {
            self.store.as_ref().unwrap()
        }

        fn key(n: usize) -> String {
            format!("/registry/pods/ns/{n}")
        }

        async fn write(&mut self) -> Told {
            let text = Arc::new(Bytes::from(vec![b'x'; self.told.len() % 40]));
            let op = Op::new(World::key(self.told.len()), Expect::Any, Action::Put(text));
            let store = self.store().clone();
            let mut commit = std::pin::pin!(store.commit(op));
            let answer = tokio::select! {
                answer = &mut commit => answer,
                () = tokio::time::sleep(Duration::from_millis(40)) => {
                    // Undecided. Nobody waits for ever.
                    self.clock.advance(Duration::from_secs(6));
                    commit.await
                }
            };
            let told = match answer {
                Ok(_) => Told::Committed,
                Err(CommitError::Unavailable(why)) => {
                    assert!(why.contains("nothing was changed"), "{why}");
                    Told::Refused
                }
                Err(CommitError::Unknown(why)) => {
                    assert!(why.contains("after a restart is not known"), "{why}");
                    Told::Unknown
                }
                Err(other) => panic!("{other}"),
            };
            assert!(told == Told::Committed || self.store().health().is_err() || self.is_recovering());
            self.told.push(told);
            told
        }

        /// A write that failed may have been followed by a probe that did not.
        fn is_recovering(&self) -> bool {
            self.store().stats().unavailable > 0
        }

        fn check(&self) {
            for (n, told) in self.told.iter().enumerate() {
                let is_there = self.store().get(&World::key(n)).is_some();
                match told {
                    Told::Committed => assert!(is_there, "write {n} was acknowledged"),
                    Told::Refused => assert!(!is_there, "write {n} was refused"),
                    Told::Unknown => {}
                }
            }
        }

        fn restart(&mut self, power_cut: Option<u64>) {
            self.store = None;
            self.disk.heal();
            if let Some(seed) = power_cut {
                self.disk.cut_power(self.dir.path(), &mut Random::seeded(seed));
            }
            self.open();
            self.check();
            // What was seen once is there for good.
            for n in 0..self.told.len() {
                if self.told[n] == Told::Unknown {
                    let is_there = self.store().get(&World::key(n)).is_some();
                    self.told[n] = if is_there { Told::Committed } else { Told::Refused };
                }
            }
        }

        async fn recovers(&self) {
            for _ in 0..200 {
                if self.store().health().is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("still failing: {:?}", self.store().health());
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(test);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn what_users_are_told_is_what_they_find(steps in proptest::collection::vec(step(), 1..40)) {
            run(async {
                let mut world = World::new();
                for step in steps {
                    match step {
                        Step::Write => {
                            world.write().await;
                        }
                        Step::Fail(call) => world.disk.fail(call, ErrorKind::Other),
                        Step::FailOnce(call) => world.disk.fail_once(call, ErrorKind::Other),
                        Step::Heal => world.disk.heal(),
                        Step::Restart { power_cut } => world.restart(power_cut),
                    }
                    world.check();
                }
                world.disk.heal();
                world.recovers().await;
                assert_eq!(world.write().await, Told::Committed);
                world.check();
                world.restart(None);
                world.restart(Some(7));
            });
        }
    }

    #[test]
    fn a_write_that_cannot_be_undone_is_refused_once_it_is() {
        run(async {
            let mut world = World::new();
            assert_eq!(world.write().await, Told::Committed);
            assert_eq!(world.store().health(), Ok(()));
            world.disk.fail(Call::Sync, ErrorKind::Other);
            world.disk.fail(Call::Truncate, ErrorKind::Other);
            let store = world.store().clone();
            let put = |n: usize| Op::new(World::key(n), Expect::Any, Action::Put(Arc::new(Bytes::new())));
            let undecided = tokio::spawn(async move { store.commit(put(1)).await });
            while world.store().health().is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(world.store().health().unwrap_err().since, world.clock.now().into());
            world.clock.advance(Duration::from_secs(1));
            let later = world.store().commit(put(2)).await.unwrap_err();
            assert!(matches!(later, CommitError::Unavailable(_)), "{later}");
            let since = world.store().health().unwrap_err().since;
            assert!(since < world.clock.now().into(), "since the first failure");
            assert!(!undecided.is_finished(), "nobody knows yet");

            // The disk takes writes again, but what was written cannot be cut off.
            world.disk.heal_call(Call::Sync);
            world.recovers().await;
            let answer = undecided.await.unwrap().unwrap_err();
            assert!(matches!(answer, CommitError::Unavailable(_)), "{answer}");
            world.told.extend([Told::Refused, Told::Refused]);
            assert_eq!(world.write().await, Told::Committed);
            world.restart(None);
            world.restart(Some(3));
        });
    }
}
