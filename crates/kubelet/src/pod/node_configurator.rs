//! The tools of a worker on a real node: volumes, images, probes, cgroups and the messages for the runtime, put together
//! from the modules that know each of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orlop_api::types::core::{Container, HTTPGetAction, Pod, Service};
use orlop_base::{BoxFuture, Random};
use orlop_client::EventType;
use orlop_runtime::cri::messages as cri;
use orlop_runtime::simulated::behaviour::INIT;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::policy::{self, Kind};
use super::status::Host;
use super::tools::{ContainerRequest, Pulled, Refusal, Rejection, Running, Tools, Trouble};
use super::worker_state::{Pace, Probed};
use crate::cgroups::Cgroups;
use crate::cpus::Cpus;
use crate::devices::Devices;
use crate::events::Events;
use crate::images::Images;
use crate::metrics::Metrics;
use crate::node::RuntimeView;
use crate::node::status::network_trouble;
use crate::objects::Objects;
use crate::probes::{ProbeTarget, Probes, http};
use crate::spec::{self, ContainerInput, ContainerKind, NodeFacts, Users, env, files, labels};
use crate::volumes::Volumes;

/// Upstream sets no limit for a hook's request; the hook's own time is limited elsewhere.
const HTTP_HOOK_MAX: Duration = Duration::from_secs(600);

/// Services whose variables containers get.
pub type Services = Arc<dyn Fn() -> Vec<Arc<Service>> + Send + Sync>;
/// Whether a pod may run here beside those that do, and which of them have to go for it.
pub type Admission = Arc<dyn Fn(&Pod, &[&Pod]) -> Result<Vec<usize>, Rejection> + Send + Sync>;

/// Looks at the Node object anew; true if there is a newer one.
pub type RefreshNode = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

pub struct NodeTools {
    pub volumes: Volumes,
    pub objects: Objects,
    pub images: Images,
    pub probes: Probes,
    /// `None` where pods have no groups of their own.
    pub cgroups: Option<Cgroups>,
    /// `None` where all containers share all CPUs.
    pub cpus: Option<Cpus>,
    /// `None` where no plugins can bring devices.
    pub devices: Option<Devices>,
    pub facts: watch::Receiver<Arc<NodeFacts>>,
    pub users: Users,
    /// What the runtime last said of itself.
    pub runtime: watch::Receiver<RuntimeView>,
    pub events: Events,
    pub services: Services,
    /// `None`: all that fits may run.
    pub admission: Option<Admission>,
    /// `None` where there is no Node object.
    pub refresh_node: Option<RefreshNode>,
    /// What container ids begin with, and whether the runtime can make mounts read-only all the way down.
    pub runtime_name: String,
    pub recursive_read_only: bool,
    pub random: Mutex<Random>,
    /// How long containers that end wait before they start again.
    pub restart_pace: Pace,
    pub metrics: Arc<Metrics>,
}

impl NodeTools {
    async fn handler(&self, pod: &Pod) -> Result<String, String> {
        let class = policy::spec(pod).runtime_class_name.as_deref().unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let path = ("node.k8s.io/v1", "runtimeclasses");
        let found: Result<serde_json::Value, _> = self.objects.fetch(path.0, None, path.1, "RuntimeClass", class).await;
        match found {
            Ok(object) => Ok(object["handler"].as_str().unwrap_or_default().to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn prepare_group(&self, pod: &Pod) -> Result<(), Vec<Trouble>> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        cgroups.ensure_pod(pod).await.map_err(|error| {
            vec![Trouble {
                reason: "FailedCreatePodContainer",
                message: format!("unable to ensure pod container exists: {error}"),
            }]
        })
    }

    async fn prepare_files(&self, pod: &Pod) -> Result<(), Vec<Trouble>> {
        let trouble = |reason, message| Trouble { reason, message };
        let (wanted, facts) = (pod.clone(), self.facts());
        let made = blocking(move || files::make_dirs(&wanted, &facts).map_err(|error| error.to_string()));
        made.await
            .map_err(|error| vec![trouble("Failed", format!("error making pod data directories: {error}"))])?;
        let mounted = self.volumes.set_up(pod).await;
        mounted.map_err(|error| {
            let texts = error.events().into_iter();
            texts.map(|message| trouble("FailedMount", message)).collect()
        })
    }

    fn facts(&self) -> Arc<NodeFacts> {
        self.facts.borrow().clone()
    }

    /// Keeps a container on the CPUs that it may run on. Those of its own it may use all the time.
    fn pin(&self, pod: &Pod, container: &str, resources: &mut cri::LinuxContainerResources) {
        let Some(cpus) = &self.cpus else { return };
        resources.cpuset_cpus = cpus.of(policy::uid(pod), container).to_string();
        if cpus.has_own(policy::uid(pod), container) {
            resources.cpu_quota = -1;
        }
    }
}

/// File systems may take their time: not on the threads of the async runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    match crate::blocking::run(work).await {
        Ok(answer) => answer,
        Err(error) => Err(error.to_string()),
    }
}

