//! The scheduler's state of the cluster, and the only place where it changes.
//!
//! ```text
//!                 assume                     add (seen by the watch)
//!   (queued) ──────────────▶ assumed ──────────────────────▶ added ───▶ remove
//!                              │  ▲
//!                              └──┘ forget (the binding failed), expire (the binding is long done, no word of it)
//! ```
//!
//! Decisions read it; nothing in here decides. Every change of a node is noted in a change log, so that what was worked
//! out for a class of pods is worked out again for changed nodes only.

pub mod log;
pub mod node;
pub mod nominated;
pub mod owners;
pub mod pod;
pub mod resources;
pub mod storage;
pub mod topology;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use crate::model::{Labels, Node, Pod, PodDisruptionBudget};
use log::ChangeLog;
use node::{NodeId, NodeInfo};
use nominated::Nominated;
use owners::Owners;
use pod::{PodInfo, PodKey, Pods};
use storage::Storage;
use topology::Topology;

#[derive(Default)]
pub struct Cluster {
    nodes: Vec<Option<NodeInfo>>,
    by_name: FxHashMap<Arc<str>, NodeId>,
    free: Vec<NodeId>,
    /// By uid: every pod that counts against a node.
    placed: FxHashMap<Arc<str>, Placed>,
    /// Pods on nodes that are not known (yet).
    stranded: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    /// Image → on how many nodes it is.
    images: FxHashMap<String, u32>,
    pods: Pods,
    pub log: ChangeLog,
    pub namespaces: HashMap<String, Labels>,
    pub nominated: Nominated,
    pub storage: Storage,
    pub owners: Owners,
    pub budgets: HashMap<PodKey, PodDisruptionBudget>,
    /// Grows while it is read (counts are taken up when the first pod asks for them), hence the cell.
    pub topology: RefCell<Topology>,
}

struct Placed {
    pod: Arc<PodInfo>,
    node: Arc<str>,
    state: PlacedState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PlacedState {
    /// The API server says so.
    Added,
    /// We say so; the binding is under way, or it is done and the watch will tell (until then).
    Assumed { expires: Option<Timestamp> },
}

impl Cluster {
    pub fn node(&self, id: NodeId) -> Option<&NodeInfo> {
        self.nodes.get(id.index())?.as_ref()
    }

