//! The embedded runtime: in a server's process, or in the test's own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_runtime::Runtime;
use orlop_runtime::embedded::images::{ImageStore, Options as ImageOptions};
use orlop_runtime::embedded::network::{Options as NetworkOptions, PodNetwork, Transport};
use orlop_runtime::embedded::{Embedded, NodeImages, Options, ShimCommand};
use tempfile::TempDir;

use crate::containerd::Leftovers;
use crate::containerd::leftovers::{cgroups_where, entries, mounts, processes, unmount};
use crate::wait::eventually;
use crate::{images, orlop};

/// Every test has a network of its own.
pub(super) const POD_RANGE: &str = "10.213.0.0/24";
/// Ids are as long as containerd's.
const ID_LENGTH: usize = 64;
/// What the names of pods' links begin with on the node.
const LINK_PREFIX: &str = "orl";

pub(super) struct EmbeddedRuntime {
    directory: TempDir,
    /// What all cgroups of its containers are in.
    cgroup: String,
    /// Ids of sandboxes that there were: their shims may outlive their files.
    seen: Mutex<BTreeSet<String>>,
}

impl EmbeddedRuntime {
    /// With images in the folder that a cluster loads at its start.
    pub(super) fn new(cgroup: String) -> EmbeddedRuntime {
        assert!(nix::unistd::geteuid().is_root(), "real containers need root");
        let directory = tempfile::Builder::new().prefix("emb").tempdir();
        let runtime = EmbeddedRuntime {
            directory: directory.expect("a temporary directory"),
            cgroup,
            seen: Mutex::default(),
        };
        let folder = runtime.archives();
        std::fs::create_dir_all(&folder).expect("a writable directory");
        images::put(&folder.join("images.tar"));
        runtime
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn archives(&self) -> PathBuf {
        self.data_dir().join("images")
    }

    fn pods(&self) -> PathBuf {
        self.data_dir().join("pods/pods")
    }

    /// In this process, as `orlop up` does it.
    pub(super) async fn open(&self) -> Arc<dyn Runtime> {
        let data_dir = self.data_dir();
        let store = ImageStore::open(&data_dir.join("image-store"), ImageOptions::default()).await;
        let store = store.expect("a writable directory");
        store
            .load_directory(&self.archives())
            .await
            .expect("an archive of ours");
        let network = PodNetwork::open(NetworkOptions {
            state_dir: data_dir.join("network"),
            cluster: data_dir.display().to_string(),
            node: "node".into(),
            cluster_ranges: vec![POD_RANGE.parse().expect("a range")],
            mtu: None,
            transport: Transport::Routes,
            namespace: None,
        });
        let options = Options {
            shim: ShimCommand {
                program: orlop(),
                ..ShimCommand::default()
            },
            ..Options::new(data_dir.join("pods"))
        };
        let images = NodeImages {
            store,
            owner: "node".into(),
        };
        let network = network.expect("a network of our own");
        let runtime = Embedded::open(options, Arc::new(images), Arc::new(network)).await;
        let runtime = runtime.expect("a directory of our own");
        runtime.update_runtime_config(POD_RANGE).await.expect("a range");
        Arc::new(runtime)
    }

    fn sandboxes(&self) -> Vec<PathBuf> {
        let sandboxes = entries(&self.pods());
        let mut seen = self.seen.lock().expect("nobody panics with it");
        seen.extend(sandboxes.iter().map(|path| name(path)));
        sandboxes
    }

    pub(super) fn leftovers(&self) -> Leftovers {
        let sandboxes = self.sandboxes();
        let containers = sandboxes.iter().map(|path| entries(&path.join("containers")).len());
        Leftovers {
            containers: containers.sum(),
            mounts: mounts(&self.data_dir().join("pods")).len(),
            cgroups: self.cgroups().len(),
            network_namespaces: self.shims().len(),
            network_rules: entries(&self.data_dir().join("network/sandboxes")).len() + pod_links(),
            sandboxes: sandboxes.len(),
        }
    }

    pub(super) fn running(&self) -> Vec<String> {
        self.sandboxes();
        let shims = self.shims().into_iter().map(|(id, _)| id);
        // One is in every tree.
        let groups = self.cgroups();
        let used = groups.iter().filter(|group| !processes(group).is_empty());
        let containers: BTreeSet<String> = used.map(|group| name(group)).collect();
        shims.chain(containers).collect()
    }

    /// Of containers; those of pods are the agent's.
    fn cgroups(&self) -> Vec<PathBuf> {
        let is_id = |name: &str| name.len() == ID_LENGTH && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let groups = cgroups_where(is_id);
        let ours = |path: &PathBuf| path.components().any(|part| part.as_os_str() == self.cgroup.as_str());
        groups.into_iter().filter(ours).collect()
    }

    /// The processes that hold sandboxes, by the sandboxes' ids.
    fn shims(&self) -> Vec<(String, Pid)> {
        let all = self.shim_processes().into_iter();
        all.filter(|(id, _)| !id.is_empty()).collect()
    }

    /// The shims, and with an empty id the process that forks them and those that do not have their names yet: they are
    /// in the node's network still.
    fn shim_processes(&self) -> Vec<(String, Pid)> {
        let seen = self.seen.lock().expect("nobody panics with it").clone();
        let node = std::fs::read_link("/proc/thread-self/ns/net").ok();
        let shim = |path: PathBuf| {
            let pid = name(&path).parse().ok()?;
            let line = std::fs::read(path.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let id = line.strip_prefix("orlop\0shim\0")?.trim_end_matches(['\0', ' ']);
            let is_ours = seen.contains(id) || std::fs::read_link(path.join("ns/net")).ok() == node;
            is_ours.then(|| (id.to_string(), Pid::from_raw(pid)))
        };
        entries(Path::new("/proc")).into_iter().filter_map(shim).collect()
    }

    /// No shim is forked once the process that forks them is gone.
    fn kill_shims(&self) {
        eventually("no shim is left", || {
            self.sandboxes();
            let left = self.shim_processes();
            for (_, process) in &left {
                let _ = kill(*process, Signal::SIGKILL);
            }
            left.is_empty().then_some(())
        });
    }
}

impl Drop for EmbeddedRuntime {
    /// Its network goes with the test and the last process in it.
    fn drop(&mut self) {
        self.kill_shims();
        let groups = self.cgroups();
        for process in groups.iter().flat_map(|group| processes(group)) {
            let _ = kill(process, Signal::SIGKILL);
        }
        eventually("killed processes are gone", || {
            groups.iter().all(|group| processes(group).is_empty()).then_some(())
        });
        for group in &groups {
            drop(std::fs::remove_dir(group));
        }
        unmount(self.directory.path());
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The node's ends of pods' links, in the network of the calling thread.
fn pod_links() -> usize {
    let listed = Command::new("ip").args(["-oneline", "link"]).output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let listed = listed.unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split(": ").nth(1));
    names.filter(|name| name.starts_with(LINK_PREFIX)).count()
}
