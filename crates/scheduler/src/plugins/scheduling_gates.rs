//! SchedulingGates: a pod with gates is not tried until they are all taken off.

use crate::cluster::Cluster;
use crate::cluster::pod::PodInfo;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{Plugin, PreEnqueue};
use crate::framework::verdict::{Rejection, Verdict};

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::OwnPod, Actions::GATES_ELIMINATED)]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        super::own_pod(pod, event)
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict {
        let gates: Vec<&str> = pod
            .class
            .spec
            .scheduling_gates
            .iter()
            .map(|g| g.name.as_str())
            .collect();
        if gates.is_empty() {
            return Ok(());
        }
        let waiting = format!("waiting for scheduling gates: [{}]", gates.join(" "));
        Err(Rejection::because(waiting, true))
    }
}
