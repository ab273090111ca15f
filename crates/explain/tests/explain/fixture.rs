//! Clusters as short text.
//!
//! ```text
//! node n1 {taints: [{key: k, effect: NoSchedule}]}        4 cpu, 8Gi, 10 pods
//! pod web-1 {on: n1, cpu: 1}                              anything else is spec
//! pod p {cpu: 2}                                          the pod in question is called p
//! object {kind: PersistentVolumeClaim, …}
//! config {…}                                              KubeSchedulerConfiguration
//! unreadable nodes
//! event {reason: …}
//! ```

use orlop_explain::pod::explain;
use orlop_explain::{PodExplanation, PodFacts, Snapshot, Unreadable, World};
use orlop_scheduler::config;
use orlop_scheduler::model::Pod;
use serde_json::{Map, Value, json};

pub(crate) struct Case {
    pub world: World,
    pub pod: Value,
    pub facts: PodFacts,
}

fn yaml(text: &str) -> Value {
    match text.trim() {
        "" => json!({}),
        text => serde_saphyr::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}")),
    }
}

fn take(map: &mut Map<String, Value>, key: &str) -> Value {
    map.remove(key).unwrap_or(Value::Null)
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (into, from) => *into = from.clone(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

pub(crate) fn node(name: &str, given: Value) -> Value {
    let mut given = given.as_object().cloned().unwrap_or_default();
    let mut labels = json!({"kubernetes.io/hostname": name});
    merge(&mut labels, &take(&mut given, "labels"));
    labels.as_object_mut().unwrap().retain(|_, value| *value != "-");
    let mut allocatable = json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "20Gi", "pods": "10"});
    for resource in [
        "cpu",
        "memory",
        "pods",
        "ephemeral-storage",
        "example.com/gpu",
        "hugepages-2Mi",
    ] {
        match take(&mut given, resource) {
            Value::Null => {}
            amount => allocatable[resource] = text_of(&amount).into(),
        }
    }
    let features = take(&mut given, "declaredFeatures");
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels}, "spec": given,
           "status": {"allocatable": allocatable, "declaredFeatures": if features.is_null() { json!([]) } else { features }}})
}

pub(crate) fn pod(name: &str, given: Value) -> Value {
    let mut given = given.as_object().cloned().unwrap_or_default();
    let mut requests = json!({});
    for resource in ["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi"] {
        match take(&mut given, resource) {
            Value::Null => {}
            amount => requests[resource] = text_of(&amount).into(),
        }
    }
    let mut metadata = json!({"namespace": "default", "name": name, "uid": format!("uid-{name}"),
                              "creationTimestamp": "2026-01-01T00:00:00Z"});
    metadata["labels"] = take(&mut given, "labels");
    if let Value::String(owner) = take(&mut given, "owner") {
        let (kind, name) = owner.split_once('/').unwrap();
        metadata["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "o", "controller": true}]);
    }
    if given.remove("deleted").is_some() {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:01Z".into();
    }
    let mut status = json!({"phase": "Pending"});
    merge(&mut status, &take(&mut given, "status"));
    if status["conditions"].is_null() && given.remove("untried").is_none() && !given.contains_key("on") {
        status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    }
    let mut spec = json!({"schedulerName": "default-scheduler",
                          "containers": [{"name": "c", "image": "app", "resources": {"requests": requests}}]});
    if let Value::String(node) = take(&mut given, "on") {
        spec["nodeName"] = node.into();
    }
    merge(&mut spec, &Value::Object(given));
    without_nulls(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let all = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(all.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

pub(crate) fn case(text: &str) -> Case {
    let mut snapshot = Snapshot::default();
    let mut configuration = config::Config::default();
    let (mut asked, mut events) = (Value::Null, vec![]);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let named = || {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            (name, yaml(rest))
        };
        let object = match kind {
            "node" => node(named().0, named().1),
            "pod" => {
                let object = pod(named().0, named().1);
                if named().0 == "p" {
                    asked = object.clone();
                }
                object
            }
            "object" => yaml(rest),
            "event" => {
                events.push(yaml(rest));
                continue;
            }
            "config" => {
                let mut document = yaml(rest);
                document["apiVersion"] = "kubescheduler.config.k8s.io/v1".into();
                document["kind"] = "KubeSchedulerConfiguration".into();
                configuration = config::parse(&document.to_string(), &[])
                    .expect("a valid configuration")
                    .0;
                continue;
            }
            "unreadable" => {
                snapshot.unreadable.push(Unreadable {
                    resource: rest.to_string(),
                    message: format!("{rest} is forbidden"),
                });
                continue;
            }
            other => panic!("{other}?"),
        };
        assert!(snapshot.add(&object).unwrap(), "{object}");
    }
    let facts = PodFacts::new(&asked, &events);
    Case {
        world: World::new(snapshot, &configuration).unwrap(),
        pod: asked,
        facts,
    }
}

impl Case {
    pub(crate) fn explain(&mut self) -> PodExplanation {
        explain(&mut self.world, &self.facts)
    }

    pub(crate) fn model(&self) -> Pod {
        serde_json::from_value(self.pod.clone()).unwrap()
    }
}
