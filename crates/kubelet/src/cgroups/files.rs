//! Limits as the kernel's files: which file of which controller gets which text.

use crate::spec::CgroupVersion;

use super::Limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub controller: String,
    pub file: String,
    pub value: String,
}

/// What to write, in order.
pub(super) fn writes(version: CgroupVersion, limits: &Limits) -> Vec<Write> {
    let mut out = vec![];
    let mut add = |controller: &str, file: &str, value: String| {
        out.push(Write {
            controller: controller.to_string(),
            file: file.to_string(),
            value,
        });
    };
    match version {
        CgroupVersion::V1 => {
            if let Some(shares) = limits.cpu_shares {
                add("cpu", "cpu.shares", shares.to_string());
            }
            if let Some((quota, period)) = limits.cpu_quota {
                add("cpu", "cpu.cfs_period_us", period.to_string());
                add("cpu", "cpu.cfs_quota_us", quota.to_string());
            }
            if let Some(bytes) = limits.memory {
                add("memory", "memory.limit_in_bytes", bytes.to_string());
            }
        }
        CgroupVersion::V2 => {
            if let Some(shares) = limits.cpu_shares {
                add("cpu", "cpu.weight", weight(shares).to_string());
            }
            if let Some((quota, period)) = limits.cpu_quota {
                add("cpu", "cpu.max", format!("{} {period}", or_max(quota)));
            }
            if let Some(bytes) = limits.memory {
                add("memory", "memory.max", or_max(bytes));
            }
        }
    }
    if let Some(pids) = limits.pids {
        // Zero would be a group that nothing can be in.
        add("pids", "pids.max", or_max(if pids == 0 { 1 } else { pids }));
    }
    let suffix = match version {
        CgroupVersion::V1 => "limit_in_bytes",
        CgroupVersion::V2 => "max",
    };
    for (size, bytes) in &limits.hugepages {
        add("hugetlb", &format!("hugetlb.{size}.{suffix}"), bytes.to_string());
    }
    if version == CgroupVersion::V2 {
        for (file, value) in &limits.unified {
            let controller = file.split('.').next().unwrap_or_default();
            add(controller, file, value.clone());
        }
    }
    out
}

fn or_max(value: i64) -> String {
    match value {
        ..0 => "max".to_string(),
        _ => value.to_string(),
    }
}

/// Shares (2 to 262144) as a weight (1 to 10000).
pub(super) fn weight(shares: i64) -> i64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            cpu_shares: Some(1024),
            cpu_quota: Some((50_000, 100_000)),
            memory: Some(4096),
            pids: Some(0),
            hugepages: [("2MB".to_string(), 7)].into(),
            unified: [("memory.low".to_string(), "9".to_string())].into(),
        }
    }

    fn shown(version: CgroupVersion, limits: &Limits) -> Vec<String> {
        let one = |w: &Write| format!("{}/{}={}", w.controller, w.file, w.value);
        writes(version, limits).iter().map(one).collect()
    }

    #[test]
    fn files_of_both_versions() {
        assert_eq!(
            shown(CgroupVersion::V1, &limits()),
            [
                "cpu/cpu.shares=1024",
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=50000",
                "memory/memory.limit_in_bytes=4096",
                "pids/pids.max=1",
                "hugetlb/hugetlb.2MB.limit_in_bytes=7",
            ]
        );
        assert_eq!(
            shown(CgroupVersion::V2, &limits()),
            [
                "cpu/cpu.weight=39",
                "cpu/cpu.max=50000 100000",
                "memory/memory.max=4096",
                "pids/pids.max=1",
                "hugetlb/hugetlb.2MB.max=7",
                "memory/memory.low=9",
            ]
        );
        let free = Limits::default().or_unlimited();
        assert_eq!(
            shown(CgroupVersion::V1, &free),
            [
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=-1",
                "memory/memory.limit_in_bytes=-1"
            ]
        );
        assert_eq!(
            shown(CgroupVersion::V2, &free),
            ["cpu/cpu.max=max 100000", "memory/memory.max=max"]
        );
        assert!(writes(CgroupVersion::V2, &Limits::default()).is_empty());
    }

    #[test]
    fn weights() {
        assert_eq!(
            [0, 2, 102, 1024, 262_144, i64::MAX].map(weight),
            [1, 1, 4, 39, 10_000, 10_000]
        );
    }
}
