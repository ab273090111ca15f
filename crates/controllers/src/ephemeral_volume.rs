//! Claims for volumes that live and die with their pod: made from the template in the pod, and the pod's own.
// Upstream: pkg/controller/volume/ephemeral (v1.36)

use serde_json::{Value, json};

use crate::index::{Index, pods_by_claim};
use crate::objects::{PersistentVolumeClaim, Pod};
use crate::ownership::controller_reference;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "ephemeral-volume-controller",
    account: "ephemeral-volume-controller",
    on_by_default: true,
    start,
};

struct Controller {
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    recorder: Recorder,
}

fn start(setup: &Setup) {
    let (pods, claims) = (setup.cache::<Pod>(), setup.cache::<PersistentVolumeClaim>());
    let queue = setup.queue("ephemeral_volume");
    let by_claim: Index<Pod> = pods_by_claim(&pods);
    let wake = queue.clone();
    pods.on_change(move |old, new| {
        if let (None, Some(pod)) = (old, new.filter(|pod| wants_claims(pod))) {
            wake.add(Key::from_object(&**pod));
        }
    });
    let wake = queue.clone();
    claims.on_change(move |old, new| {
        if let (Some(claim), None) = (old, new) {
            let users = by_claim.objects(&Key::from_object(&**claim).to_string());
            users
                .iter()
                .filter(|pod| wants_claims(pod))
                .for_each(|pod| wake.add(Key::from_object(&**pod)));
        }
    });
    let recorder = setup.recorder.clone();
    setup.run(
        queue,
        setup.settings.concurrent_syncs,
        Controller { pods, claims, recorder },
    );
}

fn wants_claims(pod: &Pod) -> bool {
    !pod.metadata.is_deleted() && pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(pod) = self.pods.at(key).filter(|pod| wants_claims(pod)) else {
            return Ok(Next::Done);
        };
        for volume in &pod.spec.volumes {
            let Some(source) = &volume.ephemeral else { continue };
            let name = format!("{}-{}", pod.metadata.name, volume.name);
            let known = self.claims.get(&key.namespace, &name);
            let done = match known.as_deref().map(|claim| is_for(claim, &pod)) {
                Some(true) => Ok(()),
                Some(false) => Err(format!(
                    "PVC {}/{name} was not created for pod {key} (pod is not owner)",
                    key.namespace
                )),
                None => {
                    let claim = claim_from(source, &name, &pod);
                    let made = writer.create::<PersistentVolumeClaim>(&key.namespace, &claim).await;
                    made.map(drop).map_err(|error| format!("create PVC {name}: {error}"))
                }
            };
            if let Err(reason) = done {
                let message = format!("ephemeral volume {}: {reason}", volume.name);
                self.recorder.warning(&*pod, "FailedBinding", message.clone());
                return Err(ReconcileError::NotYet(format!("pod {key}, {message}")));
            }
        }
        Ok(Next::Done)
    }
}

fn is_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owner = claim.metadata.controller();
    owner.is_some_and(|owner| owner.uid == pod.metadata.uid)
}

fn claim_from(source: &Value, name: &str, pod: &Pod) -> Value {
    let template = &source["volumeClaimTemplate"];
    let mut metadata = json!({"name": name, "ownerReferences": [controller_reference(pod)]});
    for field in ["annotations", "labels"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn each_template_becomes_a_claim_of_the_pod() {
        let cluster = Cluster::new();
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p", "uid": "up"},
                           "spec": {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}},
                                                {"name": "w", "emptyDir": {}},
                                                {"name": "x", "ephemeral": {"volumeClaimTemplate": template}}]}}),
        );
        cluster.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                           "metadata": {"namespace": "ns", "name": "p-x"}}));
        cluster.run(&[&DEF]);
        cluster.advance(std::time::Duration::from_secs(3)).await;
        let made = cluster.value::<PersistentVolumeClaim>("ns", "p-v").unwrap();
        assert_eq!(made["spec"], template["spec"]);
        assert_eq!(made["metadata"]["labels"]["a"], "b");
        assert_eq!(
            made["metadata"]["ownerReferences"],
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "up", "controller": true,
                    "blockOwnerDeletion": true}])
        );
        let events = cluster.events();
        let expected =
            "Warning FailedBinding ephemeral volume x: PVC ns/p-x was not created for pod ns/p (pod is not owner)";
        assert!(events.iter().any(|event| event == expected), "{events:?}");
        // Once the name is free, and again whenever the claim goes.
        cluster.remove::<PersistentVolumeClaim>("ns", "p-x");
        cluster.remove::<PersistentVolumeClaim>("ns", "p-v");
        cluster.wait_until_idle().await;
        assert_eq!(cluster.list::<PersistentVolumeClaim>("ns").len(), 2);
    }
}
