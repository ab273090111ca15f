//! The parts of the kubelet that deal with pods, created in the order of their dependencies.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::Pod;
use orlop_base::{Clock, Random};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::CgroupDriver;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::node_level::NodeLevel;
use super::services::Services;
use super::{AgentError, Options};
use crate::cgroups::{CgroupError, Cgroups, Slices, Tree};
use crate::config::Config;
use crate::cpus::Cpus;
use crate::devices::Devices;
use crate::events::Events;
use crate::hosted::HostedPods;
use crate::images::providers::Providers;
use crate::images::{ImageSettings, Images};
use crate::metrics::Metrics;
use crate::node::{self, Keeper, RuntimeView, resources};
use crate::objects::Objects;
use crate::pod::interfaces::PodAllocator;
use crate::pod::node_allocator::{Admission, NodeAllocator, RefreshNode};
use crate::pod::node_configurator::NodeConfigurator;
use crate::pod::node_environment::NodeEnvironment;
use crate::pod::status::Host;
use crate::pod::worker_state::Pace;
use crate::pod::workers::{self, Workers};
use crate::pod::writer::Writer;
use crate::probes::Probes;
use crate::server::{self, Health, Pods};
use crate::sources::admission::{self, NodeState};
use crate::sources::{self, Mirrors, PodUpdate, Sources};
use crate::spec::{CgroupVersion, Here, Ids, NodeFacts, SpecError, Users};
use crate::stats::{self, Gatherer, VolumeSizes};
use crate::volumes::{self, Volumes};

/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// And its parts.
const SYSTEM: &str = "/sys/devices/system";

pub(super) struct Parts {
    pub config: Arc<Config>,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    pub runtime: Arc<dyn Runtime>,
    pub objects: Objects,
    pub volumes: Volumes,
    pub images: Images,
    pub probes: Probes,
    pub cgroups: Option<Cgroups>,
    pub cpus: Option<Cpus>,
    pub devices: Option<Devices>,
    pub facts: Arc<NodeFacts>,
    pub services: Services,
    pub workers: Workers,
    pub writer: Writer,
    pub mirrors: Mirrors,
    pub hosted: HostedPods,
    pub updates: mpsc::Receiver<PodUpdate>,
    pub health: Health,
    pub clock: Clock,
}

