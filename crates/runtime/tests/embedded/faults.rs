//! Restarts and kills: nothing is started twice, nothing is left.

use std::collections::BTreeSet;

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_new_runtime_adopts_what_runs() {
    let node = Node::start().await;
    let pod = node.run_pod("adopt").await;
    let running = pod
        .start(container(
            "running",
            "echo started; while [ ! -e /go ]; do sleep 0.01; done; echo gone; exit 5",
        ))
        .await;
    let ended = pod.start(container("ended", "exit 3")).await;
    pod.wait(&ended).await;
    let created = pod.create(container("created", "echo late")).await;
    let before = node.runtime.container_status(&running).await.unwrap();
    let (pod_id, config) = (pod.id.clone(), pod.config.clone());
    let shim = shim_pid(&pod_id).unwrap();

    let node = node.restart().await;
    let pod = node.adopt_pod(&pod_id, config);
    assert_eq!(shim_pid(&pod_id), Some(shim));
    let status = node.runtime.pod_sandbox_status(&pod_id).await.unwrap();
    assert_eq!(status.state, PodSandboxState::Ready as i32);
    let after = node.runtime.container_status(&running).await.unwrap();
    assert_eq!(after, before);
    assert_eq!(node.runtime.container_status(&ended).await.unwrap().exit_code, 3);
    pod.exec(&running, &["touch", "/go"]).await;
    assert_eq!(pod.wait(&running).await.exit_code, 5);
    assert_eq!(pod.stdout("running"), "started\ngone");
    node.runtime.start_container(&created).await.unwrap();
    pod.wait(&created).await;
    assert_eq!(pod.stdout("created"), "late");
    // Names stay taken.
    assert!(
        node.runtime
            .create_container(&pod_id, container("ended", ""), pod.config.clone())
            .await
            .is_err()
    );
    node.clean_up().await;
}

#[tokio::test]
async fn an_exit_while_nobody_watched_is_known() {
    let node = Node::start().await;
    let pod = node.run_pod("unwatched").await;
    let volume = node.dir.path().join("volume");
    let config = ContainerConfig {
        mounts: vec![Mount {
            host_path: volume.display().to_string(),
            container_path: "/volume".to_string(),
            ..Mount::default()
        }],
        ..container("c", "while [ ! -e /volume/go ]; do sleep 0.01; done; exit 11")
    };
    let id = pod.start(config).await;
    let files = node
        .dir
        .path()
        .join("runtime/pods")
        .join(&pod.id)
        .join("containers")
        .join(&id);
    let Node { dir, runtime, cgroup } = node;
    drop(runtime);
    std::fs::write(volume.join("go"), "").unwrap();
    wait_for_file(&files.join("state.json"), "\"code\":11").await;
    let node = Node::open(dir, cgroup).await;
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited as i32, 11));
    node.clean_up().await;
}

#[tokio::test]
async fn containers_die_with_their_shim() {
    let node = Node::start().await;
    let pod = node.run_pod("shimless").await;
    let id = pod.start(container("c", "sleep 100 & sleep 200")).await;
    kill(shim_pid(&pod.id).unwrap());
    let status = pod.wait(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    let status = node.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, PodSandboxState::NotReady as i32);
    let error = node
        .runtime
        .create_container(&pod.id, container("new", ""), pod.config.clone())
        .await
        .unwrap_err();
    assert!(error.message.contains("is not running"), "{error}");
    // The kubelet's way on: a new sandbox for the same pod.
    let mut config = pod.config.clone();
    config.metadata.as_mut().unwrap().attempt = 1;
    let again = node.run_pod_with(config).await;
    assert_eq!(again.output(container("c", "echo again")).await, "again");
    node.clean_up().await;
}

