//! What the watches deliver, applied to the cluster state, and what of it rejected pods may care about.

use std::collections::HashSet;
use std::sync::Arc;

use orlop_client::Delta;

use super::engine::{Engine, advisor};
use super::inbox::Changes;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::{PodInfo, PodKey};
use crate::framework::event::{Actions, Event, Object, Resource};
use crate::model::{Namespace, Node, Pod};

/// Objects that a table is kept of.
trait Named {
    fn key(&self) -> ObjectKey;
}

macro_rules! named {
    ($($type:ident),* $(,)?) => {
        $(impl Named for crate::model::$type {
            fn key(&self) -> ObjectKey {
                ObjectKey {
                    namespace: self.metadata.namespace.clone(),
                    name: self.metadata.name.clone(),
                }
            }
        })*
    };
}
named!(
    Namespace,
    Service,
    ReplicationController,
    Workload,
    PodDisruptionBudget,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
);

/// What an object of some kind is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectKey {
    /// Empty for cluster-scoped objects.
    namespace: String,
    name: String,
}

impl Engine {
    pub(super) fn observe(&mut self, changes: Changes) {
        match changes {
            Changes::Pods(deltas) => deltas.into_iter().for_each(|d| self.observe_pods(d)),
            Changes::Nodes(deltas) => deltas.into_iter().for_each(|d| self.observe_nodes(d)),
            Changes::Namespaces(deltas) => self.observe_namespaces(deltas),
            Changes::Services(deltas) => self.table(deltas, "Service", |e, key, service| {
                let selector = service.map(|s| s.spec.selector);
                e.cluster.owners.observe_service(&key.namespace, &key.name, selector);
            }),
            Changes::ReplicationControllers(deltas) => {
                self.table(deltas, "ReplicationController", |e, key, rc| {
                    let selector = rc.map(|rc| crate::model::LabelSelector {
                        match_labels: rc.spec.selector,
                        match_expressions: vec![],
                    });
                    e.observe_workload("ReplicationController", key, selector);
                });
            }
            Changes::ReplicaSets(deltas) => self.table(deltas, "ReplicaSet", |e, key, set| {
                e.observe_workload("ReplicaSet", key, set.map(|s| s.spec.selector.unwrap_or_default()));
            }),
            Changes::StatefulSets(deltas) => self.table(deltas, "StatefulSet", |e, key, set| {
                e.observe_workload("StatefulSet", key, set.map(|s| s.spec.selector.unwrap_or_default()));
            }),
            Changes::Budgets(deltas) => self.table(deltas, "PodDisruptionBudget", |e, key, budget| {
                let key = PodKey::new(&key.namespace, &key.name);
                match budget {
                    Some(budget) => e.cluster.budgets.insert(key, budget),
                    None => e.cluster.budgets.remove(&key),
                };
            }),
            Changes::Volumes(deltas) => self.table(deltas, "PersistentVolume", |e, key, volume| {
                let event = e.cluster.storage.observe_volume(&key.name, volume);
                e.storage_changed(event);
            }),
            Changes::Claims(deltas) => self.table(deltas, "PersistentVolumeClaim", |e, key, claim| {
                let event = e.cluster.storage.observe_claim(&key.namespace, &key.name, claim);
                e.storage_changed(event);
            }),
            Changes::StorageClasses(deltas) => self.table(deltas, "StorageClass", |e, key, class| {
                let event = e.cluster.storage.observe_class(&key.name, class);
                e.storage_changed(event);
            }),
            Changes::CsiNodes(deltas) => self.table(deltas, "CSINode", |e, key, node| {
                let event = e.cluster.storage.observe_csi_node(&key.name, node);
                e.storage_changed(event);
            }),
            Changes::CsiDrivers(deltas) => self.table(deltas, "CSIDriver", |e, key, driver| {
                let event = e.cluster.storage.observe_driver(&key.name, driver);
                e.storage_changed(event);
            }),
            Changes::Capacities(deltas) => self.table(deltas, "CSIStorageCapacity", |e, key, capacity| {
                let event = e.cluster.storage.observe_capacity(&key.namespace, &key.name, capacity);
                e.storage_changed(event);
            }),
            Changes::Attachments(deltas) => self.table(deltas, "VolumeAttachment", |e, key, attachment| {
                let event = e.cluster.storage.observe_attachment(&key.name, attachment);
                e.storage_changed(event);
            }),
        }
    }

