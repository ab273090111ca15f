//! Small clusters with storage, for tests: objects are written as the API writes them.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::event::Event;
use crate::framework::points::{AnyFilter, Plugin};
use crate::framework::verdict::{PreFilter, Rejection};

#[derive(Default)]
pub struct World {
    pub cluster: Cluster,
    revision: u64,
}

const SEEN: &str = "something changed";

impl World {
    /// The object with a name and a new revision.
    fn object<T: serde::de::DeserializeOwned>(&mut self, namespace: &str, name: &str, mut object: Value) -> T {
        self.revision += 1;
        let metadata = json!({
            "name": name,
            "namespace": namespace,
            "uid": format!("uid-{name}"),
            "resourceVersion": self.revision.to_string(),
        });
        merge(&mut object["metadata"], metadata);
        serde_json::from_value(object).unwrap()
    }

    pub fn node(&mut self, name: &str, labels: Value) -> &NodeInfo {
        let node = self.object("", name, json!({"metadata": {"labels": labels}}));
        let id = self.cluster.observe_node(&node);
        self.cluster.node(id).unwrap()
    }

    /// A pod in namespace `default` with these volumes.
    pub fn pod(&mut self, name: &str, volumes: Value) -> Arc<PodInfo> {
        self.pod_with(name, json!({"spec": {"volumes": volumes}}))
    }

    pub fn pod_with(&mut self, name: &str, object: Value) -> Arc<PodInfo> {
        let pod = self.object("default", name, object);
        self.cluster.decode(pod)
    }

    /// A pod that runs on the node.
    pub fn place(&mut self, name: &str, volumes: Value, node: &str) -> Arc<PodInfo> {
        let pod = self.pod_with(name, json!({"spec": {"volumes": volumes, "nodeName": node}}));
        self.cluster.add_pod(pod.clone());
        pod
    }

    pub fn claim(&mut self, name: &str, object: Value) -> Event {
        let claim = self.object("default", name, object);
        let event = self.cluster.storage.observe_claim("default", name, Some(claim));
        event.expect(SEEN)
    }

    pub fn volume(&mut self, name: &str, object: Value) -> Event {
        let volume = self.object("", name, object);
        self.cluster.storage.observe_volume(name, Some(volume)).expect(SEEN)
    }

    pub fn class(&mut self, name: &str, object: Value) -> Event {
        let class = self.object("", name, object);
        self.cluster.storage.observe_class(name, Some(class)).expect(SEEN)
    }

    pub fn csi_node(&mut self, name: &str, object: Value) -> Event {
        let node = self.object("", name, object);
        self.cluster.storage.observe_csi_node(name, Some(node)).expect(SEEN)
    }

    pub fn driver(&mut self, name: &str, object: Value) -> Event {
        let driver = self.object("", name, object);
        self.cluster.storage.observe_driver(name, Some(driver)).expect(SEEN)
    }

    pub fn capacity(&mut self, name: &str, object: Value) -> Event {
        let capacity = self.object("kube-system", name, object);
        let event = (self.cluster.storage).observe_capacity("kube-system", name, Some(capacity));
        event.expect(SEEN)
    }

    pub fn attachment(&mut self, name: &str, object: Value) -> Event {
        let attachment = self.object("", name, object);
        let event = self.cluster.storage.observe_attachment(name, Some(attachment));
        event.expect(SEEN)
    }

    /// What the plugin says of every node, by name: `skip`, `ok`, or U/UU with the reasons.
    pub fn ask(&self, plugin: &dyn Plugin, pod: &PodInfo) -> String {
        let filter: &dyn AnyFilter = plugin.filter().unwrap();
        let state = match filter.pre_filter(pod, &self.cluster) {
            PreFilter::Skip => return "skip".into(),
            PreFilter::Reject(rejection) => return format!("all {}", shown(&rejection)),
            PreFilter::Run(state) => state,
            PreFilter::Only(_, nodes) => return format!("only {nodes:?}"),
        };
        let mut nodes: Vec<&NodeInfo> = self.cluster.nodes().collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let answers = nodes.iter().map(|node| match filter.filter(&state, pod, node) {
            Ok(()) => format!("{}: ok", node.name),
            Err(rejection) => format!("{}: {}", node.name, shown(&rejection)),
        });
        answers.collect::<Vec<_>>().join("; ")
    }
}

fn shown(rejection: &Rejection) -> String {
    let code = if rejection.unresolvable { "UU" } else { "U" };
    format!("{code} {}", rejection.message())
}

fn merge(into: &mut Value, from: Value) {
    if into.is_null() {
        *into = json!({});
    }
    for (key, value) in from.as_object().unwrap() {
        if into.get(key).is_none() {
            into[key] = value.clone();
        }
    }
}

/// A volume of a pod that stands for a claim.
pub fn uses(claim: &str) -> Value {
    json!({"name": format!("v-{claim}"), "persistentVolumeClaim": {"claimName": claim}})
}
