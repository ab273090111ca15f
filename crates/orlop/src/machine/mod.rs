//! What a cluster makes on its machine outside of the data directory, and how `orlop down --purge` takes it away.
//!
//! `machine.json` in the data directory says what there may be. It is written before anything is made and never forgets, so
//! that a purge works after `kill -9`, after a reboot and after a start with other flags. Things that can be told from
//! somebody else's are looked for when they are to go (mounts below the data directory, pods by their uids); of the others it
//! is recorded whether they were there before us. What is not ours stays.
//!
//! Another kind of things is one file here: a field of [`Machine`] if there is something to remember, and a row in [`ALL`].

mod apparmor;
mod cgroups;
mod data;
mod files;
mod mounts;
mod network;
pub(crate) mod own_address;
mod pods;
mod proxy;
mod workers;

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_base::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::data_dir;
use crate::embedded::EmbeddedNode;
use crate::kubeconfig::Target;

/// `machine.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Machine {
    /// The data directory was not there before, or was empty.
    pub made_data_dir: bool,
    /// Files that a context was merged into.
    pub kubeconfigs: Vec<Target>,
    /// The service proxy has run.
    pub proxy: bool,
    /// Tables of iptables, as nft names them, that were not there before: it makes them when it is first asked.
    pub made_tables: Vec<String>,
    /// The address that the machine was given, as it had none.
    pub own_address: Option<Ipv4Addr>,
    pub nodes: Vec<NodeTraces>,
}

/// What a node with a container runtime leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeTraces {
    /// The CRI endpoint; empty for a node that ran containers itself.
    pub runtime: String,
    /// The node, if it ran containers itself.
    pub embedded: Option<EmbeddedNode>,
    pub pod_logs_dir: PathBuf,
    /// The group that `kubepods` is in.
    pub cgroup_root: String,
    /// There was no `kubepods` before.
    pub made_kubepods: bool,
    /// The group that it is in is the node's alone.
    pub owns_cgroup_root: bool,
    /// Where the network configuration was written to; `None`: none was. Empty: where the runtime looks.
    pub cni_conf_dir: Option<PathBuf>,
    /// Where the configuration in effect is shown.
    pub kubelet_config: PathBuf,
    /// Directories that were not there before, the outermost first.
    pub made_directories: Vec<PathBuf>,
}

impl NodeTraces {
    /// The same node as one of an earlier start, but for what was there before.
    fn is_of_same_node(&self, other: &NodeTraces) -> bool {
        let identity = |traces: &NodeTraces| NodeTraces {
            made_kubepods: false,
            made_directories: vec![],
            ..traces.clone()
        };
        identity(self) == identity(other)
    }

    fn is_worker(&self, name: &str) -> bool {
        let embedded = self.embedded.as_ref();
        embedded.is_some_and(|node| node.worker.is_some() && node.name == name)
    }
}

impl Machine {
    /// What is recorded; nothing if there is no record.
    pub(crate) fn read(data_dir: &Path) -> io::Result<Machine> {
        match std::fs::read_to_string(data_dir.join(data_dir::MACHINE)) {
            Ok(text) => serde_json::from_str(&text).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Machine::default()),
            Err(error) => Err(error),
        }
    }

    /// Adds what a start is about to make, and writes it down.
    pub(crate) fn record(data_dir: &Path, now: Machine) -> io::Result<()> {
        let before = Machine::read(data_dir)?;
        let merged = before.clone().with(now);
        if merged == before && data_dir.join(data_dir::MACHINE).exists() {
            return Ok(());
        }
        merged.write(data_dir)
    }

    /// A worker node was removed whole.
    fn forget_worker(data_dir: &Path, name: &str) -> io::Result<()> {
        let mut machine = Machine::read(data_dir)?;
        machine.nodes.retain(|node| !node.is_worker(name));
        machine.write(data_dir)
    }

    fn write(&self, data_dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        data_dir::write_private(&data_dir.join(data_dir::MACHINE), &format!("{text}\n"))
    }

    fn with(mut self, now: Machine) -> Machine {
        self.made_data_dir |= now.made_data_dir;
        self.proxy |= now.proxy;
        self.made_tables
            .extend(now.made_tables.into_iter().collect::<BTreeSet<_>>());
        self.made_tables.sort();
        self.made_tables.dedup();
        self.own_address = now.own_address.or(self.own_address);
        for target in now.kubeconfigs {
            if !self.kubeconfigs.contains(&target) {
                self.kubeconfigs.push(target);
            }
        }
        for node in now.nodes {
            match self.nodes.iter_mut().find(|known| known.is_of_same_node(&node)) {
                // What we made then is there now: that was found out at the first start.
                Some(known) => {
                    let new = node.made_directories.into_iter();
                    let new: Vec<_> = new.filter(|dir| !known.made_directories.contains(dir)).collect();
                    known.made_directories.extend(new);
                    known.made_kubepods |= node.made_kubepods;
                }
                None => self.nodes.push(node),
            }
        }
        self
    }
}