    fn storage_changed(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.announce(&event);
            self.check_pre_binds();
        }
    }

    fn observe_workload(&mut self, kind: &str, key: &ObjectKey, selector: Option<crate::model::LabelSelector>) {
        let key = PodKey::new(&key.namespace, &key.name);
        self.cluster.owners.observe_workload(kind, key, selector);
    }

    /// Keeps track of which objects are there, so that a list that replaces everything removes what is not in it.
    fn table<T: Named>(
        &mut self,
        deltas: Vec<Delta<T>>,
        kind: &'static str,
        apply: impl Fn(&mut Engine, &ObjectKey, Option<T>),
    ) {
        for delta in deltas {
            match delta {
                Delta::Applied(object) => {
                    let key = object.key();
                    self.tables.entry(kind).or_default().insert(key.clone());
                    apply(self, &key, Some(object));
                }
                Delta::Deleted(object) => {
                    let key = object.key();
                    self.tables.entry(kind).or_default().remove(&key);
                    apply(self, &key, None);
                }
                Delta::Reset(objects) => {
                    let now: HashSet<ObjectKey> = objects.iter().map(Named::key).collect();
                    let before = self.tables.insert(kind, now).unwrap_or_default();
                    let gone = before.into_iter().filter(|k| !self.tables[kind].contains(k));
                    for key in gone.collect::<Vec<_>>() {
                        apply(self, &key, None);
                    }
                    for object in objects {
                        apply(self, &object.key(), Some(object));
                    }
                }
                Delta::Bookmark(_) => {}
            }
        }
    }

    fn observe_namespaces(&mut self, deltas: Vec<Delta<Namespace>>) {
        self.table(deltas, "Namespace", |e, key, namespace| {
            e.cluster
                .observe_namespace(&key.name, namespace.map(|n| n.metadata.labels));
        });
    }

    // ---- pods ----

    fn observe_pods(&mut self, delta: Delta<Pod>) {
        match delta {
            Delta::Applied(pod) => self.observe_pod(pod),
            Delta::Deleted(pod) => self.pod_gone(&pod.metadata.uid),
            Delta::Bookmark(_) => {}
            Delta::Reset(pods) => {
                let there: HashSet<&str> = pods.iter().map(|p| p.metadata.uid.as_str()).collect();
                let known = self.waiting.keys().chain(self.cluster.pods().map(|p| &p.uid));
                // Also those that are being bound, or were: the API server knew them before we could.
                let gone: HashSet<Arc<str>> = known.filter(|uid| !there.contains(&***uid)).cloned().collect();
                for uid in gone {
                    self.pod_gone(&uid);
                }
                pods.into_iter().for_each(|pod| self.observe_pod(pod));
            }
        }
    }

    fn observe_pod(&mut self, pod: Pod) {
        let info = self.cluster.decode(pod);
        if info.finished {
            self.pod_gone(&info.uid);
        } else if info.node_name.is_some() {
            self.pod_assigned(info);
        } else if self.by_name.contains_key(&info.class.spec.scheduler_name) {
            self.pod_waits(info);
        }
    }

    fn pod_assigned(&mut self, info: Arc<PodInfo>) {
        let uid = info.uid.clone();
        self.withdraw(&uid);
        if self.waiting.remove(&uid).is_some() {
            self.reported.remove(&uid);
            self.cluster.nominated.remove(&uid);
            // While our own binding is under way its outcome ends the attempt.
            if !self.binding.contains_key(&uid) {
                self.queue.delete(&uid);
            }
        }
        let assumed = self.cluster.is_assumed(&uid);
        let before = self.cluster.placed(&uid).map(|(pod, _)| pod.clone());
        self.cluster.add_pod(info.clone());
        let (actions, old) = match before {
            Some(before) if !assumed => (changed(&before, &info), Object::Pod(before)),
            _ => (Actions::ADD, Object::None),
        };
        self.announce(&Event {
            resource: Resource::AssignedPod,
            actions,
            old,
            new: Object::Pod(info),
        });
    }

    fn pod_waits(&mut self, info: Arc<PodInfo>) {
        if self.cluster.is_assumed(&info.uid) {
            // It is being bound; the next version will have a node. Should it not, this version is tried again.
            self.waiting.insert(info.uid.clone(), info.clone());
            if self.queue.is_in_flight(&info.uid) {
                let now = self.clock.now();
                self.queue.update(info, now, &advisor!(self));
            }
            return;
        }
        if let Some(node) = &info.nominated_node {
            self.cluster.nominated.add(info.clone(), node);
        }
        let now = self.clock.now();
        self.waiting.insert(info.uid.clone(), info.clone());
        self.queue.update(info, now, &advisor!(self));
    }

    fn pod_gone(&mut self, uid: &str) {
        if self.waiting.remove(uid).is_some() {
            self.queue.delete(uid);
        }
        self.cluster.nominated.remove(uid);
        self.reported.remove(uid);
        let Some((pod, node)) = self.cluster.placed(uid) else {
            return;
        };
        let (pod, node) = (pod.clone(), node.clone());
        self.withdraw(uid);
        self.cluster.remove_pod(uid);
        self.announce_release(&pod, &node);
    }

    /// A pod no longer takes room on its node. One that was only assumed there is shown as if it had been bound: those
    /// who wait for room look at pods with a node only.
    pub(super) fn announce_release(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        let pod = match &pod.node_name {
            Some(_) => pod.clone(),
            None => Arc::new(pod.on(node)),
        };
        self.announce(&Event {
            resource: Resource::AssignedPod,
            actions: Actions::DELETE,
            old: Object::Pod(pod),
            new: Object::None,
        });
    }

    // ---- nodes ----

    fn observe_nodes(&mut self, delta: Delta<Node>) {
        match delta {
            Delta::Applied(node) => self.observe_node(&node),
            Delta::Deleted(node) => self.node_gone(&node.metadata.name),
            Delta::Bookmark(_) => {}
            Delta::Reset(nodes) => {
                let there: HashSet<&str> = nodes.iter().map(|n| n.metadata.name.as_str()).collect();
                let gone = self.cluster.nodes().filter(|n| !there.contains(&*n.name));
                for name in gone.map(|n| n.name.clone()).collect::<Vec<_>>() {
                    self.node_gone(&name);
                }
                nodes.iter().for_each(|node| self.observe_node(node));
            }
        }
    }

    fn observe_node(&mut self, node: &Node) {
        let before = self.cluster.node_named(&node.metadata.name).cloned().map(Arc::new);
        let id = self.cluster.observe_node(node);
        let now = self.cluster.node(id).expect("observed just now");
        let actions = match &before {
            None => Actions::ADD,
            Some(before) => node_changed(before, now),
        };
        let event = Event {
            resource: Resource::Node,
            actions,
            old: before.map_or(Object::None, Object::Node),
            new: Object::Node(Arc::new(now.clone())),
        };
        self.announce(&event);
    }

    fn node_gone(&mut self, name: &str) {
        let Some(before) = self.cluster.node_named(name).cloned() else {
            return;
        };
        self.cluster.remove_node(name);
        self.announce(&Event {
            resource: Resource::Node,
            actions: Actions::DELETE,
            old: Object::Node(Arc::new(before)),
            new: Object::None,
        });
    }

    pub(super) fn announce(&mut self, event: &Event) {
        if event.actions == Actions(0) {
            return;
        }
        let now = self.clock.now();
        self.queue.on_event(event, now, &advisor!(self));
    }
}

