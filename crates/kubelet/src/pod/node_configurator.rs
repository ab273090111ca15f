//! Images and CRI messages of pods on a real node, put together from the modules that know each part: RuntimeClasses,
//! environment, volumes, images, CPUs and devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use orlop_api::types::core::{Container, Pod, Service};
use orlop_base::Random;
use orlop_client::EventType;
use orlop_runtime::cri::messages as cri;
use orlop_runtime::simulated::behaviour::INIT;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::interfaces::{ConfigError, ContainerConfigurator, ContainerImages, ContainerRequest, ContainerStartError};
use super::policy::{self, Kind};
use crate::blocking;
use crate::cpus::Cpus;
use crate::devices::Devices;
use crate::events::Events;
use crate::images::{ImageError, Images};
use crate::node::RuntimeView;
use crate::objects::{ObjectError, Objects};
use crate::spec::{self, ContainerInput, ContainerKind, NodeFacts, SpecError, Users, env, files, labels};
use crate::volumes::Volumes;

/// Services whose environment variables containers get.
pub type Services = Arc<dyn Fn() -> Vec<Arc<Service>> + Send + Sync>;

pub struct NodeConfigurator {
    pub facts: Arc<NodeFacts>,
    pub objects: Objects,
    pub images: Images,
    pub volumes: Volumes,
    pub users: Users,
    /// `None` where all containers share all CPUs.
    pub cpus: Option<Cpus>,
    /// `None` where device plugins are not supported.
    pub devices: Option<Devices>,
    pub services: Services,
    /// What the runtime last reported of itself.
    pub runtime: watch::Receiver<RuntimeView>,
    pub events: Events,
    pub random: Mutex<Random>,
}

impl NodeConfigurator {
    async fn runtime_class_handler(&self, pod: &Pod) -> Result<String, ObjectError> {
        let class = policy::spec(pod).runtime_class_name.as_deref().unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let (group, plural) = ("node.k8s.io/v1", "runtimeclasses");
        let object: serde_json::Value = self.objects.fetch(group, None, plural, "RuntimeClass", class).await?;
        Ok(object["handler"].as_str().unwrap_or_default().to_string())
    }

    /// Restricts a container to its cpuset. CPUs of its own it may use all the time.
    fn pin_cpus(&self, pod: &Pod, container: &str, resources: &mut cri::LinuxContainerResources) {
        let Some(cpus) = &self.cpus else { return };
        resources.cpuset_cpus = cpus.of(policy::uid(pod), container).to_string();
        if cpus.has_own(policy::uid(pod), container) {
            resources.cpu_quota = -1;
        }
    }

    /// The files that a container finds in place: /etc/hosts, its log directory and its termination message. Returns the
    /// path of the last.
    async fn write_files(&self, request: &ContainerRequest<'_>) -> Result<Option<std::path::PathBuf>, ConfigError> {
        let tag = format!("{:08x}", self.random.lock().below(1 << 32));
        let (pod, container) = (request.pod.clone(), request.container.clone());
        let (facts, ips) = (self.facts.clone(), request.pod_ips.to_vec());
        let written = blocking::run(move || {
            files::write_hosts(&pod, &facts, &ips)?;
            files::make_log_dir(&pod, &container.name, &facts)?;
            Ok(files::termination_log(&pod, &container, &facts, &tag)?)
        });
        written
            .await
            .unwrap_or_else(|panicked| Err(std::io::Error::other(panicked).into()))
    }
}

fn start_error(error: ImageError) -> ContainerStartError {
    ContainerStartError {
        reason: error.reason.to_string(),
        message: error.message,
        retry_after: error.retry_after,
    }
}

#[async_trait]
impl ContainerConfigurator for NodeConfigurator {
    async fn prepare_runtime_handler(&self, pod: &Pod) -> Result<String, ConfigError> {
        for notice in spec::sandbox_notices(pod, &self.facts) {
            self.events.pod(pod, EventType::Warning, notice.reason, notice.message);
        }
        let handler = self.runtime_class_handler(pod).await?;
        if policy::spec(pod).host_users == Some(false) {
            let is_supported = self.runtime.borrow().handler_features(&handler).user_namespaces;
            let (users, pod, name) = (self.users.clone(), pod.clone(), handler.clone());
            let ensured = blocking::run(move || users.ensure(&pod, &name, is_supported)).await;
            ensured.unwrap_or_else(|panicked| Err(SpecError::new(panicked.to_string())))?;
        }
        Ok(handler)
    }

