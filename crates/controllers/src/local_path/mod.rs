//! Volumes that are directories of a node: claims just work on a single machine.
//!
//! The class `local-path` waits for a pod to get a node; a claim then gets a directory there, which the kubelet makes when
//! the pod starts. When the claim goes, so does the directory, if it is on this machine: there is no hand that reaches into
//! another one.
//!
//! Not part of Kubernetes, where such a provisioner is installed beside it; its manners are those of the external ones.

mod plan;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use orlop_client::{Error, path};
use serde_json::json;

use self::plan::{Reclaim, Refusal, VolumeRoot};
use crate::objects::persistent_volume::PROVISIONED_BY;
use crate::objects::persistent_volume_claim::{SELECTED_NODE, STORAGE_PROVISIONER};
use crate::objects::{Kind, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};
use crate::persistent_volume::remove_tree;
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, precondition,
};

pub(crate) const DEF: Def = Def {
    name: "local-path-provisioner-controller",
    account: "local-path-provisioner",
    on_by_default: true,
    start,
};

pub(crate) const PROVISIONER: &str = "orlop.dev/local-path";
const CLASS: &str = "local-path";

struct Provisioner {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    nodes: Cache<Node>,
    recorder: Recorder,
    place: VolumeRoot,
}

struct Classes(Arc<Provisioner>);
struct Claims(Arc<Provisioner>);
struct Volumes(Arc<Provisioner>);

fn start(setup: &Setup) {
    // Without a place for its directories there is nothing it could offer.
    let Some(directory) = setup.settings.local_path_dir.clone() else {
        return;
    };
    // A path in a volume says the same wherever the kubelet was started.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let node = setup.settings.local_node.clone();
    let provisioner = Arc::new(Provisioner {
        claims: setup.cache(),
        volumes: setup.cache(),
        classes: setup.cache(),
        nodes: setup.cache(),
        recorder: setup.recorder.clone(),
        place: VolumeRoot { directory, node },
    });
    let classes = setup.queue("local_path_class");
    classes.add(Key::new("", CLASS));
    let (claims, volumes) = (setup.queue("local_path_claims"), setup.queue("local_path_volumes"));
    let wake = claims.clone();
    provisioner.claims.on_change(move |_, new| {
        if let Some(claim) = new.filter(|claim| is_ours(claim)) {
            wake.add(Key::from_object(&**claim));
        }
    });
    let wake = volumes.clone();
    provisioner.volumes.on_change(move |_, new| {
        let ours = |volume: &&Arc<PersistentVolume>| volume.metadata.annotation(PROVISIONED_BY) == Some(PROVISIONER);
        if let Some(volume) = new.filter(ours) {
            wake.add(Key::from_object(&**volume));
        }
    });
    let workers = setup.settings.concurrent_syncs;
    setup.run(classes, 1, Classes(provisioner.clone()));
    setup.run(claims, workers, Claims(provisioner.clone()));
    setup.run(volumes, workers, Volumes(provisioner));
}

/// Waits for us to make its volume.
fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotation(STORAGE_PROVISIONER) == Some(PROVISIONER)
        && claim.spec.volume_name.is_empty()
        && !claim.metadata.is_deleted()
}

