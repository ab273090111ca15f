//! Control groups: how pods share the node's CPU and memory, and what they have used.
//!
//! ```text
//! /kubepods                      all pods: what the node has less what is kept for the system
//! /kubepods/pod<uid>             a Guaranteed pod
//! /kubepods/burstable/pod<uid>   weighed together by the sum of their requests
//! /kubepods/besteffort/pod<uid>  weighed as little as the kernel can
//! ```
//!
//! What a group's limits are ([`limits`]) and what that means to the files of either version ([`files`]) are pure; [`Tree`]
//! makes, writes, reads and removes. All files are below a given folder, so tests need no kernel. The runtime puts the
//! containers' groups into the pods'.

mod files;
mod limits;
mod tree;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use orlop_api::resources::ResourceList;
use orlop_runtime::cri::messages::CgroupDriver;

use crate::spec::resources::{QosClass, pod_cgroup, pod_cgroup_parent, qos_cgroup, qos_class};
use crate::spec::{CgroupLayout, NodeFacts, uid};
pub use limits::{Limits, burstable_limits, list_limits, pod_limits};
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
}

pub type Result<T> = std::result::Result<T, CgroupError>;

/// The groups of this node's pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups {
    tree: Arc<Tree>,
    facts: Arc<NodeFacts>,
}

impl Cgroups {
    pub fn new(tree: Tree, facts: Arc<NodeFacts>) -> Cgroups {
        Cgroups {
            tree: Arc::new(tree),
            facts,
        }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    fn layout(&self) -> &CgroupLayout {
        &self.facts.cgroups
    }

    /// Makes the groups above the pods' and sets what all pods together may take. Memory in use can stand in the way of a
    /// lower limit: then this is an error, and to be tried again when pods have been evicted.
    pub fn ensure_node_level(&self) -> Result<()> {
        if !self.layout().per_qos {
            return Ok(());
        }
        let all = qos_cgroup(self.layout(), QosClass::Guaranteed);
        self.tree.create(&all)?;
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            self.tree.create(&qos_cgroup(self.layout(), class))?;
        }
        let least = Limits {
            cpu_shares: Some(crate::spec::resources::MIN_SHARES),
            ..Limits::default()
        };
        self.tree
            .set(&qos_cgroup(self.layout(), QosClass::BestEffort), &least)?;
        self.tree
            .set(&all, &list_limits(&self.facts.pods_limit, &self.facts.hugepage_sizes))
    }

    /// Weighs the Burstable pods together by what they ask for: `pods` are all that have not ended.
    pub fn update_classes<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> Result<()> {
        if !self.layout().per_qos {
            return Ok(());
        }
        let group = qos_cgroup(self.layout(), QosClass::Burstable);
        self.tree.set(&group, &burstable_limits(pods))
    }

    /// Sets limits on a group that is there already: what is kept for the system or for the node agent.
    pub fn reserve(&self, group: &str, list: &ResourceList) -> Result<()> {
        self.tree.set(group, &list_limits(list, &self.facts.hugepage_sizes))
    }

    /// Makes a pod's group with its limits. A group that is there stays as it is: the agent may have been restarted.
    pub fn ensure_pod(&self, pod: &Pod) -> Result<()> {
        let group = pod_cgroup_parent(pod, self.layout());
        if group.is_empty() || self.tree.exists(&group) {
            return Ok(());
        }
        self.tree.create(&group)?;
        self.tree.set(&group, &pod_limits(pod, &self.facts))
    }

    /// Sets a pod's limits anew, after a resize. Limits that are lower than what is in use are refused.
    pub fn update_pod(&self, pod: &Pod) -> Result<()> {
        let group = pod_cgroup_parent(pod, self.layout());
        if group.is_empty() {
            return Ok(());
        }
        let limits = pod_limits(pod, &self.facts).or_unlimited();
        if let (Some(limit @ 1..), Ok(now)) = (limits.memory, self.tree.usage(&group)) {
            let bytes = limit.unsigned_abs();
            if now.memory_limit.is_none_or(|old| bytes < old) && now.memory >= bytes {
                let usage = now.memory;
                return Err(CgroupError::BelowUsage { limit, usage });
            }
        }
        self.tree.set(&group, &limits)
    }

    /// The group that holds a pod's containers, for reading; empty where pods have none.
    pub fn pod_group(&self, pod: &Pod) -> String {
        pod_cgroup_parent(pod, self.layout())
    }

    /// What a pod has used.
    pub fn pod_usage(&self, pod: &Pod) -> Result<Usage> {
        self.tree.usage(&self.pod_group(pod))
    }

    /// Ends whatever still runs in a pod's group, whatever its class, and removes it. Doing it again is fine.
    pub async fn remove_pod(&self, uid: &str) -> Result<()> {
        let groups = CLASSES.map(|class| pod_cgroup(self.layout(), class, uid));
        let mut wait = REMOVAL_WAIT;
        for attempt in 1.. {
            let tree = Arc::clone(&self.tree);
            let names = groups.clone();
            let removal = move || names.iter().try_for_each(|group| tree.remove(group));
            match tokio::task::spawn_blocking(removal)
                .await
                .expect("removing a group does not panic")
            {
                Ok(()) => return Ok(()),
                Err(error) if attempt == REMOVALS => return Err(error),
                // Processes that were killed take a moment to go.
                Err(_) => tokio::time::sleep(wait).await,
            }
            wait *= 2;
        }
        unreachable!("the last attempt returns")
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
        // The same name made from the uid: a folder that only looks like it is somebody else's.
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
