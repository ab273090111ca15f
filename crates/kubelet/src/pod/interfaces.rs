//! What pod workers need beside the container runtime: four narrow traits, so that workers can be tested without files,
//! registries and cgroups. Where upstream has managers behind the kubelet's fields, a worker has these:
//!
//! | here | upstream (pkg/kubelet) | on a node |
//! |---|---|---|
//! | [`PodAllocator`] | allocation manager, device manager | `node_allocator.rs` |
//! | [`PodEnvironment`] | volume manager, pod container manager, pod cleanups | `node_environment.rs` |
//! | [`ContainerConfigurator`] | RuntimeHelper, image manager | `node_configurator.rs` |
//! | [`PodProber`] | prober manager | `node_prober.rs` |

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use orlop_api::types::core::{Container, Pod};
use orlop_runtime::cri::messages as cri;

use super::policy::ContainerRef;
use super::worker_state::Probed;
use crate::cgroups::CgroupError;
use crate::devices::DeviceError;
use crate::objects::ObjectError;
use crate::sources::admission::Rejection;
use crate::spec::SpecError;
use crate::volumes::VolumeError;

/// Admission of pods and of their resizes, and the resources that pods are allocated exclusively (CPUs, devices).
#[async_trait]
pub trait PodAllocator: Send + Sync + 'static {
    /// Whether the pod may run on this node beside `others`, or be resized from what it is `allocated`. Returns the
    /// indices in `others` of the pods to preempt for it.
    fn admit_pod(&self, pod: &Pod, others: &[&Pod], allocated: Option<&Pod>) -> Result<Vec<usize>, Rejection>;

    /// Allocates device plugins' devices to an admitted pod, before anything of it runs.
    async fn allocate_devices(&self, pod: &Pod) -> Result<(), Rejection>;

    /// Frees what `admit_pod` and `allocate_devices` gave the pod exclusively. Idempotent.
    fn release_allocation(&self, uid: &str);

    /// Uids of pods with something to release, those that a former kubelet process admitted included.
    fn list_allocated_pods(&self) -> Vec<String>;

    /// Reads the Node object again. False if it is unchanged, or cannot be read.
    async fn refresh_node(&self) -> bool;
}

/// What surrounds a pod's containers: its cgroup, directories, volumes and logs.
#[async_trait]
pub trait PodEnvironment: Send + Sync + 'static {
    /// Creates cgroup, directories and volumes before anything runs. To be called again until it succeeds.
    async fn prepare_pod(&self, pod: &Pod) -> Result<(), Vec<PrepareError>>;

    /// Updates volumes whose contents may change while the pod runs. Records its failures as events.
    async fn refresh_volumes(&self, pod: &Pod);

    /// Raises the limits of the pod's cgroup to what is allocated, before its containers' limits are raised.
    async fn grow_pod_cgroup(&self, pod: &Pod) -> Result<(), CgroupError>;

    /// Sets the pod's cgroup to what is allocated.
    async fn update_pod_cgroup(&self, pod: &Pod) -> Result<(), CgroupError>;

    /// Removes volumes and cgroup of a pod of which nothing runs any more, be it one that this process never saw.
    async fn clean_up_pod(&self, uid: &str) -> Result<(), CleanUpError>;

    /// Removes the logs of a deleted pod.
    async fn remove_pod_logs(&self, namespace: &str, name: &str, uid: &str);

    /// Uids of pods that have files or cgroups on this node.
    async fn list_pods_on_disk(&self) -> Vec<String>;
}

/// Images and the CRI messages that sandboxes and containers are created from.
#[async_trait]
pub trait ContainerConfigurator: Send + Sync + 'static {
    /// Looks up the runtime handler of the pod's RuntimeClass; empty for the default one. Called once for each new
    /// sandbox, before `generate_sandbox_config`: a pod with a user namespace is assigned its IDs here.
    async fn prepare_runtime_handler(&self, pod: &Pod) -> Result<String, ConfigError>;

    fn generate_sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, ConfigError>;

    /// Pulls the container's image and those of its image volumes as their pull policies say. Records its failures as
    /// events.
    async fn ensure_images_exist(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<ContainerImages, ContainerStartError>;

    /// How often a container was started that the runtime has no record of, by its log files.
    async fn count_restarts_from_logs(&self, pod: &Pod, container: &str) -> u32;

    async fn generate_container_config(
        &self,
        request: &ContainerRequest<'_>,
    ) -> Result<cri::ContainerConfig, ConfigError>;

    fn generate_container_resources(&self, pod: &Pod, container: &Container) -> cri::LinuxContainerResources;

    /// Drops the image pull back-offs of a deleted pod.
    fn forget_image_backoffs(&self, uid: &str);
}

/// Probes of the containers that run.
pub trait PodProber: Send + Sync + 'static {
    /// Probes these containers of the pod, and no others.
    fn update_probes(&self, pod: &Pod, running: &[RunningContainer], pod_ip: Option<&str>);

    /// By container name.
    fn probe_results(&self, uid: &str) -> Vec<(String, Probed)>;

    /// The pod is being terminated: only readiness matters now.
    fn stop_liveness_and_startup(&self, uid: &str);

    /// Drops all probes and results of a deleted pod.
    fn remove_pod(&self, uid: &str);
}

/// A container to be created.
#[derive(Clone, Debug)]
pub struct ContainerRequest<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub place: ContainerRef,
    pub restart_count: u32,
    pub image: &'a ContainerImages,
    pub pod_ips: &'a [String],
    /// Id of the container whose process namespace an ephemeral container shares.
    pub target: Option<&'a str>,
}

/// The images that a container is created from.
#[derive(Clone, Debug, Default)]
pub struct ContainerImages {
    pub image_ref: String,
    pub image: Option<cri::Image>,
    /// Of image volumes, by volume name.
    pub volumes: BTreeMap<String, cri::ImageSpec>,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    pub name: String,
    pub id: String,
    pub started_at: Timestamp,
}

/// Why a container was not started: reason and message of its waiting state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ContainerStartError {
    pub reason: String,
    pub message: String,
    /// The default back-off if none.
    pub retry_after: Option<Duration>,
}

/// Why a pod's environment could not be prepared: reason and message of the event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PrepareError {
    pub reason: &'static str,
    pub message: String,
}

/// Why the CRI message for a sandbox or a container could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("unable to find target container {0}")]
    TargetContainer(String),
}

/// Why a pod's environment could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanUpError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}
