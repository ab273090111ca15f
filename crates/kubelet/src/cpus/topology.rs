//! The CPU topology (cores, caches, sockets, NUMA nodes), read once from `/sys`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{CpuError, CpuSet, CpuSetError};

/// Where a CPU is. Numbers are unique on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLocation {
    pub core: u32,
    /// The last level of cache that several cores share.
    pub cache: u32,
    pub socket: u32,
    pub numa: u32,
}

/// What CPUs can have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Core,
    Cache,
    Socket,
    Numa,
}

impl CpuLocation {
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::Core => self.core,
            Level::Cache => self.cache,
            Level::Socket => self.socket,
            Level::Numa => self.numa,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<u32, CpuLocation>,
}

impl Topology {
    pub fn new(cpus: BTreeMap<u32, CpuLocation>) -> Topology {
        Topology { cpus }
    }

    /// From a directory like `/sys/devices/system`. Without topology in /sys a CPU counts as a core of its own.
    pub fn read(system: &Path) -> Result<Topology, CpuError> {
        let online = system.join("cpu/online");
        let failed = |reason: String| CpuError::Topology {
            path: online.clone(),
            reason,
        };
        let text = fs::read_to_string(&online).map_err(|e| failed(e.to_string()))?;
        let all: CpuSet = text.parse().map_err(|e: CpuSetError| failed(e.to_string()))?;
        if all.is_empty() {
            return Err(failed("no CPU is online".to_string()));
        }
        let numas = numa_nodes(&system.join("node"));
        let place = |cpu: u32| {
            let own = system.join(format!("cpu/cpu{cpu}"));
            let siblings = list(&own.join("topology/thread_siblings_list"));
            let socket = number(&own.join("topology/physical_package_id")).unwrap_or(0);
            let numa = numas.iter().find(|(_, cpus)| cpus.contains(cpu));
            CpuLocation {
                // The kernel counts cores anew in every socket.
                core: siblings.and_then(|s| s.iter().next()).unwrap_or(cpu),
                cache: last_cache(&own.join("cache")).unwrap_or(socket),
                socket,
                numa: numa.map_or(0, |(number, _)| *number),
            }
        };
        Ok(Topology::new(all.iter().map(|cpu| (cpu, place(cpu))).collect()))
    }

    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    pub fn place(&self, cpu: u32) -> Option<&CpuLocation> {
        self.cpus.get(&cpu)
    }

    /// Those of `among` that belong to this core, socket …
    pub fn within(&self, among: &CpuSet, level: Level, number: u32) -> CpuSet {
        let here = |cpu: &u32| self.place(*cpu).is_some_and(|place| place.at(level) == number);
        among.iter().filter(here).collect()
    }

    /// The numbers of the cores, sockets … that CPUs of `among` belong to.
    pub fn numbers(&self, among: &CpuSet, level: Level) -> CpuSet {
        among
            .iter()
            .filter_map(|cpu| Some(self.place(cpu)?.at(level)))
            .collect()
    }

    pub fn count(&self, level: Level) -> usize {
        self.numbers(&self.all(), level).len()
    }

    /// How many threads a core has.
    pub fn cpus_per_core(&self) -> usize {
        (self.cpus.len() / self.count(Level::Core).max(1)).max(1)
    }
}

fn numa_nodes(folder: &Path) -> Vec<(u32, CpuSet)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let nodes = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, list(&entry.path().join("cpulist"))?))
    });
    nodes.collect()
}

/// The first CPU of those that share the third level stands for all of them.
fn last_cache(folder: &Path) -> Option<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let third = entries.filter(|entry| number(&entry.path().join("level")) == Some(3));
    let sharing = third.filter_map(|entry| list(&entry.path().join("shared_cpu_list")));
    sharing.filter_map(|cpus| cpus.iter().next()).min()
}

fn list(file: &Path) -> Option<CpuSet> {
    fs::read_to_string(file).ok()?.parse().ok()
}

fn number(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Sockets of NUMA nodes of cores of threads, numbered as Linux likes to: first threads first.
    pub(crate) fn machine(sockets: u32, numas: u32, cores: u32, threads: u32) -> Topology {
        let all_cores = sockets * numas * cores;
        let cpus = (0..all_cores * threads).map(|cpu| {
            let core = cpu % all_cores;
            let place = CpuLocation {
                core,
                cache: core / cores.max(2) * cores.max(2),
                socket: core / (numas * cores),
                numa: core / cores,
            };
            (cpu, place)
        });
        Topology::new(cpus.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(
            Topology::read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("cpu/online")
        );
        write("cpu/online", "0-3\n");
        for cpu in 0..4 {
            write(
                &format!("cpu/cpu{cpu}/topology/physical_package_id"),
                &format!("{}\n", cpu % 2),
            );
            let siblings = if cpu % 2 == 0 { "0,2" } else { "1,3" };
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
            write(&format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
            write(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), siblings);
        }
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3\n");
        let topology = Topology::read(dir.path()).unwrap();
        let second = CpuLocation {
            core: 1,
            cache: 1,
            socket: 1,
            numa: 1,
        };
        assert_eq!(topology.place(3), Some(&second));
        assert_eq!((topology.cpus_per_core(), topology.count(Level::Numa)), (2, 2));
        assert_eq!(topology.within(&topology.all(), Level::Socket, 0).to_string(), "0,2");
    }

    #[test]
    fn this_machine_is_read() {
        let topology = Topology::read(Path::new("/sys/devices/system")).unwrap();
        let here = std::thread::available_parallelism().unwrap().get();
        assert!(topology.all().len() >= here);
    }
}
