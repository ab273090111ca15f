//! NodePorts: two pods cannot have the same port of a node.

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

const TAKEN: Rejection = Rejection::unschedulable("node(s) didn't have free ports for the requested pod ports");

pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::AssignedPod, Actions::DELETE),
            EventKind::new(Resource::Node, Actions::ADD),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        let (Some(gone), None) = event.pods() else {
            return Hint::Queue;
        };
        let held_a_node = gone.node_name.is_some() || gone.nominated_node.is_some();
        let frees = gone
            .class
            .ports
            .iter()
            .any(|p| pod.class.ports.iter().any(|q| p.conflicts(q)));
        Hint::queue_if(held_a_node && frees)
    }
}

impl Filter for NodePorts {
    type State = ();
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<()> {
        if pod.class.ports.is_empty() {
            PreFilter::Skip
        } else {
            PreFilter::Run(())
        }
    }

    fn filter(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let conflict = pod
            .class
            .ports
            .iter()
            .any(|p| node.ports.iter().any(|q| p.conflicts(q)));
        if conflict { Err(TAKEN) } else { Ok(()) }
    }

    fn details(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let taken = (pod.class.ports.iter()).filter(|p| node.ports.iter().any(|q| p.conflicts(q)));
        taken
            .map(|port| {
                let holds = |other: &&std::sync::Arc<PodInfo>| other.class.ports.iter().any(|q| port.conflicts(q));
                Detail::HostPort {
                    protocol: port.protocol.clone(),
                    port: port.port,
                    pod: node.pods.iter().filter(holds).map(|other| other.key.to_string()).min(),
                }
            })
            .collect()
    }
}
