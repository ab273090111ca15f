use super::*;
use crate::config;
use crate::events::testing::Said;
use crate::gc::disk::Disk;
use crate::gc::{GcSettings, PodState};
use crate::spec::labels::POD_UID;
use futures::FutureExt;
use orlop_runtime::cri::messages::{
    ContainerConfig, ContainerMetadata, ImageSpec, PodSandboxConfig, PodSandboxMetadata,
};
use orlop_runtime::simulated::{Kind as Call, Simulated};
use rank::DiskUse;

struct World {
    evictor: Evictor,
    runtime: Simulated,
    said: Said,
    clock: Clock,
    folder: tempfile::TempDir,
    disk: Arc<Mutex<Disk>>,
    pods: Arc<Mutex<Vec<Arc<Pod>>>>,
    evicted: Arc<Mutex<Vec<(String, Eviction)>>>,
    pressures: Arc<Mutex<Vec<Pressure>>>,
    volume: Arc<Mutex<u64>>,
    /// What the pods' cgroups say, by name.
    groups: Arc<Mutex<BTreeMap<String, u64>>>,
}

const PLENTY: Disk = Disk {
    capacity: 1000,
    available: 900,
    inodes: 1000,
    inodes_free: 900,
};

fn world(settings: &str) -> World {
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let (runtime, said, folder) = (
        Simulated::for_tests(&clock),
        Said::default(),
        tempfile::tempdir().unwrap(),
    );
    let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{settings}");
    let disk = Arc::new(Mutex::new(PLENTY));
    let (pods, evicted, pressures): (Arc<Mutex<Vec<Arc<Pod>>>>, Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>) =
        (Arc::default(), Arc::default(), Arc::default());
    let volume = Arc::new(Mutex::new(0));
    let groups: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let node = ObjectReference {
        name: "node".to_string(),
        ..ObjectReference::default()
    };
    let gc = GcSettings {
        pod_logs: folder.path().join("logs"),
        container_links: None,
        ..GcSettings::default()
    };
    let shared: Arc<dyn Runtime> = Arc::new(runtime.clone());
    let states = Arc::new(|_: &str| PodState::Ended);
    let collector = Collector::new(
        shared.clone(),
        None,
        said.events(),
        clock.clone(),
        node.clone(),
        gc,
        states,
    );
    let shown = disk.clone();
    let disks: Disks = Arc::new(move |_| Ok(*shown.lock()));
    let collector = collector.with_disks(disks.clone());
    let settings = EvictionSettings {
        config: config::parse(Some(&text), &[]).unwrap(),
        root_dir: PathBuf::from("/"),
        pod_logs: folder.path().join("logs"),
        places: Places {
            root: folder.path().to_path_buf(),
            pods_cgroup: "kubepods".to_string(),
        },
        metrics: Arc::default(),
    };
    let (known, told, heard, size) = (pods.clone(), evicted.clone(), pressures.clone(), volume.clone());
    let hooks = Hooks {
        pods: Arc::new(move || known.lock().clone()),
        evict: Arc::new(move |pod, eviction| told.lock().push((pod.metadata.name.clone().unwrap(), eviction))),
        cleaned_up: Arc::new(|_| true),
        volumes: Arc::new(move |_| {
            let bytes = *size.lock();
            async move { [("e".to_string(), DiskUse { bytes, inodes: 1 })].into() }.boxed()
        }),
        groups: {
            let groups = groups.clone();
            Arc::new(move |pod: &Pod| {
                Some(crate::cgroups::Usage {
                    memory_working_set: *groups.lock().get(pod.metadata.name.as_ref()?)?,
                    ..Default::default()
                })
            })
        },
        pressure: Arc::new(move |pressure| heard.lock().push(pressure)),
    };
    let mut evictor = Evictor::new(shared, collector, said.events(), clock.clone(), node, settings, hooks);
    Arc::get_mut(&mut evictor.inner).unwrap().disks = disks;
    let world = World {
        evictor,
        runtime,
        said,
        clock,
        folder,
        disk,
        pods,
        evicted,
        pressures,
        volume,
        groups,
    };
    world.memory(900);
    world
}

impl World {
    /// MiB free of 1000.
    fn memory(&self, free: u64) {
        let text = format!(
            "MemTotal: {} kB\nMemFree: {} kB\nInactive(file): 0 kB\n",
            1000 << 10,
            free << 10
        );
        std::fs::create_dir_all(self.folder.path().join("proc")).unwrap();
        std::fs::write(self.folder.path().join("proc/meminfo"), text).unwrap();
    }

