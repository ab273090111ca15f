//! Volumes: what pods find mounted in their containers, made and kept up to date below `<root>/pods/<uid>`.
//!
//! `plan` looks up what a volume's source says (config maps, claims, tokens), `act` makes it so on disk. Nothing is kept
//! in memory that a killed kubelet would miss: setting up again finds what is there, and what is to be taken down is found
//! on disk. A pod's own volumes are worked on by one task at a time; pods don't wait for one another.

mod act;
mod atomic;
mod block;
mod claims;
mod csi;
pub mod downward;
mod empty_dir;
mod error;
pub mod expand;
mod file_system;
mod host_path;
pub mod image;
mod mount_table;
mod mounts;
mod nested;
mod ownership;
mod paths;
mod payload;
mod plan;
pub mod removal;
mod sub_path;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop_api::types::core::{Container, Pod, Volume};
use orlop_base::{Clock, Shutdown, join_all};
use orlop_runtime::cri::messages::{Device, ImageSpec, KeyValue, Mount};
use parking_lot::{Mutex, RwLock};

use crate::events::Events;
use crate::objects::Objects;
use act::{Ready, Site};
use downward::Allocatable;
use error::MountError;
pub use error::{VolumeError, VolumeFailure};
use ownership::Ownership;
use paths::{Paths, Plugin};
use plan::{Lookup, Plan, Problem, ProblemKind};
pub use usage::VolumeUse;

pub struct Options {
    /// The kubelet's directory: `/var/lib/kubelet`.
    pub root: PathBuf,
    pub objects: Objects,
    pub clock: Clock,
    /// For events about volume expansion.
    pub events: Events,
    /// For volumes that are attached to nodes, and for CSINode.
    pub node_name: String,
    /// Without, everything is plain directories: memory-backed volumes are refused, secrets are on disk.
    pub may_mount: bool,
}

