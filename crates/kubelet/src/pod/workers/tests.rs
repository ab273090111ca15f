//! Workers over the simulated runtime, with all else faked and time that tests move.

mod faults;
mod handover;
mod lifecycle;
mod random;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use orlop_api::types::core::{Container, Node};
use orlop_api::types::meta::Time;
use orlop_base::Random;
use orlop_runtime::cri::messages as cri;
use orlop_runtime::simulated::Simulated;

use super::*;
use crate::cgroups::CgroupError;
use crate::pod::interfaces::{
    CleanUpError, ConfigError, ContainerImages, ContainerRequest, ContainerStartError, PrepareError, RunningContainer,
};
use crate::pod::policy::Kind;
use crate::pod::testing::epoch;
use crate::pod::worker_state::Probed;
use crate::sources::admission::{self, Rejection};
use crate::spec::{SpecError, labels};

/// Admits what fits on `node`, and allocates devices by their number.
#[derive(Default)]
struct FakeAllocator(Mutex<Allocations>);

#[derive(Default)]
struct Allocations {
    /// What the node has; without it everything fits.
    node: Option<Node>,
    /// What the node becomes when it is refreshed.
    newer_node: Option<Node>,
    /// How many devices there are, and by uid how many each pod is allocated.
    devices: u32,
    owned: BTreeMap<String, u32>,
    /// Uids whose allocations were released.
    released: BTreeSet<String>,
    refuse_devices: Option<Rejection>,
}

#[async_trait]
impl PodAllocator for FakeAllocator {
    fn admit_pod(&self, pod: &Pod, others: &[&Pod], _: Option<&Pod>) -> Result<Vec<usize>, Rejection> {
        match &self.0.lock().node {
            Some(node) => admission::admit(pod, others, node, Default::default()),
            None => Ok(Vec::new()),
        }
    }

    async fn allocate_devices(&self, pod: &Pod) -> Result<(), Rejection> {
        let mut state = self.0.lock();
        if let Some(rejection) = state.refuse_devices.clone() {
            return Err(rejection);
        }
        let wanted = devices_of(pod);
        let owned: u32 = state
            .owned
            .iter()
            .filter(|(uid, _)| *uid != policy::uid(pod))
            .map(|(_, n)| n)
            .sum();
        if wanted == 0 || owned + wanted <= state.devices {
            let uid = policy::uid(pod).to_string();
            (wanted > 0).then(|| state.owned.insert(uid, wanted));
            return Ok(());
        }
        Err(Rejection {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("requested {wanted} devices, {owned} of {} are allocated", state.devices),
        })
    }

    fn release_allocation(&self, uid: &str) {
        let mut state = self.0.lock();
        state.released.insert(uid.to_string());
        state.owned.remove(uid);
    }

    fn list_allocated_pods(&self) -> Vec<String> {
        self.0.lock().owned.keys().cloned().collect()
    }

    async fn refresh_node(&self) -> bool {
        let mut state = self.0.lock();
        let newer = state.newer_node.take();
        let is_newer = newer.is_some();
        state.node = newer.or(state.node.take());
        is_newer
    }
}

/// Remembers which pods have volumes and cgroups.
#[derive(Default)]
struct FakeEnvironment(Mutex<Environments>);

#[derive(Default)]
struct Environments {
    /// Uids of pods that are prepared and not cleaned up.
    held: BTreeSet<String>,
    cgroup_updates: usize,
    refuse_mount: Option<String>,
    /// Cleaning up takes up to so many milliseconds.
    clean_up_takes: u64,
    random: Option<Random>,
}

#[async_trait]
impl PodEnvironment for FakeEnvironment {
    async fn prepare_pod(&self, pod: &Pod) -> Result<(), Vec<PrepareError>> {
        let mut state = self.0.lock();
        if let Some(message) = state.refuse_mount.clone() {
            return Err(vec![PrepareError {
                reason: "FailedMount",
                message,
            }]);
        }
        state.held.insert(policy::uid(pod).to_string());
        Ok(())
    }

    async fn refresh_volumes(&self, _: &Pod) {}

