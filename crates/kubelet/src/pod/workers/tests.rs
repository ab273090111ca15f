//! Workers over the simulated runtime, with the other tools faked and time that tests move.

mod faults;
mod handover;
mod lifecycle;
mod random;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use orlop_api::types::core::{Container, HTTPGetAction, Node};
use orlop_api::types::meta::Time;
use orlop_base::Random;
use orlop_client::EventType;
use orlop_runtime::cri::messages as cri;
use orlop_runtime::simulated::Simulated;

use super::*;
use crate::metrics::Metrics;
use crate::pod::policy::Kind;
use crate::pod::status::Host;
use crate::pod::testing::epoch;
use crate::pod::tools::{ContainerRequest, Pulled, Refusal, Rejection, Running, Trouble};
use crate::pod::worker_state::Probed;
use crate::sources::admission;
use crate::spec::labels;

#[derive(Default)]
struct FakeState {
    events: Vec<String>,
    /// Uids that hold volumes and cgroups.
    held: BTreeSet<String>,
    /// Uids whose own CPUs and devices are for others again.
    left: BTreeSet<String>,
    probes: BTreeMap<String, Vec<(String, Probed)>>,
    refuse_mount: Option<String>,
    refuse_image: Option<Refusal>,
    refuse_config: Option<String>,
    refuse_devices: Option<Rejection>,
    /// How many devices there are, and by uid how many each pod has for itself.
    devices: u32,
    owned: BTreeMap<String, u32>,
    /// Releasing takes up to so many milliseconds.
    release_takes: u64,
    random: Option<Random>,
    /// What the node becomes when it is looked at anew.
    newer_node: Option<Node>,
    /// What the node has; without it everything fits.
    node: Option<Node>,
    running: BTreeMap<String, Vec<Running>>,
    pod_resizes: usize,
}

#[derive(Default)]
struct FakeTools {
    state: Mutex<FakeState>,
    metrics: Metrics,
}

#[async_trait]
impl Tools for FakeTools {
    fn host(&self) -> Host {
        Host {
            ips: vec!["192.168.0.1".into()],
            runtime_name: "simulated".into(),
            recursive_read_only: false,
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn admit(&self, pod: &Pod, others: &[&Pod], _: Option<&Pod>) -> Result<Vec<usize>, Rejection> {
        match &self.state.lock().node {
            Some(node) => admission::admit(pod, others, node, Default::default()),
            None => Ok(Vec::new()),
        }
    }

    async fn claim(&self, pod: &Pod) -> Result<(), Rejection> {
        let mut state = self.state.lock();
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
            message: format!("{wanted} devices are wanted, {owned} of {} are taken", state.devices),
        })
    }

    fn leave(&self, uid: &str) {
        let mut state = self.state.lock();
        state.left.insert(uid.to_string());
        state.owned.remove(uid);
    }

    fn holders(&self) -> Vec<String> {
        self.state.lock().owned.keys().cloned().collect()
    }

    async fn refresh_node(&self) -> bool {
        let mut state = self.state.lock();
        let newer = state.newer_node.take();
        let is_newer = newer.is_some();
        state.node = newer.or(state.node.take());
        is_newer
    }

    fn event(&self, pod: &Pod, container: Option<&str>, _: EventType, reason: &'static str, note: String) {
        let whom = container.map_or_else(|| policy::name(pod).to_string(), String::from);
        self.state.lock().events.push(format!("{whom} {reason}: {note}"));
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), Vec<Trouble>> {
        let mut state = self.state.lock();
        if let Some(message) = state.refuse_mount.clone() {
            return Err(vec![Trouble {
                reason: "FailedMount",
                message,
            }]);
        }
        state.held.insert(policy::uid(pod).to_string());
        Ok(())
    }

    async fn refresh(&self, _: &Pod) {}

    fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, String> {
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

    async fn runtime_handler(&self, _: &Pod) -> Result<String, String> {
        Ok(String::new())
    }

    async fn image(&self, _: &Pod, c: &Container, _: &cri::PodSandboxConfig) -> Result<Pulled, Refusal> {
        match self.state.lock().refuse_image.clone() {
            Some(refusal) => Err(refusal),
            None => Ok(Pulled {
                image_ref: c.image.clone().unwrap_or_default(),
                ..Pulled::default()
            }),
        }
    }

    async fn restarts_from_logs(&self, _: &Pod, _: &str) -> u32 {
        0
    }

    async fn container_config(&self, wanted: &ContainerRequest<'_>) -> Result<cri::ContainerConfig, String> {
        if let Some(error) = self.state.lock().refuse_config.clone() {
            return Err(error);
        }
        let (pod, container) = (wanted.pod, wanted.container);
        let mut annotations = labels::container_annotations(pod, container, wanted.restart_count);
        if wanted.place.kind == Kind::Init && !policy::is_sidecar(container) {
            annotations.insert(orlop_runtime::simulated::behaviour::INIT.into(), "true".into());
        }
        Ok(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: container.name.clone(),
                attempt: wanted.restart_count,
            }),
            image: Some(cri::ImageSpec {
                image: wanted.image.image_ref.clone(),
                ..Default::default()
            }),
            labels: labels::container_labels(pod, container),
            annotations,
            ..Default::default()
        })
    }

    fn linux_resources(&self, _: &Pod, _: &Container) -> cri::LinuxContainerResources {
        cri::LinuxContainerResources::default()
    }

    async fn make_room(&self, _: &Pod) -> Result<(), String> {
        Ok(())
    }

    async fn resize_pod(&self, _: &Pod) -> Result<(), String> {
        self.state.lock().pod_resizes += 1;
        Ok(())
    }

    async fn http_get(&self, _: &Container, _: &HTTPGetAction, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn probe(&self, pod: &Pod, running: &[Running], _: Option<&str>) {
        self.state
            .lock()
            .running
            .insert(policy::uid(pod).into(), running.to_vec());
    }

    fn probed(&self, uid: &str) -> Vec<(String, Probed)> {
        self.state.lock().probes.get(uid).cloned().unwrap_or_default()
    }

    fn probe_no_more(&self, _: &str) {}

    async fn release(&self, uid: &str) -> Result<(), String> {
        let delay = {
            let mut state = self.state.lock();
            let most = state.release_takes;
            state
                .random
                .as_mut()
                .filter(|_| most > 0)
                .map(|random| random.below(most))
        };
        if let Some(delay) = delay {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        self.state.lock().held.remove(uid);
        Ok(())
    }

    async fn forget(&self, _: &str, _: &str, _: &str) {}

    async fn left_on_disk(&self) -> Vec<String> {
        self.state.lock().held.iter().cloned().collect()
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
    tools: Arc<FakeTools>,
    workers: Workers,
    writer: Writer,
    shutdown: Shutdown,
}

const STEP: Duration = Duration::from_millis(100);

impl World {
    fn new() -> World {
        let clock = Clock::manual(epoch());
        let runtime = Simulated::for_tests(&clock);
        World::over(clock, runtime, Arc::default())
    }

    fn over(clock: Clock, runtime: Simulated, tools: Arc<FakeTools>) -> World {
        let shutdown = Shutdown::default();
        let (writer, _) = Writer::start(None, Arc::new(|_| None), shutdown.clone());
        let workers = Workers::new(
            Arc::new(runtime.clone()),
            tools.clone(),
            writer.clone(),
            clock.clone(),
            shutdown.clone(),
        );
        let running = workers.clone();
        tokio::spawn(async move { running.run().await });
        World {
            clock,
            runtime,
            tools,
            workers,
            writer,
            shutdown,
        }
    }

    /// Another agent takes over: same runtime, same files.
    async fn restarted(self) -> World {
        self.shutdown.trigger();
        self.pass(1.0).await;
        World::over(self.clock.clone(), self.runtime.clone(), self.tools.clone())
    }

    /// The node has so many cpus, and 8 GiB.
    fn has_cpus(&self, cpus: u32) {
        let node =
            serde_json::json!({"status": {"allocatable": {"cpu": cpus.to_string(), "memory": "8Gi", "pods": "110"}}});
        self.tools.state.lock().node = Some(orlop_api::types::from_value(node).unwrap());
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
        std::mem::take(&mut self.tools.state.lock().events)
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
            let mut state = self.tools.state.lock();
            let running = state.running.get("uid").cloned().unwrap_or_default();
            let id = running
                .iter()
                .find(|r| r.name == name)
                .map(|r| r.id.clone())
                .unwrap_or_default();
            let list = state.probes.entry("uid".into()).or_default();
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
