//! Probes, images, logs and what is left over, with a real runtime and no agent in between.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orlop_api::types::core::Pod;
use orlop_base::{Clock, Shutdown};
use orlop_kubelet::events::Events;
use orlop_kubelet::gc::images::ImagePolicy;
use orlop_kubelet::gc::rotation::LogPolicy;
use orlop_kubelet::gc::{Collector, GcSettings, PodState};
use orlop_kubelet::images::{ImageSettings, Images};
use orlop_kubelet::objects::Objects;
use orlop_kubelet::probes::{ProbeTarget, Probes};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;
use orlop_testkit::{Leftovers, NodeRuntime, PATIENCE, TestRuntime, eventually, network};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Node<'a> {
    runtime: Arc<dyn Runtime>,
    logs: TempDir,
    said: Arc<Mutex<Vec<String>>>,
    test: &'a NodeRuntime,
}

struct Running {
    sandbox: String,
    container: String,
    log: PathBuf,
    ip: String,
}

impl Node<'_> {
    async fn start(test: &NodeRuntime) -> Node<'_> {
        Node {
            runtime: test.connect().await,
            logs: tempfile::tempdir().unwrap(),
            said: Arc::default(),
            test,
        }
    }

    fn shared(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    fn events(&self) -> Events {
        let said = self.said.clone();
        Events::to(move |event| said.lock().unwrap().push(format!("{}: {}", event.reason, event.note)))
    }

    fn heard(&self, what: &str) -> bool {
        self.said.lock().unwrap().iter().any(|line| line.contains(what))
    }

    /// A pod of one container that runs this script.
    async fn run(&self, name: &str, script: &str, attempt: u32) -> Running {
        let labels = [
            ("io.kubernetes.pod.uid", name),
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", "n"),
            ("io.kubernetes.container.name", "c"),
        ];
        let labels = labels.map(|(key, value)| (key.to_string(), value.to_string()));
        let folder = self.logs.path().join("pods").join(format!("n_{name}_{name}"));
        std::fs::create_dir_all(folder.join("c")).unwrap();
        let pod = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_string(),
                uid: name.to_string(),
                namespace: "n".to_string(),
                attempt,
            }),
            hostname: name.to_string(),
            log_directory: folder.display().to_string(),
            labels: labels.clone().into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", self.test.home().cgroup()),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "c".to_string(),
                attempt,
            }),
            image: Some(ImageSpec {
                image: "busybox:latest".to_string(),
                ..ImageSpec::default()
            }),
            command: ["sh", "-c", script].map(String::from).to_vec(),
            log_path: format!("c/{attempt}.log"),
            labels: labels.into(),
            linux: Some(LinuxContainerConfig::default()),
            ..ContainerConfig::default()
        };
        let log = folder.join(&config.log_path);
        let sandbox = self.runtime.run_pod_sandbox(pod.clone(), "").await.unwrap();
        let container = self.runtime.create_container(&sandbox, config, pod).await.unwrap();
        self.runtime.start_container(&container).await.unwrap();
        let status = self.runtime.pod_sandbox_status(&sandbox).await.unwrap();
        Running {
            sandbox,
            container,
            log,
            ip: status.network.map(|network| network.ip).unwrap_or_default(),
        }
    }

    async fn exited(&self, id: &str) {
        let ended = async {
            while self.runtime.container_status(id).await.unwrap().state() != ContainerState::Exited {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    }

    fn collector(&self, gone: &'static [&'static str], images: ImagePolicy, logs: LogPolicy) -> Collector {
        let settings = GcSettings {
            images,
            logs,
            pod_logs: self.logs.path().join("pods"),
            container_links: Some(self.logs.path().join("containers")),
            ..GcSettings::default()
        };
        let states = Arc::new(move |uid: &str| match gone.contains(&uid) {
            true => PodState::Gone,
            false => PodState::Alive,
        });
        Collector::new(
            self.shared(),
            None,
            self.events(),
            Clock::System,
            Default::default(),
            settings,
            states,
        )
    }
}

fn pod(name: &str, container: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"containers": [container]},
    }))
    .unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<String> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.into_iter().collect()
}

#[test]
fn probes_ask_real_containers() {
    let test = NodeRuntime::start(TestRuntime::of_suite());
    network::block_on(probes_ask_real_containers_on(&test));
}