impl Options {
    /// Mounts if the process is root's.
    pub fn new(root: impl Into<PathBuf>, objects: Objects, clock: Clock) -> Options {
        Options {
            root: root.into(),
            objects,
            clock,
            events: Events::to_log(),
            node_name: String::new(),
            may_mount: nix::unistd::geteuid().is_root(),
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Volumes {
    shared: Arc<Shared>,
}

struct Shared {
    paths: Paths,
    objects: Objects,
    clock: Clock,
    events: Events,
    node_name: String,
    drivers: Arc<csi::Drivers>,
    may_mount: bool,
    allocatable: RwLock<Allocatable>,
    recursive_read_only: AtomicBool,
    /// Why images can't be volumes, if so.
    image_trouble: RwLock<Option<String>>,
    pods: Mutex<HashMap<String, Arc<PodVolumes>>>,
}

#[derive(Default)]
struct PodVolumes {
    /// Held while anything of the pod is worked on.
    turn: tokio::sync::Mutex<()>,
    /// By name in the pod.
    ready: Mutex<BTreeMap<String, Ready>>,
}

/// What a pod's volumes are made with.
struct Context {
    allocatable: Allocatable,
    ownership: Ownership,
    directory: PathBuf,
}

impl Volumes {
    /// Makes the directory of pods if there is none yet.
    pub fn new(options: Options) -> io::Result<Volumes> {
        std::fs::create_dir_all(options.root.join("pods"))?;
        // The kernel's table of mounts has paths without links.
        let root = options.root.canonicalize()?;
        Ok(Volumes {
            shared: Arc::new(Shared {
                paths: Paths { root },
                objects: options.objects,
                clock: options.clock,
                events: options.events,
                node_name: options.node_name,
                drivers: Arc::default(),
                may_mount: options.may_mount,
                allocatable: RwLock::default(),
                recursive_read_only: AtomicBool::new(false),
                image_trouble: RwLock::default(),
                pods: Mutex::default(),
            }),
        })
    }

    /// What the node has for pods: limits memory-backed volumes and stands in for limits in the downward API.
    pub fn set_allocatable(&self, allocatable: Allocatable) {
        *self.shared.allocatable.write() = allocatable;
    }

    /// Whether the runtime can make mounts read-only all the way down.
    pub fn set_recursive_read_only(&self, is_supported: bool) {
        self.shared.recursive_read_only.store(is_supported, Ordering::Relaxed);
    }

    /// Why the runtime can't mount images, if so.
    pub fn set_image_trouble(&self, trouble: Option<String>) {
        *self.shared.image_trouble.write() = trouble;
    }

    /// `<root>/pods/<uid>`; made with the first `set_up`, removed by `tear_down` with all that is in it.
    pub fn pod_directory(&self, uid: &str) -> Option<PathBuf> {
        self.shared.paths.pod(uid)
    }

    /// Makes all volumes that containers of the pod use. To be called until it succeeds; calling it again is cheap.
    pub async fn set_up(&self, pod: &Pod) -> Result<(), VolumeError> {
        self.shared.objects.pod_added(pod);
        let context = self.context(pod)?;
        let state = self.state(pod);
        let _turn = state.turn.lock().await;
        make_pod_directories(&context.directory).await?;
        let used = used_names(pod);
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let ready: BTreeSet<String> = state.ready.lock().keys().cloned().collect();
        // What is set up stays as it is, but for what follows something else.
        let is_wanted =
            |v: &&Volume| used.contains(v.name.as_str()) && (plan::is_refreshed(v) || !ready.contains(&v.name));
        let volumes: Vec<&Volume> = volumes.filter(is_wanted).collect();
        let failures = self.make(pod, &volumes, &context, &state).await;
        if failures.is_empty() {
            Ok(())
        } else {
            Err(VolumeError { failures })
        }
    }

    /// Brings config maps, secrets, the downward API and tokens up to date where they are set up, and lets volumes grow. What
    /// cannot be read stays as it was, and is returned as a failure.
    pub async fn refresh(&self, pod: &Pod) -> Vec<VolumeFailure> {
        let Ok(context) = self.context(pod) else {
            return Vec::new();
        };
        let state = self.state(pod);
        let _turn = state.turn.lock().await;
        let ready = state.ready.lock().clone();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let is_wanted = |v: &&Volume| {
            let again = |ready: &Ready| ready.is_published_again || plan::is_refreshed(v);
            ready.get(&v.name).is_some_and(again)
        };
        let volumes: Vec<&Volume> = volumes.filter(is_wanted).collect();
        let failures = self.make(pod, &volumes, &context, &state).await;
        self.grow_beside(pod, ready);
        failures
    }

    /// Has drivers look to volumes that were made larger. That may take them long, and nothing of the pod is to wait for it,
    /// its end least of all.
    fn grow_beside(&self, pod: &Pod, ready: BTreeMap<String, Ready>) {
        // What is published again has grown by that.
        let growing = ready.into_values().filter(|r| r.grows && !r.is_published_again);
        let growing: Vec<Ready> = growing.collect();
        if growing.is_empty() {
            return;
        }
        let (volumes, pod) = (self.clone(), pod.clone());
        tokio::spawn(async move {
            for ready in growing {
                volumes.publisher().grow_in_use(&pod, &ready).await;
            }
        });
    }

    /// The mounts of a container: its volumeMounts, not the files that the kubelet adds. `env` is for subPathExpr; `images`
    /// has those of the volumes that are images.
    pub async fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        env: &[KeyValue],
        images: &BTreeMap<String, ImageSpec>,
    ) -> Result<Vec<Mount>, VolumeError> {
        let context = self.context(pod)?;
        let state = self.state(pod);
        let _turn = state.turn.lock().await;
        let recursive = self.shared.recursive_read_only.load(Ordering::Relaxed);
        let given = mounts::Given {
            ready: &state.ready.lock().clone(),
            images,
            env,
            pod_directory: &context.directory,
            recursive_read_only: recursive,
        };
        let wanted = mounts::wanted(container, &given)?;
        let may_mount = self.shared.may_mount;
        let name = container.name.clone();
        blocking(move || {
            let mounts = wanted.into_iter().map(|wanted| {
                let mut mount = wanted.mount;
                if let Some(sub_path) = &wanted.sub_path {
                    let at = mounts::make_sub_path(sub_path, &name, may_mount)?;
                    mount.host_path = at.to_string_lossy().into_owned();
                }
                Ok(mount)
            });
            mounts.collect()
        })
        .await
    }

    /// The block devices of a container.
    pub fn devices(&self, pod: &Pod, container: &Container) -> Result<Vec<Device>, VolumeError> {
        let state = self.state(pod);
        let ready = state.ready.lock();
        mounts::devices(container, &ready)
    }

    /// Takes down all volumes of a pod and removes its directory. The pod's containers must be gone. Calling it again is
    /// fine, also for pods that this kubelet never saw.
    pub async fn tear_down(&self, pod_uid: &str) -> Result<(), VolumeError> {
        let Some(directory) = self.shared.paths.pod(pod_uid) else {
            return Ok(());
        };
        let state = self.shared.pods.lock().entry(pod_uid.to_string()).or_default().clone();
        let _turn = state.turn.lock().await;
        let removed = self.remove(directory);
        removed
            .await
            .map_err(|e| VolumeError::one("", format!("UnmountVolume.TearDown failed : {e}")))?;
        state.ready.lock().clear();
        self.shared.pods.lock().remove(pod_uid);
        self.shared.objects.pod_gone(pod_uid);
        Ok(())
    }

    /// Uids of all pods that have a directory on disk.
    pub async fn known_pods(&self) -> Vec<String> {
        let pods = self.shared.paths.pods();
        blocking(move || directories(&pods)).await
    }

    /// The sizes of a pod's volumes. Walks through all of their files.
    pub async fn used(&self, pod_uid: &str) -> Vec<VolumeUse> {
        let Some(directory) = self.shared.paths.pod(pod_uid) else {
            return Vec::new();
        };
        let state = self.shared.pods.lock().get(pod_uid).cloned();
        let names: HashMap<String, String> = state
            .iter()
            .flat_map(|state| {
                let ready = state.ready.lock();
                let names = ready
                    .iter()
                    .map(|(name, ready)| (ready.directory_name.clone(), name.clone()));
                names.collect::<Vec<_>>()
            })
            .collect();
        blocking(move || uses(&paths::volumes(&directory), &names)).await
    }

    /// Looks for storage drivers below `<root>/plugins_registry` and enters them in the node's CSINode, until the shutdown.
    pub async fn watch_plugins(&self, shutdown: Shutdown) {
        csi::watch(self.registry(), shutdown).await;
    }

    fn registry(&self) -> csi::Registry {
        csi::Registry {
            drivers: self.shared.drivers.clone(),
            directory: self.shared.paths.root.join("plugins_registry"),
            api: self.shared.objects.api().cloned(),
            node_name: self.shared.node_name.clone(),
        }
    }

    /// For the node's status: `kubernetes.io/csi/<driver>^<handle>` of all volumes that pods here have.
    pub async fn volumes_in_use(&self) -> Vec<String> {
        self.publisher().in_use().await
    }

    fn publisher(&self) -> csi::Publisher<'_> {
        csi::Publisher {
            drivers: &self.shared.drivers,
            objects: &self.shared.objects,
            paths: &self.shared.paths,
            node_name: &self.shared.node_name,
            events: &self.shared.events,
            clock: &self.shared.clock,
        }
    }

    async fn remove(&self, directory: PathBuf) -> Result<(), MountError> {
        let may_mount = self.shared.may_mount;
        // First what would keep a driver's volume busy.
        let sub_paths = paths::sub_paths(&directory);
        if may_mount {
            blocking(move || mount_table::unmount_below(&sub_paths)).await?;
        }
        self.publisher().unpublish_all(&directory).await?;
        if may_mount {
            self.release_disks(&directory).await?;
        }
        let root = self.shared.paths.root.clone();
        blocking(move || {
            if may_mount {
                block::release_local(&root, &directory)?;
                mount_table::unmount_below(&directory)?;
            }
            mount_table::remove_tree(&directory)
        })
        .await
    }

    /// One pod at a time: a disk must not be unmounted while another pod is about to have it.
    fn local_turn(&self, volume: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.shared.drivers.turn(Plugin::Local.directory(), volume)
    }

    async fn release_disks(&self, directory: &Path) -> Result<(), MountError> {
        let at = directory.to_path_buf();
        for name in blocking(move || file_system::names(&at)).await {
            let turn = self.local_turn(&name);
            let _turn = turn.lock().await;
            let (root, at) = (self.shared.paths.root.clone(), directory.to_path_buf());
            blocking(move || file_system::release(&root, &at, &name)).await?;
        }
        Ok(())
    }

    fn context(&self, pod: &Pod) -> Result<Context, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let directory = self.shared.paths.pod(uid);
        let directory =
            directory.ok_or_else(|| VolumeError::one("", format!("pod UID {uid:?} is not a valid directory name")))?;
        Ok(Context {
            allocatable: self.shared.allocatable.read().clone(),
            ownership: Ownership::of(pod),
            directory,
        })
    }

