//! Finds drivers by the sockets of their registrars, and adds them to the node's CSINode.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::Node;
use orlop_api::types::storage::CSINode;
use orlop_base::{Shutdown, join_all};
use orlop_client::{Api, DeleteOptions, path};
use serde::de::IgnoredAny;

use super::super::blocking;
use super::Drivers;
use super::client::Client;
use super::messages::{NodeInfo, PluginInfo};
use super::node_object::{self, NODE_ID};
use crate::grpc::CallError;

/// How often the directory is looked at. A driver waits that long at most, and looking costs next to nothing.
const LOOK: Duration = Duration::from_secs(1);
const RETRY_MIN: u32 = 1;
/// In looks.
const RETRY_MAX: u32 = 120;
const STORAGE: &str = "storage.k8s.io/v1";
/// Sockets below this depth are nobody's.
const DEPTH_MAX: usize = 3;

/// Why a plugin was not registered, or not deregistered.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    #[error("no handler registered for plugin type: {kind} at socket {}", socket.display())]
    PluginType { kind: String, socket: PathBuf },
    #[error("plugin validation failed with err: None of the versions specified {0:?} are supported")]
    Version(Vec<String>),
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    #[error("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={source}")]
    Annotation { text: String, source: serde_json::Error },
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{existing:?}"
    )]
    Topology {
        key: String,
        reported: String,
        existing: String,
    },
    #[error("{}", .0.chain())]
    Api(#[from] orlop_client::Error),
    #[error("error updating {kind} object with CSI driver node info: {}", source.chain())]
    Update {
        kind: &'static str,
        source: orlop_client::Error,
    },
    #[error(transparent)]
    Call(#[from] CallError),
    /// The driver itself, not its registrar, is at fault.
    #[error("plugin registration failed with err: {0}")]
    Driver(Box<RegistrationError>),
}

pub(crate) struct Registry {
    pub drivers: Arc<Drivers>,
    /// `<root>/plugins_registry`.
    pub directory: PathBuf,
    pub api: Option<Api>,
    pub node_name: String,
}

/// A socket as it is found: another file under the same name is another registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    inode: u64,
    changed: i64,
}

pub(super) enum Known {
    Registered {
        identity: Identity,
        driver: String,
    },
    Failed {
        identity: Identity,
        /// Looks to wait now, and the next time.
        wait: u32,
        next_wait: u32,
    },
}

/// Registers and unregisters drivers until the shutdown.
pub(crate) async fn watch(registry: Registry, shutdown: Shutdown) {
    let mut known: HashMap<PathBuf, Known> = HashMap::new();
    let mut has_object = false;
    loop {
        if !has_object {
            has_object = registry.ensure_object().await;
        }
        registry.look(&mut known).await;
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = shutdown.wait() => return,
        }
    }
}

