use orlop_api::selector::FieldSelector;
use serde_json::json;

use super::*;
use crate::authn::UserInfo;
use crate::lookup::fixture::Objects;

fn pod(name: &str, node: &str, annotations: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "annotations": annotations},
        "spec": {"nodeName": node, "serviceAccountName": format!("sa-{node}"), "volumes": [
            {"name": "s", "secret": {"secretName": format!("secret-{node}")}},
            {"name": "c", "configMap": {"name": format!("config-{node}")}},
            {"name": "p", "persistentVolumeClaim": {"claimName": format!("claim-{node}")}}]}})
}

fn cluster() -> Objects {
    let volume = |node: &str| {
        json!({"metadata": {"name": format!("pv-{node}")}, "spec": {
            "claimRef": {"namespace": "ns", "name": format!("claim-{node}")},
            "csi": {"nodePublishSecretRef": {"namespace": "storage", "name": format!("mount-{node}")}}}})
    };
    let on_node = |name: &str, node: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
    Objects::default()
        .with("pods", pod("web", "n1", json!({})))
        .with("pods", pod("db", "n2", json!({})))
        .with("pods", pod("static", "n3", json!({MIRROR_ANNOTATION: "x"})))
        .with("persistentvolumes", volume("n1"))
        .with("persistentvolumes", volume("n2"))
        .with("volumeattachments.storage.k8s.io", on_node("va-1", "n1"))
        .with("resourceslices.resource.k8s.io", on_node("slice-1", "n1"))
        .with("resourceslices.resource.k8s.io", on_node("slice-2", "n2"))
}

