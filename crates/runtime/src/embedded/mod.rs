//! The embedded runtime: containers without any container software, in process behind the same trait as a CRI socket.
//!
//! What a container is made of is planned here ([`plan`]); a shim a pod carries it out and watches it ([`shim`]). The runtime
//! itself holds no process: it can end, crash and start again while pods run. What it must remember is in files
//! ([`records`]), and what runs is known by asking the shims. Nothing is mounted and no namespace is pinned on the node, so
//! nothing can be left there: mounts and namespaces go with the last process of a pod.
//!
//! Images and the pod network are other parts' work ([`interfaces`]).

mod adopt;
mod apparmor;
mod cgroups;
mod client;
mod containers;
mod copy;
mod create;
pub mod images;
mod interfaces;
pub mod network;
mod parts;
mod plan;
mod protocol;
mod records;
mod resources;
mod runtime;
mod sandboxes;
mod seccomp;
mod sessions;
pub mod shim;
mod spec;
mod stats;
mod statuses;
mod store;
mod streams;
mod sys;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_base::Random;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use crate::{Code, Error, Event, Result};
use cgroups::Hierarchies;
use client::{ShimConnection, Spawner};
use records::Layout;
use spec::SandboxSpec;
use stats::StatsCache;
use store::Store;

pub use apparmor::remove_profile as remove_apparmor_profile;
pub use client::ShimCommand;
pub use interfaces::{ImageDefaults, Images, Network, PodName, PreparedImage};
pub use parts::NodeImages;

/// Events that wait for a slow reader; one that is further behind loses its stream and lists.
const EVENTS_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub struct Options {
    /// Where pods are kept. Paths below it may be long.
    pub root: PathBuf,
    pub shim: ShimCommand,
    /// The node's network namespace; `None`: this process's.
    pub network_namespace: Option<PathBuf>,
    /// Where cgroups are mounted.
    pub cgroups: PathBuf,
    /// What the default AppArmor profile of containers is called, where the kernel has AppArmor.
    pub apparmor_profile: String,
}

impl Options {
    pub fn new(root: impl Into<PathBuf>) -> Options {
        Options {
            root: root.into(),
            shim: ShimCommand::default(),
            network_namespace: None,
            cgroups: cgroups::MOUNT.into(),
            apparmor_profile: "orlop-default".to_string(),
        }
    }
}

/// The embedded runtime of one node.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    layout: Layout,
    hierarchies: Hierarchies,
    images: Arc<dyn Images>,
    network: Arc<dyn Network>,
    /// Overlayfs can have a writable layer below the root; otherwise layers are copied.
    overlay: bool,
    user_namespaces: bool,
    store: Mutex<Store>,
    events: broadcast::Sender<Event>,
    spawner: tokio::sync::Mutex<Option<Spawner>>,
    random: Mutex<Random>,
    stats: StatsCache,
    /// Tasks that listen to shims; they end with this value.
    watchers: Mutex<JoinSet<()>>,
    /// Compiled filters of the default profile, by capabilities.
    filters: Mutex<Vec<(u64, Arc<Vec<u64>>)>>,
}

impl Embedded {
    /// Opens the runtime: adopts what runs, and cleans up what others left behind.
    pub async fn open(options: Options, images: Arc<dyn Images>, network: Arc<dyn Network>) -> Result<Embedded> {
        let (root, mounted) = (options.root.clone(), options.cgroups.clone());
        let profile = options.apparmor_profile.clone();
        let (layout, hierarchies, overlay) = blocking(move || {
            let layout = Layout::create(&root).map_err(|e| failed(format!("create {}", root.display()), &e))?;
            let hierarchies = Hierarchies::detect(&mounted).map_err(|e| failed("find cgroups", &e))?;
            check_kernel()?;
            apparmor::ensure_default_profile(&profile);
            let overlay = sys::mounts::overlay_can_write_to(&root);
            Ok((layout, hierarchies, overlay))
        })
        .await?;
        let inner = Inner {
            options,
            layout,
            hierarchies,
            images,
            network,
            overlay,
            user_namespaces: Path::new("/proc/self/ns/user").exists(),
            store: Mutex::default(),
            events: broadcast::channel(EVENTS_MAX).0,
            spawner: tokio::sync::Mutex::default(),
            random: Mutex::new(Random::from_entropy()),
            stats: StatsCache::default(),
            watchers: Mutex::default(),
            filters: Mutex::default(),
        };
        let embedded = Embedded { inner: Arc::new(inner) };
        embedded.adopt().await?;
        Ok(embedded)
    }

    /// Has a shim forked for a pod. The spawner is started with the first one, and anew if it died.
    async fn fork_shim(&self, spec: &SandboxSpec) -> Result<ShimConnection> {
        let inner = &self.inner;
        let mut spawner = inner.spawner.lock().await;
        if spawner.as_mut().is_none_or(Spawner::has_ended) {
            let started = Spawner::start(&inner.options.shim, inner.options.network_namespace.as_deref());
            *spawner = Some(started.map_err(|e| failed("start the shim", &e))?);
        }
        let spawner = spawner.as_mut().expect("it was just started");
        spawner.fork(spec).await.map_err(|e| failed("fork a shim", &e))
    }

    /// An id as containerd makes them: 64 hexadecimal digits.
    fn new_id(&self) -> String {
        let mut random = self.inner.random.lock();
        (0..4).map(|_| format!("{:016x}", random.next_u64())).collect()
    }

    fn publish(&self, sandbox: &str, container: &str) {
        // Without readers there is nobody to be told.
        let _ = self.inner.events.send(Event {
            sandbox: Some(sandbox.to_string()),
            container: container.to_string(),
        });
    }
}

/// What this kernel lacks, if anything. Linux 5.12 has all of it.
fn check_kernel() -> Result<()> {
    match sys::mounts::supports_attributes() {
        true => Ok(()),
        false => Err(Error::new(
            Code::Other,
            "the kernel is too old for containers: Linux 5.12 or later is needed",
        )),
    }
}

/// Runs what touches files on a thread for that.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::new(Code::Other, format!("task failed: {e}"))),
    }
}

/// Carries work out to its end, whether or not its caller still waits: what is half done would be in everybody's way.
async fn to_the_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::new(Code::Other, format!("task failed: {e}"))),
    }
}

fn failed(action: impl std::fmt::Display, error: &std::io::Error) -> Error {
    Error::new(Code::Other, format!("failed to {action}: {error}"))
}

fn not_found(kind: &str, id: &str) -> Error {
    Error::new(Code::NotFound, format!("{kind} {id:?}: not found"))
}
