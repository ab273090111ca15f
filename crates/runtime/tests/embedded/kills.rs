//! Kills at random moments, of everybody: whatever the next start finds, it adopts or cleans up.
//!
//! A second process (this test binary again) works with the runtime and reports every step. After a random number of them
//! somebody is killed: that process, a shim, the spawner of shims, or the first process of a container.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orlop_base::Random;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

const DIRECTORY: &str = "ORLOP_TEST_DIRECTORY";
const GROUP: &str = "ORLOP_TEST_CGROUP";
/// How many kills; more of them find more.
const KILLS: &str = "ORLOP_TEST_KILLS";

/// The second process. Does nothing when it is run as a test.
#[tokio::test]
async fn worker() {
    let (Ok(dir), Ok(cgroup)) = (std::env::var(DIRECTORY), std::env::var(GROUP)) else {
        return;
    };
    let node = Node::attach(Path::new(&dir), &cgroup).await;
    println!("\nopened");
    futures::future::join_all((0..3).map(|lane| work(&node, lane))).await;
}

/// Pods come and go. What fails because somebody was killed is tried again with the next one.
async fn work(node: &AttachedNode, lane: usize) {
    for n in 0.. {
        let name = format!("{}-{lane}-{n}", std::process::id());
        let config = pod_config(&node.dir, &node.cgroup, &name);
        let Ok(pod) = node.runtime.run_pod_sandbox(config.clone(), "").await else {
            continue;
        };
        println!("sandbox");
        let Ok(id) = node
            .runtime
            .create_container(&pod, container("c", "sleep 1000"), config.clone())
            .await
        else {
            continue;
        };
        println!("created");
        drop(node.runtime.start_container(&id).await);
        println!("started");
        drop(node.runtime.exec_sync(&id, vec!["true".to_string()], Some(LONG)).await);
        println!("executed");
        // Half of them are left for the next one to find.
        if n % 2 == 0 {
            drop(node.runtime.stop_container(&id, Duration::ZERO).await);
            println!("stopped");
            drop(node.runtime.stop_pod_sandbox(&pod).await);
            println!("sandbox stopped");
            drop(node.runtime.remove_pod_sandbox(&pod).await);
            println!("sandbox removed");
        }
    }
}

fn start_worker(dir: &Path, cgroup: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::worker", "--nocapture", "--quiet"])
        .env(DIRECTORY, dir)
        .env(GROUP, cgroup)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(pid: i32) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
}

/// Shims of this node's pods, and the worker's spawner.
fn shims(dir: &Path, worker: u32) -> Vec<i32> {
    let pods = dir.join("runtime/pods");
    let ours = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> = line
            .split(|b| *b == 0)
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let of_worker = stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.split_whitespace().nth(1) == Some(&worker.to_string()));
        words.starts_with(&["orlop".to_string(), "shim".to_string()])
            && (of_worker || words.get(2).is_some_and(|id| id.len() == 64 && pods.join(id).exists()))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|e| e.file_name().to_string_lossy().parse().ok())
        .filter(ours)
        .collect()
}

/// Processes in the cgroups of this node's containers.
fn container_processes(cgroup: &str) -> Vec<i32> {
    let mut pids: Vec<i32> = cgroup_dirs(cgroup)
        .iter()
        .flat_map(|dir| {
            std::fs::read_to_string(dir.join("cgroup.procs"))
                .unwrap_or_default()
                .lines()
                .map(str::to_string)
                .collect::<Vec<_>>()
        })
        .filter_map(|line| line.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn pick(random: &mut Random, pids: &[i32]) -> Option<i32> {
    match pids.len() {
        0 => None,
        count => Some(pids[random.below(count as u64) as usize]),
    }
}

/// One worker, killed after some steps; others before it.
fn disturb(dir: &Path, cgroup: &str, random: &mut Random) {
    let mut worker = start_worker(dir, cgroup);
    let mut steps = BufReader::new(worker.stdout.take().unwrap()).lines();
    let mut wait = |count: u64| {
        for _ in 0..count {
            if steps.next().is_none_or(|line| line.is_err()) {
                return;
            }
        }
    };
    // Its own words come first; then it opens the runtime.
    wait(4 + random.below(20));
    for _ in 0..random.below(3) {
        let victims = match random.below(2) {
            0 => shims(dir, worker.id()),
            _ => container_processes(cgroup),
        };
        if let Some(pid) = pick(random, &victims) {
            kill(pid);
        }
        wait(random.below(6));
    }
    kill(worker.id() as i32);
    worker.wait().unwrap();
}

/// What the runtime says is so.
async fn check(node: &Node) {
    let runtime = &node.runtime;
    for container in runtime.list_containers(ContainerFilter::default()).await.unwrap() {
        let pod = runtime
            .pod_sandbox_status(&container.pod_sandbox_id)
            .await
            .unwrap()
            .metadata
            .unwrap()
            .name;
        let processes = || processes_of(node, &pod, &container.id);
        let mut status = runtime.container_status(&container.id).await.unwrap();
        if status.state == ContainerState::Running as i32 {
            let command = runtime
                .exec_sync(&container.id, vec!["true".to_string()], Some(LONG))
                .await;
            match command.is_ok_and(|result| result.exit_code == 0) {
                true => assert!(processes() <= 1, "{}", container.id),
                // It was killed, and the news was on its way.
                false => status = wait_exited(runtime, &container.id).await,
            }
        }
        if status.state == ContainerState::Exited as i32 {
            assert_eq!(processes(), 0, "{}", container.id);
        }
    }
}

/// Processes that run a container's command; a command of the worker's may still be there beside them.
fn processes_of(node: &Node, pod: &str, container: &str) -> usize {
    let group = format!("{}/{pod}/{container}", node.cgroup);
    let runs_command = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("sleep")
    };
    container_processes(&group)
        .iter()
        .filter(|pid| runs_command(pid))
        .count()
}

#[tokio::test]
async fn nothing_is_left_after_random_kills() {
    let kills = std::env::var(KILLS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12);
    let mut node = Node::start().await;
    for seed in 0..kills {
        let mut random = Random::seeded(seed);
        // A directory is for one runtime at a time.
        let Node { dir, runtime, cgroup } = node;
        drop(runtime);
        disturb(dir.path(), &cgroup, &mut random);
        node = Node::open(dir, cgroup).await;
        check(&node).await;
        // Some go on, so that later rounds find old ones too.
        if seed % 4 == 3 {
            for pod in node
                .runtime
                .list_pod_sandboxes(PodSandboxFilter::default())
                .await
                .unwrap()
            {
                node.runtime.remove_pod_sandbox(&pod.id).await.unwrap();
            }
            assert!(container_processes(&node.cgroup).is_empty());
            remove_cgroups(&node.cgroup);
            assert!(shims(node.dir.path(), 0).is_empty());
        }
    }
    let (cgroup, path) = (node.cgroup.clone(), node.dir.path().display().to_string());
    node.clean_up().await;
    assert!(cgroup_dirs(&cgroup).is_empty());
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&path));
}