#[async_trait]
impl Tools for NodeTools {
    fn host(&self) -> Host {
        Host {
            ips: self.facts.borrow().addresses.iter().map(|ip| ip.to_string()).collect(),
            runtime_name: self.runtime_name.clone(),
            recursive_read_only: self.recursive_read_only,
        }
    }

    fn restart_pace(&self) -> Pace {
        self.restart_pace
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn admit(&self, pod: &Pod, others: &[&Pod], now: Option<&Pod>) -> Result<Vec<usize>, Rejection> {
        let facts = self.facts();
        if let Some(message) = now.and_then(|now| spec::never_resized(pod, now, &facts)) {
            return Err(Rejection {
                reason: "Infeasible".to_string(),
                message,
            });
        }
        if let Some(notice) = spec::refusal(pod, &facts) {
            return Err(Rejection {
                reason: notice.reason.to_string(),
                message: notice.message,
            });
        }
        let cpus = self.cpus.as_ref().filter(|_| now.is_none());
        cpus.map_or(Ok(()), |cpus| cpus.admit(pod))?;
        let admission = self.admission.as_ref();
        let answer = admission.map_or(Ok(Vec::new()), |admission| admission(pod, others));
        if answer.is_err()
            && let Some(cpus) = cpus
        {
            cpus.release(policy::uid(pod));
        }
        answer
    }

    async fn claim(&self, pod: &Pod) -> Result<(), Rejection> {
        match &self.devices {
            Some(devices) => devices.claim(pod).await,
            None => Ok(()),
        }
    }

    fn leave(&self, uid: &str) {
        if let Some(cpus) = &self.cpus {
            cpus.release(uid);
        }
        if let Some(devices) = &self.devices {
            devices.release(uid);
        }
    }

    fn holders(&self) -> Vec<String> {
        let mut uids = self.cpus.as_ref().map(Cpus::pods).unwrap_or_default();
        uids.extend(self.devices.as_ref().map(Devices::pods).unwrap_or_default());
        uids
    }

    async fn refresh_node(&self) -> bool {
        match &self.refresh_node {
            Some(refresh) => refresh().await,
            None => false,
        }
    }

    fn event(&self, pod: &Pod, container: Option<&str>, kind: EventType, reason: &'static str, note: String) {
        match container {
            Some(name) => self.events.container(pod, name, kind, reason, note),
            None => self.events.pod(pod, kind, reason, note),
        }
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), Vec<Trouble>> {
        let trouble = |reason, message| vec![Trouble { reason, message }];
        let network = network_trouble(&self.runtime.borrow());
        if let Some(why) = network.filter(|_| !policy::is_host_network(pod)) {
            return Err(trouble("NetworkNotReady", format!("network is not ready: {why}")));
        }
        if policy::spec(pod)
            .resource_claims
            .as_ref()
            .is_some_and(|claims| !claims.is_empty())
        {
            // Without its devices a pod must not run.
            let why = "Failed to prepare dynamic resources: this node agent prepares no resource claims";
            return Err(trouble("FailedPrepareDynamicResources", why.to_string()));
        }
        // Neither needs the other, and a pod's start waits for both.
        let (group, files) = tokio::join!(self.prepare_group(pod), self.prepare_files(pod));
        group?;
        files
    }

    fn refresh_every(&self) -> Duration {
        self.facts.borrow().sync_frequency
    }

    async fn refresh(&self, pod: &Pod) {
        for failure in self.volumes.refresh(pod).await {
            self.events.pod(pod, EventType::Warning, "FailedMount", failure.message);
        }
    }

    fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, String> {
        let users = self.users.known(pod);
        let config = spec::sandbox_config(pod, &self.facts(), attempt, users.as_ref());
        config.map_err(|error| error.to_string())
    }

    async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        for notice in spec::sandbox_notices(pod, &self.facts()) {
            self.events.pod(pod, EventType::Warning, notice.reason, notice.message);
        }
        let handler = self.handler(pod).await?;
        if policy::spec(pod).host_users == Some(false) {
            let can = self.runtime.borrow().handler_features(&handler).user_namespaces;
            let (users, pod, name) = (self.users.clone(), pod.clone(), handler.clone());
            blocking(move || users.ensure(&pod, &name, can).map_err(|error| error.to_string())).await?;
        }
        Ok(handler)
    }

