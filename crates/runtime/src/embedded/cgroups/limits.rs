//! Resources as the kernel's files: which file of which controller gets which text.

use serde::{Deserialize, Serialize};

use crate::cri::messages::LinuxContainerResources;

use super::Version;

/// A text for a file of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupWrite {
    pub controller: String,
    pub file: String,
    pub value: String,
}

impl CgroupWrite {
    fn new(file: &str, value: impl ToString) -> CgroupWrite {
        CgroupWrite {
            controller: file.split('.').next().unwrap_or_default().to_string(),
            file: file.to_string(),
            value: value.to_string(),
        }
    }
}

/// The limits of a new container, in the order in which the kernel takes them.
pub(crate) fn container_writes(
    version: Version,
    resources: &LinuxContainerResources,
    limits_swap: bool,
) -> Vec<CgroupWrite> {
    let mut writes = match version {
        Version::V1 => v1(resources, limits_swap),
        Version::V2 => v2(resources, limits_swap),
    };
    writes.extend(hugepages(version, resources));
    if version == Version::V2 {
        let unified = resources.unified.iter();
        writes.extend(unified.map(|(file, value)| CgroupWrite::new(file, value)));
    }
    writes
}

/// The same for a container that runs: a limit never crosses the other one on its way. `memory` is its memory limit so far.
pub(crate) fn update_writes(
    version: Version,
    resources: &LinuxContainerResources,
    limits_swap: bool,
    memory: Option<i64>,
) -> Vec<CgroupWrite> {
    let mut writes = container_writes(version, resources, limits_swap);
    let raises = memory.is_some_and(|memory| {
        let wanted = resources.memory_limit_in_bytes;
        memory >= 0 && (wanted < 0 || wanted > memory)
    });
    if version == Version::V1 && raises {
        let at = |file: &str| writes.iter().position(|w| w.file == file);
        if let (Some(limit), Some(both)) = (at("memory.limit_in_bytes"), at("memory.memsw.limit_in_bytes")) {
            writes.swap(limit, both);
        }
    }
    writes
}

fn v1(resources: &LinuxContainerResources, limits_swap: bool) -> Vec<CgroupWrite> {
    let mut writes = vec![];
    let mut add = |file: &str, value: i64| writes.push(CgroupWrite::new(file, value));
    if resources.cpu_shares != 0 {
        add("cpu.shares", resources.cpu_shares);
    }
    if resources.cpu_period != 0 {
        add("cpu.cfs_period_us", resources.cpu_period);
    }
    if resources.cpu_quota != 0 {
        add("cpu.cfs_quota_us", resources.cpu_quota);
    }
    if resources.memory_limit_in_bytes != 0 {
        add("memory.limit_in_bytes", resources.memory_limit_in_bytes);
    }
    if limits_swap && let Some(both) = memory_and_swap(resources) {
        add("memory.memsw.limit_in_bytes", both);
    }
    writes.extend(cpuset(resources));
    writes
}

fn v2(resources: &LinuxContainerResources, limits_swap: bool) -> Vec<CgroupWrite> {
    let mut writes = vec![];
    let mut add = |file: &str, value: String| writes.push(CgroupWrite::new(file, value));
    if resources.cpu_shares != 0 {
        add("cpu.weight", weight(resources.cpu_shares).to_string());
    }
    if resources.cpu_quota != 0 || resources.cpu_period != 0 {
        let quota = match resources.cpu_quota {
            ..=0 => "max".to_string(),
            quota => quota.to_string(),
        };
        let period = match resources.cpu_period {
            0 => 100_000,
            period => period,
        };
        add("cpu.max", format!("{quota} {period}"));
    }
    if resources.memory_limit_in_bytes != 0 {
        add("memory.max", or_max(resources.memory_limit_in_bytes));
    }
    if limits_swap && let Some(both) = memory_and_swap(resources) {
        let swap = match (both, resources.memory_limit_in_bytes) {
            (..0, _) => -1,
            (both, memory) => (both - memory.max(0)).max(0),
        };
        add("memory.swap.max", or_max(swap));
    }
    writes.extend(cpuset(resources));
    writes
}

