//! The plugins, one file each.

pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use crate::cluster::pod::PodInfo;
use crate::framework::event::{Event, Hint};
use crate::framework::points::Plugin;

/// Queue if the event is about the waiting pod itself.
fn own_pod(pod: &PodInfo, event: &Event) -> Hint {
    Hint::queue_if(event.pods().1.is_some_and(|p| p.uid == pod.uid))
}

/// The default plugins with their weights, in order.
pub fn default_set() -> Vec<(Box<dyn Plugin>, i64)> {
    vec![
        (Box::new(scheduling_gates::SchedulingGates), 0),
        (Box::new(node_unschedulable::NodeUnschedulable::default()), 0),
        (Box::new(node_name::NodeName), 0),
        (Box::new(taint_toleration::TaintToleration), 3),
        (Box::new(node_affinity::NodeAffinity::default()), 2),
        (Box::new(node_ports::NodePorts), 0),
        (Box::new(node_resources_fit::NodeResourcesFit::default()), 1),
        (
            Box::new(node_resources_balanced_allocation::NodeResourcesBalancedAllocation::default()),
            1,
        ),
        (Box::new(image_locality::ImageLocality), 1),
    ]
}
