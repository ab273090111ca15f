//! Nodes as the scheduler keeps them: what they offer, what is on them.

use std::sync::Arc;

use super::pod::{HostPort, PodInfo};
use super::resources::{Resources, allowed_pods, saturated};
use crate::model::{Labels, Node, Taint};

/// A node's place in the tables. Places of removed nodes are given to new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node with the pods on it, assumed ones included. Cloned to ask "what if".
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub id: NodeId,
    pub name: Arc<str>,
    pub labels: Arc<Labels>,
    pub taints: Arc<[Taint]>,
    pub unschedulable: bool,
    pub allocatable: Arc<Resources>,
    pub allowed_pods: i64,
    pub declared_features: Arc<[String]>,
    /// Image (normalised name) → bytes.
    pub images: Arc<std::collections::HashMap<String, i64>>,

    pub pods: Vec<Arc<PodInfo>>,
    pub requested: Resources,
    pub nonzero_milli_cpu: i64,
    pub nonzero_memory: i64,
    pub ports: Vec<HostPort>,
}

impl NodeInfo {
    pub fn new(id: NodeId, node: &Node) -> NodeInfo {
        let mut info = NodeInfo {
            id,
            name: node.metadata.name.as_str().into(),
            labels: Arc::default(),
            taints: Arc::new([]),
            unschedulable: false,
            allocatable: Arc::default(),
            allowed_pods: 0,
            declared_features: Arc::new([]),
            images: Arc::default(),
            pods: vec![],
            requested: Resources::default(),
            nonzero_milli_cpu: 0,
            nonzero_memory: 0,
            ports: vec![],
        };
        info.describe(node);
        info
    }

    /// Takes over what the node says of itself; the pods stay.
    pub fn describe(&mut self, node: &Node) {
        self.labels = Arc::new(node.metadata.labels.clone());
        // Since when is no reason to try pods again.
        let taints = node.spec.taints.iter().cloned();
        self.taints = taints
            .map(|taint| Taint {
                time_added: None,
                ..taint
            })
            .collect();
        self.unschedulable = node.spec.unschedulable;
        self.allocatable = Arc::new(Resources::of_node(&node.status.allocatable));
        self.allowed_pods = allowed_pods(&node.status.allocatable);
        self.declared_features = node.status.declared_features.as_slice().into();
        let named = node
            .status
            .images
            .iter()
            .flat_map(|i| i.names.iter().map(|n| (n, i.size_bytes)));
        self.images = Arc::new(named.map(|(name, size)| (name.clone(), size)).collect());
    }

    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.count(&pod);
        self.ports.extend(pod.class.ports.iter().cloned());
        self.pods.push(pod);
    }

    fn count(&mut self, pod: &PodInfo) {
        let requests = pod.requests();
        self.requested.add(&requests.exact);
        self.nonzero_milli_cpu = self.nonzero_milli_cpu.saturating_add(requests.nonzero_milli_cpu);
        self.nonzero_memory = self.nonzero_memory.saturating_add(requests.nonzero_memory);
    }

    /// Pods may ask for more than can be counted.
    fn is_saturated(&self) -> bool {
        saturated(self.nonzero_milli_cpu) || saturated(self.nonzero_memory) || self.requested.is_saturated()
    }

    fn recount(&mut self) {
        self.requested = Resources::default();
        (self.nonzero_milli_cpu, self.nonzero_memory) = (0, 0);
        for pod in std::mem::take(&mut self.pods) {
            self.count(&pod);
            self.pods.push(pod);
        }
    }

    /// True if it was there.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(at) = self.pods.iter().position(|p| &*p.uid == uid) else {
            return false;
        };
        let pod = self.pods.swap_remove(at);
        if self.is_saturated() {
            self.recount();
        } else {
            let requests = pod.requests();
            self.requested.subtract(&requests.exact);
            self.nonzero_milli_cpu = self.nonzero_milli_cpu.saturating_sub(requests.nonzero_milli_cpu);
            self.nonzero_memory = self.nonzero_memory.saturating_sub(requests.nonzero_memory);
        }
        for port in &pod.class.ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        true
    }
}
