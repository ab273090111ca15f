//! Which other objects a pod refers to, as far as its kubelet must read them.
//! Upstream: pkg/api/v1/pod, pkg/api/v1/persistentvolume (v1.36).

use serde_json::Value;

use crate::lookup::{items, text};

/// Kinds of objects that a kubelet may read because one of its pods refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Referenced {
    Secret,
    ConfigMap,
    PersistentVolumeClaim,
    ResourceClaim,
    ServiceAccount,
}

/// Where volumes other than projected ones name a secret.
const VOLUME_SECRETS: &[&[&str]] = &[
    &["secret", "secretName"],
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
];

/// Whether the pod refers to the named object of its own namespace.
pub(super) fn refers_to(pod: &Value, what: Referenced, name: &str) -> bool {
    match what {
        Referenced::ServiceAccount => text(pod, &["spec", "serviceAccountName"]) == name,
        Referenced::Secret => {
            items(pod, &["spec", "imagePullSecrets"])
                .iter()
                .any(|r| text(r, &["name"]) == name)
                || in_environment(pod, "secretRef", "secretKeyRef", name)
                || in_volumes(pod, VOLUME_SECRETS, "secret", name)
        }
        Referenced::ConfigMap => {
            in_environment(pod, "configMapRef", "configMapKeyRef", name)
                || in_volumes(pod, &[&["configMap", "name"]], "configMap", name)
        }
        Referenced::PersistentVolumeClaim => items(pod, &["spec", "volumes"])
            .iter()
            .any(|volume| is_claim(pod, volume, name)),
        Referenced::ResourceClaim => uses_resource_claim(pod, name),
    }
}

fn in_environment(pod: &Value, from: &str, key: &str, name: &str) -> bool {
    ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| items(pod, &["spec", list]))
        .any(|container| {
            items(container, &["envFrom"])
                .iter()
                .any(|e| text(e, &[from, "name"]) == name)
                || items(container, &["env"])
                    .iter()
                    .any(|e| text(e, &["valueFrom", key, "name"]) == name)
        })
}

fn in_volumes(pod: &Value, places: &[&[&str]], projected: &str, name: &str) -> bool {
    items(pod, &["spec", "volumes"]).iter().any(|volume| {
        places.iter().any(|place| text(volume, place) == name)
            || items(volume, &["projected", "sources"])
                .iter()
                .any(|s| text(s, &[projected, "name"]) == name)
    })
}

/// A claim named by the volume, or made for an ephemeral one.
fn is_claim(pod: &Value, volume: &Value, name: &str) -> bool {
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        return text(claim, &["claimName"]) == name;
    }
    let (pod_name, volume_name) = (text(pod, &["metadata", "name"]), text(volume, &["name"]));
    volume.get("ephemeral").is_some()
        && name.strip_prefix(pod_name).and_then(|rest| rest.strip_prefix('-')) == Some(volume_name)
}

/// A claim named by the pod, made for it from a template, or made for its extended resources.
fn uses_resource_claim(pod: &Value, name: &str) -> bool {
    let made_for = |claim: &str| {
        let statuses = items(pod, &["status", "resourceClaimStatuses"]);
        statuses
            .iter()
            .any(|s| text(s, &["name"]) == claim && text(s, &["resourceClaimName"]) == name)
    };
    items(pod, &["spec", "resourceClaims"])
        .iter()
        .any(|claim| match text(claim, &["resourceClaimName"]) {
            "" => made_for(text(claim, &["name"])),
            direct => direct == name,
        })
        || text(pod, &["status", "extendedResourceClaimStatus", "resourceClaimName"]) == name
}

