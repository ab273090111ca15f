//! The cgroup file system: one tree with version 2, one for each controller (or a few) with version 1, and both at once on
//! hybrid systems, where version 2's has no controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::spec::CgroupVersion;

use super::files::{Write, writes};
use super::{CgroupError, Limits, Result};

/// What pods' limits need; version 2 has more, which are left alone.
const CONTROLLERS_V2: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];
/// Trees that container runtimes put their groups into.
const CONTROLLERS_V1: [&str; 15] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
    "systemd",
];
/// Version 2's tree on hybrid systems.
const HYBRID: &str = "unified";

/// A mounted cgroup file system.
#[derive(Clone, Debug)]
pub struct Tree {
    version: CgroupVersion,
    /// Directories that groups are made in.
    roots: Vec<PathBuf>,
    /// The directory of each controller.
    controllers: BTreeMap<String, PathBuf>,
    /// Directories that may have groups of a runtime's, but where none are made.
    others: Vec<PathBuf>,
}

impl Tree {
    /// Looks at what is mounted at a directory, `/sys/fs/cgroup`.
    pub fn at(mount: &Path) -> Result<Tree> {
        match read(&mount.join("cgroup.controllers")) {
            Ok(controllers) => Ok(Tree::v2(mount, &controllers)),
            Err(_) => Tree::v1(mount),
        }
    }

    fn v2(mount: &Path, controllers: &str) -> Tree {
        let ours = controllers.split_whitespace().filter(|c| CONTROLLERS_V2.contains(c));
        Tree {
            version: CgroupVersion::V2,
            roots: vec![mount.to_path_buf()],
            controllers: ours.map(|c| (c.to_string(), mount.to_path_buf())).collect(),
            others: vec![],
        }
    }

    fn v1(mount: &Path) -> Result<Tree> {
        let mut tree = Tree {
            version: CgroupVersion::V1,
            roots: vec![],
            controllers: BTreeMap::new(),
            others: vec![],
        };
        let failed = |e| file_error("read", mount, e);
        for entry in fs::read_dir(mount).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // `cpu` may be a link to `cpu,cpuacct`.
            let Ok(dir) = entry.path().canonicalize() else {
                continue;
            };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == HYBRID {
                tree.others.push(dir);
                continue;
            }
            let known: Vec<&str> = name.split(',').filter(|c| CONTROLLERS_V1.contains(c)).collect();
            if known.is_empty() || !dir.is_dir() {
                continue;
            }
            for controller in known {
                tree.controllers.insert(controller.to_string(), dir.clone());
            }
            if !tree.roots.contains(&dir) {
                tree.roots.push(dir);
            }
        }
        tree.roots.sort();
        Ok(tree)
    }

    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    pub fn has(&self, controller: &str) -> bool {
        self.controllers.contains_key(controller)
    }

    /// Controllers that pods need and that are not here.
    pub fn missing(&self) -> Vec<&'static str> {
        let needed: &[&'static str] = match self.version {
            CgroupVersion::V1 => &["cpu", "cpuacct", "cpuset", "memory"],
            CgroupVersion::V2 => &["cpu", "cpuset", "memory", "pids"],
        };
        needed.iter().copied().filter(|c| !self.has(c)).collect()
    }

    /// The kernel can limit swap. Version 2's root has no such file; any group below it will do.
    pub fn limits_swap(&self) -> bool {
        let Some(memory) = self.controllers.get("memory") else {
            return false;
        };
        match self.version {
            CgroupVersion::V1 => memory.join("memory.memsw.limit_in_bytes").exists(),
            CgroupVersion::V2 => subdirs(memory).iter().any(|dir| dir.join("memory.swap.max").exists()),
        }
    }

    /// The directory of a group in a controller's tree.
    pub(super) fn dir(&self, controller: &str, group: &str) -> Option<PathBuf> {
        Some(below(self.controllers.get(controller)?, group))
    }

    /// It is there in every tree.
    pub fn exists(&self, group: &str) -> bool {
        self.roots.iter().all(|root| below(root, group).is_dir())
    }

    /// Something runs in it, or it has groups of its own.
    pub fn is_used(&self, group: &str) -> bool {
        !self.children(group).is_empty() || !self.pids(group).is_empty()
    }

    /// Makes a group and those above it. Doing it again is fine.
    pub fn create(&self, group: &str) -> Result<()> {
        for root in &self.roots {
            let mut dir = root.clone();
            for name in parts(group) {
                if self.version == CgroupVersion::V2 {
                    self.pass_down_controllers(&dir);
                }
                let parent = dir.clone();
                dir.push(name);
                match fs::create_dir(&dir) {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                    Err(e) => return Err(file_error("mkdir", &dir, e)),
                }
                if self.controllers.get("cpuset") == Some(root) && self.version == CgroupVersion::V1 {
                    inherit_cpuset(&parent, &dir)?;
                }
            }
        }
        Ok(())
    }

    /// Groups below have only those controllers that the one above gives them. One that can't be given does not stop the
    /// others; setting its limits will say so.
    fn pass_down_controllers(&self, dir: &Path) {
        let all: Vec<String> = self.controllers.keys().map(|c| format!("+{c}")).collect();
        let file = dir.join("cgroup.subtree_control");
        if fs::write(&file, all.join(" ")).is_err() {
            for one in all {
                let _ = fs::write(&file, one);
            }
        }
    }

    /// Sets a group's limits; those of controllers that the kernel lacks are left out.
    pub fn set(&self, group: &str, limits: &Limits) -> Result<()> {
        let mut late: Option<(PathBuf, String)> = None;
        for Write {
            controller,
            file,
            value,
        } in writes(self.version, limits)
        {
            let Some(path) = self.dir(&controller, group).map(|dir| dir.join(&file)) else {
                continue;
            };
            match write(&path, &value) {
                Ok(()) => {}
                // With the old quota the new period could be more than the group above has: the quota first, then.
                Err(e) if file == "cpu.cfs_period_us" && e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                    late = Some((path, value));
                }
                Err(e) => return Err(file_error("write", &path, e)),
            }
        }
        match late {
            Some((path, value)) => write(&path, &value).map_err(|e| file_error("write", &path, e)),
            None => Ok(()),
        }
    }

    /// Kills what runs in a group and below it.
    pub fn kill(&self, group: &str) {
        // Never a whole tree.
        if parts(group).next().is_none() {
            return;
        }
        for pid in self.pids(group) {
            // Gone in between is as good.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Kills what runs in a group and removes it with those below it. An error while processes are still going.
    pub fn remove(&self, group: &str) -> Result<()> {
        if parts(group).next().is_none() {
            return Ok(());
        }
        self.kill(group);
        let roots = self.roots.iter().chain(&self.others);
        roots
            .map(|root| below(root, group))
            .try_for_each(|dir| remove_dirs(&dir))
    }

    /// All processes in a group and below it.
    pub fn pids(&self, group: &str) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for root in self.roots.iter().chain(&self.others) {
            processes(&below(root, group), &mut pids);
        }
        pids
    }

    /// The names of the groups right below one, in any tree.
    pub fn children(&self, group: &str) -> BTreeSet<String> {
        let dirs = self.roots.iter().map(|root| below(root, group));
        dirs.flat_map(|dir| subdirs(&dir))
            .filter_map(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()))
            .collect()
    }
}