impl Parts {
    pub(super) async fn start(
        options: &Options,
        config: Arc<Config>,
        keeper: &Keeper,
        events: Events,
        metrics: Arc<Metrics>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Parts, AgentError> {
        let (runtime, clock, shutdown) = (&options.runtime, &options.clock, &options.shutdown);
        // Ids of containers begin with the runtime's name: without it no status would be true.
        let told = await_runtime(options, keeper).await?;
        let can_lock_mounts = told.handler_features("").recursive_read_only_mounts;
        let (facts, cgroups, cpus) = look_around(options, &config, keeper).await?;
        if let Some(cgroups) = &cgroups {
            let node = node::reference(&options.identity.name);
            let mut node_level = NodeLevel::new(cgroups.clone(), config.clone(), keeper.clone(), events.clone(), node);
            // Pods that are started right away need them.
            if !node_level.set_up().await {
                let shutdown = shutdown.clone();
                tasks.spawn(orlop_base::in_scope(
                    async move { node_level.keep_trying(shutdown).await },
                ));
            }
        }
        // Simulated pods need no devices.
        let devices = match options.control_groups {
            true => Some(Devices::start(&options.root_dir, shutdown.clone())?),
            false => None,
        };
        let objects = Objects::new(options.api.clone(), clock.clone());
        let volumes = start_volumes(options, keeper, &objects, &events)?;
        volumes.set_recursive_read_only(can_lock_mounts);
        volumes.set_image_trouble(told.version.as_ref().and_then(volumes::image::trouble));
        let settings = ImageSettings {
            providers: match &options.credential_providers {
                Some((config, programs)) => Some(Providers::open(config, programs, &objects, clock)?),
                None => None,
            },
            metrics: metrics.clone(),
            ..ImageSettings::of(&config, &options.root_dir)
        };
        let images = Images::new(
            runtime.clone(),
            objects.clone(),
            events.clone(),
            clock.clone(),
            settings,
        );
        let probes = Probes::start(runtime.clone(), events.clone(), clock.clone(), shutdown.clone());
        let Sources { updates, mirrors } = sources::start(sources::Settings {
            api: options.api.clone(),
            node_name: options.identity.name.clone(),
            nodes: keeper.nodes(),
            config: config.clone(),
            hosted: options.hosted.clone(),
            clock: clock.clone(),
            shutdown: shutdown.clone(),
        });
        let find_mirror = {
            let mirrors = mirrors.clone();
            Arc::new(move |uid: &str| mirrors.of(uid))
        };
        let (writer, writing) = Writer::start(options.api.clone(), find_mirror, shutdown.clone());
        tasks.spawn(async move {
            let _ = writing.await;
        });
        let services = Services::start(options.api.clone(), shutdown.clone());
        let users = Users::new(&options.root_dir, user_ids(&config, options.control_groups)?);
        let allocator: Arc<dyn PodAllocator> = Arc::new(NodeAllocator {
            facts: facts.clone(),
            cpus: cpus.clone(),
            devices: devices.clone(),
            admission: Some(admission(keeper)),
            refresh_node: Some(refresh_node(keeper)),
        });
        let environment = NodeEnvironment {
            facts: facts.clone(),
            volumes: volumes.clone(),
            cgroups: cgroups.clone(),
            users: users.clone(),
            allocator: allocator.clone(),
            runtime: keeper.runtime(),
            events: events.clone(),
        };
        let configurator = NodeConfigurator {
            facts: facts.clone(),
            objects: objects.clone(),
            images: images.clone(),
            volumes: volumes.clone(),
            users,
            cpus: cpus.clone(),
            devices: devices.clone(),
            services: {
                let services = services.clone();
                Arc::new(move || services.all())
            },
            runtime: keeper.runtime(),
            events: events.clone(),
            random: Mutex::new(Random::from_entropy()),
        };
        let workers = Workers::new(workers::Options {
            runtime: runtime.clone(),
            allocator,
            environment: Arc::new(environment),
            configurator: Arc::new(configurator),
            prober: Arc::new(probes.clone()),
            writer: writer.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
            host: Host {
                ips: facts.addresses.iter().map(|ip| ip.to_string()).collect(),
                runtime_name: told.version.map(|v| v.runtime_name).unwrap_or_default(),
                recursive_read_only: can_lock_mounts,
            },
            restart_pace: restart_pace(&config),
            sync_frequency: facts.sync_frequency,
            clock: clock.clone(),
            shutdown: shutdown.clone(),
        });
        Ok(Parts {
            config,
            events,
            metrics,
            runtime: runtime.clone(),
            objects,
            volumes,
            images,
            probes,
            cgroups,
            cpus,
            devices,
            facts,
            services,
            workers,
            writer,
            mirrors,
            hosted: options.hosted.clone(),
            updates,
            health: Health::default(),
            clock: clock.clone(),
        })
    }

    /// The configuration in effect: the runtime's cgroup driver takes precedence.
    pub(super) fn effective_config(&self) -> Config {
        let mut config = (*self.config).clone();
        let driver = match self.facts.cgroups.driver {
            CgroupDriver::Systemd => "systemd",
            CgroupDriver::Cgroupfs => "cgroupfs",
        };
        config.turned_out("cgroupDriver", driver.into());
        config
    }

    pub(super) fn server(
        &self,
        options: &Options,
        keeper: &Keeper,
        listener: TcpListener,
        shown: Config,
    ) -> server::Options {
        let probes = self.probes.clone();
        let name = &options.identity.name;
        server::Options {
            listener,
            certificate: options.certificate.clone(),
            client_authority: options.client_authority.clone(),
            api: options.api.clone(),
            config: Arc::new(shown),
            node_name: name.clone(),
            machine: keeper.machine().clone(),
            runtime: self.runtime.clone(),
            pods: Arc::new(WorkersPods(self.workers.clone())),
            hosted: self.hosted.clone(),
            addresses: self.facts.addresses.clone(),
            stats: Gatherer::new(stats::Options {
                runtime: self.runtime.clone(),
                node_name: name.clone(),
                root_dir: options.root_dir.clone(),
                pod_logs_dir: self.config.pod_logs_dir.clone(),
                cgroups: self.cgroups.clone(),
                volumes: VolumeSizes::of(self.volumes.clone(), &self.config, self.clock.clone()),
                hosted: self.hosted.clone(),
                clock: self.clock.clone(),
            }),
            metrics: self.metrics.clone(),
            probe_metrics: Arc::new(move || probes.metrics()),
            health: self.health.clone(),
            clock: self.clock.clone(),
            shutdown: options.shutdown.clone(),
        }
    }
}

struct WorkersPods(Workers);

impl Pods for WorkersPods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        Some(self.0.by_name(namespace, name)?.pod)
    }
}

