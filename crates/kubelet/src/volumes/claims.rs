//! From a PersistentVolumeClaim to its bound PersistentVolume.

use std::sync::Arc;

use orlop_api::types::core::{PersistentVolume, PersistentVolumeClaim, Pod};

use super::error::MountError;
use crate::objects::Objects;

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The claim a volume of the pod names.
pub(super) struct ClaimRef {
    pub name: String,
    pub read_only: bool,
    /// Made from a template in the pod: it must be the pod's own.
    pub ephemeral: bool,
}

/// The volume behind the claim; or why there is none, in Kubernetes' words.
pub(super) async fn bound_volume(
    objects: &Objects,
    pod: &Pod,
    claim: &ClaimRef,
) -> Result<Arc<PersistentVolume>, MountError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let failed = |reason| MountError::during(format!("error processing PVC {namespace}/{}", claim.name), reason);
    let found = objects.persistent_volume_claim(namespace, &claim.name).await;
    let found = found.map_err(|e| failed(MountError::during("failed to fetch PVC from API server", e)))?;
    let volume_name = usable(&found).map_err(|reason| failed(MountError::invalid(reason)))?;
    if claim.ephemeral && !is_owned(&found, pod) {
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        return Err(MountError::Invalid(format!(
            "PVC {namespace}/{} was not created for pod {namespace}/{pod_name} (pod is not owner)",
            claim.name
        )));
    }
    let volume = objects.persistent_volume(volume_name).await;
    let volume = volume.map_err(|e| {
        let step = format!("failed to fetch PV {volume_name} from API server");
        failed(MountError::during(step, e))
    })?;
    belongs(&volume, volume_name, &found).map_err(failed)?;
    Ok(volume)
}

/// The name of the claim that a template in a pod becomes.
pub(super) fn ephemeral_claim_name(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.metadata.name.as_deref().unwrap_or_default())
}

/// The name of the volume that the claim is bound to.
fn usable(claim: &PersistentVolumeClaim) -> Result<&str, &'static str> {
    let metadata = &claim.metadata;
    let is_protected = metadata.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if metadata.deletion_timestamp.is_some() && !is_protected {
        return Err("PVC is being deleted");
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err("PVC is not bound");
    }
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    volume
        .filter(|name| !name.is_empty())
        .ok_or("PVC has empty pvc.Spec.VolumeName")
}

fn is_owned(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    controller.is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

fn belongs(volume: &PersistentVolume, name: &str, claim: &PersistentVolumeClaim) -> Result<(), MountError> {
    let Some(bound) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(MountError::Invalid(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        )));
    };
    if bound.uid != claim.metadata.uid {
        let (bound, claim) = (bound.uid.as_deref(), claim.metadata.uid.as_deref());
        return Err(MountError::Invalid(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {} does not point to claim.UID {}",
            bound.unwrap_or_default(),
            claim.unwrap_or_default()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use orlop_base::Clock;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::fake::FakeCluster;

    #[tokio::test]
    async fn every_way_a_claim_can_be_useless() {
        let pod: Pod =
            orlop_api::types::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).unwrap();
        let bound = json!({"metadata": {"uid": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        let with = |path: &str, value: Value| {
            let mut claim = bound.clone();
            *claim.pointer_mut(path).unwrap() = value;
            claim
        };
        let deleted = with(
            "/metadata",
            json!({"uid": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        );
        let mut in_use = deleted.clone();
        in_use["metadata"]["finalizers"] = json!([PROTECTION]);
        let owned = with(
            "/metadata",
            json!({"uid": "c", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]}),
        );
        let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"uid": "c"}}});
        let other = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"uid": "d"}}});
        let failed = "error processing PVC n/claim: ";
        let cases = [
            (
                Value::Null,
                &volume,
                false,
                "failed to fetch PVC from API server: persistentvolumeclaims \"claim\" not found",
            ),
            (deleted, &volume, false, "PVC is being deleted"),
            (in_use, &volume, false, ""),
            (
                with("/status", json!({"phase": "Pending"})),
                &volume,
                false,
                "PVC is not bound",
            ),
            (
                with("/spec", json!({})),
                &volume,
                false,
                "PVC has empty pvc.Spec.VolumeName",
            ),
            (
                bound.clone(),
                &Value::Null,
                false,
                "failed to fetch PV v from API server: persistentvolumes \"v\" not found",
            ),
            (
                bound.clone(),
                &json!({"spec": {}}),
                false,
                "found PV object v but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
            ),
            (
                bound.clone(),
                &other,
                false,
                "found PV object v but its pv.Spec.ClaimRef.UID d does not point to claim.UID c",
            ),
            (bound.clone(), &volume, false, ""),
            (
                bound.clone(),
                &volume,
                true,
                "PVC n/claim was not created for pod n/p (pod is not owner)",
            ),
            (owned, &volume, true, ""),
        ];
        for (claim, volume, ephemeral, expected) in cases {
            let cluster = FakeCluster::default();
            if !claim.is_null() {
                cluster.put("/api/v1/namespaces/n/persistentvolumeclaims/claim", claim);
            }
            if !volume.is_null() {
                cluster.put("/api/v1/persistentvolumes/v", volume.clone());
            }
            let objects = Objects::new(Some(cluster.api()), Clock::System);
            let reference = ClaimRef {
                name: "claim".into(),
                read_only: false,
                ephemeral,
            };
            let answer = bound_volume(&objects, &pod, &reference)
                .await
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert_eq!(answer.strip_prefix(failed).unwrap_or(&answer), expected);
        }
    }
}
