//! All counters in a cgroup's files, for metrics. Each file is read once; what a kernel does not report is none, so that it
//! can be left out where zero would be wrong.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::spec::CgroupVersion;

use super::Tree;
use super::tree::{read, subdirs};
use super::usage::{Pairs, number};

/// Version 1 counts user and system time in these.
const TICK_NS: u64 = 10_000_000;
/// Version 1 knows no word for "no limit": it is a number of bytes close to the largest there is.
const UNLIMITED: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub cpu_ns: Option<u64>,
    pub cpu_user_ns: Option<u64>,
    pub cpu_system_ns: Option<u64>,
    pub cpu_periods: Option<u64>,
    pub cpu_throttled_periods: Option<u64>,
    pub cpu_throttled_ns: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// Microseconds in each period; none where there is no limit.
    pub cpu_quota: Option<u64>,
    pub cpu_period: Option<u64>,
    /// Bytes in use, caches included.
    pub memory: Option<u64>,
    pub memory_working_set: Option<u64>,
    pub memory_rss: Option<u64>,
    pub memory_cache: Option<u64>,
    pub memory_mapped: Option<u64>,
    pub memory_swap: Option<u64>,
    pub memory_peak: Option<u64>,
    /// How often the limit was hit.
    pub memory_failures: Option<u64>,
    /// Zero is no limit.
    pub memory_limit: Option<u64>,
    pub memory_reservation: Option<u64>,
    /// Of swap alone with version 2, of memory and swap together with version 1.
    pub swap_limit: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub oom_kills: Option<u64>,
    pub threads: Option<u64>,
    /// Zero is no limit.
    pub threads_max: Option<u64>,
}

impl Tree {
    /// The counters of a cgroup; none where it does not exist.
    pub fn counters(&self, group: &str) -> Option<Counters> {
        self.main_dir(group).filter(|dir| dir.is_dir())?;
        let dir = |controller: &str| self.dir(controller, group);
        let mut counters = Counters::default();
        match self.version() {
            CgroupVersion::V1 => {
                counters.read_cpu_v1(dir("cpuacct"), dir("cpu"));
                counters.read_memory_v1(dir("memory"));
            }
            CgroupVersion::V2 => {
                counters.read_cpu_v2(dir("cpu"));
                counters.read_memory_v2(dir("memory"));
            }
        }
        counters.threads = number(dir("pids"), "pids.current");
        counters.threads_max = limit(dir("pids"), "pids.max");
        Some(counters)
    }

    /// How much swap a group uses, and may use at most if that is known.
    pub fn swap(&self, group: &str) -> Option<(u64, Option<u64>)> {
        let dir = self.dir("memory", group);
        match self.version() {
            // The limit there is of memory and swap together.
            CgroupVersion::V1 => Some((Pairs::read(dir, "memory.stat").find("total_swap")?, None)),
            CgroupVersion::V2 => {
                let used = number(dir.clone(), "memory.swap.current")?;
                Some((used, number(dir, "memory.swap.max")))
            }
        }
    }

    /// The names of the groups right below one, looked for in one tree alone.
    pub fn names_below(&self, group: &str) -> Vec<String> {
        let dirs = self.main_dir(group).map(|dir| subdirs(&dir)).unwrap_or_default();
        dirs.iter()
            .filter_map(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()))
            .collect()
    }

    /// The processes of a group itself, not of those below it; none where there is no such group.
    pub fn own_pids(&self, group: &str) -> Option<Vec<u32>> {
        let listed = read(&self.main_dir(group)?.join("cgroup.procs")).ok()?;
        // Zero is a process that cannot be seen from here.
        let pids = listed.lines().filter_map(|line| line.trim().parse().ok());
        Some(pids.filter(|pid| *pid > 0).collect())
    }

    /// When a group was made. Its directory changes with every group below it, this file of it hardly ever.
    pub fn created(&self, group: &str) -> Option<SystemTime> {
        let dir = self.main_dir(group)?;
        let file = match self.version() {
            CgroupVersion::V1 => "cgroup.clone_children",
            CgroupVersion::V2 => "cgroup.events",
        };
        let changed = |path: PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        let times = [changed(dir.join(file)), changed(dir)];
        times.into_iter().flatten().min()
    }

    fn main_dir(&self, group: &str) -> Option<PathBuf> {
        self.dir("memory", group).or_else(|| self.dir("cpu", group))
    }
}

