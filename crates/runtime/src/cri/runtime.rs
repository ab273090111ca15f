//! Each call of the runtime: its path, its time limit, what it needs from the answer.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use orlop_streaming::{Pipe, Session, Streams};
use prost::Message;

use super::messages::*;
use super::{CriRuntime, streams};
use crate::cni::Folders;
use crate::{Code, Error, Event, Result, Runtime};

/// How long a call may take unless said otherwise; as Kubernetes (`runtimeRequestTimeout`).
const LIMIT: Duration = Duration::from_secs(120);

/// A path of the runtime service.
macro_rules! runtime {
    ($call:literal) => {
        concat!("/runtime.v1.RuntimeService/", $call)
    };
}

/// A path of the image service.
macro_rules! image {
    ($call:literal) => {
        concat!("/runtime.v1.ImageService/", $call)
    };
}

impl CriRuntime {
    pub(super) async fn ask<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.connection.call(path, request, Some(LIMIT)).await
    }
}

/// Part of an answer that runtimes must not leave out.
fn present<T>(part: Option<T>, what: &str) -> Result<T> {
    part.ok_or_else(|| Error::new(Code::Other, format!("{what} is nil")))
}

/// Removing what is not there is no failure.
fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// The interface counts whole seconds. Part of a second counts as one, since zero would mean no limit.
fn seconds(duration: Duration) -> i64 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[async_trait]
impl Runtime for CriRuntime {
    async fn version(&self) -> Result<VersionResponse> {
        self.ask(
            runtime!("Version"),
            VersionRequest {
                version: "0.1.0".to_string(),
            },
        )
        .await
    }

    async fn status(&self) -> Result<StatusResponse> {
        self.ask(runtime!("Status"), StatusRequest { verbose: false }).await
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(NetworkConfig {
            pod_cidr: pod_cidr.to_string(),
        });
        let request = UpdateRuntimeConfigRequest {
            runtime_config: Some(RuntimeConfig { network_config }),
        };
        let _: UpdateRuntimeConfigResponse = self.ask(runtime!("UpdateRuntimeConfig"), request).await?;
        Ok(())
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        let answer: Result<RuntimeConfigResponse> = self.ask(runtime!("RuntimeConfig"), RuntimeConfigRequest {}).await;
        match answer {
            Ok(config) => Ok(config.linux.map(|linux| linux.cgroup_driver())),
            Err(error) if error.code == Code::Unimplemented => Ok(self.settings().await?.cgroup_driver),
            Err(error) => Err(error),
        }
    }

    async fn network_folders(&self) -> Result<Folders> {
        Ok(self.settings().await?.network)
    }

