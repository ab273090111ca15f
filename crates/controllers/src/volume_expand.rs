//! Claims that grow: who is to make their volume larger hears of it. No volume plugin grows volumes here any more; CSI
//! drivers bring a resizer, and for volumes of old plugins an annotation says whose.
// Upstream: pkg/controller/volume/expand (v1.36)

use std::sync::Arc;

use serde_json::json;

use crate::objects::persistent_volume::PROVISIONED_BY;
use crate::objects::{PersistentVolume, PersistentVolumeClaim};
use crate::persistent_volume::driver_of;
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, precondition,
};

pub(crate) const DEF: Def = Def {
    name: "persistentvolume-expander-controller",
    account: "expand-controller",
    on_by_default: true,
    start,
};

/// On claims: who makes the volume larger.
const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";

struct Controller {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    recorder: Recorder,
}

fn start(setup: &Setup) {
    let (claims, volumes) = (
        setup.cache::<PersistentVolumeClaim>(),
        setup.cache::<PersistentVolume>(),
    );
    let queue = setup.queue("volume_expand");
    let wake = queue.clone();
    claims.on_change(move |old, new| {
        let Some(claim) = new.filter(|claim| wants_more(claim)) else {
            return;
        };
        // Once for each wish, not for each change.
        if old.is_none_or(|old| !wants_more(old) || old.requested() != claim.requested()) {
            wake.add(Key::from_object(&**claim));
        }
    });
    let recorder = setup.recorder.clone();
    let controller = Controller {
        claims,
        volumes,
        recorder,
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// More than its volume has.
fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    let has = claim.status.capacity.storage().cloned().unwrap_or_default();
    claim.status.phase == "Bound" && claim.requested() > has
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(claim) = self.claims.at(key).filter(|claim| wants_more(claim)) else {
            return Ok(Next::Done);
        };
        let volume = self.volumes.get("", &claim.spec.volume_name);
        let bound = |volume: &Arc<PersistentVolume>| {
            let reference = volume.spec.claim_ref.as_ref();
            reference.is_some_and(|r| r.uid == claim.metadata.uid && r.namespace == claim.metadata.namespace)
        };
        let Some(volume) = volume.filter(bound) else {
            let reason = format!("persistent Volume is not bound to PVC being updated : {key}");
            return Err(ReconcileError::NotYet(reason));
        };
        let Some((plugin, driver)) = old_plugin(&volume) else {
            let message = "waiting for an external controller to expand this PVC";
            self.recorder.normal(&*claim, "ExternalExpanding", message);
            return Ok(Next::Done);
        };
        let message = format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc");
        self.recorder.normal(&*claim, "ExternalExpanding", message);
        if claim.metadata.annotation(STORAGE_RESIZER) != Some(driver) {
            let mut metadata = precondition(&claim.metadata);
            metadata["annotations"] = json!({STORAGE_RESIZER: driver});
            writer
                .patch_status::<PersistentVolumeClaim>(&claim.metadata, &json!({"metadata": metadata}))
                .await?;
        }
        Ok(Next::Done)
    }
}

/// The plugin that made the volume when it was part of Kubernetes, and the driver that took over.
fn old_plugin(volume: &PersistentVolume) -> Option<(&str, &'static str)> {
    let plugin = volume.metadata.annotation(PROVISIONED_BY)?;
    let driver = driver_of(plugin).filter(|_| volume.spec.csi.is_none())?;
    Some((plugin, driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn who_wants_more_waits_for_a_resizer() {
        let cluster = Cluster::new();
        for (name, plugin, wanted) in [("a", "", "2Gi"), ("b", "kubernetes.io/gce-pd", "2Gi"), ("c", "", "1Gi")] {
            cluster.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"namespace": "ns", "name": name, "uid": name},
                "spec": {"volumeName": name, "resources": {"requests": {"storage": wanted}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}));
            cluster.put(json!({"apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": name, "annotations": {PROVISIONED_BY: plugin}},
                "spec": {"claimRef": {"namespace": "ns", "name": name, "uid": name}}}));
        }
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        let mut events = cluster.events();
        events.sort();
        assert_eq!(
            events,
            [
                "Normal ExternalExpanding CSI migration enabled for kubernetes.io/gce-pd; waiting for external resizer to \
                 expand the pvc",
                "Normal ExternalExpanding waiting for an external controller to expand this PVC",
            ]
        );
        let b = cluster.get::<PersistentVolumeClaim>("ns", "b").unwrap();
        assert_eq!(b.metadata.annotation(STORAGE_RESIZER), Some("pd.csi.storage.gke.io"));
    }
}
