//! A snapshot in the scheduler's own core: what every question is put to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::pod::{PodInfo, PodKey};
use orlop_scheduler::config::{Config, Extender};
use orlop_scheduler::cycle::Core;
use orlop_scheduler::model::{LabelSelector, Node, Pod};
use orlop_scheduler::plugins::{ProfileError, preemption_args, profiles};
use orlop_scheduler::preemption::DefaultPreemption;

use crate::snapshot::{Snapshot, Unreadable};

/// Ties between nodes are broken by it; any number would do, as long as it is always the same.
const SEED: u64 = 20;

pub struct World {
    pub cluster: Cluster,
    pub core: Core,
    pub(crate) by_name: HashMap<String, usize>,
    pub(crate) preemption: Vec<Option<DefaultPreemption>>,
    pub(crate) extenders: Vec<Extender>,
    /// After this long a pod is tried again whatever happened.
    pub(crate) retry_after: std::time::Duration,
    /// As they were read: what counterfactual nodes are made of.
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Pods without a node, that have not ended.
    pub(crate) pending: BTreeMap<PodKey, Pod>,
    pub(crate) unreadable: Vec<Unreadable>,
}

impl World {
    pub fn new(snapshot: Snapshot, config: &Config) -> Result<World, ProfileError> {
        let built = profiles(config)?;
        let by_name = built.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let mut world = World {
            cluster: Cluster::default(),
            core: Core::new(built, SEED),
            by_name,
            preemption: preemption_args(config),
            extenders: config.extenders.clone(),
            retry_after: config.pod_max_in_unschedulable,
            nodes: BTreeMap::new(),
            pending: BTreeMap::new(),
            unreadable: vec![],
        };
        world.unreadable = snapshot.unreadable.clone();
        world.add(snapshot);
        Ok(world)
    }

    /// Takes in what is new or has changed.
    pub(crate) fn add(&mut self, snapshot: Snapshot) {
        let cluster = &mut self.cluster;
        for namespace in snapshot.namespaces {
            cluster.observe_namespace(&namespace.metadata.name, Some(namespace.metadata.labels));
        }
        for service in snapshot.services {
            let meta = &service.metadata;
            (cluster.owners).observe_service(&meta.namespace, &meta.name, Some(service.spec.selector.clone()));
        }
        for rc in snapshot.replication_controllers {
            let selector = LabelSelector {
                match_labels: rc.spec.selector,
                match_expressions: vec![],
            };
            let key = PodKey::new(&rc.metadata.namespace, &rc.metadata.name);
            (cluster.owners).observe_workload("ReplicationController", key, Some(selector));
        }
        let sets = (snapshot.replica_sets.into_iter().map(|set| ("ReplicaSet", set)))
            .chain(snapshot.stateful_sets.into_iter().map(|set| ("StatefulSet", set)));
        for (kind, set) in sets {
            let key = PodKey::new(&set.metadata.namespace, &set.metadata.name);
            (cluster.owners).observe_workload(kind, key, Some(set.spec.selector.unwrap_or_default()));
        }
        for budget in snapshot.budgets {
            let key = PodKey::new(&budget.metadata.namespace, &budget.metadata.name);
            cluster.budgets.insert(key, budget);
        }
        let storage = &mut cluster.storage;
        for volume in snapshot.volumes {
            storage.observe_volume(&volume.metadata.name.clone(), Some(volume));
        }
        for claim in snapshot.claims {
            let meta = claim.metadata.clone();
            storage.observe_claim(&meta.namespace, &meta.name, Some(claim));
        }
        for class in snapshot.storage_classes {
            storage.observe_class(&class.metadata.name.clone(), Some(class));
        }
        for node in snapshot.csi_nodes {
            storage.observe_csi_node(&node.metadata.name.clone(), Some(node));
        }
        for driver in snapshot.csi_drivers {
            storage.observe_driver(&driver.metadata.name.clone(), Some(driver));
        }
        for capacity in snapshot.capacities {
            let meta = capacity.metadata.clone();
            storage.observe_capacity(&meta.namespace, &meta.name, Some(capacity));
        }
        for attachment in snapshot.attachments {
            storage.observe_attachment(&attachment.metadata.name.clone(), Some(attachment));
        }
        for node in snapshot.nodes {
            cluster.observe_node(&node);
            self.nodes.insert(node.metadata.name.clone(), node);
        }
        for pod in snapshot.pods {
            self.observe_pod(pod);
        }
    }

    fn observe_pod(&mut self, pod: Pod) {
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            return;
        }
        if !pod.spec.node_name.is_empty() {
            let info = self.cluster.decode(pod);
            self.cluster.add_pod(info);
            return;
        }
        let promised = pod.status.nominated_node_name.clone();
        let ours = self.by_name.contains_key(&pod.spec.scheduler_name);
        if !promised.is_empty() && ours {
            let info = self.cluster.decode(pod.clone());
            self.cluster.nominated.add(info, &promised.into());
        }
        let key = PodKey::new(&pod.metadata.namespace, &pod.metadata.name);
        self.pending.insert(key, pod);
    }

    /// The same question gets the same answer, whatever was asked before.
    pub(crate) fn reseed(&mut self) {
        self.core.reseed(SEED);
    }

    /// The pod with this name, if it has a node.
    pub fn placed_pod(&self, key: &PodKey) -> Option<Arc<PodInfo>> {
        self.cluster.pods().find(|pod| pod.key == *key).cloned()
    }

    /// The profile that decides for pods of this scheduler name.
    pub fn profile_of(&self, scheduler_name: &str) -> Option<usize> {
        self.by_name.get(scheduler_name).copied()
    }

    pub fn node_name(&self, id: orlop_scheduler::cluster::node::NodeId) -> String {
        self.cluster
            .node(id)
            .map_or_else(String::new, |node| node.name.to_string())
    }

    /// Extenders that a decision about this pod would ask; nothing here does.
    pub(crate) fn interested_extenders(&self, pod: &PodInfo) -> Vec<&str> {
        let asked = (self.extenders.iter()).filter(|e| e.is_interested(&pod.class.spec));
        asked.map(|e| e.url_prefix.as_str()).collect()
    }
}
