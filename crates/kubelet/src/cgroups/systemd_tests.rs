use super::*;

use std::sync::Mutex as Lock;

use zbus::ObjectPath;
use zbus::wire::OwnedVariant;

use crate::test_bus::TestBus;

const POD: &str = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";

fn shown(properties: &Properties) -> Vec<String> {
    let one = |(name, value): &(&str, Property)| match value {
        Property::Flag(flag) => format!("{name}={flag}"),
        Property::Number(u64::MAX) => format!("{name}=infinity"),
        Property::Number(number) => format!("{name}={number}"),
        Property::Text(text) => format!("{name}={text:?}"),
        Property::Names(names) => format!("{name}={}", names.join(" ")),
    };
    properties.iter().map(one).collect()
}

fn quota(quota: i64, period: i64) -> Limits {
    Limits {
        cpu_quota: Some((quota, period)),
        ..Limits::default()
    }
}

#[test]
fn names() {
    for (group, expected) in [
        ("/", "-.slice"),
        ("", "-.slice"),
        ("/kubepods.slice", "kubepods.slice"),
        (POD, "kubepods-burstable-pod1_2.slice"),
    ] {
        assert_eq!(unit(group), expected);
    }
}

#[test]
fn new_slices() {
    let accounting = "MemoryAccounting=true CPUAccounting=true TasksAccounting=true";
    for (group, version, expected) in [
        ("/kubepods.slice", CgroupVersion::V2, "Wants=-.slice"),
        (POD, CgroupVersion::V2, "Wants=kubepods-burstable.slice"),
        (POD, CgroupVersion::V1, "Wants=kubepods-burstable.slice"),
    ] {
        let io = match version {
            CgroupVersion::V1 => "BlockIOAccounting=true",
            CgroupVersion::V2 => "IOAccounting=true",
        };
        let found = shown(&beginnings(group, version));
        assert_eq!(
            found[1..].join(" "),
            format!("{expected} DefaultDependencies=false {accounting} {io}")
        );
    }
}

#[test]
fn limits_of_both_versions() {
    let limits = Limits {
        cpu_shares: Some(1024),
        cpu_quota: Some((50_000, 100_000)),
        memory: Some(4096),
        pids: Some(0),
        hugepages: [("2MB".to_string(), 7)].into(),
        unified: [("memory.low".to_string(), "9".to_string())].into(),
    };
    assert_eq!(
        shown(&properties(CgroupVersion::V1, &limits)),
        [
            "CPUShares=1024",
            "CPUQuotaPeriodUSec=100000",
            "CPUQuotaPerSecUSec=500000",
            "MemoryLimit=4096",
            "TasksMax=1",
        ]
    );
    assert_eq!(
        shown(&properties(CgroupVersion::V2, &limits)),
        [
            "CPUWeight=39",
            "CPUQuotaPeriodUSec=100000",
            "CPUQuotaPerSecUSec=500000",
            "MemoryMax=4096",
            "TasksMax=1",
            "MemoryLow=9",
        ]
    );
    assert_eq!(
        shown(&properties(CgroupVersion::V2, &Limits::default().or_unlimited())),
        [
            "CPUQuotaPeriodUSec=100000",
            "CPUQuotaPerSecUSec=infinity",
            "MemoryMax=infinity"
        ]
    );
    assert!(properties(CgroupVersion::V2, &Limits::default()).is_empty());
}

#[test]
fn parts_of_a_percent() {
    for (given, rounded_to) in [
        ((50_000, 100_000), (50_000, 100_000)),
        ((12_345, 100_000), (13_000, 100_000)),
        ((1_001, 10_000), (1_100, 10_000)),
        ((-1, 100_000), (-1, 100_000)),
        ((1, 0), (1, 0)),
    ] {
        assert_eq!(
            rounded(quota(given.0, given.1)).cpu_quota,
            Some(rounded_to),
            "{given:?}"
        );
    }
    assert_eq!(rounded(Limits::default()), Limits::default());
}

/// A bus of its own with somebody on it who answers as systemd does, and notes what was asked.
struct Systemd {
    daemon: TestBus,
    asked: Arc<Lock<Vec<String>>>,
    _directory: tempfile::TempDir,
}

impl Systemd {
    /// `result` is how jobs end. A unit whose name has "there" in it is there already, one with "unknown" is not.
    async fn start(result: &'static str) -> Systemd {
        let directory = tempfile::tempdir().unwrap();
        let (daemon, bus) = TestBus::start(directory.path()).await;
        let calls = MessageStream::from(&bus);
        bus.request_name(SERVICE).await.unwrap();
        let asked = Arc::new(Lock::new(vec![]));
        tokio::spawn(serve(bus, calls, asked.clone(), result));
        Systemd {
            daemon,
            asked,
            _directory: directory,
        }
    }