impl Reconcile for Classes {
    /// Once, at the start: who deletes the class after that does not want it.
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let known = &self.0.classes;
        if known.at(key).is_some() {
            return Ok(Next::Done);
        }
        let has_default = known.list().iter().any(|class| class.is_default());
        match writer
            .create::<StorageClass>("", &plan::class(CLASS, !has_default))
            .await
        {
            Ok(_) | Err(Error::AlreadyExists(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconcile for Claims {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let all = &self.0;
        let Some(claim) = all.claims.at(key).filter(|claim| is_ours(claim)) else {
            return Ok(Next::Done);
        };
        if all.volumes.get("", &plan::volume_name(&claim)).is_some() {
            return Ok(Next::Done);
        }
        let class = all.classes.get("", claim.class());
        let Some(class) = class.filter(|class| class.provisioner == PROVISIONER) else {
            return Ok(Next::Done);
        };
        let Some(name) = plan::node_for(&claim, &class, &all.place) else {
            return Ok(Next::Done);
        };
        let node = all.nodes.get("", name);
        match plan::volume(&claim, &class, name, node.as_deref(), &all.place) {
            Ok(volume) => all.make(&claim, &volume, name, writer).await,
            Err(refusal) => all.refuse(&claim, &class, refusal, writer).await,
        }
    }
}

impl Provisioner {
    async fn make(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &serde_json::Value,
        node: &str,
        writer: &Writer,
    ) -> ReconcileResult {
        let key = Key::from_object(claim);
        let message = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.recorder.normal(claim, "Provisioning", message);
        if self.place.is_here(node)
            && let Some(at) = volume["spec"]["hostPath"]["path"].as_str()
            && let Err(error) = make_directory(at).await
        {
            let message = format!(
                "failed to provision volume with StorageClass \"{}\": failed to create directory {at}: {error}",
                claim.class()
            );
            self.recorder.warning(claim, "ProvisioningFailed", message.clone());
            return Err(ReconcileError::NotYet(message));
        }
        match writer.create::<PersistentVolume>("", volume).await {
            Ok(made) => {
                let message = format!("Successfully provisioned volume {}", made.metadata.name);
                self.recorder.normal(claim, "ProvisioningSucceeded", message);
                Ok(Next::Done)
            }
            Err(Error::AlreadyExists(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }

    async fn refuse(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        refusal: Refusal,
        writer: &Writer,
    ) -> ReconcileResult {
        let message = match &refusal {
            Refusal::NoNode(name) => format!("failed to get target node: node \"{name}\" not found"),
            Refusal::Never(why) => format!(
                "failed to provision volume with StorageClass \"{}\": {why}",
                class.metadata.name
            ),
        };
        self.recorder.warning(claim, "ProvisioningFailed", message);
        // The scheduler must choose again.
        if matches!(refusal, Refusal::NoNode(_)) && claim.selected_node().is_some() {
            let mut metadata = precondition(&claim.metadata);
            metadata["annotations"] = json!({SELECTED_NODE: null});
            writer
                .patch::<PersistentVolumeClaim>(&claim.metadata, &json!({"metadata": metadata}))
                .await?;
        }
        Ok(Next::Done)
    }
}

impl Reconcile for Volumes {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let all = &self.0;
        let Some(volume) = all.volumes.at(key) else {
            return Ok(Next::Done);
        };
        match plan::reclaim(&volume, &all.place) {
            Reclaim::Nothing => Ok(Next::Done),
            Reclaim::LetGo => let_go(&volume, writer).await,
            Reclaim::Elsewhere(node) => {
                let path = volume.spec.host_path.as_ref().map_or("", |at| at.path.as_str());
                let message = format!(
                    "directory {path} is on node {node}, which is not this machine: remove it there, then delete the volume"
                );
                all.recorder.warning(&*volume, "VolumeFailedDelete", message);
                Ok(Next::Done)
            }
            Reclaim::Remove(path) => {
                if all.is_claimed(&volume, writer).await? {
                    return Ok(Next::Done);
                }
                all.remove(&volume, path, writer).await
            }
        }
    }
}

impl Provisioner {
    /// What is removed is gone: the API server has the last word on whether its claim is.
    async fn is_claimed(&self, volume: &PersistentVolume, writer: &Writer) -> Result<bool, ReconcileError> {
        let Some(reference) = &volume.spec.claim_ref else {
            return Ok(false);
        };
        let (namespace, resource) = (Some(reference.namespace.as_str()), PersistentVolumeClaim::RESOURCE);
        let at = path::object(PersistentVolumeClaim::API_VERSION, namespace, resource, &reference.name);
        match writer.api().get::<PersistentVolumeClaim>(&at).await {
            Ok(claim) => Ok(claim.metadata.uid == reference.uid),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn remove(&self, volume: &PersistentVolume, path: PathBuf, writer: &Writer) -> ReconcileResult {
        if let Err(error) = remove_tree(&path.to_string_lossy()).await {
            let message = format!("failed to remove directory {}: {error}", path.display());
            self.recorder.warning(volume, "VolumeFailedDelete", message.clone());
            return Err(ReconcileError::NotYet(message));
        }
        if !volume.metadata.is_deleted() {
            match writer.delete::<PersistentVolume>(&volume.metadata).await {
                Ok(()) => {}
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(error) => return Err(error.into()),
            }
            // Its next reconcile finds it on its way out, and lets it go.
            if volume.metadata.has_finalizer(plan::FINALIZER) {
                return Ok(Next::Done);
            }
        }
        let_go(volume, writer).await
    }
}

/// Takes our finalizer off.
async fn let_go(volume: &PersistentVolume, writer: &Writer) -> ReconcileResult {
    let meta = &volume.metadata;
    if !meta.has_finalizer(plan::FINALIZER) {
        return Ok(Next::Done);
    }
    let left: Vec<&String> = meta.finalizers.iter().filter(|f| *f != plan::FINALIZER).collect();
    let mut metadata = precondition(meta);
    metadata["finalizers"] = json!(left);
    match writer
        .patch::<PersistentVolume>(meta, &json!({"metadata": metadata}))
        .await
    {
        Ok(_) | Err(Error::NotFound(_)) => Ok(Next::Done),
        Err(error) => Err(error.into()),
    }
}

/// For everybody: containers need not run as root.
async fn make_directory(path: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    tokio::fs::create_dir_all(path).await?;
    tokio::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).await
}
