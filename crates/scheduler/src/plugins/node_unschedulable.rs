//! NodeUnschedulable: cordoned nodes take only pods that tolerate it.

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::Taint;

use super::taint_toleration::tolerates;

const UNSCHEDULABLE: Rejection = Rejection::unresolvable("node(s) were unschedulable");

pub struct NodeUnschedulable {
    taint: Taint,
}

impl Default for NodeUnschedulable {
    fn default() -> NodeUnschedulable {
        NodeUnschedulable {
            taint: Taint {
                key: "node.kubernetes.io/unschedulable".into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            },
        }
    }
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_TAINT)),
            EventKind::new(Resource::OwnPod, Actions::UPDATE_TOLERATION),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        let now_tolerates = || tolerates(&pod.class.spec.tolerations, &self.taint);
        match event.nodes() {
            (before, Some(now)) => Hint::queue_if(!now.unschedulable && before.is_none_or(|b| b.unschedulable)),
            _ if super::own_pod(pod, event) == Hint::Queue => Hint::queue_if(
                (event.pods().1).map_or_else(now_tolerates, |p| tolerates(&p.class.spec.tolerations, &self.taint)),
            ),
            _ => Hint::Skip,
        }
    }
}

impl Filter for NodeUnschedulable {
    /// Whether the pod tolerates it.
    type State = bool;
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<bool> {
        PreFilter::Run(tolerates(&pod.class.spec.tolerations, &self.taint))
    }

    fn filter(&self, tolerated: &bool, _: &PodInfo, node: &NodeInfo) -> Verdict {
        if node.unschedulable && !tolerated {
            Err(UNSCHEDULABLE)
        } else {
            Ok(())
        }
    }
}
