//! Starts the periodic work: garbage collection of containers and images, log rotation, eviction.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use orlop_api::types::core::Pod;
use orlop_base::Shutdown;
use tokio::task::JoinSet;

use super::Options;
use super::parts::Parts;
use crate::config::Config;
use crate::cpus::{self, Cpus};
use crate::eviction::observe::Places;
use crate::eviction::rank::DiskUse;
use crate::eviction::usage::VolumesUsed;
use crate::eviction::{EvictionSettings, Evictor, Hooks};
use crate::gc::containers::PodState;
use crate::gc::{Collector, GcSettings};
use crate::node::{self, Keeper};
use crate::pod::policy;
use crate::pod::workers::Workers;

/// How often `volumesInUse` is updated.
const VOLUMES: Duration = Duration::from_secs(10);

/// Starts it all; it ends at the shutdown.
pub(super) fn start(parts: &Parts, options: &Options, keeper: &Keeper, tasks: &mut JoinSet<()>) {
    let node = node::reference(&options.identity.name);
    let workers = parts.workers.clone();
    let collector = Collector::new(
        parts.runtime.clone(),
        Some(parts.images.clone()),
        parts.events.clone(),
        parts.clock.clone(),
        node.clone(),
        settings(parts, options.control_groups),
        Arc::new(move |uid| state_of(&workers, uid)),
    );
    tasks.spawn(orlop_base::in_scope(collector.clone().run(options.shutdown.clone())));
    // A simulated runtime uses no resources.
    if options.control_groups {
        let evictor = Evictor::new(
            parts.runtime.clone(),
            collector,
            parts.events.clone(),
            parts.clock.clone(),
            node,
            EvictionSettings {
                config: Config::clone(&parts.config),
                root_dir: options.root_dir.clone(),
                pod_logs: parts.config.pod_logs_dir.clone(),
                places: Places {
                    root: PathBuf::from("/"),
                    pods_cgroup: pods_group(parts),
                },
                metrics: parts.metrics.clone(),
            },
            hooks(parts, keeper),
        );
        tasks.spawn(orlop_base::in_scope(evictor.run(options.shutdown.clone())));
    }
    if let Some(cpus) = parts.cpus.clone() {
        tasks.spawn(orlop_base::in_scope(share_cpus(cpus, parts, options.shutdown.clone())));
    }
    if let Some(devices) = &parts.devices {
        let (mut amounts, keeper, shutdown) = (devices.amounts(), keeper.clone(), options.shutdown.clone());
        let follow = async move {
            loop {
                keeper.set_devices(amounts.borrow_and_update().clone());
                if amounts.changed().await.is_err() {
                    return;
                }
            }
        };
        tasks.spawn(orlop_base::in_scope(async move {
            tokio::select! {
                () = follow => {}
                () = shutdown.wait() => {}
            }
        }));
    }
    tasks.spawn(orlop_base::in_scope(watch_volumes(
        parts,
        keeper,
        options.shutdown.clone(),
    )));
}

/// Keeps running containers on the CPUs they may run on.
fn share_cpus(cpus: Cpus, parts: &Parts, shutdown: Shutdown) -> impl Future<Output = ()> + Send + use<> {
    let (running, known) = (parts.workers.clone(), parts.workers.clone());
    let running = move || {
        let views = running.views().into_iter();
        let all = views.flat_map(|view| {
            let uid = policy::uid(&view.pod).to_string();
            let containers = view.observed.running();
            let all = containers.map(|c| (uid.clone(), c.name.clone(), c.id.clone()));
            all.collect::<Vec<_>>()
        });
        all.collect()
    };
    let pods = move || {
        let pods = known.pods();
        let uids = pods.iter().map(|pod| policy::uid(pod).to_string());
        known.are_sources_ready().then(|| uids.collect())
    };
    let period = parts.config.cpu_manager_reconcile_period;
    cpus::follow(cpus, parts.runtime.clone(), period, running, pods, shutdown)
}

fn settings(parts: &Parts, is_real: bool) -> GcSettings {
    let settings = GcSettings::of(&parts.config);
    GcSettings {
        // Collectors of logs have no use for what no container wrote.
        container_links: settings.container_links.filter(|_| is_real),
        metrics: parts.metrics.clone(),
        ..settings
    }
}

fn state_of(workers: &Workers, uid: &str) -> PodState {
    match workers.view(uid) {
        // Until all sources are ready, an unknown pod may be one of theirs.
        None if !workers.are_sources_ready() => PodState::Alive,
        None => PodState::Gone,
        Some(view) if view.stopped => PodState::Ended,
        Some(_) => PodState::Alive,
    }
}

/// The group of all pods, as a path without its first slash.
fn pods_group(parts: &Parts) -> String {
    use crate::spec::resources::{QosClass, qos_cgroup};
    let group = qos_cgroup(&parts.facts.cgroups, QosClass::Guaranteed);
    group.trim_start_matches('/').to_string()
}

fn hooks(parts: &Parts, keeper: &Keeper) -> Hooks {
    let (active, evicting, gone) = (parts.workers.clone(), parts.workers.clone(), parts.workers.clone());
    let (keeper, volumes) = (keeper.clone(), parts.volumes.clone());
    let used: VolumesUsed = Arc::new(move |uid| {
        let volumes = volumes.clone();
        async move {
            let all = volumes.used(&uid).await.into_iter();
            let used: BTreeMap<String, DiskUse> = all
                .map(|volume| {
                    let used = DiskUse {
                        bytes: volume.used_bytes,
                        inodes: volume.inodes_used,
                    };
                    (volume.volume, used)
                })
                .collect();
            used
        }
        .boxed()
    });
    Hooks {
        pods: Arc::new(move || {
            let views = active.views().into_iter().filter(|view| !view.ending && !view.stopped);
            views.map(|view| view.pod).collect()
        }),
        evict: Arc::new(move |pod: &Pod, eviction| evicting.evict(policy::uid(pod), eviction)),
        cleaned_up: Arc::new(move |uid| gone.view(uid).is_none_or(|view| view.stopped)),
        volumes: used,
        groups: {
            let cgroups = parts.cgroups.clone();
            Arc::new(move |pod| cgroups.as_ref()?.pod_usage(pod).ok())
        },
        pressure: Arc::new(move |pressure| keeper.set_pressure(pressure)),
    }
}

/// CSI driver registration, and `volumesInUse` of the node's status.
fn watch_volumes(parts: &Parts, keeper: &Keeper, shutdown: Shutdown) -> impl Future<Output = ()> + Send + use<> {
    let (volumes, keeper) = (parts.volumes.clone(), keeper.clone());
    async move {
        let plugins = volumes.watch_plugins(shutdown.clone());
        let in_use = async {
            let mut turns = tokio::time::interval(VOLUMES);
            loop {
                turns.tick().await;
                keeper.set_volumes_in_use(volumes.volumes_in_use().await);
            }
        };
        tokio::select! {
            _ = async { tokio::join!(plugins, in_use) } => {}
            _ = shutdown.wait() => {}
        }
    }
}
