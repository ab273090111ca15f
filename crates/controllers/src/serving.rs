//! What the controller manager serves on its own port: metrics and health.
// Upstream: cmd/kube-controller-manager/app/controllermanager.go (v1.36)

use std::sync::Arc;

use orlop_base::Shutdown;
use orlop_serving::health::{self, Check};
use orlop_serving::metrics::process;
use orlop_serving::{Page, Pages};

use crate::health::Health;
use crate::runtime::Metrics;

/// `/metrics`, `/healthz`, `/livez` and `/readyz` of one run of the controllers.
pub struct ControllerManagerPages {
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    /// Whether there is an election, and so a check `leaderElection`.
    pub leader_elect: bool,
    pub shutdown: Shutdown,
}

impl ControllerManagerPages {
    fn checks(&self) -> Vec<Check> {
        let check = |name, at, passes| Check { name, at, passes };
        let mut checks = vec![check("ping", &["healthz", "livez"][..], true)];
        if self.leader_elect {
            let is_healthy = self.health.is_lease_healthy();
            checks.push(check("leaderElection", &["healthz", "readyz"][..], is_healthy));
        }
        checks.push(check("shutdown", &["readyz"][..], !self.shutdown.is_triggered()));
        let are_synced = self.health.are_caches_synced();
        checks.push(check("informer-sync", &["readyz"][..], are_synced));
        checks
    }
}

impl Pages for ControllerManagerPages {
    fn show(&self, path: &str, query: &str) -> Option<Page> {
        if path == "/metrics" {
            let mut text = String::new();
            self.metrics.render(&mut text);
            process::write(&mut text);
            return Some(Page::metrics(text));
        }
        health::respond(&self.checks(), path, query).map(|(code, text)| Page::plain(code, text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use orlop_client::leader::Config as ElectionConfig;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::run::{Options, RunError, run};
    use crate::testing::{Cluster, Faults, Refusal};

    struct Process {
        pages: ControllerManagerPages,
        run: JoinHandle<Result<(), RunError>>,
    }

    impl Process {
        fn start(cluster: &Cluster, election: Option<ElectionConfig>) -> Process {
            let pages = ControllerManagerPages {
                metrics: Arc::default(),
                health: Arc::default(),
                leader_elect: election.is_some(),
                shutdown: Shutdown::default(),
            };
            let api = cluster.api();
            let options = Options {
                api: api.clone(),
                account: Box::new(move |_| api.clone()),
                controllers: vec![&crate::ttl::DEF],
                settings: crate::Settings::default(),
                election,
                clock: cluster.clock.clone(),
                metrics: pages.metrics.clone(),
                health: pages.health.clone(),
                shutdown: pages.shutdown.clone(),
            };
            let run = tokio::spawn(run(options));
            Process { pages, run }
        }

        fn passes(&self, path: &str) -> bool {
            self.pages.show(path, "").unwrap().code == 200
        }

        async fn until(&self, what: &str, mut is_so: impl FnMut(&Process) -> bool) {
            for _ in 0..6000 {
                if is_so(self) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("{what}: {:?}", self.pages.show("/readyz", "verbose").unwrap().body);
        }
    }

    /// Requests whose path contains this fail as long as the flag is set.
    fn fail(cluster: &Cluster, part: &'static str) -> Arc<AtomicBool> {
        let fails = Arc::new(AtomicBool::new(false));
        let flag = fails.clone();
        cluster.hook(move |call, _| {
            let refused = call.path.contains(part) && flag.load(Ordering::Relaxed);
            refused.then(|| Err(Refusal::new(503, "ServiceUnavailable", "not now")))
        });
        fails
    }

    fn election(identity: &str) -> Option<ElectionConfig> {
        let mut config = ElectionConfig::new("kube-system", "kube-controller-manager");
        config.identity = identity.to_string();
        Some(config)
    }

    #[tokio::test(start_paused = true)]
    async fn informer_sync_fails_until_the_caches_are_synced() {
        let cluster = Cluster::new();
        cluster.faults(Faults {
            one_in: 1,
            ..Faults::default()
        });
        let process = Process::start(&cluster, None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!process.passes("/readyz/informer-sync") && !process.passes("/readyz"));
        assert!(process.passes("/healthz") && process.passes("/livez"));
        assert!(process.pages.show("/healthz/leaderElection", "").is_none());
        cluster.faults(Faults::default());
        process.until("synced", |process| process.passes("/readyz")).await;
        process.pages.shutdown.trigger();
        assert!(!process.passes("/readyz/shutdown") && !process.passes("/readyz"));
        assert!(process.passes("/healthz"));
        assert!(process.run.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn leader_election_fails_with_a_lost_lease_and_recovers_with_the_next() {
        let cluster = Cluster::new();
        let fails = fail(&cluster, "/leases/");
        let process = Process::start(&cluster, election("first"));
        process.until("elected", |process| process.passes("/readyz")).await;
        let standby = Process::start(&cluster, election("second"));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(process.passes("/healthz") && process.passes("/readyz"));
        assert!(standby.passes("/healthz") && standby.passes("/readyz"), "standing by");
        fails.store(true, Ordering::Relaxed);
        process
            .until("the lease is lost", |process| {
                !process.passes("/healthz/leaderElection")
            })
            .await;
        assert!(!process.passes("/healthz") && !process.passes("/readyz/leaderElection"));
        assert!(process.passes("/livez"));
        assert!(matches!(process.run.await.unwrap(), Err(RunError::LeaseLost)));
        fails.store(false, Ordering::Relaxed);
        let metrics = |process: &Process| process.pages.show("/metrics", "").unwrap().body;
        let works = |process: &Process| String::from_utf8_lossy(&metrics(process)).contains("workqueue_depth{");
        standby.until("the standby leads", works).await;
        standby.until("it is synced", |process| process.passes("/readyz")).await;
        assert!(standby.passes("/healthz/leaderElection"));
    }
}
