//! DefaultPreemption: which pods of lower priority must go, and from which node, so that a pod fits.
//!
//! Pure: it plans; the shell evicts. Nodes are tried one by one with all lower-priority pods taken off; as many as
//! possible are then put back, those first whose loss would break a disruption budget.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_base::Random;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::columns::Columns;
use crate::cycle::{Core, Prepared, WhatIf, prepare};
use crate::fit_error::{Diagnosis, FitError};
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::Plugin;
use crate::framework::profile::Profile;
use crate::framework::verdict::Rejection;

const NO_VICTIMS: Rejection = Rejection::unresolvable("No preemption victims found for incoming pod");
const NOT_HELPFUL: Rejection = Rejection::unresolvable("Preemption is not helpful for scheduling");

/// The arguments of the plugin.
#[derive(Clone, Copy, Debug)]
pub struct DefaultPreemption {
    pub min_candidate_nodes_percentage: usize,
    pub min_candidate_nodes_absolute: usize,
}

impl Default for DefaultPreemption {
    fn default() -> DefaultPreemption {
        DefaultPreemption {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }

    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::AssignedPod, Actions::DELETE)]
    }

    /// Whoever rejected the pod decides when to try it again.
    fn hint(&self, _: &PodInfo, _: &Event, _: &Cluster) -> Hint {
        Hint::Skip
    }
}

/// A node that the pod fits on once these are gone, most important first.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: NodeId,
    pub name: Arc<str>,
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them a disruption budget would rather keep.
    pub violations: usize,
}

#[derive(Debug)]
pub enum Preemption {
    /// These nodes could be made to fit; `best` picks one.
    Candidates(Vec<Candidate>),
    /// Nothing to be gained; the message for the user. A nomination from before is void if `clear` says so.
    Hopeless { message: String, clear: bool },
}

impl Core {
    /// What evicting pods could do for a pod that fits nowhere.
    pub fn preempt(
        &mut self,
        profile: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        diagnosis: &Diagnosis,
        args: &DefaultPreemption,
    ) -> Preemption {
        if let Some(why) = not_eligible(cluster, pod, diagnosis) {
            return Preemption::Hopeless {
                message: format!("preemption: {why}"),
                clear: false,
            };
        }
        self.look(profile, cluster, pod, |profile, columns, random| {
            // A plugin may have ruled every node out and yet think that eviction helps: its own state is there then.
            match prepare(profile, columns, cluster, pod) {
                Ok(prepared) => {
                    let run = DryRun {
                        profile,
                        columns,
                        prepared: &prepared,
                        cluster,
                        pod,
                    };
                    run.candidates(diagnosis, args, random)
                }
                Err(_) => hopeless(cluster, Diagnosis::default()),
            }
        })
    }
}

fn not_eligible(cluster: &Cluster, pod: &PodInfo, diagnosis: &Diagnosis) -> Option<&'static str> {
    if pod.class.spec.preemption_policy.as_deref() == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let promised = cluster.nominated.node_of(&pod.uid).or(pod.nominated_node.as_ref())?;
    let node = cluster.node_named(promised)?;
    let status = diagnosis.nodes.iter().find(|(id, _, _)| *id == node.id);
    let status = status.map(|(_, _, r)| r).or(diagnosis.others.as_ref());
    let ruled_out = status.is_some_and(|r| r.unresolvable);
    let leaving = |p: &Arc<PodInfo>| p.priority() < pod.priority() && p.is_terminating() && p.preempted;
    (!ruled_out && node.pods.iter().any(leaving))
        .then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Higher priority first, then whoever started earlier.
pub fn more_important(a: &PodInfo, b: &PodInfo) -> std::cmp::Ordering {
    let started = |p: &PodInfo| p.start_time.unwrap_or(Timestamp::MAX);
    (b.priority().cmp(&a.priority()))
        .then_with(|| started(a).cmp(&started(b)))
        .then_with(|| a.key.cmp(&b.key))
}

/// No node could be made to fit: why each that was tried could not.
fn hopeless(cluster: &Cluster, failed: Diagnosis) -> Preemption {
    let error = FitError {
        all_nodes: cluster.len(),
        diagnosis: Diagnosis {
            others: Some(NOT_HELPFUL),
            ..failed
        },
        post_filter: String::new(),
    };
    Preemption::Hopeless {
        message: format!("preemption: {}", error.message()),
        clear: true,
    }
}

struct DryRun<'a> {
    profile: &'a Profile,
    columns: &'a Columns,
    prepared: &'a Prepared,
    cluster: &'a Cluster,
    pod: &'a PodInfo,
}