    fn generate_sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<cri::PodSandboxConfig, ConfigError> {
        let users = self.users.known(pod);
        Ok(spec::sandbox_config(pod, &self.facts, attempt, users.as_ref())?)
    }

    async fn ensure_images_exist(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<ContainerImages, ContainerStartError> {
        let mut volumes = BTreeMap::new();
        for (name, source) in crate::volumes::image::of(pod, container) {
            let pulled = self.images.ensure_volume(pod, container, source, sandbox).await;
            let spec = cri::ImageSpec {
                image: pulled.map_err(start_error)?.image_ref,
                user_specified_image: source.reference.clone().unwrap_or_default(),
                annotations: pod.metadata.annotations.clone().unwrap_or_default(),
                ..cri::ImageSpec::default()
            };
            volumes.insert(name.to_string(), spec);
        }
        let pulled = self.images.ensure(pod, container, sandbox).await.map_err(start_error)?;
        Ok(ContainerImages {
            image_ref: pulled.image_ref,
            image: pulled.image,
            volumes,
        })
    }

    async fn count_restarts_from_logs(&self, pod: &Pod, container: &str) -> u32 {
        let logs = spec::pod_log_dir(pod, &self.facts).join(container);
        let count = blocking::run_io(move || {
            let names = std::fs::read_dir(logs)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let counts = names.filter_map(|name| name.split_once(".log")?.0.parse::<u32>().ok());
            Ok(counts.max().map_or(0, |last| last.saturating_add(1)))
        });
        count.await.unwrap_or(0)
    }

    async fn generate_container_config(
        &self,
        request: &ContainerRequest<'_>,
    ) -> Result<cri::ContainerConfig, ConfigError> {
        let ContainerRequest {
            pod,
            container,
            pod_ips,
            ..
        } = *request;
        let services = (self.services)();
        let env = env::resolve(pod, container, &self.objects, &services, pod_ips, &self.facts).await?;
        let mounts = self
            .volumes
            .mounts(pod, container, &env, &request.image.volumes)
            .await?;
        let devices = self.volumes.devices(pod, container)?;
        let termination_log = self.write_files(request).await?;
        let kind = match request.place.kind {
            Kind::Init => ContainerKind::Init,
            Kind::Regular => ContainerKind::Regular,
            Kind::Ephemeral => ContainerKind::Ephemeral,
        };
        let users = self.users.known(pod);
        let input = ContainerInput {
            attempt: request.restart_count,
            image: request.image.image.as_ref(),
            env,
            mounts,
            devices,
            pod_ips,
            termination_log: termination_log.as_deref(),
            target: request.target,
            users: users.as_ref(),
            ..ContainerInput::new(pod, container, kind, &request.image.image_ref, &self.facts)
        };
        let mut config = spec::container_config(&input)?;
        labels::note_images(&mut config.annotations, request.image.volumes.values());
        if kind == ContainerKind::Init && !policy::is_sidecar(container) {
            // Tells simulated runtimes that this container is expected to exit.
            config.annotations.insert(INIT.to_string(), "true".to_string());
        }
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            self.pin_cpus(pod, &container.name, resources);
        }
        if let Some(devices) = &self.devices {
            devices.add_to(policy::uid(pod), &container.name, &mut config).await?;
        }
        Ok(config)
    }

    fn generate_container_resources(&self, pod: &Pod, container: &Container) -> cri::LinuxContainerResources {
        let mut resources = spec::resources::linux_resources(pod, container, &self.facts);
        self.pin_cpus(pod, &container.name, &mut resources);
        resources
    }

    fn forget_image_backoffs(&self, uid: &str) {
        self.images.forget(uid);
    }
}
