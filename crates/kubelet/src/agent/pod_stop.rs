//! Stopping the pods of this process' nodes before the process ends, and how far that is.
//!
//! A pod that always restarts is suspended: it is stopped within its grace period, and started again when its node is back,
//! as after a reboot. A pod that ends some day fails instead, as with a graceful node shutdown: that a stopped container
//! exits with 0 does not mean that its work is done, and whoever made the pod makes another. Kubelets on their own never do
//! this: their pods go on without them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orlop_api::types::core::Pod;
use orlop_base::{Clock, Shutdown};
use tokio::sync::watch;

use super::shutdown;
use crate::pod::policy;
use crate::pod::worker_state::Suspension;
use crate::pod::workers::Workers;

/// What a pod may take beyond its grace period: its sandbox, its network and a slow machine.
const MARGIN: Duration = Duration::from_secs(10);
/// How long to wait for the pods that there are.
const SOURCES: Duration = Duration::from_secs(10);
/// The grace period of a pod that names none.
const GRACE_DEFAULT: i64 = 30;

/// Asks all kubelets that share it to stop their pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PodStop {
    state: Arc<watch::Sender<StopState>>,
    next_agent: Arc<AtomicU64>,
}

#[derive(Clone, Debug, Default)]
struct StopState {
    requested: Option<Suspension>,
    /// Of each kubelet under way, the pods that it has not stopped; `None` until it has counted them.
    agents: BTreeMap<u64, Option<usize>>,
}

impl StopState {
    fn is_finished(&self) -> bool {
        self.agents.values().all(|left| *left == Some(0))
    }
}

impl Default for PodStop {
    fn default() -> PodStop {
        PodStop {
            state: Arc::new(watch::Sender::new(StopState::default())),
            next_agent: Arc::default(),
        }
    }
}

impl PodStop {
    /// Pods get at most this many seconds; `None`: as many as they ask for. A second request is ignored.
    pub fn request(&self, grace_seconds: Option<i64>) {
        let suspension = Suspension {
            grace_seconds: grace_seconds.map(|grace| grace.max(0)),
        };
        self.state.send_modify(|state| {
            state.requested.get_or_insert(suspension);
        });
    }

    /// Whether it was requested.
    pub fn is_requested(&self) -> bool {
        self.state.borrow().requested.is_some()
    }

    /// How many pods are still to be stopped; 0 before the request.
    pub fn remaining(&self) -> usize {
        self.state.borrow().agents.values().flatten().sum()
    }

    /// Resolves once every kubelet under way has stopped its pods, or has given up on them.
    pub async fn finished(&self) {
        let mut state = self.state.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = state.wait_for(StopState::is_finished).await;
    }

    /// A kubelet takes part from its start on: pods that it has not looked at yet are to be stopped, too.
    pub(super) fn join(&self) -> StopMember {
        let id = self.next_agent.fetch_add(1, Ordering::Relaxed);
        self.state.send_modify(|state| {
            state.agents.insert(id, None);
        });
        StopMember { stop: self.clone(), id }
    }
}

/// A kubelet that takes part, until it is dropped.
pub(super) struct StopMember {
    stop: PodStop,
    id: u64,
}

impl StopMember {
    async fn requested(&self) -> Suspension {
        let mut state = self.stop.state.subscribe();
        loop {
            if let Some(suspension) = state.borrow_and_update().requested {
                return suspension;
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn set_remaining(&self, pods: usize) {
        self.stop.state.send_modify(|state| {
            state.agents.insert(self.id, Some(pods));
        });
    }
}

impl Drop for StopMember {
    fn drop(&mut self) {
        self.stop.state.send_modify(|state| {
            state.agents.remove(&self.id);
        });
    }
}

/// Waits for the request, stops the pods, and stays until the shutdown.
pub(super) async fn run(agent: StopMember, workers: Workers, clock: Clock, shutdown: Shutdown) {
    let work = async {
        let suspension = agent.requested().await;
        stop_pods(&agent, &workers, suspension, &clock).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = shutdown.wait() => {}
    }
}

async fn stop_pods(agent: &StopMember, workers: &Workers, suspension: Suspension, clock: &Clock) {
    // A kubelet that has just started does not know yet what it has to stop.
    let _ = tokio::time::timeout(SOURCES, workers.wait_for_sources()).await;
    let views = workers.views().into_iter().filter(|view| !view.freed);
    let pods: Vec<Arc<Pod>> = views.map(|view| view.pod).collect();
    agent.set_remaining(pods.len());
    if !pods.is_empty() {
        tracing::info!(pods = pods.len(), "stopping pods within their grace periods");
    }
    let longest = pods.iter().map(|pod| grace(pod, suspension)).max().unwrap_or_default();
    for pod in pods.iter().filter(|pod| !policy::always_restarts(pod)) {
        workers.evict(
            policy::uid(pod),
            shutdown::eviction(pod, grace(pod, suspension), clock.now()),
        );
    }
    workers.suspend(suspension);
    let mut stopping: FuturesUnordered<_> = pods.iter().map(|pod| workers.suspended(policy::uid(pod))).collect();
    let all = async {
        while stopping.next().await.is_some() {
            agent.set_remaining(stopping.len());
        }
    };
    if tokio::time::timeout(longest.saturating_add(MARGIN), all).await.is_err() {
        tracing::warn!(
            pods = stopping.len(),
            "failed to stop all pods, the next start adopts those that run"
        );
    }
    agent.set_remaining(0);
}

fn grace(pod: &Pod, suspension: Suspension) -> Duration {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = suspension.limit(own.unwrap_or(GRACE_DEFAULT));
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_finished_when_every_kubelet_is() {
        let stop = PodStop::default();
        let (one, other) = (stop.join(), stop.join());
        stop.request(Some(5));
        stop.request(None);
        assert_eq!(one.requested().await.grace_seconds, Some(5));
        one.set_remaining(2);
        assert_eq!(stop.remaining(), 2);
        let waiting = stop.finished();
        tokio::pin!(waiting);
        one.set_remaining(0);
        assert!(
            futures::poll!(&mut waiting).is_pending(),
            "the other has not counted yet"
        );
        // A kubelet that fails meanwhile is not waited for.
        drop(other);
        waiting.await;
    }

    #[test]
    fn grace_periods_are_limited() {
        let pod = |grace: Option<i64>| Pod {
            spec: Some(orlop_api::types::core::PodSpec {
                termination_grace_period_seconds: grace,
                ..Default::default()
            }),
            ..Default::default()
        };
        let seconds = |own, most| grace(&pod(own), Suspension { grace_seconds: most }).as_secs();
        assert_eq!(
            [seconds(Some(5), None), seconds(None, None), seconds(Some(-1), None)],
            [5, 30, 0]
        );
        assert_eq!([seconds(Some(60), Some(2)), seconds(Some(1), Some(2))], [2, 1]);
    }
}
