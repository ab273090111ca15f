//! What is in use is not deleted: claims of pods that have a node, volumes of claims, classes of volumes' attributes.
//!
//! A finalizer keeps them; it is put on whatever lacks it, and taken off when the object is to go and nobody uses it.
// Upstream: pkg/controller/volume/{pvcprotection,pvprotection,vacprotection} (v1.36)

use std::sync::Arc;

use orlop_client::{Error, ListQuery, path};
use serde_json::json;

use crate::index::{Index, claims_of, pods_by_claim};
use crate::objects::{Kind, Meta, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, WorkQueue, Writer, precondition};

pub(crate) const CLAIMS: Def = Def {
    name: "persistentvolumeclaim-protection-controller",
    account: "pvc-protection-controller",
    on_by_default: true,
    start: start_claims,
};

pub(crate) const VOLUMES: Def = Def {
    name: "persistentvolume-protection-controller",
    account: "pv-protection-controller",
    on_by_default: true,
    start: start_volumes,
};

pub(crate) const ATTRIBUTES_CLASSES: Def = Def {
    name: "volumeattributesclass-protection-controller",
    account: "volumeattributesclass-protection-controller",
    on_by_default: true,
    start: start_attributes_classes,
};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES_CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";

/// What the finalizer's presence calls for.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    Add,
    /// If nobody uses the object.
    Remove,
}

fn plan(meta: &Meta, finalizer: &str) -> Plan {
    match (meta.is_deleted(), meta.has_finalizer(finalizer)) {
        (false, false) => Plan::Add,
        (true, true) => Plan::Remove,
        _ => Plan::Nothing,
    }
}

async fn add<T: Kind>(writer: &Writer, meta: &Meta, finalizer: &str) -> ReconcileResult {
    let mut finalizers = meta.finalizers.clone();
    finalizers.push(finalizer.to_string());
    write::<T>(writer, meta, &finalizers).await
}

async fn remove<T: Kind>(writer: &Writer, meta: &Meta, finalizer: &str) -> ReconcileResult {
    let mut finalizers = meta.finalizers.clone();
    finalizers.retain(|f| f != finalizer);
    write::<T>(writer, meta, &finalizers).await
}

async fn write<T: Kind>(writer: &Writer, meta: &Meta, finalizers: &[String]) -> ReconcileResult {
    let mut metadata = precondition(meta);
    metadata["finalizers"] = json!(finalizers);
    match writer.patch::<T>(meta, &json!({"metadata": metadata})).await {
        Ok(_) | Err(Error::NotFound(_)) => Ok(Next::Done),
        Err(error) => Err(error.into()),
    }
}

/// Wakes objects whose finalizer calls for something.
fn watch<T: Kind>(cache: &Cache<T>, queue: &WorkQueue, finalizer: &'static str) {
    let wake = queue.clone();
    cache.on_change(move |_, new| {
        if let Some(object) = new.filter(|object| plan(object.meta(), finalizer) != Plan::Nothing) {
            wake.add(Key::from_object(&**object));
        }
    });
}

struct Volumes(Cache<PersistentVolume>);

fn start_volumes(setup: &Setup) {
    let (volumes, queue) = (setup.cache::<PersistentVolume>(), setup.queue("pvprotection"));
    watch(&volumes, &queue, VOLUME_FINALIZER);
    setup.run(queue, setup.settings.concurrent_syncs, Volumes(volumes));
}

impl Reconcile for Volumes {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(volume) = self.0.at(key) else {
            return Ok(Next::Done);
        };
        let meta = &volume.metadata;
        match plan(meta, VOLUME_FINALIZER) {
            Plan::Add => add::<PersistentVolume>(writer, meta, VOLUME_FINALIZER).await,
            Plan::Remove if volume.status.phase != "Bound" => {
                remove::<PersistentVolume>(writer, meta, VOLUME_FINALIZER).await
            }
            _ => Ok(Next::Done),
        }
    }
}

struct AttributesClasses {
    classes: Cache<VolumeAttributesClass>,
    claims: Index<PersistentVolumeClaim>,
    volumes: Index<PersistentVolume>,
}

