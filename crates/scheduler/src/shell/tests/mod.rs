//! The shell against a scripted API server, in virtual time: what goes wrong is made good, no pod is lost and none is
//! bound twice.

mod bindings;
mod decisions;
mod figures;
mod health;
mod input;
mod permits;
mod rivals;
mod server;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use orlop_base::{Clock, Shutdown};
use parking_lot::Mutex;

use super::Options;
use super::engine::Engine;
use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::config::Config;
use crate::framework::points::{Plugin, Reserve};
use crate::framework::profile::Profile;
use crate::framework::verdict::Rejection;
use crate::metrics::Metrics;
use server::Server;

/// Virtual time between two looks.
const STEP: Duration = Duration::from_millis(10);
/// Nothing takes longer, in virtual time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server, and the time that all its clients live in.
struct World {
    server: Server,
    clock: Clock,
    shutdown: Shutdown,
}

/// A running scheduler, as seen from outside.
struct Scheduler {
    metrics: Arc<Metrics>,
    calls: Calls,
}

/// What plugins were asked, in order.
type Calls = Arc<Mutex<Vec<String>>>;

impl World {
    fn new() -> World {
        World {
            server: Server::new(),
            clock: Clock::manual("2026-01-02T03:04:05Z".parse().unwrap()),
            shutdown: Shutdown::default(),
        }
    }

    /// With nodes of four CPUs each.
    fn with_nodes(names: &[&str]) -> World {
        let world = World::new();
        for name in names {
            world.server.add_node(name, "4");
        }
        world
    }

    /// A scheduler with the default plugins and two that take notes.
    fn schedule(&self) -> Scheduler {
        let calls = Calls::default();
        let plugins: Vec<Box<dyn Plugin>> = vec![
            Box::new(Notes("First", calls.clone())),
            Box::new(Notes("Second", calls.clone())),
        ];
        self.schedule_with(plugins, calls, 1)
    }

    /// A scheduler with the default plugins and these.
    fn schedule_with(&self, extra: Vec<Box<dyn Plugin>>, calls: Calls, seed: u64) -> Scheduler {
        let mut config = Config::default();
        config.leader_election.leader_elect = false;
        let mut profiles = crate::plugins::profiles(&config).unwrap();
        add_plugins(&mut profiles[0], extra);
        let metrics = Arc::new(Metrics::default());
        let options = Options {
            api: self.server.api(),
            config,
            clock: self.clock.clone(),
            seed,
            metrics: metrics.clone(),
            identity: None,
            shutdown: self.shutdown.clone(),
        };
        let engine = Engine::with_profiles(&options, profiles).unwrap();
        tokio::spawn(engine.run(self.shutdown.clone(), None));
        Scheduler { metrics, calls }
    }

    /// Lets time pass.
    async fn pass(&self, time: Duration) {
        let mut passed = Duration::ZERO;
        while passed < time {
            tokio::time::sleep(STEP).await;
            self.clock.advance(STEP);
            passed = passed.saturating_add(STEP);
        }
    }

    /// Lets time pass until it is so; how long that took.
    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
        let mut passed = Duration::ZERO;
        while !is_so() {
            assert!(
                passed < PATIENCE,
                "{what}: {:?} {:?}",
                self.server.asked(),
                self.server.events()
            );
            self.pass(STEP).await;
            passed = passed.saturating_add(STEP);
        }
        passed
    }

    async fn until_bound(&self, pod: &str) -> Duration {
        let server = self.server.clone();
        self.until(&format!("{pod} is bound"), || server.node_of(pod).is_some())
            .await
    }

    /// Each of these pods was bound, once.
    fn assert_bound_once(&self, pods: &[&str]) {
        let mut bound: Vec<String> = self.server.bound().into_iter().map(|(pod, _)| pod).collect();
        bound.sort();
        assert_eq!(bound, pods);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

impl Scheduler {
    /// The value of a line of the metrics.
    fn figure(&self, line: &str) -> f64 {
        let text = self.metrics.render();
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().unwrap())
    }

    fn assumed(&self) -> f64 {
        self.figure("scheduler_cache_size{type=\"assumed_pods\"}")
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }
}

/// Enables plugins at every point that they have something to say at, after all others.
fn add_plugins(profile: &mut Profile, extra: Vec<Box<dyn Plugin>>) {
    for plugin in extra {
        let place = profile.plugins.len();
        let enable = |at: &mut Vec<usize>, has: bool| at.extend(has.then_some(place));
        enable(&mut profile.reserve, plugin.reserve().is_some());
        enable(&mut profile.permit, plugin.permit().is_some());
        enable(&mut profile.pre_bind, plugin.pre_bind().is_some());
        enable(&mut profile.post_bind, plugin.post_bind().is_some());
        profile.plugins.push(plugin);
    }
}

/// Reserves nothing and tells when it was asked to.
struct Notes(&'static str, Calls);

impl Plugin for Notes {
    fn name(&self) -> &'static str {
        self.0
    }

    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

impl Reserve for Notes {
    fn reserve(&self, pod: &Arc<PodInfo>, node: &NodeInfo, _: &Cluster) -> Result<(), Rejection> {
        let call = format!("{} reserves {} for {}", self.0, node.name, pod.key.name);
        self.1.lock().push(call);
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, node: &str) {
        let call = format!("{} gives {node} of {} back", self.0, pod.key.name);
        self.1.lock().push(call);
    }
}
