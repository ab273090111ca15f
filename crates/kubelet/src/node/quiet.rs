//! A runtime for tests: ready, and with nothing in it.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use orlop_runtime::cri::messages::*;
use orlop_runtime::{Code, Error, Event, Result, Runtime};
use orlop_streaming::{Pipe, Session};

#[derive(Default)]
pub(crate) struct QuietRuntime;

fn no<T>() -> Result<T> {
    Err(Error::new(Code::Unimplemented, "not in this test"))
}

#[async_trait]
impl Runtime for QuietRuntime {
    async fn version(&self) -> Result<VersionResponse> {
        Ok(VersionResponse {
            runtime_name: "quiet".into(),
            runtime_version: "1.2.3".into(),
            ..VersionResponse::default()
        })
    }
    async fn status(&self) -> Result<StatusResponse> {
        let ready = |r#type: &str| RuntimeCondition {
            r#type: r#type.into(),
            status: true,
            ..RuntimeCondition::default()
        };
        Ok(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
            }),
            ..StatusResponse::default()
        })
    }
    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        Ok(())
    }
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        Ok(None)
    }
    async fn run_pod_sandbox(&self, _: PodSandboxConfig, _: &str) -> Result<String> {
        no()
    }
    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn pod_sandbox_status(&self, _: &str) -> Result<PodSandboxStatus> {
        no()
    }
    async fn list_pod_sandboxes(&self, _: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        Ok(vec![])
    }
    async fn create_container(&self, _: &str, _: ContainerConfig, _: PodSandboxConfig) -> Result<String> {
        no()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        no()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn list_containers(&self, _: ContainerFilter) -> Result<Vec<Container>> {
        Ok(vec![])
    }
    async fn container_status(&self, _: &str) -> Result<ContainerStatus> {
        no()
    }
    async fn update_container_resources(&self, _: &str, _: LinuxContainerResources) -> Result<()> {
        no()
    }
    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        no()
    }
    async fn exec_sync(&self, _: &str, _: Vec<String>, _: Option<Duration>) -> Result<ExecSyncResponse> {
        no()
    }
    async fn exec(&self, _: ExecRequest) -> Result<Session> {
        no()
    }
    async fn attach(&self, _: AttachRequest) -> Result<Session> {
        no()
    }
    async fn port_forward(&self, _: &str, _: u16) -> Result<Box<dyn Pipe>> {
        no()
    }
    async fn container_stats(&self, _: &str) -> Result<ContainerStats> {
        no()
    }
    async fn list_container_stats(&self, _: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        Ok(vec![])
    }
    async fn list_pod_sandbox_stats(&self, _: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        Ok(vec![])
    }
    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        no()
    }
    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(vec![])
    }
    async fn image_status(&self, _: &ImageSpec) -> Result<Option<Image>> {
        Ok(None)
    }
    async fn pull_image(&self, _: ImageSpec, _: Option<AuthConfig>, _: PodSandboxConfig) -> Result<String> {
        no()
    }
    async fn remove_image(&self, _: &ImageSpec) -> Result<()> {
        no()
    }
    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        no()
    }
}
