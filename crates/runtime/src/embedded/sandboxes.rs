//! Pods: run, stopped, removed.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::client::{self, ShimConnection};
use super::interfaces::PodName;
use super::protocol::{Answer, Request};
use super::records::{self, SandboxRecord};
use super::store::{Sandbox, matches};
use super::sys::fd_path;
use super::{Embedded, blocking, failed, not_found, plan, shim};
use crate::cri::messages::{
    LinuxPodSandboxStatus, Namespace, PodIP, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxNetworkStatus,
    PodSandboxStatus,
};
use crate::{Code, Error, Result};

/// How long the shim of a stopped pod may take for its last containers, which are killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Handlers that pods may name: there is one way to run them.
const HANDLERS: [&str; 3] = ["", "orlop", "runc"];

/// What was made of a sandbox so far, to be undone if the rest fails.
struct Begun {
    id: String,
    dir: PathBuf,
    name: String,
}

impl Embedded {
    pub(super) async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        if !HANDLERS.contains(&handler) {
            return Err(Error::new(
                Code::Other,
                format!("no runtime for {handler:?} is configured"),
            ));
        }
        let name = reserved_name(&config)?;
        let id = self.new_id();
        if !self.inner.store.lock().names.insert(name.clone()) {
            let message = format!("failed to reserve sandbox name {name:?}: name is reserved");
            return Err(Error::new(Code::Other, message));
        }
        let begun = Begun {
            dir: self.inner.layout.pod(&id),
            id: id.clone(),
            name,
        };
        match self.make_sandbox(&begun, config, handler).await {
            Ok(()) => Ok(id),
            Err(error) => {
                self.undo_sandbox(begun).await;
                Err(error)
            }
        }
    }

    async fn make_sandbox(&self, begun: &Begun, config: PodSandboxConfig, handler: &str) -> Result<()> {
        let (id, dir) = (&begun.id, &begun.dir);
        let hostname = match config.hostname.as_str() {
            "" => node_hostname(),
            name => name.to_string(),
        };
        let mut spec = plan::sandbox::plan(id, dir, &config).map_err(plan::invalid)?;
        if spec.network {
            spec.hostname = Some(hostname.clone());
        }
        spec.cgroup = self
            .inner
            .hierarchies
            .slow_to_join(&plan::sandbox::cgroup_parent(&config));
        let files = (dir.clone(), config.clone(), hostname.clone());
        blocking(move || write_files(&files.0, &files.1, &files.2).map_err(|e| failed("write the pod's files", &e)))
            .await?;
        let mut connection = self.fork_shim(&spec).await?;
        let (pid, netns) = match connection.answer().await? {
            (Answer::Ready { pid }, mut descriptors) => (pid, descriptors.pop()),
            (other, _) => {
                return Err(Error::new(
                    Code::Other,
                    format!("unexpected answer of the shim: {other:?}"),
                ));
            }
        };
        let addresses = self.attach_network(id, netns, &config).await?;
        let record = SandboxRecord {
            id: id.clone(),
            handler: handler.to_string(),
            created_at: now_ns(),
            addresses: addresses.iter().map(IpAddr::to_string).collect(),
            stopped: false,
            hostname,
            config: Some(config),
        };
        let (to, record_) = (dir.clone(), record.clone());
        blocking(move || records::write_record(&to, &record_).map_err(|e| failed("record the sandbox", &e))).await?;
        let sandbox = Arc::new(Sandbox::new(dir.clone(), record, Some(pid)));
        self.inner.store.lock().sandboxes.insert(id.clone(), sandbox.clone());
        self.watch_shim(sandbox, connection);
        self.publish(id, id);
        Ok(())
    }

    async fn attach_network(&self, id: &str, netns: Option<OwnedFd>, config: &PodSandboxConfig) -> Result<Vec<IpAddr>> {
        let Some(netns) = netns else { return Ok(vec![]) };
        // The descriptor names the namespace, whatever becomes of the shim.
        let path = fd_path(netns.as_fd());
        let metadata = config.metadata.as_ref();
        let pod = PodName {
            namespace: metadata.map_or("", |metadata| &metadata.namespace),
            name: metadata.map_or("", |metadata| &metadata.name),
        };
        let network = &self.inner.network;
        let attached = network.attach(pod, id, Path::new(&path), &config.port_mappings).await;
        attached.map_err(|e| {
            Error::new(
                e.code,
                format!("failed to setup network for sandbox {id:?}: {}", e.message),
            )
        })
    }

    /// Best effort: what is left is found by the next start.
    async fn undo_sandbox(&self, begun: Begun) {
        if let Err(error) = self.stop_shim(&begun.dir).await {
            tracing::warn!(sandbox = begun.id, err = %error, "failed to stop the shim of a sandbox that was not made");
        }
        if let Err(error) = self.inner.network.detach(&begun.id).await {
            tracing::warn!(sandbox = begun.id, err = %error, "failed to detach a sandbox that was not made");
        }
        let dir = begun.dir;
        drop(blocking(move || records::remove_all(&dir).map_err(|e| failed("remove the pod's files", &e))).await);
        self.inner.store.lock().names.remove(&begun.name);
    }

    /// Ends a shim with all that runs in it. One that is gone is fine.
    pub(super) async fn stop_shim(&self, dir: &Path) -> Result<()> {
        let stopped = tokio::time::timeout(SHUTDOWN_TIMEOUT, client::request(dir, &Request::Shutdown, &[])).await;
        match stopped {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.code == Code::Unavailable => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(Code::DeadlineExceeded, "shim did not stop in time")),
        }
    }

    /// Listens to a shim: how containers end, and whether it lives. Ends with this runtime.
    pub(super) fn watch_shim(&self, sandbox: Arc<Sandbox>, mut connection: ShimConnection) {
        let runtime = Arc::downgrade(&self.inner);
        let opened = move || runtime.upgrade().map(|inner| Embedded { inner });
        let mut watchers = self.inner.watchers.lock();
        while watchers.try_join_next().is_some() {}
        watchers.spawn(async move {
            while let Ok(Some((news, _))) = connection.receive().await {
                let Some(embedded) = opened() else { return };
                embedded.observe_news(&sandbox, news);
            }
            if let Some(embedded) = opened() {
                embedded.observe_shim_end(&sandbox).await;
            }
        });
    }

    fn observe_news(&self, sandbox: &Sandbox, news: Answer) {
        let find = |id: &str| self.inner.store.lock().containers.get(id).cloned();
        match news {
            Answer::Running { id, pid, started_at } => {
                if let Some(container) = find(&id) {
                    container.set_running(started_at, pid);
                }
            }
            Answer::Exited(exited) => {
                if let Some(container) = find(&exited.id)
                    && container.set_exited(exited)
                {
                    self.publish(&sandbox.id, &container.id);
                }
            }
            _ => {}
        }
    }

    /// Containers die with their shim. Whatever did not is killed, and all of it is recorded.
    async fn observe_shim_end(&self, sandbox: &Arc<Sandbox>) {
        sandbox.shim.lock().take();
        let expected = sandbox.stopping.load(Ordering::SeqCst);
        if !expected {
            let reason = tokio::fs::read_to_string(sandbox.dir.join(shim::LOG))
                .await
                .unwrap_or_default();
            tracing::warn!(
                sandbox = sandbox.id,
                reason = reason.trim(),
                "shim ended unexpectedly; killing its containers"
            );
        }
        let containers = self.inner.store.lock().containers_of(&sandbox.id);
        for container in containers {
            self.observe_lost(&container).await;
        }
        if !expected {
            self.publish(&sandbox.id, &sandbox.id);
        }
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        self.inner
            .store
            .lock()
            .sandbox(id)
            .ok_or_else(|| not_found("sandbox", id))
    }

    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        // Stopping what is gone is fine.
        let Ok(sandbox) = self.sandbox(id) else { return Ok(()) };
        let _one_at_a_time = sandbox.lifecycle.lock().await;
        self.stop_found(&sandbox).await
    }

    async fn stop_found(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        if sandbox.record.lock().stopped {
            return Ok(());
        }
        let containers = self.inner.store.lock().containers_of(&sandbox.id);
        for container in &containers {
            self.stop_found_container(container, Duration::ZERO).await?;
        }
        self.inner.network.detach(&sandbox.id).await.map_err(|e| {
            Error::new(
                e.code,
                format!("failed to destroy network for sandbox {:?}: {}", sandbox.id, e.message),
            )
        })?;
        sandbox.stopping.store(true, Ordering::SeqCst);
        self.stop_shim(&sandbox.dir).await?;
        sandbox.shim.lock().take();
        let record = SandboxRecord {
            stopped: true,
            addresses: vec![],
            ..sandbox.record.lock().clone()
        };
        let (dir, record_) = (sandbox.dir.clone(), record.clone());
        blocking(move || records::write_record(&dir, &record_).map_err(|e| failed("record the sandbox", &e))).await?;
        *sandbox.record.lock() = record;
        self.publish(&sandbox.id, &sandbox.id);
        Ok(())
    }

    pub(super) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let Ok(sandbox) = self.sandbox(id) else { return Ok(()) };
        let _one_at_a_time = sandbox.lifecycle.lock().await;
        self.stop_found(&sandbox).await?;
        let containers = self.inner.store.lock().containers_of(&sandbox.id);
        for container in &containers {
            self.remove_found_container(container).await?;
        }
        let dir = sandbox.dir.clone();
        blocking(move || {
            records::remove_record(&dir)
                .and_then(|()| records::remove_all(&dir))
                .map_err(|e| failed("remove the pod's files", &e))
        })
        .await?;
        let name = reserved_name(&sandbox.record.lock().config())?;
        let mut store = self.inner.store.lock();
        store.sandboxes.remove(&sandbox.id);
        store.names.remove(&name);
        drop(store);
        self.publish(&sandbox.id, &sandbox.id);
        Ok(())
    }

    pub(super) fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        let sandbox = self.sandbox(id)?;
        let record = sandbox.record.lock().clone();
        let config = record.config();
        let mut addresses = record.addresses.iter().cloned();
        let network = PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| PodIP { ip }).collect(),
        };
        let options = plan::sandbox::namespace_options(&config);
        Ok(PodSandboxStatus {
            id: sandbox.id.clone(),
            state: sandbox.state() as i32,
            created_at: record.created_at,
            network: Some(network),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace { options: Some(options) }),
            }),
            runtime_handler: record.handler,
            metadata: config.metadata,
            labels: config.labels,
            annotations: config.annotations,
        })
    }

    pub(super) fn list_sandboxes(&self, filter: &PodSandboxFilter) -> Vec<PodSandbox> {
        let sandboxes: Vec<Arc<Sandbox>> = match filter.id.as_str() {
            "" => self.inner.store.lock().sandboxes.values().cloned().collect(),
            id => self.inner.store.lock().sandbox(id).into_iter().collect(),
        };
        let render = |sandbox: Arc<Sandbox>| {
            let record = sandbox.record.lock().clone();
            let config = record.config();
            PodSandbox {
                id: sandbox.id.clone(),
                state: sandbox.state() as i32,
                created_at: record.created_at,
                runtime_handler: record.handler,
                metadata: config.metadata,
                labels: config.labels,
                annotations: config.annotations,
            }
        };
        let wanted = |sandbox: &PodSandbox| {
            let in_state = filter.state.as_ref().is_none_or(|state| state.state == sandbox.state);
            in_state && matches(&sandbox.labels, &filter.label_selector)
        };
        sandboxes.into_iter().map(render).filter(wanted).collect()
    }
}

/// What no second sandbox may have.
pub(super) fn reserved_name(config: &PodSandboxConfig) -> Result<String> {
    match &config.metadata {
        Some(m) => Ok(format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)),
        None => Err(Error::new(Code::Other, "sandbox config must include metadata")),
    }
}

pub(super) fn now_ns() -> i64 {
    let since = orlop_base::clock::wall()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn node_hostname() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn write_files(dir: &Path, config: &PodSandboxConfig, hostname: &str) -> io::Result<()> {
    std::fs::create_dir(dir)?;
    std::fs::create_dir(dir.join("containers"))?;
    std::fs::write(dir.join("hostname"), format!("{hostname}\n"))?;
    let resolv_conf = match &config.dns_config {
        Some(dns) => plan::sandbox::resolv_conf(dns).into_bytes(),
        None => std::fs::read("/etc/resolv.conf").unwrap_or_default(),
    };
    std::fs::write(dir.join("resolv.conf"), resolv_conf)?;
    if !config.log_directory.is_empty() {
        std::fs::create_dir_all(&config.log_directory)?;
    }
    Ok(())
}
