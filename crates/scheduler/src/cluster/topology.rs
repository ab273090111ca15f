//! Which domain of a topology key a node is in, and how many pods of which kind each domain holds.

use std::sync::Arc;

use super::node::NodeInfo;
use super::pod::PodInfo;
use crate::model::Labels;

#[derive(Default, Debug)]
pub struct Topology {}

impl Topology {
    pub fn node_added(&mut self, _node: &NodeInfo) {}

    pub fn node_changed(&mut self, _before: &Arc<Labels>, _node: &NodeInfo) {}

    pub fn node_removed(&mut self, _node: &NodeInfo) {}

    pub fn pod_added(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}

    pub fn pod_removed(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}

    pub fn namespaces_changed<'a>(&mut self, _pods: impl Iterator<Item = (&'a PodInfo, &'a NodeInfo)>) {}
}
