//! The device manager: device plugins register at `device-plugins/kubelet.sock`, list their devices, and say how a
//! container is to be configured to use them.
//!
//! The node reports the devices as extended resources, so that pods are scheduled by them. Which devices a pod is allocated
//! is decided at its admission ([`book`]); the plugin is asked for its preference (GetPreferredAllocation) and for the
//! container's configuration (Allocate).
// Upstream: pkg/kubelet/cm/devicemanager (v1.36). Left out: nearness to memory nodes, health in a pod's status

pub mod book;
pub mod messages;
mod register;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orlop_api::quantity::Quantity;
use orlop_api::types::core::{Container, Pod};
use orlop_base::Shutdown;
use orlop_runtime::cri::messages as cri;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::book::{Amounts, Book, Claim, choose};
use self::messages::*;
use crate::grpc::{CallError, Socket};
use crate::pod::policy;
use crate::sources::admission::Rejection;

/// Below the kubelet's root directory, as plugins expect it.
const FOLDER: &str = "device-plugins";
const SOCKET: &str = "kubelet.sock";
const CLAIMS: &str = "orlop_device_claims.json";

const QUESTION: Duration = Duration::from_secs(30);
/// Upstream: devices of a disconnected plugin are kept for so long.
const AWAY: Duration = Duration::from_secs(300);

