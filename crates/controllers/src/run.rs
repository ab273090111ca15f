//! Runs the controllers, if need be only while elected.

use std::sync::Arc;

use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::leader::Config as ElectionConfig;
use orlop_client::{Api, Recorder, elect};

use crate::runtime::{self, Caches, Def, Metrics, Setup};
use crate::settings::Settings;

pub struct Options {
    /// With the rights of kube-controller-manager: reads everything, and holds the lease.
    pub api: Api,
    /// An `Api` with the rights of this service account in `kube-system`.
    pub account: Box<dyn Fn(&str) -> Api + Send + Sync>,
    /// Which of `ALL` to run.
    pub controllers: Vec<&'static Def>,
    pub settings: Settings,
    pub election: Option<ElectionConfig>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
}

/// Until the shutdown; or, with an election, until the lease is lost, which says so as an error.
pub fn run(options: Options) -> BoxFuture<'static, Result<(), &'static str>> {
    Box::pin(lead(options))
}

async fn lead(options: Options) -> Result<(), &'static str> {
    let Some(config) = &options.election else {
        work(&options).await;
        return Ok(());
    };
    let mut election = elect(options.api.clone(), config.clone(), options.shutdown.clone());
    if !election.acquired().await {
        return Ok(());
    }
    tracing::info!("started controllers");
    tokio::select! {
        _ = work(&options) => Ok(()),
        _ = election.lost() => match options.shutdown.is_triggered() {
            true => Ok(()),
            false => Err("leaderelection lost"),
        },
    }
}

async fn work(options: &Options) {
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
    options.shutdown.wait().await;
    for task in tasks {
        let _ = task.await;
    }
    let _ = events.await;
}
