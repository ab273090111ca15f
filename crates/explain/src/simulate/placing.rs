//! Pods without a node, and the core that places them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_scheduler::cluster::node::NodeId;
use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::cycle::ScheduleFailure;
use orlop_scheduler::fit_error::FitError;
use orlop_scheduler::preemption::{Preemption, best};

use super::Simulation;
use super::report::{Move, PendingRow};

/// Pods that preempt one another for ever would be a mistake of the core; this ends it.
const ATTEMPTS: usize = 1_000_000;

#[derive(Clone)]
pub(super) struct WaitingPod {
    pub pod: Arc<PodInfo>,
    pub from: Option<String>,
    pub because: String,
    order: usize,
}

/// A placement.
pub(super) struct Binding {
    profile: usize,
    pod: Arc<PodInfo>,
    node: Arc<str>,
}

impl WaitingPod {
    fn rank(&self) -> (Reverse<i32>, usize) {
        (Reverse(self.pod.priority()), self.order)
    }
}

impl Simulation<'_> {
    pub(super) fn wait(&mut self, pod: Arc<PodInfo>, from: Option<String>, because: &str) {
        self.queued += 1;
        let order = self.queued;
        self.waiting.push(WaitingPod {
            pod,
            from,
            because: because.to_string(),
            order,
        });
    }

    /// A pod loses its node. Its controller makes it anew; nobody does so for a pod without one.
    pub(super) fn displace(&mut self, uid: &str, because: &str) {
        let Some((pod, node)) = self.world.cluster.placed(uid) else {
            return;
        };
        let (pod, node) = (pod.clone(), node.to_string());
        self.count_eviction(&pod);
        self.world.cluster.remove_pod(uid);
        self.changes += 1;
        if pod.is_terminating() {
            return;
        }
        let Some(owner) = &pod.controller else {
            self.lost.push(pod.key.to_string());
            return;
        };
        if matches!(owner.kind.as_str(), "DaemonSet" | "Node") {
            return;
        }
        let number = self.next_name();
        let name = match owner.kind.as_str() {
            "StatefulSet" => pod.key.name.to_string(),
            _ => format!("{}-new-{number}", owner.name),
        };
        let again = pod.recreated(&name, &format!("simulated-{number}"));
        let because = format!("{because} ({})", pod.key.name);
        self.wait(Arc::new(again), Some(node), &because);
    }

    fn count_eviction(&mut self, pod: &PodInfo) {
        for (key, budget) in &self.world.cluster.budgets {
            let selects = budget
                .spec
                .selector
                .as_ref()
                .is_some_and(|s| s.matches(pod.label_set()));
            if key.namespace == *pod.namespace() && selects {
                *self.evictions.entry(key.clone()).or_default() += 1;
            }
        }
    }

    /// Places what waits, the highest priority first; what fits nowhere waits on.
    pub(super) fn place_all(&mut self) {
        self.pending.clear();
        let mut left = vec![];
        let mut queue: BTreeMap<(Reverse<i32>, usize), WaitingPod> = BTreeMap::new();
        for _ in 0..ATTEMPTS {
            // Those that were evicted meanwhile, too.
            queue.extend(self.waiting.drain(..).map(|waiting| (waiting.rank(), waiting)));
            let Some((_, waiting)) = queue.pop_first() else { break };
            match self.place(&waiting.pod) {
                Ok(node) => self.moves.push(Move {
                    pod: waiting.pod.key.to_string(),
                    from: waiting.from,
                    to: node,
                    because: waiting.because,
                }),
                Err(reason) => {
                    self.pending.push(PendingRow {
                        pod: waiting.pod.key.to_string(),
                        from: waiting.from.clone(),
                        because: waiting.because.clone(),
                        reason,
                        was_pending: false,
                    });
                    left.push(waiting);
                }
            }
        }
        self.waiting.extend(queue.into_values().chain(left));
    }

    /// What was found for a pod of the same class holds as long as nothing changes.
    fn place(&mut self, pod: &Arc<PodInfo>) -> Result<String, String> {
        let key = (pod.class.id, pod.labels.id);
        if let Some((at, reason)) = self.refused.get(&key)
            && *at == self.changes
            && pod.volumes.is_empty()
        {
            return Err(reason.clone());
        }
        let placed = self.try_to_place(pod);
        if let Err(reason) = &placed {
            self.refused.insert(key, (self.changes, reason.clone()));
        }
        placed
    }

    /// The node that the pod now is on, or why there is none.
    fn try_to_place(&mut self, pod: &Arc<PodInfo>) -> Result<String, String> {
        let scheduler = &pod.class.spec.scheduler_name;
        let Some(profile) = self.world.profile_of(scheduler) else {
            return Err(format!(
                "is for scheduler {scheduler:?}, of which this configuration has no profile"
            ));
        };
        let plugins = &self.world.core.profiles[profile];
        let mut gates = plugins
            .pre_enqueue
            .iter()
            .filter_map(|place| plugins.plugins[*place].pre_enqueue());
        if let Some(rejection) = gates.find_map(|gate| gate.pre_enqueue(pod).err()) {
            return Err(rejection.message());
        }
        for url in self.world.interested_extenders(pod) {
            self.notes.insert(format!("extender {url} was not asked"));
        }
        match self.world.core.schedule(profile, &self.world.cluster, pod) {
            Ok(choice) => self.bind(profile, pod, choice.node),
            Err(ScheduleFailure::Error(error)) => Err(error.to_string()),
            Err(ScheduleFailure::Unfit(error)) => self
                .preempt(profile, pod, &error)
                .unwrap_or_else(|| Err(error.message())),
        }
    }

    fn bind(&mut self, profile: usize, pod: &Arc<PodInfo>, id: NodeId) -> Result<String, String> {
        let cluster = &mut self.world.cluster;
        let plugins = &self.world.core.profiles[profile];
        let node = cluster.node(id).expect("a decision names a node that is there");
        let name = node.name.clone();
        for (n, place) in plugins.reserve.iter().enumerate() {
            let Some(plugin) = plugins.plugins[*place].reserve() else {
                continue;
            };
            if let Err(rejection) = plugin.reserve(pod, node, cluster) {
                let reserved = plugins.reserve[..=n]
                    .iter()
                    .filter_map(|place| plugins.plugins[*place].reserve());
                reserved.for_each(|plugin| plugin.unreserve(pod, &name));
                return Err(rejection.message());
            }
        }
        cluster.nominated.remove(&pod.uid);
        cluster.add_pod(Arc::new(pod.on(&name)));
        self.changes += 1;
        self.bound.push(Binding {
            profile,
            pod: pod.clone(),
            node: name.clone(),
        });
        Ok(name.to_string())
    }

    /// Takes back all placements after the first so many.
    pub(super) fn unbind_after(&mut self, kept: usize) {
        for Binding { profile, pod, node } in self.bound.split_off(kept) {
            let plugins = &self.world.core.profiles[profile];
            let reserved = plugins
                .reserve
                .iter()
                .filter_map(|place| plugins.plugins[*place].reserve());
            reserved.for_each(|plugin| plugin.unreserve(&pod, &node));
            self.world.cluster.remove_pod(&pod.uid);
        }
        self.changes += 1;
    }

    /// Evicts what the scheduler would, and takes the place. None if that does not help.
    fn preempt(&mut self, profile: usize, pod: &Arc<PodInfo>, error: &FitError) -> Option<Result<String, String>> {
        let args = self.world.preemption[profile].filter(|_| self.may_preempt)?;
        let found = self
            .world
            .core
            .preempt(profile, &self.world.cluster, pod, &error.diagnosis, &args);
        let Preemption::Candidates(candidates) = found else {
            return None;
        };
        let best = best(candidates)?;
        for victim in &best.victims {
            self.displace(&victim.uid, &format!("preempted by {}", pod.key));
        }
        let choice = self.world.core.schedule(profile, &self.world.cluster, pod).ok()?;
        Some(self.bind(profile, pod, choice.node))
    }
}
