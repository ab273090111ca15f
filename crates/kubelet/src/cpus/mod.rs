//! The CPU manager: exclusive CPUs (`cpuManagerPolicy: static`).
//!
//! Containers of Guaranteed pods that request whole CPUs get exclusive ones at admission; all others run on the shared pool,
//! which shrinks and grows with that. CPUs reserved for the system are never exclusive. [`topology`] knows which CPUs are
//! near each other, [`take`] picks them, both purely; [`assign`] decides for a pod. A checkpoint ([`state`]) hands it to the
//! next kubelet process, and [`mod@follow`] to running containers.
// Upstream: pkg/kubelet/cm/cpumanager, pkg/kubelet/cm/topologymanager (v1.36); gates in alpha are off

mod assign;
mod follow;
mod set;
mod state;
mod take;
mod topology;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_api::types::core::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::Config;
use crate::pod::policy;
use crate::sources::admission::Rejection;
pub use assign::Alignment;
use assign::Rules;
pub use follow::{Running, follow};
pub use set::{CpuSet, CpuSetError};
use state::CpuAssignments;
pub use topology::{CpuLocation, Level, Topology};

/// Below the kubelet's own directory.
const STATE_FILE: &str = "cpu_manager_state";

/// `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only whole physical cores are allocated.
    pub full_pcpus_only: bool,
    /// Requests that don't fit one NUMA node are distributed evenly.
    pub distribute_across_numa: bool,
    /// Reserved CPUs are not in the shared pool either.
    pub strict_reservation: bool,
    pub prefer_cache: bool,
}

impl Options {
    pub const NONE: Options = Options {
        full_pcpus_only: false,
        distribute_across_numa: false,
        strict_reservation: false,
        prefer_cache: false,
    };

    pub fn parse(given: &BTreeMap<String, String>) -> Result<Options, CpuError> {
        let mut options = Options::NONE;
        for (name, value) in given {
            let field = match name.as_str() {
                "full-pcpus-only" => &mut options.full_pcpus_only,
                "distribute-cpus-across-numa" => &mut options.distribute_across_numa,
                "strict-cpu-reservation" => &mut options.strict_reservation,
                "prefer-align-cpus-by-uncorecache" => &mut options.prefer_cache,
                "align-by-socket" | "distribute-cpus-across-cores" => {
                    return Err(CpuError::Option(format!(
                        "CPU Manager Policy Alpha-level Options not enabled, but option {name:?} provided"
                    )));
                }
                _ => return Err(CpuError::Option(format!("unknown CPU Manager Policy option: {name:?}"))),
            };
            *field = match value.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(CpuError::Option(format!(
                        "bad value for option {name:?}: {value:?} is neither true nor false"
                    )));
                }
            };
        }
        match options.prefer_cache && options.distribute_across_numa {
            true => Err(CpuError::Option(
                "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can \
                 not be used at the same time"
                    .to_string(),
            )),
            false => Ok(options),
        }
    }
}

/// Why CPUs could not be assigned, or their manager not be started.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}{}", of_whole(.whole))]
    NotEnough {
        requested: usize,
        available: usize,
        /// The whole request, if the rest of it was satisfied.
        whole: Option<usize>,
    },
    /// A policy option that is unknown or does not fit the others.
    #[error("{0}")]
    Option(String),
    #[error("{field}: {reason}")]
    Config { field: &'static str, reason: String },
    #[error("{}: {reason}", path.display())]
    Topology { path: PathBuf, reason: String },
    #[error(
        "could not restore state from checkpoint: {reason}, please drain this node and delete the CPU manager checkpoint file {:?} before restarting Kubelet",
        path.display().to_string()
    )]
    Checkpoint { path: PathBuf, reason: String },
    #[error("invalid state, please drain node and remove policy state file: {0}")]
    State(String),
    #[error("failed to write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

fn of_whole(whole: &Option<usize>) -> String {
    whole.map(|count| format!(" (of {count})")).unwrap_or_default()
}

