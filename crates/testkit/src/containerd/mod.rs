//! A private containerd: its own socket, root, state and network configuration under a temporary directory, with images
//! that are built here from busybox. It needs root, as containers do.
//!
//! Dropping it stops what runs and takes away what is left, also after a failed test. What a test should have left
//! behind is nothing: [`Containerd::leftovers`] counts.

pub(crate) mod leftovers;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_runtime::Runtime;
use orlop_runtime::cni;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::cri::messages::{CgroupDriver, PodSandboxFilter};
use tempfile::TempDir;

use crate::images::{self, PAUSE_IMAGE};
use crate::shell::{self, Ran, require};
use crate::wait::eventually;
pub use leftovers::Leftovers;

pub struct Containerd {
    // First, since what it holds has to be stopped before the directory goes.
    child: Option<Child>,
    directory: TempDir,
    /// Bridges and pod ranges of containerds that run at the same time must differ.
    number: u8,
    bridge: String,
}

impl Containerd {
    /// Started, with images, without a pod network yet: see [`Containerd::write_network`].
    pub fn start() -> Containerd {
        for tool in ["iptables", "ip"] {
            require(tool);
        }
        let containerd = Containerd::start_empty(CgroupDriver::Cgroupfs);
        let archive = containerd.path().join("images.tar");
        images::put(&archive);
        containerd.import(&archive);
        containerd
    }

    /// Started without images, for machines that can't make them: see `images.rs`.
    pub fn start_empty(driver: CgroupDriver) -> Containerd {
        for tool in ["containerd", "ctr", "runc"] {
            require(tool);
        }
        assert!(nix::unistd::geteuid().is_root(), "real containers need root");
        let directory = tempfile::Builder::new()
            .prefix("ctd")
            .tempdir()
            .expect("a temporary directory");
        let (number, bridge) = free_bridge(directory.path());
        let mut containerd = Containerd {
            child: None,
            directory,
            number,
            bridge,
        };
        let config = config(containerd.path(), overlay_works(containerd.path()), driver);
        std::fs::write(containerd.path().join("config.toml"), config).expect("a writable directory");
        std::fs::create_dir(containerd.cni_directory()).expect("a writable directory");
        containerd.restart();
        containerd
    }

    pub fn import(&self, archive: &Path) {
        self.ctr(&format!("images import {}", archive.display())).ok();
    }

    /// Started, with a pod network.
    pub fn with_network() -> Containerd {
        let containerd = Containerd::start();
        containerd.write_network();
        containerd
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> PathBuf {
        self.path().join("c.sock")
    }

    /// What `--runtime cri:` and the agent take.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Where containerd looks for the pod network's configuration.
    pub fn cni_directory(&self) -> PathBuf {
        self.path().join("cni")
    }

    /// A range for pods which no other containerd of these tests uses.
    pub fn pod_range(&self) -> String {
        format!("10.213.{}.0/24", self.number)
    }

    /// The pod network for tests that want no agent to write it.
    pub fn network(&self) -> cni::Network {
        cni::Network {
            bridge: self.bridge.clone(),
            data_directory: Some(self.path().join("addresses")),
            ..cni::Network::new([self.pod_range()])
        }
    }

    /// Under a name that an agent takes for somebody else's, and leaves alone.
    pub fn write_network(&self) {
        let text = cni::render(&self.network()).expect("a range that makes sense");
        std::fs::write(self.cni_directory().join("05-test.conflist"), text).expect("a writable directory");
    }

    /// A command of containerd's own client, in the namespace of CRI.
    pub fn ctr(&self, arguments: &str) -> Ran {
        let line = format!(
            "ctr --address {} --namespace k8s.io {arguments}",
            self.socket().display()
        );
        let command = shell::command(&line, self.path(), Path::new("/nonexistent"));
        shell::run(command, &line, "")
    }

    /// Ids of sandboxes and containers that have processes.
    pub fn running(&self) -> Vec<String> {
        let tasks = self.ctr("tasks list").ok();
        let running = tasks.lines().filter(|line| line.ends_with("RUNNING"));
        let ids = running.filter_map(|line| line.split_whitespace().next());
        ids.map(String::from).collect()
    }

    /// Everything it said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("log")
    }

