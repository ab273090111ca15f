//! One group in all trees: made, joined, killed, removed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{CgroupSpec, CgroupWrite, DeviceRule, Hierarchies, Version, below, device_filter};

/// What containers' limits need; version 2 has more, which are left alone.
const CONTROLLERS_V2: [&str; 6] = ["cpu", "cpuset", "io", "memory", "hugetlb", "pids"];
/// How often removing is tried while the last processes end, and the wait.
const REMOVALS: usize = 500;
const REMOVAL_WAIT: Duration = Duration::from_millis(10);
/// Killing is repeated for processes that were just being made.
const KILL_ROUNDS: usize = 100;

/// A group and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    pub hierarchies: &'a Hierarchies,
    pub path: &'a str,
}

impl CgroupSpec {
    pub(crate) fn group(&self) -> Group<'_> {
        Group {
            hierarchies: &self.hierarchies,
            path: &self.path,
        }
    }

    /// Makes the group with its limits. What is there already is used as it is.
    pub(crate) fn create(&self) -> io::Result<()> {
        let group = self.group();
        for dir in group.dirs() {
            make(
                &dir.root,
                self.path.as_str(),
                dir.inherits_cpuset,
                self.hierarchies.version,
            )?;
        }
        group.write(&self.writes)?;
        group.limit_devices(&self.devices)
    }
}

struct Dir {
    root: PathBuf,
    inherits_cpuset: bool,
}

impl Group<'_> {
    fn dirs(&self) -> impl Iterator<Item = Dir> + '_ {
        let v1 = self.hierarchies.version == Version::V1;
        self.hierarchies.trees.iter().map(move |tree| Dir {
            root: tree.root.clone(),
            inherits_cpuset: v1 && tree.controllers.iter().any(|c| c == "cpuset"),
        })
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.hierarchies.trees.iter().map(|tree| below(&tree.root, self.path))
    }

    /// Writes limits; those of controllers that the kernel lacks are left out.
    pub(crate) fn write(&self, writes: &[CgroupWrite]) -> io::Result<()> {
        let mut late: Option<(PathBuf, &str)> = None;
        for write in writes {
            let Some(dir) = self.hierarchies.dir(&write.controller, self.path) else {
                continue;
            };
            let path = dir.join(&write.file);
            match write_file(&path, &write.value) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound && dir.is_dir() => {}
                // With the old quota the new period could be more than the group above has: the quota first, then.
                Err(e) if write.file == "cpu.cfs_period_us" && e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                    late = Some((path, &write.value));
                }
                Err(e) => return Err(named(e, &path)),
            }
        }
        match late {
            Some((path, value)) => write_file(&path, value).map_err(|e| named(e, &path)),
            None => Ok(()),
        }
    }

    fn limit_devices(&self, rules: &[DeviceRule]) -> io::Result<()> {
        if rules == [DeviceRule::all()] {
            return Ok(());
        }
        match self.hierarchies.version {
            Version::V1 => {
                let Some(dir) = self.hierarchies.dir("devices", self.path) else {
                    return Ok(());
                };
                let (allow, deny) = (dir.join("devices.allow"), dir.join("devices.deny"));
                write_file(&deny, "a").map_err(|e| named(e, &deny))?;
                // A write is a rule.
                let mut file = OpenOptions::new().write(true).open(&allow)?;
                for rule in rules {
                    file.write_all(rule.line().as_bytes()).map_err(|e| named(e, &allow))?;
                }
                Ok(())
            }
            Version::V2 => match self.open_unified()? {
                Some(dir) => device_filter::attach(dir.as_fd(), rules),
                None => Ok(()),
            },
        }
    }

    fn open_unified(&self) -> io::Result<Option<OwnedFd>> {
        let dir = self.hierarchies.unified().map(|root| below(root, self.path));
        dir.map(|dir| File::open(dir).map(OwnedFd::from)).transpose()
    }

    /// The directory that a process can be made in at once.
    pub(crate) fn open_for_clone(&self) -> io::Result<Option<OwnedFd>> {
        match self.hierarchies.version {
            Version::V1 => Ok(None),
            Version::V2 => self.open_unified(),
        }
    }

    /// Moves this process into the group, in all trees.
    pub(crate) fn join(&self) -> io::Result<()> {
        for dir in self.paths() {
            let path = dir.join("cgroup.procs");
            write_file(&path, "0").map_err(|e| named(e, &path))?;
        }
        Ok(())
    }

    /// Processes in it, by any tree. A group that is not there has none.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.paths().flat_map(|dir| read_pids(&dir)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Kills everything in it. What is killed may still be on its way out.
    pub(crate) fn kill(&self) {
        if let Some(root) = self.hierarchies.unified() {
            // Linux 5.14; where there is no such file, the loop below does it.
            drop(write_file(&below(root, self.path).join("cgroup.kill"), "1"));
        }
        let freezer = self
            .hierarchies
            .dir("freezer", self.path)
            .map(|dir| dir.join("freezer.state"));
        for _ in 0..KILL_ROUNDS {
            let pids = self.pids();
            if pids.is_empty() {
                return;
            }
            // A frozen process can't make others meanwhile.
            let freeze = |state: &str| freezer.as_ref().map(|file| write_file(file, state));
            drop(freeze("FROZEN"));
            let mut alive = false;
            for pid in self.pids() {
                alive |= !is_ending(pid) && kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok();
            }
            drop(freeze("THAWED"));
            if !alive {
                return;
            }
        }
    }

    /// How many of its processes the kernel killed for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = match self.hierarchies.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let Some(dir) = self.hierarchies.dir("memory", self.path) else {
            return 0;
        };
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == "oom_kill")
            .and_then(|(_, count)| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes it and what a container made below it. `Ok(false)`: something in it has not ended yet.
    pub(crate) fn remove(&self) -> io::Result<bool> {
        let mut gone = true;
        for dir in self.paths() {
            gone &= remove_tree(&dir)?;
        }
        Ok(gone)
    }
}