    async fn grow_pod_cgroup(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn update_pod_cgroup(&self, _: &Pod) -> Result<(), CgroupError> {
        self.0.lock().cgroup_updates += 1;
        Ok(())
    }

    async fn clean_up_pod(&self, uid: &str) -> Result<(), CleanUpError> {
        let delay = {
            let mut state = self.0.lock();
            let most = state.clean_up_takes;
            state
                .random
                .as_mut()
                .filter(|_| most > 0)
                .map(|random| random.below(most))
        };
        if let Some(delay) = delay {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        self.0.lock().held.remove(uid);
        Ok(())
    }

    async fn remove_pod_logs(&self, _: &str, _: &str, _: &str) {}

    async fn list_pods_on_disk(&self) -> Vec<String> {
        self.0.lock().held.iter().cloned().collect()
    }
}

/// Has every image, unless told otherwise.
#[derive(Default)]
struct FakeConfigurator(Mutex<Refusals>);

#[derive(Default)]
struct Refusals {
    image: Option<ContainerStartError>,
    config: Option<String>,
}

#[async_trait]
impl ContainerConfigurator for FakeConfigurator {
    async fn prepare_runtime_handler(&self, _: &Pod) -> Result<String, ConfigError> {
        Ok(String::new())
    }

    fn generate_sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, ConfigError> {
        Ok(cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: policy::name(pod).into(),
                namespace: policy::namespace(pod).into(),
                uid: policy::uid(pod).into(),
                attempt,
            }),
            labels: labels::sandbox_labels(pod),
            annotations: labels::sandbox_annotations(pod),
            ..Default::default()
        })
    }

    async fn ensure_images_exist(
        &self,
        _: &Pod,
        container: &Container,
        _: &cri::PodSandboxConfig,
    ) -> Result<ContainerImages, ContainerStartError> {
        match self.0.lock().image.clone() {
            Some(error) => Err(error),
            None => Ok(ContainerImages {
                image_ref: container.image.clone().unwrap_or_default(),
                ..ContainerImages::default()
            }),
        }
    }

    async fn count_restarts_from_logs(&self, _: &Pod, _: &str) -> u32 {
        0
    }

    async fn generate_container_config(
        &self,
        request: &ContainerRequest<'_>,
    ) -> Result<cri::ContainerConfig, ConfigError> {
        if let Some(error) = self.0.lock().config.clone() {
            return Err(SpecError::new(error).into());
        }
        let (pod, container) = (request.pod, request.container);
        let mut annotations = labels::container_annotations(pod, container, request.restart_count);
        if request.place.kind == Kind::Init && !policy::is_sidecar(container) {
            annotations.insert(orlop_runtime::simulated::behaviour::INIT.into(), "true".into());
        }
        Ok(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: container.name.clone(),
                attempt: request.restart_count,
            }),
            image: Some(cri::ImageSpec {
                image: request.image.image_ref.clone(),
                ..Default::default()
            }),
            labels: labels::container_labels(pod, container),
            annotations,
            ..Default::default()
        })
    }

    fn generate_container_resources(&self, _: &Pod, _: &Container) -> cri::LinuxContainerResources {
        cri::LinuxContainerResources::default()
    }

    fn forget_image_backoffs(&self, _: &str) {}
}

/// Probes whose results tests set.
#[derive(Default)]
struct FakeProber(Mutex<ProbeState>);

#[derive(Default)]
struct ProbeState {
    running: BTreeMap<String, Vec<RunningContainer>>,
    results: BTreeMap<String, Vec<(String, Probed)>>,
}

impl PodProber for FakeProber {
    fn update_probes(&self, pod: &Pod, running: &[RunningContainer], _: Option<&str>) {
        let uid = policy::uid(pod).to_string();
        self.0.lock().running.insert(uid, running.to_vec());
    }

    fn probe_results(&self, uid: &str) -> Vec<(String, Probed)> {
        self.0.lock().results.get(uid).cloned().unwrap_or_default()
    }

    fn stop_liveness_and_startup(&self, _: &str) {}

    fn remove_pod(&self, _: &str) {}
}

/// What outlives a kubelet process: the fakes, and the events recorded so far as `who Reason: note`.
#[derive(Clone, Default)]
struct Fakes {
    allocator: Arc<FakeAllocator>,
    environment: Arc<FakeEnvironment>,
    configurator: Arc<FakeConfigurator>,
    prober: Arc<FakeProber>,
    events: Arc<Mutex<Vec<String>>>,
    metrics: Arc<Metrics>,
}

impl Fakes {
    fn recorder(&self) -> Events {
        let events = self.events.clone();
        Events::to(move |event| {
            let container = event.regarding.field_path.split_once('{');
            let who = match container {
                Some((_, rest)) => rest.trim_end_matches('}'),
                None => &event.regarding.name,
            };
            events.lock().push(format!("{who} {}: {}", event.reason, event.note));
        })
    }
}

/// What the pod asks for of `example.com/device`.
fn devices_of(pod: &Pod) -> u32 {
    let limits = policy::regular_containers(pod)
        .iter()
        .filter_map(|c| c.resources.as_ref()?.limits.as_ref());
    limits
        .filter_map(|limits| limits.get("example.com/device")?.0.parse::<u32>().ok())
        .sum()
}

/// A node whose time only tests move.
struct World {
    clock: Clock,
    runtime: Simulated,
    fakes: Fakes,
    workers: Workers,
    writer: Writer,
    shutdown: Shutdown,
}

