//! NodeAffinity: node selectors, required and preferred node affinity, and affinity that the profile adds to every pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use orlop_api::objects::selector::NAME_FIELD;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, AnyScore, Filter, Normalize, Plugin, Scope, Score};
use crate::framework::verdict::{PreFilter, PreScore, Rejection, Verdict};
use crate::model::{
    NodeAffinity as Affinity, NodeSelector, NodeSelectorTerm, Op, PodSpec, PreferredNodeTerm, Requirement,
};

const NO_MATCH: Rejection = Rejection::unresolvable("node(s) didn't match Pod's node affinity/selector");
const NOT_ENFORCED: Rejection = Rejection::unresolvable("node(s) didn't match scheduler-enforced node affinity");
const CONFLICT: Rejection = Rejection::unresolvable("pod affinity terms conflict");

#[derive(Default)]
pub struct NodeAffinity {
    added: Affinity,
}

impl NodeAffinity {
    pub fn new(added: Affinity) -> NodeAffinity {
        NodeAffinity { added }
    }

    fn enforced(&self, node: &NodeInfo) -> bool {
        self.added.requirements().all(|s| s.matches(&node.name, &node.labels))
    }
}

/// Whether the pod's own selector and required affinity match the node.
pub fn is_wanted(spec: &PodSpec, node: &NodeInfo) -> bool {
    let selected = spec.node_selector.iter().all(|(k, v)| node.labels.get(k) == Some(v));
    selected && required(spec).all(|s| s.matches(&node.name, &node.labels))
}

fn required(spec: &PodSpec) -> impl Iterator<Item = &NodeSelector> {
    spec.affinity.node_affinity.iter().flat_map(Affinity::requirements)
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL))]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        let (before, Some(now)) = event.nodes() else {
            return Hint::Queue;
        };
        let wanted = |node: &NodeInfo| is_wanted(&pod.class.spec, node);
        Hint::queue_if(self.enforced(now) && wanted(now) && before.is_none_or(|b| !wanted(b)))
    }
}

impl Filter for NodeAffinity {
    type State = ();
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<()> {
        let spec = &pod.class.spec;
        let is_free = required(spec).next().is_none() && self.added.requirements().next().is_none();
        if is_free && spec.node_selector.is_empty() {
            return PreFilter::Skip;
        }
        let mut all: Option<BTreeSet<Arc<str>>> = None;
        for selector in required(spec) {
            let Some(names) = named_nodes(&selector.node_selector_terms) else {
                return PreFilter::Reject(CONFLICT);
            };
            all = match (all, names) {
                (Some(these), Some(those)) => Some(these.intersection(&those).cloned().collect()),
                (these, those) => these.or(those),
            };
        }
        match all {
            None => PreFilter::Run(()),
            Some(names) if names.is_empty() => PreFilter::Reject(CONFLICT),
            Some(names) => PreFilter::Only((), names),
        }
    }

    fn filter(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Verdict {
        if !self.enforced(node) {
            Err(NOT_ENFORCED)
        } else if !is_wanted(&pod.class.spec, node) {
            Err(NO_MATCH)
        } else {
            Ok(())
        }
    }

    fn details(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let spec = &pod.class.spec;
        let missing = (spec.node_selector.iter()).filter(|(key, value)| node.labels.get(*key) != Some(value));
        let mut all: Vec<Detail> = missing
            .map(|(key, wanted)| Detail::NodeSelector {
                key: key.clone(),
                wanted: wanted.clone(),
                found: node.labels.get(key).cloned(),
            })
            .collect();
        for selector in required(spec).chain(self.added.requirements()) {
            if !selector.matches(&node.name, &node.labels) {
                let terms = selector.node_selector_terms.iter().enumerate();
                all.extend(terms.flat_map(|(at, term)| unmet(at, term, node)));
            }
        }
        all
    }
}

/// The requirements of a term that do not hold on the node.
fn unmet(at: usize, term: &NodeSelectorTerm, node: &NodeInfo) -> Vec<Detail> {
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let fields = (term.match_fields.iter()).map(|r| (r, (r.key == NAME_FIELD).then_some(&*node.name)));
    let labels = term.match_expressions.iter().map(|r| (r, label(&r.key)));
    let unmet = labels.chain(fields).filter(|(r, value)| !r.matches(*value));
    unmet
        .map(|(requirement, found)| Detail::NodeAffinity {
            term: at,
            requirement: requirement_text(requirement),
            found: found.map(str::to_string),
        })
        .collect()
}

/// As kubectl writes it: `disk in (ssd, nvme)`.
pub fn requirement_text(requirement: &Requirement) -> String {
    let key = &requirement.key;
    match &requirement.op {
        Op::In(values) => format!("{key} in ({})", values.join(", ")),
        Op::NotIn(values) => format!("{key} notin ({})", values.join(", ")),
        Op::Exists => format!("{key} exists"),
        Op::DoesNotExist => format!("{key} does not exist"),
        Op::Gt(bound) => format!("{key} > {bound}"),
        Op::Lt(bound) => format!("{key} < {bound}"),
        Op::Unknown => format!("{key} (unknown operator: matches nothing)"),
    }
}

/// The nodes that terms name, if every one of them names some: `Some(None)` means any node, None that names contradict
/// one another in every term.
fn named_nodes(terms: &[NodeSelectorTerm]) -> Option<Option<BTreeSet<Arc<str>>>> {
    let mut all = BTreeSet::new();
    for term in terms {
        let mut names: Option<BTreeSet<Arc<str>>> = None;
        for field in term.match_fields.iter().filter(|field| field.key == NAME_FIELD) {
            let Op::In(values) = &field.op else { continue };
            let these: BTreeSet<Arc<str>> = values.iter().map(|v| v.as_str().into()).collect();
            names = Some(match names {
                None => these,
                Some(those) => those.intersection(&these).cloned().collect(),
            });
        }
        let Some(names) = names else { return Some(None) };
        all.extend(names);
    }
    match (terms.is_empty(), all.is_empty()) {
        (true, _) => Some(None),
        (false, true) => None,
        (false, false) => Some(Some(all)),
    }
}

impl Score for NodeAffinity {
    type State = Vec<PreferredNodeTerm>;
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::Share;

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<Vec<PreferredNodeTerm>> {
        let own = pod
            .class
            .spec
            .affinity
            .node_affinity
            .as_ref()
            .map_or(&[][..], |a| &a.preferred);
        if own.is_empty() && self.added.preferred.is_empty() {
            return PreScore::Skip;
        }
        PreScore::Run(self.added.preferred.iter().chain(own).cloned().collect())
    }

    fn score(&self, terms: &Vec<PreferredNodeTerm>, _: &PodInfo, node: &NodeInfo) -> i64 {
        (terms.iter())
            .filter(|t| t.preference.matches(&node.name, &node.labels))
            .map(|t| i64::from(t.weight))
            .sum()
    }
}
