//! When the machine goes down: pods end in order, the critical ones last.
// Upstream: pkg/kubelet/nodeshutdown (v1.36)

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use orlop_base::join_all;

use super::Agent;
use crate::config::Config;
use crate::pod::memory::Eviction;
use crate::pod::policy;
use crate::sources::admission::is_critical;

const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Pods that end together, and how long they may take.
#[derive(Debug, PartialEq)]
pub struct Turn {
    pub grace: Duration,
    pub pods: Vec<Arc<Pod>>,
}

/// First all pods but the critical ones, then those.
pub fn plan(pods: Vec<Arc<Pod>>, config: &Config) -> Vec<Turn> {
    let for_critical = config.shutdown_grace_period_critical_pods;
    let for_others = config.shutdown_grace_period.saturating_sub(for_critical);
    let (critical, others) = pods.into_iter().partition(|pod| is_critical(pod));
    let turns = [(for_others, others), (for_critical, critical)];
    let turns = turns.map(|(grace, pods)| Turn { grace, pods });
    turns.into_iter().filter(|turn| !turn.pods.is_empty()).collect()
}

fn eviction(pod: &Pod, grace: Duration, now: Timestamp) -> Eviction {
    let own = pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds)
        .unwrap_or(30);
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

impl Agent {
    /// Ends all pods because the machine goes down: the node is not ready from now on and takes no more. Returns when all
    /// have ended or their time is up. Without a configured grace period pods are left alone.
    pub async fn shut_down_node(&self, now: Timestamp) {
        if self.config.shutdown_grace_period.is_zero() {
            return;
        }
        self.keeper.begin_shutdown();
        for turn in plan(self.workers.pods(), &self.config) {
            let ended = turn.pods.iter().map(|pod| {
                self.workers.evict(policy::uid(pod), eviction(pod, turn.grace, now));
                self.workers.stopped(policy::uid(pod))
            });
            if tokio::time::timeout(turn.grace, join_all(ended)).await.is_err() {
                tracing::warn!(
                    "pods have not ended within {:?}; the machine goes down all the same",
                    turn.grace
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::parse;

    #[test]
    fn critical_pods_end_last() {
        let flags = [
            ("shutdownGracePeriod", json!("30s")),
            ("shutdownGracePeriodCriticalPods", json!("10s")),
        ];
        let config = parse(None, &flags).unwrap();
        let pod = |name: &str, priority: i32| -> Arc<Pod> {
            let pod = json!({"metadata": {"name": name}, "spec": {"priority": priority, "containers": [],
                             "terminationGracePeriodSeconds": 15}});
            Arc::new(crate::json::from_value(&pod).unwrap())
        };
        let (web, dns) = (pod("web", 0), pod("dns", 2_000_000_001));
        let turns = plan(vec![dns.clone(), web.clone()], &config);
        let expected = [(20, vec![web.clone()]), (10, vec![dns])];
        let expected = expected.map(|(seconds, pods)| Turn {
            grace: Duration::from_secs(seconds),
            pods,
        });
        assert_eq!(turns, expected);
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(eviction(&web, Duration::from_secs(10), now).grace_seconds, Some(10));
        assert_eq!(eviction(&web, Duration::from_secs(20), now).grace_seconds, Some(15));
    }
}
