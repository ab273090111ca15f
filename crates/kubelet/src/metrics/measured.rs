//! A runtime whose calls are counted and timed.
// Upstream: pkg/kubelet/kuberuntime/instrumented_services.go (v1.36)

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use orlop_runtime::cni::Folders;
use orlop_runtime::cri::messages::*;
use orlop_runtime::{Event, Result, Runtime};
use orlop_streaming::{Pipe, Session};
use tokio::time::Instant;

use super::Metrics;

pub struct Measured {
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
}

impl Measured {
    pub fn new(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> Measured {
        Measured { runtime, metrics }
    }

    async fn time<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let began = Instant::now();
        let answer = call.await;
        self.metrics.called(operation, began.elapsed(), answer.is_err());
        answer
    }
}

#[async_trait]
impl Runtime for Measured {
    async fn version(&self) -> Result<VersionResponse> {
        self.time("version", self.runtime.version()).await
    }

    async fn status(&self) -> Result<StatusResponse> {
        self.time("status", self.runtime.status()).await
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let call = self.runtime.update_runtime_config(pod_cidr);
        self.time("update_runtime_config", call).await
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        self.time("runtime_config", self.runtime.cgroup_driver()).await
    }

    async fn network_folders(&self) -> Result<Folders> {
        self.time("status", self.runtime.network_folders()).await
    }

    async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let began = Instant::now();
        let call = self.runtime.run_pod_sandbox(config, handler);
        let answer = self.time("run_podsandbox", call).await;
        self.metrics.made_sandbox(handler, began.elapsed(), answer.is_err());
        answer
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        self.time("stop_podsandbox", self.runtime.stop_pod_sandbox(id)).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        self.time("remove_podsandbox", self.runtime.remove_pod_sandbox(id))
            .await
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.time("podsandbox_status", self.runtime.pod_sandbox_status(id))
            .await
    }

    async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        self.time("list_podsandbox", self.runtime.list_pod_sandboxes(filter))
            .await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let call = self.runtime.create_container(sandbox, config, sandbox_config);
        self.time("create_container", call).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.time("start_container", self.runtime.start_container(id)).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.time("stop_container", self.runtime.stop_container(id, grace))
            .await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.time("remove_container", self.runtime.remove_container(id)).await
    }

    async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        self.time("list_containers", self.runtime.list_containers(filter)).await
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.time("container_status", self.runtime.container_status(id)).await
    }

    async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let call = self.runtime.update_container_resources(id, resources);
        self.time("update_container", call).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.time("reopen_container_log", self.runtime.reopen_container_log(id))
            .await
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Option<Duration>) -> Result<ExecSyncResponse> {
        self.time("exec_sync", self.runtime.exec_sync(id, command, timeout))
            .await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session> {
        self.time("exec", self.runtime.exec(request)).await
    }

    async fn attach(&self, request: AttachRequest) -> Result<Session> {
        self.time("attach", self.runtime.attach(request)).await
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Box<dyn Pipe>> {
        self.time("port_forward", self.runtime.port_forward(sandbox, port))
            .await
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        self.time("container_stats", self.runtime.container_stats(id)).await
    }

    async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        let call = self.runtime.list_container_stats(filter);
        self.time("list_container_stats", call).await
    }

    async fn list_pod_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        let call = self.runtime.list_pod_sandbox_stats(filter);
        self.time("list_podsandbox_stats", call).await
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        self.time("get_container_events", self.runtime.events()).await
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        self.time("list_images", self.runtime.list_images()).await
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        self.time("image_status", self.runtime.image_status(image)).await
    }

    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let call = self.runtime.pull_image(image, auth, sandbox_config);
        self.time("pull_image", call).await
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<()> {
        self.time("remove_image", self.runtime.remove_image(image)).await
    }

    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        self.time("image_fs_info", self.runtime.image_fs_info()).await
    }
}