/// Kills all processes in a group and in those below it, and removes them: for what a dead shim left behind. Blocking, for
/// as long as processes take to end; `Ok(false)`: some did not.
pub(crate) fn kill_and_remove(hierarchies: &Hierarchies, path: &str) -> io::Result<bool> {
    let group = Group { hierarchies, path };
    for _ in 0..REMOVALS {
        kill_tree(group);
        if group.remove()? {
            return Ok(true);
        }
        std::thread::sleep(REMOVAL_WAIT);
    }
    Ok(false)
}

fn kill_tree(group: Group<'_>) {
    let subgroup = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        dirs.map(|e| e.file_name().to_string_lossy().into_owned())
    };
    let names: BTreeSet<String> = group.paths().flat_map(subgroup).collect();
    for name in names {
        let path = format!("{}/{name}", group.path);
        kill_tree(Group { path: &path, ..group });
    }
    group.kill();
}

/// Makes a group and those above it in one tree.
fn make(root: &Path, path: &str, inherits_cpuset: bool, version: Version) -> io::Result<()> {
    let leaf = below(root, path);
    // Mostly everything above is there: the kubelet has made the pod's.
    let prepared = leaf.parent().is_some_and(|parent| match version {
        Version::V1 => !inherits_cpuset && parent.is_dir(),
        Version::V2 => false,
    });
    if prepared {
        return make_dir(&leaf);
    }
    let mut dir = root.to_path_buf();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if version == Version::V2 {
            pass_down_controllers(&dir);
        }
        let parent = dir.clone();
        dir.push(name);
        make_dir(&dir)?;
        if inherits_cpuset {
            inherit_cpuset(&parent, &dir)?;
        }
    }
    Ok(())
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|e| named(e, dir)),
    }
}

/// Groups below have only those controllers that the one above gives them. One that can't be given does not stop the others.
fn pass_down_controllers(dir: &Path) {
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    let (available, given) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    let missing = available
        .split_whitespace()
        .filter(|c| CONTROLLERS_V2.contains(c) && !given.split_whitespace().any(|g| g == *c));
    for controller in missing {
        drop(write_file(
            &dir.join("cgroup.subtree_control"),
            &format!("+{controller}"),
        ));
    }
}

/// With version 1 a new group has no CPUs and no memory nodes, and nothing can run in it.
fn inherit_cpuset(parent: &Path, dir: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(dir.join(file))?;
        if own.trim().is_empty() {
            let inherited = fs::read_to_string(parent.join(file))?;
            write_file(&dir.join(file), inherited.trim())?;
        }
    }
    Ok(())
}

fn remove_tree(dir: &Path) -> io::Result<bool> {
    match fs::remove_dir(dir) {
        Ok(()) => return Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
        Err(_) => {}
    }
    let mut gone = true;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            gone &= remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(gone),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(gone),
        Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(false),
        Err(e) => Err(named(e, dir)),
    }
}

fn read_pids(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // Zero is a process of a namespace that can't be seen from here: none of ours.
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid > 0)
        .collect()
}

/// It is dead already and waits for its parent.
fn is_ending(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X') | None)
}

fn write_file(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

fn named(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