impl DryRun<'_> {
    fn candidates(&self, diagnosis: &Diagnosis, args: &DefaultPreemption, random: &mut Random) -> Preemption {
        let potential = self.potential(diagnosis);
        let share = potential.len() * args.min_candidate_nodes_percentage / 100;
        let enough = share.max(args.min_candidate_nodes_absolute).min(potential.len());
        let start = if potential.is_empty() {
            0
        } else {
            random.below(potential.len() as u64) as usize
        };
        let mut found: Vec<Candidate> = vec![];
        let mut harmless = 0;
        let mut failed = Diagnosis::default();
        for at in 0..potential.len() {
            let node = potential[(start + at) % potential.len()];
            match self.victims(node) {
                Ok(candidate) => {
                    harmless += usize::from(candidate.violations == 0);
                    found.push(candidate);
                }
                Err(rejection) => failed.nodes.push((node.id, "DefaultPreemption", rejection)),
            }
            if harmless > 0 && found.len() >= enough {
                break;
            }
        }
        if !found.is_empty() {
            return Preemption::Candidates(found);
        }
        hopeless(self.cluster, failed)
    }

    /// Nodes that were rejected for something that fewer pods could mend.
    fn potential(&self, diagnosis: &Diagnosis) -> Vec<&NodeInfo> {
        let named = diagnosis.nodes.iter().filter(|(_, _, r)| !r.unresolvable);
        let mut nodes: Vec<&NodeInfo> = named.filter_map(|(id, _, _)| self.cluster.node(*id)).collect();
        if diagnosis.others.as_ref().is_some_and(|r| !r.unresolvable) {
            let known: HashSet<NodeId> = diagnosis.nodes.iter().map(|(id, _, _)| *id).collect();
            nodes.extend(self.cluster.nodes().filter(|n| !known.contains(&n.id)));
        }
        nodes
    }

    fn victims(&self, node: &NodeInfo) -> Result<Candidate, Rejection> {
        let mut lower: Vec<Arc<PodInfo>> = (node.pods.iter())
            .filter(|p| p.priority() < self.pod.priority())
            .cloned()
            .collect();
        if lower.is_empty() {
            return Err(NO_VICTIMS);
        }
        let mut what_if = WhatIf::new(self.profile, self.prepared, node);
        for pod in &lower {
            what_if.remove(self.profile, self.pod, pod);
        }
        self.fits(&mut what_if)?;
        lower.sort_by(|a, b| more_important(a, b));
        let (protected, others) = by_budget(self.cluster, lower);
        let mut victims = vec![];
        let mut reprieve = |pod: Arc<PodInfo>| {
            what_if.add(self.profile, self.pod, pod.clone());
            let stays = self.fits(&mut what_if).is_ok();
            if !stays {
                what_if.remove(self.profile, self.pod, &pod);
                victims.push(pod);
            }
            stays
        };
        let violations = protected.into_iter().filter(|p| !reprieve(p.clone())).count();
        others.into_iter().for_each(|p| {
            reprieve(p);
        });
        victims.sort_by(|a, b| more_important(a, b));
        if victims.is_empty() {
            let text = format!("expected at least one victim pod on node \"{}\"", node.name);
            return Err(Rejection::because(text, false));
        }
        Ok(Candidate {
            node: node.id,
            name: node.name.clone(),
            victims,
            violations,
        })
    }

    /// The filters, with and without the pods that were promised the node.
    fn fits(&self, what_if: &mut WhatIf) -> Result<(), Rejection> {
        let judge = |w: &WhatIf| {
            w.judge(self.profile, self.columns, self.pod)
                .map_err(|(_, rejection)| rejection)
        };
        let promised = self.cluster.nominated.on(&what_if.node.name);
        let rivals: Vec<Arc<PodInfo>> = (promised.iter())
            .filter(|p| p.priority() >= self.pod.priority() && p.uid != self.pod.uid)
            .cloned()
            .collect();
        if !rivals.is_empty() {
            for rival in &rivals {
                what_if.add(self.profile, self.pod, rival.clone());
            }
            let verdict = judge(what_if);
            for rival in &rivals {
                what_if.remove(self.profile, self.pod, rival);
            }
            verdict?;
        }
        judge(what_if)
    }
}

/// Those whose eviction some disruption budget does not allow any more, and the others; both in the order given.
fn by_budget(cluster: &Cluster, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: std::collections::HashMap<_, i64> = (cluster.budgets.iter())
        .map(|(key, b)| (key, b.status.disruptions_allowed))
        .collect();
    pods.into_iter().partition(|pod| {
        let mut violates = false;
        for (key, budget) in &cluster.budgets {
            let selects = (budget.spec.selector.as_ref()).is_some_and(|s| !s.is_empty() && s.matches(pod.label_set()));
            let counts = key.namespace == *pod.namespace()
                && !pod.label_set().is_empty()
                && selects
                && !budget.status.disrupted_pods.contains_key(&*pod.key.name);
            if counts {
                let left = left.get_mut(key).expect("every budget is listed");
                *left -= 1;
                violates |= *left < 0;
            }
        }
        violates
    })
}

/// The candidate that does least harm.
///
/// Upstream: pickOneNodeForPreemption in pkg/scheduler/framework/preemption (v1.36).
pub fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    let harm = |c: &Candidate| {
        let highest = c.victims.first().map_or(0, |v| i64::from(v.priority()));
        let sum: i64 = c.victims.iter().map(|v| i64::from(v.priority()) + (1 << 31)).sum();
        let top = c.victims.iter().filter(|v| i64::from(v.priority()) == highest);
        // One that has not started counts as starting now.
        let earliest = top.map(|v| v.start_time.unwrap_or(Timestamp::MAX)).min();
        (c.violations, highest, sum, c.victims.len(), std::cmp::Reverse(earliest))
    };
    candidates.into_iter().min_by_key(harm)
}