/// Memory and swap together. A container with a memory limit does not swap unless somebody says so.
fn memory_and_swap(resources: &LinuxContainerResources) -> Option<i64> {
    match (resources.memory_swap_limit_in_bytes, resources.memory_limit_in_bytes) {
        (0, 0) => None,
        (0, memory) => Some(memory),
        (both, _) => Some(both),
    }
}

fn cpuset(resources: &LinuxContainerResources) -> impl Iterator<Item = CgroupWrite> {
    let files = [
        ("cpuset.cpus", &resources.cpuset_cpus),
        ("cpuset.mems", &resources.cpuset_mems),
    ];
    let set = files.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(file, value)| CgroupWrite::new(file, value))
        .collect::<Vec<_>>()
        .into_iter()
}

fn hugepages(version: Version, resources: &LinuxContainerResources) -> Vec<CgroupWrite> {
    let suffix = match version {
        Version::V1 => "limit_in_bytes",
        Version::V2 => "max",
    };
    let write = |limit: &crate::cri::messages::HugepageLimit| {
        CgroupWrite::new(&format!("hugetlb.{}.{suffix}", limit.page_size), limit.limit)
    };
    resources.hugepage_limits.iter().map(write).collect()
}

fn or_max(value: i64) -> String {
    match value {
        ..0 => "max".to_string(),
        _ => value.to_string(),
    }
}

/// Shares (2 to 262144) as a weight (1 to 10000).
fn weight(shares: i64) -> i64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::HugepageLimit;

    fn resources() -> LinuxContainerResources {
        LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 1024,
            memory_limit_in_bytes: 4096,
            cpuset_cpus: "0-1".to_string(),
            hugepage_limits: vec![HugepageLimit {
                page_size: "2MB".to_string(),
                limit: 7,
            }],
            unified: [("memory.oom.group".to_string(), "1".to_string())].into(),
            ..LinuxContainerResources::default()
        }
    }

    fn render(writes: &[CgroupWrite]) -> Vec<String> {
        writes
            .iter()
            .map(|w| format!("{}/{}={}", w.controller, w.file, w.value))
            .collect()
    }

    #[test]
    fn files_of_both_versions() {
        assert_eq!(
            render(&container_writes(Version::V1, &resources(), true)),
            [
                "cpu/cpu.shares=1024",
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=50000",
                "memory/memory.limit_in_bytes=4096",
                "memory/memory.memsw.limit_in_bytes=4096",
                "cpuset/cpuset.cpus=0-1",
                "hugetlb/hugetlb.2MB.limit_in_bytes=7",
            ]
        );
        assert_eq!(
            render(&container_writes(Version::V2, &resources(), true)),
            [
                "cpu/cpu.weight=39",
                "cpu/cpu.max=50000 100000",
                "memory/memory.max=4096",
                "memory/memory.swap.max=0",
                "cpuset/cpuset.cpus=0-1",
                "hugetlb/hugetlb.2MB.max=7",
                "memory/memory.oom.group=1",
            ]
        );
        assert!(container_writes(Version::V2, &LinuxContainerResources::default(), true).is_empty());
        assert!(container_writes(Version::V1, &LinuxContainerResources::default(), true).is_empty());
    }

    #[test]
    fn swap_is_beside_memory() {
        let with_swap = |both| LinuxContainerResources {
            memory_limit_in_bytes: 100,
            memory_swap_limit_in_bytes: both,
            ..LinuxContainerResources::default()
        };
        let v2 = |both| render(&container_writes(Version::V2, &with_swap(both), true))[1].clone();
        assert_eq!(
            [v2(150), v2(-1), v2(100)],
            ["50", "max", "0"].map(|s| format!("memory/memory.swap.max={s}"))
        );
        assert_eq!(container_writes(Version::V1, &with_swap(150), false).len(), 1);
    }

    #[test]
    fn limits_do_not_cross_when_they_change() {
        let order = |memory| {
            let writes = update_writes(Version::V1, &resources(), true, memory);
            writes
                .iter()
                .filter(|w| w.controller == "memory")
                .map(|w| w.file.clone())
                .collect::<Vec<_>>()
        };
        let (limit, both) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
        assert_eq!(order(Some(1024)), [both, limit]);
        assert_eq!(order(Some(8192)), [limit, both]);
        assert_eq!(order(Some(-1)), [limit, both]);
        assert_eq!(order(None), [limit, both]);
    }
}