fn start_attributes_classes(setup: &Setup) {
    let classes = setup.cache::<VolumeAttributesClass>();
    let (claims, volumes) = (
        setup.cache::<PersistentVolumeClaim>(),
        setup.cache::<PersistentVolume>(),
    );
    let queue = setup.queue("vacprotection");
    let controller = AttributesClasses {
        classes: classes.clone(),
        claims: Index::new(&claims, classes_of_claim),
        volumes: Index::new(&volumes, classes_of_volume),
    };
    watch(&classes, &queue, ATTRIBUTES_CLASS_FINALIZER);
    wake_dropped(&claims, &queue, classes_of_claim);
    wake_dropped(&volumes, &queue, classes_of_volume);
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// Wakes the classes that an object refers to no more.
fn wake_dropped<T: Kind>(cache: &Cache<T>, queue: &WorkQueue, names: fn(&T) -> Vec<String>) {
    let wake = queue.clone();
    cache.on_change(move |old, new| {
        let now = new.map_or_else(Vec::new, |object| names(object));
        let before = old.map_or_else(Vec::new, |object| names(object));
        for name in before.iter().filter(|name| !now.contains(name)) {
            wake.add(Key::new("", &**name));
        }
    });
}

fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = &claim.status;
    let target = status.modify_volume_status.as_ref();
    let names = [
        claim.spec.volume_attributes_class_name.as_ref(),
        status.current_volume_attributes_class_name.as_ref(),
        target.map(|status| &status.target_volume_attributes_class_name),
    ];
    let named = names.into_iter().flatten().filter(|name| !name.is_empty());
    named.cloned().collect()
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume.spec.volume_attributes_class_name.as_ref();
    name.filter(|name| !name.is_empty()).cloned().into_iter().collect()
}

impl Reconcile for AttributesClasses {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(class) = self.classes.at(key) else {
            return Ok(Next::Done);
        };
        let (meta, finalizer) = (&class.metadata, ATTRIBUTES_CLASS_FINALIZER);
        match plan(meta, finalizer) {
            Plan::Add => add::<VolumeAttributesClass>(writer, meta, finalizer).await,
            Plan::Remove if !self.claims.has(&meta.name) && !self.volumes.has(&meta.name) => {
                remove::<VolumeAttributesClass>(writer, meta, finalizer).await
            }
            _ => Ok(Next::Done),
        }
    }
}

/// Reconciles claims, by what the caches say.
struct Claims {
    claims: Cache<PersistentVolumeClaim>,
    pods: Index<Pod>,
    unused: WorkQueue,
}

/// Reconciles namespaces that have claims which seem unused. A pod may have come to use one that no cache shows yet: the
/// API server is asked, once for all claims of the namespace.
struct Namespaces {
    claims: Cache<PersistentVolumeClaim>,
    pods: Index<Pod>,
}

fn start_claims(setup: &Setup) {
    let (claims, pods) = (setup.cache::<PersistentVolumeClaim>(), setup.cache::<Pod>());
    let (queue, unused) = (setup.queue("pvcprotection"), setup.queue("pvcprotection_namespaces"));
    let by_claim = pods_by_claim(&pods);
    watch(&claims, &queue, CLAIM_FINALIZER);
    let (wake, known) = (queue.clone(), claims.clone());
    pods.on_change(move |old, new| {
        // Who has a node and lives on uses its claims as before.
        if new.is_some_and(|pod| !pod.spec.node_name.is_empty() && !pod.is_terminal() && !is_shut_down(pod)) {
            return;
        }
        for key in new.or(old).map_or_else(Vec::new, |pod| claims_of(pod)) {
            if known.at(&key).is_some_and(|claim| claim.metadata.is_deleted()) {
                wake.add(key);
            }
        }
    });
    let workers = setup.settings.concurrent_syncs;
    let namespaces = Namespaces {
        claims: claims.clone(),
        pods: by_claim.clone(),
    };
    setup.run(unused.clone(), workers, namespaces);
    let pods = by_claim;
    setup.run(queue, workers, Claims { claims, pods, unused });
}

impl Reconcile for Claims {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(claim) = self.claims.at(key) else {
            return Ok(Next::Done);
        };
        match plan(&claim.metadata, CLAIM_FINALIZER) {
            Plan::Add => return add::<PersistentVolumeClaim>(writer, &claim.metadata, CLAIM_FINALIZER).await,
            Plan::Remove if !is_used(&claim, &self.pods.objects(&key.to_string())) => {
                self.unused.add(Key::new(&*key.namespace, ""));
            }
            _ => {}
        }
        Ok(Next::Done)
    }
}

impl Reconcile for Namespaces {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let mut unused = self.claims.list_in(&key.namespace);
        unused.retain(|claim| {
            let name = Key::from_object(&**claim).to_string();
            plan(&claim.metadata, CLAIM_FINALIZER) == Plan::Remove && !is_used(claim, &self.pods.objects(&name))
        });
        if unused.is_empty() {
            return Ok(Next::Done);
        }
        let at = path::collection(Pod::API_VERSION, Some(&key.namespace), Pod::RESOURCE);
        let pods = writer.api().list::<Pod>(&at, &ListQuery::default()).await?.items;
        let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        let mut outcome = Ok(Next::Done);
        for claim in unused.iter().filter(|claim| !is_used(claim, &pods)) {
            let removed = remove::<PersistentVolumeClaim>(writer, &claim.metadata, CLAIM_FINALIZER).await;
            outcome = outcome.and(removed);
        }
        outcome
    }
}

