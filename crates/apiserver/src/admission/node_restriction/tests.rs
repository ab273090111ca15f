use serde_json::json;

use super::*;
use crate::admission::certificates::tests::signing_request;
use crate::admission::fixture::{Desk, told, with};

fn kubelet() -> Desk {
    Desk::new()
        .user("system:node:n1", &["system:nodes"])
        .with("nodes", json!({"metadata": {"name": "n1", "uid": "uid-1"}}))
        .with("pods", pod("mine", "n1"))
        .with("pods", pod("other", "n2"))
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")}, "spec": {"nodeName": node}})
}

fn refused(what: &str, name: &str, why: &str) -> String {
    format!("{what} {name:?} is forbidden: {why}")
}

#[test]
fn only_kubelets_are_restricted() {
    let node = json!({"metadata": {"name": "n2"}});
    for (user, groups, expected) in [
        ("admin", &["system:masters"][..], "ok".to_string()),
        ("system:node:n1", &["system:masters"], "ok".to_string()),
        ("system:node:n2", &["system:nodes"], "ok".to_string()),
        (
            "system:node:",
            &["system:nodes"],
            refused("nodes", "n2", "could not determine node from user \"system:node:\""),
        ),
        (
            "system:node:n1",
            &["system:nodes"],
            refused("nodes", "n2", "node \"n1\" is not allowed to modify node \"n2\""),
        ),
    ] {
        let result = Desk::new().user(user, groups).create(&PLUGIN, "nodes", node.clone());
        assert_eq!(told(result), expected, "{user} {groups:?}");
    }
}

