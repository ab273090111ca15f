//! The eviction manager: reclaims memory, disk, inodes and process IDs under node pressure.
//!
//! Every ten seconds it observes what is available (`observe`), compares with the thresholds (`signals`, `pressure`),
//! first reclaims node-level resources where that can help, and then evicts one pod (`rank`), waits until it is cleaned up,
//! and observes again. Pods above their ephemeral-storage limits are evicted, too. Node conditions report the pressure.
//!
//! Upstream: pkg/kubelet/eviction (v1.36). Differs in that pods are measured only when one has to be evicted or has limits
//! of ephemeral storage. Left out: notifications of the kernel about memory (off by default there).

pub mod observe;
pub mod pressure;
pub mod rank;
pub mod signals;
pub mod usage;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{Pod, PodCondition};
use orlop_base::clock::Shift;
use orlop_base::{Clock, Shutdown};
use orlop_client::events::{EventType, ObjectReference};
use orlop_runtime::Runtime;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::observe::{Places, add_disk};
use self::pressure::{PressureState, look};
use self::rank::{Candidate, PodUse};
use self::signals::{FileSystem, Kind, Layout, Observations, Signal, Threshold};
use self::usage::{Depth, GroupUsed, VolumesUsed, measure};
use crate::config::Config;
use crate::events::Events;
use crate::gc::{Collector, Disks, disk};
use crate::metrics::Metrics;
use crate::node::Pressure;
use crate::pod::worker_state::Eviction;
use crate::spec::resources::is_critical;

const PERIOD: Duration = Duration::from_secs(10);
/// Measuring the disk usage of pods takes long.
const LOCAL_LIMITS_PERIOD: Duration = Duration::from_secs(30);
/// How long to wait for an evicted pod to be cleaned up, and how often to poll.
const CLEAN_UP: Duration = Duration::from_secs(30);
const CLEAN_UP_POLL: Duration = Duration::from_secs(1);
/// Grace period of pods evicted for a hard threshold, in seconds.
const HARD_GRACE_SECONDS: i64 = 1;

#[derive(Clone, Debug)]
pub struct EvictionSettings {
    /// Its thresholds, grace periods and the like.
    pub config: Config,
    /// The kubelet's own directory: where `nodefs` is.
    pub root_dir: PathBuf,
    /// `/var/log/pods`
    pub pod_logs: PathBuf,
    pub places: Places,
    pub metrics: Arc<Metrics>,
}

/// What eviction needs of the rest of the kubelet.
#[derive(Clone)]
pub struct Hooks {
    /// Active pods: neither terminated nor being terminated.
    pub pods: Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>,
    /// Evicts this pod. The event was recorded already.
    pub evict: Arc<dyn Fn(&Pod, Eviction) + Send + Sync>,
    /// Whether the pod with this uid is cleaned up.
    pub cleaned_up: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    pub volumes: VolumesUsed,
    pub groups: GroupUsed,
    /// The node's conditions changed.
    pub pressure: Arc<dyn Fn(Pressure) + Send + Sync>,
}

#[derive(Clone)]
struct Plan {
    layout: Layout,
    /// Where images and containers are.
    image_path: PathBuf,
    container_path: PathBuf,
    thresholds: Arc<Vec<Threshold>>,
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    collector: Collector,
    events: Events,
    clock: Clock,
    node: ObjectReference,
    settings: EvictionSettings,
    hooks: Hooks,
    disks: Disks,
    /// Known once the runtime has reported its image file system.
    plan: Mutex<Option<Plan>>,
    state: Mutex<PressureState>,
    pressure: Mutex<Pressure>,
    local_limits_at: Mutex<Option<Instant>>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Evictor {
    inner: Arc<Inner>,
}

impl Evictor {
    pub fn new(
        runtime: Arc<dyn Runtime>,
        collector: Collector,
        events: Events,
        clock: Clock,
        node: ObjectReference,
        settings: EvictionSettings,
        hooks: Hooks,
    ) -> Evictor {
        let inner = Inner {
            runtime,
            collector,
            events,
            clock,
            node,
            settings,
            hooks,
            disks: Arc::new(disk::disk),
            plan: Mutex::default(),
            state: Mutex::default(),
            pressure: Mutex::default(),
            local_limits_at: Mutex::default(),
        };
        Evictor { inner: Arc::new(inner) }
    }

