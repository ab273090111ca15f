//! The health checks of the controller manager: its lease, its informer caches, its shutdown.
// Upstream: cmd/kube-controller-manager/app/controllermanager.go (v1.36)

use orlop_base::Shutdown;
use orlop_client::leader::LeaseHealth;
use parking_lot::Mutex;

use crate::runtime::Caches;

/// A named check, evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub name: &'static str,
    /// Where it counts: `healthz`, `livez`, `readyz`.
    pub endpoints: &'static [&'static str],
    pub passes: bool,
}

/// The health of one run of the controllers, which fills it in.
#[derive(Default)]
pub struct Health {
    lease: Mutex<Option<LeaseHealth>>,
    caches: Mutex<Option<Caches>>,
}

impl Health {
    pub(crate) fn set_lease(&self, lease: LeaseHealth) {
        *self.lease.lock() = Some(lease);
    }

    pub(crate) fn set_caches(&self, caches: Caches) {
        *self.caches.lock() = Some(caches);
    }

    /// False if this process leads, or led, by a lease that it failed to renew. True without an election.
    fn is_lease_healthy(&self) -> bool {
        self.lease.lock().as_ref().is_none_or(LeaseHealth::is_healthy)
    }

    /// Whether all informer caches of the controllers hold the state of the cluster. A standby has none and is ready to
    /// take over; without an election false until the controllers have started.
    fn are_caches_synced(&self) -> bool {
        match &*self.caches.lock() {
            Some(caches) => caches.are_synced(),
            None => self.lease.lock().is_some(),
        }
    }

    /// All checks as they are now. `leader_elect`: there is an election, and so a check of its lease.
    pub fn checks(&self, leader_elect: bool, shutdown: &Shutdown) -> Vec<HealthCheck> {
        let check = |name, endpoints, passes| HealthCheck {
            name,
            endpoints,
            passes,
        };
        let mut checks = vec![check("ping", &["healthz", "livez"][..], true)];
        if leader_elect {
            let is_healthy = self.is_lease_healthy();
            checks.push(check("leaderElection", &["healthz", "readyz"][..], is_healthy));
        }
        checks.push(check("shutdown", &["readyz"][..], !shutdown.is_triggered()));
        let are_synced = self.are_caches_synced();
        checks.push(check("informer-sync", &["readyz"][..], are_synced));
        checks
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use orlop_client::leader::Config as ElectionConfig;
    use orlop_client::testing::eventually;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::run::{Options, RunError, run};
    use crate::runtime::Metrics;
    use crate::testing::{Cluster, Faults, Refusal};

    struct Process {
        health: Arc<Health>,
        metrics: Arc<Metrics>,
        shutdown: Shutdown,
        leader_elect: bool,
        run: JoinHandle<Result<(), RunError>>,
    }

    impl Process {
        fn start(cluster: &Cluster, election: Option<ElectionConfig>) -> Process {
            let (health, metrics) = (Arc::<Health>::default(), Arc::<Metrics>::default());
            let (shutdown, leader_elect) = (Shutdown::default(), election.is_some());
            let api = cluster.api();
            let options = Options {
                api: api.clone(),
                account: Box::new(move |_| api.clone()),
                controllers: vec![&crate::ttl::DEF],
                settings: crate::Settings::default(),
                election,
                clock: cluster.clock.clone(),
                metrics: metrics.clone(),
                health: health.clone(),
                shutdown: shutdown.clone(),
            };
            let run = tokio::spawn(run(options));
            Process {
                health,
                metrics,
                shutdown,
                leader_elect,
                run,
            }
        }

        /// Of an endpoint (`/readyz`), or of one check of it (`/readyz/shutdown`); none if there is no such check.
        fn result(&self, path: &str) -> Option<bool> {
            let mut words = path.split('/').skip(1);
            let (endpoint, name) = (words.next().unwrap(), words.next());
            let checks = self.health.checks(self.leader_elect, &self.shutdown);
            let here = checks.iter().filter(|check| check.endpoints.contains(&endpoint));
            let here = here.filter(|check| name.is_none_or(|name| check.name == name));
            here.map(|check| check.passes).reduce(|all, one| all && one)
        }

        fn passes(&self, path: &str) -> bool {
            self.result(path).unwrap()
        }

        async fn until(&self, what: &str, mut is_so: impl FnMut(&Process) -> bool) {
            eventually(what, async || is_so(self)).await;
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
        assert_eq!(process.result("/healthz/leaderElection"), None);
        cluster.faults(Faults::default());
        process.until("synced", |process| process.passes("/readyz")).await;
        process.shutdown.trigger();
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
        let works = |process: &Process| {
            let mut text = String::new();
            process.metrics.render(&mut text);
            text.contains("workqueue_depth{")
        };
        standby.until("the standby leads", works).await;
        standby.until("it is synced", |process| process.passes("/readyz")).await;
        assert!(standby.passes("/healthz/leaderElection"));
    }
}
