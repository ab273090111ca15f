//! What may make room for a pod that could not be spread.

use super::constraint::Constraint;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};

pub(super) fn events() -> Vec<EventKind> {
    let pods = Actions::ADD.or(Actions::UPDATE_LABEL).or(Actions::DELETE);
    let nodes = Actions::ADD
        .or(Actions::DELETE)
        .or(Actions::UPDATE_LABEL)
        .or(Actions::UPDATE_TAINT);
    vec![
        EventKind::new(Resource::AssignedPod, pods),
        EventKind::new(Resource::OwnPod, Actions::UPDATE_LABEL.or(Actions::UPDATE_TOLERATION)),
        EventKind::new(Resource::Node, nodes),
    ]
}

pub(super) fn of(constraints: &[Constraint], pod: &PodInfo, event: &Event) -> Hint {
    let useful = match event.resource {
        Resource::AssignedPod | Resource::OwnPod => pod_helps(constraints, pod, event),
        Resource::Node => node_helps(constraints, event),
        _ => true,
    };
    if useful { Hint::Queue } else { Hint::Skip }
}

fn pod_helps(constraints: &[Constraint], pod: &PodInfo, event: &Event) -> bool {
    let (old, new) = event.pods();
    // A pod that is on no node counts for nothing; neither do those of other namespaces.
    let involved = |other: &PodInfo| {
        other.uid == pod.uid || event.resource == Resource::AssignedPod && other.namespace() == pod.namespace()
    };
    if [old, new].into_iter().flatten().any(|p| !involved(p)) {
        return false;
    }
    match (old, new) {
        (Some(old), Some(new)) => {
            let tolerates_more = new.uid == pod.uid
                && old.class.spec.tolerations != new.class.spec.tolerations
                && constraints.iter().any(|c| c.honors_taints);
            let (before, after) = (old.label_set(), new.label_set());
            tolerates_more || constraints.iter().any(|c| c.matches(before) != c.matches(after))
        }
        (Some(one), None) | (None, Some(one)) => constraints.iter().any(|c| c.matches(one.label_set())),
        (None, None) => true,
    }
}

fn node_helps(constraints: &[Constraint], event: &Event) -> bool {
    let has_keys = |node: &NodeInfo| constraints.iter().all(|c| node.labels.contains_key(&c.key));
    match event.nodes() {
        (Some(old), Some(new)) => {
            let moved = constraints
                .iter()
                .any(|c| old.labels.get(&c.key) != new.labels.get(&c.key));
            has_keys(old) != has_keys(new) || has_keys(new) && (moved || old.taints != new.taints)
        }
        (Some(one), None) | (None, Some(one)) => has_keys(one),
        (None, None) => true,
    }
}