    pub fn node_named(&self, name: &str) -> Option<&NodeInfo> {
        self.node(*self.by_name.get(name)?)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.iter().flatten()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// One more than the largest node id in use: the length of columns.
    pub fn width(&self) -> usize {
        self.nodes.len()
    }

    /// On how many nodes this image is.
    pub fn image_nodes(&self, image: &str) -> u32 {
        self.images.get(image).copied().unwrap_or(0)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.placed.values().map(|p| &p.pod)
    }

    pub fn pod_count(&self) -> usize {
        self.placed.len()
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        matches!(self.placed.get(uid), Some(p) if p.state != PlacedState::Added)
    }

    /// The pod with this uid, and the node that it is (or is assumed to be) on.
    pub fn placed(&self, uid: &str) -> Option<(&Arc<PodInfo>, &Arc<str>)> {
        self.placed.get(uid).map(|p| (&p.pod, &p.node))
    }

    /// Takes an API pod apart; equal specs are shared from here on.
    pub fn decode(&mut self, pod: Pod) -> Arc<PodInfo> {
        self.pods.observe(pod)
    }

    // ---- nodes ----

    /// A node is new or has changed.
    pub fn observe_node(&mut self, node: &Node) -> NodeId {
        let known = self.by_name.get(node.metadata.name.as_str()).copied();
        match known {
            Some(id) => self.change_node(id, node),
            None => self.add_node(node),
        }
    }

    fn add_node(&mut self, node: &Node) -> NodeId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            NodeId(u32::try_from(self.nodes.len() - 1).expect("fewer than four billion nodes"))
        });
        let info = NodeInfo::new(id, node);
        for image in info.images.keys() {
            *self.images.entry(image.clone()).or_default() += 1;
        }
        self.by_name.insert(info.name.clone(), id);
        self.topology.get_mut().node_added(&info);
        let waiting = self.stranded.remove(&info.name).unwrap_or_default();
        self.nodes[id.index()] = Some(info);
        for pod in waiting {
            self.place(pod, id);
        }
        self.log.touch(id);
        id
    }

    fn change_node(&mut self, id: NodeId, node: &Node) -> NodeId {
        let info = self.nodes[id.index()].as_mut().expect("a named node is in the table");
        let before = (info.labels.clone(), info.taints.clone(), info.images.clone());
        info.describe(node);
        if info.images != before.2 {
            for image in before.2.keys() {
                release(&mut self.images, image);
            }
            for image in info.images.keys() {
                *self.images.entry(image.clone()).or_default() += 1;
            }
        }
        if info.labels != before.0 || info.taints != before.1 {
            self.topology.get_mut().node_changed(&before.0, info);
        }
        self.log.touch(id);
        id
    }

    /// A node is gone. Pods that are still on it count again should it come back.
    pub fn remove_node(&mut self, name: &str) {
        let Some(id) = self.by_name.remove(name) else { return };
        let info = self.nodes[id.index()].take().expect("a named node is in the table");
        for image in info.images.keys() {
            release(&mut self.images, image);
        }
        let topology = self.topology.get_mut();
        for pod in &info.pods {
            topology.pod_removed(pod, &info);
            self.storage.pod_displaced(pod);
        }
        topology.node_removed(&info);
        if !info.pods.is_empty() {
            self.stranded.insert(info.name.clone(), info.pods);
        }
        self.free.push(id);
        self.log.touch(id);
    }

    // ---- pods on nodes ----

    /// The watch shows a pod with a node. It takes the place of what we assumed or knew of it.
    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        let Some(node) = pod.node_name.clone() else { return };
        self.displace(&pod.uid);
        self.put(pod, node, PlacedState::Added);
    }

    /// The watch shows that a pod is gone (or finished). True if it counted.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        self.displace(uid)
    }

    /// From now on the pod counts on that node, though nobody else knows yet.
    pub fn assume(&mut self, pod: &Arc<PodInfo>, node: NodeId) {
        let name = self.nodes[node.index()]
            .as_ref()
            .expect("a decision names a node that is there")
            .name
            .clone();
        self.displace(&pod.uid);
        self.put(pod.clone(), name, PlacedState::Assumed { expires: None });
    }

    /// The binding was accepted: if the watch does not show it by then, something is wrong and the assumption ends.
    pub fn finish_binding(&mut self, uid: &str, expires: Option<Timestamp>) {
        if let Some(placed) = self.placed.get_mut(uid)
            && placed.state != PlacedState::Added
        {
            placed.state = PlacedState::Assumed { expires };
        }
    }

    /// The binding failed: takes back `assume`. Does nothing to a pod that the watch has shown on a node meanwhile.
    pub fn forget(&mut self, uid: &str) -> bool {
        self.is_assumed(uid) && self.displace(uid)
    }

    /// Ends assumptions whose time is over; gives the uids.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Arc<str>> {
        let over: Vec<Arc<str>> = (self.placed.iter())
            .filter(|(_, p)| matches!(p.state, PlacedState::Assumed { expires: Some(at) } if at <= now))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in &over {
            self.displace(uid);
        }
        over
    }

    fn put(&mut self, pod: Arc<PodInfo>, node: Arc<str>, state: PlacedState) {
        let entry = Placed {
            pod: pod.clone(),
            node: node.clone(),
            state,
        };
        self.placed.insert(pod.uid.clone(), entry);
        match self.by_name.get(&node).copied() {
            Some(id) => self.place(pod, id),
            None => self.stranded.entry(node).or_default().push(pod),
        }
    }

    fn place(&mut self, pod: Arc<PodInfo>, id: NodeId) {
        let info = self.nodes[id.index()].as_mut().expect("a named node is in the table");
        self.topology.get_mut().pod_added(&pod, info);
        self.storage.pod_placed(&pod);
        info.add_pod(pod);
        self.log.touch(id);
    }

    fn displace(&mut self, uid: &str) -> bool {
        let Some(Placed { pod, node, .. }) = self.placed.remove(uid) else {
            return false;
        };
        if let Some(id) = self.by_name.get(&node).copied() {
            let info = self.nodes[id.index()].as_mut().expect("a named node is in the table");
            info.remove_pod(uid);
            self.topology.get_mut().pod_removed(&pod, info);
            self.storage.pod_displaced(&pod);
            self.log.touch(id);
        } else if let Some(waiting) = self.stranded.get_mut(&node) {
            waiting.retain(|p| &*p.uid != uid);
            if waiting.is_empty() {
                self.stranded.remove(&node);
            }
        }
        true
    }

    /// A namespace's labels, for selectors of namespaces.
    pub fn observe_namespace(&mut self, name: &str, labels: Option<Labels>) {
        match labels {
            Some(labels) if self.namespaces.get(name) == Some(&labels) => return,
            Some(labels) => self.namespaces.insert(name.to_string(), labels),
            None => self.namespaces.remove(name),
        };
        self.topology.get_mut().namespaces_changed();
    }
}