/// Volume sources of a PersistentVolume whose secret may be in another namespace, else in the claim's.
const PV_SECRET_REFS: &[&str] = &["cephfs", "flexVolume", "rbd", "scaleIO", "iscsi"];
/// Those whose secret always names its namespace. The secrets for CSI controllers are no business of kubelets.
const PV_NAMESPACED_SECRET_REFS: &[(&str, &str)] = &[
    ("cinder", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("csi", "nodeStageSecretRef"),
    ("csi", "nodeExpandSecretRef"),
];

/// Whether mounting the volume needs the secret.
pub(super) fn volume_needs_secret(volume: &Value, namespace: &str, name: &str) -> bool {
    let claim_namespace = text(volume, &["spec", "claimRef", "namespace"]);
    let or_claims = |own: &str| (if own.is_empty() { claim_namespace } else { own }) == namespace;
    let names = |path: &[&str]| text(volume, path) == name;
    (names(&["spec", "azureFile", "secretName"]) && or_claims(text(volume, &["spec", "azureFile", "secretNamespace"])))
        || PV_SECRET_REFS.iter().any(|source| {
            names(&["spec", source, "secretRef", "name"])
                && or_claims(text(volume, &["spec", source, "secretRef", "namespace"]))
        })
        || PV_NAMESPACED_SECRET_REFS.iter().any(|(source, field)| {
            names(&["spec", source, field, "name"]) && text(volume, &["spec", source, field, "namespace"]) == namespace
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_wherever_they_stand() {
        let pod = json!({
            "metadata": {"name": "web"},
            "spec": {
                "serviceAccountName": "robot",
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "env-s"}}},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "env-c"}}}, {"name": "C", "value": "plain"}]}],
                "initContainers": [{"envFrom": [{"secretRef": {"name": "from-s"}}, {"configMapRef": {"name": "from-c"}}]}],
                "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "debug-s"}}]}],
                "volumes": [
                    {"name": "v1", "secret": {"secretName": "vol-s"}},
                    {"name": "v2", "configMap": {"name": "vol-c"}},
                    {"name": "v3", "projected": {"sources": [{"secret": {"name": "proj-s"}}, {"configMap": {"name": "proj-c"}}]}},
                    {"name": "v4", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "v5", "ephemeral": {}},
                    {"name": "v6", "csi": {"nodePublishSecretRef": {"name": "csi-s"}}},
                ],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "direct"}, {"name": "nic", "resourceClaimTemplateName": "t"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "web-nic-x"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "ext"}},
        });
        use Referenced::*;
        let found = [
            (
                Secret,
                vec!["pull", "env-s", "from-s", "debug-s", "vol-s", "proj-s", "csi-s"],
            ),
            (ConfigMap, vec!["env-c", "from-c", "vol-c", "proj-c"]),
            (PersistentVolumeClaim, vec!["data", "web-v5"]),
            (ResourceClaim, vec!["direct", "web-nic-x", "ext"]),
            (ServiceAccount, vec!["robot"]),
        ];
        for (what, names) in &found {
            for name in names {
                assert!(refers_to(&pod, *what, name), "{what:?} {name}");
            }
            let others = found
                .iter()
                .filter(|(other, _)| other != what)
                .flat_map(|(_, names)| names);
            for name in others.chain(&["plain", "t", "gpu", "web-v4", "v5"]) {
                assert!(!refers_to(&pod, *what, name), "{what:?} {name}");
            }
        }
    }

    #[test]
    fn secrets_of_volumes() {
        let volume = |source: Value| {
            let mut volume = json!({"spec": {"claimRef": {"namespace": "claims", "name": "data"}}});
            volume["spec"]
                .as_object_mut()
                .unwrap()
                .extend(source.as_object().unwrap().clone());
            volume
        };
        let cases = [
            (json!({"rbd": {"secretRef": {"name": "s"}}}), "claims", true),
            (
                json!({"rbd": {"secretRef": {"name": "s", "namespace": "n"}}}),
                "n",
                true,
            ),
            (
                json!({"rbd": {"secretRef": {"name": "s", "namespace": "n"}}}),
                "claims",
                false,
            ),
            (
                json!({"azureFile": {"secretName": "s", "secretNamespace": "n"}}),
                "n",
                true,
            ),
            (json!({"azureFile": {"secretName": "s"}}), "claims", true),
            (
                json!({"csi": {"nodeStageSecretRef": {"name": "s", "namespace": "n"}}}),
                "n",
                true,
            ),
            (
                json!({"csi": {"controllerPublishSecretRef": {"name": "s", "namespace": "n"}}}),
                "n",
                false,
            ),
            (json!({"hostPath": {"path": "/"}}), "claims", false),
        ];
        for (source, namespace, expected) in cases {
            assert_eq!(
                volume_needs_secret(&volume(source.clone()), namespace, "s"),
                expected,
                "{source} {namespace}"
            );
        }
    }
}