#[test]
fn truth_table() {
    // node, verb, group/resource/subresource, namespace, name, field selector, allowed
    let cases = [
        ("n1", "get", "core/secrets", "ns", "secret-n1", "", true),
        ("n1", "watch", "core/secrets", "ns", "secret-n1", "", true),
        ("n1", "get", "core/secrets", "ns", "secret-n2", "", false),
        ("n1", "get", "core/secrets", "other", "secret-n1", "", false),
        ("n1", "list", "core/secrets", "ns", "", "", false),
        ("n1", "list", "core/secrets", "", "", "", false),
        ("n1", "update", "core/secrets", "ns", "secret-n1", "", false),
        ("n1", "get", "core/secrets", "storage", "mount-n1", "", true),
        ("n1", "get", "core/secrets", "storage", "mount-n2", "", false),
        ("n3", "get", "core/secrets", "ns", "secret-n3", "", false),
        ("n1", "get", "core/configmaps", "ns", "config-n1", "", true),
        ("n1", "get", "core/configmaps", "ns", "config-n2", "", false),
        ("n1", "get", "core/persistentvolumeclaims", "ns", "claim-n1", "", true),
        ("n1", "list", "core/persistentvolumeclaims", "ns", "claim-n1", "", false),
        (
            "n1",
            "patch",
            "core/persistentvolumeclaims/status",
            "ns",
            "claim-n1",
            "",
            true,
        ),
        (
            "n1",
            "patch",
            "core/persistentvolumeclaims/status",
            "ns",
            "claim-n2",
            "",
            false,
        ),
        (
            "n1",
            "delete",
            "core/persistentvolumeclaims/status",
            "ns",
            "claim-n1",
            "",
            false,
        ),
        ("n1", "get", "core/persistentvolumes", "", "pv-n1", "", true),
        ("n1", "get", "core/persistentvolumes", "", "pv-n2", "", false),
        ("n1", "get", "core/persistentvolumes", "", "gone", "", false),
        ("n1", "create", "core/serviceaccounts/token", "ns", "sa-n1", "", true),
        ("n1", "create", "core/serviceaccounts/token", "ns", "sa-n2", "", false),
        ("n1", "create", "core/serviceaccounts", "ns", "sa-n1", "", false),
        ("n1", "get", "core/serviceaccounts", "ns", "sa-n1", "", true),
        ("n1", "list", "core/serviceaccounts", "ns", "", "", false),
        ("n1", "get", "storage.k8s.io/volumeattachments", "", "va-1", "", true),
        ("n2", "get", "storage.k8s.io/volumeattachments", "", "va-1", "", false),
        (
            "n1",
            "update",
            "resource.k8s.io/resourceslices",
            "",
            "slice-1",
            "",
            true,
        ),
        (
            "n1",
            "delete",
            "resource.k8s.io/resourceslices",
            "",
            "slice-2",
            "",
            false,
        ),
        ("n1", "create", "resource.k8s.io/resourceslices", "", "", "", true),
        (
            "n1",
            "list",
            "resource.k8s.io/resourceslices",
            "",
            "",
            "spec.nodeName=n1",
            true,
        ),
        (
            "n1",
            "deletecollection",
            "resource.k8s.io/resourceslices",
            "",
            "",
            "spec.nodeName=n2",
            false,
        ),
        ("n1", "list", "resource.k8s.io/resourceslices", "", "", "", false),
        (
            "n1",
            "update",
            "coordination.k8s.io/leases",
            "kube-node-lease",
            "n1",
            "",
            true,
        ),
        (
            "n1",
            "update",
            "coordination.k8s.io/leases",
            "kube-node-lease",
            "n2",
            "",
            false,
        ),
        ("n1", "update", "coordination.k8s.io/leases", "default", "n1", "", false),
        (
            "n1",
            "create",
            "coordination.k8s.io/leases",
            "kube-node-lease",
            "",
            "",
            true,
        ),
        (
            "n1",
            "list",
            "coordination.k8s.io/leases",
            "kube-node-lease",
            "",
            "",
            false,
        ),
        ("n1", "get", "storage.k8s.io/csinodes", "", "n1", "", true),
        ("n1", "get", "storage.k8s.io/csinodes", "", "n2", "", false),
        ("n1", "get", "core/nodes", "", "n1", "", true),
        ("n1", "get", "core/nodes", "", "n2", "", false),
        ("n1", "list", "core/nodes", "", "", "", false),
        ("n1", "create", "core/nodes", "", "", "", true),
        ("n1", "delete", "core/nodes", "", "n1", "", false),
        ("n1", "patch", "core/nodes/status", "", "n1", "", true),
        ("n1", "get", "core/pods", "ns", "web", "", true),
        ("n1", "get", "core/pods", "ns", "db", "", false),
        ("n1", "watch", "core/pods", "", "", "spec.nodeName=n1", true),
        ("n1", "watch", "core/pods", "", "", "spec.nodeName!=n1", false),
        ("n1", "watch", "core/pods", "", "", "", false),
        ("n1", "watch", "core/pods", "ns", "web", "", true),
        ("n1", "delete", "core/pods", "ns", "web", "", true),
        ("n1", "create", "core/pods/eviction", "ns", "web", "", true),
        ("n1", "get", "core/pods/log", "ns", "web", "", false),
        ("n1", "list", "core/services", "", "", "", true),
        ("n1", "create", "core/events", "ns", "", "", true),
        (
            "n1",
            "create",
            "certificates.k8s.io/certificatesigningrequests",
            "",
            "",
            "",
            true,
        ),
        (
            "n1",
            "get",
            "certificates.k8s.io/podcertificaterequests",
            "ns",
            "x",
            "",
            false,
        ),
        ("n1", "list", "apps/deployments", "", "", "", false),
        ("", "list", "core/services", "", "", "", false),
    ];
    let (objects, authorizer) = (cluster(), NodeAuthorizer::default());
    // Twice: the second time from memory.
    for _ in 0..2 {
        for (node, verb, resource, namespace, name, selector, allowed) in cases {
            let user = UserInfo::new(format!("system:node:{node}"), &["system:nodes"]);
            let parts: Vec<&str> = resource.split('/').collect();
            let selector = FieldSelector::parse(selector).unwrap();
            let attrs = Attributes {
                subresource: parts.get(2).unwrap_or(&""),
                namespace,
                name,
                field_selector: Some(&selector),
                ..Attributes::resource(&user, verb, if parts[0] == "core" { "" } else { parts[0] }, parts[1])
            };
            let decision = authorizer.authorize(&attrs, &objects);
            assert_eq!(
                decision.allowed, allowed,
                "{node} {verb} {resource} {namespace}/{name}: {}",
                decision.reason
            );
        }
    }
}

#[test]
fn remembered_answers_are_checked_again() {
    let (objects, authorizer) = (cluster(), NodeAuthorizer::default());
    let user = UserInfo::new("system:node:n1", &["system:nodes"]);
    let attrs = Attributes::resource(&user, "get", "", "secrets")
        .in_namespace("ns")
        .named("secret-n1");
    assert!(authorizer.authorize(&attrs, &objects).allowed);
    objects.remove("pods", "ns", "web");
    let decision = authorizer.authorize(&attrs, &objects);
    assert!(!decision.allowed);
    assert_eq!(
        &*decision.reason,
        "no relationship found between node 'n1' and this object"
    );
    objects.put("pods", pod("web-2", "n1", json!({})));
    assert!(authorizer.authorize(&attrs, &objects).allowed);
}

#[test]
fn only_nodes_are_its_business() {
    let objects = cluster();
    for (name, groups) in [("system:node:n1", &[][..]), ("alice", &["system:nodes"][..])] {
        let user = UserInfo::new(name, groups);
        let decision =
            NodeAuthorizer::default().authorize(&Attributes::resource(&user, "list", "", "services"), &objects);
        assert_eq!(decision, Decision::default(), "{name}");
    }
}
