//! The facts of the node that this process runs on, from its configuration and its kernel.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use orlop_api::quantity::{Format, Quantity};
use orlop_api::resources::ResourceList;
use orlop_runtime::cri::messages::CgroupDriver;

use super::{CgroupLayout, CgroupVersion, MemoryQos, NodeFacts, Swap, resources};
use crate::cgroups::Tree;
use crate::config::Config;
use crate::node::Machine;

/// What the facts of a node come from.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub name: &'a str,
    /// The main one first.
    pub addresses: &'a [IpAddr],
    pub root_dir: &'a Path,
    pub config: &'a Config,
    pub machine: &'a Machine,
    pub capacity: &'a ResourceList,
    pub allocatable: &'a ResourceList,
    pub cgroups: &'a Tree,
    /// What the runtime says; without, what is configured.
    pub driver: Option<CgroupDriver>,
}

impl NodeFacts {
    pub fn read(here: &Here<'_>) -> NodeFacts {
        let config = here.config;
        let version = here.cgroups.version();
        let setting = |name: &str| config.document.get(name);
        let period = config.cpu_cfs_quota_period;
        NodeFacts {
            name: here.name.to_string(),
            addresses: here.addresses.to_vec(),
            root_dir: here.root_dir.to_path_buf(),
            pod_logs_dir: config.pod_logs_dir.clone(),
            cluster_dns: config.cluster_dns.iter().filter_map(|ip| ip.parse().ok()).collect(),
            cluster_domain: config.cluster_domain.clone(),
            resolv_conf: read_resolv_conf(&config.resolv_conf),
            cgroups: CgroupLayout {
                driver: here.driver.unwrap_or(match config.cgroup_driver.as_str() {
                    "systemd" => CgroupDriver::Systemd,
                    _ => CgroupDriver::Cgroupfs,
                }),
                version,
                root: config.cgroup_root.clone(),
                per_qos: config.cgroups_per_qos,
            },
            static_cpus: config.cpu_manager_policy == "static",
            cpu_cfs_quota: config.cpu_cfs_quota,
            sync_frequency: config.sync_frequency.max(std::time::Duration::from_secs(1)),
            cpu_cfs_quota_period: period,
            memory_capacity: i64::try_from(here.machine.memory_bytes).unwrap_or(i64::MAX),
            capacity: here.capacity.clone(),
            allocatable: here.allocatable.clone(),
            pods_limit: pods_limit(here.capacity, config, most_processes(Path::new("/proc/sys/kernel"))),
            seccomp_default: config.seccomp_default,
            pod_pids_limit: Some(config.pod_pids_limit).filter(|limit| *limit > 0),
            swap: Swap {
                controller: here.cgroups.limits_swap(),
                limited: config.memory_swap.swap_behavior == "LimitedSwap",
                capacity: i64::try_from(here.machine.swap_bytes).unwrap_or(i64::MAX),
            },
            // With version 1 the kernel can't do otherwise.
            single_process_oom_kill: version == CgroupVersion::V1
                || setting("singleProcessOOMKill")
                    .and_then(|v| v.as_bool())
                    .unwrap_or(false),
            memory_qos: config.feature("MemoryQoS", false).then(|| MemoryQos {
                throttling_factor: setting("memoryThrottlingFactor")
                    .and_then(|v| v.as_f64())
                    .unwrap_or(0.9),
                tiered_reservation: setting("memoryReservationPolicy").and_then(|v| v.as_str())
                    == Some("TieredReservation"),
            }),
            // Without the controller nobody can limit them, and some runtimes refuse to be asked to.
            hugepage_sizes: match here.cgroups.has("hugetlb") {
                true => hugepage_sizes(here.machine.huge_pages.keys()),
                false => vec![],
            },
            page_size: page_size(),
            unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            app_armor: fs::read_to_string("/sys/module/apparmor/parameters/enabled")
                .is_ok_and(|text| text.starts_with('Y')),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            masked_paths: thermal_files(Path::new("/sys/devices/system/cpu")),
        }
    }
}

/// The host's resolver settings; none where the path is empty. A file that can't be read has no settings.
pub fn read_resolv_conf(path: &str) -> Option<String> {
    if path.is_empty() {
        return None;
    }
    let text = fs::read_to_string(path)
        .inspect_err(|error| tracing::warn!(path, err = %error, "failed to read the host's resolver configuration"));
    Some(text.unwrap_or_default())
}

/// The capacity, less what is reserved where pods are to be held to that.
fn pods_limit(capacity: &ResourceList, config: &Config, processes: Option<i64>) -> ResourceList {
    let mut limit = capacity.clone();
    if let Some(processes) = processes {
        limit.insert("pid".to_string(), Quantity::from_i64(processes, Format::DecimalSI));
    }
    if !config.enforce_node_allocatable.iter().any(|what| what == "pods") {
        return limit;
    }
    let reserved = [&config.system_reserved, &config.kube_reserved];
    for (name, text) in reserved.into_iter().flat_map(BTreeMap::iter) {
        if let (Some(have), Ok(kept)) = (limit.get_mut(name), Quantity::parse(text)) {
            have.sub(&kept);
            if have.is_negative() {
                *have = Quantity::from_i64(0, have.format());
            }
        }
    }
    limit
}

/// As many as the kernel can number, or has room for.
fn most_processes(dir: &Path) -> Option<i64> {
    let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<i64>().ok();
    ["pid_max", "threads-max"].into_iter().filter_map(number).min()
}

