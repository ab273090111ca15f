//! Pod admission and in-place resizes: serialized, so that nothing is allocated twice.

use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{Pod, PodCondition};
use orlop_base::clock::seconds;
use orlop_client::EventType::{Normal, Warning};

use super::worker::Worker;
use super::{PodWork, Shared, ledger};
use crate::pod::policy;
use crate::pod::resize::{self, Pending};
use crate::pod::worker_state::{Ending, Eviction};
use crate::sources::admission::Rejection;
use crate::sources::preemption;

/// Upstream: preempted pods are waited for 1.5 times their grace period, and no less than this.
const LEAST_WAIT: Duration = Duration::from_secs(10);
/// How long a pod that would be rejected waits for sources that are not ready yet.
const SOURCES_WAIT: Duration = Duration::from_secs(5);

impl Shared {
    /// Admits a pod if it may run here and its requests fit. Returns the uids of pods that are preempted for it.
    fn admit(&self, uid: &str, pod: &Arc<Pod>) -> Result<Vec<String>, Rejection> {
        let _one_by_one = self.admission.lock();
        self.forget_inactive();
        let others = self.others(uid);
        let preempted = self.check_admission(pod, &others, None)?;
        // Until the preempted pods are gone both count: nobody else gets the resources meanwhile.
        if !self.record_allocation(uid, pod) {
            self.allocator.release_allocation(uid);
            return Ok(Vec::new());
        }
        Ok(self.preempt(&preempted))
    }

    /// Records what a pod is allocated. False if no source has it any more: then nothing is recorded.
    fn record_allocation(&self, uid: &str, pod: &Arc<Pod>) -> bool {
        // Removing a pod is marked under this lock, before its entry in the ledger is dropped.
        let live = self.live.lock();
        let wanted = live
            .pods
            .get(uid)
            .is_some_and(|handle| !handle.work.borrow().requests.removed);
        if wanted {
            self.ledger.allocate(uid, pod.clone());
        }
        wanted
    }

    /// The pods whose requests count: admitted, not terminated, and not terminal for the API server.
    fn others(&self, uid: &str) -> Vec<Arc<Pod>> {
        let mut others = self.ledger.others(uid);
        let live = self.live.lock();
        others.retain(|pod| live.is_active(policy::uid(pod)));
        others
    }

    /// Releases the allocations of pods that terminated or were removed while no kubelet ran.
    fn forget_inactive(&self) {
        let held = self.allocator.list_allocated_pods();
        let inactive: Vec<String> = {
            let live = self.live.lock();
            // Until all sources are ready, unknown pods keep their allocations.
            let known = held.into_iter().filter(|_| live.sources_ready);
            known.filter(|uid| !live.is_active(uid)).collect()
        };
        inactive.iter().for_each(|uid| self.allocator.release_allocation(uid));
    }

    fn check_admission(&self, pod: &Pod, others: &[Arc<Pod>], now: Option<&Pod>) -> Result<Vec<Arc<Pod>>, Rejection> {
        let all: Vec<&Pod> = others.iter().map(|pod| &**pod).collect();
        let preempted = self.allocator.admit_pod(pod, &all, now)?;
        Ok(preempted.into_iter().map(|place| others[place].clone()).collect())
    }

    fn preempt(&self, pods: &[Arc<Pod>]) -> Vec<String> {
        for pod in pods {
            let uid = policy::uid(pod);
            let ending = |handle: &super::Handle| handle.view.borrow().ending;
            if self.live.lock().pods.get(uid).is_none_or(ending) {
                continue;
            }
            let (reason, message) = (preemption::REASON, preemption::MESSAGE.to_string());
            self.events.pod(pod, Warning, reason, message.clone());
            let condition = PodCondition {
                type_: "DisruptionTarget".into(),
                status: "True".into(),
                reason: Some("TerminationByKubelet".into()),
                message: Some(preemption::CONDITION_MESSAGE.into()),
                ..PodCondition::default()
            };
            let eviction = Eviction {
                reason: reason.into(),
                message,
                grace_seconds: None,
                condition: Some(condition),
            };
            self.evict(uid, eviction);
        }
        pods.iter().map(|pod| policy::uid(pod).to_string()).collect()
    }

