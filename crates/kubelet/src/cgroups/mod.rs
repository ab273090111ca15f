//! Cgroups: how pods share the node's CPU and memory, and what they have used.
//!
//! ```text
//! /kubepods                      all pods: node allocatable
//! /kubepods/pod<uid>             a Guaranteed pod
//! /kubepods/burstable/pod<uid>   CPU shares by the sum of the pods' requests
//! /kubepods/besteffort/pod<uid>  minimal CPU shares
//! ```
//!
//! What a cgroup's limits are ([`limits`]) and what that means to the files of either version ([`files`]) are pure; [`Tree`]
//! creates, writes, reads and removes. All files are below a given directory, so tests need no kernel. With the systemd driver
//! the cgroups are slices (`kubepods-burstable.slice`), which systemd has to know as well ([`systemd`]). The runtime creates
//! the containers' cgroups in those of the pods.

mod counters;
mod files;
mod limits;
mod systemd;
mod tree;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::resources::ResourceList;
use orlop_api::types::core::Pod;
use orlop_runtime::cri::messages::CgroupDriver;

use crate::cpus::Cpus;
use crate::spec::resources::{QosClass, pod_cgroup, pod_cgroup_parent, qos_cgroup, qos_class};
use crate::spec::{CgroupLayout, NodeFacts, uid};
pub use counters::Counters;
pub use limits::{Limits, burstable_limits, list_limits, pod_limits};
use limits::{larger_memory, larger_quota};
pub use systemd::Slices;
pub use tree::Tree;
pub use usage::Usage;

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// How often removing a group is tried again while its last processes go, and the first wait; it doubles.
const REMOVALS: u32 = 7;
const REMOVAL_WAIT: Duration = Duration::from_millis(10);

/// A file of a group could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{action} {path}: {source}")]
    File {
        action: &'static str,
        path: String,
        source: io::Error,
    },
    /// The kernel would have to kill for it.
    #[error(
        "cannot decrease memory limits: attempting to set pod memory limit ({limit}) below current usage ({usage})"
    )]
    BelowUsage { limit: i64, usage: u64 },
    #[error("systemd failed to {action} {unit}: {source}")]
    Systemd {
        action: &'static str,
        unit: String,
        source: Box<zbus::Error>,
    },
}

pub type Result<T> = std::result::Result<T, CgroupError>;

/// The groups of this node's pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups {
    tree: Arc<Tree>,
    facts: Arc<NodeFacts>,
    /// Where containers can have CPUs for themselves.
    cpus: Option<Cpus>,
    /// For systemd's driver.
    slices: Option<Slices>,
}

impl Cgroups {
    pub fn new(tree: Tree, facts: Arc<NodeFacts>) -> Cgroups {
        Cgroups {
            tree: Arc::new(tree),
            facts,
            cpus: None,
            slices: None,
        }
    }

    pub fn with_cpus(self, cpus: Option<Cpus>) -> Cgroups {
        Cgroups { cpus, ..self }
    }

    /// The groups are systemd's.
    pub fn with_slices(self, slices: Slices) -> Cgroups {
        Cgroups {
            slices: Some(slices),
            ..self
        }
    }

    /// A pod with CPUs of its own may use them all the time.
    fn limits(&self, pod: &Pod) -> Limits {
        let limits = pod_limits(pod, &self.facts);
        match self.cpus.as_ref().is_some_and(|cpus| cpus.pod_has_own(pod)) {
            true => Limits {
                cpu_quota: None,
                ..limits
            },
            false => limits,
        }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    fn layout(&self) -> &CgroupLayout {
        &self.facts.cgroups
    }

    /// The kernel may take its time: not on the threads of the async runtime.
    async fn files<T: Send + 'static>(&self, work: impl FnOnce(&Tree) -> T + Send + 'static) -> T {
        let tree = Arc::clone(&self.tree);
        crate::blocking::run(move || work(&tree))
            .await
            .expect("work on files does not panic")
    }

    async fn create(&self, group: &str) -> Result<()> {
        if let Some(slices) = &self.slices {
            slices.start(group, self.tree.version()).await?;
        }
        let group = group.to_string();
        self.files(move |tree| tree.create(&group)).await
    }

    async fn set(&self, group: &str, mut limits: Limits) -> Result<()> {
        if let Some(slices) = &self.slices {
            limits = systemd::rounded(limits);
            slices.set(group, self.tree.version(), &limits).await?;
        }
        let group = group.to_string();
        self.files(move |tree| tree.set(&group, &limits)).await
    }

