//! Cgroups, directories, volumes and logs of pods on a real node.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use orlop_api::types::core::Pod;
use orlop_client::EventType;
use tokio::sync::watch;

use super::interfaces::{CleanUpError, PodAllocator, PodEnvironment, PrepareError};
use super::policy;
use crate::blocking;
use crate::cgroups::{CgroupError, Cgroups};
use crate::events::Events;
use crate::node::RuntimeView;
use crate::node::status::network_trouble;
use crate::spec::{NodeFacts, Users, files};
use crate::volumes::Volumes;

pub struct NodeEnvironment {
    pub facts: Arc<NodeFacts>,
    pub volumes: Volumes,
    /// `None` where pods have no cgroups.
    pub cgroups: Option<Cgroups>,
    pub users: Users,
    /// What a pod was allocated is released with the rest of its environment.
    pub allocator: Arc<dyn PodAllocator>,
    /// What the runtime last reported of itself.
    pub runtime: watch::Receiver<RuntimeView>,
    pub events: Events,
}

impl NodeEnvironment {
    async fn prepare_cgroup(&self, pod: &Pod) -> Result<(), Vec<PrepareError>> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        cgroups.ensure_pod(pod).await.map_err(|error| {
            let message = format!("unable to ensure pod container exists: {error}");
            prepare_error("FailedCreatePodContainer", message)
        })
    }

    async fn prepare_files(&self, pod: &Pod) -> Result<(), Vec<PrepareError>> {
        let (wanted, facts) = (pod.clone(), self.facts.clone());
        let made = blocking::run_io(move || files::make_dirs(&wanted, &facts)).await;
        made.map_err(|error| prepare_error("Failed", format!("error making pod data directories: {error}")))?;
        let mounted = self.volumes.set_up(pod).await;
        mounted.map_err(|error| {
            let messages = error.events().into_iter();
            messages
                .flat_map(|message| prepare_error("FailedMount", message))
                .collect()
        })
    }
}

fn prepare_error(reason: &'static str, message: String) -> Vec<PrepareError> {
    vec![PrepareError { reason, message }]
}

#[async_trait]
impl PodEnvironment for NodeEnvironment {
    async fn prepare_pod(&self, pod: &Pod) -> Result<(), Vec<PrepareError>> {
        let network = network_trouble(&self.runtime.borrow());
        if let Some(why) = network.filter(|_| !policy::is_host_network(pod)) {
            return Err(prepare_error("NetworkNotReady", format!("network is not ready: {why}")));
        }
        if policy::spec(pod)
            .resource_claims
            .as_ref()
            .is_some_and(|claims| !claims.is_empty())
        {
            // Without its devices a pod must not run.
            let why = "Failed to prepare dynamic resources: resource claims are not supported on this node";
            return Err(prepare_error("FailedPrepareDynamicResources", why.to_string()));
        }
        // Neither needs the other, and a pod's start waits for both.
        let (cgroup, files) = tokio::join!(self.prepare_cgroup(pod), self.prepare_files(pod));
        cgroup?;
        files
    }

    async fn refresh_volumes(&self, pod: &Pod) {
        for failure in self.volumes.refresh(pod).await {
            self.events.pod(pod, EventType::Warning, "FailedMount", failure.message);
        }
    }

    async fn grow_pod_cgroup(&self, pod: &Pod) -> Result<(), CgroupError> {
        match &self.cgroups {
            Some(cgroups) => cgroups.make_room(pod).await,
            None => Ok(()),
        }
    }

    async fn update_pod_cgroup(&self, pod: &Pod) -> Result<(), CgroupError> {
        match &self.cgroups {
            Some(cgroups) => cgroups.update_pod(pod).await,
            None => Ok(()),
        }
    }

    async fn clean_up_pod(&self, uid: &str) -> Result<(), CleanUpError> {
        self.volumes.tear_down(uid).await?;
        self.allocator.release_allocation(uid);
        self.users.release(uid);
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove_pod(uid).await?;
        }
        Ok(())
    }

    async fn remove_pod_logs(&self, namespace: &str, name: &str, uid: &str) {
        let logs = self.facts.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"));
        let path = logs.display().to_string();
        let removed = blocking::run_io(move || std::fs::remove_dir_all(&logs)).await;
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path, err = %error, "failed to remove pod logs");
        }
    }

    async fn list_pods_on_disk(&self) -> Vec<String> {
        let mut uids = self.volumes.known_pods().await;
        if let Some(cgroups) = self.cgroups.clone() {
            let groups = blocking::run(move || cgroups.pods()).await.unwrap_or_default();
            uids.extend(groups.into_keys());
        }
        uids.sort();
        uids.dedup();
        uids
    }
}