    fn state(&self, pod: &Pod) -> Arc<PodVolumes> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.shared.pods.lock().entry(uid).or_default().clone()
    }

    async fn make(&self, pod: &Pod, volumes: &[&Volume], context: &Context, state: &PodVolumes) -> Vec<VolumeFailure> {
        let made = join_all(volumes.iter().map(|volume| self.make_one(pod, volume, context))).await;
        let mut failures = Vec::new();
        for (volume, made) in volumes.iter().zip(made) {
            match made {
                Ok(ready) => {
                    state.ready.lock().insert(volume.name.clone(), ready);
                }
                Err(problem) => failures.push(failure(&volume.name, problem)),
            }
        }
        failures
    }

    async fn make_one(&self, pod: &Pod, volume: &Volume, context: &Context) -> Result<Ready, Problem> {
        if !paths::is_file_name(&volume.name) {
            return Err(Problem::invalid(format!(
                "volume name {:?} is not a valid directory name",
                volume.name
            )));
        }
        let lookup = Lookup {
            objects: &self.shared.objects,
            pod,
            allocatable: &context.allocatable,
            ownership: context.ownership,
            may_mount: self.shared.may_mount,
            image_trouble: self.shared.image_trouble.read().clone(),
        };
        let plan = lookup.plan(volume).await?;
        if let Plan::Csi(target) = &plan {
            let published = self
                .publisher()
                .publish(target, pod, &context.directory, &context.ownership)
                .await;
            return published.map_err(|problem| Problem {
                volume: Some(target.name.clone()),
                ..problem
            });
        }
        let (pod, name) = (pod.clone(), volume.name.clone());
        let (directory, ownership) = (context.directory.clone(), context.ownership);
        let (may_mount, now) = (self.shared.may_mount, self.shared.clock.now());
        let root = self.shared.paths.root.clone();
        let turn = match &plan {
            Plan::Local(volume) => Some(self.local_turn(&volume.name)),
            _ => None,
        };
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        blocking(move || {
            let site = Site {
                pod: &pod,
                pod_directory: &directory,
                volume: &name,
                ownership,
                may_mount,
                now,
            };
            carry_out(plan, &site, &root)
        })
        .await
    }
}