#[tokio::test]
async fn a_shim_that_died_unwatched_is_noticed() {
    let node = Node::start().await;
    let pod = node.run_pod("lost").await;
    let id = pod.start(container("c", "sleep 100")).await;
    let (pod_id, shim) = (pod.id.clone(), shim_pid(&pod.id).unwrap());
    let Node { dir, runtime, cgroup } = node;
    drop(runtime);
    kill(shim);
    let node = Node::open(dir, cgroup).await;
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited as i32, 137));
    assert!(status.started_at > 0 && status.finished_at >= status.started_at);
    assert_eq!(
        node.runtime.pod_sandbox_status(&pod_id).await.unwrap().state,
        PodSandboxState::NotReady as i32
    );
    node.clean_up().await;
}

#[tokio::test]
async fn what_was_interrupted_is_removed() {
    let node = Node::start().await;
    let pod = node.run_pod("interrupted").await;
    let id = pod.create(container("c", "true")).await;
    let pods = node.dir.path().join("runtime/pods");
    // As if the runtime had been killed before the record of a sandbox, and within the removal of a container.
    std::fs::create_dir_all(pods.join("half-made/containers")).unwrap();
    std::fs::remove_file(pods.join(&pod.id).join("containers").join(&id).join("record")).unwrap();
    let node = node.restart().await;
    assert!(!pods.join("half-made").exists());
    assert!(node.runtime.container_status(&id).await.unwrap_err().is_not_found());
    node.clean_up().await;
}

#[tokio::test]
async fn killing_the_first_process_ends_a_container() {
    let node = Node::start().await;
    let pod = node.run_pod("init").await;
    let id = pod.start(container("c", "echo ready; sleep 77777; true")).await;
    wait_for_line(&pod, "c", "ready").await;
    let procs = read_cgroup(&node, "init", &id, "cgroup.procs", "cgroup.procs");
    let first: i32 = procs.lines().next().unwrap().parse().unwrap();
    kill(first);
    assert_eq!(pod.wait(&id).await.exit_code, 137);
    node.clean_up().await;
}

#[tokio::test]
async fn a_dead_spawner_is_replaced() {
    let node = Node::start().await;
    let one = node.run_pod("one").await;
    let spawner = parent(shim_pid(&one.id).unwrap());
    kill(spawner);
    let id = one.start(container("c", "echo alive; sleep 100")).await;
    wait_for_line(&one, "c", "alive").await;
    let two = node.run_pod("two").await;
    assert_eq!(two.output(container("c", "echo two")).await, "two");
    node.runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    node.clean_up().await;
}

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Mounts, cgroups, shims and namespaces of this machine.
fn machine() -> [BTreeSet<String>; 3] {
    let lines = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(str::to_string)
            .collect()
    };
    let mut shims = BTreeSet::new();
    let mut networks = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.starts_with(b"orlop\0shim\0") {
            shims.insert(String::from_utf8_lossy(&line).replace('\0', " "));
        }
        if let Ok(network) = std::fs::read_link(entry.path().join("ns/net")) {
            networks.insert(network.display().to_string());
        }
    }
    [lines("/proc/self/mounts"), shims, networks]
}

#[tokio::test]
async fn twenty_pods_at_once_and_nothing_left() {
    let node = Node::start().await;
    let pods = futures::future::join_all((0..20).map(async |n| {
        let pod = node.run_pod(&format!("many-{n}")).await;
        let id = pod.start(container("c", "echo up; exec sleep 1000")).await;
        wait_for_line(&pod, "c", "up").await;
        (pod, id)
    }))
    .await;
    let during = machine();
    for (pod, id) in &pods {
        assert!(during[1].iter().any(|shim| shim.contains(&pod.id)));
        let status = node.runtime.container_status(id).await.unwrap();
        assert_eq!(status.state, ContainerState::Running as i32);
    }
    let ids: Vec<String> = pods.iter().map(|(pod, _)| pod.id.clone()).collect();
    drop(pods);
    let (cgroup, path) = (node.cgroup.clone(), node.dir.path().display().to_string());
    node.clean_up().await;
    let after = machine();
    assert!(!after[0].iter().any(|mount| mount.contains(&path)));
    assert!(!after[1].iter().any(|shim| ids.iter().any(|id| shim.contains(id))));
    assert!(cgroup_dirs(&cgroup).is_empty());
}
