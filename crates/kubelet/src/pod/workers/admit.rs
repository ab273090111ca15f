//! Letting pods in, and letting them grow: one decision at a time, so that nobody is promised what another has got.

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

/// Upstream: pods that are pushed off get half as long again as their grace, and no less than this.
const LEAST_WAIT: Duration = Duration::from_secs(10);
/// How long a pod that would be refused waits for sources that have not told their pods yet.
const SOURCES_WAIT: Duration = Duration::from_secs(5);

impl Shared {
    /// Lets a pod in if it may run here and there is room for it. Gives the uids of pods that were told to make room.
    fn admit(&self, uid: &str, pod: &Arc<Pod>) -> Result<Vec<String>, Rejection> {
        let _one_by_one = self.admission.lock();
        self.forget_inactive();
        let others = self.others(uid);
        let leaving = self.judge(pod, &others, None)?;
        // While they go, both have it: nobody else gets it meanwhile.
        if !self.give(uid, pod) {
            self.allocator.release_allocation(uid);
            return Ok(Vec::new());
        }
        Ok(self.push_off(&leaving))
    }

    /// Notes what a pod has been allocated. False if no source has it any more: then it has nothing.
    fn give(&self, uid: &str, pod: &Arc<Pod>) -> bool {
        // Whoever takes a pod away says so under this lock, and empties its place in the ledger after that.
        let live = self.live.lock();
        let wanted = live
            .pods
            .get(uid)
            .is_some_and(|handle| !handle.mail.borrow().requests.removed);
        if wanted {
            self.ledger.give(uid, pod.clone());
        }
        wanted
    }

    /// The pods whose room is not free: those that were let in, have not ended, and are not over for the API server.
    fn others(&self, uid: &str) -> Vec<Arc<Pod>> {
        let mut others = self.ledger.others(uid);
        let live = self.live.lock();
        others.retain(|pod| live.is_active(policy::uid(pod)));
        others
    }

    /// Frees what was kept for pods that ended or went while no agent ran.
    fn forget_inactive(&self) {
        let held = self.allocator.list_allocated_pods();
        let inactive: Vec<String> = {
            let live = self.live.lock();
            // Pods that are still to come have what they had before.
            let known = held.into_iter().filter(|_| live.sources_ready);
            known.filter(|uid| !live.is_active(uid)).collect()
        };
        inactive.iter().for_each(|uid| self.allocator.release_allocation(uid));
    }

    fn judge(&self, pod: &Pod, others: &[Arc<Pod>], now: Option<&Pod>) -> Result<Vec<Arc<Pod>>, Rejection> {
        let all: Vec<&Pod> = others.iter().map(|pod| &**pod).collect();
        let leaving = self.allocator.admit_pod(pod, &all, now)?;
        Ok(leaving.into_iter().map(|place| others[place].clone()).collect())
    }

