//! Containers and sandboxes of the cluster's pods, in the runtimes that ran them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use orlop_base::join_all;
use orlop_kubelet::spec::labels::POD_UID;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::cri::messages::{ContainerFilter, ContainerState, PodSandboxFilter, PodSandboxState};

use super::{NodeTraces, Purge, Removal};
use crate::embedded::EmbeddedParts;
use crate::output::counted;

pub(super) const REMOVAL: Removal = Removal {
    what: "pods",
    run: |purge| Box::pin(run(purge)),
};

/// What ran the containers of a node. Each kind of runtime that a node can have is found here.
pub(super) async fn connect(node: &NodeTraces) -> anyhow::Result<Arc<dyn Runtime>> {
    match &node.embedded {
        Some(embedded) => embedded.open(EmbeddedParts::default()).await,
        None => Ok(Arc::new(CriRuntime::connect(&node.runtime)?)),
    }
}

async fn run(purge: &mut Purge) {
    for node in purge.machine.nodes.clone() {
        let what = match &node.embedded {
            Some(embedded) => format!("of node {}", embedded.name),
            None => format!("in the container runtime {}", node.runtime),
        };
        match remove(&node, &purge.pod_uids, purge.grace).await {
            Ok(0) => {}
            Ok(pods) => purge.removed(format!("{} {what}", counted(pods, "pod"))),
            Err(error) => purge.failed(&format!("pods {what}"), error),
        }
    }
}

async fn remove(node: &NodeTraces, uids: &BTreeSet<String>, grace: Duration) -> anyhow::Result<usize> {
    // No pods, no questions: the runtime may be gone as well.
    if uids.is_empty() {
        return Ok(0);
    }
    let runtime = connect(node).await?;
    let pods = Pods::find(&*runtime, uids).await?;
    pods.stop(&*runtime, grace).await?;
    for sandbox in &pods.sandboxes {
        or_gone(runtime.remove_pod_sandbox(sandbox).await)?;
    }
    Ok(pods.uids.len())
}

/// Stops what a cluster that was killed has left running. How many pods that were.
pub(crate) async fn stop_orphans(node: &NodeTraces, uids: &BTreeSet<String>, grace: Duration) -> anyhow::Result<usize> {
    if uids.is_empty() {
        return Ok(0);
    }
    let runtime = connect(node).await?;
    let pods = Pods::find(&*runtime, uids).await?;
    pods.stop(&*runtime, grace).await?;
    Ok(pods.running)
}

/// What a runtime has of the cluster's pods.
struct Pods {
    uids: BTreeSet<String>,
    sandboxes: Vec<String>,
    running_containers: Vec<String>,
    /// How many have a sandbox that runs.
    running: usize,
}

impl Pods {
    async fn find(runtime: &dyn Runtime, uids: &BTreeSet<String>) -> orlop_runtime::Result<Pods> {
        let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await?;
        let is_ours = |uid: &&String| uids.contains(*uid);
        let ours: Vec<_> = sandboxes
            .iter()
            .filter_map(|sandbox| Some((sandbox, sandbox.labels.get(POD_UID).filter(is_ours)?)))
            .collect();
        let ids: BTreeSet<&str> = ours.iter().map(|(sandbox, _)| sandbox.id.as_str()).collect();
        let containers = runtime.list_containers(ContainerFilter::default()).await?;
        let running = containers.iter().filter(|container| {
            ids.contains(container.pod_sandbox_id.as_str()) && container.state() == ContainerState::Running
        });
        let ready = ours
            .iter()
            .filter(|(sandbox, _)| sandbox.state() == PodSandboxState::Ready);
        Ok(Pods {
            uids: ours.iter().map(|(_, uid)| uid.to_string()).collect(),
            running_containers: running.map(|container| container.id.clone()).collect(),
            running: ready.map(|(_, uid)| uid).collect::<BTreeSet<_>>().len(),
            sandboxes: ours.iter().map(|(sandbox, _)| sandbox.id.clone()).collect(),
        })
    }

    /// All containers at once: each may take its whole grace.
    async fn stop(&self, runtime: &dyn Runtime, grace: Duration) -> orlop_runtime::Result<()> {
        let stops = self
            .running_containers
            .iter()
            .map(|id| runtime.stop_container(id, grace));
        for stopped in join_all(stops).await {
            or_gone(stopped)?;
        }
        for sandbox in &self.sandboxes {
            or_gone(runtime.stop_pod_sandbox(sandbox).await)?;
        }
        Ok(())
    }
}

fn or_gone(answer: orlop_runtime::Result<()>) -> orlop_runtime::Result<()> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        answer => answer,
    }
}
