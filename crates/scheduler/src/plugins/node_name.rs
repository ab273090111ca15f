//! NodeName: a pod that names its node goes nowhere else.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::event::{Actions, EventKind, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

const OTHER_NODE: Rejection = Rejection::unresolvable("node(s) didn't match the requested node name");

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::Node, Actions::ADD)]
    }
}

impl Filter for NodeName {
    type State = Arc<str>;
    // The name is not part of the class.
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<Arc<str>> {
        pod.node_name.clone().map_or(PreFilter::Skip, PreFilter::Run)
    }

    fn filter(&self, name: &Arc<str>, _: &PodInfo, node: &NodeInfo) -> Verdict {
        if node.name == *name { Ok(()) } else { Err(OTHER_NODE) }
    }
}