    fn push_off(&self, pods: &[Arc<Pod>]) -> Vec<String> {
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

    /// What the pod had is free for others, as upstream though it may still be ending: nobody wants it any more.
    pub(super) fn leave(&self, uid: &str) {
        self.allocator.release_allocation(uid);
        if self.ledger.remove(uid) {
            self.retry_resizes();
        }
    }

    /// A pod that was let in wants other resources than it has.
    fn ask_for_resize(&self, uid: &str, pod: &Arc<Pod>) {
        if self.ledger.want(uid, pod, self.clock.now()) {
            self.retry_resizes();
        }
    }

    /// Tries all resizes that wait, in order. Workers are told of what became of theirs.
    pub(super) fn retry_resizes(&self) {
        let _one_by_one = self.admission.lock();
        // Pods that are still to come have what they had before.
        if !self.live.lock().sources_ready {
            return;
        }
        for (uid, waiting, allocated) in self.ledger.to_try() {
            match self.judge(&waiting.pod, &self.others(&uid), Some(&allocated)) {
                Ok(leaving) => {
                    if !self.ledger.resize(&uid, waiting.pod) {
                        continue;
                    }
                    self.push_off(&leaving);
                    self.poke(&uid);
                }
                Err(why) if waiting.refused.as_ref() != Some(&why) => {
                    self.ledger.refuse(&uid, why);
                    self.poke(&uid);
                }
                Err(_) => {}
            }
        }
    }
}

impl Worker {
    /// Whether the pod may run here. One that ran already is not asked.
    pub(super) async fn admit(&mut self, pod: &Arc<Pod>) {
        if std::mem::replace(&mut self.admitted, true) {
            return;
        }
        let ended = self.memory.status.phase.as_deref().is_some_and(policy::is_terminal);
        // A former agent's word: whatever had begun has statuses of containers.
        self.memory.rejected = ended && self.observed.is_empty() && self.memory.status.container_statuses.is_none();
        // What nobody wants any more is not counted, as upstream: its remains will go.
        if ended || self.memory.requests.removed {
            return;
        }
        if !self.observed.is_empty() || self.memory.status.start_time.is_some() {
            self.shared.give(&self.uid, pod);
            return;
        }
        let mut answer = self.try_to_enter(pod).await;
        if answer.is_err() && self.know_better().await {
            answer = self.try_to_enter(pod).await;
        }
        if let Err(rejection) = answer {
            self.reject(pod, rejection);
        }
    }

    /// Room first, then what else it needs: all or nothing.
    async fn try_to_enter(&mut self, pod: &Arc<Pod>) -> Result<(), Rejection> {
        let leaving = self.shared.admit(&self.uid, pod)?;
        self.wait_for_room(&leaving).await;
        let claimed = self.shared.allocator.allocate_devices(pod).await;
        if claimed.is_err() {
            self.shared.leave(&self.uid);
        }
        claimed
    }

    /// Before a pod is refused: whether more is known of the node and its pods now. A refusal is for good, and the scheduler
    /// may have seen more than we had: a label or a resource that the node got just now, a pod that went while no agent ran.
    async fn know_better(&self) -> bool {
        let mut all_known = self.shared.all_known.subscribe();
        let (mut mail, mut news) = (self.mail(), false);
        if !*all_known.borrow() {
            tokio::select! {
                known = all_known.wait_for(|known| *known) => news = known.is_ok(),
                () = Worker::told_to_end(&mut mail) => {}
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

    /// Until pods that were told to go are gone, or for as long as makes sense.
    async fn wait_for_room(&mut self, leaving: &[String]) {
        for uid in leaving {
            let handle = self.shared.live.lock().pods.get(uid).map(|h| h.view.clone());
            let Some(mut view) = handle else { continue };
            let leaver = view.borrow().pod.clone();
            let grace = policy::spec(&leaver).termination_grace_period_seconds.unwrap_or(30);
            let limit = LEAST_WAIT.max(seconds(grace.saturating_mul(3) / 2));
            let mut mail = self.mail();
            tokio::select! {
                // An error means that its worker has gone, and all of it.
                _ = view.wait_for(|view| view.stopped) => {}
                () = Worker::told_to_end(&mut mail) => return,
                () = self.shared.shutdown.wait() => return,
                () = tokio::time::sleep(limit) => {
                    let text = "Container runtime did not kill the pod within specified grace period.";
                    self.event(&leaver, None, Warning, "ExceededGracePeriod", text);
                }
            }
        }
    }

    /// News for the worker: the pod to work towards, with what it has been allocated.
    pub(super) fn take(&mut self, mail: &PodWork) -> Arc<Pod> {
        if self.memory.requests != mail.requests {
            self.memory.requests = mail.requests.clone();
        }
        let pod = &mail.pod;
        if self.memory.ending.is_none() && self.shared.ledger.allocated(&self.uid).is_some() {
            match resize::differs(pod, &self.allocated) {
                true => self.shared.ask_for_resize(&self.uid, pod),
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
