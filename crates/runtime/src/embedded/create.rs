//! Creating containers: planned, written to the disk, not yet started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc;

use super::interfaces::PreparedImage;
use super::plan::container::{self as planned, FilterSource, Inputs};
use super::plan::mounts::{self, ImageLayers};
use super::plan::{cdi, devices, invalid, layers, sandbox, signals};
use super::records::{self, ContainerRecord};
use super::sandboxes::now_ns;
use super::store::{Container, Sandbox, Stage};
use super::{Embedded, apparmor, blocking, copy, failed};
use crate::cri::messages::{
    ContainerConfig, ImageSpec, LinuxContainerUser, Mount, MountPropagation, PodSandboxConfig, PodSandboxState, Signal,
};
use crate::{Code, Error, Result};

/// Different sets of capabilities on one node.
const FILTERS_MAX: usize = 32;

impl Embedded {
    pub(super) async fn create(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let sandbox = self.sandbox(sandbox)?;
        if sandbox.state() != PodSandboxState::Ready {
            return Err(Error::new(
                Code::Other,
                format!("sandbox {:?} is not running", sandbox.id),
            ));
        }
        let name = reserved_name(&config, &sandbox)?;
        if !self.inner.store.lock().names.insert(name.clone()) {
            let message = format!("failed to reserve container name {name:?}: name is reserved");
            return Err(Error::new(Code::Other, message));
        }
        let id = self.new_id();
        match self.make_container(&id, sandbox, config, sandbox_config).await {
            Ok(()) => Ok(id),
            Err(error) => {
                self.inner.store.lock().names.remove(&name);
                if let Err(error) = self.release_images(&id).await {
                    tracing::warn!(container = id, err = %error, "failed to release images of a container that was not made");
                }
                Err(error)
            }
        }
    }