/// Waits for the runtime's first status; the node is NotReady meanwhile.
async fn await_runtime(options: &Options, keeper: &Keeper) -> Result<RuntimeView, AgentError> {
    let mut runtime = keeper.runtime();
    let heard = runtime.wait_for(|view| view.version.is_some() && view.ready_at.is_some());
    tokio::select! {
        view = heard => view.map(|view| view.clone()).map_err(|_| AgentError::Stopped),
        _ = options.shutdown.wait() => Err(AgentError::Stopped),
    }
}

/// The restart back-off.
// Upstream: pkg/kubelet/kubelet.go newCrashLoopBackOff (v1.36)
fn restart_pace(config: &Config) -> Pace {
    let mut pace = Pace::default();
    if config.feature("ReduceDefaultCrashLoopBackOffDecay", false) {
        pace = Pace {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
        };
    }
    match config.crash_loop_back_off.max_container_restart_period {
        Some(most) if config.feature("KubeletCrashLoopBackOffMax", true) => Pace {
            first: pace.first.min(most),
            most,
        },
        _ => pace,
    }
}

/// Whether a pod may run here, by what the Node object and the node's state say.
fn admission(keeper: &Keeper) -> Admission {
    let keeper = keeper.clone();
    Arc::new(move |pod: &Pod, others: &[&Pod]| {
        let state = NodeState {
            pressure: keeper.pressure(),
            shutting_down: keeper.is_shutting_down(),
        };
        admission::admit(pod, others, &keeper.node(), state)
    })
}

fn refresh_node(keeper: &Keeper) -> RefreshNode {
    let keeper = keeper.clone();
    Arc::new(move || {
        let keeper = keeper.clone();
        Box::pin(async move { keeper.refresh_node().await })
    })
}

/// Gathers the node's facts, and starts the managers of cgroups and CPUs if configured.
async fn look_around(
    options: &Options,
    config: &Config,
    keeper: &Keeper,
) -> Result<(Arc<NodeFacts>, Option<Cgroups>, Option<Cpus>), AgentError> {
    let tree = Tree::at(Path::new(CGROUPS));
    let tree = match (tree, options.control_groups) {
        (Ok(tree), _) => tree,
        (Err(error), true) => return Err(HostError::Cgroups(error).into()),
        // It is not used.
        (Err(_), false) => Tree::at(Path::new("/")).map_err(HostError::Cgroups)?,
    };
    if options.control_groups {
        check_host(
            config,
            tree.version(),
            &std::fs::read_to_string("/proc/swaps").unwrap_or_default(),
        )?;
    }
    let driver: Option<CgroupDriver> = match options.runtime.cgroup_driver().await {
        Ok(driver) => driver,
        Err(error) => {
            tracing::warn!(err = %error, "failed to get the cgroup driver from the runtime");
            None
        }
    };
    let identity = &options.identity;
    let mut facts = NodeFacts::read(&Here {
        name: &identity.name,
        addresses: &identity.addresses,
        root_dir: &options.root_dir,
        config,
        machine: keeper.machine(),
        capacity: &keeper.capacity(),
        allocatable: &keeper.allocatable(),
        cgroups: &tree,
        driver,
    });
    facts.cgroups.per_qos &= options.control_groups;
    let facts = Arc::new(facts);
    if !options.control_groups {
        return Ok((facts, None, None));
    }
    let kept = resources::kept_cpu_milli(config);
    let cpus = Cpus::start(config, kept, Path::new(SYSTEM), &options.root_dir)?;
    let mut cgroups = Cgroups::new(tree, facts.clone()).with_cpus(cpus.clone());
    if facts.cgroups.driver == CgroupDriver::Systemd {
        if !Slices::run_this_machine() {
            return Err(HostError::NoSystemd.into());
        }
        cgroups = cgroups.with_slices(Slices::of_this_machine());
    }
    Ok((facts, Some(cgroups), cpus))
}

