//! What /healthz and /readyz say of a scheduler whose API server comes and goes.

use std::sync::Arc;

use orlop_base::Shutdown;
use orlop_serving::Pages;
use tokio::task::JoinHandle;

use super::World;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::serving::SchedulerPages;
use crate::shell::{self, Options, RunError};

struct Process {
    pages: SchedulerPages,
    shutdown: Shutdown,
    run: JoinHandle<Result<(), RunError>>,
}

impl Process {
    fn start(world: &World, leader_elect: bool) -> Process {
        let mut config = Config::default();
        config.leader_election.leader_elect = leader_elect;
        let (metrics, shutdown) = (Arc::new(Metrics::default()), Shutdown::default());
        let pages = SchedulerPages::new(metrics.clone(), &config, shutdown.clone());
        let options = Options {
            api: world.server.api(),
            config,
            clock: world.clock.clone(),
            seed: 1,
            metrics,
            identity: None,
            shutdown: shutdown.clone(),
        };
        let run = tokio::spawn(shell::run(options));
        Process { pages, shutdown, run }
    }

    fn passes(&self, check: &str) -> bool {
        self.pages.show(check, "").unwrap().code == 200
    }
}

#[tokio::test(start_paused = true)]
async fn leader_election_fails_with_a_lost_lease_and_recovers_with_the_next() {
    let world = World::with_nodes(&["a"]);
    let process = Process::start(&world, true);
    assert!(process.passes("/healthz/leaderElection"), "standing by");
    world.until("ready", || process.passes("/readyz")).await;
    world.server.go_away();
    let checks = ["/healthz", "/healthz/leaderElection", "/readyz/leaderElection"];
    world
        .until("the lease is lost", || {
            !checks.iter().any(|check| process.passes(check))
        })
        .await;
    assert!(process.passes("/livez"));
    assert!(matches!(process.run.await.unwrap(), Err(RunError::LeaseLost)));
    world.server.come_back();
    let next = Process::start(&world, true);
    world
        .until("elected again", || next.passes("/healthz") && next.passes("/readyz"))
        .await;
    next.shutdown.trigger();
}

#[tokio::test(start_paused = true)]
async fn handler_sync_fails_until_everything_is_listed() {
    let world = World::with_nodes(&["a"]);
    world.server.hide();
    let process = Process::start(&world, false);
    world.pass(std::time::Duration::from_secs(30)).await;
    assert!(!process.passes("/readyz/sched-handler-sync") && !process.passes("/readyz"));
    assert!(process.passes("/healthz") && process.passes("/livez"));
    world.server.show();
    world.until("synced", || process.passes("/readyz")).await;
    process.shutdown.trigger();
}

#[tokio::test(start_paused = true)]
async fn shutdown_fails_once_it_is_triggered() {
    let world = World::with_nodes(&["a"]);
    let process = Process::start(&world, false);
    world.until("ready", || process.passes("/readyz")).await;
    process.shutdown.trigger();
    assert!(!process.passes("/readyz/shutdown") && !process.passes("/readyz"));
    assert!(process.passes("/healthz"));
    assert!(process.run.await.unwrap().is_ok());
}