    /// Watches until the shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        let watch = async {
            loop {
                match self.synchronize().await {
                    Ok(evicted) if evicted.is_empty() => tokio::time::sleep(PERIOD).await,
                    Ok(evicted) => self.wait_for(&evicted).await,
                    Err(error) => {
                        tracing::warn!(err = %error, "failed to observe node resources for eviction");
                        tokio::time::sleep(PERIOD).await;
                    }
                }
            }
        };
        tokio::select! {
            _ = shutdown.wait() => {}
            () = watch => {}
        }
    }

    pub fn pressure(&self) -> Pressure {
        *self.inner.pressure.lock()
    }

    /// Observes once and acts. Returns the uids of the evicted pods.
    pub async fn synchronize(&self) -> Result<Vec<String>, io::Error> {
        let inner = &*self.inner;
        let plan = inner.plan().await?;
        let observations = inner.observe(&plan).await?;
        let transition = inner.settings.config.eviction_pressure_transition_period;
        let now = inner.clock.now();
        let verdict = look(
            &observations,
            &plan.thresholds,
            &mut inner.state.lock(),
            transition,
            now,
        );
        if std::mem::replace(&mut *inner.pressure.lock(), verdict.pressure) != verdict.pressure {
            (inner.hooks.pressure)(verdict.pressure);
        }
        let evicted = self.enforce_local_limits(&plan).await;
        if !evicted.is_empty() {
            return Ok(evicted);
        }
        let met: Vec<&Threshold> = verdict.act_on.iter().map(|i| &plan.thresholds[*i]).collect();
        let Some(threshold) = met.first() else {
            return Ok(Vec::new());
        };
        let note = format!("Attempting to reclaim {}", threshold.signal.resource());
        inner
            .events
            .record(inner.node.clone(), EventType::Warning, "EvictionThresholdMet", note);
        if self.tidy(threshold.signal, &plan).await? {
            tracing::info!(resource = %threshold.signal.resource(), "reduced resource pressure without evicting pods");
            return Ok(Vec::new());
        }
        self.evict_one(threshold, &met, &observations, &plan).await
    }

    /// Reclaims node-level resources. True if that was enough.
    async fn tidy(&self, signal: Signal, plan: &Plan) -> Result<bool, io::Error> {
        let (containers, images) = reclaims(signal, plan.layout);
        if containers && let Err(error) = self.inner.collector.collect_containers(true).await {
            tracing::warn!(err = %error, "failed to remove dead containers");
        }
        if images && let Err(error) = self.inner.collector.delete_unused_images().await {
            tracing::warn!(err = %error, "failed to remove unused images");
        }
        if !containers && !images {
            return Ok(false);
        }
        let observations = self.inner.observe(plan).await?;
        Ok(pressure::met(&observations, &plan.thresholds, true).next().is_none())
    }

    async fn evict_one(
        &self,
        threshold: &Threshold,
        met: &[&Threshold],
        observations: &Observations,
        plan: &Plan,
    ) -> Result<Vec<String>, io::Error> {
        let inner = &*self.inner;
        let pods = (inner.hooks.pods)();
        let depth = Depth {
            disk: threshold.signal.kind() == Kind::Disk,
            processes: threshold.signal.kind() == Kind::Pid,
        };
        let used = inner.measure(&pods, depth).await;
        let mut candidates: Vec<Candidate<'_>> = pods
            .iter()
            .filter(|pod| !is_critical(pod))
            .map(|pod| Candidate {
                pod,
                used: pod.metadata.uid.as_ref().and_then(|uid| used.get(uid)),
            })
            .collect();
        rank::rank(&mut candidates, threshold.signal, plan.layout);
        let Some(candidate) = candidates.first() else {
            tracing::warn!(resource = %threshold.signal.resource(), "failed to reclaim resource: no pods are candidates for eviction");
            return Ok(Vec::new());
        };
        let message = rank::message(threshold.signal, candidate, met, observations);
        let own_grace = candidate
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds);
        let max_grace = i64::from(inner.settings.config.eviction_max_pod_grace_period);
        let grace = match threshold.is_hard() {
            true => HARD_GRACE_SECONDS,
            false => own_grace.map_or(max_grace, |own| own.min(max_grace)),
        };
        let condition = PodCondition {
            type_: "DisruptionTarget".to_string(),
            status: "True".to_string(),
            reason: Some("TerminationByKubelet".to_string()),
            message: Some(message.clone()),
            ..PodCondition::default()
        };
        inner.settings.metrics.evicted(threshold.signal.name());
        Ok(vec![inner.evict(candidate.pod, message, grace, Some(condition))])
    }

    /// Evicts pods above their ephemeral-storage limits.
    async fn enforce_local_limits(&self, plan: &Plan) -> Vec<String> {
        let inner = &*self.inner;
        let now = Instant::now();
        let due = inner.local_limits_at.lock().is_none_or(|at| now >= at);
        if !due || !inner.settings.config.local_storage_capacity_isolation {
            return Vec::new();
        }
        *inner.local_limits_at.lock() = Some(now.later(LOCAL_LIMITS_PERIOD));
        let mut pods = (inner.hooks.pods)();
        pods.retain(|pod| rank::has_local_limits(pod) && !is_critical(pod));
        if pods.is_empty() {
            return Vec::new();
        }
        let depth = Depth {
            disk: true,
            processes: false,
        };
        let used = inner.measure(&pods, depth).await;
        let over = pods.iter().filter_map(|pod| {
            let used = used.get(pod.metadata.uid.as_deref()?)?;
            let (limit, message) = rank::over_local_limit(pod, used, plan.layout)?;
            inner.settings.metrics.evicted(limit);
            Some(inner.evict(pod, message, HARD_GRACE_SECONDS, None))
        });
        over.collect()
    }

    /// Waits until these pods are cleaned up, or the timeout.
    async fn wait_for(&self, uids: &[String]) {
        let end = Instant::now().later(CLEAN_UP);
        while Instant::now() < end {
            tokio::time::sleep(CLEAN_UP_POLL).await;
            if uids.iter().all(|uid| (self.inner.hooks.cleaned_up)(uid)) {
                return;
            }
        }
        tracing::warn!("timed out waiting for evicted pods to be cleaned up");
    }
}

