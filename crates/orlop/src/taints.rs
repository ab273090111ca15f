//! Taints that follow the conditions of nodes: a node that is not ready, or runs short of something, takes no more pods.
//!
//! This is the part of Kubernetes' node lifecycle controller that a cluster with nodes can't do without, and goes when
//! that controller comes: the API server taints every new node as not ready, and somebody has to take that away.
// Upstream: pkg/controller/nodelifecycle doNoScheduleTaintingPass (v1.36)

use std::time::Duration;

use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Error, Selection, path};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

const NO_SCHEDULE: &str = "NoSchedule";
/// What could not be written is looked at again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// Condition, its status, and the taint it calls for.
const RULES: [(&str, &str, &str); 6] = [
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Taint {
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
    effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_added: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

/// The node's taints as they should be; none if they are. Taints of others stay.
fn plan_taints(node: &Node) -> Option<Vec<Taint>> {
    // A node that has not said anything yet keeps the taint it was born with.
    let ready = |c: &Condition| c.r#type == "Ready";
    if !node.status.conditions.iter().any(ready) {
        return None;
    }
    let holds = |(condition, status, _): &(&str, &str, &str)| {
        let conditions = node.status.conditions.iter();
        conditions
            .into_iter()
            .any(|c| c.r#type == *condition && c.status == *status)
    };
    let mut wanted: Vec<&str> = RULES.iter().filter(|rule| holds(rule)).map(|rule| rule.2).collect();
    if node.spec.unschedulable {
        wanted.push(UNSCHEDULABLE);
    }
    let ours = |taint: &Taint| {
        taint.effect == NO_SCHEDULE && (taint.key == UNSCHEDULABLE || RULES.iter().any(|rule| rule.2 == taint.key))
    };
    let mut taints = node.spec.taints.clone();
    taints.retain(|taint| !ours(taint) || wanted.contains(&taint.key.as_str()));
    for key in wanted {
        if !taints
            .iter()
            .any(|taint| taint.key == key && taint.effect == NO_SCHEDULE)
        {
            taints.push(Taint {
                key: key.to_string(),
                effect: NO_SCHEDULE.to_string(),
                ..Taint::default()
            });
        }
    }
    (taints != node.spec.taints).then_some(taints)
}

/// Follows all nodes until the shutdown.
pub async fn run(api: Api, shutdown: Shutdown) {
    let (sender, mut deltas) = mpsc::channel(64);
    let selection = Selection::all(path::collection("v1", None, "nodes"));
    tokio::spawn(orlop_client::watch::<Node>(
        api.clone(),
        selection,
        sender,
        shutdown.clone(),
    ));
    let follow = async {
        while let Some(delta) = deltas.recv().await {
            let nodes = match delta {
                Delta::Reset(nodes) => nodes,
                Delta::Applied(node) => vec![node],
                Delta::Deleted(_) | Delta::Bookmark(_) => vec![],
            };
            for node in nodes {
                put_right(&api, &node).await;
            }
        }
    };
    tokio::select! {
        _ = follow => {}
        _ = shutdown.wait() => {}
    }
}

async fn put_right(api: &Api, node: &Node) {
    let at = path::object("v1", None, "nodes", &node.metadata.name);
    let mut node = node.clone();
    while let Some(taints) = plan_taints(&node) {
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints},
        });
        match api.patch_merge::<IgnoredAny>(&at, &patch).await {
            // Another change of the node: its own event follows, and with it the next look.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => return,
            Err(error) => tracing::warn!("taints of node {}: {}", node.metadata.name, error.chain()),
        }
        tokio::time::sleep(AGAIN).await;
        match api.get(&at).await {
            Ok(now) => node = now,
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn taints_follow_conditions() {
        let node = |conditions: &[(&str, &str)], unschedulable: bool, taints: Value| -> Node {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(t, s)| json!({"type": t, "status": s}))
                .collect();
            let spec = json!({"unschedulable": unschedulable, "taints": taints});
            serde_json::from_value(json!({"spec": spec, "status": {"conditions": conditions}})).unwrap()
        };
        let taint = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "effect": "NoSchedule"});
        let mine = json!({"key": "mine", "value": "1", "effect": "NoExecute"});
        let (ready, not_ready) = (("Ready", "True"), ("Ready", "False"));
        let cases = [
            (node(&[], false, json!([taint("not-ready")])), None),
            (node(&[ready], false, json!([])), None),
            (
                node(&[ready], false, json!([taint("not-ready"), mine])),
                Some(vec!["mine"]),
            ),
            (
                node(&[not_ready], false, json!([])),
                Some(vec!["node.kubernetes.io/not-ready"]),
            ),
            (node(&[not_ready], false, json!([taint("not-ready")])), None),
            (
                node(&[ready, ("DiskPressure", "True")], true, json!([mine])),
                Some(vec![
                    "mine",
                    "node.kubernetes.io/disk-pressure",
                    "node.kubernetes.io/unschedulable",
                ]),
            ),
            (
                node(&[("Ready", "Unknown")], false, json!([taint("not-ready")])),
                Some(vec!["node.kubernetes.io/unreachable"]),
            ),
        ];
        for (node, expected) in cases {
            let planned = plan_taints(&node);
            let keys = planned
                .as_ref()
                .map(|taints| taints.iter().map(|t| t.key.as_str()).collect::<Vec<_>>());
            assert_eq!(keys, expected, "{node:?}");
        }
    }
}