async fn probes_ask_real_containers_on(test: &NodeRuntime) {
    let node = Node::start(test).await;
    let probes = Probes::start(node.shared(), node.events(), Clock::System, Shutdown::default());
    let mut changes = probes.changes();
    let script = "echo hello > /tmp/index.html; touch /tmp/up; httpd -p 8080 -h /tmp; sleep 3600";
    for (name, probe, ready, said) in [
        (
            "exec",
            json!({"exec": {"command": ["test", "-e", "/tmp/up"]}}),
            true,
            "",
        ),
        (
            "variable",
            json!({"exec": {"command": ["test", "-e", "/tmp/$(NAME)"]}}),
            true,
            "",
        ),
        ("http", json!({"httpGet": {"path": "/", "port": "web"}}), true, ""),
        ("tcp", json!({"tcpSocket": {"port": 8080}}), true, ""),
        (
            "fails",
            json!({"exec": {"command": ["sh", "-c", "echo no; echo really >&2; exit 3"]}}),
            false,
            "Unhealthy: Readiness probe failed: no\nreally\n",
        ),
        (
            "missing",
            json!({"httpGet": {"path": "/none", "port": 8080}}),
            false,
            "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404",
        ),
        (
            "slow",
            json!({"exec": {"command": ["sleep", "60"]}}),
            false,
            "Unhealthy: Readiness probe failed: command timed out: \"sleep 60\" timed out after 1s",
        ),
        (
            "closed",
            json!({"tcpSocket": {"port": 81}}),
            false,
            ":81: connect: connection refused",
        ),
    ] {
        let running = node.run(name, script, 0).await;
        let mut probe = probe;
        probe["periodSeconds"] = json!(1);
        let container = json!({"name": "c", "readinessProbe": probe, "ports": [{"name": "web", "containerPort": 8080}],
            "env": [{"name": "NAME", "value": "up"}]});
        let target = ProbeTarget {
            name: "c".to_string(),
            container_id: running.container.clone(),
            started_at: Clock::System.now(),
        };
        probes.update(&pod(name, container), &[target], Some(&running.ip));
        if ready {
            let uid = tokio::time::timeout(PATIENCE, changes.recv()).await;
            assert_eq!(uid.expect("it gets ready").as_deref(), Some(name));
        } else {
            tokio::task::block_in_place(|| eventually(said, || node.heard(said).then_some(())));
        }
        assert_eq!(
            probes.results(name).readiness("c", &running.container),
            Some(ready),
            "{name}"
        );
        probes.forget(name);
        node.runtime.stop_pod_sandbox(&running.sandbox).await.unwrap();
        node.runtime.remove_pod_sandbox(&running.sandbox).await.unwrap();
    }
    assert_eq!(test.leftovers(), Leftovers::default());
}

#[test]
fn images_that_are_there_and_that_are_not() {
    let test = NodeRuntime::start(TestRuntime::of_suite());
    network::block_on(images_that_are_there_and_that_are_not_on(&test));
}