impl Counters {
    fn read_cpu_v1(&mut self, cpuacct: Option<PathBuf>, cpu: Option<PathBuf>) {
        self.cpu_ns = number(cpuacct.clone(), "cpuacct.usage");
        let times = Pairs::read(cpuacct, "cpuacct.stat");
        self.cpu_user_ns = times.find("user").map(|ticks| ticks.saturating_mul(TICK_NS));
        self.cpu_system_ns = times.find("system").map(|ticks| ticks.saturating_mul(TICK_NS));
        self.cpu_shares = number(cpu.clone(), "cpu.shares");
        // No limit is -1, which is no such number.
        self.cpu_quota = number(cpu.clone(), "cpu.cfs_quota_us");
        self.cpu_period = number(cpu.clone(), "cpu.cfs_period_us");
        let stat = Pairs::read(cpu, "cpu.stat");
        self.cpu_periods = stat.find("nr_periods");
        self.cpu_throttled_periods = stat.find("nr_throttled");
        self.cpu_throttled_ns = stat.find("throttled_time");
    }

    fn read_cpu_v2(&mut self, cpu: Option<PathBuf>) {
        self.cpu_shares = number(cpu.clone(), "cpu.weight").map(shares);
        let max = cpu.as_ref().and_then(|dir| read(&dir.join("cpu.max")).ok());
        if let Some((quota, period)) = max.as_deref().and_then(|text| text.trim().split_once(' ')) {
            (self.cpu_quota, self.cpu_period) = (quota.parse().ok(), period.parse().ok());
        }
        let stat = Pairs::read(cpu, "cpu.stat");
        let time = |name: &str| stat.find(name).map(|micros| micros.saturating_mul(1000));
        self.cpu_ns = time("usage_usec");
        self.cpu_user_ns = time("user_usec");
        self.cpu_system_ns = time("system_usec");
        self.cpu_periods = stat.find("nr_periods");
        self.cpu_throttled_periods = stat.find("nr_throttled");
        self.cpu_throttled_ns = time("throttled_usec");
    }

    fn read_memory_v1(&mut self, dir: Option<PathBuf>) {
        let stat = Pairs::read(dir.clone(), "memory.stat");
        self.memory = number(dir.clone(), "memory.usage_in_bytes");
        self.memory_peak = number(dir.clone(), "memory.max_usage_in_bytes");
        self.memory_failures = number(dir.clone(), "memory.failcnt");
        self.memory_limit = limit(dir.clone(), "memory.limit_in_bytes");
        self.memory_reservation = limit(dir.clone(), "memory.soft_limit_in_bytes");
        self.swap_limit = limit(dir.clone(), "memory.memsw.limit_in_bytes");
        self.set_working_set(stat.find("total_inactive_file"));
        self.memory_rss = stat.find("total_rss");
        self.memory_cache = stat.find("total_cache");
        self.memory_mapped = stat.find("total_mapped_file");
        self.memory_swap = stat.find("total_swap");
        self.page_faults = stat.find("total_pgfault");
        self.major_page_faults = stat.find("total_pgmajfault");
        self.oom_kills = Pairs::read(dir, "memory.oom_control").find("oom_kill");
    }

    fn read_memory_v2(&mut self, dir: Option<PathBuf>) {
        let stat = Pairs::read(dir.clone(), "memory.stat");
        self.memory = number(dir.clone(), "memory.current");
        self.memory_peak = number(dir.clone(), "memory.peak");
        self.memory_limit = limit(dir.clone(), "memory.max");
        self.memory_reservation = limit(dir.clone(), "memory.min");
        self.memory_swap = number(dir.clone(), "memory.swap.current");
        self.swap_limit = limit(dir.clone(), "memory.swap.max");
        self.set_working_set(stat.find("inactive_file"));
        self.memory_rss = stat.find("anon");
        self.memory_cache = stat.find("file");
        self.memory_mapped = stat.find("file_mapped");
        self.page_faults = stat.find("pgfault");
        self.major_page_faults = stat.find("pgmajfault");
        let events = Pairs::read(dir, "memory.events");
        self.memory_failures = events.find("max");
        self.oom_kills = events.find("oom_kill");
    }

    /// What is used but for what could be dropped at once.
    fn set_working_set(&mut self, inactive: Option<u64>) {
        self.memory_working_set = self.memory.map(|bytes| bytes.saturating_sub(inactive.unwrap_or(0)));
    }
}

/// A limit; zero where there is none.
fn limit(dir: Option<PathBuf>, file: &str) -> Option<u64> {
    let text = read(&dir?.join(file)).ok()?;
    match text.trim() {
        "max" => Some(0),
        number => number.parse().ok().map(|n| if n < UNLIMITED { n } else { 0 }),
    }
}

