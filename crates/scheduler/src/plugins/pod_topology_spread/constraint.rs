//! Constraints as they are worked with: the selector made whole, defaults filled in.

use crate::cluster::owners::narrow;
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{CounterId, Matcher, NodeScope, PodSelector, Topology};
use crate::model::{LabelSelector, Labels, NodeAffinity, TopologySpreadConstraint};

use super::HOSTNAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `DoNotSchedule`
    Require,
    /// `ScheduleAnyway`
    Prefer,
}

impl Action {
    pub(super) fn name(self) -> &'static str {
        match self {
            Action::Require => "DoNotSchedule",
            Action::Prefer => "ScheduleAnyway",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub key: String,
    pub max_skew: i32,
    pub min_domains: i32,
    /// None matches no pod.
    pub selector: Option<LabelSelector>,
    honors_affinity: bool,
    pub honors_taints: bool,
}

impl Constraint {
    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|s| s.matches(labels))
    }

    /// An empty selector matches the pod itself, but no pod that is there.
    fn counted(&self, namespace: &str) -> Matcher {
        let selector = self.selector.clone().filter(|s| !s.is_empty());
        Matcher {
            all: vec![PodSelector::in_namespace(namespace, selector)],
            terminating: false,
        }
    }

    fn scope(&self, pod: &PodInfo, keys: &[String]) -> NodeScope {
        let spec = &pod.class.spec;
        let mut scope = NodeScope {
            keys: keys.to_vec(),
            ..NodeScope::default()
        };
        if self.honors_affinity {
            scope.selector = spec.node_selector.clone();
            let affinity = spec.affinity.node_affinity.iter();
            scope.required = affinity.flat_map(NodeAffinity::requirements).cloned().collect();
        }
        if self.honors_taints {
            scope.tolerations = Some(spec.tolerations.clone());
        }
        scope
    }
}

/// The constraints of one kind. `selector` takes the place of theirs if they are defaults.
pub(super) fn of_kind(
    list: &[TopologySpreadConstraint],
    action: Action,
    labels: &Labels,
    selector: Option<&LabelSelector>,
) -> Vec<Constraint> {
    let wanted = list.iter().filter(|c| c.when_unsatisfiable == action.name());
    let honors = |policy: &Option<String>, default: bool| policy.as_deref().map_or(default, |p| p == "Honor");
    wanted
        .map(|c| Constraint {
            key: c.topology_key.clone(),
            max_skew: c.max_skew,
            min_domains: c.min_domains.unwrap_or(1),
            selector: match selector {
                Some(selector) => Some(selector.clone()),
                None => c.label_selector.clone().map(|s| alike(s, &c.match_label_keys, labels)),
            },
            honors_affinity: honors(&c.node_affinity_policy, true),
            honors_taints: honors(&c.node_taints_policy, false),
        })
        .collect()
}

/// Narrows the selector to pods that have the same values of the keys as the pod itself.
fn alike(mut selector: LabelSelector, keys: &[String], labels: &Labels) -> LabelSelector {
    let same = keys.iter().filter_map(|k| Some((k.clone(), labels.get(k)?.clone())));
    let same = LabelSelector {
        match_labels: same.collect(),
        match_expressions: vec![],
    };
    narrow(&mut selector, &same);
    selector
}

/// What there is to count for a pod.
#[derive(Debug)]
pub(super) struct Plan {
    pub constraints: Vec<Planned>,
    /// Nodes that lack one of the keys are out of it.
    pub all_keys: bool,
}

#[derive(Debug)]
pub(super) struct Planned {
    pub constraint: Constraint,
    pub counter: CounterId,
    /// The pod itself matches.
    pub own: bool,
    /// A preference for other nodes: pods are counted per node, whatever its labels.
    pub by_node: bool,
}

impl Plan {
    pub(super) fn new(
        constraints: Vec<Constraint>,
        pod: &PodInfo,
        topology: &mut Topology,
        action: Action,
        all_keys: bool,
    ) -> Plan {
        let mut keys: Vec<String> = vec![];
        if all_keys {
            keys.extend(constraints.iter().map(|c| c.key.clone()));
            keys.sort();
            keys.dedup();
        }
        let planned = constraints.into_iter().map(|constraint| {
            let by_node = action == Action::Prefer && constraint.key == HOSTNAME;
            let counted = constraint.counted(pod.namespace());
            let counter = if by_node {
                topology.counter(None, counted, NodeScope::default())
            } else {
                topology.counter(Some(&constraint.key), counted, constraint.scope(pod, &keys))
            };
            Planned {
                counter,
                own: constraint.matches(pod.label_set()),
                by_node,
                constraint,
            }
        });
        Plan {
            constraints: planned.collect(),
            all_keys,
        }
    }
}
