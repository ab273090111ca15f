//! Containers: started, stopped, removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::libc;

use super::cgroups::kill_and_remove;
use super::client;
use super::create::reserved_name;
use super::protocol::{Answer, ContainerStateFile, Exited, Request};
use super::records;
use super::sandboxes::now_ns;
use super::shim::state_file;
use super::store::{Container, Stage};
use super::{Embedded, blocking, failed, not_found};
use crate::cri::messages::PodSandboxState;
use crate::{Code, Error, Result};

/// How long the kernel may take to end what was killed: longer only if it hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(120);
/// How a container ended whose shim was killed.
const LOST_CODE: i32 = 137;

impl Embedded {
    pub(super) fn container(&self, id: &str) -> Result<Arc<Container>> {
        self.inner
            .store
            .lock()
            .container(id)
            .ok_or_else(|| not_found("container", id))
    }

    pub(super) async fn start(&self, id: &str) -> Result<()> {
        let container = self.container(id)?;
        container.begin_start()?;
        let started = match container.sandbox.state() {
            PodSandboxState::Ready => self.start_found(&container).await,
            PodSandboxState::NotReady => Err(Error::new(
                Code::Other,
                format!("sandbox container {:?} is not running", container.sandbox.id),
            )),
        };
        match started {
            Ok(()) => {
                self.publish(&container.sandbox.id, &container.id);
                Ok(())
            }
            Err(error) => {
                self.observe_failed_start(&container, &error).await;
                Err(Error::new(
                    error.code,
                    format!("failed to start container {:?}: {}", container.id, error.message),
                ))
            }
        }
    }

    async fn start_found(&self, container: &Container) -> Result<()> {
        let request = Request::Start {
            id: container.id.clone(),
        };
        let (_, answer, _) = client::request(&container.sandbox.dir, &request, &[]).await?;
        match answer {
            Answer::Started { pid, started_at } => {
                container.set_running(started_at, pid);
                Ok(())
            }
            other => Err(Error::new(
                Code::Other,
                format!("unexpected answer of the shim: {other:?}"),
            )),
        }
    }

    /// A shim that could not start it has recorded that; one that could not be asked has not.
    async fn observe_failed_start(&self, container: &Arc<Container>, error: &Error) {
        // Also of a start that went on without its shim.
        self.kill_remains(container).await;
        let exited = Exited {
            id: container.id.clone(),
            code: super::protocol::START_ERROR_CODE,
            reason: super::protocol::START_ERROR.to_string(),
            message: error.message.clone(),
            started_at: 0,
            finished_at: now_ns(),
        };
        self.record_exit(container, exited).await;
    }

    async fn record_exit(&self, container: &Arc<Container>, exited: Exited) {
        if !container.set_exited(exited.clone()) {
            return;
        }
        let dir = container.dir.clone();
        let written = blocking(move || {
            let state = ContainerStateFile {
                exited: Some(exited),
                ..ContainerStateFile::default()
            };
            state_file::write(&dir, &state).map_err(|e| failed("record the container's end", &e))
        });
        if let Err(error) = written.await {
            tracing::warn!(container = container.id, err = %error, "failed to record the end of a container");
        }
        self.publish(&container.sandbox.id, &container.id);
    }

    /// Its shim is gone: nothing of it must go on, and its end is as if it had been killed. One that was never started may
    /// have been about to.
    pub(super) async fn observe_lost(&self, container: &Arc<Container>) {
        self.kill_remains(container).await;
        if matches!(container.stage(), Stage::Created | Stage::Exited(_)) {
            return;
        }
        let dir = container.dir.clone();
        // The shim may have recorded its end before its own.
        let recorded = blocking(move || Ok(state_file::read(&dir).ok().flatten())).await;
        let recorded = recorded.ok().flatten().unwrap_or_default();
        let exited = recorded.exited.unwrap_or(Exited {
            id: container.id.clone(),
            code: LOST_CODE,
            reason: String::new(),
            message: "the container's shim was killed".to_string(),
            started_at: recorded.started_at,
            finished_at: now_ns(),
        });
        self.record_exit(container, exited).await;
    }

