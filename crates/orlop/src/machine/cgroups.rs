//! Cgroups of the cluster's pods, and the one that they are all in if there was none before.

use std::path::Path;
use std::time::Duration;

use orlop_kubelet::cgroups::{Slices, Tree};
use orlop_kubelet::spec::resources::{QosClass, pod_cgroup, qos_cgroup};
use orlop_kubelet::spec::{CgroupLayout, CgroupVersion};
use orlop_runtime::cri::messages::CgroupDriver;

use super::{Purge, Removal};
use crate::output::counted;

pub(super) const REMOVAL: Removal = Removal {
    what: "cgroups",
    run: |purge| Box::pin(run(purge)),
};

const MOUNT: &str = "/sys/fs/cgroup";
/// How often removing is tried again, and the first wait; it doubles.
const REMOVALS: u32 = 7;
const REMOVAL_WAIT: Duration = Duration::from_millis(10);
/// The innermost first: Guaranteed's is around the others.
const CLASSES: [QosClass; 3] = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed];

/// Which of the two it was, only the runtime knows.
fn layouts(root: &str) -> [CgroupLayout; 2] {
    [CgroupDriver::Cgroupfs, CgroupDriver::Systemd].map(|driver| CgroupLayout {
        driver,
        version: CgroupVersion::V2,
        root: root.to_string(),
        per_qos: true,
    })
}

/// Whether there is a group of all pods below this one already.
pub(crate) fn kubepods_exist(root: &str) -> bool {
    let Ok(tree) = Tree::at(Path::new(MOUNT)) else {
        return false;
    };
    layouts(root)
        .iter()
        .any(|layout| !is_absent(&tree, &qos_cgroup(layout, QosClass::Guaranteed)))
}

/// In none of the trees.
fn is_absent(tree: &Tree, group: &str) -> bool {
    let (above, name) = group.rsplit_once('/').unwrap_or(("", group));
    !tree.children(above).contains(name)
}

async fn run(purge: &mut Purge) {
    if purge.machine.nodes.is_empty() {
        return;
    }
    let tree = match Tree::at(Path::new(MOUNT)) {
        Ok(tree) => tree,
        Err(error) => return purge.failed("cgroups", error),
    };
    for node in purge.machine.nodes.clone() {
        for layout in layouts(&node.cgroup_root) {
            let mut removed = 0;
            for uid in purge.pod_uids.clone() {
                for class in CLASSES {
                    let group = pod_cgroup(&layout, class, &uid);
                    removed += usize::from(remove(purge, &tree, &layout, &group).await);
                }
            }
            if removed > 0 {
                purge.removed(format!("cgroups of {}", counted(removed, "pod")));
            }
            if node.made_kubepods {
                for class in CLASSES {
                    let group = qos_cgroup(&layout, class);
                    // Somebody else's pods may be in it by now.
                    if !tree.is_used(&group) && remove(purge, &tree, &layout, &group).await {
                        purge.removed(format!("cgroup {group}"));
                    }
                }
            }
        }
        if node.owns_cgroup_root && !is_absent(&tree, &node.cgroup_root) && !tree.is_used(&node.cgroup_root) {
            let [layout, _] = layouts(&node.cgroup_root);
            if remove(purge, &tree, &layout, &node.cgroup_root).await {
                purge.removed(format!("cgroup {}", node.cgroup_root));
            }
        }
    }
}

/// Whether there was one. Processes that were killed take a moment to go.
async fn remove(purge: &mut Purge, tree: &Tree, layout: &CgroupLayout, group: &str) -> bool {
    if is_absent(tree, group) {
        return false;
    }
    // systemd would go on to count it among its own.
    if layout.driver == CgroupDriver::Systemd
        && Slices::run_this_machine()
        && let Err(error) = Slices::of_this_machine().stop(group).await
    {
        purge.failed(&format!("cgroup {group}"), error);
        return false;
    }
    let mut wait = REMOVAL_WAIT;
    let mut removed = tree.remove(group);
    for _ in 0..REMOVALS {
        if removed.is_ok() {
            return true;
        }
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2);
        removed = tree.remove(group);
    }
    if let Err(error) = removed {
        purge.failed(&format!("cgroup {group}"), error);
        return false;
    }
    true
}
