//! The priority classes of pods that the cluster itself cannot do without.
//!
//! Upstream: pkg/apis/scheduling/v1/helpers.go (v1.36).

use serde_json::{Value, json};

/// The priority from which on a pod is critical; users' classes end well below it.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

pub fn priority_classes() -> Vec<Value> {
    [
        (
            "system-node-critical",
            SYSTEM_CRITICAL + 1000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            SYSTEM_CRITICAL,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .map(|(name, value, description)| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description})
    })
    .into()
}
