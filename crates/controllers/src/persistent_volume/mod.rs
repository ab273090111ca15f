//! Volumes and claims find each other, and part again.
//!
//! A claim gets a volume that fits, or the volume that it names, or is named by; if there is none, somebody is asked to
//! make one. Claims of a class that waits for its first consumer are bound when the scheduler has chosen a node.
// Upstream: pkg/controller/volume/persistentvolume (v1.36)

mod matching;
mod migration;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use orlop_client::{Error, path};
use parking_lot::Mutex;
use serde_json::json;

use self::matching::default_class;
use self::plan::{Around, Event, Plan, Step};
use crate::index::{Index, claims_of, pods_by_claim};
use crate::objects::{Kind, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, WorkQueue, Writer, precondition,
};

pub(crate) use self::migration::driver as driver_of;

pub(crate) const DEF: Def = Def {
    name: "persistentvolume-binder-controller",
    account: "persistent-volume-binder",
    on_by_default: true,
    start,
};

/// More steps than any reconcile needs: a plan that never ends is a bug.
const STEPS_MAX: usize = 12;

/// Shared by the turns of claims and of volumes.
struct Binder {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    claims_by: Index<PersistentVolumeClaim>,
    volumes_by: Index<PersistentVolume>,
    pods_by_claim: Index<Pod>,
    claim_queue: WorkQueue,
    recorder: Recorder,
    provisioning: bool,
    /// Volumes that turns under way have chosen, so that of many claims each tries for another one.
    chosen: Mutex<HashSet<String>>,
}

struct ClaimTurns(Arc<Binder>);
struct VolumeTurns(Arc<Binder>);

fn start(setup: &Setup) {
    let claims = setup.cache::<PersistentVolumeClaim>();
    let volumes = setup.cache::<PersistentVolume>();
    let classes = setup.cache::<StorageClass>();
    let pods = setup.cache::<Pod>();
    let (claim_queue, volume_queue) = (setup.queue("claims"), setup.queue("volumes"));
    let binder = Arc::new(Binder {
        claims_by: Index::new(&claims, |claim| vec![claim_index(claim)]),
        volumes_by: Index::new(&volumes, |volume| vec![volume_index(volume)]),
        pods_by_claim: pods_by_claim(&pods),
        claims: claims.clone(),
        volumes: volumes.clone(),
        classes: classes.clone(),
        claim_queue: claim_queue.clone(),
        recorder: setup.recorder.clone(),
        provisioning: setup.settings.enable_dynamic_provisioning,
        chosen: Mutex::default(),
    });
    let (b, volume_wake) = (binder.clone(), volume_queue.clone());
    claims.on_change(move |old, new| b.claim_changed(old, new, &volume_wake));
    let (b, volume_wake) = (binder.clone(), volume_queue.clone());
    volumes.on_change(move |old, new| b.volume_changed(old, new, &volume_wake));
    let b = binder.clone();
    classes.on_change(move |old, new| b.class_changed(old, new));
    let b = binder.clone();
    pods.on_change(move |old, new| b.pod_changed(old, new));
    let workers = setup.settings.concurrent_syncs;
    setup.run(claim_queue, workers, ClaimTurns(binder.clone()));
    setup.run(volume_queue, workers, VolumeTurns(binder));
}

/// Claims are found by the volume they name, and if they name none, by the class they want one of.
fn claim_index(claim: &PersistentVolumeClaim) -> String {
    match claim.spec.volume_name.as_str() {
        "" => format!("class/{}", claim.class()),
        volume => format!("volume/{volume}"),
    }
}

/// Volumes are found by the claim they refer to, and if they refer to none, by their class.
fn volume_index(volume: &PersistentVolume) -> String {
    match &volume.spec.claim_ref {
        Some(claim) => format!("claim/{}/{}", claim.namespace, claim.name),
        None => format!("class/{}", volume.class()),
    }
}