    /// A running pod that uses so much memory (bytes).
    async fn start(&self, name: &str, memory: u64, spec: serde_json::Value) {
        let sandbox_config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_string(),
                uid: name.to_string(),
                namespace: "n".to_string(),
                attempt: 0,
            }),
            annotations: [("orlop.io/memory".to_string(), memory.to_string())].into(),
            ..PodSandboxConfig::default()
        };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "c".to_string(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: self.runtime.add_image("a:1"),
                ..ImageSpec::default()
            }),
            labels: [(POD_UID.to_string(), name.to_string())].into(),
            ..ContainerConfig::default()
        };
        let sandbox = self.runtime.run_pod_sandbox(sandbox_config.clone(), "").await.unwrap();
        let id = self
            .runtime
            .create_container(&sandbox, config, sandbox_config)
            .await
            .unwrap();
        self.runtime.start_container(&id).await.unwrap();
        let pod = serde_json::json!({
            "metadata": {"name": name, "namespace": "n", "uid": name}, "spec": spec,
        });
        self.pods
            .lock()
            .push(Arc::new(orlop_api::types::from_value(pod).unwrap()));
    }

    fn evicted(&self) -> Vec<(String, Eviction)> {
        std::mem::take(&mut self.evicted.lock())
    }
}

fn spec(priority: i32) -> serde_json::Value {
    serde_json::json!({"priority": priority, "containers": [{"name": "c"}], "terminationGracePeriodSeconds": 30})
}

#[tokio::test(start_paused = true)]
async fn too_little_memory_ends_one_pod_at_a_time() {
    let world = world("");
    world.start("critical", 1000, spec(2_000_000_000)).await;
    world.start("high", 1000, spec(10)).await;
    world.start("low", 1000, spec(0)).await;
    assert!(world.evictor.synchronize().await.unwrap().is_empty());
    assert!(world.pressures.lock().is_empty());
    world.memory(99);
    assert_eq!(world.evictor.synchronize().await.unwrap(), ["low"]);
    let (name, eviction) = world.evicted().remove(0);
    assert_eq!(
        (name.as_str(), eviction.reason.as_str(), eviction.grace_seconds),
        ("low", "Evicted", Some(1))
    );
    let start =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. Container c was using ";
    assert!(eviction.message.starts_with(start), "{}", eviction.message);
    let condition = eviction.condition.unwrap();
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("DisruptionTarget", Some("TerminationByKubelet"))
    );
    assert_eq!(
        world.said.take(),
        [
            "Warning EvictionThresholdMet node: Attempting to reclaim memory".to_string(),
            format!("Warning Evicted low: {}", eviction.message),
        ]
    );
    assert!(world.evictor.pressure().memory);

    world
        .pods
        .lock()
        .retain(|pod| pod.metadata.name.as_deref() != Some("low"));
    assert_eq!(world.evictor.synchronize().await.unwrap(), ["high"]);
    world
        .pods
        .lock()
        .retain(|pod| pod.metadata.name.as_deref() != Some("high"));
    assert!(
        world.evictor.synchronize().await.unwrap().is_empty(),
        "the critical one stays"
    );

    // Enough again: the condition stays for five minutes.
    world.memory(500);
    world.clock.advance(Duration::from_secs(299));
    world.evictor.synchronize().await.unwrap();
    assert!(world.evictor.pressure().memory);
    world.clock.advance(Duration::from_secs(1));
    world.evictor.synchronize().await.unwrap();
    assert_eq!(world.evictor.pressure(), Pressure::default());
    assert_eq!(world.pressures.lock().len(), 2, "told when it changes");
}