    /// Releases the pod's allocation, as upstream although it may still be terminating.
    pub(super) fn release_allocation(&self, uid: &str) {
        self.allocator.release_allocation(uid);
        if self.ledger.remove(uid) {
            self.retry_resizes();
        }
    }

    /// An admitted pod requests other resources than it is allocated.
    fn request_resize(&self, uid: &str, pod: &Arc<Pod>) {
        if self.ledger.request_resize(uid, pod, self.clock.now()) {
            self.retry_resizes();
        }
    }

    /// Retries all pending resizes in order, and wakes the workers whose resize was decided.
    pub(super) fn retry_resizes(&self) {
        let _one_by_one = self.admission.lock();
        // Until all sources are ready, unknown pods keep their allocations.
        if !self.live.lock().sources_ready {
            return;
        }
        for (uid, waiting, allocated) in self.ledger.pending_resizes() {
            match self.check_admission(&waiting.pod, &self.others(&uid), Some(&allocated)) {
                Ok(preempted) => {
                    if !self.ledger.resize(&uid, waiting.pod) {
                        continue;
                    }
                    self.preempt(&preempted);
                    self.wake(&uid);
                }
                Err(why) if waiting.refused.as_ref() != Some(&why) => {
                    self.ledger.reject_resize(&uid, why);
                    self.wake(&uid);
                }
                Err(_) => {}
            }
        }
    }
}

impl Worker {
    /// Admits the pod, unless it has run already.
    pub(super) async fn admit(&mut self, pod: &Arc<Pod>) {
        if std::mem::replace(&mut self.admitted, true) {
            return;
        }
        let ended = self.memory.status.phase.as_deref().is_some_and(policy::is_terminal);
        // From a former kubelet process: whatever was started has container statuses.
        self.memory.rejected = ended && self.observed.is_empty() && self.memory.status.container_statuses.is_none();
        // Removed pods do not count, as upstream: what is left of them is cleaned up.
        if ended || self.memory.requests.removed {
            return;
        }
        if !self.observed.is_empty() || self.memory.status.start_time.is_some() {
            self.shared.record_allocation(&self.uid, pod);
            return;
        }
        let mut answer = self.try_admit(pod).await;
        if answer.is_err() && self.refresh_before_rejecting().await {
            answer = self.try_admit(pod).await;
        }
        if let Err(rejection) = answer {
            self.reject(pod, rejection);
        }
    }

    /// Node resources first, then devices: all or nothing.
    async fn try_admit(&mut self, pod: &Arc<Pod>) -> Result<(), Rejection> {
        let preempted = self.shared.admit(&self.uid, pod)?;
        self.wait_for_preempted(&preempted).await;
        let claimed = self.shared.allocator.allocate_devices(pod).await;
        if claimed.is_err() {
            self.shared.release_allocation(&self.uid);
        }
        claimed
    }

    /// Before a pod is refused: whether more is known of the node and its pods now. A refusal is for good, and the scheduler
    /// may have seen more than we had: a label or a resource that the node got just now, a pod that went while no kubelet ran.
    async fn refresh_before_rejecting(&self) -> bool {
        let mut sources_synced = self.shared.sources_synced.subscribe();
        let (mut work, mut news) = (self.work(), false);
        if !*sources_synced.borrow() {
            tokio::select! {
                known = sources_synced.wait_for(|known| *known) => news = known.is_ok(),
                () = Worker::asked_to_terminate(&mut work) => {}
                () = self.shared.shutdown.wait() => {}
                () = tokio::time::sleep(SOURCES_WAIT) => {}
            }
        }
        self.shared.allocator.refresh_node().await || news
    }

    fn reject(&mut self, pod: &Pod, rejection: Rejection) {
        let Rejection { reason, message } = rejection;
        self.event(pod, None, Warning, event_reason(&reason), message.clone());
        self.memory.rejected = true;
        self.memory.ending = Some(Ending {
            grace_seconds: 1,
            deadline: self.shared.clock.now(),
            failed: Some((reason, format!("Pod was rejected: {message}"))),
            deleted: false,
        });
    }