type Version<'a, T> = Option<&'a Arc<T>>;

/// Which keys to queue.
impl Binder {
    fn claim_changed(
        &self,
        old: Version<'_, PersistentVolumeClaim>,
        new: Version<'_, PersistentVolumeClaim>,
        volume_queue: &WorkQueue,
    ) {
        let Some(claim) = new.or(old) else { return };
        self.claim_queue.add(Key::from_object(&**claim));
        for key in self.volumes_by.keys(&format!("claim/{}", Key::from_object(&**claim))) {
            volume_queue.add(key);
        }
        if !claim.spec.volume_name.is_empty() {
            volume_queue.add(Key::new("", &*claim.spec.volume_name));
        }
    }

    fn volume_changed(
        &self,
        old: Version<'_, PersistentVolume>,
        new: Version<'_, PersistentVolume>,
        volume_queue: &WorkQueue,
    ) {
        let Some(volume) = new.or(old) else { return };
        volume_queue.add(Key::from_object(&**volume));
        for state in [old, new].into_iter().flatten() {
            if let Some(claim) = &state.spec.claim_ref {
                self.claim_queue.add(Key::new(&*claim.namespace, &*claim.name));
            }
        }
        for claim in self.claims_by.keys(&format!("volume/{}", volume.metadata.name)) {
            self.claim_queue.add(claim);
        }
        if let Some(volume) = new.filter(|v| v.spec.claim_ref.is_none() && v.status.phase == "Available") {
            let waiting = self.claims_by.objects(&format!("class/{}", volume.class()));
            for claim in waiting
                .iter()
                .filter(|claim| matching::mismatch(volume, claim).is_none())
            {
                self.claim_queue.add(Key::from_object(&**claim));
            }
        }
    }

    fn class_changed(&self, old: Version<'_, StorageClass>, new: Version<'_, StorageClass>) {
        let Some(class) = new.or(old) else { return };
        // Claims without a class may get this one.
        for name in [class.metadata.name.as_str(), ""] {
            for claim in self.claims_by.keys(&format!("class/{name}")) {
                self.claim_queue.add(claim);
            }
        }
    }

    /// What a waiting claim says it waits for.
    fn pod_changed(&self, old: Version<'_, Pod>, new: Version<'_, Pod>) {
        let scheduled = |pod: Version<'_, Pod>| pod.map(|pod| !pod.spec.node_name.is_empty() || pod.is_terminal());
        if scheduled(old) == scheduled(new) {
            return;
        }
        for key in new.or(old).map_or_else(Vec::new, |pod| claims_of(pod)) {
            if self
                .claims
                .at(&key)
                .is_some_and(|claim| claim.spec.volume_name.is_empty())
            {
                self.claim_queue.add(key);
            }
        }
    }
}

impl Reconcile for ClaimTurns {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let binder = &self.0;
        let Some(claim) = binder.claims.at(key) else {
            return Ok(Next::Done);
        };
        let mut choice = ReservedVolume {
            of: &binder.chosen,
            name: None,
        };
        binder.claim_turn(claim, writer, &mut choice).await
    }
}

impl Reconcile for VolumeTurns {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        match self.0.volumes.at(key) {
            Some(volume) => self.0.volume_turn(volume, writer).await,
            None => Ok(Next::Done),
        }
    }
}

/// The volume that a reconcile is about to bind, for as long as the reconcile lasts.
struct ReservedVolume<'a> {
    of: &'a Mutex<HashSet<String>>,
    name: Option<String>,
}

impl ReservedVolume<'_> {
    fn reserve(&mut self, name: &str) {
        if self.name.is_none() && self.of.lock().insert(name.to_string()) {
            self.name = Some(name.to_string());
        }
    }
}

impl Drop for ReservedVolume<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            self.of.lock().remove(name);
        }
    }
}

