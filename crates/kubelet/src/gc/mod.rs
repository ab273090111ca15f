//! Garbage collection: dead containers and sandboxes, logs, images.
//!
//! `containers` and `images` plan what is removed, `rotation` rotates logs, `symlinks` keeps `/var/log/containers`; here is
//! the shell that observes, removes and records events. All state is read back from the runtime and the disk, so that a
//! restart loses nothing (but since when images are unused).

pub mod containers;
pub mod disk;
pub mod images;
pub mod rotation;
pub mod symlinks;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::quantity::Quantity;
use orlop_base::clock::Shift;
use orlop_base::{Clock, Shutdown};
use orlop_client::events::{EventType, ObjectReference};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::{
    Container, ContainerFilter, ContainerState, ImageSpec, PodSandboxFilter, PodSandboxState,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

pub use self::containers::PodState;
use self::containers::{ContainerPolicy, plan_containers, plan_sandboxes};
use self::disk::Disk;
use self::images::{History, ImagePolicy};
use self::rotation::LogPolicy;
use crate::config::Config;
use crate::events::Events;
use crate::images::Images;
use crate::metrics::Metrics;
use crate::spec::labels::POD_UID;

const CONTAINER_PERIOD: Duration = Duration::from_secs(60);
const IMAGE_PERIOD: Duration = Duration::from_secs(300);
/// Of a container whose state the runtime does not know.
const STOP_GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct GcSettings {
    pub containers: ContainerPolicy,
    pub images: ImagePolicy,
    pub logs: LogPolicy,
    /// `containerLogMonitorInterval`
    pub log_interval: Duration,
    /// `/var/log/pods`
    pub pod_logs: PathBuf,
    /// `/var/log/containers`; `None`: no links are kept.
    pub container_links: Option<PathBuf>,
    pub metrics: Arc<Metrics>,
}

impl Default for GcSettings {
    fn default() -> GcSettings {
        GcSettings {
            containers: ContainerPolicy::default(),
            images: ImagePolicy::default(),
            logs: LogPolicy::default(),
            log_interval: Duration::from_secs(10),
            pod_logs: PathBuf::from("/var/log/pods"),
            container_links: Some(PathBuf::from("/var/log/containers")),
            metrics: Arc::default(),
        }
    }
}

impl GcSettings {
    /// From a configuration that was checked when it was read.
    pub fn of(config: &Config) -> GcSettings {
        let percent = |value: i32| u64::try_from(value).unwrap_or_default();
        let max_size = Quantity::parse(&config.container_log_max_size)
            .ok()
            .map(|size| size.value());
        GcSettings {
            images: ImagePolicy {
                high_percent: percent(config.image_gc_high_threshold_percent),
                low_percent: percent(config.image_gc_low_threshold_percent),
                min_age: config.image_minimum_gc_age,
                max_age: config.image_maximum_gc_age,
            },
            logs: LogPolicy {
                max_size: max_size.and_then(|size| u64::try_from(size).ok()),
                max_files: config.container_log_max_files as usize,
            },
            log_interval: config.container_log_monitor_interval,
            pod_logs: config.pod_logs_dir.clone(),
            ..GcSettings::default()
        }
    }
}

/// What is known of the pod with this uid.
pub type PodStates = Arc<dyn Fn(&str) -> PodState + Send + Sync>;
/// How full the file system at a path is.
pub type Disks = Arc<dyn Fn(&Path) -> io::Result<Disk> + Send + Sync>;

/// Garbage collection failed; it is retried at its next period.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GcError(pub String);

impl From<orlop_runtime::Error> for GcError {
    fn from(error: orlop_runtime::Error) -> GcError {
        GcError(error.message)
    }
}

impl From<io::Error> for GcError {
    fn from(error: io::Error) -> GcError {
        GcError(error.to_string())
    }
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    images: Option<Images>,
    events: Events,
    clock: Clock,
    node: ObjectReference,
    settings: GcSettings,
    states: PodStates,
    disks: Disks,
    began: Timestamp,
    /// Held during a collection: one at a time.
    history: Mutex<History>,
    /// Where running containers log to; bounded by them.
    log_paths: Mutex<BTreeMap<String, PathBuf>>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Collector {
    inner: Arc<Inner>,
}

impl Collector {
    /// `images` is notified which images are left; `node` is what events about the disk regard.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        images: Option<Images>,
        events: Events,
        clock: Clock,
        node: ObjectReference,
        settings: GcSettings,
        states: PodStates,
    ) -> Collector {
        let inner = Inner {
            runtime,
            images,
            events,
            began: clock.now(),
            clock,
            node,
            settings,
            states,
            disks: Arc::new(disk::disk),
            history: Mutex::default(),
            log_paths: Mutex::default(),
        };
        Collector { inner: Arc::new(inner) }
    }

    /// With disk usage set by the test. Before the first clone.
    #[cfg(test)]
    pub(crate) fn with_disks(mut self, disks: Disks) -> Collector {
        Arc::get_mut(&mut self.inner).expect("not shared yet").disks = disks;
        self
    }

    /// Collects garbage until the shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        // Not at once: pod workers observe first.
        let containers = every(CONTAINER_PERIOD, CONTAINER_PERIOD, "containers", || {
            self.collect_containers(false)
        });
        let images = every(Duration::ZERO, IMAGE_PERIOD, "images", || self.collect_images());
        let logs = every(Duration::ZERO, self.inner.settings.log_interval, "logs", || {
            self.look_after_logs()
        });
        tokio::select! {
            _ = shutdown.wait() => {}
            _ = async { tokio::join!(containers, images, logs) } => {}
        }
    }

    /// Removes dead containers and sandboxes and the logs of pods that are gone. `make_room`: also containers of pods
    /// that have ended.
    pub async fn collect_containers(&self, make_room: bool) -> Result<(), GcError> {
        let inner = &*self.inner;
        let containers = inner.runtime.list_containers(ContainerFilter::default()).await?;
        let state = |uid: &str| (inner.states)(uid);
        let now = inner.clock.now();
        for removal in plan_containers(&containers, &inner.settings.containers, make_room, state, now) {
            let container = containers
                .iter()
                .find(|c| c.id == removal.id)
                .expect("planned from these");
            let removed = match removal.stop_first {
                true => inner
                    .runtime
                    .stop_container(&removal.id, STOP_GRACE)
                    .await
                    .map_err(GcError::from),
                false => Ok(()),
            };
            if let Err(error) = removed {
                tracing::warn!(container = removal.id, err = %error, "failed to stop container");
            } else if let Err(error) = self.remove_container(container).await {
                tracing::warn!(container = removal.id, err = %error, "failed to remove container");
            }
        }
        let containers = inner.runtime.list_containers(ContainerFilter::default()).await?;
        let sandboxes = inner.runtime.list_pod_sandboxes(PodSandboxFilter::default()).await?;
        for id in plan_sandboxes(&sandboxes, &containers, make_room, state) {
            // It should have been stopped long ago; if not, its network would leak.
            let removed = match inner.runtime.stop_pod_sandbox(&id).await {
                Ok(()) => inner.runtime.remove_pod_sandbox(&id).await,
                error => error,
            };
            if let Err(error) = removed {
                tracing::warn!(sandbox = %id, err = %error, "failed to remove sandbox");
            }
        }
        // Whatever is known of its pod: the logs of what is still there stay.
        let of_containers = containers.iter().filter_map(|c| c.labels.get(POD_UID)).cloned();
        let ready = sandboxes.iter().filter(|s| s.state == PodSandboxState::Ready as i32);
        let of_sandboxes = ready.filter_map(|s| Some(s.metadata.as_ref()?.uid.clone()));
        let present = of_containers.chain(of_sandboxes).collect();
        self.remove_orphaned_logs(present).await;
        self.remove_dead_links(&containers).await
    }

    /// Removes a dead container with its logs. The logs are removed first: their path is only known as long as the container
    /// exists.
    pub async fn remove_container(&self, container: &Container) -> Result<(), GcError> {
        let inner = &*self.inner;
        match inner.runtime.container_status(&container.id).await {
            Ok(status) => {
                let path = PathBuf::from(&status.log_path);
                if !status.log_path.is_empty() {
                    blocking(move || rotation::remove_logs(&path)).await?;
                }
                if let Some(link) = inner.link_of(container) {
                    rotation::remove_if_there(&link)?;
                }
            }
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        Ok(inner.runtime.remove_container(&container.id).await?)
    }

    async fn remove_orphaned_logs(&self, present: BTreeSet<String>) {
        let (folder, states) = (self.inner.settings.pod_logs.clone(), self.inner.states.clone());
        let removed = blocking(move || {
            let folders = match std::fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                folders => folders?,
            };
            for entry in folders.flatten() {
                // `<namespace>_<name>_<uid>`
                let name = entry.file_name();
                let Some((_, uid)) = name.to_str().and_then(|name| name.rsplit_once('_')) else {
                    continue;
                };
                if states(uid) == PodState::Gone
                    && !present.contains(uid)
                    && let Err(error) = std::fs::remove_dir_all(entry.path())
                {
                    tracing::warn!(path = %entry.path().display(), err = %error, "failed to remove pod logs");
                }
            }
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::warn!(err = %error, "failed to list the pod log directories");
        }
    }

    async fn remove_dead_links(&self, containers: &[Container]) -> Result<(), GcError> {
        let Some(folder) = self.inner.settings.container_links.clone() else {
            return Ok(());
        };
        let alive: BTreeSet<&str> = containers
            .iter()
            .filter(|c| c.state != ContainerState::Exited as i32)
            .map(|c| c.id.as_str())
            .collect();
        for (link, id) in blocking(move || Ok(symlinks::dangling(&folder))).await? {
            if !id.is_some_and(|id| alive.contains(id.as_str())) {
                rotation::remove_if_there(&link)?;
            }
        }
        Ok(())
    }

    /// Removes images if the disk is too full, or if they are too old.
    pub async fn collect_images(&self) -> Result<(), GcError> {
        let inner = &*self.inner;
        let mut history = inner.history.lock().await;
        inner.look_at_images(&mut history).await?;
        let (policy, now) = (&inner.settings.images, inner.clock.now());
        for id in history.too_old(policy, inner.began, now) {
            inner.remove_image(&mut history, &id, "age").await?;
        }
        let disk = self.image_disk().await?;
        if disk.capacity == 0 {
            let message = "invalid capacity 0 on image filesystem".to_string();
            inner.say("InvalidDiskCapacity", message.clone());
            return Err(GcError(message));
        }
        let Some(wanted) = images::to_free(policy, disk.capacity, disk.available) else {
            return Ok(());
        };
        let freed = inner.free(&mut history, wanted).await?;
        if freed < wanted {
            let used = images::used_percent(disk.capacity, disk.available);
            let message = format!(
                "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed to free \
                 sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could \
                 be used by active images, logs, volumes, or other data.",
                images::size_text(disk.capacity)
            );
            inner.say("FreeDiskSpaceFailed", message.clone());
            return Err(GcError(message));
        }
        Ok(())
    }

    /// Removes all unused images under disk pressure; returns the bytes freed.
    pub async fn delete_unused_images(&self) -> Result<u64, GcError> {
        let mut history = self.inner.history.lock().await;
        self.inner.look_at_images(&mut history).await?;
        self.inner.free(&mut history, u64::MAX).await
    }

    /// The file system with the images.
    pub async fn image_disk(&self) -> Result<Disk, GcError> {
        let info = self.inner.runtime.image_fs_info().await?;
        let place = info.image_filesystems.first().and_then(|fs| fs.fs_id.as_ref());
        let Some(place) = place else {
            return Err(GcError("the runtime does not report an image file system".to_string()));
        };
        Ok((self.inner.disks)(Path::new(&place.mountpoint))?)
    }

    /// Links the logs of running containers for log collectors, and rotates those that have grown too large.
    pub async fn look_after_logs(&self) -> Result<(), GcError> {
        let inner = &*self.inner;
        let mut containers = inner.runtime.list_containers(ContainerFilter::default()).await?;
        containers.retain(|c| c.state == ContainerState::Running as i32 && c.labels.contains_key(POD_UID));
        let ids: BTreeSet<&str> = containers.iter().map(|c| c.id.as_str()).collect();
        let mut paths = inner.log_paths.lock().await;
        paths.retain(|id, _| ids.contains(id.as_str()));
        for container in &containers {
            if let Err(error) = inner.look_after_log(container, &mut paths).await {
                tracing::warn!(container = container.id, err = %error, "failed to rotate container log");
            }
        }
        Ok(())
    }
}

impl Inner {
    fn say(&self, reason: &'static str, message: String) {
        self.events
            .record(self.node.clone(), EventType::Warning, reason, message);
    }

    fn link_of(&self, container: &Container) -> Option<PathBuf> {
        let folder = self.settings.container_links.as_ref()?;
        let label = |key: &str| container.labels.get(key).map(String::as_str);
        let (pod, namespace) = (label("io.kubernetes.pod.name")?, label("io.kubernetes.pod.namespace")?);
        let name = label("io.kubernetes.container.name")?;
        Some(symlinks::link_path(folder, namespace, pod, name, &container.id))
    }

    async fn look_at_images(&self, history: &mut History) -> Result<(), GcError> {
        let images = self.runtime.list_images().await?;
        let containers = self.runtime.list_containers(ContainerFilter::default()).await?;
        history.observe(&images, &containers, self.clock.now());
        if let Some(images) = &self.images {
            images.retain_records(&history.ids());
        }
        Ok(())
    }

    /// Removes images until so many bytes are freed. Continues after errors, and returns the first one.
    async fn free(&self, history: &mut History, wanted: u64) -> Result<u64, GcError> {
        let (mut freed, mut failed) = (0u64, None);
        for (id, size) in history.candidates(&self.settings.images, self.clock.now()) {
            if freed >= wanted {
                break;
            }
            match self.remove_image(history, &id, "space").await {
                Ok(()) => freed = freed.saturating_add(size),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(GcError(format!(
                "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {error}"
            ))),
            None => Ok(freed),
        }
    }

    async fn remove_image(&self, history: &mut History, id: &str, reason: &str) -> Result<(), GcError> {
        let spec = ImageSpec {
            image: id.to_string(),
            ..ImageSpec::default()
        };
        self.runtime.remove_image(&spec).await?;
        tracing::info!(image = %id, "removed unused image");
        self.settings.metrics.image_collected(reason);
        history.removed(id);
        Ok(())
    }

    async fn look_after_log(
        &self,
        container: &Container,
        paths: &mut BTreeMap<String, PathBuf>,
    ) -> Result<(), GcError> {
        let id = &container.id;
        let log = match paths.get(id) {
            Some(path) => path.clone(),
            None => {
                let path = PathBuf::from(self.runtime.container_status(id).await?.log_path);
                if let Some(link) = self.link_of(container) {
                    symlinks::make(&link, &path)?;
                }
                paths.insert(id.to_string(), path.clone());
                path
            }
        };
        let Some(max_size) = self.settings.logs.max_size else {
            return Ok(());
        };
        if log.as_os_str().is_empty() {
            return Ok(());
        }
        let size = match tokio::fs::metadata(&log).await {
            Ok(found) => found.len(),
            // Moved away by a kubelet that ended before the runtime had opened a new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(self.runtime.reopen_container_log(id).await?);
            }
            Err(error) => return Err(error.into()),
        };
        if size < max_size {
            return Ok(());
        }
        let (policy, now, path) = (self.settings.logs, self.clock.now(), log.clone());
        let Some(rotated) = blocking(move || rotation::move_away(&path, &policy, now)).await? else {
            return Ok(());
        };
        if let Err(error) = self.runtime.reopen_container_log(id).await {
            rotation::move_back(&log, &rotated)?;
            return Err(error.into());
        }
        Ok(())
    }
}

/// File work that may take long, off the threads that everything else runs on.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, GcError> {
    let done = crate::blocking::run(work).await;
    Ok(done.map_err(|error| GcError(error.to_string()))??)
}

/// Runs the work after a delay and then periodically, for ever.
async fn every<F>(first: Duration, period: Duration, what: &str, work: impl Fn() -> F)
where
    F: Future<Output = Result<(), GcError>>,
{
    let mut ticks = tokio::time::interval_at(Instant::now().later(first), period.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = work().await {
            tracing::warn!(what, err = %error, "failed to collect garbage");
        }
    }
}

#[cfg(test)]
mod tests;
