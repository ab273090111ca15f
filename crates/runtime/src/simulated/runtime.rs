//! The runtime's calls on simulated state.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use orlop_base::Clock;
use orlop_streaming::{Pipe, Session};
use tokio::sync::mpsc;

use super::addresses::Pool;
use super::behaviour::asked_to_fail;
use super::script::Kind;
use super::state::{Sandbox, SimulatedContainer, SimulatedState, nanos, pod_name, state_name};
use super::{EVENTS_MAX, Shared, Simulated, sessions};
use crate::cri::messages::*;
use crate::{Code, Error, Event, Result, Runtime};

fn other(message: String) -> Error {
    Error::new(Code::Other, message)
}

fn none(_: &SimulatedState) -> String {
    String::new()
}

#[async_trait]
impl Runtime for Simulated {
    async fn version(&self) -> Result<VersionResponse> {
        self.0.enter(Kind::Version, none).await?;
        Ok(VersionResponse {
            version: "0.1.0".to_string(),
            runtime_name: "simulated".to_string(),
            runtime_version: env!("CARGO_PKG_VERSION").to_string(),
            runtime_api_version: "v1".to_string(),
        })
    }

    async fn status(&self) -> Result<StatusResponse> {
        self.0.enter(Kind::Status, none).await?;
        let conditions = self.0.inner.lock().conditions.clone();
        Ok(StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            ..Default::default()
        })
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        self.0
            .enter(Kind::UpdateRuntimeConfig, |_| pod_cidr.to_string())
            .await?;
        let ranges = pod_cidr.split(',').filter(|r| !r.is_empty());
        let pools: Option<Vec<Pool>> = ranges.map(Pool::parse).collect();
        let pools = pools.ok_or_else(|| other(format!("{pod_cidr:?} is not a valid CIDR")))?;
        let mut inner = self.0.inner.lock();
        // Pods keep the addresses they have; a range under pods is never taken away from them.
        if inner.state.sandboxes.is_empty() && !pools.is_empty() {
            inner.state.pools = pools;
        }
        Ok(())
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        self.0.enter(Kind::RuntimeConfig, none).await?;
        Ok(Some(CgroupDriver::Cgroupfs))
    }

    async fn run_pod_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        self.0.enter(Kind::RunPodSandbox, |_| pod_name(&config)).await?;
        self.0.with(|inner, now| {
            let id = inner.state.run_sandbox(config, handler, now)?;
            inner.tell(vec![Event {
                sandbox: Some(id.clone()),
                container: id.clone(),
            }]);
            Ok(id)
        })
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        self.0.enter(Kind::StopPodSandbox, |s| s.sandbox_name(id)).await?;
        self.0.with(|inner, now| {
            let events = inner.state.stop_sandbox(id, now);
            inner.tell(events);
        });
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        self.0.enter(Kind::RemovePodSandbox, |s| s.sandbox_name(id)).await?;
        self.0.with(|inner, now| {
            let events = inner.state.remove_sandbox(id, now);
            inner.tell(events);
        });
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.0.enter(Kind::PodSandboxStatus, none).await?;
        self.0.with(|inner, _| Ok(sandbox_status(id, inner.state.sandbox(id)?)))
    }

    async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        self.0.enter(Kind::ListPodSandbox, none).await?;
        Ok(self.0.with(|inner, _| {
            let all = inner.state.sandboxes.iter().map(|(id, s)| listed_sandbox(id, s));
            all.filter(|s| {
                (filter.id.is_empty() || s.id == filter.id)
                    && filter.state.as_ref().is_none_or(|wanted| wanted.state == s.state)
                    && filter.label_selector.iter().all(|(k, v)| s.labels.get(k) == Some(v))
            })
            .collect()
        }))
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        _sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let name = config.metadata.clone().unwrap_or_default().name;
        let subject = |s: &SimulatedState| format!("{}/{name}", s.sandbox_name(sandbox));
        self.0.enter(Kind::CreateContainer, subject).await?;
        self.0
            .with(|inner, now| inner.state.create_container(sandbox, config, now))
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.0.enter(Kind::StartContainer, |s| s.container_name(id)).await?;
        let called_at = self.0.now();
        let delay = self
            .0
            .with(|inner, _| -> Result<_> { Ok(inner.state.container(id)?.behaviour.start_delay) })?;
        let ready_at = called_at.saturating_add(nanos(delay));
        self.0
            .wait_for(|_, now| if now >= ready_at { Ok(()) } else { Err(Some(ready_at)) })
            .await;
        self.0.with(|inner, now| -> Result<()> {
            inner.state.start_container(id, now)?;
            inner.tell(vec![inner.state.event(id)]);
            Ok(())
        })?;
        self.0.write_log(id)?;
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.0.enter(Kind::StopContainer, |s| s.container_name(id)).await?;
        self.0.with(|inner, now| inner.state.ask_to_stop(id, grace, now));
        self.0.changed.notify_waiters();
        self.0
            .wait_for(|inner, _| match inner.state.containers.get(id) {
                Some(c) if c.state == ContainerState::Running => Err(c.ending.map(|e| e.at)),
                _ => Ok(()),
            })
            .await;
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.0.enter(Kind::RemoveContainer, |s| s.container_name(id)).await?;
        self.0.with(|inner, _| {
            let event = inner.state.event(id);
            if inner.state.containers.remove(id).is_some() {
                inner.tell(vec![event]);
            }
        });
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        self.0.enter(Kind::ListContainers, none).await?;
        Ok(self.0.with(|inner, _| {
            let all = inner
                .state
                .containers
                .iter()
                .map(|(id, c)| listed_container(id, c, &inner.state));
            all.filter(|c| {
                (filter.id.is_empty() || c.id == filter.id)
                    && (filter.pod_sandbox_id.is_empty() || c.pod_sandbox_id == filter.pod_sandbox_id)
                    && filter.state.as_ref().is_none_or(|wanted| wanted.state == c.state)
                    && filter.label_selector.iter().all(|(k, v)| c.labels.get(k) == Some(v))
            })
            .collect()
        }))
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.0.enter(Kind::ContainerStatus, none).await?;
        self.0
            .with(|inner, _| Ok(container_status(id, inner.state.container(id)?, &inner.state)))
    }

    async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        self.0
            .enter(Kind::UpdateContainerResources, |s| s.container_name(id))
            .await?;
        self.0.with(|inner, _| {
            inner.state.container(id)?;
            let container = inner.state.containers.get_mut(id).expect("just seen");
            container.config.linux.get_or_insert_default().resources = Some(resources);
            Ok(())
        })
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.0.enter(Kind::ReopenContainerLog, |s| s.container_name(id)).await?;
        self.0.running(id)?;
        let path = self.0.with(|inner, _| log_path(&inner.state, id));
        match path.filter(|_| self.0.logs) {
            Some(path) => append(&path, "").map_err(|e| other(format!("{}: {e}", path.display()))),
            None => Ok(()),
        }
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, _timeout: Option<Duration>) -> Result<ExecSyncResponse> {
        self.0.enter(Kind::ExecSync, |s| s.container_name(id)).await?;
        self.0.run_command(id, &command)
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session> {
        let id = &request.container_id;
        self.0.enter(Kind::Exec, |s| s.container_name(id)).await?;
        let answer = self.0.run_command(id, &request.cmd)?;
        Ok(sessions::command(&request, answer))
    }

    async fn attach(&self, request: AttachRequest) -> Result<Session> {
        let id = request.container_id.clone();
        self.0.enter(Kind::Attach, |s| s.container_name(&id)).await?;
        self.0.running(&id)?;
        let shared = self.0.clone();
        let ended = async move {
            let ended = |inner: &mut super::Inner, _| match inner.state.containers.get(&id) {
                Some(c) if c.state == ContainerState::Running => Err(c.ending.map(|e| e.at)),
                found => Ok(found.map_or(137, |c| c.exit_code)),
            };
            shared.wait_for(ended).await
        };
        Ok(sessions::attached(&request, ended))
    }

    async fn port_forward(&self, sandbox: &str, _port: u16) -> Result<Box<dyn Pipe>> {
        self.0.enter(Kind::PortForward, |s| s.sandbox_name(sandbox)).await?;
        self.0.with(|inner, _| inner.state.sandbox(sandbox).map(drop))?;
        Ok(sessions::echo())
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        self.0.enter(Kind::ContainerStats, none).await?;
        self.0.with(|inner, now| Ok(stats(id, inner.state.container(id)?, now)))
    }

    async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        self.0.enter(Kind::ListContainerStats, none).await?;
        let wanted = |id: &str, c: &SimulatedContainer| {
            (filter.id.is_empty() || id == filter.id)
                && (filter.pod_sandbox_id.is_empty() || c.sandbox == filter.pod_sandbox_id)
                && filter
                    .label_selector
                    .iter()
                    .all(|(k, v)| c.config.labels.get(k) == Some(v))
        };
        Ok(self.0.with(|inner, now| running_stats(&inner.state, now, wanted)))
    }

    async fn list_pod_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        self.0.enter(Kind::ListPodSandboxStats, none).await?;
        Ok(self.0.with(|inner, now| {
            let ready = inner.state.sandboxes.iter().filter(|(id, s)| {
                s.ready
                    && (filter.id.is_empty() || **id == filter.id)
                    && filter
                        .label_selector
                        .iter()
                        .all(|(k, v)| s.config.labels.get(k) == Some(v))
            });
            ready.map(|(id, s)| sandbox_stats(id, s, &inner.state, now)).collect()
        }))
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        self.0.enter(Kind::GetContainerEvents, none).await?;
        let (reader, events) = mpsc::channel(EVENTS_MAX);
        self.0.inner.lock().readers.push(reader);
        let shared = self.0.clone();
        Ok(Box::pin(futures::stream::unfold(
            (shared, events),
            async |(shared, mut events)| {
                let event = shared.next_event(&mut events).await?;
                Some((event, (shared, events)))
            },
        )))
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        self.0.enter(Kind::ListImages, none).await?;
        Ok(self.0.inner.lock().state.images.values().cloned().collect())
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        self.0.enter(Kind::ImageStatus, none).await?;
        Ok(self.0.inner.lock().state.find_image(&image.image).cloned())
    }

    async fn pull_image(
        &self,
        image: ImageSpec,
        _auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        self.0.enter(Kind::PullImage, |_| image.image.clone()).await?;
        match asked_to_fail(&sandbox_config.annotations, "pull") {
            Some(message) => Err(other(message)),
            None => Ok(self.0.inner.lock().state.pull(&image)),
        }
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<()> {
        self.0.enter(Kind::RemoveImage, |_| image.image.clone()).await?;
        let state = &mut self.0.inner.lock().state;
        if let Some(id) = state.find_image(&image.image).map(|i| i.id.clone()) {
            state.images.remove(&id);
        }
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        self.0.enter(Kind::ImageFsInfo, none).await?;
        Ok(self.0.with(|inner, now| {
            let images = &inner.state.images;
            let usage = FilesystemUsage {
                timestamp: now,
                fs_id: Some(FilesystemIdentifier {
                    mountpoint: "/".to_string(),
                }),
                used_bytes: number(images.values().map(|i| i.size).sum()),
                inodes_used: number(images.len() as u64 * 1000),
            };
            ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            }
        }))
    }
}