#[tokio::test(start_paused = true)]
async fn soft_thresholds_wait_and_leave_pods_time() {
    let world = world(
        "evictionSoft: {memory.available: 500Mi}\nevictionSoftGracePeriod: {memory.available: 1m}\n\
         evictionMaxPodGracePeriod: 20\n",
    );
    world.start("p", 1000, spec(0)).await;
    world.memory(400);
    assert!(world.evictor.synchronize().await.unwrap().is_empty());
    assert!(world.evictor.pressure().memory);
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.evictor.synchronize().await.unwrap(), ["p"]);
    assert_eq!(world.evicted()[0].1.grace_seconds, Some(20));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_tidied_before_pods_go() {
    let world = world("");
    world.start("p", 1000, spec(0)).await;
    world.runtime.add_image("unused:1");
    // Seen now, to be old enough when it matters.
    world.evictor.inner.collector.collect_images().await.unwrap();
    world.clock.advance(Duration::from_secs(600));
    world.disk.lock().available = 50;
    world.runtime.take_calls();
    assert_eq!(
        world.evictor.synchronize().await.unwrap(),
        ["p"],
        "tidying did not help"
    );
    assert_eq!(world.runtime.count(Call::RemoveImage), 1);
    let message = &world.evicted()[0].1.message;
    assert!(
        message.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: "),
        "{message}"
    );
    assert!(world.evictor.pressure().disk && !world.evictor.pressure().memory);
    // Removing images makes room: nobody has to go.
    world.runtime.add_image("unused:2");
    world.evictor.inner.collector.collect_images().await.unwrap_err();
    world.clock.advance(Duration::from_secs(600));
    let (disk, runtime) = (world.disk.clone(), world.runtime.clone());
    let mut evictor = world.evictor.clone();
    drop(world.evictor);
    Arc::get_mut(&mut evictor.inner).unwrap().disks = Arc::new(move |_| {
        Ok(match runtime.count(Call::RemoveImage) {
            1 => *disk.lock(),
            _ => PLENTY,
        })
    });
    assert!(evictor.synchronize().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn local_limits_are_enforced() {
    let world = world("");
    let spec = serde_json::json!({
        "containers": [{"name": "c"}], "volumes": [{"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}],
    });
    world.start("p", 1000, spec).await;
    assert!(world.evictor.synchronize().await.unwrap().is_empty());
    *world.volume.lock() = 2 << 20;
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.evictor.synchronize().await.unwrap(), ["p"]);
    let (_, eviction) = world.evicted().remove(0);
    assert_eq!(
        eviction.message,
        "Usage of EmptyDir volume \"e\" exceeds the limit \"1Mi\". "
    );
    assert_eq!(eviction.condition, None);
}

#[tokio::test(start_paused = true)]
async fn what_pods_use_is_read_anew_for_each_decision() {
    let world = world("");
    world.start("one", 1000, spec(0)).await;
    world.start("other", 1000, spec(0)).await;
    // Containers use as much; what a former container left in a memory-backed volume only the pod's group knows.
    for (larger, smaller) in [("other", "one"), ("one", "other"), ("other", "one")] {
        let sizes = [(larger.to_string(), 5000), (smaller.to_string(), 2000)];
        *world.groups.lock() = sizes.into();
        world.memory(50);
        assert_eq!(world.evictor.synchronize().await.unwrap(), [larger]);
    }
    world.memory(900);
    world.clock.advance(Duration::from_secs(600));
    assert!(world.evictor.synchronize().await.unwrap().is_empty());
    // A pod none of whose containers run has volumes all the same.
    let limited = serde_json::json!({
        "metadata": {"name": "idle", "namespace": "n", "uid": "idle"},
        "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}]},
    });
    *world.pods.lock() = vec![Arc::new(orlop_api::types::from_value(limited).unwrap())];
    *world.volume.lock() = 2 << 20;
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.evictor.synchronize().await.unwrap(), ["idle"]);
}

#[tokio::test(start_paused = true)]
async fn the_loop_waits_for_pods_to_go_and_ends() {
    let world = world("");
    world.start("p", 1000, spec(0)).await;
    world.memory(1);
    let shutdown = Shutdown::default();
    let task = tokio::spawn(world.evictor.clone().run(shutdown.clone()));
    while world.evicted.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    shutdown.trigger();
    task.await.unwrap();
}

#[test]
fn what_tidying_can_help_against() {
    let apart = Layout {
        dedicated_images: true,
        split_containers: false,
    };
    let split = Layout {
        dedicated_images: true,
        split_containers: true,
    };
    for (signal, layout, want) in [
        (Signal::MemoryAvailable, Layout::default(), (false, false)),
        (Signal::NodeFsAvailable, Layout::default(), (true, true)),
        (Signal::NodeFsAvailable, apart, (false, false)),
        (Signal::ImageFsInodesFree, apart, (true, true)),
        (Signal::ImageFsAvailable, split, (false, true)),
        (Signal::ContainerFsAvailable, split, (true, false)),
        (Signal::NodeFsAvailable, split, (true, false)),
    ] {
        assert_eq!(reclaims(signal, layout), want, "{signal:?} {layout:?}");
    }
}