    /// Makes the groups above the pods' and sets what all pods together may take. Memory in use can stand in the way of a
    /// lower limit: then this is an error, and to be tried again when pods have been evicted.
    pub async fn ensure_node_level(&self) -> Result<()> {
        if !self.layout().per_qos {
            return Ok(());
        }
        let all = qos_cgroup(self.layout(), QosClass::Guaranteed);
        self.create(&all).await?;
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            self.create(&qos_cgroup(self.layout(), class)).await?;
        }
        let least = Limits {
            cpu_shares: Some(crate::spec::resources::MIN_SHARES),
            ..Limits::default()
        };
        self.set(&qos_cgroup(self.layout(), QosClass::BestEffort), least)
            .await?;
        let whole = list_limits(&self.facts.pods_limit, &self.facts.hugepage_sizes);
        self.set(&all, whole).await
    }

    /// Weighs the Burstable pods together by what they ask for: `pods` are all that have not ended.
    pub async fn update_classes<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> Result<()> {
        if !self.layout().per_qos {
            return Ok(());
        }
        let limits = burstable_limits(pods);
        let group = qos_cgroup(self.layout(), QosClass::Burstable);
        self.set(&group, limits).await
    }

    /// Sets limits on a group that is there already: what is kept for the system or for the kubelet.
    pub async fn reserve(&self, group: &str, list: &ResourceList) -> Result<()> {
        self.set(group, list_limits(list, &self.facts.hugepage_sizes)).await
    }

    /// Makes a pod's group with its limits. A group in which something is stays as it is: the kubelet may have been
    /// restarted. One in which nothing is may be one whose limits could not be set: they are set, again if need be.
    pub async fn ensure_pod(&self, pod: &Pod) -> Result<()> {
        let group = pod_cgroup_parent(pod, self.layout());
        if group.is_empty() || (self.tree.exists(&group) && self.tree.is_used(&group)) {
            return Ok(());
        }
        self.create(&group).await?;
        self.set(&group, self.limits(pod)).await
    }

    /// Before containers are resized: lets a pod's group grow where it is to, and shrinks nothing, as no container may have
    /// more than its pod while it has it still. Limits that are lower than what is in use are refused.
    pub async fn make_room(&self, pod: &Pod) -> Result<()> {
        let group = pod_cgroup_parent(pod, self.layout());
        if group.is_empty() {
            return Ok(());
        }
        let wanted = self.limits(pod).or_unlimited();
        let now = self.tree.usage(&group)?;
        if let Some(limit @ 1..) = wanted.memory {
            let bytes = limit.unsigned_abs();
            if now.memory_limit.is_none_or(|old| bytes < old) && now.memory >= bytes {
                let usage = now.memory;
                return Err(CgroupError::BelowUsage { limit, usage });
            }
        }
        let room = Limits {
            memory: now
                .memory_limit
                .map_or(Some(-1), |old| larger_memory(wanted.memory, old)),
            cpu_quota: larger_quota(wanted.cpu_quota, now.cpu_quota),
            ..Limits::default()
        };
        self.set(&group, room).await
    }

    /// After containers are resized: sets a pod's limits to what they are to be.
    pub async fn update_pod(&self, pod: &Pod) -> Result<()> {
        let group = pod_cgroup_parent(pod, self.layout());
        if group.is_empty() {
            return Ok(());
        }
        self.set(&group, self.limits(pod).or_unlimited()).await
    }

    /// The group that holds a pod's containers, for reading; empty where pods have none.
    pub fn pod_group(&self, pod: &Pod) -> String {
        pod_cgroup_parent(pod, self.layout())
    }

    /// The groups of all pods and of the classes in it, for reading; none where pods have no groups.
    pub fn shared_groups(&self) -> Vec<String> {
        match self.layout().per_qos {
            true => CLASSES.map(|class| qos_cgroup(self.layout(), class)).to_vec(),
            false => vec![],
        }
    }

    /// What a pod has used.
    pub fn pod_usage(&self, pod: &Pod) -> Result<Usage> {
        self.tree.usage(&self.pod_group(pod))
    }

    /// Ends whatever still runs in a pod's group, whatever its class, and removes it. Doing it again is fine.
    pub async fn remove_pod(&self, uid: &str) -> Result<()> {
        for class in CLASSES {
            self.remove(pod_cgroup(self.layout(), class, uid)).await?;
        }
        Ok(())
    }

    async fn remove(&self, group: String) -> Result<()> {
        if let Some(slices) = self.slices.as_ref().filter(|_| self.tree.exists(&group)) {
            // What is killed need not be stopped: systemd would give it time.
            let killed = group.clone();
            self.files(move |tree| tree.kill(&killed)).await;
            slices.stop(&group).await?;
        }
        let mut wait = REMOVAL_WAIT;
        for _ in 1..REMOVALS {
            let removed = group.clone();
            if self.files(move |tree| tree.remove(&removed)).await.is_ok() {
                return Ok(());
            }
            // Processes that were killed take a moment to go.
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2);
        }
        self.files(move |tree| tree.remove(&group)).await
    }

    /// The uids of all pods that have a group.
    pub fn pods(&self) -> BTreeMap<String, QosClass> {
        let mut found = BTreeMap::new();
        for class in CLASSES {
            for name in self.tree.children(&qos_cgroup(self.layout(), class)) {
                if let Some(uid) = self.pod_of(class, &name) {
                    found.insert(uid, class);
                }
            }
        }
        found
    }

    /// The pod whose group in a class has this name.
    fn pod_of(&self, class: QosClass, name: &str) -> Option<String> {
        let uid = match self.layout().driver {
            CgroupDriver::Cgroupfs => name.strip_prefix("pod")?.to_string(),
            CgroupDriver::Systemd => {
                let (_, uid) = name.strip_suffix(".slice")?.rsplit_once("-pod")?;
                uid.replace('_', "-")
            }
        };
        // The same name made from the uid: a directory that only looks like it is somebody else's.
        let made = pod_cgroup(self.layout(), class, &uid);
        (!uid.is_empty() && made.rsplit('/').next() == Some(name)).then_some(uid)
    }

    /// Whether a pod's group is there.
    pub fn has_pod(&self, pod: &Pod) -> bool {
        self.tree.exists(&pod_cgroup(self.layout(), qos_class(pod), uid(pod)))
    }
}

#[cfg(test)]
mod tests;