/// What of the host keeps a kubelet from running on it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cgroups are not usable: {0}")]
    Cgroups(#[from] CgroupError),
    #[error("the cgroup driver is systemd, but systemd is not running on this node")]
    NoSystemd,
    #[error("kubelet is configured to not run on a host using cgroup v1")]
    CgroupV1,
    #[error("running with swap on is not supported, please disable swap or set failSwapOn to false: {0}")]
    Swap(String),
}

/// What the configuration asks of the host, where it is strict.
fn check_host(config: &Config, version: CgroupVersion, swaps: &str) -> Result<(), HostError> {
    if config.fail_cgroup_v1 && version == CgroupVersion::V1 {
        return Err(HostError::CgroupV1);
    }
    // The first line is a heading.
    let used: Vec<&str> = swaps.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
    match used.is_empty() || !config.fail_swap_on {
        true => Ok(()),
        false => Err(HostError::Swap(used.join("; "))),
    }
}

/// Ids for pods with users of their own.
fn user_ids(config: &Config, is_real: bool) -> Result<Ids, SpecError> {
    let per_pod = u32::try_from(config.user_namespaces.ids_per_pod).expect("was checked with the configuration");
    match is_real {
        true => Ids::of_machine(per_pod, config.max_pods),
        false => Ok(Ids::all(per_pod)),
    }
}

fn start_volumes(
    options: &Options,
    keeper: &Keeper,
    objects: &Objects,
    events: &Events,
) -> Result<Volumes, AgentError> {
    let usual = volumes::Options::new(&options.root_dir, objects.clone(), options.clock.clone());
    let volumes = Volumes::new(volumes::Options {
        node_name: options.identity.name.clone(),
        events: events.clone(),
        // Nothing is mounted for simulated pods.
        may_mount: usual.may_mount && options.control_groups,
        ..usual
    });
    let volumes = volumes.map_err(|source| AgentError::Directory {
        path: options.root_dir.clone(),
        source,
    })?;
    volumes.set_allocatable(resources::to_api(&keeper.allocatable()));
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::parse;

    #[test]
    fn hosts_that_are_refused() {
        const NONE: &str = "Filename Type Size Used Priority\n";
        const SOME: &str = "Filename Type Size Used Priority\n/dev/sda2 partition 8 0 -2\n";
        let config = |cgroups: bool, swap: bool| {
            parse(None, &[("failCgroupV1", json!(cgroups)), ("failSwapOn", json!(swap))]).unwrap()
        };
        use CgroupVersion::{V1, V2};
        let cases = [
            (config(false, true), V1, NONE, true),
            (config(true, true), V1, NONE, false),
            (config(true, true), V2, NONE, true),
            (config(false, true), V2, SOME, false),
            (config(false, false), V2, SOME, true),
        ];
        for (config, version, swaps, expected) in cases {
            assert_eq!(check_host(&config, version, swaps).is_ok(), expected);
        }
    }
}
