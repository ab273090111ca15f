//! The trait, call by call.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use orlop_streaming::{Pipe, Session};
use tokio::sync::broadcast;

use super::{Embedded, to_the_end};
use crate::cri::messages::*;
use crate::{Event, Result, Runtime};

const NAME: &str = "orlop";

fn condition(r#type: &str, failure: Option<(&str, String)>) -> RuntimeCondition {
    let status = failure.is_none();
    let (reason, message) = failure
        .map(|(reason, message)| (reason.to_string(), message))
        .unwrap_or_default();
    RuntimeCondition {
        r#type: r#type.to_string(),
        status,
        reason,
        message,
    }
}

#[async_trait]
impl Runtime for Embedded {
    async fn version(&self) -> Result<VersionResponse> {
        Ok(VersionResponse {
            version: "0.1.0".to_string(),
            runtime_name: NAME.to_string(),
            runtime_version: env!("CARGO_PKG_VERSION").to_string(),
            runtime_api_version: "v1".to_string(),
        })
    }

    async fn status(&self) -> Result<StatusResponse> {
        let network = self.inner.network.ready().await.err();
        let network = network.map(|error| ("NetworkPluginNotReady", error.message));
        let features = RuntimeHandlerFeatures {
            recursive_read_only_mounts: true,
            user_namespaces: self.inner.user_namespaces,
        };
        let handler = |name: &str| RuntimeHandler {
            name: name.to_string(),
            features: Some(features.clone()),
        };
        Ok(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![condition("RuntimeReady", None), condition("NetworkReady", network)],
            }),
            runtime_handlers: vec![handler(""), handler(NAME)],
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: self.inner.user_namespaces,
            }),
            ..StatusResponse::default()
        })
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        self.inner.network.set_pod_cidr(pod_cidr).await
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        Ok(Some(CgroupDriver::Cgroupfs))
    }

    async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let (this, handler) = (self.clone(), handler.to_string());
        to_the_end(async move { this.run_sandbox(config, &handler).await }).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.stop_sandbox(&id).await }).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.remove_sandbox(&id).await }).await
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.sandbox_status(id)
    }

    async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        Ok(self.list_sandboxes(&filter))
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let (this, sandbox) = (self.clone(), sandbox.to_string());
        to_the_end(async move { this.create(&sandbox, config, sandbox_config).await }).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.start(&id).await }).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.stop(&id, grace).await }).await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.remove(&id).await }).await
    }

    async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        Ok(self.list(&filter))
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.status_of(id)
    }

    async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let (this, id) = (self.clone(), id.to_string());
        to_the_end(async move { this.update_resources(&id, resources).await }).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.reopen_log(id).await
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Option<Duration>) -> Result<ExecSyncResponse> {
        self.run_command(id, command, timeout).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session> {
        self.open_exec(request).await
    }

    async fn attach(&self, request: AttachRequest) -> Result<Session> {
        self.open_attach(request).await
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Box<dyn Pipe>> {
        self.open_port(sandbox, port).await
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        self.stats_of(id).await
    }

    async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        self.list_stats(filter).await
    }

    async fn list_pod_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        self.list_sandbox_stats(filter).await
    }

    /// A reader that is too slow loses its stream and lists.
    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        let next = async |mut events: broadcast::Receiver<Event>| Some((events.recv().await.ok()?, events));
        Ok(futures::stream::unfold(self.inner.events.subscribe(), next).boxed())
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        self.inner.images.list().await
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        self.inner.images.status(image).await
    }

    async fn pull_image(&self, image: ImageSpec, auth: Option<AuthConfig>, _: PodSandboxConfig) -> Result<String> {
        self.inner.images.pull(&image, auth.as_ref()).await
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<()> {
        self.inner.images.remove(image).await
    }

    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        Ok(ImageFsInfoResponse {
            image_filesystems: vec![self.inner.images.usage().await?],
            container_filesystems: vec![self.container_filesystem().await?],
        })
    }
}
