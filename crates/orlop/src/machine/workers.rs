//! Worker nodes: their namespaces, links, rules, and directories.

use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use orlop_kubelet::volumes::removal;

use super::{Machine, Purge, Removal, cgroups, mounts, network, pod_uids_of, pods};
use crate::data_dir;
use crate::nodes::{WorkerLinks, WorkersRecord};

pub(super) const REMOVAL: Removal = Removal {
    what: "worker nodes",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    let cluster = purge.data_dir.display().to_string();
    let workers = purge.machine.nodes.clone().into_iter().filter_map(|node| node.embedded);
    let workers: Vec<_> = workers.filter(|node| node.worker.is_some()).collect();
    let record = match WorkersRecord::read(&purge.data_dir) {
        Ok(record) => record,
        Err(error) => return purge.failed(data_dir::NODES_FILE, error),
    };
    if workers.is_empty() && record.workers.is_empty() {
        return;
    }
    let names = workers.iter().map(|node| node.name.clone());
    let mut names: Vec<String> = names
        .chain(record.workers.into_iter().map(|worker| worker.name))
        .collect();
    names.sort();
    names.dedup();
    let pods: Vec<IpNet> = workers.into_iter().flat_map(|node| node.pod_ranges).collect();
    match WorkerLinks::remove_all(&cluster, &names, record.range, &pods) {
        Ok(()) => purge.removed(format!("worker nodes {}", names.join(", "))),
        Err(error) => purge.failed("the network of worker nodes", error),
    }
}

/// Takes away what one worker node of a running cluster has, but for its namespace and link.
pub(crate) async fn remove_worker(data_dir: &Path, name: &str, grace: Duration) -> anyhow::Result<()> {
    let directory = data_dir.join(data_dir::NODES).join(name);
    let mut machine = Machine::read(data_dir)?;
    machine.nodes.retain(|node| node.is_worker(name));
    let mut purge = Purge {
        data_dir: directory.clone(),
        machine,
        pod_uids: pod_uids_of(&directory),
        grace,
        force: false,
        removed: vec![],
        problems: vec![],
    };
    for removal in [pods::REMOVAL, network::REMOVAL, mounts::REMOVAL, cgroups::REMOVAL] {
        (removal.run)(&mut purge).await;
    }
    anyhow::ensure!(purge.problems.is_empty(), "{}", purge.problems.join("; "));
    if directory.exists() {
        removal::remove_tree(&directory)?;
    }
    Ok(Machine::forget_worker(data_dir, name)?)
}
