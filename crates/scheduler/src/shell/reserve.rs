//! A pod that has a node: reserve, ask for permission, assume, and bind beside the next cycles.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::{Attempt, Engine};
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cycle::ScheduleResult;
use crate::framework::permit::{Decided, Decision};
use crate::framework::points::Permission;
use crate::framework::verdict::Rejection;
use crate::queue::QueuedPod;
use crate::timing::{ERROR, SUCCESS, WAIT, status};

/// Who said no, and why.
type Refused = (&'static str, Rejection);

impl Engine {
    pub(super) fn reserve_and_bind(
        &mut self,
        profile: usize,
        queued: QueuedPod,
        choice: ScheduleResult,
        started: Instant,
    ) {
        let pod = queued.pod.clone();
        let Some(node) = self.cluster.node(choice.node) else {
            return self.error(profile, queued, "the chosen node is gone".to_string(), started);
        };
        let name = node.name.clone();
        let permission = self
            .reserve(profile, &pod, node)
            .and_then(|()| self.ask_permission(profile, &pod, node));
        let waits = match permission {
            Ok(waits) => waits,
            Err((by, rejection)) => return self.rejected(profile, queued, choice.node, by, rejection, started),
        };
        self.cluster.assume(&pod, choice.node);
        self.cluster.nominated.remove(&pod.uid);
        let attempt = Attempt {
            queued,
            id: choice.node,
            node: name.clone(),
            profile,
            started,
            step: Instant::now(),
            sampled: self.is_sampled(),
            pre_bind: None,
            evaluated: choice.evaluated,
            feasible: choice.feasible,
        };
        let uid = pod.uid.clone();
        self.binding.insert(uid.clone(), attempt);
        if waits.is_empty() {
            self.start_binding(&uid);
        } else {
            self.permits.insert(pod, name, &waits, self.clock.now());
        }
    }

    /// Reserve of all plugins; undone if one of them refuses.
    fn reserve(&self, profile: usize, pod: &Arc<PodInfo>, node: &NodeInfo) -> Result<(), Refused> {
        let plugins = &self.core.profiles[profile];
        let start = Instant::now();
        let mut result = Ok(());
        for (n, place) in plugins.reserve.iter().enumerate() {
            let Some(reserve) = plugins.plugins[*place].reserve() else {
                continue;
            };
            if let Err(rejection) = reserve.reserve(pod, node, &self.cluster) {
                self.undo(profile, &plugins.reserve[..=n], pod, &node.name);
                result = Err((plugins.plugins[*place].name(), rejection));
                break;
            }
        }
        self.observe_point("Reserve", profile, told(&result), start.elapsed());
        result
    }

    /// Who wants the pod to wait, and for how long. Whatever was reserved is given back if anyone refuses.
    fn ask_permission(
        &self,
        profile: usize,
        pod: &Arc<PodInfo>,
        node: &NodeInfo,
    ) -> Result<Vec<(&'static str, Duration)>, Refused> {
        let plugins = &self.core.profiles[profile];
        let start = Instant::now();
        let mut waits = vec![];
        for plugin in plugins.permit.iter().map(|place| &plugins.plugins[*place]) {
            let Some(permit) = plugin.permit() else { continue };
            match permit.permit(pod, node, &self.permits) {
                Permission::Allow => {}
                Permission::Wait(time) => waits.push((plugin.name(), time)),
                Permission::Reject(rejection) => {
                    self.observe_point("Permit", profile, status(&rejection), start.elapsed());
                    self.unreserve(profile, pod, &node.name);
                    return Err((plugin.name(), rejection));
                }
            }
        }
        let outcome = if waits.is_empty() { SUCCESS } else { WAIT };
        self.observe_point("Permit", profile, outcome, start.elapsed());
        Ok(waits)
    }

    /// Undoes `reserve`, last one first.
    pub(super) fn unreserve(&self, profile: usize, pod: &PodInfo, node: &str) {
        self.undo(profile, &self.core.profiles[profile].reserve, pod, node);
    }

    fn undo(&self, profile: usize, places: &[usize], pod: &PodInfo, node: &str) {
        let start = Instant::now();
        let plugins = &self.core.profiles[profile];
        for place in places.iter().rev() {
            if let Some(reserve) = plugins.plugins[*place].reserve() {
                reserve.unreserve(pod, node);
            }
        }
        self.observe_point("Unreserve", profile, SUCCESS, start.elapsed());
    }

    // ---- pods that wait for permission ----

    /// Acts on what was decided about them, by plugins or by time.
    pub(super) fn process_permits(&mut self) {
        let now = self.clock.now();
        for decided in self.permits.take(now) {
            let waited = Duration::try_from(now.duration_since(decided.since)).unwrap_or_default();
            self.settle(decided, waited);
        }
    }

    fn settle(&mut self, decided: Decided, waited: Duration) {
        let Decided { uid, decision, .. } = decided;
        let outcome = match &decision {
            Decision::Allowed => SUCCESS,
            Decision::Rejected { .. } => "Unschedulable",
            Decision::Preempted => ERROR,
        };
        self.metrics.permit_wait(outcome, waited);
        match decision {
            Decision::Allowed => {
                if let Some(attempt) = self.binding.get_mut(&uid) {
                    attempt.step = Instant::now();
                }
                self.start_binding(&uid);
            }
            Decision::Preempted => self.give_up(&uid, "waiting on permit for pod: preempted".to_string()),
            Decision::Rejected { by, message } => {
                let Some(attempt) = self.take_back(&uid) else { return };
                let pod = attempt.queued.pod.clone();
                let rejection = Rejection::because(message, false);
                self.rejected(
                    attempt.profile,
                    attempt.queued,
                    attempt.id,
                    by,
                    rejection,
                    attempt.started,
                );
                self.announce_release(&pod, &attempt.node);
            }
        }
    }

    /// The pod is gone, or somebody else gave it a node: it waits no longer, neither for permission nor for its volumes. A
    /// request that is under way comes to its own end.
    pub(super) fn withdraw(&mut self, uid: &str) {
        let prepares = |attempt: &Attempt| attempt.pre_bind.is_some();
        if self.permits.remove(uid) || self.binding.get(uid).is_some_and(prepares) {
            self.take_back(uid);
            self.queue.done(uid);
        }
    }
}

fn told(result: &Result<(), Refused>) -> &'static str {
    result
        .as_ref()
        .map_or_else(|(_, rejection)| status(rejection), |()| SUCCESS)
}

/// A node that is gone by the time its number is looked at does no harm: only reasons are shown.
pub(super) fn one_node(node: NodeId, by: &'static str, rejection: Rejection) -> crate::fit_error::FitError {
    crate::fit_error::FitError {
        all_nodes: 1,
        diagnosis: crate::fit_error::Diagnosis {
            nodes: vec![(node, by, rejection)],
            rejected_by: [by].into(),
            ..Default::default()
        },
        post_filter: String::new(),
    }
}