impl Binder {
    async fn claim_turn(
        &self,
        mut claim: Arc<PersistentVolumeClaim>,
        writer: &Writer,
        choice: &mut ReservedVolume<'_>,
    ) -> ReconcileResult {
        let mut around = self.around(&claim);
        for _ in 0..STEPS_MAX {
            let Plan { step, event } = plan::claim(&claim, &around);
            let mut refused = None;
            let done = match step {
                Step::Volume(volume, patch) => {
                    choice.reserve(&volume.metadata.name);
                    let volume = writer.patch::<PersistentVolume>(&volume.metadata, &patch).await;
                    volume.map(|volume| around.settle_on(volume))
                }
                Step::VolumeStatus(volume, patch) => {
                    let volume = writer.patch_status::<PersistentVolume>(&volume.metadata, &patch).await;
                    volume.map(|volume| around.settle_on(volume))
                }
                Step::Claim(patch) => writer.patch(&claim.metadata, &patch).await.map(|now| {
                    claim = Arc::new(now);
                    around.class = self.classes.get("", claim.class());
                }),
                Step::ClaimStatus(patch) => {
                    let now = writer.patch_status(&claim.metadata, &patch).await;
                    now.map(|now| claim = Arc::new(now))
                }
                Step::Refuse(reason) => {
                    refused = Some(ReconcileError::NotYet(reason));
                    Ok(())
                }
                Step::Nothing | Step::WakeClaim | Step::DeleteHostPath(_) => {
                    self.record_event(&*claim, event);
                    return Ok(Next::Done);
                }
            };
            match done {
                Ok(()) => self.record_event(&*claim, event),
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(error) => return Err(error.into()),
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        Err(ReconcileError::NotYet(format!(
            "sync of claim {} did not converge",
            Key::from_object(&*claim)
        )))
    }

    fn around(&self, claim: &PersistentVolumeClaim) -> Around {
        let key = Key::from_object(claim);
        let named = (!claim.spec.volume_name.is_empty())
            .then(|| self.volumes.get("", &claim.spec.volume_name))
            .flatten();
        let free = claim.spec.volume_name.is_empty() && !claim.is_bind_completed();
        let mut candidates = vec![];
        let mut unscheduled_pods = vec![];
        let mut default = None;
        if free {
            candidates = self.volumes_by.objects(&format!("claim/{key}"));
            let mut others = self.volumes_by.objects(&format!("class/{}", claim.class()));
            let chosen = self.chosen.lock();
            others.retain(|volume| !chosen.contains(&volume.metadata.name));
            candidates.extend(others);
            let pods = self.pods_by_claim.objects(&key.to_string());
            let waiting = pods.iter().filter(|pod| pod.spec.node_name.is_empty() && !is_over(pod));
            unscheduled_pods = waiting.map(|pod| pod.metadata.name.clone()).collect();
            if !claim.names_class() {
                default = default_class(&self.classes.list()).map(|class| class.metadata.name.clone());
            }
        }
        Around {
            named,
            candidates,
            class: self.classes.get("", claim.class()),
            default_class: default,
            unscheduled_pods,
            provisioning: self.provisioning,
        }
    }

    async fn volume_turn(&self, mut volume: Arc<PersistentVolume>, writer: &Writer) -> ReconcileResult {
        let owner = self.owner(&volume, writer).await?;
        for _ in 0..STEPS_MAX {
            let Plan { step, event } = plan::volume(&volume, owner.as_deref());
            let done = match step {
                Step::Volume(volume, patch) => writer.patch(&volume.metadata, &patch).await,
                Step::VolumeStatus(volume, patch) => writer.patch_status(&volume.metadata, &patch).await,
                Step::DeleteHostPath(path) => return self.delete(&volume, &path, writer).await,
                Step::WakeClaim => {
                    if let Some(claim) = &owner {
                        self.claim_queue.add(Key::from_object(&**claim));
                    }
                    return Ok(Next::Done);
                }
                Step::Nothing | Step::Refuse(_) | Step::Claim(_) | Step::ClaimStatus(_) => {
                    if event.is_some()
                        && let Some(claim) = &owner
                    {
                        self.record_event(&**claim, Some(plan::mode_mismatch(&volume)));
                    }
                    self.record_event(&*volume, event);
                    return Ok(Next::Done);
                }
            };
            match done {
                Ok(now) => volume = Arc::new(now),
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(error) => return Err(error.into()),
            }
            self.record_event(&*volume, event);
        }
        Err(ReconcileError::NotYet(format!(
            "sync of volume {} did not converge",
            volume.metadata.name
        )))
    }

    /// The claim that the volume refers to. A cache may be behind the other; that a claim is gone, and its data may be
    /// deleted, only the API server can say.
    async fn owner(
        &self,
        volume: &PersistentVolume,
        writer: &Writer,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, ReconcileError> {
        let reference = volume.spec.claim_ref.as_ref().filter(|r| !r.uid.is_empty());
        let Some(reference) = reference else { return Ok(None) };
        let known = self.claims.get(&reference.namespace, &reference.name);
        if let Some(claim) = known.filter(|claim| claim.metadata.uid == reference.uid) {
            return Ok(Some(claim));
        }
        let (namespace, resource) = (Some(reference.namespace.as_str()), PersistentVolumeClaim::RESOURCE);
        let at = path::object(PersistentVolumeClaim::API_VERSION, namespace, resource, &reference.name);
        match writer.api().get::<PersistentVolumeClaim>(&at).await {
            Ok(claim) if claim.metadata.uid == reference.uid => Ok(Some(Arc::new(claim))),
            Ok(_) | Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Only on this machine, and only below /tmp: for trying things out.
    async fn delete(&self, volume: &Arc<PersistentVolume>, path: &str, writer: &Writer) -> ReconcileResult {
        if let Err(error) = remove_tree(path).await {
            let message = format!("failed to remove {path}: {error}");
            let Plan { step, event } = plan::failed(volume, "VolumeFailedDelete", &message);
            if let Step::VolumeStatus(volume, patch) = step {
                writer
                    .patch_status::<PersistentVolume>(&volume.metadata, &patch)
                    .await?;
            }
            self.record_event(&**volume, event);
            return Err(ReconcileError::NotYet(message));
        }
        let meta = &volume.metadata;
        if meta.has_finalizer(migration::IN_TREE_FINALIZER) {
            let left: Vec<_> = (meta.finalizers.iter())
                .filter(|f| *f != migration::IN_TREE_FINALIZER)
                .collect();
            let mut metadata = precondition(meta);
            metadata["finalizers"] = json!(left);
            writer
                .patch::<PersistentVolume>(meta, &json!({"metadata": metadata}))
                .await?;
        }
        match writer.delete::<PersistentVolume>(meta).await {
            Ok(()) | Err(Error::NotFound(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }

    fn record_event<T: Kind>(&self, object: &T, event: Option<Event>) {
        match event {
            Some(event) if event.warning => self.recorder.warning(object, event.reason, event.message),
            Some(event) => self.recorder.normal(object, event.reason, event.message),
            None => {}
        }
    }
}

impl Around {
    /// From now on the claim's volume is this one, as it was just written.
    fn settle_on(&mut self, volume: PersistentVolume) {
        let volume = Arc::new(volume);
        self.candidates = vec![volume.clone()];
        self.named = Some(volume);
    }
}

/// Upstream: IsPodTerminated. Ended, or on its way out with nothing running.
pub(crate) fn is_over(pod: &Pod) -> bool {
    pod.is_terminal()
        || (pod.metadata.is_deleted() && pod.status.container_statuses.iter().all(|c| c.state.running.is_none()))
}

/// As if it had not been there, if it was not.
pub(crate) async fn remove_tree(path: &str) -> std::io::Result<()> {
    match tokio::fs::remove_dir_all(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