/// A weight (1 to 10000) as shares (2 to 262144).
fn shares(weight: u64) -> u64 {
    2 + (weight.clamp(1, 10_000) - 1) * 262_142 / 9_999
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(controllers: &[&str], files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        controllers
            .iter()
            .for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::at(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn files_of_version_1() {
        let (_dir, tree) = tree(
            &["cpu", "cpuacct", "memory", "pids"],
            &[
                ("cpuacct/x/cpuacct.usage", "123\n"),
                ("cpuacct/x/cpuacct.stat", "user 2\nsystem 3\n"),
                ("cpu/x/cpu.shares", "512\n"),
                ("cpu/x/cpu.cfs_quota_us", "-1\n"),
                ("cpu/x/cpu.cfs_period_us", "100000\n"),
                ("cpu/x/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 5000\n"),
                ("memory/x/memory.usage_in_bytes", "1000\n"),
                ("memory/x/memory.max_usage_in_bytes", "2000\n"),
                ("memory/x/memory.failcnt", "6\n"),
                ("memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/x/memory.soft_limit_in_bytes", "77\n"),
                (
                    "memory/x/memory.stat",
                    "cache 1\ntotal_cache 400\ntotal_rss 600\ntotal_swap 9\ntotal_inactive_file 300\n",
                ),
                ("memory/x/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
                ("memory/x/cgroup.procs", "0\n41\n42\n"),
                ("memory/x/inner/cgroup.procs", "43\n"),
                ("pids/x/pids.current", "5\n"),
                ("pids/x/pids.max", "max\n"),
            ],
        );
        let expected = Counters {
            cpu_ns: Some(123),
            cpu_user_ns: Some(20_000_000),
            cpu_system_ns: Some(30_000_000),
            cpu_periods: Some(10),
            cpu_throttled_periods: Some(4),
            cpu_throttled_ns: Some(5000),
            cpu_shares: Some(512),
            cpu_period: Some(100_000),
            memory: Some(1000),
            memory_working_set: Some(700),
            memory_rss: Some(600),
            memory_cache: Some(400),
            memory_swap: Some(9),
            memory_peak: Some(2000),
            memory_failures: Some(6),
            memory_limit: Some(0),
            memory_reservation: Some(77),
            oom_kills: Some(2),
            threads: Some(5),
            threads_max: Some(0),
            ..Counters::default()
        };
        assert_eq!(tree.counters("/x"), Some(expected));
        assert_eq!((tree.counters("/none"), tree.swap("/none")), (None, None));
        assert_eq!(tree.swap("/x"), Some((9, None)));
        assert_eq!(tree.own_pids("/x"), Some(vec![41, 42]));
        assert_eq!(
            (tree.names_below("/x"), tree.own_pids("/none")),
            (vec!["inner".to_string()], None)
        );
        assert!(tree.created("/x").is_some() && tree.created("/none").is_none());
    }

    #[test]
    fn files_of_version_2() {
        let (dir, tree) = tree(
            &["x", "bare"],
            &[
                ("cgroup.controllers", "cpu memory pids\n"),
                ("x/cpu.weight", "39\n"),
                ("x/cpu.max", "50000 100000\n"),
                (
                    "x/cpu.stat",
                    "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_periods 10\nnr_throttled 4\nthrottled_usec 5\n",
                ),
                ("x/memory.current", "1000\n"),
                ("x/memory.max", "4096\n"),
                ("x/memory.min", "0\n"),
                ("x/memory.swap.current", "8\n"),
                ("x/memory.swap.max", "max\n"),
                (
                    "x/memory.stat",
                    "anon 600\nfile 400\nfile_mapped 20\ninactive_file 300\npgfault 7\npgmajfault 1\n",
                ),
                ("x/memory.events", "low 0\nhigh 0\nmax 6\noom 3\noom_kill 2\n"),
                ("x/pids.current", "5\n"),
            ],
        );
        let expected = Counters {
            cpu_ns: Some(7000),
            cpu_user_ns: Some(4000),
            cpu_system_ns: Some(3000),
            cpu_periods: Some(10),
            cpu_throttled_periods: Some(4),
            cpu_throttled_ns: Some(5000),
            cpu_shares: Some(998),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory: Some(1000),
            memory_working_set: Some(700),
            memory_rss: Some(600),
            memory_cache: Some(400),
            memory_mapped: Some(20),
            memory_swap: Some(8),
            memory_failures: Some(6),
            memory_limit: Some(4096),
            memory_reservation: Some(0),
            swap_limit: Some(0),
            page_faults: Some(7),
            major_page_faults: Some(1),
            oom_kills: Some(2),
            threads: Some(5),
            ..Counters::default()
        };
        assert_eq!(tree.counters("/x"), Some(expected));
        assert_eq!((tree.swap("/x"), tree.swap("/bare")), (Some((8, None)), None));
        fs::write(dir.path().join("x/memory.swap.max"), "100\n").unwrap();
        assert_eq!(tree.swap("/x"), Some((8, Some(100))));
        // A cgroup without counters.
        assert_eq!(tree.counters("/bare"), Some(Counters::default()));
    }
}