    async fn make_container(
        &self,
        id: &str,
        sandbox: Arc<Sandbox>,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<()> {
        let image_name = config.image.clone().unwrap_or_default().image;
        let image = self.inner.images.prepare(&image_name, id).await?;
        let image_volumes = self.prepare_image_volumes(id, &config).await?;
        let shown = self.image_name(&config, &image).await;
        let dir = self.inner.layout.container(&sandbox.id, id);
        let (embedded, of, to, id_) = (self.clone(), sandbox.clone(), dir.clone(), id.to_string());
        let record = blocking(move || {
            let made = embedded.write_container(&id_, &of, &to, config, &sandbox_config, &image, &image_volumes, shown);
            made.inspect_err(|_| drop(records::remove_all(&to)))
        })
        .await?;
        let container = Arc::new(Container::new(sandbox.clone(), dir, record, Stage::Created));
        self.inner.store.lock().containers.insert(id.to_string(), container);
        self.publish(&sandbox.id, id);
        Ok(())
    }

    /// Images that are mounted as volumes; the container holds them under a name of its own each.
    async fn prepare_image_volumes(&self, id: &str, config: &ContainerConfig) -> Result<ImageLayers> {
        let mut volumes = vec![];
        for (at, mount) in config.mounts.iter().enumerate() {
            let image = mount
                .image
                .as_ref()
                .map(|image| image.image.as_str())
                .filter(|image| !image.is_empty());
            volumes.push(match image {
                Some(image) => Some(self.inner.images.prepare(image, &volume_holder(id, at)).await?.layers),
                None => None,
            });
        }
        Ok(volumes)
    }

    pub(super) async fn release_images(&self, id: &str) -> Result<()> {
        self.inner.images.release(id).await?;
        let mounts = self
            .inner
            .store
            .lock()
            .containers
            .get(id)
            .map(|c| c.record.lock().config.clone().unwrap_or_default());
        for (at, mount) in mounts.unwrap_or_default().mounts.iter().enumerate() {
            if mount.image.as_ref().is_some_and(|image| !image.image.is_empty()) {
                self.inner.images.release(&volume_holder(id, at)).await?;
            }
        }
        Ok(())
    }

    /// The image's first tag, else what the pod's author wrote.
    async fn image_name(&self, config: &ContainerConfig, image: &PreparedImage) -> String {
        let spec = ImageSpec {
            image: image.id.clone(),
            ..ImageSpec::default()
        };
        let tags = self
            .inner
            .images
            .status(&spec)
            .await
            .ok()
            .flatten()
            .map(|image| image.repo_tags);
        let given = config.image.clone().unwrap_or_default();
        let written = if given.user_specified_image.is_empty() {
            given.image
        } else {
            given.user_specified_image
        };
        tags.and_then(|tags| tags.into_iter().next()).unwrap_or(written)
    }

    /// Plans the container and writes all of it to the disk. Blocking.
    #[expect(clippy::too_many_arguments, reason = "one caller, which has them all")]
    fn write_container(
        &self,
        id: &str,
        pod: &Sandbox,
        dir: &Path,
        config: ContainerConfig,
        sandbox_config: &PodSandboxConfig,
        image: &PreparedImage,
        image_volumes: &ImageLayers,
        image_name: String,
    ) -> Result<ContainerRecord> {
        let given = config;
        let config = match given.cdi_devices.is_empty() {
            true => given.clone(),
            false => cdi::apply(&given, &cdi::read_specs(&cdi::DIRECTORIES)).map_err(invalid)?,
        };
        let context = planned::security_context(&config);
        let capabilities = super::plan::capabilities::plan(context.capabilities.as_ref(), context.privileged);
        let cgroup = planned::cgroup_path(sandbox_config, id);
        let parent = Path::new(&cgroup)
            .parent()
            .unwrap_or(Path::new("/"))
            .to_string_lossy()
            .into_owned();
        let copied = !image.stackable || !self.inner.overlay;
        let hostname = pod.record.lock().hostname.clone();
        let (spec, identity) = planned::plan(Inputs {
            id,
            pod_dir: &pod.dir,
            dir,
            config: &config,
            sandbox: sandbox_config,
            hostname: &hostname,
            image,
            layers: [self.inner.layout.mount_points()]
                .iter()
                .chain(&image.layers)
                .cloned()
                .collect(),
            user_files: &layers::read_user_files(&image.layers),
            image_volumes,
            devices: devices::plan(&config.devices, context.privileged).map_err(invalid)?,
            filter: self.filter(
                &planned::filter_source(&context).map_err(invalid)?,
                capabilities.allowed,
            )?,
            apparmor: planned::apparmor(
                &context,
                apparmor::loaded_profiles().as_deref(),
                &self.inner.options.apparmor_profile,
            )
            .map_err(invalid)?,
            hierarchies: &self.inner.hierarchies,
            limits_swap: self.inner.hierarchies.limits_swap(&parent),
            copied,
        })
        .map_err(invalid)?;
        let io = |action: &'static str| move |e: std::io::Error| failed(action, &e);
        for part in [dir, &spec.root.upper, &spec.root.work, &spec.root.mount_point] {
            std::fs::create_dir(part).map_err(io("create the container's directory"))?;
        }
        let options = context.namespace_options.unwrap_or_default().userns_options;
        if let Some(users) = sandbox::user_namespace(options.as_ref()).map_err(invalid)? {
            let (uid, gid) = users.root();
            std::os::unix::fs::chown(&spec.root.upper, Some(uid), Some(gid)).map_err(io("own the writable layer"))?;
        }
        if copied {
            copy::copy_layers(&image.layers, &spec.root.upper).map_err(io("copy the image's layers"))?;
        }
        prepare_sources(&config)?;
        if !config.mounts.iter().any(|m| m.container_path == "/etc/hosts") {
            write_hosts(&pod.dir).map_err(io("write the pod's hosts file"))?;
        }
        if let Some(log) = spec.log.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(log).map_err(io("create the log directory"))?;
        }
        let json = serde_json::to_vec(&spec).map_err(std::io::Error::from);
        json.and_then(|json| std::fs::write(dir.join("spec.json"), json))
            .map_err(io("write the container's spec"))?;
        let record = ContainerRecord {
            id: id.to_string(),
            sandbox: pod.id.clone(),
            created_at: now_ns(),
            image_id: image.id.clone(),
            image_ref: image.reference.clone(),
            image_name,
            stop_signal: stop_signal(&config, image)?,
            cgroup,
            user: Some(LinuxContainerUser {
                uid: identity.uid.into(),
                gid: identity.gid.into(),
                supplemental_groups: identity.groups.into_iter().map(i64::from).collect(),
            }),
            resources: config.linux.clone().unwrap_or_default().resources,
            log_path: spec.log.map(|path| path.display().to_string()).unwrap_or_default(),
            config: Some(given),
        };
        records::write_record(dir, &record).map_err(io("record the container"))?;
        Ok(record)
    }

