//! The kubelet as a whole: starts every part in order, and runs the sync loop between them.
//!
//! ```text
//! sources ──▶ admission ──▶ pod workers ──▶ runtime, volumes, images, cgroups
//!                               ▲   │
//!              probes, runtime ─┘   └──▶ status writer ──▶ API server
//! keeper: Node object, lease, pressure conditions       server: logs, exec, stats
//! ```
//!
//! Nothing here decides anything about a pod. The kubelet may be stopped and started at any time: pods keep running, and the
//! next process adopts them.

mod carry;
mod logind;
mod network;
mod node_level;
mod parts;
mod pod_stop;
mod services;
mod shutdown;
#[cfg(test)]
mod tests;
mod tidy;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::Api;
use orlop_client::events::Recorder;
use orlop_runtime::Runtime;
use tokio::task::JoinSet;

pub use self::logind::LogindEndpoint as Logind;
pub use self::network::NetworkConfiguration;
pub use self::parts::HostError;
use self::parts::Parts;
pub use self::pod_stop::PodStop;
use crate::config::{Config, effective};
use crate::cpus::CpuError;
use crate::devices::DeviceError;
use crate::events::Events;
use crate::hosted::HostedPods;
use crate::images::providers::ProviderError;
use crate::metrics::{Measured, Metrics};
use crate::node::{Identity, Keeper};
use crate::pod::workers::Workers;
use crate::server::{self, Certificate, ServerError};
use crate::spec::SpecError;

/// How long tasks may take to end after the shutdown was triggered.
const DRAIN: Duration = Duration::from_secs(5);

pub struct Options {
    pub config: Config,
    /// None: static pods alone.
    pub api: Option<Api>,
    pub runtime: Arc<dyn Runtime>,
    /// The port in it is replaced by the one that is served on.
    pub identity: Identity,
    /// `/var/lib/kubelet`
    pub root_dir: PathBuf,
    pub certificate: Certificate,
    /// The authority whose certificates clients of the server may show, as PEM.
    pub client_authority: Option<String>,
    /// The range of this node's pods until a controller says one.
    pub pod_cidr: Option<String>,
    /// Where the configuration of the pod network goes.
    pub network: NetworkConfiguration,
    /// Where the configuration in effect is shown, unless somebody else's file is there.
    pub effective_config: Option<PathBuf>,
    /// Pods get cgroups of their own. Without: the runtime does as it likes.
    pub control_groups: bool,
    /// Configuration and directory of the programs that have credentials for registries.
    pub credential_providers: Option<(PathBuf, PathBuf)>,
    /// Parts of this process that are shown as pods.
    pub hosted: HostedPods,
    /// The source of node shutdown signals.
    pub logind: Logind,
    /// How to be asked to stop all pods before the shutdown. None: they go on without the kubelet.
    pub pod_stop: Option<PodStop>,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

/// A kubelet under way. Dropping it does not stop it; the shutdown does.
pub struct Agent {
    keeper: Keeper,
    workers: Workers,
    address: Option<SocketAddr>,
    config: Config,
    shutdown: Shutdown,
    tasks: JoinSet<()>,
}

/// What keeps a kubelet from starting.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("failed to create {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("stopped before the container runtime was ready")]
    Stopped,
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Cpus(#[from] CpuError),
    #[error(transparent)]
    Devices(#[from] DeviceError),
    #[error(transparent)]
    CredentialProviders(#[from] ProviderError),
    #[error(transparent)]
    UserNamespaces(#[from] SpecError),
}

/// Starts a kubelet and runs it until the shutdown.
pub async fn run(options: Options) -> Result<(), AgentError> {
    let agent = start(options).await?;
    agent.wait().await;
    Ok(())
}

/// Starts a kubelet.
pub fn start(options: Options) -> BoxFuture<'static, Result<Agent, AgentError>> {
    Box::pin(put_together(options))
}

async fn put_together(mut options: Options) -> Result<Agent, AgentError> {
    let pod_stop = options.pod_stop.take().map(|stop| stop.join());
    // The runtime has another working directory: paths passed to it must be absolute.
    options.root_dir = make_directory(&options.root_dir)?;
    options.config.pod_logs_dir = make_directory(&options.config.pod_logs_dir)?;
    // The port must be known before the node is shown to anyone.
    let bound = match options.config.enable_server {
        true => Some(server::bind(options.config.address, options.identity.port).await?),
        false => None,
    };
    options.identity.port = bound.as_ref().map_or(0, |(_, address)| address.port());
    let address = bound.as_ref().map(|(_, address)| *address);
    if let Some(address) = address {
        options.config.turned_out("port", address.port().into());
    }
    let config = Arc::new(options.config.clone());
    let unused = config.without_effect();
    if !unused.is_empty() {
        tracing::warn!(
            fields = unused.join(", "),
            "ignored configuration fields that have no effect"
        );
    }
    if options.control_groups {
        settle_process(&config);
    }
    let metrics = Arc::new(Metrics::default());
    options.runtime = Arc::new(Measured::new(options.runtime, metrics.clone()));
    let mut tasks = JoinSet::new();
    let recorder = start_recorder(&options, &mut tasks);
    let keeper = start_keeper(&options, config.clone(), recorder.clone(), &mut tasks);
    let events = match recorder {
        Some(recorder) => Events::to(move |event| recorder.record(event)),
        None => Events::to_log(),
    };
    let parts = Parts::start(&options, config.clone(), &keeper, events, metrics, &mut tasks).await?;
    let shown = parts.effective_config();
    if let Some(path) = &options.effective_config {
        show_config(path, &shown);
    }
    if let Some((listener, _)) = bound {
        server::start(parts.server(&options, &keeper, listener, shown.clone()))?;
    }
    if config.healthz_port != 0 {
        match server::bind(config.healthz_bind_address, config.healthz_port).await {
            Ok((listener, _)) => {
                tasks.spawn(orlop_base::in_scope(server::healthz::serve(
                    listener,
                    options.shutdown.clone(),
                )));
            }
            // Upstream: the node works without it.
            Err(error) => tracing::warn!(err = %error, "failed to start the healthz server"),
        }
    }
    let (health, shutdown) = (parts.health.clone(), options.shutdown.clone());
    tasks.spawn(orlop_base::in_scope(async move { health.follow_log(shutdown).await }));
    tidy::start(&parts, &options, &keeper, &mut tasks);
    let workers = parts.workers.clone();
    let ender = shutdown::Ender {
        keeper: keeper.clone(),
        workers: workers.clone(),
        events: parts.events.clone(),
        clock: options.clock.clone(),
        graces: shutdown::graces(&config),
        place: options.logind,
    };
    tasks.spawn(orlop_base::in_scope(ender.run(options.shutdown.clone())));
    if let Some(stop) = pod_stop {
        let (workers, clock, shutdown) = (workers.clone(), options.clock.clone(), options.shutdown.clone());
        tasks.spawn(orlop_base::in_scope(pod_stop::run(stop, workers, clock, shutdown)));
    }
    tasks.spawn(orlop_base::in_scope(carry::run(parts, options.shutdown.clone())));
    Ok(Agent {
        keeper,
        workers,
        address,
        config: shown,
        shutdown: options.shutdown,
        tasks,
    })
}

/// Writes the configuration in effect to a file. Failing to is not fatal.
fn show_config(path: &Path, config: &Config) {
    match effective::write(path, &config.document) {
        Ok(true) => tracing::debug!(path = %path.display(), "wrote the configuration in effect"),
        Ok(false) => tracing::debug!(path = %path.display(), "left the configuration file as it is"),
        Err(error) => {
            tracing::warn!(path = %path.display(), err = %error, "failed to write the configuration in effect")
        }
    }
}

/// Applies the settings of the kubelet's own process. Failing to is not fatal.
fn settle_process(config: &Config) {
    let score = config.oom_score_adj.to_string();
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", &score) {
        tracing::debug!(score, err = %error, "failed to set oom_score_adj");
    }
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, config.max_open_files, config.max_open_files) {
        tracing::debug!(limit = config.max_open_files, err = %error, "failed to set the limit of open files");
    }
}

/// Creates it if needed, and returns its absolute path.
fn make_directory(path: &Path) -> Result<PathBuf, AgentError> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.map_err(|source| AgentError::Directory {
        path: path.to_path_buf(),
        source,
    })
}