/// Those of a path and the directories above it that are not there, the outermost first.
pub(crate) fn missing_directories(path: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .map(Path::to_path_buf)
        .collect();
    missing.reverse();
    missing
}

pub(crate) use cgroups::kubepods_exist;
pub(crate) use pods::stop_orphans;
pub(crate) use proxy::missing_tables;
pub(crate) use workers::remove_worker;

/// One kind of things, and how they go.
pub(crate) struct Removal {
    /// What is being removed, for the progress line.
    pub what: &'static str,
    pub run: for<'a> fn(&'a mut Purge) -> BoxFuture<'a, ()>,
}

/// In the order in which they go: what uses something before what it uses, the data directory last.
pub(crate) const ALL: &[Removal] = &[
    pods::REMOVAL,
    apparmor::REMOVAL,
    network::REMOVAL,
    workers::REMOVAL,
    own_address::REMOVAL,
    proxy::REMOVAL,
    mounts::REMOVAL,
    cgroups::REMOVAL,
    files::REMOVAL,
    data::REMOVAL,
];

/// A purge under way.
pub(crate) struct Purge {
    pub data_dir: PathBuf,
    pub machine: Machine,
    /// The pods that this cluster's kubelets had, by their directories.
    pub pod_uids: BTreeSet<String>,
    /// At most this long for containers that still run.
    pub grace: Duration,
    /// Remove the data directory although something else could not be removed.
    pub force: bool,
    pub removed: Vec<String>,
    pub problems: Vec<String>,
}

impl Purge {
    pub(crate) fn new(data_dir: &Path, grace: Duration, force: bool) -> io::Result<Purge> {
        let data_dir = data_dir.canonicalize()?;
        Ok(Purge {
            machine: Machine::read(&data_dir)?,
            pod_uids: pod_uids(&data_dir),
            data_dir,
            grace,
            force,
            removed: vec![],
            problems: vec![],
        })
    }

    fn removed(&mut self, what: impl Into<String>) {
        self.removed.push(what.into());
    }

    fn failed(&mut self, action: &str, error: impl std::fmt::Display) {
        self.problems.push(format!("{action}: {error}"));
    }
}

/// The pods of all nodes of a data directory.
pub(crate) fn pod_uids(data_dir: &Path) -> BTreeSet<String> {
    let workers = names_in(&data_dir.join(data_dir::NODES)).into_iter();
    let workers = workers.map(|name| data_dir.join(data_dir::NODES).join(name));
    let nodes = workers.chain([data_dir.to_path_buf()]);
    nodes.flat_map(|node| pod_uids_of(&node)).collect()
}

/// Every pod has a directory from before its first container until after its last.
fn pod_uids_of(node: &Path) -> BTreeSet<String> {
    names_in(&node.join("kubelet/pods"))
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(runtime: &str, made_kubepods: bool, made: &[&str]) -> NodeTraces {
        NodeTraces {
            runtime: runtime.into(),
            made_kubepods,
            made_directories: made.iter().map(PathBuf::from).collect(),
            ..NodeTraces::default()
        }
    }

    #[test]
    fn nothing_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let target = |path: &str| Target {
            path: path.into(),
            user: None,
        };
        let record = |now: Machine| {
            Machine::record(dir.path(), now).unwrap();
            Machine::read(dir.path()).unwrap()
        };
        let first = Machine {
            made_data_dir: true,
            kubeconfigs: vec![target("/a")],
            proxy: true,
            made_tables: vec!["ip nat".into()],
            own_address: Some(Ipv4Addr::new(172, 30, 0, 1)),
            nodes: vec![node("unix:///x", true, &["/etc/kubernetes"])],
        };
        assert_eq!(record(first.clone()), first);
        // The next start finds what the first one made, and uses another file.
        let second = Machine {
            kubeconfigs: vec![target("/b"), target("/a")],
            nodes: vec![node("unix:///x", false, &[]), node("unix:///y", false, &["/z"])],
            ..Machine::default()
        };
        let both = Machine {
            kubeconfigs: vec![target("/a"), target("/b")],
            nodes: vec![first.nodes[0].clone(), second.nodes[1].clone()],
            ..first
        };
        assert_eq!(record(second), both);
        assert_eq!(record(Machine::default()), both);
    }

    #[test]
    fn directories_that_would_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        assert_eq!(missing_directories(&path), [dir.path().join("a"), path.clone()]);
        std::fs::create_dir_all(&path).unwrap();
        assert!(missing_directories(&path).is_empty());
    }
}