async fn images_that_are_there_and_that_are_not_on(test: &NodeRuntime) {
    let node = Node::start(test).await;
    let objects = Objects::new(None, Clock::System);
    let images = Images::new(
        node.shared(),
        objects,
        node.events(),
        Clock::System,
        ImageSettings::default(),
    );
    for (image, policy, want) in [
        (
            "busybox",
            "IfNotPresent",
            Ok("already present on machine and can be accessed by the pod"),
        ),
        (
            "docker.io/library/busybox:1.36",
            "Never",
            Ok("already present on machine"),
        ),
        ("busybox:none", "Never", Err("ErrImageNeverPull")),
        ("localhost:1/none:1", "Always", Err("ErrImagePull")),
        ("localhost:1/none:1", "IfNotPresent", Err("ImagePullBackOff")),
        ("Not an image", "Always", Err("InvalidImageName")),
    ] {
        let pod = pod("p", json!({"name": "c", "image": image, "imagePullPolicy": policy}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let got = images.ensure(&pod, container, &PodSandboxConfig::default()).await;
        match want {
            Ok(said) => {
                assert!(got.unwrap().image_ref.starts_with("sha256:"));
                assert!(node.heard(&format!("Pulled: Container image {image:?} {said}")));
            }
            Err(reason) => {
                let error = got.unwrap_err();
                assert_eq!(error.reason, reason, "{error}");
                assert!(node.heard(&format!("Failed: Error: {reason}")));
            }
        }
    }
    assert!(node.heard("Failed to pull image \"localhost:1/none:1\": "));
}

#[test]
fn what_is_left_over_goes() {
    let test = NodeRuntime::start(TestRuntime::of_suite());
    network::block_on(what_is_left_over_goes_on(&test));
}

async fn what_is_left_over_goes_on(test: &NodeRuntime) {
    let node = Node::start(test).await;
    if let Some(containerd) = test.containerd() {
        containerd
            .ctr("images tag docker.io/library/busybox:latest docker.io/library/busybox:spare")
            .ok();
    }
    let first = node.run("p", "echo one", 0).await;
    node.exited(&first.container).await;
    let second = node.run("p", "echo two", 1).await;
    node.exited(&second.container).await;
    let alive = node.run("q", "sleep 3600", 0).await;
    let policy = ImagePolicy {
        min_age: Duration::ZERO,
        ..ImagePolicy::default()
    };
    let collector = node.collector(&[], policy, LogPolicy::default());
    collector.collect_containers(false).await.unwrap();
    assert!(!first.log.exists() && second.log.exists(), "the older one went");
    // Images in use and the one that holds sandboxes open stay.
    collector.delete_unused_images().await.unwrap();
    let images = node.runtime.list_images().await.unwrap();
    let tags: BTreeSet<String> = images.into_iter().flat_map(|image| image.repo_tags).collect();
    assert!(tags.contains("docker.io/library/busybox:latest"), "{tags:?}");
    assert!(tags.iter().any(|tag| tag.contains("pause")), "{tags:?}");

    node.runtime.stop_pod_sandbox(&first.sandbox).await.unwrap();
    node.runtime.stop_pod_sandbox(&second.sandbox).await.unwrap();
    let collector = node.collector(&["p"], policy, LogPolicy::default());
    collector.collect_containers(false).await.unwrap();
    let left = node
        .runtime
        .list_pod_sandboxes(PodSandboxFilter::default())
        .await
        .unwrap();
    assert_eq!(left.iter().map(|s| &s.id).collect::<Vec<_>>(), [&alive.sandbox]);
    assert_eq!(files(&node.logs.path().join("pods")), ["n_q_q"]);

    node.runtime.stop_pod_sandbox(&alive.sandbox).await.unwrap();
    node.collector(&["p", "q"], policy, LogPolicy::default())
        .collect_containers(false)
        .await
        .unwrap();
    assert_eq!(test.leftovers(), Leftovers::default());
    // Now nobody uses busybox.
    collector.delete_unused_images().await.unwrap();
    let images = node.runtime.list_images().await.unwrap();
    let tags: BTreeSet<String> = images.into_iter().flat_map(|image| image.repo_tags).collect();
    let kept: &[&str] = match test.kind() {
        // Its own, which no registry has, and what looks like the one that holds sandboxes open.
        TestRuntime::Embedded => &[
            "orlop.local/echo:latest",
            "orlop.local/pause:latest",
            "orlop.test/pause:1",
        ],
        TestRuntime::Containerd => &["orlop.test/pause:1"],
    };
    assert!(tags.iter().eq(kept), "{tags:?}");
}

#[test]
fn logs_are_rotated_under_a_writing_container() {
    let test = NodeRuntime::start(TestRuntime::of_suite());
    network::block_on(logs_are_rotated_under_a_writing_container_on(&test));
}

async fn logs_are_rotated_under_a_writing_container_on(test: &NodeRuntime) {
    let node = Node::start(test).await;
    let writes = node
        .run("p", "i=0; while true; do echo line $i; i=$((i+1)); usleep 200; done", 0)
        .await;
    let logs = LogPolicy {
        max_size: Some(2000),
        max_files: 3,
    };
    let collector = node.collector(&[], ImagePolicy::default(), logs);
    let folder = writes.log.parent().unwrap();
    let rotated = || {
        files(folder)
            .into_iter()
            .filter(|name| name.starts_with("0.log."))
            .collect::<Vec<_>>()
    };
    let turns = async {
        let mut seen = BTreeSet::new();
        // Names differ by the second, so this takes as many seconds.
        while seen.len() < 4 {
            collector.look_after_logs().await.unwrap();
            seen.extend(
                rotated()
                    .into_iter()
                    .map(|name| name.trim_end_matches(".gz").to_string()),
            );
            assert!(files(folder).len() <= 3, "{:?}", files(folder));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, turns).await.expect("it writes enough");
    let names = rotated();
    assert!(names[0].ends_with(".gz") && !names[1].ends_with(".gz"), "{names:?}");
    let link = files(&node.logs.path().join("containers"));
    assert_eq!(link, [format!("p_n_c-{}.log", writes.container)]);

    // Nothing is lost between the newest rotated file and the one being written.
    let begun = async {
        while std::fs::metadata(&writes.log).unwrap().len() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("it goes on writing");
    node.runtime
        .stop_container(&writes.container, Duration::ZERO)
        .await
        .unwrap();
    let number = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok());
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(number).collect::<Vec<_>>()
    };
    let (old, new) = (read(&folder.join(&names[1])), read(&writes.log));
    assert_eq!(old.last().unwrap() + 1, new[0]);
}
