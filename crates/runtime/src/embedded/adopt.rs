//! The start: what runs is adopted, what was interrupted is cleaned up.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::client::ShimConnection;
use super::protocol::{Answer, Request};
use super::records::{self, ContainerRecord, SandboxRecord};
use super::shim::state_file;
use super::store::{Container, Sandbox, Stage};
use super::{Embedded, blocking, create, failed, sandboxes};
use crate::{Code, Error, Result};

impl Embedded {
    pub(super) async fn adopt(&self) -> Result<()> {
        let pods = self.inner.layout.pods();
        let names = blocking(move || records::subdirectories(&pods).map_err(|e| failed("list pods", &e))).await?;
        let adopted = names.iter().map(|name| self.adopt_pod(name));
        for (name, result) in names.iter().zip(futures::future::join_all(adopted).await) {
            if let Err(error) = result {
                tracing::warn!(sandbox = name, err = %error, "failed to adopt pod");
            }
        }
        let (live_sandboxes, live_containers) = {
            let store = self.inner.store.lock();
            (
                store.sandboxes.keys().cloned().collect::<Vec<_>>(),
                self.holders(&store),
            )
        };
        // Neither keeps pods from running.
        if let Err(error) = self.inner.network.retain(&live_sandboxes).await {
            tracing::warn!(err = %error, "failed to free network resources of pods that are gone");
        }
        if let Err(error) = self.inner.images.release_absent(&live_containers).await {
            tracing::warn!(err = %error, "failed to release images of containers that are gone");
        }
        Ok(())
    }

    /// Names under which images are held.
    fn holders(&self, store: &super::store::Store) -> Vec<String> {
        let of_container = |container: &Arc<Container>| {
            let mounts = container.record.lock().config.clone().unwrap_or_default().mounts.len();
            let volumes = (0..mounts).map(|at| create::volume_holder(&container.id, at));
            volumes.chain([container.id.clone()]).collect::<Vec<_>>()
        };
        store.containers.values().flat_map(of_container).collect()
    }

    async fn adopt_pod(&self, id: &str) -> Result<()> {
        let dir = self.inner.layout.pod(id);
        let from = dir.clone();
        let record = blocking(move || {
            records::read_record::<SandboxRecord>(&from).map_err(|e| failed("read a sandbox's record", &e))
        });
        let Some(record) = record.await?.filter(|record| record.id == id) else {
            return self.remove_remains(&dir).await;
        };
        // One that is being stopped may have a shim or not; stopping goes on when it is asked for again.
        let watched = match record.stopped {
            true => None,
            false => watch(&dir).await,
        };
        let (shim, connection, running) = match watched {
            Some((pid, connection, running)) => (Some(pid), Some(connection), running),
            None => (None, None, HashSet::new()),
        };
        let sandbox = Arc::new(Sandbox::new(dir, record, shim));
        let name = sandboxes::reserved_name(&sandbox.record.lock().config())?;
        {
            let mut store = self.inner.store.lock();
            store.sandboxes.insert(id.to_string(), sandbox.clone());
            store.names.insert(name);
        }
        let lost = self.adopt_containers(&sandbox, &running).await?;
        let has_shim = connection.is_some();
        if let Some(connection) = connection {
            self.watch_shim(sandbox, connection);
        }
        // With a shim, those that were never started are just that.
        for container in lost.iter().filter(|c| !has_shim || c.stage() != Stage::Created) {
            self.observe_lost(container).await;
        }
        Ok(())
    }

    /// Returns those that its shim does not know.
    async fn adopt_containers(&self, sandbox: &Arc<Sandbox>, running: &HashSet<String>) -> Result<Vec<Arc<Container>>> {
        let of = sandbox.clone();
        let dir = self.inner.layout.containers(&sandbox.id);
        let known = running.clone();
        let found = blocking(move || {
            let names = records::subdirectories(&dir).map_err(|e| failed("list containers", &e))?;
            let mut found = vec![];
            for name in names {
                found.extend(read_container(&of, &dir.join(&name), &name, &known)?);
            }
            Ok(found)
        });
        let found = found.await?;
        let mut lost = vec![];
        let mut store = self.inner.store.lock();
        for container in found {
            let config = container.record.lock().config.clone().unwrap_or_default();
            store.names.insert(create::reserved_name(&config, sandbox)?);
            store.containers.insert(container.id.clone(), container.clone());
            if !running.contains(&container.id) {
                lost.push(container);
            }
        }
        Ok(lost)
    }

    /// A pod that was never ready, or was being removed.
    async fn remove_remains(&self, dir: &Path) -> Result<()> {
        self.stop_shim(dir).await?;
        let (dir, hierarchies) = (dir.to_path_buf(), self.inner.hierarchies.clone());
        blocking(move || {
            // Its containers, if it had any, were killed with their shim.
            for name in records::subdirectories(&dir.join("containers")).unwrap_or_default() {
                if let Ok(Some(record)) = records::read_record::<ContainerRecord>(&dir.join("containers").join(name)) {
                    super::cgroups::kill_and_remove(&hierarchies, &record.cgroup)
                        .map_err(|e| failed("remove a container's cgroup", &e))?;
                }
            }
            records::remove_all(&dir).map_err(|e| failed("remove the remains of a pod", &e))
        })
        .await
    }
}

/// Connects to a pod's shim; `None`: it has none any more.
async fn watch(dir: &Path) -> Option<(i32, ShimConnection, HashSet<String>)> {
    let mut connection = ShimConnection::connect(dir).await.ok()?;
    connection.send(&Request::Watch, &[]).await.ok()?;
    match connection.answer().await {
        Ok((Answer::Watching { pid, containers }, _)) => Some((pid, connection, containers.into_iter().collect())),
        _ => None,
    }
}

/// A container by its files and by what its shim says. Remains of one that was being removed are removed.
fn read_container(
    sandbox: &Arc<Sandbox>,
    dir: &Path,
    name: &str,
    running: &HashSet<String>,
) -> Result<Option<Arc<Container>>> {
    let record = records::read_record::<ContainerRecord>(dir).map_err(|e| failed("read a container's record", &e))?;
    let Some(record) = record.filter(|record| record.id == name) else {
        records::remove_all(dir).map_err(|e| failed("remove the remains of a container", &e))?;
        return Ok(None);
    };
    let state = state_file::read(dir).map_err(|e| Error::new(Code::Other, format!("container {name}: {e}")));
    let stage = match state.unwrap_or_default() {
        Some(state) => match state.exited {
            Some(exited) => Stage::Exited(exited),
            None => Stage::Running {
                started_at: state.started_at,
                pid: state.pid,
            },
        },
        None if running.contains(name) => Stage::Starting,
        None => Stage::Created,
    };
    Ok(Some(Arc::new(Container::new(
        sandbox.clone(),
        dir.to_path_buf(),
        record,
        stage,
    ))))
}