    async fn image(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Pulled, Refusal> {
        let refusal = |error: crate::images::ImageError| Refusal {
            reason: error.reason.to_string(),
            message: error.message,
            retry_after: error.retry_after,
        };
        let mut volumes = BTreeMap::new();
        for (name, source) in crate::volumes::image::of(pod, container) {
            let pulled = self.images.ensure_volume(pod, container, source, sandbox).await;
            let spec = cri::ImageSpec {
                image: pulled.map_err(refusal)?.image_ref,
                user_specified_image: source.reference.clone().unwrap_or_default(),
                annotations: pod.metadata.annotations.clone().unwrap_or_default(),
                ..cri::ImageSpec::default()
            };
            volumes.insert(name.to_string(), spec);
        }
        let pulled = self.images.ensure(pod, container, sandbox).await.map_err(refusal)?;
        Ok(Pulled {
            image_ref: pulled.image_ref,
            image: pulled.image,
            volumes,
        })
    }

    async fn restarts_from_logs(&self, pod: &Pod, container: &str) -> u32 {
        let logs = spec::pod_log_dir(pod, &self.facts()).join(container);
        let count = blocking(move || {
            let entries = std::fs::read_dir(logs).map_err(|error| error.to_string())?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let counts = names.filter_map(|name| name.split_once(".log")?.0.parse::<u32>().ok());
            Ok(counts.max().map_or(0, |last| last.saturating_add(1)))
        });
        count.await.unwrap_or(0)
    }

    async fn container_config(&self, wanted: &ContainerRequest<'_>) -> Result<cri::ContainerConfig, String> {
        let ContainerRequest {
            pod,
            container,
            pod_ips,
            ..
        } = *wanted;
        let facts = self.facts();
        let services = (self.services)();
        let env = env::resolve(pod, container, &self.objects, &services, pod_ips, &facts).await;
        let env = env.map_err(|error| error.to_string())?;
        let mounts = self
            .volumes
            .mounts(pod, container, &env, &wanted.image.volumes)
            .await
            .map_err(|error| error.to_string())?;
        let devices = self
            .volumes
            .devices(pod, container)
            .map_err(|error| error.to_string())?;
        let tag = format!("{:08x}", self.random.lock().below(1 << 32));
        let termination_log = {
            let (pod, container, facts, ips) = (pod.clone(), container.clone(), facts.clone(), pod_ips.to_vec());
            let made = blocking(move || {
                files::write_hosts(&pod, &facts, &ips).map_err(|error| error.to_string())?;
                let text = |error: std::io::Error| error.to_string();
                files::make_log_dir(&pod, &container.name, &facts).map_err(text)?;
                files::termination_log(&pod, &container, &facts, &tag).map_err(text)
            });
            made.await?
        };
        let kind = match wanted.place.kind {
            Kind::Init => ContainerKind::Init,
            Kind::Regular => ContainerKind::Regular,
            Kind::Ephemeral => ContainerKind::Ephemeral,
        };
        let users = self.users.known(pod);
        let input = ContainerInput {
            attempt: wanted.restart_count,
            image: wanted.image.image.as_ref(),
            env,
            mounts,
            devices,
            pod_ips,
            termination_log: termination_log.as_deref(),
            target: wanted.target,
            users: users.as_ref(),
            ..ContainerInput::new(pod, container, kind, &wanted.image.image_ref, &facts)
        };
        let mut config = spec::container_config(&input).map_err(|error| error.to_string())?;
        labels::note_images(&mut config.annotations, wanted.image.volumes.values());
        if kind == ContainerKind::Init && !policy::is_sidecar(container) {
            // Simulated runtimes end what is meant to end.
            config.annotations.insert(INIT.to_string(), "true".to_string());
        }
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            self.pin(pod, &container.name, resources);
        }
        if let Some(devices) = &self.devices {
            devices.add_to(policy::uid(pod), &container.name, &mut config).await?;
        }
        Ok(config)
    }

