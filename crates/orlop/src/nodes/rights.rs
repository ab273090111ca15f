//! What the network of worker nodes may do: read what policies and names are about, and publish DNS servers.

use orlop_client::{Api, Error, path};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// As whom agents enforce network policies and answer for names.
pub(super) const NETWORK_USER: &str = "system:orlop:node-network";

const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

/// The objects, each with its resource and namespace.
fn objects() -> Vec<(&'static str, Option<&'static str>, Value)> {
    let read = ["get", "list", "watch"];
    let write = ["get", "create", "update", "patch", "delete"];
    let system = Some("kube-system");
    let object = |kind: &str, namespace: Option<&str>, rest: Value| {
        let mut object = json!({"apiVersion": RBAC_V1, "kind": kind, "metadata": {"name": NETWORK_USER}});
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        for (key, value) in rest.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let bound = |role: &str| {
        json!({
            "roleRef": {"apiGroup": RBAC, "kind": role, "name": NETWORK_USER},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": NETWORK_USER}],
        })
    };
    let everywhere = json!({"rules": [
        rule(&[""], &["services", "pods", "namespaces", "nodes"], &read),
        rule(&["discovery.k8s.io"], &["endpointslices"], &read),
        rule(&["networking.k8s.io"], &["networkpolicies"], &read),
    ]});
    let in_system = json!({"rules": [
        rule(&[""], &["services"], &write),
        rule(&["discovery.k8s.io"], &["endpointslices"], &write),
        rule(&[""], &["configmaps"], &read),
    ]});
    vec![
        ("clusterroles", None, object("ClusterRole", None, everywhere)),
        (
            "clusterrolebindings",
            None,
            object("ClusterRoleBinding", None, bound("ClusterRole")),
        ),
        ("roles", system, object("Role", system, in_system)),
        ("rolebindings", system, object("RoleBinding", system, bound("Role"))),
    ]
}

/// Makes what is not there yet.
pub(super) async fn grant(admin: &Api) -> Result<(), Error> {
    for (resource, namespace, object) in objects() {
        let path = path::collection(RBAC_V1, namespace, resource);
        match admin.create::<IgnoredAny>(&path, &object).await {
            Ok(_) | Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
