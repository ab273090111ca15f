//! What a cgroup has used, and how often it was throttled or out of memory.

use std::path::{Path, PathBuf};

use crate::spec::CgroupVersion;

use super::tree::{file_error, read};
use super::{Result, Tree};

/// Counters of a missing controller are zero or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time so far.
    pub cpu_ns: u64,
    /// Enforcement periods, throttled periods, and throttled time.
    pub cpu_periods: u64,
    pub cpu_throttled_periods: u64,
    pub cpu_throttled_ns: u64,
    /// Microseconds in a period of microseconds.
    pub cpu_quota: Option<(i64, i64)>,
    /// Bytes in use, caches included.
    pub memory: u64,
    /// Without what can be dropped at once: this is what counts against eviction.
    pub memory_working_set: u64,
    pub memory_rss: u64,
    pub memory_limit: Option<u64>,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Processes the kernel killed because memory ran out; with version 1 those of groups below are not counted.
    pub oom_kills: u64,
    pub processes: u64,
}

impl Tree {
    /// What a group has used. Where a whole machine's memory is asked for (version 2's root has no such file), it is zero.
    pub fn usage(&self, group: &str) -> Result<Usage> {
        let dir = |controller: &str| self.dir(controller, group);
        let mut usage = Usage::default();
        // A single file that can't be read is no error: kernels differ. A group that is not there is.
        if let Some(own) = dir("cpu").or_else(|| dir("memory")) {
            std::fs::metadata(&own).map_err(|e| file_error("read", &own, e))?;
        }
        match self.version() {
            CgroupVersion::V1 => {
                read_cpu_v1(&mut usage, dir("cpuacct"), dir("cpu"));
                read_memory_v1(&mut usage, dir("memory"));
            }
            CgroupVersion::V2 => {
                read_cpu_v2(&mut usage, dir("cpu"));
                read_memory_v2(&mut usage, dir("memory"));
            }
        }
        usage.processes = number(dir("pids"), "pids.current").unwrap_or(0);
        Ok(usage)
    }
}

fn read_cpu_v1(usage: &mut Usage, cpuacct: Option<PathBuf>, cpu: Option<PathBuf>) {
    usage.cpu_ns = number(cpuacct, "cpuacct.usage").unwrap_or(0);
    let of_quota = |file| number(cpu.clone(), file).and_then(|n| i64::try_from(n).ok());
    // No limit is -1, which is no such number.
    usage.cpu_quota = of_quota("cpu.cfs_quota_us").zip(of_quota("cpu.cfs_period_us"));
    let stat = Pairs::read(cpu, "cpu.stat");
    usage.cpu_periods = stat.get("nr_periods");
    usage.cpu_throttled_periods = stat.get("nr_throttled");
    usage.cpu_throttled_ns = stat.get("throttled_time");
}

fn read_cpu_v2(usage: &mut Usage, cpu: Option<PathBuf>) {
    let quota = cpu.as_ref().and_then(|dir| read(&dir.join("cpu.max")).ok());
    usage.cpu_quota = quota.and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        quota.parse().ok().zip(period.parse().ok())
    });
    let stat = Pairs::read(cpu, "cpu.stat");
    usage.cpu_ns = stat.get("usage_usec").saturating_mul(1000);
    usage.cpu_periods = stat.get("nr_periods");
    usage.cpu_throttled_periods = stat.get("nr_throttled");
    usage.cpu_throttled_ns = stat.get("throttled_usec").saturating_mul(1000);
}

fn read_memory_v1(usage: &mut Usage, dir: Option<PathBuf>) {
    let stat = Pairs::read(dir.clone(), "memory.stat");
    usage.memory = number(dir.clone(), "memory.usage_in_bytes").unwrap_or(0);
    usage.memory_working_set = usage.memory.saturating_sub(stat.get("total_inactive_file"));
    usage.memory_rss = stat.get("total_rss");
    usage.page_faults = stat.get("total_pgfault");
    usage.major_page_faults = stat.get("total_pgmajfault");
    // No limit is a number of bytes close to the largest there is.
    usage.memory_limit = number(dir.clone(), "memory.limit_in_bytes").filter(|limit| *limit < 1 << 62);
    usage.oom_kills = Pairs::read(dir, "memory.oom_control").get("oom_kill");
}

fn read_memory_v2(usage: &mut Usage, dir: Option<PathBuf>) {
    let stat = Pairs::read(dir.clone(), "memory.stat");
    usage.memory = number(dir.clone(), "memory.current").unwrap_or(0);
    usage.memory_working_set = usage.memory.saturating_sub(stat.get("inactive_file"));
    usage.memory_rss = stat.get("anon");
    usage.page_faults = stat.get("pgfault");
    usage.major_page_faults = stat.get("pgmajfault");
    usage.memory_limit = number(dir.clone(), "memory.max");
    usage.oom_kills = Pairs::read(dir, "memory.events").get("oom_kill");
}

pub(super) fn number(dir: Option<PathBuf>, file: &str) -> Option<u64> {
    read(&dir?.join(file)).ok()?.trim().parse().ok()
}

/// A file of lines `name number`.
pub(super) struct Pairs(String);

impl Pairs {
    pub(super) fn read(dir: Option<PathBuf>, file: &str) -> Pairs {
        let text = dir.and_then(|dir: PathBuf| read(Path::new(&dir.join(file))).ok());
        Pairs(text.unwrap_or_default())
    }

    fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or(0)
    }

    pub(super) fn find(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = lines.find(|(key, _)| *key == name)?;
        value.trim().parse().ok()
    }
}