    fn linux_resources(&self, pod: &Pod, container: &Container) -> cri::LinuxContainerResources {
        let mut resources = spec::resources::linux_resources(pod, container, &self.facts());
        self.pin(pod, &container.name, &mut resources);
        resources
    }

    async fn make_room(&self, pod: &Pod) -> Result<(), String> {
        match &self.cgroups {
            Some(cgroups) => cgroups.make_room(pod).await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    async fn resize_pod(&self, pod: &Pod) -> Result<(), String> {
        match &self.cgroups {
            Some(cgroups) => cgroups.update_pod(pod).await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    async fn http_get(&self, container: &Container, action: &HTTPGetAction, ip: &str) -> Result<(), String> {
        http::hook(action, container, ip, HTTP_HOOK_MAX).await
    }

    fn probe(&self, pod: &Pod, running: &[Running], ip: Option<&str>) {
        let targets: Vec<ProbeTarget> = running
            .iter()
            .map(|c| ProbeTarget {
                name: c.name.clone(),
                container_id: c.id.clone(),
                started_at: c.started_at,
            })
            .collect();
        self.probes.update(pod, &targets, ip);
    }

    fn probed(&self, uid: &str) -> Vec<(String, Probed)> {
        let results = self.probes.results(uid).containers.into_iter();
        let probed = results.map(|(name, result)| {
            let probed = Probed {
                container_id: result.container_id,
                liveness: result.liveness,
                readiness: result.readiness,
                startup: result.startup,
            };
            (name, probed)
        });
        probed.collect()
    }

    fn probe_no_more(&self, uid: &str) {
        self.probes.terminating(uid);
    }

    async fn release(&self, uid: &str) -> Result<(), String> {
        self.volumes.tear_down(uid).await.map_err(|error| error.to_string())?;
        self.leave(uid);
        self.users.release(uid);
        match &self.cgroups {
            Some(cgroups) => cgroups.remove_pod(uid).await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    async fn forget(&self, namespace: &str, name: &str, uid: &str) {
        self.probes.forget(uid);
        self.images.forget(uid);
        let logs = self.facts().pod_logs_dir.join(format!("{namespace}_{name}_{uid}"));
        let removed = blocking(move || match std::fs::remove_dir_all(&logs) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", logs.display())),
            _ => Ok(()),
        });
        if let Err(error) = removed.await {
            tracing::warn!(err = %error, "failed to remove pod logs");
        }
    }

    async fn left_on_disk(&self) -> Vec<String> {
        let mut uids = self.volumes.known_pods().await;
        if let Some(cgroups) = self.cgroups.clone() {
            let groups = blocking(move || Ok(cgroups.pods())).await.unwrap_or_default();
            uids.extend(groups.into_keys());
        }
        uids.sort();
        uids.dedup();
        uids
    }
}