fn release(images: &mut FxHashMap<String, u32>, image: &str) {
    if let Some(count) = images.get_mut(image) {
        *count -= 1;
        if *count == 0 {
            images.remove(image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str) -> Node {
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}});
        serde_json::from_value(node).unwrap()
    }

    fn pod(node: &str) -> Pod {
        let pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        serde_json::from_value(pod).unwrap()
    }

    fn used(cluster: &Cluster, node: &str) -> i64 {
        cluster.node_named(node).map_or(0, |n| n.requested.milli_cpu)
    }

    #[test]
    fn an_assumed_pod_counts_until_it_is_confirmed_forgotten_or_expired() {
        let mut cluster = Cluster::default();
        let a = cluster.observe_node(&node("a"));
        cluster.observe_node(&node("b"));
        let waiting = cluster.decode(pod(""));
        let at = |seconds| Timestamp::from_second(seconds).unwrap();

        cluster.assume(&waiting, a);
        assert_eq!((used(&cluster, "a"), cluster.is_assumed("u")), (1000, true));
        assert!(cluster.forget("u") && !cluster.forget("u"));
        assert_eq!((used(&cluster, "a"), cluster.pod_count()), (0, 0));

        // Without a deadline it stays for good; with one, until then.
        cluster.assume(&waiting, a);
        cluster.finish_binding("u", None);
        assert!(cluster.expire(at(1_000_000)).is_empty());
        cluster.finish_binding("u", Some(at(10)));
        assert!(cluster.expire(at(9)).is_empty());
        assert_eq!(cluster.expire(at(10)), [Arc::from("u")]);
        assert_eq!(used(&cluster, "a"), 0);

        // The watch has the last word, also on another node; nothing can be forgotten or expire then.
        cluster.assume(&waiting, a);
        let bound = cluster.decode(pod("b"));
        cluster.add_pod(bound);
        assert_eq!((used(&cluster, "a"), used(&cluster, "b")), (0, 1000));
        cluster.finish_binding("u", Some(at(0)));
        assert!(!cluster.forget("u") && cluster.expire(at(10)).is_empty());

        // A node that goes and comes back still has its pod.
        cluster.remove_node("b");
        assert_eq!(cluster.pod_count(), 1);
        cluster.observe_node(&node("b"));
        assert_eq!(used(&cluster, "b"), 1000);
        assert!(cluster.remove_pod("u"));
        assert_eq!(used(&cluster, "b"), 0);
    }
}
