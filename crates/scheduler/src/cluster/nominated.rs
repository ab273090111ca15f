//! Pods that were promised a node: preemption made (or is making) room for them there.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::pod::PodInfo;

#[derive(Default, Debug)]
pub struct Nominated {
    by_node: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    node_of: FxHashMap<Arc<str>, Arc<str>>,
}

impl Nominated {
    /// Takes the place of an earlier nomination of the pod.
    pub fn add(&mut self, pod: Arc<PodInfo>, node: &Arc<str>) {
        self.remove(&pod.uid);
        self.node_of.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node.clone()).or_default().push(pod);
    }

    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.node_of.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| &*p.uid != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.node_of.get(uid)
    }

    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_node.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }
}
