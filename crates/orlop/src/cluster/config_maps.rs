//! Objects of kube-system that kubeadm makes, and how they are written.
// Upstream: cmd/kubeadm/app/phases/kubelet/config.go (v1.36)

use orlop_client::{Api, Error, path};
use orlop_kubelet::config::effective;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "kube-system";
const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";
const KUBELET_CONFIG: &str = "kubelet-config";
const KUBELET_CONFIG_ROLE: &str = "kubeadm:kubelet-config";

/// False if it is there already.
pub(crate) async fn create_if_absent(
    admin: &Api,
    api_version: &str,
    resource: &str,
    object: &Value,
) -> anyhow::Result<bool> {
    let path = path::collection(api_version, Some(NAMESPACE), resource);
    match admin.create::<IgnoredAny>(&path, object).await {
        Ok(_) => Ok(true),
        Err(Error::AlreadyExists(_)) => Ok(false),
        Err(error) => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            anyhow::bail!("failed to write {resource}/{name}: {error}")
        }
    }
}

/// Shows the configuration that this node's kubelet has, for people and for machines that join. What is there is
/// replaced: it says what is, and nobody follows it.
pub(crate) async fn publish_kubelet_config(admin: &Api, document: &Value) -> anyhow::Result<()> {
    let text = effective::to_yaml(document)?;
    let head = "# The kubelet configuration in effect, written by orlop at each start. Changes here have no effect.\n";
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": KUBELET_CONFIG, "namespace": NAMESPACE},
        "data": {"kubelet": format!("{head}{text}")},
    });
    if !create_if_absent(admin, "v1", "configmaps", &map).await? {
        let path = path::object("v1", Some(NAMESPACE), "configmaps", KUBELET_CONFIG);
        admin
            .patch_merge::<IgnoredAny>(&path, &json!({"data": map["data"]}))
            .await?;
    }
    let (role, binding) = kubelet_config_role();
    create_if_absent(admin, RBAC_V1, "roles", &role).await?;
    create_if_absent(admin, RBAC_V1, "rolebindings", &binding).await?;
    Ok(())
}

/// Nodes may read it.
fn kubelet_config_role() -> (Value, Value) {
    let metadata = json!({"name": KUBELET_CONFIG_ROLE, "namespace": NAMESPACE});
    let role = json!({
        "apiVersion": RBAC_V1, "kind": "Role", "metadata": metadata,
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [KUBELET_CONFIG], "verbs": ["get"],
        }],
    });
    let binding = json!({
        "apiVersion": RBAC_V1, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": KUBELET_CONFIG_ROLE},
        "subjects": [
            {"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"},
            {"apiGroup": RBAC, "kind": "Group", "name": "system:bootstrappers:kubeadm:default-node-token"},
        ],
    });
    (role, binding)
}
