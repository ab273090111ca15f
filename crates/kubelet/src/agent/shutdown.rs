//! Graceful node shutdown: pods are terminated in order of their priority, and the shutdown is delayed for them.
//!
//! systemd-logind announces it (`logind`); an inhibitor lock that is held from the start delays it. After a cancelled
//! shutdown the node accepts pods again; terminated pods stay so.
// Upstream: pkg/kubelet/nodeshutdown (v1.36)

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodCondition};
use orlop_api::types::meta::Time;
use orlop_base::{Clock, Shutdown, join_all};
use orlop_client::events::EventType;

use super::logind::{Failure, Logind, LogindEndpoint};
use crate::config::{Config, PriorityGrace};
use crate::events::Events;
use crate::node::{self, Keeper};
use crate::pod::policy;
use crate::pod::worker_state::Eviction;
use crate::pod::workers::Workers;
use crate::spec::resources::CRITICAL_PRIORITY;

const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Back-off between attempts to connect to logind, from the first to the last.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_LAST: Duration = Duration::from_secs(60);

/// A priority group of pods, and its grace period.
#[derive(Debug, PartialEq)]
pub(super) struct Turn {
    pub grace: Duration,
    pub pods: Vec<Arc<Pod>>,
}

/// How long pods may take, by priority from low to high; nothing if they are to be left alone.
pub(super) fn graces(config: &Config) -> Vec<PriorityGrace> {
    let mut graces = config.shutdown_grace_period_by_pod_priority.clone();
    let whole = config.shutdown_grace_period;
    if graces.is_empty() && !whole.is_zero() {
        let critical = config.shutdown_grace_period_critical_pods;
        let grace = |priority: i32, time: Duration| PriorityGrace {
            priority,
            shutdown_grace_period_seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        };
        graces.push(grace(0, whole.saturating_sub(critical)));
        graces.push(grace(CRITICAL_PRIORITY, critical));
    }
    graces.sort_by_key(|grace| grace.priority);
    graces
}

fn whole(graces: &[PriorityGrace]) -> Duration {
    graces
        .iter()
        .map(seconds)
        .fold(Duration::ZERO, Duration::saturating_add)
}

fn seconds(grace: &PriorityGrace) -> Duration {
    Duration::from_secs(u64::try_from(grace.shutdown_grace_period_seconds).unwrap_or(0))
}

/// The least important first. A pod belongs to the highest priority of the list that it reaches; what is below all of
/// them ends with the lowest.
pub(super) fn plan(pods: Vec<Arc<Pod>>, graces: &[PriorityGrace]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = graces
        .iter()
        .map(|grace| Turn {
            grace: seconds(grace),
            pods: Vec::new(),
        })
        .collect();
    for pod in pods {
        let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let reached = graces.partition_point(|grace| grace.priority <= priority);
        if let Some(turn) = turns.get_mut(reached.saturating_sub(1)) {
            turn.pods.push(pod);
        }
    }
    turns.retain(|turn| !turn.pods.is_empty());
    turns
}

pub(super) fn eviction(pod: &Pod, grace: Duration, now: Timestamp) -> Eviction {
    let own = pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds)
        .unwrap_or(i64::MAX);
    let most = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
    Eviction {
        reason: REASON.to_string(),
        message: MESSAGE.to_string(),
        grace_seconds: Some(own.min(most)),
        condition: Some(PodCondition {
            type_: "DisruptionTarget".to_string(),
            status: "True".to_string(),
            reason: Some("TerminationByKubelet".to_string()),
            message: Some(MESSAGE.to_string()),
            last_transition_time: Some(Time(now)),
            ..PodCondition::default()
        }),
    }
}

/// Terminates pods on node shutdown.
pub(super) struct Ender {
    pub keeper: Keeper,
    pub workers: Workers,
    pub events: Events,
    pub clock: Clock,
    pub graces: Vec<PriorityGrace>,
    pub place: LogindEndpoint,
}