fn carry_out(plan: Plan, site: &Site<'_>, root: &Path) -> Result<Ready, Problem> {
    match plan {
        Plan::EmptyDir(medium) => site.empty_dir(&medium),
        Plan::Files {
            plugin,
            payload,
            medium,
        } => site.files(plugin, payload, &medium),
        Plan::HostPath { path, kind, read_only } => site.host_path(&path, &kind, read_only),
        Plan::Local(volume) => {
            let made = match volume.is_block {
                true => site.local_device(root, &volume),
                false => site.local(root, &volume),
            };
            made.map_err(|problem| Problem {
                volume: Some(volume.name),
                ..problem
            })
        }
        Plan::Image => Ok(Ready::image(site.volume)),
        Plan::Csi(_) => unreachable!("volumes of drivers are published, not made here"),
    }
}

fn failure(volume: &str, problem: Problem) -> VolumeFailure {
    let said = problem.volume.as_deref().unwrap_or(volume);
    let (message, processed) = match problem.kind {
        ProblemKind::Unprocessed => (problem.reason.to_string(), false),
        ProblemKind::Step(step) => (format!("{step} for volume {said:?} : {}", problem.reason), true),
    };
    VolumeFailure {
        volume: volume.to_string(),
        message,
        processed,
    }
}

/// Volumes that no container mounts are left alone, as in Kubernetes.
fn used_names(pod: &Pod) -> BTreeSet<&str> {
    let mounts = nested::container_mounts(pod).flatten().map(|mount| mount.name.as_str());
    let devices = plan::container_devices(pod).map(|device| device.name.as_str());
    mounts.chain(devices).collect()
}

async fn make_pod_directories(pod: &Path) -> Result<(), VolumeError> {
    let directories = [pod.to_path_buf(), paths::volumes(pod), pod.join("plugins")];
    let made = blocking(move || {
        directories
            .iter()
            .try_for_each(|at| host_path::make_directories(at, 0o750))
    });
    made.await
        .map_err(|e| VolumeError::one("", format!("error making pod data directories: {e}")))
}

fn directories(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn uses(volumes: &Path, names: &HashMap<String, String>) -> Vec<VolumeUse> {
    let mut found = Vec::new();
    for plugin in directories(volumes) {
        for directory in directories(&volumes.join(&plugin)) {
            let at = volumes.join(&plugin).join(&directory);
            // Usage of volumes that are not the pod's own is that of their file system.
            let measured = match plugin.as_str() {
                p if p == Plugin::Local.directory() => usage::of_file_system(&at),
                p if p == Plugin::Csi.directory() => usage::of_file_system(&at.join("mount")),
                _ => usage::of(&at),
            };
            let Ok(measured) = measured else { continue };
            found.push(VolumeUse {
                volume: names.get(&directory).cloned().unwrap_or(directory),
                plugin: plugin.clone(),
                ..measured
            });
        }
    }
    found
}

/// Work on disk, which may take long, away from the tasks that must not wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match crate::blocking::run(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
