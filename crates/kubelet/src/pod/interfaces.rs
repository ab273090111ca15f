//! What a worker needs beside the runtime: one trait, so that workers can be tested without files, registries and
//! cgroups. `crate::pod::node_tools` has the real one.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use orlop_api::types::core::{Container, HTTPGetAction, Pod};
use orlop_client::EventType;
use orlop_runtime::cri::messages as cri;

use super::policy::ContainerRef;
use super::status::Host;
use super::worker_state::{Pace, Probed};
use crate::metrics::Metrics;
pub use crate::sources::admission::Rejection;

/// A container to be made.
#[derive(Clone, Debug)]
pub struct ContainerRequest<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub place: ContainerRef,
    pub restart_count: u32,
    pub image: &'a Pulled,
    pub pod_ips: &'a [String],
    /// The container whose processes an ephemeral one is to see.
    pub target: Option<&'a str>,
}

#[derive(Clone, Debug, Default)]
pub struct Pulled {
    pub image_ref: String,
    pub image: Option<cri::Image>,
    /// Of the volumes that are images, by the names of the volumes.
    pub volumes: BTreeMap<String, cri::ImageSpec>,
}

/// Why an image, or anything else a container needs, is not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
    pub retry_after: Option<Duration>,
}

/// Something about the pod as a whole failed: reason and text of the event that tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub reason: &'static str,
    pub message: String,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub name: String,
    pub id: String,
    pub started_at: Timestamp,
}

#[async_trait]
pub trait Tools: Send + Sync + 'static {
    fn host(&self) -> Host;
    fn restart_pace(&self) -> Pace {
        Pace::default()
    }
    fn metrics(&self) -> &Metrics;
    /// Whether the pod may run here at all, beside those that do, or be resized from what it has `now`. Gives the places
    /// in `others` of pods that have to go for it.
    fn admit(&self, pod: &Pod, others: &[&Pod], now: Option<&Pod>) -> Result<Vec<usize>, Rejection>;
    /// What else a pod that was let in needs before anything of it runs: devices of plugins, say.
    async fn claim(&self, pod: &Pod) -> Result<(), Rejection>;
    /// What `admit` and `claim` gave the pod for itself is free for others. Doing it again is fine.
    fn leave(&self, uid: &str);
    /// Uids of pods that have something for themselves which `leave` would free, those of a former agent as well.
    fn holders(&self) -> Vec<String>;
    /// Looks at the Node object anew. False if it is the same as before, or cannot be read.
    async fn refresh_node(&self) -> bool;
    fn event(&self, pod: &Pod, container: Option<&str>, kind: EventType, reason: &'static str, note: String);

    /// Cgroup, directories and volumes, before anything runs. To be called again until it succeeds.
    async fn prepare(&self, pod: &Pod) -> Result<(), Vec<Trouble>>;
    /// How often pods are looked at for the sake of volumes that change.
    fn refresh_every(&self) -> Duration {
        Duration::from_secs(60)
    }
    /// Brings volumes up to date whose contents may change while the pod runs.
    async fn refresh(&self, pod: &Pod);
    fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, String>;
    /// The runtime's handler for the pod's runtime class; empty for the usual one. Asked once for each new sandbox, before
    /// its configuration: a pod with users of its own gets them now.
    async fn runtime_handler(&self, pod: &Pod) -> Result<String, String>;
    /// Tells of its own failures.
    async fn image(&self, pod: &Pod, container: &Container, sandbox: &cri::PodSandboxConfig)
    -> Result<Pulled, Refusal>;
    /// How often a container was started that the runtime has forgotten: its logs tell.
    async fn restarts_from_logs(&self, pod: &Pod, container: &str) -> u32;
    async fn container_config(&self, wanted: &ContainerRequest<'_>) -> Result<cri::ContainerConfig, String>;
    fn linux_resources(&self, pod: &Pod, container: &Container) -> cri::LinuxContainerResources;
    /// Lets the pod's group grow, before its containers do.
    async fn make_room(&self, pod: &Pod) -> Result<(), String>;
    /// Sets the pod's cgroup to what it is allocated.
    async fn resize_pod(&self, pod: &Pod) -> Result<(), String>;
    async fn http_get(&self, container: &Container, action: &HTTPGetAction, ip: &str) -> Result<(), String>;

    /// These containers of the pod run now, and no others.
    fn probe(&self, pod: &Pod, running: &[Running], ip: Option<&str>);
    /// By container name.
    fn probed(&self, uid: &str) -> Vec<(String, Probed)>;
    /// The pod is being ended: only readiness matters now.
    fn probe_no_more(&self, uid: &str);

    /// Nothing of the pod runs any more: volumes and cgroup go. Pods that this agent never saw, too.
    async fn release(&self, uid: &str) -> Result<(), String>;
    /// The pod's object is gone, or about to be: so are its logs, probes and all else that is kept by its name.
    async fn forget(&self, namespace: &str, name: &str, uid: &str);
    /// Uids of pods that have files on this node.
    async fn left_on_disk(&self) -> Vec<String>;
}