impl Shared {
    /// The next event; on the system's clock, time's passing makes some.
    async fn next_event(&self, events: &mut mpsc::Receiver<Event>) -> Option<Event> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let ending = self.with(|inner, _| inner.state.next_ending());
            let until = ending.filter(|_| matches!(self.clock, Clock::System));
            tokio::select! {
                biased;
                event = events.recv() => return event,
                () = self.pause(changed, until) => {}
            }
        }
    }

    fn running(&self, id: &str) -> Result<()> {
        self.with(|inner, _| match inner.state.container(id)?.state {
            ContainerState::Running => Ok(()),
            state => Err(other(format!("container is in {} state", state_name(state)))),
        })
    }

    fn run_command(&self, id: &str, command: &[String]) -> Result<ExecSyncResponse> {
        self.running(id)?;
        let (answer, exit_code) = self.with(|inner, _| {
            let answer = inner.script.answer_for(&inner.state.container_name(id));
            let exit_code = inner.state.containers.get(id).map_or(0, |c| c.behaviour.exec_exit_code);
            (answer, exit_code)
        });
        match answer {
            Some(answer) => answer(command),
            None => Ok(ExecSyncResponse {
                exit_code,
                ..Default::default()
            }),
        }
    }

    fn write_log(&self, id: &str) -> Result<()> {
        if !self.logs {
            return Ok(());
        }
        let (path, log) = self.with(|inner, _| {
            let log = inner.state.containers.get(id).and_then(|c| c.behaviour.log.clone());
            (log_path(&inner.state, id), log.unwrap_or_default())
        });
        let Some(path) = path else { return Ok(()) };
        let now = self.clock.now();
        let lines: String = log.lines().map(|line| format!("{now} stdout F {line}\n")).collect();
        append(&path, &lines).map_err(|e| other(format!("{}: {e}", path.display())))
    }
}

