//! Resource usage of pods, from the runtime and the disk. Measuring the disk is slow and done only where it matters.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use orlop_api::types::core::Pod;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::{ContainerStats, ContainerStatsFilter, PodSandboxStatsFilter, UInt64Value};

use super::rank::{ContainerUse, DiskUse, PodUse};
use crate::cgroups::Usage;
use crate::spec::labels::POD_UID;

/// Files looked at below one directory; what is beyond is not counted.
const MOST_FILES: usize = 1_000_000;

/// The disk use of a pod's volumes by name.
pub type VolumesUsed = Arc<dyn Fn(String) -> BoxFuture<'static, BTreeMap<String, DiskUse>> + Send + Sync>;

/// What a pod's cgroup says; none where pods have none.
pub type GroupUsed = Arc<dyn Fn(&Pod) -> Option<Usage> + Send + Sync>;

/// How close to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Logs and volumes too.
    pub disk: bool,
    pub processes: bool,
}

/// By uid, all of it read now. Pods of which nobody knows anything are not in it.
pub async fn measure(
    runtime: &dyn Runtime,
    pods: &[Arc<Pod>],
    depth: Depth,
    pod_logs: &Path,
    volumes: &VolumesUsed,
    groups: &GroupUsed,
) -> Result<BTreeMap<String, PodUse>, orlop_runtime::Error> {
    let stats = runtime.list_container_stats(ContainerStatsFilter::default()).await?;
    let mut all: BTreeMap<String, PodUse> = BTreeMap::new();
    for stats in &stats {
        let uid = stats.attributes.as_ref().and_then(|a| a.labels.get(POD_UID));
        if let (Some(uid), Some(container)) = (uid, container_use(stats)) {
            let pod = all.entry(uid.clone()).or_default();
            pod.memory = match (pod.memory, container.memory) {
                (Some(sum), Some(more)) => Some(sum + more),
                (one, other) => one.or(other),
            };
            pod.containers.push(container);
        }
    }
    all.retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
    if depth.processes {
        // Without stats from the runtime all pods rank equally.
        let sandboxes = runtime.list_pod_sandbox_stats(PodSandboxStatsFilter::default()).await;
        for sandbox in sandboxes.unwrap_or_default() {
            let uid = sandbox.attributes.and_then(|a| a.metadata).map(|metadata| metadata.uid);
            let count = sandbox
                .linux
                .and_then(|linux| linux.process)
                .and_then(|p| p.process_count);
            if let Some(pod) = uid.and_then(|uid| all.get_mut(&uid)) {
                pod.processes += count.map_or(0, |count| count.value);
            }
        }
    }
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        // The group knows what no container has any more: files in memory that a former one wrote, say.
        if let Some(group) = groups(pod) {
            let used = all.entry(uid.clone()).or_default();
            used.memory = Some(group.memory_working_set);
            if depth.processes {
                used.processes = used.processes.max(group.processes);
            }
        }
        if depth.disk {
            // Volumes are there before containers are, and between them.
            let used = all.entry(uid.clone()).or_default();
            used.volumes = volumes(uid).await;
            add_logs(used, log_folder(pod_logs, pod)).await;
        }
    }
    Ok(all)
}

fn container_use(stats: &ContainerStats) -> Option<ContainerUse> {
    let value = |field: &Option<UInt64Value>| field.as_ref().map(|value| value.value);
    let name = stats.attributes.as_ref()?.metadata.as_ref()?.name.clone();
    Some(ContainerUse {
        name,
        memory: stats
            .memory
            .as_ref()
            .and_then(|memory| value(&memory.working_set_bytes)),
        layer: stats.writable_layer.as_ref().map(|layer| DiskUse {
            bytes: value(&layer.used_bytes).unwrap_or_default(),
            inodes: value(&layer.inodes_used).unwrap_or_default(),
        }),
        logs: None,
    })
}

/// `<logs>/<namespace>_<name>_<uid>`
fn log_folder(pod_logs: &Path, pod: &Pod) -> PathBuf {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let metadata = &pod.metadata;
    let (namespace, name, uid) = (text(&metadata.namespace), text(&metadata.name), text(&metadata.uid));
    pod_logs.join(format!("{namespace}_{name}_{uid}"))
}

async fn add_logs(used: &mut PodUse, folder: PathBuf) {
    let names: Vec<String> = used.containers.iter().map(|c| c.name.clone()).collect();
    let sizes = crate::blocking::run(move || {
        let sizes = names.iter().map(|name| disk_use(&folder.join(name)));
        sizes.collect::<Vec<_>>()
    });
    for (container, size) in used.containers.iter_mut().zip(sizes.await.unwrap_or_default()) {
        container.logs = Some(size);
    }
}

/// A directory with all in it; links are not followed.
pub fn disk_use(folder: &Path) -> DiskUse {
    let mut sum = DiskUse::default();
    let mut folders = vec![folder.to_path_buf()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            files += 1;
            if files > MOST_FILES {
                return sum;
            }
            sum.bytes += metadata.blocks() * 512;
            sum.inodes += 1;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    sum
}