#[test]
fn mirror_pods_are_all_a_kubelet_makes() {
    let mirror = json!({
        "metadata": {
            "name": "m", "namespace": "ns", "annotations": {MIRROR_ANNOTATION: "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1", "controller": true}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
    });
    let owner = |changes: Value| {
        let owner = with(mirror["metadata"]["ownerReferences"][0].clone(), changes);
        json!({"metadata": {"ownerReferences": [owner]}})
    };
    let cases = [
        (json!({}), "ok"),
        (
            json!({"metadata": {"annotations": null}}),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (
            json!({"spec": {"nodeName": "n2"}}),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (
            json!({"metadata": {"ownerReferences": null}}),
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
        (
            json!({"metadata": {"ownerReferences": [{}, {}]}}),
            "node \"n1\" can only create pods with a single owner reference set to itself",
        ),
        (
            owner(json!({"kind": "Pod"})),
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
        (
            owner(json!({"controller": null})),
            "node \"n1\" can only create pods with a controller owner reference set to itself",
        ),
        (
            owner(json!({"blockOwnerDeletion": true})),
            "node \"n1\" must not set blockOwnerDeletion on an owner reference",
        ),
        (
            owner(json!({"uid": "old"})),
            "node n1 UID mismatch: expected old got uid-1",
        ),
        (
            json!({"spec": {"serviceAccountName": "a"}}),
            "node \"n1\" can not create pods that reference serviceaccounts",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
            "node \"n1\" can not create pods that reference persistentvolumeclaims",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v"}]}}),
            "error checking mirror pod for API references: unknown volume type for volume  \"v\"",
        ),
    ];
    for (changes, expected) in cases {
        let result = kubelet().create(&PLUGIN, "pods", with(mirror.clone(), changes.clone()));
        let expected = match expected {
            "ok" => "ok".to_string(),
            why => refused("pods", "m", why),
        };
        assert_eq!(told(result), expected, "{changes}");
    }
    let unknown = Desk::new().user("system:node:n1", &["system:nodes"]);
    assert_eq!(told(unknown.create(&PLUGIN, "pods", mirror)), "node \"n1\" not found");
}

#[test]
fn pods_of_others_are_left_alone() {
    let desk = kubelet();
    assert_eq!(told(desk.delete(&PLUGIN, "pods", pod("mine", "n1"))), "ok");
    assert_eq!(
        told(desk.delete(&PLUGIN, "pods", pod("other", "n2"))),
        refused(
            "pods",
            "other",
            "node \"n1\" can only delete pods with spec.nodeName set to itself"
        )
    );
    let whole = desk.update(&PLUGIN, "pods", pod("mine", "n1"), pod("mine", "n1"));
    assert_eq!(
        told(whole),
        refused(
            "pods",
            "mine",
            "unexpected operation \"UPDATE\", node \"n1\" can only create and delete mirror pods"
        )
    );
    let bound = desk.update(&PLUGIN, "pods/binding", pod("mine", "n1"), pod("mine", "n1"));
    assert_eq!(
        told(bound),
        refused(
            "pods",
            "mine",
            "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed"
        )
    );
    let evict = |name: &str| told(desk.create(&PLUGIN, "pods/eviction", json!({"metadata": {"name": name}})));
    assert_eq!(evict("mine"), "ok");
    assert_eq!(
        evict("other"),
        refused(
            "pods",
            "other",
            "node n1 can only evict pods with spec.nodeName set to itself"
        )
    );
    assert_eq!(evict("gone"), "pod \"gone\" not found");
}

#[test]
fn pod_status_says_nothing_but_status() {
    let claimed = json!({"status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}]}});
    let cases = [
        ("n1", json!({"status": {"phase": "Running"}}), "ok"),
        ("n1", json!({"metadata": {"labels": {}}}), "ok"),
        (
            "n2",
            json!({}),
            "node \"n1\" can only update pod status for pods with spec.nodeName set to itself",
        ),
        (
            "n1",
            json!({"metadata": {"labels": {"a": "b"}}}),
            "node \"n1\" cannot update labels through pod status",
        ),
        ("n1", claimed, "node \"n1\" cannot update resource claim statues"),
        (
            "n1",
            json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "b"}}}),
            "node \"n1\" cannot update extended resource claim status",
        ),
    ];
    for (node, changes, expected) in cases {
        let old = pod("p", node);
        let result = kubelet().update(&PLUGIN, "pods/status", with(old.clone(), changes.clone()), old);
        let expected = match expected {
            "ok" => "ok".to_string(),
            why => refused("pods", "p", why),
        };
        assert_eq!(told(result), expected, "{changes}");
    }
}

#[test]
fn a_kubelet_says_only_so_much_of_its_node() {
    let node = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux", "old.k8s.io/x": "y"}},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let updates = [
        (
            json!({"metadata": {"labels": {"kubernetes.io/os": "other", "mine": "x"}}}),
            "ok",
        ),
        (
            json!({"metadata": {"labels": {"x.node.kubernetes.io/a": "b", "kubelet.kubernetes.io/c": "d"}}}),
            "ok",
        ),
        (json!({"status": {"phase": "x"}}), "ok"),
        (
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b", "old.k8s.io/x": null}}}),
            "is not allowed to modify labels: node-restriction.kubernetes.io/a, old.k8s.io/x",
        ),
        (
            json!({"metadata": {"labels": {"a.node-restriction.kubernetes.io/a": "b", "notkubernetes.io/x": "y"}}}),
            "is not allowed to modify labels: a.node-restriction.kubernetes.io/a",
        ),
        (
            json!({"spec": {"taints": []}}),
            "node \"n1\" is not allowed to modify taints",
        ),
        (
            json!({"metadata": {"ownerReferences": [{"name": "x"}]}}),
            "node \"n1\" is not allowed to modify ownerReferences",
        ),
        (
            json!({"spec": {"configSource": {"a": "b"}}}),
            "node \"n1\" is not allowed to update configSource to a new non-nil configSource",
        ),
    ];
    for (changes, expected) in updates {
        for what in ["nodes", "nodes/status"] {
            let result = kubelet().update(&PLUGIN, what, with(node.clone(), changes.clone()), node.clone());
            let expected = match expected {
                "ok" => "ok".to_string(),
                why => refused("nodes", "n1", why),
            };
            assert_eq!(told(result), expected, "{changes}");
        }
    }
    let creates = [
        (
            json!({}),
            "node \"n1\" is not allowed to set the following labels: old.k8s.io/x",
        ),
        (
            json!({"metadata": {"labels": {"old.k8s.io/x": null, "kubernetes.io/hostname": "h"}}}),
            "ok",
        ),
        (
            json!({"spec": {"configSource": {"a": "b"}}}),
            "node \"n1\" is not allowed to create pods with a non-nil configSource",
        ),
    ];
    for (changes, expected) in creates {
        let result = kubelet().create(&PLUGIN, "nodes", with(node.clone(), changes.clone()));
        let expected = match expected {
            "ok" => "ok".to_string(),
            why => refused("nodes", "n1", why),
        };
        assert_eq!(told(result), expected, "{changes}");
    }
    assert_eq!(told(kubelet().delete(&PLUGIN, "nodes", node)), "ok");
}

#[test]
fn claims_grow_and_nothing_else() {
    let claim = json!({"metadata": {"name": "c", "namespace": "ns", "resourceVersion": "1"}, "spec": {"volumeName": "v"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    let grown = json!({"metadata": {"resourceVersion": "2", "managedFields": [{}]}, "status": {
        "capacity": {"storage": "2Gi"}, "conditions": [{}], "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}}});
    let only = "node \"n1\" is not allowed to update fields other than status.quantity and status.conditions";
    for (what, changes, expected) in [
        ("persistentvolumeclaims/status", grown, "ok".to_string()),
        (
            "persistentvolumeclaims/status",
            json!({"status": {"phase": "Lost"}}),
            refused("persistentvolumeclaims", "c", only),
        ),
        (
            "persistentvolumeclaims",
            json!({}),
            refused("persistentvolumeclaims", "c", "may only update PVC status"),
        ),
    ] {
        let result = kubelet().update(&PLUGIN, what, with(claim.clone(), changes), claim.clone());
        assert_eq!(told(result), expected);
    }
}

#[test]
fn what_carries_a_nodes_name_is_that_nodes() {
    let named = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}});
    const LEASES: &str = "leases.coordination.k8s.io";
    const CSI_NODES: &str = "csinodes.storage.k8s.io";
    let other_lease = "can only access node lease with the same name as the requesting node";
    let other_csi = "can only access CSINode with the same name as the requesting node";
    let cases = [
        (LEASES, named("n1", "kube-node-lease"), "ok".to_string()),
        (
            LEASES,
            named("n2", "kube-node-lease"),
            refused(LEASES, "n2", other_lease),
        ),
        (
            LEASES,
            named("n1", "ns"),
            refused(
                LEASES,
                "n1",
                "can only access leases in the \"kube-node-lease\" system namespace",
            ),
        ),
        (CSI_NODES, named("n1", ""), "ok".to_string()),
        (CSI_NODES, named("n2", ""), refused(CSI_NODES, "n2", other_csi)),
    ];
    let desk = kubelet();
    for (what, object, expected) in cases {
        assert_eq!(told(desk.create(&PLUGIN, what, object.clone())), expected, "{object}");
        let updated = desk.update(&PLUGIN, what, object.clone(), object.clone());
        assert_eq!(told(updated), expected, "{object}");
        assert_eq!(told(desk.delete(&PLUGIN, what, object.clone())), expected, "{object}");
    }
    const SLICES: &str = "resourceslices.resource.k8s.io";
    let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
    let other = |verb: &str| {
        let why = format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
        refused(SLICES, "s", &why)
    };
    assert_eq!(told(desk.create(&PLUGIN, SLICES, slice("n1"))), "ok");
    assert_eq!(told(desk.create(&PLUGIN, SLICES, slice("n2"))), other("create"));
    let everywhere = json!({"metadata": {"name": "s"}, "spec": {"allNodes": true}});
    assert_eq!(told(desk.create(&PLUGIN, SLICES, everywhere)), other("create"));
    assert_eq!(told(desk.delete(&PLUGIN, SLICES, slice("n1"))), "ok");
    assert_eq!(told(desk.delete(&PLUGIN, SLICES, slice("n2"))), other("delete"));
}

/// A name that is still to be generated is not the node's, whatever it starts with; nor is what is made of it.
#[tokio::test]
async fn generated_names_are_nobodys() {
    let desk = kubelet().with("namespaces", json!({"metadata": {"name": NODE_LEASES}}));
    for (what, namespace) in [
        ("nodes", ""),
        ("csinodes.storage.k8s.io", ""),
        ("leases.coordination.k8s.io", NODE_LEASES),
    ] {
        let mut object = json!({"metadata": {"generateName": "n1", "namespace": namespace}, "spec": {}});
        let review = desk.review(Operation::Create, what, &object);
        let refused = super::super::mutate(&review, &mut object, None).await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"), "{what}");
        assert!(
            refused.message.starts_with(&format!("{what} \"n1\" is forbidden")),
            "{}",
            refused.message
        );
        for (name, allowed) in [("n1", true), ("n1abcde", false)] {
            let object = json!({"metadata": {"name": name, "generateName": "n1", "namespace": namespace}});
            let review = desk.review(Operation::Create, what, &object);
            let result = (PLUGIN.validate.unwrap())(&review, Some(&object), None);
            assert_eq!(result.is_ok(), allowed, "{what} {name}");
        }
    }
}

#[test]
fn certificates_are_for_the_node_itself() {
    const REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";
    let own = signing_request("system:node:n1", "system:nodes");
    let other = signing_request("system:node:n2", "system:nodes");
    let only = "can only create a node CSR with CN=system:node:n1";
    let broken = "unable to parse csr: PEM block type must be CERTIFICATE REQUEST";
    for (signer, pem, expected) in [
        ("kubernetes.io/kubelet-serving", own.as_str(), "ok".to_string()),
        ("kubernetes.io/kubelet-serving", &other, refused(REQUESTS, "r", only)),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            &other,
            refused(REQUESTS, "r", only),
        ),
        ("kubernetes.io/kubelet-serving", "", refused(REQUESTS, "r", broken)),
        ("example.com/other", &other, "ok".to_string()),
    ] {
        let request = json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": pem}});
        assert_eq!(told(kubelet().create(&PLUGIN, REQUESTS, request)), expected, "{signer}");
    }
}

#[test]
fn tokens_are_for_pods_on_the_node() {
    let request = |kind: &str, name: &str, uid: &str, audiences: &[&str]| {
        json!({"metadata": {"name": "sa"}, "spec": {"audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}}})
    };
    let volumes = json!([
        {"name": "a", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault", "path": "t"}}]}},
        {"name": "b", "csi": {"driver": "inline.csi"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "d", "awsElasticBlockStore": {}},
        {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
    ]);
    let driver = |name: &str, audience: &str| json!({"metadata": {"name": name}, "spec": {"tokenRequests": [{"audience": audience}]}});
    let claim = |name: &str| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"volumeName": "pv"}});
    let desk = kubelet()
        .with("pods", with(pod("rich", "n1"), json!({"spec": {"volumes": volumes}})))
        .with("csidrivers.storage.k8s.io", driver("inline.csi", "inline"))
        .with("csidrivers.storage.k8s.io", driver("bound.csi", "bound"))
        .with("csidrivers.storage.k8s.io", driver("ebs.csi.aws.com", "aws"))
        .with("persistentvolumeclaims", claim("claim"))
        .with("persistentvolumeclaims", claim("rich-e"))
        .with("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "bound.csi"}}}))
        .with(
            "roles.rbac.authorization.k8s.io",
            json!({"metadata": {"name": "r", "namespace": "ns"}, "rules": [{"apiGroups": [""],
                "resources": ["granted", ""], "verbs": ["request-serviceaccounts-token-audience"], "resourceNames": ["sa"]}]}),
        )
        .with(
            "rolebindings.rbac.authorization.k8s.io",
            json!({"metadata": {"name": "b", "namespace": "ns"}, "roleRef": {"kind": "Role", "name": "r"},
                "subjects": [{"kind": "Group", "name": "system:nodes"}]}),
        );
    let missing = "audience \"x\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience";
    let recreated = "the UID in the bound object reference (old) does not match the UID in record. The object might have been deleted and then recreated";
    let cases = [
        (
            request("Secret", "mine", "uid-mine", &[]),
            "node requested token not bound to a pod",
        ),
        (
            request("Pod", "", "uid-mine", &[]),
            "node requested token not bound to a pod",
        ),
        (
            request("Pod", "mine", "", &[]),
            "node requested token with a pod binding without a uid",
        ),
        (request("Pod", "mine", "old", &[]), recreated),
        (
            request("Pod", "other", "uid-other", &[]),
            "node requested token bound to a pod scheduled on a different node",
        ),
        (
            request("Pod", "mine", "uid-mine", &["a", "b"]),
            "node may only request 0 or 1 audiences",
        ),
        (request("Pod", "mine", "uid-mine", &["x"]), missing),
        (
            request("Pod", "mine", "uid-mine", &["vault"]),
            &missing.replace("\"x\"", "\"vault\""),
        ),
        (request("Pod", "mine", "uid-mine", &[]), "ok"),
        (request("Pod", "mine", "uid-mine", &["granted"]), "ok"),
        (request("Pod", "rich", "uid-rich", &["vault"]), "ok"),
        (request("Pod", "rich", "uid-rich", &["inline"]), "ok"),
        (request("Pod", "rich", "uid-rich", &["bound"]), "ok"),
        (request("Pod", "rich", "uid-rich", &["aws"]), "ok"),
    ];
    for (request, expected) in &cases {
        let expected = match *expected {
            "ok" => "ok".to_string(),
            why => refused("serviceaccounts", "sa", why),
        };
        let result = desk.create(&PLUGIN, "serviceaccounts/token", request.clone());
        assert_eq!(told(result), expected, "{request}");
    }
    let gone = desk.create(&PLUGIN, "serviceaccounts/token", request("Pod", "gone", "u", &[]));
    assert_eq!(told(gone), "pod \"gone\" not found");
    desk.objects.remove("persistentvolumes", "", "pv");
    desk.objects.remove("csidrivers.storage.k8s.io", "", "inline.csi");
    let broken = desk.create(
        &PLUGIN,
        "serviceaccounts/token",
        request("Pod", "rich", "uid-rich", &["x"]),
    );
    let why = "error validating audience \"x\": [csidriver.storage.k8s.io \"inline.csi\" not found, \
        persistentvolume \"pv\" not found]";
    assert_eq!(told(broken), refused("serviceaccounts", "sa", why));
}