fn parts(group: &str) -> impl Iterator<Item = &str> {
    group.split('/').filter(|part| !matches!(*part, "" | "." | ".."))
}

fn below(root: &Path, group: &str) -> PathBuf {
    parts(group).fold(root.to_path_buf(), |path, part| path.join(part))
}

pub(super) fn file_error(action: &'static str, path: &Path, source: io::Error) -> CgroupError {
    CgroupError::File {
        action,
        path: path.display().to_string(),
        source,
    }
}

pub(super) fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value)
}

/// With version 1 nothing can run in a group without CPUs and memory nodes, and a new one has none.
fn inherit_cpuset(parent: &Path, dir: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (from, to) = (parent.join(file), dir.join(file));
        let have = read(&to).unwrap_or_default();
        let Ok(given) = read(&from) else {
            continue;
        };
        if have.trim().is_empty() && !given.trim().is_empty() {
            write(&to, given.trim()).map_err(|e| file_error("write", &to, e))?;
        }
    }
    Ok(())
}

pub(super) fn subdirs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|e| e.path()).collect()
}

fn processes(dir: &Path, pids: &mut BTreeSet<i32>) {
    let listed = read(&dir.join("cgroup.procs")).unwrap_or_default();
    // Zero is a process that cannot be seen from here, and would mean this one's whole group to kill(2).
    pids.extend(
        listed
            .lines()
            .filter_map(|l| l.trim().parse::<i32>().ok())
            .filter(|pid| *pid > 1),
    );
    for below in subdirs(dir) {
        processes(&below, pids);
    }
}

fn remove_dirs(dir: &Path) -> Result<()> {
    for below in subdirs(dir) {
        remove_dirs(&below)?;
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(file_error("rmdir", dir, e)),
    }
}
