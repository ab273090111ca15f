//! What may make room for a pod that others kept away, or that found no company.
//!
//! More generous than Kubernetes in three ways, as a missed event costs the pod minutes: namespace selectors are asked
//! with the namespace's labels, one matching term of anti-affinity is enough, and a pod without terms, which others must
//! have kept away, is tried on every new or changed node.

use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{Namespaces, PodSelector};
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::model::PodAffinityTerm;

pub(super) fn events() -> Vec<EventKind> {
    let pods = Actions::ADD.or(Actions::UPDATE_LABEL).or(Actions::DELETE);
    vec![
        EventKind::new(Resource::AssignedPod, pods),
        EventKind::new(Resource::OwnPod, Actions::UPDATE_LABEL),
        EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL)),
    ]
}

pub(super) fn of(pod: &PodInfo, event: &Event, namespaces: &Namespaces) -> Hint {
    let useful = match event.resource {
        Resource::AssignedPod => pod_helps(pod, event, namespaces),
        Resource::Node => node_helps(pod, event),
        _ => true,
    };
    if useful { Hint::Queue } else { Hint::Skip }
}

fn matches(term: &PodAffinityTerm, of: &PodInfo, other: &PodInfo, namespaces: &Namespaces) -> bool {
    PodSelector::asked(term, of.namespace()).matches(&other.labels.set, namespaces)
}

fn pod_helps(pod: &PodInfo, event: &Event, namespaces: &Namespaces) -> bool {
    let with = &pod.class.spec.affinity.pod_affinity.required;
    let without = &pod.class.spec.affinity.pod_anti_affinity.required;
    let near = |other: &PodInfo| !with.is_empty() && with.iter().all(|t| matches(t, pod, other, namespaces));
    let hates = |other: &PodInfo| without.iter().any(|t| matches(t, pod, other, namespaces));
    let hated_by = |other: &PodInfo| {
        let mut terms = other.class.spec.affinity.pod_anti_affinity.required.iter();
        terms.any(|t| matches(t, other, pod, namespaces))
    };
    match event.pods() {
        (Some(old), Some(new)) => {
            new.uid == pod.uid || !near(old) && near(new) || hates(old) && !hates_the_same(pod, old, new, namespaces)
        }
        (None, Some(new)) => near(new),
        (Some(old), None) => hates(old) || hated_by(old),
        (None, None) => true,
    }
}

/// Whether the pod was changed, but every term of anti-affinity that it met it still meets.
fn hates_the_same(pod: &PodInfo, old: &PodInfo, new: &PodInfo, namespaces: &Namespaces) -> bool {
    let mut terms = pod.class.spec.affinity.pod_anti_affinity.required.iter();
    terms.all(|t| !matches(t, pod, old, namespaces) || matches(t, pod, new, namespaces))
}

fn node_helps(pod: &PodInfo, event: &Event) -> bool {
    let with = &pod.class.spec.affinity.pod_affinity.required;
    let without = &pod.class.spec.affinity.pod_anti_affinity.required;
    let (old, Some(new)) = event.nodes() else { return false };
    if with.is_empty() && without.is_empty() {
        return true;
    }
    let Some(old) = old else {
        // A node without the key takes pods with anti-affinity, and one with it may be in an empty domain.
        return !without.is_empty() || with.iter().any(|t| new.labels.contains_key(&t.topology_key));
    };
    let values = |t: &PodAffinityTerm| (old.labels.get(&t.topology_key), new.labels.get(&t.topology_key));
    let came = with.iter().map(values).any(|(old, new)| new.is_some() && old != new);
    let left = without.iter().map(values).any(|(old, new)| old.is_some() && old != new);
    came || left
}