    async fn kill_remains(&self, container: &Container) {
        if let Err(error) = self.remove_cgroup(container).await {
            tracing::warn!(container = container.id, err = %error, "failed to kill what is left of a container");
        }
    }

    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<()> {
        match self.container(id) {
            Ok(container) => self.stop_found_container(&container, grace).await,
            // Stopping what is gone is fine.
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn stop_found_container(&self, container: &Arc<Container>, grace: Duration) -> Result<()> {
        if !matches!(container.stage(), Stage::Running { .. } | Stage::Starting) {
            return Ok(());
        }
        if !grace.is_zero() {
            let signal = container.record.lock().stop_signal;
            if !container.stop_signalled.swap(true, Ordering::SeqCst) {
                self.signal(container, signal, false).await?;
            }
            if tokio::time::timeout(grace, exited(container)).await.is_ok() {
                return Ok(());
            }
        }
        self.signal(container, libc::SIGKILL, true).await?;
        match tokio::time::timeout(KILL_TIMEOUT, exited(container)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::new(
                Code::DeadlineExceeded,
                format!("container {:?} did not end after it was killed", container.id),
            )),
        }
    }

    async fn signal(&self, container: &Container, signal: i32, all: bool) -> Result<()> {
        let request = Request::Signal {
            id: container.id.clone(),
            signal,
            all,
        };
        match client::request(&container.sandbox.dir, &request, &[]).await {
            Ok(_) => Ok(()),
            // It has ended, or its shim has: both are heard of.
            Err(error) if matches!(error.code, Code::NotFound | Code::Unavailable) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove(&self, id: &str) -> Result<()> {
        let Ok(container) = self.container(id) else {
            return Ok(());
        };
        self.remove_found_container(&container).await
    }

    pub(super) async fn remove_found_container(&self, container: &Arc<Container>) -> Result<()> {
        if container.stage() == Stage::Starting {
            return Err(Error::new(
                Code::Other,
                "container is in starting state, can't be removed",
            ));
        }
        container.removing.store(true, Ordering::SeqCst);
        self.stop_found_container(container, Duration::ZERO).await?;
        self.remove_cgroup(container).await?;
        let dir = container.dir.clone();
        blocking(move || {
            records::remove_record(&dir)
                .and_then(|()| records::remove_all(&dir))
                .map_err(|e| failed("remove the container's files", &e))
        })
        .await?;
        self.release_images(&container.id).await?;
        let config = container.record.lock().config.clone().unwrap_or_default();
        let name = reserved_name(&config, &container.sandbox)?;
        let mut store = self.inner.store.lock();
        store.containers.remove(&container.id);
        store.names.remove(&name);
        drop(store);
        self.inner.stats.forget(&container.id);
        self.publish(&container.sandbox.id, &container.id);
        Ok(())
    }

    /// The shim removes it when the container ends; what it could not is removed here, with all that is in it.
    pub(super) async fn remove_cgroup(&self, container: &Container) -> Result<()> {
        let path = container.record.lock().cgroup.clone();
        let hierarchies = self.inner.hierarchies.clone();
        let removed = blocking(move || {
            kill_and_remove(&hierarchies, &path).map_err(|e| failed("remove the container's cgroup", &e))
        });
        match removed.await? {
            true => Ok(()),
            false => Err(Error::new(
                Code::DeadlineExceeded,
                format!(
                    "processes of container {:?} did not end after they were killed",
                    container.id
                ),
            )),
        }
    }

    pub(super) async fn reopen_log(&self, id: &str) -> Result<()> {
        let container = self.container(id)?;
        if !matches!(container.stage(), Stage::Running { .. }) {
            return Err(Error::new(Code::Other, "container is not running"));
        }
        let request = Request::ReopenLog {
            id: container.id.clone(),
        };
        client::request(&container.sandbox.dir, &request, &[]).await.map(drop)
    }
}

/// Resolves when a container has ended.
async fn exited(container: &Container) {
    let mut stage = container.stage.subscribe();
    // The sender lives as long as the container, which is borrowed here.
    let _ = stage.wait_for(|stage| matches!(stage, Stage::Exited(_))).await;
}