    /// The default filter depends on the capabilities only, and most containers have the same.
    fn filter(&self, source: &FilterSource, capabilities: u64) -> Result<Vec<u64>> {
        if *source != FilterSource::Default {
            return planned::filter(source, capabilities).map_err(invalid);
        }
        if let Some((_, filter)) = self.inner.filters.lock().iter().find(|(c, _)| *c == capabilities) {
            return Ok(filter.as_ref().clone());
        }
        let filter = planned::filter(source, capabilities).map_err(invalid)?;
        let mut filters = self.inner.filters.lock();
        if filters.len() < FILTERS_MAX {
            filters.push((capabilities, Arc::new(filter.clone())));
        }
        Ok(filter)
    }
}

pub(super) fn volume_holder(container: &str, mount: usize) -> String {
    format!("{container}-volume-{mount}")
}

/// What no second container may have.
pub(super) fn reserved_name(config: &ContainerConfig, sandbox: &Sandbox) -> Result<String> {
    match &config.metadata {
        Some(m) => Ok(format!("{}_{}_{}", sandbox.id, m.name, m.attempt)),
        None => Err(Error::new(Code::Other, "container config must include metadata")),
    }
}

fn stop_signal(config: &ContainerConfig, image: &PreparedImage) -> Result<i32> {
    let wanted = Signal::try_from(config.stop_signal).ok().and_then(signals::number);
    match (wanted, image.defaults.stop_signal.as_str()) {
        (Some(signal), _) => Ok(signal),
        (None, "") => Ok(libc::SIGTERM),
        (None, text) => {
            signals::parse(text).ok_or_else(|| Error::new(Code::Other, format!("failed to parse stop signal {text:?}")))
        }
    }
}

/// The node's `/etc/hosts`, for containers that the kubelet gives none.
fn write_hosts(pod: &Path) -> std::io::Result<()> {
    let path = pod.join("hosts");
    match path.exists() {
        true => Ok(()),
        false => std::fs::write(path, std::fs::read("/etc/hosts").unwrap_or_default()),
    }
}

/// Host paths that are not there are made, as by containerd; what is propagated has to be propagated.
fn prepare_sources(config: &ContainerConfig) -> Result<()> {
    let is_image = |mount: &&Mount| mount.image.as_ref().is_some_and(|image| !image.image.is_empty());
    for mount in config.mounts.iter().filter(|mount| !is_image(mount)) {
        let io = |e: std::io::Error| failed(format!("prepare {:?}", mount.host_path), &e);
        let path = PathBuf::from(&mount.host_path);
        if !path.exists() {
            std::fs::create_dir_all(&path).map_err(io)?;
        }
        let propagation = MountPropagation::try_from(mount.propagation).unwrap_or(MountPropagation::Private);
        if propagation != MountPropagation::Private {
            let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").map_err(io)?;
            let resolved = path.canonicalize().map_err(io)?;
            mounts::check_propagation(&mountinfo, &resolved, propagation).map_err(invalid)?;
        }
    }
    Ok(())
}
