//! Observes the eviction signals from the node's files. Paths are below `root`, which is `/` except in tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::signals::{Observation, Observations, Signal};
use crate::gc::disk::Disk;

/// A cgroup's working set and its limit, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    pub working_set: u64,
    pub limit: Option<u64>,
}

/// Where the node keeps what is watched.
#[derive(Clone, Debug)]
pub struct Places {
    pub root: PathBuf,
    /// The cgroup that all pods are in, as a path below the hierarchy's root: `kubepods`.
    pub pods_cgroup: String,
}

impl Places {
    /// Memory and processes; what can't be read is left out.
    pub fn observe(&self) -> Observations {
        let mut seen = Observations::new();
        if let Ok((available, capacity)) = self.memory() {
            seen.insert(Signal::MemoryAvailable, Observation::of(available, capacity));
        }
        if let Ok(CgroupMemory {
            working_set,
            limit: Some(limit),
        }) = self.cgroup_memory(&self.pods_cgroup)
        {
            let available = limit.saturating_sub(working_set);
            let observed = Observation::of(available, available.saturating_add(working_set));
            seen.insert(Signal::AllocatableMemoryAvailable, observed);
        }
        if let Ok((available, capacity)) = self.processes() {
            seen.insert(Signal::PidAvailable, Observation::of(available, capacity));
        }
        seen
    }

    /// Available and all memory. What is used counts without files that were not used for a while: the kernel would
    /// drop those first.
    pub fn memory(&self) -> io::Result<(u64, u64)> {
        let info = self.read("proc/meminfo")?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib * 1024).ok_or_else(|| invalid(name))
        };
        let total = field("MemTotal")?;
        let working_set = match self.cgroup_memory("") {
            Ok(root) => root.working_set,
            // The root of the second version has no use of its own.
            Err(_) => {
                let used = total.saturating_sub(field("MemFree")?);
                used.saturating_sub(field("Inactive(file)")?)
            }
        };
        Ok((total.saturating_sub(working_set), total))
    }

    /// Both versions of cgroups.
    pub fn cgroup_memory(&self, cgroup: &str) -> io::Result<CgroupMemory> {
        let first = Path::new("sys/fs/cgroup/memory").join(cgroup);
        let (folder, usage, limit, inactive) = match self.root.join(&first).join("memory.usage_in_bytes").exists() {
            true => (
                first,
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                "total_inactive_file",
            ),
            false => (
                Path::new("sys/fs/cgroup").join(cgroup),
                "memory.current",
                "memory.max",
                "inactive_file",
            ),
        };
        let read = |name: &str| self.read(folder.join(name));
        let usage: u64 = read(usage)?.trim().parse().map_err(|_| invalid(usage))?;
        let stat = read("memory.stat")?;
        let inactive = stat
            .lines()
            .find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
        // The first version says "none" with the largest number of whole pages.
        let limit = read(limit).ok().and_then(|text| text.trim().parse::<u64>().ok());
        Ok(CgroupMemory {
            working_set: usage.saturating_sub(inactive.unwrap_or_default()),
            limit: limit.filter(|limit| *limit < 1 << 62),
        })
    }

    /// Process ids that are left and all there are.
    pub fn processes(&self) -> io::Result<(u64, u64)> {
        let number = |path: &str| self.read(path)?.trim().parse::<u64>().map_err(|_| invalid(path));
        let mut most = number("proc/sys/kernel/pid_max")?;
        if let Ok(threads) = number("proc/sys/kernel/threads-max") {
            most = most.min(threads);
        }
        let load = self.read("proc/loadavg")?;
        let running = load.split_whitespace().nth(3).and_then(|field| field.split_once('/'));
        let running: u64 = running
            .and_then(|(_, all)| all.parse().ok())
            .ok_or_else(|| invalid("proc/loadavg"))?;
        Ok((most.saturating_sub(running), most))
    }

    fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }
}

/// Adds what a file system has left.
pub fn add_disk(seen: &mut Observations, disk: &Disk, available: Signal, inodes: Signal) {
    seen.insert(available, Observation::of(disk.available, disk.capacity));
    // Some file systems make inodes as they need them and say 0.
    if disk.inodes > 0 {
        seen.insert(inodes, Observation::of(disk.inodes_free, disk.inodes));
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no number in {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, Places) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let places = Places {
            root: root.path().to_path_buf(),
            pods_cgroup: "kubepods".to_string(),
        };
        (root, places)
    }

    const MEMINFO: &str =
        "MemTotal:       1000 kB\nMemFree:        300 kB\nMemAvailable: 1 kB\nInactive(file):  200 kB\n";

    #[test]
    fn memory_on_both_versions_of_cgroups() {
        let (_keep, first) = node(&[
            ("proc/meminfo", MEMINFO),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "614400\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 5\ntotal_inactive_file 102400\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/kubepods/memory.usage_in_bytes", "300\n"),
            ("sys/fs/cgroup/memory/kubepods/memory.stat", "total_inactive_file 100\n"),
            ("sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes", "1000\n"),
        ]);
        assert_eq!(first.memory().unwrap(), ((1000 - 500) * 1024, 1000 * 1024));
        assert_eq!(first.cgroup_memory("").unwrap().limit, None);
        let seen = first.observe();
        assert_eq!(seen[&Signal::AllocatableMemoryAvailable], Observation::of(800, 1000));
        assert!(!seen.contains_key(&Signal::PidAvailable));

        let (_keep, second) = node(&[
            ("proc/meminfo", MEMINFO),
            ("sys/fs/cgroup/memory.stat", "inactive_file 102400\n"),
            ("sys/fs/cgroup/kubepods/memory.current", "300\n"),
            ("sys/fs/cgroup/kubepods/memory.stat", "anon 1\ninactive_file 400\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "max\n"),
        ]);
        assert_eq!(second.memory().unwrap(), (500 * 1024, 1000 * 1024));
        let pods = second.cgroup_memory("kubepods").unwrap();
        assert_eq!((pods.working_set, pods.limit), (0, None));
        assert!(!second.observe().contains_key(&Signal::AllocatableMemoryAvailable));
    }

    #[test]
    fn process_ids() {
        let (_keep, places) = node(&[
            ("proc/sys/kernel/pid_max", "32768\n"),
            ("proc/sys/kernel/threads-max", "1000\n"),
            ("proc/loadavg", "0.10 0.20 0.30 2/345 6789\n"),
        ]);
        assert_eq!(places.processes().unwrap(), (655, 1000));
    }

    #[test]
    fn a_disk_without_inodes_is_not_short_of_them() {
        let mut seen = Observations::new();
        let disk = Disk {
            capacity: 10,
            available: 5,
            ..Disk::default()
        };
        add_disk(&mut seen, &disk, Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
        assert_eq!(seen.len(), 1);
    }

    #[test]
    fn this_machine() {
        let here = Places {
            root: PathBuf::from("/"),
            pods_cgroup: "kubepods".to_string(),
        };
        let (available, all) = here.memory().unwrap();
        assert!(available > 0 && available <= all);
    }
}
