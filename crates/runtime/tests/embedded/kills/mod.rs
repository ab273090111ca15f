//! Kills at random moments, of everybody: whatever the next start finds, it adopts or cleans up.
//!
//! A second process (this test binary again) pulls images and makes pods of them, with the real image store and pod network,
//! and reports every step. After a random number of them somebody is killed: that process, a shim, the spawner of shims, or
//! the first process of a container. Its pods come and go side by side, so each kill finds some of them half way.

mod registry;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use orlop_base::Random;
use orlop_netlink::route::Route;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;
use orlop_runtime::embedded::images::{ImageStore, Options as ImageOptions};
use orlop_runtime::embedded::network::{Options as NetworkOptions, PodNetwork, Transport};
use orlop_runtime::embedded::{Embedded, NodeImages, Options};

use self::registry::Registry;
use crate::support::*;

const DIRECTORY: &str = "ORLOP_TEST_DIRECTORY";
const GROUP: &str = "ORLOP_TEST_CGROUP";
const REGISTRY: &str = "ORLOP_TEST_REGISTRY";
/// How many kills; more of them find more.
const KILLS: &str = "ORLOP_TEST_KILLS";
const DEFAULT_KILLS: usize = 200;
const RANGE: &str = "10.213.0.0/24";

/// A node with everything that `orlop up` has, in a directory that somebody else looks after.
struct WholeNode {
    runtime: Embedded,
    dir: PathBuf,
    cgroup: String,
}

impl WholeNode {
    async fn open(dir: &Path, cgroup: &str) -> WholeNode {
        let options = ImageOptions {
            // A power cut is not among what happens here.
            durable: false,
            builtin: false,
            ..ImageOptions::default()
        };
        let store = ImageStore::open(&dir.join("images"), options).await.unwrap();
        let network = PodNetwork::open(NetworkOptions {
            state_dir: dir.join("network"),
            cluster: dir.display().to_string(),
            node: "node".to_string(),
            cluster_ranges: vec![RANGE.parse().unwrap()],
            mtu: None,
            transport: Transport::Routes,
            namespace: None,
        });
        let images = NodeImages {
            store,
            owner: "node".to_string(),
        };
        let options = Options {
            shim: test_shim(),
            ..Options::new(dir.join("runtime"))
        };
        let runtime = Embedded::open(options, Arc::new(images), Arc::new(network.unwrap())).await;
        let runtime = runtime.unwrap();
        runtime.update_runtime_config(RANGE).await.unwrap();
        WholeNode {
            runtime,
            dir: dir.to_path_buf(),
            cgroup: cgroup.to_string(),
        }
    }