    /// Waits until preempted pods are gone, but no longer than their grace periods allow.
    async fn wait_for_preempted(&mut self, preempted: &[String]) {
        for uid in preempted {
            let handle = self.shared.live.lock().pods.get(uid).map(|h| h.view.clone());
            let Some(mut view) = handle else { continue };
            let leaver = view.borrow().pod.clone();
            let grace = policy::spec(&leaver).termination_grace_period_seconds.unwrap_or(30);
            let limit = LEAST_WAIT.max(seconds(grace.saturating_mul(3) / 2));
            let mut work = self.work();
            tokio::select! {
                // An error means that its worker has gone, and all of it.
                _ = view.wait_for(|view| view.stopped) => {}
                () = Worker::asked_to_terminate(&mut work) => return,
                () = self.shared.shutdown.wait() => return,
                () = tokio::time::sleep(limit) => {
                    let text = "Container runtime did not kill the pod within specified grace period.";
                    self.event(&leaver, None, Warning, "ExceededGracePeriod", text);
                }
            }
        }
    }

    /// News for the worker: the pod to work towards, with what it has been allocated.
    pub(super) fn accept_work(&mut self, work: &PodWork) -> Arc<Pod> {
        if self.memory.requests != work.requests {
            self.memory.requests = work.requests.clone();
        }
        let pod = &work.pod;
        if self.memory.ending.is_none() && self.shared.ledger.allocated(&self.uid).is_some() {
            match resize::differs(pod, &self.allocated) {
                true => self.shared.request_resize(&self.uid, pod),
                false => self.shared.ledger.is_content(&self.uid),
            }
            self.watch_allocation(pod);
        }
        match resize::differs(pod, &self.allocated) {
            true => Arc::new(resize::with_allocation(pod, &self.allocated)),
            false => pod.clone(),
        }
    }

    /// Follows what the pod has been given, by its own asking or when room came.
    fn watch_allocation(&mut self, pod: &Arc<Pod>) {
        let Some(allocated) = self.shared.ledger.allocated(&self.uid) else {
            return;
        };
        if resize::differs(&allocated, &self.allocated) {
            self.allocated = allocated;
            let generation = self.allocated.metadata.generation.unwrap_or(0);
            self.memory.resize_in_progress = Some(Pending {
                generation,
                ..Default::default()
            });
            let text = resize::summary(&self.allocated, generation, "");
            let text = format!("Pod resize started: {text}");
            self.event(pod, None, Normal, "ResizeStarted", text);
        }
        let waiting = self.shared.ledger.waiting(&self.uid);
        let Some(refused) = waiting.and_then(|waiting| waiting.refused) else {
            self.memory.resize_pending = None;
            return;
        };
        let generation = pod.metadata.generation.unwrap_or(0);
        let is_hopeless = refused.reason == ledger::INFEASIBLE;
        let pending = Pending {
            reason: if is_hopeless {
                refused.reason.clone()
            } else {
                "Deferred".into()
            },
            message: refused.message,
            generation,
        };
        let known = self.memory.resize_pending.as_ref();
        if known.is_none_or(|known| (known.generation, &known.reason) != (generation, &pending.reason)) {
            let summary = resize::summary(pod, generation, &pending.message);
            let text = format!("Pod resize {}: {summary}", refused.reason);
            let event = if is_hopeless {
                "ResizeInfeasible"
            } else {
                "ResizeDeferred"
            };
            self.event(pod, None, Warning, event, text);
        }
        self.memory.resize_pending = Some(pending);
    }
}

/// Events have a fixed set of reasons; what is not among them has one for all.
fn event_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 17] = [
        "SysctlForbidden",
        "AppArmor",
        "OutOfephemeral-storage",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "Evicted",
        "NodeShutdown",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
        "SupplementalGroupsPolicyNotSupported",
        "PodFeatureUnsupported",
        "SMTAlignmentError",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == reason)
        .unwrap_or("UnexpectedAdmissionError")
}