impl Ender {
    /// Follows logind until the shutdown of the kubelet. Without logind there is no graceful node shutdown.
    pub(super) async fn run(self, shutdown: Shutdown) {
        if self.graces.is_empty() {
            return;
        }
        let work = async {
            let (mut pause, mut told) = (AGAIN_FIRST, false);
            loop {
                let error = match self.follow(&mut pause, &mut told).await {
                    Ok(()) => "systemd-logind has gone".to_string(),
                    Err(error) => error.to_string(),
                };
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(err = %error, "failed to start the node shutdown manager");
                }
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2).min(AGAIN_LAST);
            }
        };
        tokio::select! {
            _ = work => {}
            _ = shutdown.wait() => {}
        }
    }

    /// Until the connection ends.
    async fn follow(&self, pause: &mut Duration, told: &mut bool) -> Result<(), Failure> {
        let logind = Logind::connect(&self.place).await?;
        logind.ensure_delay(whole(&self.graces)).await?;
        let mut lock = Some(logind.lock().await?);
        let mut signals = logind.signals().await?;
        (*pause, *told) = (AGAIN_FIRST, false);
        tracing::info!(grace = ?whole(&self.graces), "started the node shutdown manager");
        while let Some(goes_down) = signals.next().await {
            self.keeper.set_shutting_down(goes_down);
            if goes_down {
                self.tell("Shutdown manager detected shutdown event");
                self.end_pods().await;
                // The machine waits no longer.
                lock.take();
            } else {
                self.tell("Shutdown manager detected shutdown cancellation");
                lock = Some(logind.lock().await?);
            }
        }
        Ok(())
    }

    /// Terminates all pods, one priority group after the other. Returns when all have terminated or their time is up.
    async fn end_pods(&self) {
        let views = self.workers.views().into_iter().filter(|view| !view.freed);
        for turn in plan(views.map(|view| view.pod).collect(), &self.graces) {
            let now = self.clock.now();
            let ended = turn.pods.iter().map(|pod| {
                self.workers.evict(policy::uid(pod), eviction(pod, turn.grace, now));
                self.workers.freed(policy::uid(pod))
            });
            if tokio::time::timeout(turn.grace, join_all(ended)).await.is_err() {
                tracing::warn!(grace = ?turn.grace, "failed to terminate all pods before shutdown");
            }
        }
    }

    fn tell(&self, note: &str) {
        tracing::info!(note, "recorded node shutdown event");
        let node = node::reference(&self.keeper.identity().name);
        self.events.record(node, EventType::Normal, "NodeShutdown", note);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::parse;

    fn pod(name: &str, priority: i32) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name}, "spec": {"priority": priority, "containers": [],
                         "terminationGracePeriodSeconds": 15}});
        Arc::new(orlop_api::types::from_value(pod).unwrap())
    }

    fn shown(turns: &[Turn]) -> Vec<(u64, Vec<&str>)> {
        turns
            .iter()
            .map(|turn| {
                (
                    turn.grace.as_secs(),
                    turn.pods.iter().map(|pod| policy::name(pod)).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn critical_pods_end_last() {
        let flags = [
            ("shutdownGracePeriod", json!("30s")),
            ("shutdownGracePeriodCriticalPods", json!("10s")),
        ];
        let graces = graces(&parse(None, &flags).unwrap());
        assert_eq!(whole(&graces), Duration::from_secs(30));
        let turns = plan(vec![pod("dns", 2_000_000_001), pod("web", 0), pod("low", -5)], &graces);
        assert_eq!(shown(&turns), [(20, vec!["web", "low"]), (10, vec!["dns"])]);
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let web = pod("web", 0);
        assert_eq!(eviction(&web, Duration::from_secs(10), now).grace_seconds, Some(10));
        assert_eq!(eviction(&web, Duration::from_secs(20), now).grace_seconds, Some(15));
    }

    #[test]
    fn each_priority_has_its_time() {
        let list = json!([
            {"priority": 1000, "shutdownGracePeriodSeconds": 120},
            {"priority": 0, "shutdownGracePeriodSeconds": 60},
            {"priority": 10000, "shutdownGracePeriodSeconds": 20},
        ]);
        let graces = graces(&parse(None, &[("shutdownGracePeriodByPodPriority", list.clone())]).unwrap());
        assert_eq!(whole(&graces), Duration::from_secs(200));
        let pods = [
            ("a", 1000),
            ("b", 999),
            ("c", -1),
            ("d", 9999),
            ("e", 10_000),
            ("f", i32::MAX),
        ];
        let turns = plan(pods.map(|(name, priority)| pod(name, priority)).to_vec(), &graces);
        let expected = [(60, vec!["b", "c"]), (120, vec!["a", "d"]), (20, vec!["e", "f"])];
        assert_eq!(shown(&turns), expected);
        let both = [
            ("shutdownGracePeriodByPodPriority", list),
            ("shutdownGracePeriod", json!("5s")),
        ];
        assert!(parse(None, &both).unwrap_err()[0].contains("Cannot specify both"));
    }

    #[test]
    fn without_times_pods_are_left_alone() {
        let none = graces(&Config::default());
        assert!(none.is_empty() && plan(vec![pod("web", 0)], &none).is_empty());
    }
}