    /// Takes everything away by the runtime's own means, and looks whether it is gone.
    async fn empty(&self) {
        let pods = self.runtime.list_pod_sandboxes(PodSandboxFilter::default()).await;
        for pod in pods.unwrap() {
            self.runtime.remove_pod_sandbox(&pod.id).await.unwrap();
        }
        for image in self.runtime.list_images().await.unwrap() {
            let image = ImageSpec {
                image: image.id,
                ..ImageSpec::default()
            };
            self.runtime.remove_image(&image).await.unwrap();
        }
        assert!(container_processes(&self.cgroup).is_empty());
        remove_cgroups(&self.cgroup);
        assert!(shims(&self.dir, 0).is_empty());
        for empty in [
            "runtime/pods",
            "images/work",
            "images/holders",
            "images/layers",
            "network/sandboxes",
        ] {
            assert_eq!(entries(&self.dir.join(empty)), [""; 0], "{empty}");
        }
        let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
        let leases = entries(&self.dir.join("network/addresses"));
        assert_eq!(leases.into_iter().filter(is_address).count(), 0);
        assert_eq!(links(), ["lo"]);
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Of the network that this thread is in.
fn links() -> Vec<String> {
    let links = Route::open().unwrap().links().unwrap();
    links.into_iter().map(|link| link.name).collect()
}

/// The second process. Does nothing when it is run as a test.
#[tokio::test]
async fn worker() {
    let [Ok(dir), Ok(cgroup), Ok(port)] = [DIRECTORY, GROUP, REGISTRY].map(std::env::var) else {
        return;
    };
    let node = WholeNode::open(Path::new(&dir), &cgroup).await;
    println!("\nopened");
    futures::future::join_all((0..3).map(|lane| work(&node, &port, lane))).await;
}

/// Pods come and go. What fails because somebody was killed is tried again with the next one.
async fn work(node: &WholeNode, port: &str, lane: usize) {
    for n in 0.. {
        let name = format!("{}-{lane}-{n}", std::process::id());
        let config = pod_config(&node.dir, &node.cgroup, &name);
        let reference = format!("localhost:{port}/{name}:latest");
        let image = ImageSpec {
            image: reference.clone(),
            ..ImageSpec::default()
        };
        println!("pulling");
        node.runtime
            .pull_image(image.clone(), None, config.clone())
            .await
            .unwrap();
        println!("pulled");
        let Ok(pod) = node.runtime.run_pod_sandbox(config.clone(), "").await else {
            continue;
        };
        println!("sandbox");
        let sleeping = with_image(container("c", "sleep 1000"), &reference);
        let Ok(id) = node.runtime.create_container(&pod, sleeping, config.clone()).await else {
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
            drop(node.runtime.remove_image(&image).await);
            println!("image removed");
        }
    }
}

fn start_worker(dir: &Path, cgroup: &str, registry: &Registry) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::worker", "--nocapture", "--quiet"])
        .env(DIRECTORY, dir)
        .env(GROUP, cgroup)
        .env(REGISTRY, registry.port().to_string())
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

/// One worker, killed after some steps; others before it. Returns how many were killed.
fn disturb(dir: &Path, cgroup: &str, registry: &Registry, random: &mut Random) -> usize {
    let mut worker = start_worker(dir, cgroup, registry);
    let mut killed = 1;
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
            killed += 1;
        }
        wait(random.below(6));
    }
    kill(worker.id() as i32);
    worker.wait().unwrap();
    killed
}

/// What the runtime says is so: no link or address without its sandbox, no container that runs twice or after its end.
async fn check(node: &WholeNode) {
    let runtime = &node.runtime;
    let pods = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await.unwrap();
    let ids: BTreeSet<String> = pods.into_iter().map(|pod| pod.id).collect();
    let attached = entries(&node.dir.join("network/sandboxes"));
    assert!(attached.iter().all(|id| ids.contains(id)), "{attached:?} of {ids:?}");
    // The link of a shim that was killed went with its namespace.
    assert!(links().len() <= 1 + attached.len(), "{:?} of {attached:?}", links());
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
fn processes_of(node: &WholeNode, pod: &str, container: &str) -> usize {
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

/// What a failed test would leave.
struct Remains<'a> {
    dir: &'a Path,
    cgroup: &'a str,
}

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        for pid in shims(self.dir, 0).into_iter().chain(container_processes(self.cgroup)) {
            kill(pid);
        }
    }
}

#[test]
fn nothing_is_left_after_random_kills() {
    let kills: usize = std::env::var(KILLS).map_or(DEFAULT_KILLS, |text| text.parse().unwrap());
    // A network of this thread's own, and of all that it starts.
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let mut route = Route::open().unwrap();
    let loopback = route.link("lo").unwrap().unwrap();
    route.set_up(loopback.index).unwrap();
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build();
    threads.unwrap().block_on(random_kills(kills));
}

async fn random_kills(kills: usize) {
    let dir = tempfile::tempdir().unwrap();
    make_layers(dir.path());
    let registry = Registry::start(&dir.path().join("layers/low"));
    let path = dir.path();
    let cgroup = format!("/orlop-kills-{}", std::process::id());
    let _remains = Remains {
        dir: path,
        cgroup: &cgroup,
    };
    let mut killed = 0;
    for seed in 0.. {
        let mut random = Random::seeded(seed);
        // A directory is for one runtime at a time.
        killed += disturb(path, &cgroup, &registry, &mut random);
        let node = WholeNode::open(path, &cgroup).await;
        check(&node).await;
        // Some go on, so that later rounds find old ones too.
        if seed % 4 == 3 {
            node.empty().await;
        }
        if killed >= kills {
            node.empty().await;
            break;
        }
    }
    assert!(cgroup_dirs(&cgroup).is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&path.display().to_string()));
}
