//! Runs the controllers, only while elected if there is an election.

use std::sync::Arc;

use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::leader::Config as ElectionConfig;
use orlop_client::{Api, Recorder, elect};

use crate::health::Health;
use crate::runtime::{self, Caches, Def, Metrics, Setup};
use crate::settings::Settings;

/// What the controllers are started with.
pub struct Options {
    /// With the permissions of kube-controller-manager: reads everything, and holds the lease.
    pub api: Api,
    /// Makes an `Api` with the permissions of this service account in `kube-system`.
    pub account: Box<dyn Fn(&str) -> Api + Send + Sync>,
    /// Which of `ALL` to run.
    pub controllers: Vec<&'static Def>,
    pub settings: Settings,
    /// None: the controllers start at once.
    pub election: Option<ElectionConfig>,
    pub clock: Clock,
    /// Filled by the work queues.
    pub metrics: Arc<Metrics>,
    /// Told of the election and of the informer caches; of one run only.
    pub health: Arc<Health>,
    /// Ends the controllers: no reconcile begins after it.
    pub shutdown: Shutdown,
}

/// Why the controllers stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Nothing may be written any more by this process.
    #[error("leaderelection lost")]
    LeaseLost,
}

/// Runs the controllers until the shutdown; with an election, until the lease is lost.
pub fn run(options: Options) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(run_elected(options))
}

async fn run_elected(options: Options) -> Result<(), RunError> {
    let Some(config) = &options.election else {
        run_controllers(&options).await;
        return Ok(());
    };
    let mut election = elect(options.api.clone(), config.clone(), options.shutdown.clone());
    options.health.set_lease(election.lease_health());
    if !election.acquired().await {
        return Ok(());
    }
    tokio::select! {
        _ = run_controllers(&options) => Ok(()),
        _ = election.lost() => match options.shutdown.is_triggered() {
            true => Ok(()),
            false => Err(RunError::LeaseLost),
        },
    }
}

async fn run_controllers(options: &Options) {
    tracing::info!(controllers = options.controllers.len(), "started controllers");
    let caches = Caches::new(options.api.clone(), options.shutdown.clone());
    let settings = Arc::new(options.settings.clone());
    let (recorder, events) = Recorder::start(
        options.api.clone(),
        "kube-controller-manager",
        options.clock.clone(),
        options.shutdown.clone(),
    );
    let mut tasks = vec![];
    for def in &options.controllers {
        let api = match def.account {
            "" => options.api.clone(),
            account => (options.account)(account).of_component(&options.api),
        };
        let setup = Setup::new(
            def,
            api,
            options.clock.clone(),
            runtime::Recorder::for_controller(def.name, &recorder),
            settings.clone(),
            options.shutdown.clone(),
            caches.clone(),
            options.metrics.clone(),
        );
        (def.start)(&setup);
        tasks.extend(setup.begin());
    }
    drop(recorder);
    // Only now: all caches have been asked for.
    options.health.set_caches(caches);
    options.shutdown.wait().await;
    for task in tasks {
        let _ = task.await;
    }
    let _ = events.await;
}
