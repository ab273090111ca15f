//! Services and owning workloads: what the default spreading constraints select by.

use std::collections::HashMap;

use super::pod::{PodInfo, PodKey};
use crate::model::{LabelSelector, Labels, Op, Requirement};

#[derive(Default, Debug)]
pub struct Owners {
    /// By namespace.
    namespaces: HashMap<String, Owning>,
    /// Moves with every change: what was worked out before is out of date.
    pub version: u64,
}

#[derive(Default, Debug)]
struct Owning {
    /// By name: what it selects.
    services: HashMap<String, Labels>,
    /// By kind and name: what it selects.
    workloads: HashMap<(String, String), LabelSelector>,
    /// The version of the last change here.
    version: u64,
}

impl Owners {
    pub fn observe_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        let owning = self.owning(namespace);
        let before = match selector.clone() {
            Some(selector) => owning.services.insert(name.to_string(), selector),
            None => owning.services.remove(name),
        };
        if before != selector || selector.is_none() {
            self.touch(namespace);
        }
    }

    /// A ReplicaSet, StatefulSet or ReplicationController is there, has changed, or is gone.
    pub fn observe_workload(&mut self, kind: &str, key: PodKey, selector: Option<LabelSelector>) {
        let owning = self.owning(&key.namespace);
        let name = (kind.to_string(), key.name.to_string());
        let before = match selector.clone() {
            Some(selector) => owning.workloads.insert(name, selector),
            None => owning.workloads.remove(&name),
        };
        if before != selector || selector.is_none() {
            self.touch(&key.namespace);
        }
    }

    fn owning(&mut self, namespace: &str) -> &mut Owning {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.to_string(), Owning::default());
        }
        self.namespaces.get_mut(namespace).expect("inserted just now")
    }

    fn touch(&mut self, namespace: &str) {
        self.version += 1;
        let version = self.version;
        let owning = self.owning(namespace);
        owning.version = version;
        if owning.services.is_empty() && owning.workloads.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Moves with every change in the namespace; None if there is nothing there.
    pub fn version_in(&self, namespace: &str) -> Option<u64> {
        self.namespaces.get(namespace).map(|o| o.version)
    }

    /// All that services and the pod's controller select by, together; empty if there is nothing.
    ///
    /// Upstream: DefaultSelector in pkg/scheduler/framework/plugins/helper (v1.36).
    pub fn selector_for(&self, pod: &PodInfo) -> LabelSelector {
        let mut selector = LabelSelector::default();
        let Some(owning) = self.namespaces.get(&**pod.namespace()) else {
            return selector;
        };
        for wanted in owning.services.values() {
            let matches = !wanted.is_empty() && wanted.iter().all(|(k, v)| pod.label_set().get(k) == Some(v));
            if matches {
                selector.match_labels.extend(wanted.clone());
            }
        }
        let Some(owner) = &pod.controller else { return selector };
        let api_version = match owner.kind.as_str() {
            "ReplicationController" => "v1",
            "ReplicaSet" | "StatefulSet" => "apps/v1",
            _ => return selector,
        };
        let own = (owning.workloads.get(&(owner.kind.clone(), owner.name.clone())))
            .filter(|_| owner.api_version == api_version);
        match own {
            // Its selector is a plain map, put over the services'.
            Some(own) if owner.kind == "ReplicationController" => {
                selector.match_labels.extend(own.match_labels.clone());
            }
            Some(own) => narrow(&mut selector, own),
            None => {}
        }
        selector
    }
}

/// Both must hold. A pod whose labels have changed may be wanted by a service and unwanted by its owner.
pub fn narrow(selector: &mut LabelSelector, by: &LabelSelector) {
    for (key, value) in &by.match_labels {
        match selector.match_labels.get(key) {
            Some(known) if known != value => selector.match_expressions.push(Requirement {
                key: key.clone(),
                op: Op::In(vec![value.clone()]),
            }),
            Some(_) => {}
            None => {
                selector.match_labels.insert(key.clone(), value.clone());
            }
        }
    }
    selector.match_expressions.extend(by.match_expressions.iter().cloned());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::Cluster;

    fn selector(text: Value) -> LabelSelector {
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn services_and_the_controller_are_put_together() {
        let mut cluster = Cluster::default();
        let owners = &mut cluster.owners;
        let labels = |text: Value| -> Labels { serde_json::from_value(text).unwrap() };
        owners.observe_service("ns", "web", Some(labels(json!({"app": "web"}))));
        owners.observe_service("ns", "front", Some(labels(json!({"tier": "front"}))));
        owners.observe_service("ns", "any", Some(labels(json!({}))));
        owners.observe_service("ns", "other", Some(labels(json!({"app": "db"}))));
        owners.observe_service("elsewhere", "web", Some(labels(json!({"x": "y"}))));
        let set = json!({"matchLabels": {"app": "other"}, "matchExpressions": [{"key": "h", "operator": "Exists"}]});
        owners.observe_workload("ReplicaSet", PodKey::new("ns", "rs"), Some(selector(set)));
        let rc = json!({"matchLabels": {"app": "rc"}});
        owners.observe_workload("ReplicationController", PodKey::new("ns", "rc"), Some(selector(rc)));

        let cases = [
            (
                "no owner",
                json!(null),
                json!({"matchLabels": {"app": "web", "tier": "front"}}),
            ),
            (
                "an owner that is not known",
                json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "rs", "controller": true}),
                json!({"matchLabels": {"app": "web", "tier": "front"}}),
            ),
            (
                "a replica set narrows",
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": true}),
                json!({"matchLabels": {"app": "web", "tier": "front"}, "matchExpressions": [
                    {"key": "app", "operator": "In", "values": ["other"]}, {"key": "h", "operator": "Exists"}]}),
            ),
            (
                "a thing of another group with that name",
                json!({"apiVersion": "example.com/v1", "kind": "ReplicaSet", "name": "rs", "controller": true}),
                json!({"matchLabels": {"app": "web", "tier": "front"}}),
            ),
            (
                "a replication controller takes over",
                json!({"apiVersion": "v1", "kind": "ReplicationController", "name": "rc", "controller": true}),
                json!({"matchLabels": {"app": "rc", "tier": "front"}}),
            ),
            (
                "an owner that is no controller",
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs"}),
                json!({"matchLabels": {"app": "web", "tier": "front"}}),
            ),
        ];
        for (case, owner, want) in cases {
            let owners = if owner.is_null() { json!([]) } else { json!([owner]) };
            let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "1", "ownerReferences": owners,
                "labels": {"app": "web", "tier": "front"}}});
            let pod = cluster.decode(serde_json::from_value(pod).unwrap());
            assert_eq!(cluster.owners.selector_for(&pod), selector(want), "{case}");
        }
    }

    #[test]
    fn versions_move_with_changes_in_the_namespace() {
        let mut owners = Owners::default();
        assert_eq!(owners.version_in("a"), None);
        owners.observe_service("a", "s", Some(Labels::new()));
        let first = owners.version_in("a");
        owners.observe_service("b", "s", Some(Labels::new()));
        owners.observe_service("a", "s", Some(Labels::new()));
        assert_eq!(owners.version_in("a"), first);
        owners.observe_service("a", "t", Some(Labels::new()));
        assert_ne!(owners.version_in("a"), first);
        owners.observe_service("a", "s", None);
        owners.observe_service("a", "t", None);
        assert_eq!(owners.version_in("a"), None);
    }
}
