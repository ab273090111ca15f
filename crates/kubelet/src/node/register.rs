//! A new Node object for this node, what an object that is there already lacks, and the lease.
// Upstream: pkg/kubelet/kubelet_node_status.go, component-helpers/apimachinery/lease (v1.36)

use std::collections::BTreeMap;

use jiff::Timestamp;
use orlop_api::types::coordination::{Lease, LeaseSpec};
use orlop_api::types::core::{Node, NodeSpec, NodeStatus};
use orlop_api::types::meta::{MicroTime, ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use super::{Identity, OS, architecture};
use crate::config::Config;

const HOSTNAME: &str = "kubernetes.io/hostname";
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
pub const LEASES: &str = "coordination.k8s.io/v1";

/// Labels that the kubelet owns; others are set when the node is registered and then left alone.
const KEPT: [&str; 11] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

fn labels(identity: &Identity) -> BTreeMap<String, String> {
    let own = [
        (HOSTNAME, identity.hostname.as_str()),
        ("kubernetes.io/os", OS),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", OS),
        ("beta.kubernetes.io/arch", architecture()),
    ];
    let mut all: BTreeMap<String, String> = own.map(|(k, v)| (k.to_string(), v.to_string())).into();
    all.extend(identity.labels.clone());
    all
}

pub fn new_node(identity: &Identity, config: &Config, pod_cidr: Option<&str>, status: NodeStatus) -> Node {
    let attach = [(ATTACH_DETACH.to_string(), "true".to_string())];
    let cidrs: Vec<String> = pod_cidr.iter().flat_map(|c| c.split(',')).map(str::to_string).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            labels: Some(labels(identity)),
            annotations: config.enable_controller_attach_detach.then(|| attach.into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(config.register_with_taints.clone()).filter(|t| !t.is_empty()),
            provider_id: Some(config.provider_id.clone()).filter(|id| !id.is_empty()),
            pod_cidr: cidrs.first().cloned(),
            pod_cidrs: Some(cidrs).filter(|c| !c.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// What to change in a Node object that was there before; none if it is as it should be.
pub fn reconcile(existing: &Node, wanted: &Node) -> Option<Value> {
    let empty = BTreeMap::new();
    let has = existing.metadata.labels.as_ref().unwrap_or(&empty);
    let wants = wanted.metadata.labels.as_ref().unwrap_or(&empty);
    let mut labels = serde_json::Map::new();
    for name in KEPT {
        if let Some(value) = wants.get(name)
            && has.get(name) != Some(value)
        {
            labels.insert(name.to_string(), json!(value));
        }
    }
    let annotation = |node: &Node| {
        node.metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(ATTACH_DETACH).cloned())
    };
    let mut metadata = serde_json::Map::new();
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    if annotation(existing) != annotation(wanted) {
        metadata.insert("annotations".into(), json!({ATTACH_DETACH: annotation(wanted)}));
    }
    let mut patch = json!({});
    if !metadata.is_empty() {
        patch["metadata"] = metadata.into();
    }
    // Nobody may have said which range the pods of this node are in.
    let range = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|s| s.pod_cidrs.clone())
            .filter(|c| !c.is_empty())
    };
    if let (None, Some(cidrs)) = (range(existing), range(wanted)) {
        patch["spec"] = json!({"podCIDR": cidrs[0], "podCIDRs": cidrs});
    }
    patch.as_object().is_some_and(|p| !p.is_empty()).then_some(patch)
}

/// The lease, renewed: a new one, or the old one with what others added.
pub fn lease(old: Option<Lease>, identity: &Identity, node_uid: Option<&str>, seconds: i32, now: Timestamp) -> Lease {
    let mut lease = old.unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            namespace: Some(LEASE_NAMESPACE.to_string()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(identity.name.clone());
    spec.lease_duration_seconds = Some(seconds);
    spec.renew_time = Some(MicroTime(now));
    // The lease goes with its node.
    if let Some(uid) = node_uid.filter(|uid| !uid.is_empty()) {
        let owners = lease.metadata.owner_references.get_or_insert_default();
        if owners.is_empty() {
            owners.push(OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: identity.name.clone(),
                uid: uid.to_string(),
                ..OwnerReference::default()
            });
        }
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn identity(labels: &[(&str, &str)]) -> Identity {
        Identity {
            name: "n1".into(),
            hostname: "h1".into(),
            addresses: vec![],
            labels: labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            port: 1,
        }
    }

    #[test]
    fn a_new_node_and_what_an_old_one_lacks() {
        let taints = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
        let config = parse(None, &[("registerWithTaints", taints)]).unwrap();
        let identity = identity(&[("node.kubernetes.io/instance-type", "small"), ("mine", "1")]);
        let node = new_node(&identity, &config, Some("10.244.0.0/24"), NodeStatus::default());
        let labels = node.metadata.labels.clone().unwrap();
        assert_eq!(labels.len(), 7);
        assert_eq!(
            (labels["kubernetes.io/hostname"].as_str(), labels["mine"].as_str()),
            ("h1", "1")
        );
        let spec = node.spec.clone().unwrap();
        assert_eq!(
            (spec.pod_cidr.as_deref(), spec.taints.unwrap().len()),
            (Some("10.244.0.0/24"), 1)
        );
        assert_eq!(reconcile(&node, &node), None);
        let mut old = node.clone();
        old.metadata.annotations = None;
        let labels = old.metadata.labels.as_mut().unwrap();
        labels.insert("node.kubernetes.io/instance-type".into(), "large".into());
        labels.insert("beta.kubernetes.io/os".into(), "plan9".into());
        labels.remove("mine");
        old.spec = None;
        let expected = json!({
            "metadata": {
                "labels": {"node.kubernetes.io/instance-type": "small", "beta.kubernetes.io/os": "linux"},
                "annotations": {ATTACH_DETACH: "true"},
            },
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        });
        assert_eq!(reconcile(&old, &node), Some(expected));
        // A range that is there stays.
        let mut other = node.clone();
        other.spec.as_mut().unwrap().pod_cidrs = Some(vec!["10.9.0.0/24".into()]);
        assert_eq!(reconcile(&other, &node), None);
    }

    #[test]
    fn leases() {
        let now: Timestamp = "2026-01-01T00:00:00.123456789Z".parse().unwrap();
        let lease_0 = lease(None, &identity(&[]), None, 40, now);
        assert_eq!(lease_0.metadata.namespace.as_deref(), Some("kube-node-lease"));
        assert!(lease_0.metadata.owner_references.is_none());
        let lease_1 = lease(Some(lease_0), &identity(&[]), Some("u1"), 40, now);
        let lease_2 = lease(Some(lease_1), &identity(&[]), Some("u2"), 40, now);
        assert_eq!(lease_2.metadata.owner_references.unwrap()[0].uid, "u1");
        let spec = lease_2.spec.unwrap();
        assert_eq!(
            (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
            (Some("n1"), Some(40))
        );
        assert_eq!(spec.renew_time.unwrap().0.to_string(), "2026-01-01T00:00:00.123456Z");
    }
}
