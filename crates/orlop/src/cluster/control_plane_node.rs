//! The node that the control plane runs on: its role, and the taint that keeps pods away when there are nodes for them.
// Upstream: cmd/kubeadm/app/phases/markcontrolplane (v1.36)

use std::time::Duration;

use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Error, Failures, Selection, path};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const ROLE: &str = "node-role.kubernetes.io/control-plane";
const NOT_BEHIND_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Says that the taint was put on by us: what a user took off stays off, and what a user put on stays on.
const TAINTED: &str = "orlop.io/control-plane-taint";
const RETRY: Duration = Duration::from_secs(5);

/// The node and what else there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlPlaneNode {
    pub name: String,
    /// Other nodes that this process brings up and that run real pods. Simulated ones do not count: what is to run would
    /// have nowhere to go.
    pub further_nodes: usize,
}

/// What to change in the Node object; none if it is as it should be.
///
/// Differs from upstream: the label that keeps a node from behind load balancers comes with the taint only, since on a
/// machine alone it would leave services of type LoadBalancer without any node.
fn plan(node: &Value, further_nodes: usize) -> Option<Value> {
    let metadata = &node["metadata"];
    let has = |map: &str, key: &str| metadata[map].get(key).is_some();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let ours = |taint: &Value| taint["key"] == ROLE && taint["effect"] == "NoSchedule";
    let mut labels = serde_json::Map::new();
    if !has("labels", ROLE) {
        labels.insert(ROLE.into(), json!(""));
    }
    let mut patch = json!({"metadata": {}});
    match (further_nodes > 0, has("annotations", TAINTED)) {
        (true, false) => {
            labels.insert(NOT_BEHIND_LOAD_BALANCERS.into(), json!(""));
            let mut all: Vec<Value> = taints.into_iter().filter(|taint| !ours(taint)).collect();
            all.push(json!({"key": ROLE, "effect": "NoSchedule"}));
            patch["spec"] = json!({"taints": all});
            patch["metadata"]["annotations"] = json!({TAINTED: "true"});
        }
        (false, true) => {
            labels.insert(NOT_BEHIND_LOAD_BALANCERS.into(), Value::Null);
            let rest: Vec<Value> = taints.into_iter().filter(|taint| !ours(taint)).collect();
            patch["spec"] = json!({"taints": rest});
            patch["metadata"]["annotations"] = json!({TAINTED: null});
        }
        _ => {}
    }
    if !labels.is_empty() {
        patch["metadata"]["labels"] = labels.into();
    }
    let is_change = patch["metadata"]
        .as_object()
        .is_some_and(|metadata| !metadata.is_empty());
    // The list of taints is written as a whole: nobody else's may be lost.
    patch["metadata"]["resourceVersion"] = metadata["resourceVersion"].clone();
    is_change.then_some(patch)
}

/// Marks the node once it is there, and again should it be another one: a Node that was deleted and registered anew. Labels
/// that users take off later stay off until the next start, as with kubeadm.
pub(crate) async fn mark(api: Api, node: ControlPlaneNode, shutdown: Shutdown) {
    let selection =
        Selection::all(path::collection("v1", None, "nodes")).with_fields(&format!("metadata.name={}", node.name));
    let (sender, mut deltas) = mpsc::channel(16);
    orlop_base::spawn(orlop_client::watch::<Value>(api.clone(), selection, sender, shutdown));
    let mut marked = Value::Null;
    let mut failures = Failures::default();
    while let Some(delta) = deltas.recv().await {
        let found = match delta {
            Delta::Reset(nodes) => nodes.into_iter().next(),
            Delta::Applied(node) => Some(node),
            Delta::Deleted(_) | Delta::Bookmark(_) => None,
        };
        let Some(found) = found.filter(|found| found["metadata"]["uid"] != marked) else {
            continue;
        };
        let mut outcome = patch(&api, &node, &found).await;
        while let Err(error) = outcome {
            // Somebody was quicker, most likely the kubelet.
            if !matches!(error, Error::Conflict(_)) {
                if failures.is_news(&error) {
                    tracing::warn!(
                        node = node.name,
                        err = error.chain(),
                        "failed to mark the control-plane node"
                    );
                }
                tokio::time::sleep(RETRY).await;
            }
            outcome = match api.get(&path::object("v1", None, "nodes", &node.name)).await {
                Ok(newer) => patch(&api, &node, &newer).await,
                Err(Error::NotFound(_)) => break,
                Err(error) => Err(error),
            };
        }
        marked = found["metadata"]["uid"].clone();
    }
}

async fn patch(api: &Api, node: &ControlPlaneNode, found: &Value) -> Result<(), Error> {
    let Some(patch) = plan(found, node.further_nodes) else {
        return Ok(());
    };
    let path = path::object("v1", None, "nodes", &node.name);
    api.patch_merge::<serde::de::IgnoredAny>(&path, &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node after the patch: labels, taints, annotations by name.
    fn patched(node: &mut Value, further_nodes: usize) -> Option<String> {
        let patch = plan(node, further_nodes)?;
        for map in ["labels", "annotations"] {
            for (key, value) in patch["metadata"][map].as_object().into_iter().flatten() {
                match value {
                    Value::Null => drop(node["metadata"][map].as_object_mut().unwrap().remove(key)),
                    value => node["metadata"][map][key] = value.clone(),
                }
            }
        }
        if let Some(taints) = patch["spec"].get("taints") {
            node["spec"]["taints"] = taints.clone();
        }
        let short = |key: &str| key.rsplit('/').next().unwrap().to_string();
        let keys = |map: &Value| -> Vec<String> { map.as_object().unwrap().keys().map(|key| short(key)).collect() };
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let taints: Vec<String> = taints.map(|taint| short(taint["key"].as_str().unwrap())).collect();
        Some(format!("{:?} {taints:?}", keys(&node["metadata"]["labels"])))
    }

    #[test]
    fn the_role_always_and_the_taint_with_other_nodes() {
        let node = || {
            json!({
                "metadata": {"name": "n", "resourceVersion": "7", "labels": {}, "annotations": {}},
                "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
            })
        };
        let mut alone = node();
        assert_eq!(patched(&mut alone, 0).unwrap(), r#"["control-plane"] ["not-ready"]"#);
        assert_eq!(patched(&mut alone, 0), None);
        // Started again with more nodes, then with one.
        let both = r#"["control-plane", "exclude-from-external-load-balancers"] ["not-ready", "control-plane"]"#;
        assert_eq!(patched(&mut alone, 2).unwrap(), both);
        assert_eq!(patched(&mut alone, 2), None);
        assert_eq!(patched(&mut alone, 0).unwrap(), r#"["control-plane"] ["not-ready"]"#);
        // A taint that a user took off.
        let mut wanted = node();
        assert_eq!(patched(&mut wanted, 1).unwrap(), both);
        wanted["spec"]["taints"] = json!([]);
        assert_eq!(patched(&mut wanted, 1), None);
        // And one that a user put on.
        let mut own = node();
        own["metadata"]["labels"][ROLE] = json!("");
        own["spec"]["taints"] = json!([{"key": ROLE, "effect": "NoSchedule"}]);
        assert_eq!(patched(&mut own, 0), None);
        assert_eq!(plan(&node(), 0).unwrap()["metadata"]["resourceVersion"], "7");
    }
}
