//! Services and owning workloads: what the default spreading constraints select by.

use std::collections::HashMap;

use super::pod::{PodInfo, PodKey};
use crate::model::{LabelSelector, Labels};

#[derive(Default, Debug)]
pub struct Owners {
    /// namespace → service name → what it selects.
    services: HashMap<String, HashMap<String, Labels>>,
    /// (kind, namespace/name) → what it selects.
    workloads: HashMap<(String, PodKey), LabelSelector>,
    /// Moves with every change: what was worked out before is out of date.
    pub version: u64,
}

impl Owners {
    pub fn observe_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        self.version += 1;
        let services = self.services.entry(namespace.to_string()).or_default();
        match selector {
            Some(selector) => services.insert(name.to_string(), selector),
            None => services.remove(name),
        };
    }

    /// A ReplicaSet, StatefulSet or ReplicationController is there, has changed, or is gone.
    pub fn observe_workload(&mut self, kind: &str, key: PodKey, selector: Option<LabelSelector>) {
        self.version += 1;
        match selector {
            Some(selector) => self.workloads.insert((kind.to_string(), key), selector),
            None => self.workloads.remove(&(kind.to_string(), key)),
        };
    }

    /// All that services and the pod's controller select by, together; empty if there is nothing.
    ///
    /// Upstream: DefaultSelector in pkg/scheduler/framework/plugins/helper (v1.36).
    pub fn selector_for(&self, pod: &PodInfo) -> LabelSelector {
        let mut selector = LabelSelector::default();
        for wanted in self
            .services
            .get(&**pod.namespace())
            .into_iter()
            .flat_map(HashMap::values)
        {
            let matches = !wanted.is_empty() && wanted.iter().all(|(k, v)| pod.label_set().get(k) == Some(v));
            if matches {
                selector.match_labels.extend(wanted.clone());
            }
        }
        if let Some(owner) = &pod.controller {
            let key = (owner.kind.clone(), PodKey::new(pod.namespace(), &owner.name));
            if let Some(own) = self.workloads.get(&key) {
                selector.match_labels.extend(own.match_labels.clone());
                selector.match_expressions.extend(own.match_expressions.iter().cloned());
            }
        }
        selector
    }
}