fn not_written(path: &Path, source: std::io::Error) -> CpuError {
    CpuError::Write {
        path: path.to_path_buf(),
        source,
    }
}

/// The CPUs of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cpus {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rules: Rules,
    file: PathBuf,
    state: Mutex<CpuAssignments>,
    changed: Notify,
}

impl Cpus {
    /// Starts the CPU manager; none without the static policy. Loads the checkpoint in `root`.
    pub fn start(config: &Config, kept_milli: i64, system: &Path, root: &Path) -> Result<Option<Cpus>, CpuError> {
        let file = root.join(STATE_FILE);
        let policy = config.cpu_manager_policy.as_str();
        let left = state::load(&file, policy)?;
        if policy != "static" {
            if left.is_none() {
                let saved = state::save(&file, policy, &CpuAssignments::default());
                saved.map_err(|source| not_written(&file, source))?;
            }
            return Ok(None);
        }
        let rules = Rules::new(config, kept_milli, Topology::read(system)?)?;
        let state = rules.check(left.unwrap_or_default())?;
        state::save(&file, policy, &state).map_err(|source| not_written(&file, source))?;
        tracing::info!(shared = %state.shared, reserved = %rules.reserved, "started the CPU manager");
        let inner = Inner {
            rules,
            file,
            state: Mutex::new(state),
            changed: Notify::new(),
        };
        Ok(Some(Cpus { inner: Arc::new(inner) }))
    }

    /// Assigns a new pod's exclusive CPUs: all of them or none.
    pub fn admit(&self, pod: &Pod) -> Result<(), Rejection> {
        let mut state = self.inner.state.lock();
        let new = self.inner.rules.assign(&state, pod)?;
        self.replace(&mut state, new).map_err(assign::unexpected)
    }

    /// Returns the pod's exclusive CPUs to the shared pool. Idempotent.
    pub fn release(&self, uid: &str) {
        let mut state = self.inner.state.lock();
        let mut new = state.clone();
        let Some(containers) = new.own.remove(uid) else { return };
        let freed = containers.values().flat_map(CpuSet::iter).collect();
        new.shared = &new.shared | &freed;
        if let Err(error) = self.replace(&mut state, new.clone()) {
            // A stale checkpoint is detected at the next start, and released.
            tracing::warn!(err = %error, "failed to write the CPU manager state");
            *state = new;
            self.inner.changed.notify_one();
        }
    }

    fn replace(&self, state: &mut CpuAssignments, new: CpuAssignments) -> Result<(), CpuError> {
        if *state == new {
            return Ok(());
        }
        let saved = state::save(&self.inner.file, "static", &new);
        saved.map_err(|source| not_written(&self.inner.file, source))?;
        *state = new;
        self.inner.changed.notify_one();
        Ok(())
    }

    /// The cpuset of a container. An empty shared pool is replaced by the reserved CPUs.
    pub fn of(&self, uid: &str, container: &str) -> CpuSet {
        let state = self.inner.state.lock();
        match state.of(uid, container) {
            Some(own) => own.clone(),
            None if state.shared.is_empty() => self.inner.rules.reserved.clone(),
            None => state.shared.clone(),
        }
    }

    /// It has exclusive CPUs: no CFS quota applies.
    pub fn has_own(&self, uid: &str, container: &str) -> bool {
        self.inner.state.lock().of(uid, container).is_some()
    }

    /// One of its containers has exclusive CPUs.
    pub fn pod_has_own(&self, pod: &Pod) -> bool {
        self.inner.state.lock().own.contains_key(policy::uid(pod))
    }

    /// Pods with exclusive CPUs.
    pub fn pods(&self) -> Vec<String> {
        self.inner.state.lock().own.keys().cloned().collect()
    }

    async fn changed(&self) {
        self.inner.changed.notified().await;
    }
}

#[cfg(test)]
mod tests;