    async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_string(),
        };
        // Setting up a network may take its time.
        let limit = Some(LIMIT.saturating_mul(2));
        let answer: RunPodSandboxResponse = self.connection.call(runtime!("RunPodSandbox"), request, limit).await?;
        match answer.pod_sandbox_id {
            id if id.is_empty() => Err(Error::new(Code::Other, "PodSandboxId is not set for sandbox")),
            id => Ok(id),
        }
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let answer: Result<StopPodSandboxResponse> = self.ask(runtime!("StopPodSandbox"), request).await;
        gone(answer.map(drop))
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let answer: Result<RemovePodSandboxResponse> = self.ask(runtime!("RemovePodSandbox"), request).await;
        gone(answer.map(drop))
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_string(),
            verbose: false,
        };
        let answer: PodSandboxStatusResponse = self.ask(runtime!("PodSandboxStatus"), request).await?;
        present(answer.status, "sandbox status")
    }

    async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let answer: ListPodSandboxResponse = self.ask(runtime!("ListPodSandbox"), request).await?;
        Ok(answer.items)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer: CreateContainerResponse = self.ask(runtime!("CreateContainer"), request).await?;
        match answer.container_id {
            id if id.is_empty() => Err(Error::new(Code::Other, "ContainerId is not set for container")),
            id => Ok(id),
        }
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let request = StartContainerRequest {
            container_id: id.to_string(),
        };
        let _: StartContainerResponse = self.ask(runtime!("StartContainer"), request).await?;
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let request = StopContainerRequest {
            container_id: id.to_string(),
            timeout: seconds(grace),
        };
        let limit = Some(LIMIT.saturating_add(grace));
        let answer: Result<StopContainerResponse> =
            self.connection.call(runtime!("StopContainer"), request, limit).await;
        gone(answer.map(drop))
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let request = RemoveContainerRequest {
            container_id: id.to_string(),
        };
        let answer: Result<RemoveContainerResponse> = self.ask(runtime!("RemoveContainer"), request).await;
        gone(answer.map(drop))
    }

    async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        let request = ListContainersRequest { filter: Some(filter) };
        let answer: ListContainersResponse = self.ask(runtime!("ListContainers"), request).await?;
        Ok(answer.containers)
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest {
            container_id: id.to_string(),
            verbose: false,
        };
        let answer: ContainerStatusResponse = self.ask(runtime!("ContainerStatus"), request).await?;
        present(answer.status, "container status")
    }

    async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(resources),
            ..Default::default()
        };
        let _: UpdateContainerResourcesResponse = self.ask(runtime!("UpdateContainerResources"), request).await?;
        Ok(())
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = ReopenContainerLogRequest {
            container_id: id.to_string(),
        };
        let _: ReopenContainerLogResponse = self.ask(runtime!("ReopenContainerLog"), request).await?;
        Ok(())
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Option<Duration>) -> Result<ExecSyncResponse> {
        let line = command.join(" ");
        let request = ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command,
            timeout: timeout.map_or(0, seconds),
        };
        // The runtime ends the command itself; the rest is for its answer.
        let limit = timeout.map(|t| t.saturating_add(LIMIT));
        let answer = self.connection.call(runtime!("ExecSync"), request, limit).await;
        answer.map_err(|error: Error| match timeout {
            Some(timeout) if timed_out(&error) => {
                let message = format!("command timed out: {line:?} timed out after {}", go_duration(timeout));
                Error::new(Code::DeadlineExceeded, message)
            }
            _ => error,
        })
    }

    async fn exec(&self, mut request: ExecRequest) -> Result<Session> {
        // A terminal has no stderr of its own; runtimes refuse to be asked for it.
        request.stderr &= !request.tty;
        let wanted = Streams::from(&request);
        let answer: ExecResponse = self.ask(runtime!("Exec"), request).await?;
        streams::session(&answer.url, wanted).await
    }

    async fn attach(&self, mut request: AttachRequest) -> Result<Session> {
        request.stderr &= !request.tty;
        let wanted = Streams::from(&request);
        let answer: AttachResponse = self.ask(runtime!("Attach"), request).await?;
        streams::session(&answer.url, wanted).await
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Box<dyn Pipe>> {
        let request = PortForwardRequest {
            pod_sandbox_id: sandbox.to_string(),
            port: vec![port.into()],
        };
        let answer: PortForwardResponse = self.ask(runtime!("PortForward"), request).await?;
        streams::port(&answer.url, port).await
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let request = ContainerStatsRequest {
            container_id: id.to_string(),
        };
        let answer: ContainerStatsResponse = self.ask(runtime!("ContainerStats"), request).await?;
        present(answer.stats, "container stats")
    }

    async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        let request = ListContainerStatsRequest { filter: Some(filter) };
        let answer: ListContainerStatsResponse = self.ask(runtime!("ListContainerStats"), request).await?;
        Ok(answer.stats)
    }

    async fn list_pod_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        let request = ListPodSandboxStatsRequest { filter: Some(filter) };
        let answer: ListPodSandboxStatsResponse = self.ask(runtime!("ListPodSandboxStats"), request).await?;
        Ok(answer.stats)
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        self.subscribe().await
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        let answer: ListImagesResponse = self
            .ask(image!("ListImages"), ListImagesRequest { filter: None })
            .await?;
        Ok(answer.images)
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        let request = ImageStatusRequest {
            image: Some(image.clone()),
            verbose: false,
        };
        let answer: ImageStatusResponse = self.ask(image!("ImageStatus"), request).await?;
        Ok(answer.image)
    }

    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let name = image.image.clone();
        let request = PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config: Some(sandbox_config),
        };
        // Large images take as long as they take; the runtime gives up on a pull that makes no progress, and dropping
        // this future cancels it.
        let answer: PullImageResponse = self.connection.call(image!("PullImage"), request, None).await?;
        match answer.image_ref {
            found if found.is_empty() => Err(Error::new(
                Code::Other,
                format!("imageRef of image {name:?} is not set"),
            )),
            found => Ok(found),
        }
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<()> {
        let request = RemoveImageRequest {
            image: Some(image.clone()),
        };
        let answer: Result<RemoveImageResponse> = self.ask(image!("RemoveImage"), request).await;
        gone(answer.map(drop))
    }

    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        self.ask(image!("ImageFsInfo"), ImageFsInfoRequest {}).await
    }
}

/// Some runtimes say it in words only.
fn timed_out(error: &Error) -> bool {
    error.code == Code::DeadlineExceeded
        || error.code == Code::Other && error.message.contains("context deadline exceeded")
}

/// As Go writes durations: `1m30s`.
fn go_duration(duration: Duration) -> String {
    let (minutes, seconds) = (duration.as_secs() / 60, duration.as_secs_f64() % 60.0);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (millis, whole, shown) in [
            (0, 0, "0s"),
            (1, 1, "0.001s"),
            (1000, 1, "1s"),
            (1500, 2, "1.5s"),
            (90_000, 90, "1m30s"),
            (3_600_000, 3600, "1h0m0s"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(seconds(duration), whole);
            assert_eq!(go_duration(duration), shown);
        }
    }

    #[test]
    fn removing_nothing_is_fine() {
        assert_eq!(gone(Err(Error::new(Code::NotFound, "x"))), Ok(()));
        let other = Err(Error::new(Code::Other, "x"));
        assert_eq!(gone(other.clone()), other);
    }
}
