//! NodeMetrics and PodMetrics, made of an object and what its kubelet says. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use orlop_api::Value;
use orlop_base::clock::rfc3339;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::summary::NodeUsage;

/// Over how long kubelets measure, about: they don't say. It is the time between two looks of theirs.
pub(super) const WINDOW: &str = "10s";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Meta {
    pub name: String,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NodeSeen {
    pub metadata: Meta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl NodeSeen {
    /// A node that has not been heard of for long is not waited for.
    pub(super) fn is_heard_of(&self) -> bool {
        let lost = |c: &Condition| c.r#type == "Ready" && c.status == "Unknown";
        !self.status.conditions.iter().any(lost)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct PodSeen {
    pub metadata: Meta,
    pub spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(default)]
    pub node_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<IgnoredAny>,
}

impl PodSeen {
    pub(super) fn is_running(&self) -> bool {
        self.status.phase == "Running" && !self.spec.node_name.is_empty()
    }

    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    fn running(&self) -> impl Iterator<Item = &str> {
        let all = self.status.container_statuses.iter();
        all.chain(&self.status.init_container_statuses)
            .filter(|c| c.state.running.is_some())
            .map(|c| c.name.as_str())
    }
}

pub(super) fn node(node: &NodeSeen, usage: &NodeUsage, now: Timestamp) -> Option<Value> {
    let measured = usage.whole?;
    Some(json!({
        "metadata": metadata(&node.metadata, now), "timestamp": rfc3339(measured.at), "window": WINDOW,
        "usage": measured.usage.to_value(),
    }))
}

pub(super) fn pod(pod: &PodSeen, usage: &NodeUsage, now: Timestamp) -> Option<Value> {
    let used = usage.pods.get(&pod.key())?;
    let is_known = |name: &str| used.containers.iter().any(|(known, _)| **known == *name);
    if !pod.running().all(is_known) {
        return None;
    }
    let container =
        |(name, usage): &(Box<str>, orlop_api::metrics::Usage)| json!({"name": name, "usage": usage.to_value()});
    let containers: Vec<Value> = used.containers.iter().map(container).collect();
    Some(json!({
        "metadata": metadata(&pod.metadata, now), "timestamp": rfc3339(used.at), "window": WINDOW,
        "containers": containers,
    }))
}

fn metadata(of: &Meta, now: Timestamp) -> Value {
    let mut metadata = json!({"name": of.name, "creationTimestamp": rfc3339(now)});
    if !of.namespace.is_empty() {
        metadata["namespace"] = of.namespace.as_str().into();
    }
    if !of.labels.is_empty() {
        metadata["labels"] = json!(of.labels);
    }
    metadata
}
