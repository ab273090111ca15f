//! Updates the cpusets of running containers: those without exclusive CPUs when the shared pool changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::LinuxContainerResources;

use super::{CpuSet, Cpus};

/// A container that runs: its pod's uid, its name and its id.
pub type Running = (String, String, String);

/// What is to be done: containers and their CPUs.
fn plan(cpus: &Cpus, running: &[Running], done: &BTreeMap<String, CpuSet>) -> Vec<(String, CpuSet)> {
    let wanted = running.iter().map(|(uid, name, id)| (id.clone(), cpus.of(uid, name)));
    wanted
        .filter(|(id, cpus)| !cpus.is_empty() && done.get(id) != Some(cpus))
        .collect()
}

/// Runs until the shutdown. `pods` are the uids of all pods of this node, none as long as they are not all known.
pub async fn follow(
    cpus: Cpus,
    runtime: Arc<dyn Runtime>,
    period: Duration,
    running: impl Fn() -> Vec<Running> + Send,
    pods: impl Fn() -> Option<Vec<String>> + Send,
    shutdown: Shutdown,
) {
    let mut done: BTreeMap<String, CpuSet> = BTreeMap::new();
    loop {
        if let Some(known) = pods() {
            // Pods that went while no kubelet ran.
            let gone = cpus.pods().into_iter().filter(|uid| !known.contains(uid));
            gone.for_each(|uid| cpus.release(&uid));
        }
        let now = running();
        done.retain(|id, _| now.iter().any(|(_, _, running)| running == id));
        for (id, wanted) in plan(&cpus, &now, &done) {
            let resources = LinuxContainerResources {
                cpuset_cpus: wanted.to_string(),
                ..LinuxContainerResources::default()
            };
            match runtime.update_container_resources(&id, resources).await {
                Ok(()) => {
                    done.insert(id, wanted);
                }
                // It may have terminated meanwhile; if not, the next pass retries.
                Err(error) => {
                    tracing::debug!(container = %id, cpus = %wanted, err = %error, "failed to update container cpuset")
                }
            }
        }
        tokio::select! {
            () = shutdown.wait() => return,
            () = cpus.changed() => {}
            () = tokio::time::sleep(period) => {}
        }
    }
}