/// Why devices could not be allocated, or their manager not be started.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("failed to {action} {}: {source}", path.display())]
    Checkpoint {
        action: &'static str,
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthyDevices(String),
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    Unavailable {
        resource: String,
        requested: usize,
        available: usize,
    },
    /// A plugin's Allocate has to answer for the one container that it was asked about.
    #[error("the plugin for {0} returned an unexpected number of container responses")]
    UnexpectedAnswer(String),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl DeviceError {
    fn checkpoint(
        action: &'static str,
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> DeviceError {
        DeviceError::Checkpoint {
            action,
            path: path.to_path_buf(),
            source: source.into(),
        }
    }
}

/// Why a plugin was not registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]")]
    Version(String),
    #[error("the ResourceName {0:?} is invalid")]
    ResourceName(String),
    #[error("the Endpoint {0:?} is not the name of a socket in {FOLDER}")]
    Endpoint(String),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Devices {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    state: Mutex<DeviceManagerState>,
    amounts: watch::Sender<Amounts>,
    /// Serializes device allocation.
    claiming: tokio::sync::Mutex<()>,
    shutdown: Shutdown,
}

struct DeviceManagerState {
    book: Book,
    /// By resource; the latest registration wins.
    plugins: BTreeMap<String, Plugin>,
    registrations: u64,
}

#[derive(Clone)]
struct Plugin {
    number: u64,
    socket: Socket,
    /// From GetDevicePluginOptions; the options of the registration are ignored, as upstream.
    options: PluginOptions,
}

impl Devices {
    /// Loads the checkpoint, and serves registrations until the shutdown.
    pub fn start(root: &Path, shutdown: Shutdown) -> Result<Devices, DeviceError> {
        let folder = root.join(FOLDER);
        std::fs::create_dir_all(&folder).map_err(|e| DeviceError::checkpoint("create", &folder, e))?;
        let book = Book::load(&folder.join(CLAIMS))?;
        let devices = Devices {
            inner: Arc::new(Inner {
                amounts: watch::Sender::new(book.amounts()),
                state: Mutex::new(DeviceManagerState {
                    book,
                    plugins: BTreeMap::new(),
                    registrations: 0,
                }),
                folder,
                claiming: tokio::sync::Mutex::default(),
                shutdown,
            }),
        };
        // A directory with too long a name for a socket, say: the rest of the kubelet can do without plugins.
        if let Err(error) = register::listen(devices.clone()) {
            tracing::error!(err = %error, "failed to start the device plugin registration server");
        }
        Ok(devices)
    }

    /// The node's device resources, as they change.
    pub fn amounts(&self) -> watch::Receiver<Amounts> {
        self.inner.amounts.subscribe()
    }

    fn socket(&self) -> PathBuf {
        self.inner.folder.join(SOCKET)
    }

    /// Applies a change, publishes the amounts, and writes the checkpoint.
    fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> Result<T, DeviceError> {
        let mut state = self.inner.state.lock();
        let answer = change(&mut state.book);
        let amounts = state.book.amounts();
        self.inner.amounts.send_if_modified(|old| {
            let differs = *old != amounts;
            *old = amounts;
            differs
        });
        let path = self.inner.folder.join(CLAIMS);
        let saved = state.book.save(&path);
        saved.map_err(|e| DeviceError::checkpoint("write", &path, e))?;
        Ok(answer)
    }

    fn change_or_warn(&self, change: impl FnOnce(&mut Book)) {
        if let Err(error) = self.change(change) {
            tracing::warn!(err = %error, "failed to write the device plugin checkpoint");
        }
    }

    /// Registers a plugin, and follows ListAndWatch until it is gone.
    fn add_plugin(&self, request: Register) -> Result<(), RegistrationError> {
        let Register {
            version,
            endpoint,
            resource_name,
            ..
        } = request;
        if version != "v1beta1" {
            return Err(RegistrationError::Version(version));
        }
        if !orlop_api::resources::is_extended(&resource_name) {
            return Err(RegistrationError::ResourceName(resource_name));
        }
        let is_plain = !endpoint.is_empty() && !endpoint.contains('/') && endpoint != "." && endpoint != "..";
        if !is_plain || endpoint == SOCKET {
            return Err(RegistrationError::Endpoint(endpoint));
        }
        let plugin = {
            let mut state = self.inner.state.lock();
            state.registrations += 1;
            let plugin = Plugin {
                number: state.registrations,
                socket: Socket::new(self.inner.folder.join(&endpoint)),
                options: PluginOptions::default(),
            };
            state.plugins.insert(resource_name.clone(), plugin.clone());
            plugin
        };
        tracing::info!(resource = %resource_name, endpoint = %endpoint, "registered device plugin");
        let (devices, shutdown) = (self.clone(), self.inner.shutdown.clone());
        orlop_base::spawn(async move {
            tokio::select! {
                () = devices.follow(&resource_name, plugin) => {}
                () = shutdown.wait() => {}
            }
        });
        Ok(())
    }

    async fn follow(&self, resource: &str, plugin: Plugin) {
        let is_newest = |devices: &Devices| {
            let state = devices.inner.state.lock();
            state
                .plugins
                .get(resource)
                .is_some_and(|newest| newest.number == plugin.number)
        };
        let told = self.listen_to(resource, &plugin, is_newest).await;
        if !is_newest(self) {
            return;
        }
        tracing::warn!(
            resource,
            err = told
                .err()
                .map_or("the stream ended".to_string(), |error| error.to_string()),
            "lost the connection to device plugin"
        );
        self.change_or_warn(|book| book.lose(resource));
        tokio::time::sleep(AWAY).await;
        if is_newest(self) {
            self.inner.state.lock().plugins.remove(resource);
            self.change_or_warn(|book| book.forget(resource));
        }
    }

    async fn listen_to(
        &self,
        resource: &str,
        plugin: &Plugin,
        is_newest: impl Fn(&Devices) -> bool,
    ) -> Result<(), CallError> {
        let path = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
        let options = plugin.socket.call(path, Empty {}, QUESTION).await?;
        if let Some(known) = self.inner.state.lock().plugins.get_mut(resource)
            && known.number == plugin.number
        {
            known.options = options;
        }
        let path = "/v1beta1.DevicePlugin/ListAndWatch";
        let mut stream = plugin.socket.follow::<_, DeviceList>(path, Empty {}, QUESTION).await?;
        while let Some(list) = stream.message().await? {
            if !is_newest(self) {
                return Ok(());
            }
            self.change_or_warn(|book| book.set(resource, &list.devices));
        }
        Ok(())
    }

    /// Allocates a new pod's devices: all or none.
    pub async fn claim(&self, pod: &Pod) -> Result<(), Rejection> {
        if !self.wants_any(pod) {
            return Ok(());
        }
        let _one_by_one = self.inner.claiming.lock().await;
        let claimed = self.claim_all(pod).await;
        claimed.map_err(|error| {
            self.release(policy::uid(pod));
            Rejection {
                reason: "UnexpectedAdmissionError".into(),
                message: format!("Allocate failed due to {error}, which is unexpected"),
            }
        })
    }

    fn wants_any(&self, pod: &Pod) -> bool {
        let mut all = policy::init_containers(pod)
            .iter()
            .chain(policy::regular_containers(pod));
        all.any(|container| !self.wanted(container).is_empty())
    }

    /// The device resources that a container requests.
    fn wanted(&self, container: &Container) -> Vec<(String, usize)> {
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        let state = self.inner.state.lock();
        let known = limits.into_iter().flatten().filter(|(name, _)| state.book.knows(name));
        let counted = known.filter_map(|(name, amount)| {
            let count = Quantity::parse(&amount.0).ok()?.value();
            Some((name.clone(), usize::try_from(count).ok().filter(|count| *count > 0)?))
        });
        counted.collect()
    }

    async fn claim_all(&self, pod: &Pod) -> Result<(), DeviceError> {
        let uid = policy::uid(pod);
        // Devices of init containers that have completed by then, by resource.
        let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let init = policy::init_containers(pod).iter().map(|c| (c, !policy::is_sidecar(c)));
        let all = init.chain(policy::regular_containers(pod).iter().map(|c| (c, false)));
        for (container, ends_first) in all {
            for (resource, count) in self.wanted(container) {
                let again = reusable.entry(resource.clone()).or_default();
                let ids = self.claim_one(uid, &container.name, &resource, count, again).await?;
                match ends_first {
                    true => again.extend(ids),
                    false => again.retain(|id| !ids.contains(id)),
                }
            }
        }
        Ok(())
    }

    async fn claim_one(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
        count: usize,
        reusable: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, DeviceError> {
        let (free, plugin, known) = {
            let state = self.inner.state.lock();
            let known = state.book.claim(uid, container, resource).cloned();
            (state.book.free(resource), state.plugins.get(resource).cloned(), known)
        };
        if let Some(known) = known.filter(|known| known.ids.len() == count && known.allocated.is_some()) {
            return Ok(known.ids);
        }
        let plugin = plugin.ok_or_else(|| DeviceError::NoHealthyDevices(resource.to_string()))?;
        let preferred = match plugin.options.get_preferred_allocation_available && free.len() + reusable.len() > count {
            true => prefer(&plugin, &free, reusable, count).await?,
            false => Vec::new(),
        };
        let ids = choose(resource, &free, reusable, &preferred, count)?;
        let request = AllocateRequest {
            containers: vec![DeviceIds {
                ids: ids.iter().cloned().collect(),
            }],
        };
        let path = "/v1beta1.DevicePlugin/Allocate";
        let mut answer: AllocateResponse = plugin.socket.call(path, request, QUESTION).await?;
        let allocated = answer.containers.pop();
        if allocated.is_none() || !answer.containers.is_empty() {
            return Err(DeviceError::UnexpectedAnswer(resource.to_string()));
        }
        let claim = Claim {
            ids: ids.clone(),
            allocated,
        };
        self.change(|book| book.give(uid, container, resource, claim))?;
        Ok(ids)
    }

    /// Pods with allocated devices.
    pub fn pods(&self) -> Vec<String> {
        self.inner.state.lock().book.pods()
    }

    /// Releases the pod's devices. Idempotent.
    pub fn release(&self, uid: &str) {
        if self.inner.state.lock().book.release(uid) {
            self.change_or_warn(|_| ());
        }
    }

    /// Adds a container's devices to its configuration, and calls PreStartContainer where required.
    pub async fn add_to(&self, uid: &str, name: &str, config: &mut cri::ContainerConfig) -> Result<(), DeviceError> {
        let claims = self.inner.state.lock().book.of(uid, name);
        for (resource, claim) in claims {
            let plugin = self.inner.state.lock().plugins.get(&resource).cloned();
            if let Some(plugin) = plugin.filter(|plugin| plugin.options.pre_start_required) {
                let ids = DeviceIds {
                    ids: claim.ids.iter().cloned().collect(),
                };
                let path = "/v1beta1.DevicePlugin/PreStartContainer";
                let _: Empty = plugin.socket.call(path, ids, QUESTION).await?;
            }
            apply(claim.allocated.unwrap_or_default(), config);
        }
        Ok(())
    }
}

async fn prefer(
    plugin: &Plugin,
    free: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    count: usize,
) -> Result<Vec<String>, CallError> {
    let request = PreferredRequest {
        containers: vec![ContainerPreferredRequest {
            available: free.union(reusable).cloned().collect(),
            must_include: reusable.iter().take(count).cloned().collect(),
            size: i32::try_from(count).unwrap_or(i32::MAX),
        }],
    };
    let path = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    let mut answer: PreferredResponse = plugin.socket.call(path, request, QUESTION).await?;
    Ok(answer.containers.pop().unwrap_or_default().ids)
}

/// The pod's own settings take precedence over the plugin's.
fn apply(allocated: Allocated, config: &mut cri::ContainerConfig) {
    for (key, value) in allocated.envs {
        if !config.envs.iter().any(|env| env.key == key) {
            config.envs.push(cri::KeyValue {
                key,
                value: value.into_bytes(),
            });
        }
    }
    for mount in allocated.mounts {
        if !config.mounts.iter().any(|m| m.container_path == mount.container_path) {
            config.mounts.push(cri::Mount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                readonly: mount.read_only,
                ..Default::default()
            });
        }
    }
    for device in allocated.devices {
        if !config.devices.iter().any(|d| d.container_path == device.container_path) {
            config.devices.push(cri::Device {
                container_path: device.container_path,
                host_path: device.host_path,
                permissions: device.permissions,
            });
        }
    }
    for (key, value) in allocated.annotations {
        config.annotations.entry(key).or_insert(value);
    }
    let known = |config: &cri::ContainerConfig, name: &str| config.cdi_devices.iter().any(|d| d.name == name);
    for device in allocated.cdi_devices {
        if !known(config, &device.name) {
            config.cdi_devices.push(cri::CDIDevice { name: device.name });
        }
    }
}
