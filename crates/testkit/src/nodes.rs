//! Nodes that are only objects: enough for a scheduler to place pods on.

use http::Method;
use serde_json::{Value, json};

use crate::Http;

/// A ready node of this size and with these labels (beside its hostname), without taints.
pub async fn add_node(http: &Http, name: &str, cpu: &str, memory: &str, labels: &[(&str, &str)]) {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}});
    for (key, value) in labels {
        node["metadata"]["labels"][*key] = Value::from(*value);
    }
    http.post("/api/v1/nodes", &node).await.expect(201);
    let path = format!("/api/v1/nodes/{name}");
    let merge = [("content-type", "application/merge-patch+json")];
    let size = json!({"cpu": cpu, "memory": memory, "pods": "110"});
    let status = json!({"status": {"capacity": size, "allocatable": size,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "an object only"}]}});
    let answer = http
        .ask(
            Method::PATCH,
            &format!("{path}/status"),
            &merge,
            status.to_string().into_bytes(),
        )
        .await;
    answer.expect("the server answers").expect(200);
    let clean = json!({"spec": {"taints": null}}).to_string().into_bytes();
    let answer = http.ask(Method::PATCH, &path, &merge, clean).await;
    answer.expect("the server answers").expect(200);
}