fn hugepage_sizes<'a>(bytes: impl Iterator<Item = &'a u64>) -> Vec<String> {
    bytes
        .filter_map(|b| resources::page_size(i64::try_from(*b).ok()?))
        .collect()
}

fn page_size() -> i64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.unwrap_or(4096)
}

/// Counters from which a process could infer what others compute.
fn thermal_files(cpus: &Path) -> Vec<String> {
    let entries = fs::read_dir(cpus).into_iter().flatten().flatten();
    let is_cpu = |name: &str| {
        name.strip_prefix("cpu")
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let dirs = entries.filter(|e| e.file_name().to_str().is_some_and(is_cpu));
    let files = dirs.map(|e| e.path().join("thermal_throttle")).filter(|p| p.exists());
    let mut files: Vec<String> = files.map(|p| p.to_string_lossy().into_owned()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        let one = |(name, text): &(&str, &str)| (name.to_string(), Quantity::parse(text).unwrap());
        pairs.iter().map(one).collect()
    }

    #[test]
    fn facts_follow_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let resolv = dir.path().join("resolv.conf");
        fs::write(&resolv, "nameserver 1.1.1.1\n").unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory hugetlb\n").unwrap();
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [10.96.0.10]\n\
             clusterDomain: cluster.local\nresolvConf: {}\npodPidsLimit: 100\nseccompDefault: true\n\
             systemReserved: {{memory: 1Gi}}\nkubeReserved: {{cpu: 500m, pid: '100'}}\n",
            resolv.display()
        );
        let config = parse(Some(&text), &[]).unwrap();
        let machine = Machine {
            memory_bytes: 4 << 30,
            swap_bytes: 1 << 30,
            huge_pages: [(2 << 20, 0), (1 << 30, 0)].into(),
            ..Machine::default()
        };
        let tree = Tree::at(dir.path()).unwrap();
        let capacity = list(&[("cpu", "2"), ("memory", "4Gi")]);
        let here = Here {
            name: "n",
            addresses: &["10.0.0.1".parse().unwrap()],
            root_dir: Path::new("/data"),
            config: &config,
            machine: &machine,
            capacity: &capacity,
            allocatable: &capacity,
            cgroups: &tree,
            driver: Some(CgroupDriver::Systemd),
        };
        let facts = NodeFacts::read(&here);
        assert_eq!(facts.resolv_conf.as_deref(), Some("nameserver 1.1.1.1\n"));
        assert_eq!(facts.cluster_dns, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
        assert_eq!((facts.pod_pids_limit, facts.seccomp_default), (Some(100), true));
        assert_eq!(facts.hugepage_sizes, ["2MB", "1GB"]);
        assert_eq!(facts.cgroups.driver, CgroupDriver::Systemd);
        assert_eq!(facts.cgroups.version, CgroupVersion::V2);
        assert!(!facts.single_process_oom_kill && facts.memory_qos.is_none() && !facts.swap.controller);
        assert_eq!(facts.pods_limit["memory"], Quantity::parse("3Gi").unwrap());
        assert_eq!(facts.pods_limit["cpu"], Quantity::parse("1500m").unwrap());
        assert!(facts.page_size >= 4096);

        let defaults = Config::default();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let without_huge_pages = Tree::at(dir.path()).unwrap();
        let here = Here {
            config: &defaults,
            driver: None,
            cgroups: &without_huge_pages,
            ..here
        };
        let facts = NodeFacts::read(&here);
        assert!(facts.hugepage_sizes.is_empty());
        assert_eq!(facts.pod_pids_limit, None);
        assert_eq!(facts.cpu_cfs_quota_period, NodeFacts::default().cpu_cfs_quota_period);
        assert_eq!(facts.cgroups.driver, CgroupDriver::Cgroupfs);
        assert!(facts.cgroups.per_qos);
    }

    #[test]
    fn limits_of_all_pods() {
        let capacity = list(&[("cpu", "2"), ("memory", "1Gi")]);
        let config = |text: &str| {
            let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}");
            parse(Some(&text), &[]).unwrap()
        };
        let shown = |config: &Config| {
            let limit = pods_limit(&capacity, config, Some(1000));
            ["cpu", "memory", "pid"].map(|name| limit[name].canonical()).join(" ")
        };
        assert_eq!(
            shown(&config("systemReserved: {cpu: 1, memory: 512Mi, pid: '10'}")),
            "1 512Mi 990"
        );
        assert_eq!(
            shown(&config("systemReserved: {cpu: 1}\nenforceNodeAllocatable: [none]")),
            "2 1Gi 1k"
        );
        assert_eq!(shown(&config("systemReserved: {cpu: 3}")), "0 1Gi 1k");
    }

    #[test]
    fn files_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "cpu0/thermal_throttle",
            "cpu1",
            "cpufreq/thermal_throttle",
            "cpu10/thermal_throttle",
        ] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let file = |cpu: &str| {
            dir.path()
                .join(cpu)
                .join("thermal_throttle")
                .to_string_lossy()
                .into_owned()
        };
        assert_eq!(thermal_files(dir.path()), [file("cpu0"), file("cpu10")]);
        assert_eq!(most_processes(dir.path()), None);
        fs::write(dir.path().join("pid_max"), "4194304\n").unwrap();
        fs::write(dir.path().join("threads-max"), "31000\n").unwrap();
        assert_eq!(most_processes(dir.path()), Some(31000));
        assert_eq!(read_resolv_conf(""), None);
        assert_eq!(read_resolv_conf("/nonexistent"), Some(String::new()));
    }
}