    fn slices(&self) -> Slices {
        Slices::at(&self.daemon.address)
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn serve(bus: Connection, mut calls: MessageStream, notes: Arc<Lock<Vec<String>>>, result: &'static str) {
    let mut number = 0_u32;
    while let Some(Ok(call)) = calls.next().await {
        if call.message_type() != Type::MethodCall {
            continue;
        }
        let header = call.header();
        let member = header.member().unwrap().to_string();
        let body = call.body();
        let unit = match member.as_str() {
            "StartTransientUnit" => {
                type Extra = Vec<(String, Vec<(String, OwnedVariant)>)>;
                let (unit, mode, properties, _): (String, String, Vec<(String, OwnedVariant)>, Extra) =
                    body.deserialize().unwrap();
                notes
                    .lock()
                    .unwrap()
                    .push(format!("start {unit} {mode} {}", properties.len()));
                unit
            }
            "StopUnit" => {
                let (unit, mode): (String, String) = body.deserialize().unwrap();
                notes.lock().unwrap().push(format!("stop {unit} {mode}"));
                unit
            }
            "SetUnitProperties" => {
                let (unit, runtime, properties): (String, bool, Vec<(String, OwnedVariant)>) =
                    body.deserialize().unwrap();
                let list: Vec<String> = properties
                    .iter()
                    .map(|(name, value)| format!("{name}={}", **value))
                    .collect();
                notes
                    .lock()
                    .unwrap()
                    .push(format!("set {unit} {runtime} {}", list.join(" ")));
                unit
            }
            other => {
                notes.lock().unwrap().push(other.to_string());
                String::new()
            }
        };
        let error = match (member.as_str(), &unit) {
            ("StartTransientUnit", unit) if unit.contains("there") => Some("org.freedesktop.systemd1.UnitExists"),
            (_, unit) if unit.contains("unknown") => Some("org.freedesktop.systemd1.NoSuchUnit"),
            _ => None,
        };
        if let Some(error) = error {
            bus.reply_error(&header, error, &"so it is").await.unwrap();
            continue;
        }
        if !matches!(member.as_str(), "StartTransientUnit" | "StopUnit") {
            bus.reply(&header, &()).await.unwrap();
            continue;
        }
        // Somebody else's job ends as well, and ours before the answer comes.
        number += 2;
        for (id, result) in [(number, "failed"), (number + 1, result)] {
            let path = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
            let end = (id, path, unit.as_str(), result);
            bus.emit_signal(None::<&str>, OBJECT, MANAGER, "JobRemoved", &end)
                .await
                .unwrap();
        }
        let path = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{}", number + 1)).unwrap();
        bus.reply(&header, &path).await.unwrap();
    }
}

#[tokio::test]
async fn slices_come_change_and_go() {
    let systemd = Systemd::start("done").await;
    let slices = systemd.slices();
    slices.start(POD, CgroupVersion::V2).await.unwrap();
    slices
        .set(POD, CgroupVersion::V2, &quota(50_000, 100_000))
        .await
        .unwrap();
    slices.set(POD, CgroupVersion::V2, &Limits::default()).await.unwrap();
    slices.stop(POD).await.unwrap();
    assert_eq!(
        systemd.asked(),
        [
            "start kubepods-burstable-pod1_2.slice replace 7",
            "set kubepods-burstable-pod1_2.slice true CPUQuotaPeriodUSec=uint64 100000 \
             CPUQuotaPerSecUSec=uint64 500000",
            "stop kubepods-burstable-pod1_2.slice replace",
            "ResetFailedUnit",
        ]
    );
    // Again.
    slices.start("/there.slice", CgroupVersion::V2).await.unwrap();
    slices.stop("/unknown.slice").await.unwrap();
    let error = slices.set("/unknown.slice", CgroupVersion::V2, &quota(-1, 1)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("systemd failed to change unknown.slice: "), "{error}");
}

#[tokio::test]
async fn a_slice_that_does_not_start() {
    let systemd = Systemd::start("canceled").await;
    let error = systemd.slices().start(POD, CgroupVersion::V2).await.unwrap_err();
    assert!(error.to_string().contains("the job is canceled"), "{error}");
}

#[tokio::test]
async fn a_systemd_that_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let slices = Slices::at(&format!("unix:path={}/s", directory.path().display()));
    let error = slices.start(POD, CgroupVersion::V2).await.unwrap_err().to_string();
    assert!(
        error.starts_with("systemd failed to start kubepods-burstable-pod1_2.slice"),
        "{error}"
    );
}

#[tokio::test]
async fn a_systemd_that_was_started_anew() {
    let first = Systemd::start("done").await;
    let slices = first.slices();
    slices.start(POD, CgroupVersion::V2).await.unwrap();
    let bus = slices.bus().await.unwrap();
    bus.close().await.unwrap();
    slices.start(POD, CgroupVersion::V2).await.unwrap();
    assert_eq!(first.asked().len(), 2);
}
