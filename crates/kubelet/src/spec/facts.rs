//! Facts about this node that specs are translated with.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use orlop_api::resources::ResourceList;
use orlop_runtime::cri::messages::CgroupDriver;

#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    /// The node's addresses, the main one first; at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Where pods' files are: `/var/lib/kubelet`.
    pub root_dir: PathBuf,
    /// Where containers' logs are: `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// What the host's resolv.conf says. `None`: pods are to have nothing from the host.
    pub resolv_conf: Option<String>,
    pub cgroups: CgroupLayout,
    /// How often pods are looked at though nothing is known to have changed.
    pub sync_frequency: Duration,
    /// CPU limits are enforced.
    /// Containers can have CPUs for themselves.
    pub static_cpus: bool,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    /// Physical memory in bytes.
    pub memory_capacity: i64,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
    /// What all pods together may take (`cpu`, `memory`, `pid`, `hugepages-…`): the capacity, less what is reserved where
    /// that is enforced. Eviction thresholds are not taken off: eviction comes before this limit.
    pub pods_limit: ResourceList,
    /// The runtime's seccomp profile is for containers that name none.
    pub seccomp_default: bool,
    /// Most processes in a pod; `None` for no limit.
    pub pod_pids_limit: Option<i64>,
    pub swap: Swap,
    /// An out-of-memory kill ends one process, not all of the container (cgroup v2).
    pub single_process_oom_kill: bool,
    /// `None`: off, as by default.
    pub memory_qos: Option<MemoryQos>,
    /// Page sizes the kernel has, in the form of cgroup files: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    pub page_size: i64,
    /// Kernel settings that pods may have beside the safe ones: names, or beginnings with `*`.
    pub unsafe_sysctls: Vec<String>,
    /// The kernel has it.
    pub app_armor: bool,
    /// Mounts are to be relabelled.
    pub selinux: bool,
    /// Files of this machine that containers must not see, beside those every machine has.
    pub masked_paths: Vec<String>,
}

impl Default for NodeFacts {
    /// Kubernetes' defaults on a machine nothing is known about.
    fn default() -> NodeFacts {
        NodeFacts {
            name: String::new(),
            addresses: vec![],
            root_dir: "/var/lib/kubelet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            cluster_dns: vec![],
            cluster_domain: String::new(),
            resolv_conf: Some(String::new()),
            cgroups: CgroupLayout::default(),
            static_cpus: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            sync_frequency: Duration::from_secs(60),
            memory_capacity: 0,
            capacity: ResourceList::new(),
            allocatable: ResourceList::new(),
            pods_limit: ResourceList::new(),
            seccomp_default: false,
            pod_pids_limit: None,
            swap: Swap::default(),
            single_process_oom_kill: true,
            memory_qos: None,
            hugepage_sizes: vec![],
            page_size: 4096,
            unsafe_sysctls: vec![],
            app_armor: false,
            selinux: false,
            masked_paths: vec![],
        }
    }
}

impl NodeFacts {
    /// Everything the kubelet keeps for a pod: volumes, hosts file, termination messages.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// The hosts file mounted into a pod's containers.
    pub fn hosts_path(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("etc-hosts")
    }

    /// Where the termination messages of a container are.
    pub fn container_dir(&self, uid: &str, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container)
    }

    pub(crate) fn quota_period_us(&self) -> i64 {
        i64::try_from(self.cpu_cfs_quota_period.as_micros()).unwrap_or(i64::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// How cgroups are named here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLayout {
    pub driver: CgroupDriver,
    pub version: CgroupVersion,
    /// The group under which `kubepods` is: `/`.
    pub root: String,
    /// Pods have groups of their own, by class. Without: the runtime does as it likes.
    pub per_qos: bool,
}

impl Default for CgroupLayout {
    fn default() -> CgroupLayout {
        CgroupLayout {
            driver: CgroupDriver::Cgroupfs,
            version: CgroupVersion::V2,
            root: "/".to_string(),
            per_qos: true,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// The kernel can limit it.
    pub controller: bool,
    /// Burstable pods may have some (`LimitedSwap`); only with cgroup v2.
    pub limited: bool,
    /// Bytes.
    pub capacity: i64,
}

/// Memory kept for pods by their requests, and throttling near their limits (cgroup v2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    pub throttling_factor: f64,
    /// Requests are protected from reclaim: hard for Guaranteed pods, softly for Burstable ones.
    pub tiered_reservation: bool,
}