/// What changed of a pod on a node, as far as other pods may care.
fn changed(before: &PodInfo, now: &PodInfo) -> Actions {
    let mut actions = Actions(0);
    if before.label_set() != now.label_set() {
        actions = actions.or(Actions::UPDATE_LABEL);
    }
    let (was, is) = (&before.requests().exact, &now.requests().exact);
    let names = ["cpu", "memory", "ephemeral-storage"]
        .into_iter()
        .chain(was.scalars.iter().map(|(n, _)| &**n));
    if names.into_iter().any(|n| was.amount(n) > is.amount(n)) {
        actions = actions.or(Actions::SCALE_DOWN);
    }
    // Spreading does not count those that are going.
    if before.is_terminating() != now.is_terminating() {
        actions = actions.or(Actions::UPDATE_OTHER);
    }
    actions
}

/// What changed of a node, as far as rejected pods may care: heartbeats do not.
fn node_changed(before: &NodeInfo, now: &NodeInfo) -> Actions {
    let mut actions = Actions(0);
    let mut note = |yes: bool, action: Actions| {
        if yes {
            actions = actions.or(action);
        }
    };
    note(
        before.allocatable != now.allocatable || before.allowed_pods != now.allowed_pods,
        Actions::UPDATE_ALLOCATABLE,
    );
    note(before.labels != now.labels, Actions::UPDATE_LABEL);
    note(
        before.taints != now.taints || before.unschedulable != now.unschedulable,
        Actions::UPDATE_TAINT,
    );
    note(
        before.declared_features != now.declared_features,
        Actions::UPDATE_DECLARED_FEATURES,
    );
    actions
}
