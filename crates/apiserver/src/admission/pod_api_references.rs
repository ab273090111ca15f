//! What a mirror pod may not refer to: anything that only the API can give it.

use orlop_api::Value;

use crate::lookup::{items, text};

/// Where volumes name secrets, beside the ones that are a secret.
const VOLUME_SECRETS: &[&[&str]] = &[
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["secret", "secretName"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
];

/// Volumes that need the API as such, and what they need of it.
const API_VOLUMES: &[(&str, &str)] = &[
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

/// Volumes that do without the API.
const PLAIN_VOLUMES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

const PROJECTIONS: &[(&str, &str)] = &[
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// A volume of a kind that may refer to anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownVolume {
    #[error("unknown volume type for volume  {0:?}")]
    Source(String),
    #[error("unknown source for projected volume {0:?}")]
    Projection(String),
}

/// The first thing of the API that the pod refers to, in the words of messages.
pub(super) fn first(pod: &Value) -> Result<Option<&'static str>, UnknownVolume> {
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if uses_secrets(pod) {
        return Ok(Some("secrets"));
    }
    if uses_config_maps(pod) {
        return Ok(Some("configmaps"));
    }
    if !items(pod, &["spec", "resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in items(pod, &["spec", "volumes"]) {
        if let Some(what) = of_volume(volume)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

pub(super) fn uses_secrets(pod: &Value) -> bool {
    let volumes = items(pod, &["spec", "volumes"]);
    items(pod, &["spec", "imagePullSecrets"])
        .iter()
        .any(|r| !text(r, &["name"]).is_empty())
        || in_environment(pod, "secretRef", "secretKeyRef")
        || volumes
            .iter()
            .any(|v| VOLUME_SECRETS.iter().any(|path| !text(v, path).is_empty()) || projects(v, "secret"))
}

fn uses_config_maps(pod: &Value) -> bool {
    let volumes = items(pod, &["spec", "volumes"]);
    in_environment(pod, "configMapRef", "configMapKeyRef")
        || volumes
            .iter()
            .any(|v| !text(v, &["configMap", "name"]).is_empty() || projects(v, "configMap"))
}

fn projects(volume: &Value, source: &str) -> bool {
    items(volume, &["projected", "sources"])
        .iter()
        .any(|s| !text(s, &[source, "name"]).is_empty())
}

fn in_environment(pod: &Value, from: &str, key: &str) -> bool {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| items(pod, &["spec", list]))
        .any(|container| {
            let named = |list: &str, path: &[&str]| items(container, &[list]).iter().any(|e| !text(e, path).is_empty());
            named("envFrom", &[from, "name"]) || named("env", &["valueFrom", key, "name"])
        })
}

fn of_volume(volume: &Value) -> Result<Option<&'static str>, UnknownVolume> {
    let has = |source: &str| volume.get(source).is_some();
    if PLAIN_VOLUMES.iter().any(|source| has(source)) {
        return Ok(None);
    }
    if let Some((_, what)) = API_VOLUMES.iter().find(|(source, _)| has(source)) {
        return Ok(Some(what));
    }
    let name = text(volume, &["name"]);
    if !has("projected") {
        return Err(UnknownVolume::Source(name.to_string()));
    }
    for source in items(volume, &["projected", "sources"]) {
        if let Some((_, what)) = PROJECTIONS.iter().find(|(kind, _)| source.get(*kind).is_some()) {
            return Ok(Some(what));
        }
        if source.get("downwardAPI").is_none() {
            return Err(UnknownVolume::Projection(name.to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_needs_the_api_is_found() {
        let volume = |source: Value| json!({"spec": {"volumes": [source]}});
        let projected = |source: Value| volume(json!({"name": "v", "projected": {"sources": [source]}}));
        let cases = [
            (json!({"spec": {}}), Ok(None)),
            (
                json!({"spec": {"serviceAccountName": "a"}}),
                Ok(Some("serviceaccounts")),
            ),
            (
                json!({"spec": {"imagePullSecrets": [{"name": "a"}]}}),
                Ok(Some("secrets")),
            ),
            (json!({"spec": {"imagePullSecrets": [{}]}}), Ok(None)),
            (
                json!({"spec": {"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "a"}}}]}]}}),
                Ok(Some("secrets")),
            ),
            (
                json!({"spec": {"initContainers": [{"envFrom": [{"configMapRef": {"name": "a"}}]}]}}),
                Ok(Some("configmaps")),
            ),
            (
                json!({"spec": {"resourceClaims": [{"name": "a"}]}}),
                Ok(Some("resourceclaims")),
            ),
            (volume(json!({"hostPath": {"path": "/"}})), Ok(None)),
            (
                volume(json!({"rbd": {"secretRef": {"name": "a"}}})),
                Ok(Some("secrets")),
            ),
            (volume(json!({"rbd": {}})), Ok(None)),
            (volume(json!({"secret": {"secretName": "a"}})), Ok(Some("secrets"))),
            (volume(json!({"secret": {}})), Ok(Some("secrets (via secret volumes)"))),
            (volume(json!({"configMap": {"name": "a"}})), Ok(Some("configmaps"))),
            (
                volume(json!({"csi": {"driver": "d"}})),
                Ok(Some("csidrivers (via CSI volumes)")),
            ),
            (
                volume(json!({"persistentVolumeClaim": {}})),
                Ok(Some("persistentvolumeclaims")),
            ),
            (
                volume(json!({"ephemeral": {}})),
                Ok(Some("persistentvolumeclaims (via ephemeral volumes)")),
            ),
            (
                volume(json!({"name": "v"})),
                Err("unknown volume type for volume  \"v\""),
            ),
            (projected(json!({"downwardAPI": {}})), Ok(None)),
            (
                projected(json!({"serviceAccountToken": {}})),
                Ok(Some("serviceaccounts (via projected volumes)")),
            ),
            (projected(json!({"podCertificate": {}})), Ok(Some("podcertificates"))),
            (
                projected(json!({"new": {}})),
                Err("unknown source for projected volume \"v\""),
            ),
        ];
        for (pod, expected) in cases {
            let found = first(&pod).map_err(|unknown| unknown.to_string());
            assert_eq!(found, expected.map_err(str::to_string), "{pod}");
        }
    }
}
