//! The tools of a worker on a real node: volumes, images, probes, cgroups and the messages for the runtime, put together
//! from the modules that know each of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Service};
use orlop_base::Random;
use orlop_client::EventType;
use orlop_runtime::cri::messages as cri;
use orlop_runtime::simulated::behaviour::INIT;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::memory::Probed;
use super::policy::{self, Kind};
use super::status::Host;
use super::tools::{Pulled, Refusal, Rejection, Room, Running, Tools, Trouble, Wanted};
use crate::cgroups::Cgroups;
use crate::events::Events;
use crate::images::Images;
use crate::objects::Objects;
use crate::probes::{ProbeTarget, Probes, http};
use crate::spec::{self, ContainerInput, ContainerKind, NodeFacts, env, files};
use crate::volumes::Volumes;

/// Upstream sets no limit for a hook's request; the hook's own time is limited elsewhere.
const HTTP_HOOK_MAX: Duration = Duration::from_secs(600);

/// Services whose variables containers get.
pub type Services = Arc<dyn Fn() -> Vec<Arc<Service>> + Send + Sync>;
/// Whether a pod may run here beside those that do.
pub type Admission = Arc<dyn Fn(&Pod, &[&Pod]) -> Result<(), Rejection> + Send + Sync>;

pub struct NodeTools {
    pub volumes: Volumes,
    pub objects: Objects,
    pub images: Images,
    pub probes: Probes,
    /// `None` where pods have no groups of their own.
    pub cgroups: Option<Cgroups>,
    pub facts: watch::Receiver<Arc<NodeFacts>>,
    pub events: Events,
    pub services: Services,
    /// `None`: all that fits may run.
    pub admission: Option<Admission>,
    /// What container ids begin with, and whether the runtime can make mounts read-only all the way down.
    pub runtime_name: String,
    pub recursive_read_only: bool,
    pub random: Mutex<Random>,
}

impl NodeTools {
    fn facts(&self) -> Arc<NodeFacts> {
        self.facts.borrow().clone()
    }

    async fn cgroup(
        &self,
        work: impl FnOnce(&Cgroups) -> crate::cgroups::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else {
            return Ok(());
        };
        blocking(move || work(&cgroups).map_err(|error| error.to_string())).await
    }
}

/// File systems may take their time: not on the threads of the async runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
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

    fn room(&self) -> Option<Room> {
        let facts = self.facts();
        let amounts = &facts.allocatable;
        Some(Room {
            cpu_milli: amounts.get("cpu")?.milli_value(),
            memory: amounts.get("memory")?.value(),
            pods: amounts.get("pods")?.value(),
        })
    }

    fn admit(&self, pod: &Pod, others: &[&Pod]) -> Result<(), Rejection> {
        if let Some(notice) = spec::refusal(pod, &self.facts()) {
            return Err(Rejection {
                reason: notice.reason.to_string(),
                message: notice.message,
            });
        }
        self.admission
            .as_ref()
            .map_or(Ok(()), |admission| admission(pod, others))
    }

    fn event(&self, pod: &Pod, container: Option<&str>, kind: EventType, reason: &'static str, note: String) {
        match container {
            Some(name) => self.events.container(pod, name, kind, reason, note),
            None => self.events.pod(pod, kind, reason, note),
        }
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), Vec<Trouble>> {
        let trouble = |reason, message| vec![Trouble { reason, message }];
        let wanted = pod.clone();
        self.cgroup(move |cgroups| cgroups.ensure_pod(&wanted))
            .await
            .map_err(|error| {
                trouble(
                    "FailedCreatePodContainer",
                    format!("unable to ensure pod container exists: {error}"),
                )
            })?;
        let (wanted, facts) = (pod.clone(), self.facts());
        let made = blocking(move || files::make_dirs(&wanted, &facts).map_err(|error| error.to_string()));
        made.await
            .map_err(|error| trouble("Failed", format!("error making pod data directories: {error}")))?;
        self.volumes.set_up(pod).await.map_err(|error| {
            let texts = error.events().into_iter();
            texts
                .map(|message| Trouble {
                    reason: "FailedMount",
                    message,
                })
                .collect()
        })
    }

    async fn refresh(&self, pod: &Pod) {
        for failure in self.volumes.refresh(pod).await {
            self.events.pod(pod, EventType::Warning, "FailedMount", failure.message);
        }
    }

    fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, String> {
        if policy::spec(pod).host_users == Some(false) {
            // Better no pod than one with more power than it should have.
            return Err("can't set `spec.hostUsers: false`, runtime does not support user namespaces".into());
        }
        spec::sandbox_config(pod, &self.facts(), attempt).map_err(|error| error.to_string())
    }

    async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        for notice in spec::sandbox_notices(pod, &self.facts()) {
            self.events.pod(pod, EventType::Warning, notice.reason, notice.message);
        }
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

    async fn image(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Pulled, Refusal> {
        let answer = self.images.ensure(pod, container, sandbox).await;
        let refusal = |error: crate::images::ImageError| Refusal {
            reason: error.reason.to_string(),
            message: error.message,
            retry_after: error.retry_after,
        };
        answer
            .map(|pulled| Pulled {
                image_ref: pulled.image_ref,
                image: pulled.image,
            })
            .map_err(refusal)
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

    async fn container_config(&self, wanted: &Wanted<'_>) -> Result<cri::ContainerConfig, String> {
        let Wanted {
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
            .mounts(pod, container, &env)
            .await
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
        let input = ContainerInput {
            attempt: wanted.restart_count,
            image: wanted.image.image.as_ref(),
            env,
            mounts,
            pod_ips,
            termination_log: termination_log.as_deref(),
            target: wanted.target,
            ..ContainerInput::new(pod, container, kind, &wanted.image.image_ref, &facts)
        };
        let mut config = spec::container_config(&input).map_err(|error| error.to_string())?;
        if kind == ContainerKind::Init && !policy::is_sidecar(container) {
            // Simulated runtimes end what is meant to end.
            config.annotations.insert(INIT.to_string(), "true".to_string());
        }
        Ok(config)
    }

    fn linux_resources(&self, pod: &Pod, container: &Container) -> cri::LinuxContainerResources {
        spec::resources::linux_resources(pod, container, &self.facts())
    }

    async fn resize_pod(&self, pod: &Pod) -> Result<(), String> {
        let wanted = pod.clone();
        self.cgroup(move |cgroups| cgroups.update_pod(&wanted)).await
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
            tracing::warn!("logs can't be removed: {error}");
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
