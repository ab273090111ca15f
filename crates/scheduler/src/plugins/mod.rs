//! The plugins, one file each.

pub mod image_locality;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod scheduling_gates;
pub mod taint_toleration;

use crate::cluster::pod::PodInfo;
use crate::framework::event::{Event, Hint};

/// Queue if the event is about the waiting pod itself.
fn own_pod(pod: &PodInfo, event: &Event) -> Hint {
    Hint::queue_if(event.pods().1.is_some_and(|p| p.uid == pod.uid))
}