fn log_path(state: &SimulatedState, id: &str) -> Option<PathBuf> {
    let container = state.containers.get(id)?;
    let directory = &state.sandboxes.get(&container.sandbox)?.config.log_directory;
    let name = &container.config.log_path;
    (!directory.is_empty() && !name.is_empty()).then(|| Path::new(directory).join(name))
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    file.write_all(text.as_bytes())
}

fn listed_sandbox(id: &str, sandbox: &Sandbox) -> PodSandbox {
    PodSandbox {
        id: id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

fn sandbox_state(sandbox: &Sandbox) -> i32 {
    let state = if sandbox.ready {
        PodSandboxState::Ready
    } else {
        PodSandboxState::NotReady
    };
    state.into()
}

fn sandbox_status(id: &str, sandbox: &Sandbox) -> PodSandboxStatus {
    let mut addresses = sandbox.addresses.iter().map(ToString::to_string);
    let security = sandbox.config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let options = security.and_then(|s| s.namespace_options.clone());
    PodSandboxStatus {
        id: id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: sandbox.created_at,
        network: Some(PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| PodIP { ip }).collect(),
        }),
        linux: Some(LinuxPodSandboxStatus {
            namespaces: Some(Namespace { options }),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

/// The image's id, where it was "pulled"; its name else.
fn image_ref(container: &SimulatedContainer, state: &SimulatedState) -> String {
    let name = container.config.image.as_ref().map_or("", |i| i.image.as_str());
    state.find_image(name).map_or(name.to_string(), |i| i.id.clone())
}

fn listed_container(id: &str, container: &SimulatedContainer, state: &SimulatedState) -> Container {
    Container {
        id: id.to_string(),
        pod_sandbox_id: container.sandbox.clone(),
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: image_ref(container, state),
        state: container.state.into(),
        created_at: container.created_at,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        image_id: image_ref(container, state),
    }
}

fn container_status(id: &str, container: &SimulatedContainer, state: &SimulatedState) -> ContainerStatus {
    let path = log_path(state, id).unwrap_or_default();
    let linux = container.resources().cloned();
    ContainerStatus {
        id: id.to_string(),
        metadata: container.config.metadata.clone(),
        state: container.state.into(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: container.exit_code,
        image: container.config.image.clone(),
        image_ref: image_ref(container, state),
        reason: container.reason.to_string(),
        message: match container.reason {
            "StartError" => container.behaviour.fail_start.clone().unwrap_or_default(),
            _ => String::new(),
        },
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: path.display().to_string(),
        resources: linux.map(|linux| ContainerResources { linux: Some(linux) }),
        image_id: image_ref(container, state),
        ..Default::default()
    }
}

fn number(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn cpu_usage(container: &SimulatedContainer, now: i64) -> CpuUsage {
    let rate = container.behaviour.cpu_nano_cores;
    let seconds = (now - container.started_at).max(0) as f64 / 1e9;
    CpuUsage {
        timestamp: now,
        usage_core_nano_seconds: number((rate as f64 * seconds) as u64),
        usage_nano_cores: number(rate),
        psi: None,
    }
}

fn memory_usage(bytes: u64, now: i64) -> MemoryUsage {
    MemoryUsage {
        timestamp: now,
        working_set_bytes: number(bytes),
        usage_bytes: number(bytes),
        rss_bytes: number(bytes),
        ..Default::default()
    }
}

fn stats(id: &str, container: &SimulatedContainer, now: i64) -> ContainerStats {
    let running = container.state == ContainerState::Running;
    ContainerStats {
        attributes: Some(ContainerAttributes {
            id: id.to_string(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: running.then(|| cpu_usage(container, now)),
        memory: running.then(|| memory_usage(container.behaviour.memory_bytes, now)),
        writable_layer: Some(FilesystemUsage {
            timestamp: now,
            fs_id: Some(FilesystemIdentifier {
                mountpoint: "/".to_string(),
            }),
            used_bytes: number(4096),
            inodes_used: number(1),
        }),
        ..Default::default()
    }
}

fn running_stats(
    state: &SimulatedState,
    now: i64,
    wanted: impl Fn(&str, &SimulatedContainer) -> bool,
) -> Vec<ContainerStats> {
    let all = state
        .containers
        .iter()
        .filter(|(_, c)| c.state == ContainerState::Running);
    all.filter(|(id, c)| wanted(id, c))
        .map(|(id, c)| stats(id, c, now))
        .collect()
}

fn sandbox_stats(id: &str, sandbox: &Sandbox, state: &SimulatedState, now: i64) -> PodSandboxStats {
    let containers = running_stats(state, now, |_, c| c.sandbox == id);
    let sum = |of: fn(&ContainerStats) -> Option<&UInt64Value>| {
        number(containers.iter().filter_map(of).map(|n| n.value).sum())
    };
    let memory = sum(|c| c.memory.as_ref()?.usage_bytes.as_ref());
    PodSandboxStats {
        attributes: Some(PodSandboxAttributes {
            id: id.to_string(),
            metadata: sandbox.config.metadata.clone(),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        }),
        linux: Some(LinuxPodSandboxStats {
            cpu: Some(CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: sum(|c| c.cpu.as_ref()?.usage_core_nano_seconds.as_ref()),
                usage_nano_cores: sum(|c| c.cpu.as_ref()?.usage_nano_cores.as_ref()),
                psi: None,
            }),
            memory: memory.map(|m| memory_usage(m.value, now)),
            process: Some(ProcessUsage {
                timestamp: now,
                process_count: number(containers.len() as u64),
            }),
            containers,
            ..Default::default()
        }),
    }
}
