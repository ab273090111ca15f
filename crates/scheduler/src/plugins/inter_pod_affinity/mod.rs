//! InterPodAffinity: pods that want to be near others, or away from them.
//!
//! Upstream: pkg/scheduler/framework/plugins/interpodaffinity (v1.36).

mod filter;
mod hint;
mod score;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{CounterId, Matcher, NodeScope, PlanKey, PodSelector, Topology};
use crate::framework::event::{Event, EventKind, Hint};
use crate::framework::points::{AnyFilter, AnyScore, Plugin};
use crate::model::PodAffinityTerm;

pub const NAME: &str = "InterPodAffinity";

pub(crate) const AFFINITY: &str = "node(s) didn't match pod affinity rules";
pub(crate) const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
pub(crate) const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

pub struct InterPodAffinity {
    /// For pods that the required affinity of pods that are there matches.
    hard_weight: i64,
    /// Pods without preferences of their own are not scored.
    ignore_preferred_terms_of_existing_pods: bool,
}

impl InterPodAffinity {
    pub fn new(hard_weight: i64, ignore_preferred_terms_of_existing_pods: bool) -> InterPodAffinity {
        InterPodAffinity {
            hard_weight,
            ignore_preferred_terms_of_existing_pods,
        }
    }
}

/// What there is to count for a pod's own terms.
#[derive(Debug)]
struct Plan {
    /// Pods that match all terms of required affinity, by the key of each term.
    affinity: Vec<CounterId>,
    near: Matcher,
    /// The pod itself matches them.
    own: bool,
    /// Required anti-affinity, term by term.
    anti_affinity: Vec<(Matcher, CounterId)>,
    /// Preferences, with weights; negative for anti-affinity.
    preferred: Vec<(CounterId, i64)>,
}

impl Plan {
    /// The plan for pods like this one.
    fn of(pod: &PodInfo, topology: &mut Topology) -> Arc<Plan> {
        let key = PlanKey {
            plugin: 0x4950,
            class: pod.class.id,
            labels: pod.labels.id,
            extra: 0,
        };
        topology.planned(key, |topology| Plan::new(pod, topology))
    }

    fn new(pod: &PodInfo, topology: &mut Topology) -> Plan {
        let affinity = &pod.class.spec.affinity;
        let selector = |term: &PodAffinityTerm| PodSelector::asked(term, pod.namespace());
        let one = |term: &PodAffinityTerm| Matcher {
            all: vec![selector(term)],
            terminating: true,
        };
        let near = Matcher {
            all: affinity.pod_affinity.required.iter().map(selector).collect(),
            terminating: true,
        };
        let mut count = |term: &PodAffinityTerm, matcher: &Matcher| {
            topology.counter(Some(&term.topology_key), matcher.clone(), NodeScope::default())
        };
        let required = affinity.pod_affinity.required.iter().map(|t| count(t, &near)).collect();
        let anti_affinity = affinity
            .pod_anti_affinity
            .required
            .iter()
            .map(|t| (one(t), count(t, &one(t))));
        let anti_affinity = anti_affinity.collect();
        let likes = affinity.pod_affinity.preferred.iter().map(|p| (p, 1));
        let dislikes = affinity.pod_anti_affinity.preferred.iter().map(|p| (p, -1));
        let preferred = likes.chain(dislikes).map(|(p, sign)| {
            let term = &p.pod_affinity_term;
            (count(term, &one(term)), sign * i64::from(p.weight))
        });
        let preferred = preferred.collect();
        Plan {
            affinity: required,
            own: near.matches(&pod.labels.set, topology.namespaces()),
            near,
            anti_affinity,
            preferred,
        }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        hint::events()
    }

    fn hint(&self, pod: &PodInfo, event: &Event, cluster: &Cluster) -> Hint {
        hint::of(pod, event, &cluster.namespaces)
    }
}