impl Registry {
    /// Whether the node's CSINode is there; made if the node is.
    async fn ensure_object(&self) -> bool {
        let Some(api) = &self.api else { return true };
        match self.object(api).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(err = %error, "failed to initialize CSINode");
                false
            }
        }
    }

    /// One look at the directory.
    pub(super) async fn look(&self, known: &mut HashMap<PathBuf, Known>) {
        let directory = self.directory.clone();
        let found = blocking(move || sockets(&directory)).await;
        let gone: Vec<PathBuf> = known
            .keys()
            .filter(|path| !found.contains_key(*path))
            .cloned()
            .collect();
        for path in gone {
            let Some(Known::Registered { driver, .. }) = known.remove(&path) else {
                continue;
            };
            // A registrar that is being replaced may have two for a while.
            let is_other = |other: &Known| matches!(other, Known::Registered { driver: name, .. } if *name == driver);
            if !known.values().any(is_other) {
                self.unregister(&driver).await;
            }
        }
        let due: Vec<(PathBuf, Identity)> = found
            .into_iter()
            .filter(|(path, id)| is_due(known.get_mut(path), *id))
            .collect();
        let outcomes = join_all(due.iter().map(|(path, _)| self.register(path))).await;
        for ((path, identity), outcome) in due.into_iter().zip(outcomes) {
            let next = match outcome {
                Ok(driver) => {
                    tracing::info!(driver, socket = %path.display(), "registered CSI driver");
                    Known::Registered { identity, driver }
                }
                Err(error) => {
                    tracing::warn!(socket = %path.display(), err = %error, "failed to register plugin");
                    let wait = match known.get(&path) {
                        Some(Known::Failed { next_wait, .. }) => *next_wait,
                        _ => RETRY_MIN,
                    };
                    Known::Failed {
                        identity,
                        wait,
                        next_wait: (wait * 2).min(RETRY_MAX),
                    }
                }
            };
            known.insert(path, next);
        }
    }

    /// The driver's name, once everybody knows it.
    async fn register(&self, socket: &Path) -> Result<String, RegistrationError> {
        let registrar = Client::new(socket);
        let info = registrar.plugin_info().await?;
        let outcome = self.enter(&info, socket).await;
        let error = outcome
            .as_ref()
            .err()
            .map(|e| format!("RegisterPlugin error -- {e}"))
            .unwrap_or_default();
        let notified = registrar.notify(&error).await;
        outcome?;
        if let Err(error) = notified {
            self.unregister(&info.name).await;
            return Err(error.into());
        }
        Ok(info.name)
    }

    async fn enter(&self, info: &PluginInfo, socket: &Path) -> Result<(), RegistrationError> {
        check(info, socket)?;
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_path_buf(),
            endpoint => PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
        };
        let client = Client::new(endpoint);
        let failed = |error: RegistrationError| RegistrationError::Driver(Box::new(error));
        let node_info = client.node_info().await.map_err(|error| failed(error.into()))?;
        if node_info.node_id.is_empty() {
            return Err(failed(RegistrationError::NoNodeId));
        }
        self.tell(&info.name, Some(&node_info)).await.map_err(failed)?;
        self.drivers.clients.lock().insert(info.name.clone(), client);
        Ok(())
    }

    async fn unregister(&self, driver: &str) {
        tracing::info!(driver, "deregistered CSI driver");
        self.drivers.clients.lock().remove(driver);
        if let Err(error) = self.tell(driver, None).await {
            tracing::warn!(driver, err = %error, "failed to remove driver from CSINode");
        }
    }

    /// Tells the cluster of a driver that came (with its information) or went.
    async fn tell(&self, driver: &str, info: Option<&NodeInfo>) -> Result<(), RegistrationError> {
        let Some(api) = &self.api else { return Ok(()) };
        let node_path = path::object("v1", None, "nodes", &self.node_name);
        let node: Node = api.get(&node_path).await?;
        if let Some(patch) = node_object::node_patch(&node, driver, info)? {
            let patched: Result<IgnoredAny, _> = api.patch_merge(&node_path, &patch).await;
            patched.map_err(|source| RegistrationError::Update { kind: "Node", source })?;
        }
        let csi_node = self.object(api).await?;
        let changed = match info {
            Some(info) => node_object::with_driver(&csi_node, driver, info),
            None => node_object::without_driver(&csi_node, driver),
        };
        if let Some(changed) = changed {
            let path = path::object(STORAGE, None, "csinodes", &self.node_name);
            let replaced: Result<IgnoredAny, _> = api.replace(&path, &changed).await;
            replaced.map_err(|source| RegistrationError::Update {
                kind: "CSINode",
                source,
            })?;
        }
        Ok(())
    }

    /// The node's CSINode, made if there is none; that of an earlier node of the name is removed.
    async fn object(&self, api: &Api) -> Result<CSINode, RegistrationError> {
        let node: Node = api.get(&path::object("v1", None, "nodes", &self.node_name)).await?;
        let at = path::object(STORAGE, None, "csinodes", &self.node_name);
        match api.get::<CSINode>(&at).await {
            Ok(found) if node_object::is_owned(&found, &node) => return Ok(found),
            Ok(_) => api.delete(&at, &DeleteOptions::default()).await?,
            Err(orlop_client::Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let all = path::collection(STORAGE, None, "csinodes");
        Ok(api.create(&all, &node_object::empty(&node)).await?)
    }
}

/// Whether it is new, was replaced, or has waited long enough after a failure.
fn is_due(known: Option<&mut Known>, found: Identity) -> bool {
    match known {
        None => true,
        Some(Known::Registered { identity, .. }) => *identity != found,
        Some(Known::Failed { identity, wait, .. }) => {
            *wait = wait.saturating_sub(1);
            *wait == 0 || *identity != found
        }
    }
}

fn check(info: &PluginInfo, socket: &Path) -> Result<(), RegistrationError> {
    if info.kind != "CSIPlugin" {
        return Err(RegistrationError::PluginType {
            kind: info.kind.clone(),
            socket: socket.to_path_buf(),
        });
    }
    let is_one = |version: &String| version.trim_start_matches('v').split('.').next() == Some("1");
    if info.name.is_empty() || !info.supported_versions.iter().any(is_one) {
        return Err(RegistrationError::Version(info.supported_versions.clone()));
    }
    Ok(())
}

fn sockets(directory: &Path) -> HashMap<PathBuf, Identity> {
    let mut found = HashMap::new();
    let _ = fs::create_dir_all(directory);
    let mut waiting = vec![(directory.to_path_buf(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let Ok(metadata) = entry.metadata() else { continue };
            if is_hidden {
                continue;
            }
            if metadata.is_dir() && depth < DEPTH_MAX {
                waiting.push((entry.path(), depth + 1));
            } else if metadata.file_type().is_socket() {
                let identity = Identity {
                    inode: metadata.ino(),
                    changed: metadata.ctime_nsec() ^ metadata.ctime(),
                };
                found.insert(entry.path(), identity);
            }
        }
    }
    found
}

#[cfg(test)]
pub(super) fn registered(socket: &Path, driver: &str) -> HashMap<PathBuf, Known> {
    let identity = Identity { inode: 0, changed: 0 };
    let driver = driver.to_string();
    HashMap::from([(socket.to_path_buf(), Known::Registered { identity, driver })])
}