/// Whether removing dead containers, and unused images, can help against this signal.
fn reclaims(signal: Signal, layout: Layout) -> (bool, bool) {
    let Some(file_system) = signal.file_system() else {
        return (false, false);
    };
    match (layout.dedicated_images, layout.split_containers) {
        (true, false) => {
            let helps = file_system != FileSystem::Node;
            (helps, helps)
        }
        (true, true) => (file_system != FileSystem::Image, file_system == FileSystem::Image),
        (false, _) => (true, true),
    }
}

impl Inner {
    fn evict(&self, pod: &Pod, message: String, grace: i64, condition: Option<PodCondition>) -> String {
        self.events.pod(pod, EventType::Warning, rank::REASON, message.clone());
        let eviction = Eviction {
            reason: rank::REASON.to_string(),
            message,
            grace_seconds: Some(grace),
            condition,
        };
        (self.hooks.evict)(pod, eviction);
        pod.metadata.uid.clone().unwrap_or_default()
    }

    /// Without stats from the runtime all pods rank equally.
    async fn measure(&self, pods: &[Arc<Pod>], depth: Depth) -> BTreeMap<String, PodUse> {
        let (logs, volumes) = (&self.settings.pod_logs, &self.hooks.volumes);
        let measured = measure(&*self.runtime, pods, depth, logs, volumes, &self.hooks.groups).await;
        measured.unwrap_or_else(|error| {
            tracing::warn!(err = %error, "failed to get resource usage of pods");
            BTreeMap::new()
        })
    }

    /// Thresholds depend on which file systems there are, which only the runtime knows. It does not change.
    async fn plan(&self) -> Result<Plan, io::Error> {
        if let Some(plan) = self.plan.lock().clone() {
            return Ok(plan);
        }
        let info = self.runtime.image_fs_info().await.map_err(io::Error::other)?;
        let path = |systems: &[orlop_runtime::cri::messages::FilesystemUsage]| {
            let place = systems.first().and_then(|system| system.fs_id.as_ref());
            place.map(|place| PathBuf::from(&place.mountpoint))
        };
        let root = &self.settings.root_dir;
        let image_path = path(&info.image_filesystems).unwrap_or_else(|| root.clone());
        let container_path = path(&info.container_filesystems).unwrap_or_else(|| image_path.clone());
        let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let layout = Layout {
            dedicated_images: device(&image_path) != device(root),
            split_containers: device(&container_path) != device(&image_path),
        };
        let config = &self.settings.config;
        let allocatable = config.enforce_node_allocatable.iter().any(|what| what == "pods");
        let plan = Plan {
            layout,
            image_path,
            container_path,
            thresholds: Arc::new(signals::thresholds(config, layout, allocatable)),
        };
        *self.plan.lock() = Some(plan.clone());
        Ok(plan)
    }

    async fn observe(&self, plan: &Plan) -> Result<Observations, io::Error> {
        let (places, disks, root) = (
            self.settings.places.clone(),
            self.disks.clone(),
            self.settings.root_dir.clone(),
        );
        let (images, containers) = (plan.image_path.clone(), plan.container_path.clone());
        let look = move || {
            let mut seen = places.observe();
            for (path, available, inodes) in [
                (&root, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
                (&images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
                (&containers, Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree),
            ] {
                match disks(path) {
                    Ok(disk) => add_disk(&mut seen, &disk, available, inodes),
                    Err(error) => {
                        tracing::debug!(path = %path.display(), err = %error, "failed to get file system stats")
                    }
                }
            }
            seen
        };
        crate::blocking::run(look).await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests;
