//! What runs containers: the trait with the shape of the container runtime interface (CRI), and what stands behind it.
//!
//! The kubelet knows only [`Runtime`]. Behind it: `cri`, any CRI v1 socket (containerd, CRI-O), and `simulated`,
//! which runs nothing and says it did. The messages are the CRI's own (`cri::messages`), so that nothing is lost in
//! translation and what a real runtime says can be told word for word.

pub mod cni;
pub mod cri;
pub mod embedded;
mod error;
pub mod image_name;
pub mod simulated;

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use orlop_streaming::{Pipe, Session};

use cri::messages::*;
pub use error::{Code, Error, Result};

/// Something happened to a container or a sandbox: look again. Lost events are made up for by a slow relist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The sandbox's id, where the runtime reports it.
    pub sandbox: Option<String>,
    /// The container's id; the sandbox's own for events of the sandbox.
    pub container: String,
}

/// A runtime of containers. All calls may be made at the same time; each has a time limit of its own inside.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<VersionResponse>;
    /// Conditions RuntimeReady and NetworkReady, and what the handlers can do.
    async fn status(&self) -> Result<StatusResponse>;
    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()>;
    /// `None` where the runtime does not report it (it then follows the kubelet's setting).
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>>;
    /// Where the runtime looks for pod networks; nothing where it calls no plugins or does not report it.
    async fn network_folders(&self) -> Result<cni::Folders> {
        Ok(cni::Folders::default())
    }

    /// Returns the sandbox's id once its network is up.
    async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String>;
    /// Ends every process in it and takes its network down. Doing it again is fine.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;
    /// Doing it again is fine.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;
    async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus>;
    async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>>;

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Asks it to end, and kills it after the grace period; returns once it has ended. Doing it again is fine.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;
    /// Doing it again is fine.
    async fn remove_container(&self, id: &str) -> Result<()>;
    async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>>;
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;
    async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()>;
    /// The log file was moved away: open a new one.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command to its end and returns what it wrote; an error with [`Code::DeadlineExceeded`] if it takes longer.
    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Option<Duration>) -> Result<ExecSyncResponse>;
    async fn exec(&self, request: ExecRequest) -> Result<Session>;
    async fn attach(&self, request: AttachRequest) -> Result<Session>;
    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Box<dyn Pipe>>;

    async fn container_stats(&self, id: &str) -> Result<ContainerStats>;
    async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>>;
    async fn list_pod_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>>;
    /// What changes, from now on. Ends when the connection does; the caller asks again and lists.
    async fn events(&self) -> Result<BoxStream<'static, Event>>;

    async fn list_images(&self) -> Result<Vec<Image>>;
    /// `None`: there is no such image here.
    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>>;
    /// Returns the reference that containers are to be created with.
    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String>;
    /// Doing it again is fine.
    async fn remove_image(&self, image: &ImageSpec) -> Result<()>;
    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse>;
}
