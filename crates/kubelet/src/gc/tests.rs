use super::*;
use crate::events::testing::Said;
use orlop_runtime::cri::messages::{ContainerConfig, ContainerMetadata, PodSandboxConfig, PodSandboxMetadata};
use orlop_runtime::simulated::{Kind, Options, Simulated};
use orlop_runtime::{Code, Error};
use parking_lot::Mutex as Lock;

struct World {
    collector: Collector,
    runtime: Simulated,
    said: Said,
    clock: Clock,
    disk: Arc<Lock<Disk>>,
    folder: tempfile::TempDir,
    gone: Arc<Lock<BTreeSet<String>>>,
}

fn world(logs: LogPolicy) -> World {
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let runtime = Simulated::new(Options {
        clock: clock.clone(),
        keep_calls: true,
        logs: true,
        ..Options::default()
    });
    let (said, folder) = (Said::default(), tempfile::tempdir().unwrap());
    let settings = GcSettings {
        logs,
        pod_logs: folder.path().join("pods"),
        container_links: Some(folder.path().join("containers")),
        ..GcSettings::default()
    };
    let (gone, disk) = (
        Arc::new(Lock::new(BTreeSet::new())),
        Arc::new(Lock::new(Disk::default())),
    );
    let known = gone.clone();
    let states: PodStates = Arc::new(move |uid| match known.lock().contains(uid) {
        true => PodState::Gone,
        false => PodState::Alive,
    });
    let node = ObjectReference {
        name: "node".to_string(),
        ..ObjectReference::default()
    };
    let events = said.events();
    let collector = Collector::new(
        Arc::new(runtime.clone()),
        None,
        events,
        clock.clone(),
        node,
        settings,
        states,
    );
    let shown = disk.clone();
    let collector = collector.with_disks(Arc::new(move |_| Ok(*shown.lock())));
    World {
        collector,
        runtime,
        said,
        clock,
        disk,
        folder,
        gone,
    }
}

impl World {
    /// A started container of pod `uid`, and the path of its log.
    async fn start(&self, uid: &str, image: &str, attempt: u32) -> (String, PathBuf) {
        let sandbox_config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: uid.to_string(),
                uid: uid.to_string(),
                namespace: "n".to_string(),
                attempt,
            }),
            log_directory: self
                .folder
                .path()
                .join("pods")
                .join(format!("n_{uid}_{uid}"))
                .display()
                .to_string(),
            ..PodSandboxConfig::default()
        };
        let labels = [
            (POD_UID, uid),
            ("io.kubernetes.pod.name", uid),
            ("io.kubernetes.pod.namespace", "n"),
            ("io.kubernetes.container.name", "c"),
        ];
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "c".to_string(),
                attempt,
            }),
            image: Some(ImageSpec {
                image: image.to_string(),
                ..ImageSpec::default()
            }),
            labels: labels.map(|(key, value)| (key.to_string(), value.to_string())).into(),
            log_path: format!("c/{attempt}.log"),
            ..ContainerConfig::default()
        };
        let log = PathBuf::from(&sandbox_config.log_directory).join(&config.log_path);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let sandbox = self.runtime.run_pod_sandbox(sandbox_config.clone(), "").await.unwrap();
        let id = self
            .runtime
            .create_container(&sandbox, config, sandbox_config)
            .await
            .unwrap();
        self.runtime.start_container(&id).await.unwrap();
        std::fs::write(&log, "some text").unwrap();
        self.collector.look_after_logs().await.unwrap();
        (id, log)
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.runtime.take_calls();
        let kinds = [
            Kind::RemoveContainer,
            Kind::RemovePodSandbox,
            Kind::RemoveImage,
            Kind::ReopenContainerLog,
        ];
        let calls = calls.into_iter().filter(|call| kinds.contains(&call.kind));
        calls.map(|call| format!("{:?}", call.kind)).collect()
    }
}

#[tokio::test]
async fn a_pod_that_is_gone_leaves_nothing() {
    let world = world(LogPolicy::default());
    world.runtime.add_image("a:1");
    let (old, old_log) = world.start("p", "a:1", 0).await;
    world.clock.advance(Duration::from_secs(1));
    world.runtime.exit(&old, 0);
    let (new, new_log) = world.start("p", "a:1", 1).await;
    world.clock.advance(Duration::from_secs(1));
    world.calls();
    world.collector.collect_containers(false).await.unwrap();
    assert!(world.calls().is_empty(), "one dead container is kept");
    assert!(old_log.exists());

    world.runtime.exit(&new, 1);
    world.clock.advance(Duration::from_secs(1));
    world.collector.collect_containers(false).await.unwrap();
    assert_eq!(world.calls(), ["RemoveContainer"]);
    assert!(!old_log.exists() && new_log.exists());
    let links = || {
        std::fs::read_dir(world.folder.path().join("containers"))
            .unwrap()
            .count()
    };
    assert_eq!(links(), 1);

    let sandboxes = world
        .runtime
        .list_pod_sandboxes(PodSandboxFilter::default())
        .await
        .unwrap();
    for sandbox in &sandboxes {
        world.runtime.stop_pod_sandbox(&sandbox.id).await.unwrap();
    }
    world.gone.lock().insert("p".to_string());
    world.calls();
    world.collector.collect_containers(false).await.unwrap();
    assert_eq!(
        world.calls(),
        ["RemoveContainer", "RemovePodSandbox", "RemovePodSandbox"]
    );
    assert_eq!(std::fs::read_dir(world.folder.path().join("pods")).unwrap().count(), 0);
    assert_eq!(links(), 0);
    world.collector.collect_containers(false).await.unwrap();
    assert!(world.calls().is_empty());
}