fn is_used(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> bool {
    pods.iter().any(|pod| uses(pod, claim))
}

/// A pod that ended still does: its volumes may be mounted yet.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.spec.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    let name = &claim.metadata.name;
    pod.spec.volumes.iter().any(|volume| {
        let named = volume.persistent_volume_claim.as_ref();
        let is_own = || {
            let owner = claim.metadata.controller();
            volume.ephemeral.is_some()
                && !is_shut_down(pod)
                && format!("{}-{}", pod.metadata.name, volume.name) == *name
                && owner.is_some_and(|owner| owner.uid == pod.metadata.uid)
        };
        named.is_some_and(|named| named.claim_name == *name) || is_own()
    })
}

/// The kubelet is done with it; only its object is still there.
fn is_shut_down(pod: &Pod) -> bool {
    pod.metadata.is_deleted() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::Cluster;

    fn claim(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
               "metadata": {"namespace": "ns", "name": name, "finalizers": [CLAIM_FINALIZER]}})
    }

    fn pod(name: &str, node: &str, claim: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "uid": name},
               "spec": {"nodeName": node, "volumes": [
                   {"name": "v", "persistentVolumeClaim": {"claimName": claim}}, {"name": "e", "ephemeral": {}}]}})
    }

    #[test]
    fn who_uses_a_claim() {
        let uses = |pod: Value, owner: &str, name: &str| {
            let mut claim = claim(name);
            claim["metadata"]["ownerReferences"] = json!([{"uid": owner, "controller": true}]);
            uses(
                &serde_json::from_value(pod).unwrap(),
                &serde_json::from_value(claim).unwrap(),
            )
        };
        assert!(uses(pod("p", "n", "c"), "", "c"));
        assert!(!uses(pod("p", "", "c"), "", "c"));
        assert!(!uses(pod("p", "n", "c"), "", "d"));
        assert!(uses(pod("p", "n", "c"), "p", "p-e"));
        assert!(!uses(pod("p", "n", "c"), "q", "p-e"));
        let mut down = pod("p", "n", "c");
        down["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        down["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        assert!(uses(down.clone(), "", "c"));
        assert!(!uses(down.clone(), "p", "p-e"));
        down["metadata"]["namespace"] = json!("other");
        assert!(!uses(down, "", "c"));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_go_when_their_last_pod_has_gone() {
        let cluster = Cluster::new();
        let mut bare = claim("bare");
        bare["metadata"]["finalizers"] = json!([]);
        for object in [
            claim("used"),
            claim("unused"),
            bare,
            pod("p", "n", "used"),
            pod("q", "", "unused"),
        ] {
            cluster.put(object);
        }
        cluster.run(&[&CLAIMS]);
        cluster.wait_until_idle().await;
        let there = |name: &str| cluster.get::<PersistentVolumeClaim>("ns", name);
        assert!(there("bare").unwrap().metadata.has_finalizer(CLAIM_FINALIZER));
        for name in ["used", "unused", "bare"] {
            cluster.delete::<PersistentVolumeClaim>("ns", name);
        }
        cluster.wait_until_idle().await;
        assert!(there("unused").is_none() && there("bare").is_none());
        assert!(there("used").is_some_and(|claim| claim.metadata.is_deleted()));
        cluster.remove::<Pod>("ns", "p");
        cluster.wait_until_idle().await;
        assert!(there("used").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn volumes_and_classes_go_when_nobody_needs_them() {
        let cluster = Cluster::new();
        cluster.put(
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
                           "spec": {"volumeAttributesClassName": "gold"}, "status": {"phase": "Bound"}}),
        );
        cluster.put(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                           "metadata": {"name": "gold"}}),
        );
        cluster.run(&[&VOLUMES, &ATTRIBUTES_CLASSES]);
        cluster.wait_until_idle().await;
        cluster.delete::<PersistentVolume>("", "v");
        cluster.delete::<VolumeAttributesClass>("", "gold");
        cluster.wait_until_idle().await;
        let class = || cluster.get::<VolumeAttributesClass>("", "gold");
        assert!(cluster.get::<PersistentVolume>("", "v").is_some() && class().is_some());
        cluster.edit_status::<PersistentVolume>("", "v", |v| v["status"]["phase"] = json!("Released"));
        cluster.wait_until_idle().await;
        assert!(cluster.get::<PersistentVolume>("", "v").is_none() && class().is_none());
    }
}