fn start_recorder(options: &Options, tasks: &mut JoinSet<()>) -> Option<Recorder> {
    let api = options.api.clone()?;
    let (recorder, writing) = Recorder::start(api, "kubelet", options.clock.clone(), options.shutdown.clone());
    tasks.spawn(async move {
        let _ = writing.await;
    });
    Some(recorder.core_v1_source("kubelet", &options.identity.name))
}

fn start_keeper(options: &Options, config: Arc<Config>, recorder: Option<Recorder>, tasks: &mut JoinSet<()>) -> Keeper {
    let (keeper, keeping) = Keeper::start(crate::node::Settings {
        api: options.api.clone(),
        identity: options.identity.clone(),
        config,
        root_dir: options.root_dir.clone(),
        runtime: options.runtime.clone(),
        recorder,
        pod_cidr: options.pod_cidr.clone(),
        clock: options.clock.clone(),
        shutdown: options.shutdown.clone(),
    });
    for task in keeping {
        tasks.spawn(async move {
            let _ = task.await;
        });
    }
    tasks.spawn(orlop_base::in_scope(network::follow(
        keeper.pod_cidr(),
        options.runtime.clone(),
        options.network.clone(),
        options.shutdown.clone(),
    )));
    tasks.spawn(orlop_base::in_scope(network::advise(
        keeper.runtime(),
        options.runtime.clone(),
        options.network.clone(),
        |line| tracing::warn!("{line}"),
        options.shutdown.clone(),
    )));
    keeper
}

impl Agent {
    /// Where the server listens; none if it was switched off.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The configuration in effect.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Until the shutdown, and until what was under way is done.
    pub async fn wait(mut self) {
        self.shutdown.wait().await;
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN, ended).await;
    }
}