const STEP: Duration = Duration::from_millis(100);

impl World {
    fn new() -> World {
        let clock = Clock::manual(epoch());
        let runtime = Simulated::for_tests(&clock);
        World::over(clock, runtime, Fakes::default())
    }

    fn over(clock: Clock, runtime: Simulated, fakes: Fakes) -> World {
        let shutdown = Shutdown::default();
        let (writer, _) = Writer::start(None, Arc::new(|_| None), shutdown.clone());
        let workers = Workers::new(Options {
            runtime: Arc::new(runtime.clone()),
            allocator: fakes.allocator.clone(),
            environment: fakes.environment.clone(),
            configurator: fakes.configurator.clone(),
            prober: fakes.prober.clone(),
            writer: writer.clone(),
            events: fakes.recorder(),
            metrics: fakes.metrics.clone(),
            host: Host {
                ips: vec!["192.168.0.1".into()],
                runtime_name: "simulated".into(),
                recursive_read_only: false,
            },
            restart_pace: Pace::default(),
            sync_frequency: Duration::from_secs(60),
            clock: clock.clone(),
            shutdown: shutdown.clone(),
        });
        let running = workers.clone();
        tokio::spawn(async move { running.run().await });
        World {
            clock,
            runtime,
            fakes,
            workers,
            writer,
            shutdown,
        }
    }

    /// Another kubelet process takes over: same runtime, same files.
    async fn restarted(self) -> World {
        self.shutdown.trigger();
        self.pass(1.0).await;
        World::over(self.clock.clone(), self.runtime.clone(), self.fakes.clone())
    }

    /// The node has so many cpus, and 8 GiB.
    fn has_cpus(&self, cpus: u32) {
        let node =
            serde_json::json!({"status": {"allocatable": {"cpu": cpus.to_string(), "memory": "8Gi", "pods": "110"}}});
        self.fakes.allocator.0.lock().node = Some(orlop_api::types::from_value(node).unwrap());
        self.workers.sources_ready();
    }

    async fn pass(&self, seconds: f64) {
        let steps = (seconds / STEP.as_secs_f64()).ceil() as u64;
        for _ in 0..steps.max(1) {
            self.runtime.advance(STEP);
            tokio::time::sleep(STEP).await;
        }
    }

    /// Calls that change something, without the parts that are the same in all of them.
    fn calls(&self) -> Vec<String> {
        let calls = self.runtime.take_calls();
        calls.iter().map(|call| call.to_string().replace("ns/p", "p")).collect()
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.fakes.events.lock())
    }

    fn status(&self) -> PodStatus {
        self.workers.status("uid").unwrap_or_default()
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap_or_default()
    }

    /// `a=running#1 b=waiting(ErrImagePull)`
    fn states(&self) -> String {
        let status = self.status();
        let lists = [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ];
        let words = lists.into_iter().flatten().flatten().map(|c| {
            let state = c.state.clone().unwrap_or_default();
            let text = match (&state.waiting, &state.running, &state.terminated) {
                (Some(w), ..) => format!("waiting({})", w.reason.as_deref().unwrap_or_default()),
                (_, Some(_), _) => "running".into(),
                (.., Some(t)) => format!("ended({})", t.exit_code),
                _ => "?".into(),
            };
            let count = if c.restart_count > 0 {
                format!("#{}", c.restart_count)
            } else {
                String::new()
            };
            format!("{}={text}{count}", c.name)
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn set_probe(&self, name: &str, set: impl Fn(&mut Probed)) {
        {
            let mut state = self.fakes.prober.0.lock();
            let running = state.running.get("uid").cloned().unwrap_or_default();
            let id = running
                .iter()
                .find(|r| r.name == name)
                .map(|r| r.id.clone())
                .unwrap_or_default();
            let list = state.results.entry("uid".into()).or_default();
            if !list.iter().any(|(n, p)| n == name && p.container_id == id) {
                list.retain(|(n, _)| n != name);
                list.push((
                    name.into(),
                    Probed {
                        container_id: id,
                        ..Default::default()
                    },
                ));
            }
            list.iter_mut()
                .filter(|(n, _)| n == name)
                .for_each(|(_, probed)| set(probed));
        }
        self.workers.probed("uid");
    }
}

fn annotated(mut pod: Pod, notes: &[(&str, &str)]) -> Arc<Pod> {
    let all = pod.metadata.annotations.get_or_insert_default();
    all.extend(
        notes
            .iter()
            .map(|(key, value)| (format!("orlop.io/{key}"), value.to_string())),
    );
    Arc::new(pod)
}

fn deleted(pod: &Pod, grace: i64) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Time(epoch()));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    Arc::new(pod)
}
