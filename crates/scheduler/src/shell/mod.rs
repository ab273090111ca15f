//! The shell: watches the cluster, feeds the core, and carries out what it decides.
//!
//! ```text
//!   informers ──▶ inbox ──▶ engine (cluster, queue, core; one task, one pod at a time)
//!                   ▲          │ assume, then
//!                   │          ├──▶ bindings   (tasks, bounded)
//!                   └──────────┼──▶ evictions  (tasks, bounded)
//!                    outcomes  └──▶ conditions, events
//! ```
//!
//! Whatever a task does comes back as a message, so only the engine changes the cluster state. A binding that
//! fails is forgotten and the pod is queued again; one whose outcome is not known is queued too, and the API server
//! refuses the second binding.

mod bind;
mod engine;
mod failure;
mod inbox;
mod observe;
mod reserve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::Api;

use crate::config::Config;
use crate::extender::ExtenderError;
use crate::metrics::Metrics;
use crate::plugins::ProfileError;

/// What a scheduler is started with, beside its configuration.
pub struct Options {
    /// With the permissions of `system:kube-scheduler`.
    pub api: Api,
    pub config: Config,
    pub clock: Clock,
    /// Ties are broken by it; the same seed gives the same choices.
    pub seed: u64,
    /// Filled while the scheduler runs; health checks read them, too.
    pub metrics: Arc<Metrics>,
    /// Who we are among candidates of the same lease; None for a name of our own.
    pub identity: Option<String>,
    pub shutdown: Shutdown,
}

/// Why a scheduler stopped, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Extender(#[from] ExtenderError),
    /// Nothing may be scheduled any more by this process.
    #[error("leaderelection lost")]
    LeaseLost,
}

/// Schedules until the shutdown, or until the lease is lost; then the shutdown is triggered.
pub fn run(options: Options) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(schedule(options))
}

async fn schedule(options: Options) -> Result<(), RunError> {
    let engine = engine::Engine::start(&options)?;
    let names = options
        .config
        .profiles
        .iter()
        .map(|profile| profile.scheduler_name.as_str());
    tracing::info!(schedulers = names.collect::<Vec<_>>().join(","), "started scheduler");
    let leader = &options.config.leader_election;
    if !leader.leader_elect {
        engine.run(options.shutdown, None).await;
        return Ok(());
    }
    let mut config = orlop_client::leader::Config::new(&leader.resource_namespace, &leader.resource_name);
    config.lease_duration = leader.lease_duration;
    config.renew_deadline = leader.renew_deadline;
    config.retry_period = leader.retry_period;
    config.clock = options.clock.clone();
    // What was decided is bound or forgotten by then: another may start at once.
    config.release_on_shutdown = true;
    if let Some(identity) = options.identity {
        config.identity = identity;
    }
    let election = orlop_client::elect(options.api.clone(), config, options.shutdown.clone());
    options.metrics.set_lease_health(election.lease_health());
    let shutdown = options.shutdown;
    if engine.run(shutdown.clone(), Some(&election)).await {
        election.stopped().await;
        return Ok(());
    }
    shutdown.trigger();
    Err(RunError::LeaseLost)
}