#[tokio::test]
async fn what_still_runs_keeps_its_logs() {
    let world = world(LogPolicy::default());
    world.runtime.add_image("a:1");
    let (_, log) = world.start("p", "a:1", 0).await;
    std::fs::create_dir_all(world.folder.path().join("pods/n_q_q")).unwrap();
    world.gone.lock().extend(["p".to_string(), "q".to_string()]);
    world.collector.collect_containers(false).await.unwrap();
    assert!(log.exists());
    assert!(!world.folder.path().join("pods/n_q_q").exists());
}

#[tokio::test(start_paused = true)]
async fn the_rounds_are_made_until_the_shutdown() {
    let world = world(LogPolicy::default());
    let shutdown = Shutdown::default();
    let task = tokio::spawn(world.collector.clone().run(shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(world.runtime.count(Kind::ListPodSandbox), 0, "not before a minute");
    while world.runtime.count(Kind::ListPodSandbox) < 3 {
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert!(world.runtime.count(Kind::ListImages) >= 1);
    shutdown.trigger();
    task.await.unwrap();
}

#[tokio::test]
async fn images_go_when_the_disk_is_full() {
    let world = world(LogPolicy::default());
    for image in ["a:1", "b:1", "c:1"] {
        world.runtime.add_image(image);
    }
    world.start("p", "a:1", 0).await;
    *world.disk.lock() = Disk {
        capacity: 1000,
        available: 300,
        ..Disk::default()
    };
    world.calls();
    world.collector.collect_images().await.unwrap();
    world.clock.advance(Duration::from_secs(300));
    world.collector.collect_images().await.unwrap();
    assert!(world.calls().is_empty(), "room enough");
    world.disk.lock().available = 149;
    world.collector.collect_images().await.unwrap();
    assert_eq!(world.calls(), ["RemoveImage"]);
    world
        .runtime
        .fail_next(Kind::RemoveImage, Error::new(Code::Other, "read-only"));
    assert!(world.collector.collect_images().await.is_err());
    world.collector.delete_unused_images().await.unwrap();
    assert_eq!(world.calls(), ["RemoveImage", "RemoveImage"]);
    // Nothing left but what is in use.
    assert!(world.collector.collect_images().await.is_err());
    let said = world.said.take();
    let want = "Warning FreeDiskSpaceFailed node: Insufficient free disk space on the node's image filesystem (86% of \
                1000 B used). Failed to free sufficient space by deleting unused images (freed 0 bytes).";
    assert!(said.len() == 1 && said[0].starts_with(want), "{said:?}");
    *world.disk.lock() = Disk::default();
    world.collector.collect_images().await.unwrap_err();
    assert_eq!(
        world.said.take(),
        ["Warning InvalidDiskCapacity node: invalid capacity 0 on image filesystem"]
    );
}

#[tokio::test]
async fn logs_are_rotated_and_restarts_are_survived() {
    let world = world(LogPolicy {
        max_size: Some(12),
        max_files: 3,
    });
    world.runtime.add_image("a:1");
    let (id, log) = world.start("p", "a:1", 0).await;
    let names = || {
        let folder = std::fs::read_dir(log.parent().unwrap()).unwrap();
        let names: BTreeSet<String> = folder.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    world.calls();
    std::fs::write(&log, "more than twelve").unwrap();
    world.collector.look_after_logs().await.unwrap();
    assert_eq!(world.calls(), ["ReopenContainerLog"]);
    assert!(names().contains(&"0.log.20260102-030405".to_string()));

    // A runtime that can't open a new one keeps the old.
    std::fs::write(&log, "more than twelve").unwrap();
    world.clock.advance(Duration::from_secs(10));
    world
        .runtime
        .fail_next(Kind::ReopenContainerLog, Error::new(Code::Other, "no"));
    world.collector.look_after_logs().await.unwrap();
    assert_eq!(std::fs::read(&log).unwrap(), b"more than twelve");

    // A kubelet that ended after moving the log away.
    std::fs::remove_file(&log).unwrap();
    world.calls();
    world.collector.look_after_logs().await.unwrap();
    assert_eq!(world.calls(), ["ReopenContainerLog"]);

    // Many rotations: the newest is plain, older ones are compressed, no more than three in all.
    for _ in 0..4 {
        std::fs::write(&log, "more than twelve").unwrap();
        world.clock.advance(Duration::from_secs(10));
        world.collector.look_after_logs().await.unwrap();
    }
    std::fs::write(&log, "x").unwrap();
    assert_eq!(names(), ["0.log", "0.log.20260102-030445.gz", "0.log.20260102-030455"]);
    world.runtime.exit(&id, 0);
    std::fs::write(&log, "more than twelve").unwrap();
    world.collector.look_after_logs().await.unwrap();
    assert_eq!(names().len(), 3, "a dead container's log stays");
}