    /// `kill -9`, as when it crashes: containers go on.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_raw(child.id().try_into().expect("a process id"));
        let _ = kill(pid, Signal::SIGKILL);
        child.wait().expect("our own child");
    }

    /// Starts it, killed before or not, and returns when it answers.
    pub fn restart(&mut self) {
        self.kill();
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.expect("a writable directory");
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.path().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("containerd starts"));
        let started = eventually("containerd answers", || {
            let child = self.child.as_mut().expect("just started");
            if let Some(status) = child.try_wait().expect("our own child") {
                return Some(Err(status));
            }
            let version = async |runtime: CriRuntime| runtime.status().await;
            through_cri(self.endpoint(), version)
                .is_some_and(|answer| answer.is_ok())
                .then_some(Ok(()))
        });
        if let Err(status) = started {
            panic!("containerd ended with {status}:\n{}", self.log());
        }
    }

    /// What there is of sandboxes and containers and of what they were made of.
    pub fn leftovers(&self) -> Leftovers {
        leftovers::count(self)
    }

    /// Ids of all sandboxes and containers that there ever were.
    fn ids(&self) -> Vec<String> {
        let log = self.log();
        let marks = [r#"returns sandbox id \""#, r#"returns container id \""#];
        let after = marks.iter().flat_map(|mark| log.split(mark).skip(1));
        after
            .filter_map(|text| text.split('\\').next())
            .map(str::to_string)
            .collect()
    }

    /// Through CRI, so that network rules go as well.
    fn remove_sandboxes(&self) {
        through_cri(self.endpoint(), async |runtime| {
            let sandboxes = runtime
                .list_pod_sandboxes(PodSandboxFilter::default())
                .await
                .unwrap_or_default();
            let removals = sandboxes.iter().map(|sandbox| async {
                drop(runtime.stop_pod_sandbox(&sandbox.id).await);
                drop(runtime.remove_pod_sandbox(&sandbox.id).await);
            });
            futures::future::join_all(removals).await;
        });
    }
}

/// In a thread of its own, since tests may call us inside of their own runtime. `None` if it takes too long.
fn through_cri<T: Send + 'static>(
    endpoint: String,
    work: impl AsyncFnOnce(CriRuntime) -> T + Send + 'static,
) -> Option<T> {
    let thread = std::thread::spawn(move || {
        let threads = tokio::runtime::Builder::new_current_thread().enable_all().build();
        threads.expect("a runtime of one thread").block_on(async {
            let runtime = CriRuntime::connect(&endpoint).expect("a path of ours");
            tokio::time::timeout(Duration::from_secs(30), work(runtime)).await.ok()
        })
    });
    thread.join().expect("calls do not panic")
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.remove_sandboxes();
        }
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(10_000);
            eprintln!("containerd's log ends with:\n{}", log.get(from..).unwrap_or(&log));
        }
        leftovers::take_away(self.path(), &self.ids());
        drop(
            Command::new("ip")
                .args(["link", "delete", &self.bridge])
                .stderr(Stdio::null())
                .status(),
        );
    }
}

/// A bridge's name that is free, and the number in it. Which numbers are taken is noted in a common directory, since a
/// bridge comes into being only with the first pod.
fn free_bridge(owner: &Path) -> (u8, String) {
    let taken = std::env::temp_dir().join("orlop-test-bridges");
    std::fs::create_dir_all(&taken).expect("a writable temporary directory");
    let alone = File::create(taken.join("lock")).expect("a writable temporary directory");
    alone.lock().expect("a lock on our own file");
    for number in 1..=255 {
        let link = taken.join(number.to_string());
        // A link whose owner's directory is gone is free again.
        if std::fs::read_link(&link).is_ok_and(|owner| !owner.exists()) {
            drop(std::fs::remove_file(&link));
        }
        if std::os::unix::fs::symlink(owner, &link).is_ok() {
            return (number, format!("orloptest{number}"));
        }
    }
    panic!("255 containerds run at a time: see {}", taken.display());
}

fn overlay_works(directory: &Path) -> bool {
    let root = directory.join("overlay");
    let line = "mkdir -p l u w m && mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w m && umount m";
    std::fs::create_dir(&root).expect("a writable directory");
    let works = shell::run(shell::command(line, &root, Path::new("/nonexistent")), line, "").code == Some(0);
    drop(std::fs::remove_dir_all(&root));
    works
}

/// Where tests run as root without CAP_SYS_RESOURCE, containers can't be made less likely victims than we are.
fn may_lower_oom_scores() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & (1 << CAP_SYS_RESOURCE) != 0)
}

fn config(directory: &Path, overlay: bool, driver: CgroupDriver) -> String {
    let systemd = driver == CgroupDriver::Systemd;
    let directory = directory.display();
    let snapshotter = if overlay { "overlayfs" } else { "native" };
    let restricted = !may_lower_oom_scores();
    let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
    format!(
        r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
address = "{directory}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
stream_server_address = "127.0.0.1"
stream_server_port = "0"
netns_mounts_under_state_dir = true
restrict_oom_score_adj = {restricted}
[{cri}.containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = {systemd}
[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{directory}/cni"
"#
    )
}
