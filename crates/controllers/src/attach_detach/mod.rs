//! Volumes of CSI drivers that must be attached to a node before pods there can use them.
//!
//! The driver does it; here is said what: by VolumeAttachments, one for each volume on each node. What is attached, the
//! node's status says to the kubelet; what the kubelet has mounted, it says there to us, and as long as it does nothing is
//! detached, unless the node is lost.
// Upstream: pkg/controller/volume/attachdetach, pkg/volume/csi/csi_attacher.go (v1.36)

mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_base::Clock;
use orlop_client::{Error, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;

use self::plan::{DesiredVolume, NodeHistory, Plan, View};
use crate::index::{Index, claims_of, pods_by_claim};
use crate::objects::{CsiDriver, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};
use crate::persistent_volume::is_over;
use crate::runtime::{Cache, Def, Key, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, WorkQueue, Writer};

pub(crate) const DEF: Def = Def {
    name: "persistentvolume-attach-detach-controller",
    account: "attachdetach-controller",
    on_by_default: true,
    start,
};

/// One reconcile a node.
struct Controller {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    drivers: Cache<CsiDriver>,
    attachments: Cache<VolumeAttachment>,
    by_volume: Index<VolumeAttachment>,
    by_claim: Index<Pod>,
    recorder: Recorder,
    clock: Clock,
    wait_forever: bool,
    memory: Mutex<FxHashMap<String, NodeHistory>>,
}

fn start(setup: &Setup) {
    let (pods, attachments) = (setup.cache::<Pod>(), setup.cache::<VolumeAttachment>());
    let controller = Arc::new(Controller {
        nodes: setup.cache(),
        claims: setup.cache(),
        volumes: setup.cache(),
        drivers: setup.cache(),
        by_volume: Index::new(&attachments, |a| {
            a.spec.source.persistent_volume_name.clone().into_iter().collect()
        }),
        by_claim: pods_by_claim(&pods),
        pods,
        attachments,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        wait_forever: setup.settings.disable_force_detach_on_timeout,
        memory: Mutex::default(),
    });
    let queue = setup.queue("attach_detach");
    controller.watch(&queue);
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

fn node_key(name: &str) -> Key {
    Key::new("", name)
}

/// Which nodes to queue.
impl Controller {
    fn watch(self: &Arc<Controller>, queue: &WorkQueue) {
        let wake = queue.clone();
        self.pods.on_change(move |old, new| {
            for pod in [old, new].into_iter().flatten() {
                if !pod.spec.node_name.is_empty() && !claims_of(pod).is_empty() {
                    wake.add(node_key(&pod.spec.node_name));
                }
            }
        });
        let wake = queue.clone();
        self.nodes.on_change(move |old, new| {
            // A node says every few seconds that it is alive; that moves nothing here.
            if old.map(|node| facts(node)) != new.map(|node| facts(node))
                && let Some(node) = new.or(old)
            {
                wake.add(node_key(&node.metadata.name));
            }
        });
        let (wake, this) = (queue.clone(), self.clone());
        self.claims.on_change(move |old, new| {
            let bound = |claim: Option<&Arc<PersistentVolumeClaim>>| {
                claim.map(|claim| (claim.status.phase.clone(), claim.spec.volume_name.clone()))
            };
            if bound(old) != bound(new)
                && let Some(claim) = new
            {
                this.wake_users(&Key::from_object(&**claim), &wake);
            }
        });
        let (wake, this) = (queue.clone(), self.clone());
        self.volumes.on_change(move |old, new| {
            let claim = |volume: Option<&Arc<PersistentVolume>>| volume.and_then(|v| v.spec.claim_ref.clone());
            if let Some(claim) = claim(new).filter(|_| claim(old) != claim(new)) {
                this.wake_users(&Key::new(claim.namespace, claim.name), &wake);
            }
        });
        let (wake, this) = (queue.clone(), self.clone());
        self.attachments.on_change(move |old, new| {
            let Some(attachment) = new.or(old) else { return };
            wake.add(node_key(&attachment.spec.node_name));
            if new.is_none() {
                this.wake_waiting(attachment, &wake);
            }
        });
        let (wake, this) = (queue.clone(), self.clone());
        self.drivers.on_change(move |old, new| {
            let required = |driver: Option<&Arc<CsiDriver>>| driver.and_then(|d| d.spec.attach_required) != Some(false);
            if required(old) != required(new) {
                this.nodes
                    .list()
                    .iter()
                    .for_each(|node| wake.add(node_key(&node.metadata.name)));
            }
        });
    }

    fn wake_users(&self, claim: &Key, queue: &WorkQueue) {
        for pod in self.by_claim.objects(&claim.to_string()) {
            if !pod.spec.node_name.is_empty() {
                queue.add(node_key(&pod.spec.node_name));
            }
        }
    }

    /// Nodes that may have waited for another one to let go of a volume.
    fn wake_waiting(&self, gone: &VolumeAttachment, queue: &WorkQueue) {
        let name = gone.spec.source.persistent_volume_name.as_deref();
        let volume = name.and_then(|name| self.volumes.get("", name));
        if let Some(claim) = volume.and_then(|volume| volume.spec.claim_ref.clone()) {
            self.wake_users(&Key::new(claim.namespace, claim.name), queue);
        }
    }
}

/// What of a node decides here.
fn facts(node: &Node) -> (&[String], Vec<&str>, Vec<&str>, bool) {
    let (status, taints) = (&node.status, &node.spec.taints);
    let attached = status.volumes_attached.iter().map(|volume| volume.name.as_str());
    let ready = node.condition("Ready").is_some_and(|ready| ready.is_true());
    let taints = taints.iter().map(|taint| taint.key.as_str());
    (&status.volumes_in_use, attached.collect(), taints.collect(), ready)
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let name = key.name.as_str();
        let node = self.nodes.at(key);
        let view = View {
            node_name: name,
            node: node.as_deref(),
            wanted: self.wanted(name),
            attachments: self.attached(name),
            wait_forever: self.wait_forever,
            now: self.clock.now(),
        };
        let before = self.memory.lock().get(name).cloned().unwrap_or_default();
        let Plan {
            attach,
            detach,
            report,
            events,
            next,
            memory,
        } = plan::plan(&view, &before);
        match memory.is_empty() {
            true => drop(self.memory.lock().remove(name)),
            false => drop(self.memory.lock().insert(name.to_string(), memory)),
        }
        for attachment in &attach {
            match writer.create::<VolumeAttachment>("", attachment).await {
                Ok(_) | Err(Error::AlreadyExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let (Some(volumes), Some(node)) = (report, &node) {
            let patch = json!({"metadata": {"uid": node.metadata.uid}, "status": {"volumesAttached": volumes}});
            writer.patch_status::<Node>(&node.metadata, &patch).await?;
        }
        for said in events {
            match said.warning {
                true => self.recorder.warning(&*said.pod, said.reason, said.message),
                false => self.recorder.normal(&*said.pod, said.reason, said.message),
            }
        }
        for (volume, attachment, check) in &detach {
            if *check && self.is_used(writer, name, volume).await? {
                continue;
            }
            match writer.delete::<VolumeAttachment>(&attachment.metadata).await {
                Ok(()) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(next)
    }
}

impl Controller {
    /// What pods on the node use, that must be attached for them.
    fn wanted(&self, node: &str) -> BTreeMap<String, DesiredVolume> {
        let mut wanted: BTreeMap<String, DesiredVolume> = BTreeMap::new();
        let pods = self.pods.indexed(node);
        for pod in pods.iter().filter(|pod| !is_over(pod)) {
            for claim in claims_of(pod) {
                let Some(volume) = self.volume_behind(&claim, pod) else {
                    continue;
                };
                let Some(name) = plan::unique_name(&volume) else {
                    continue;
                };
                let entry = wanted.entry(name).or_insert_with(|| self.wanting(volume, node));
                entry.pods.push(pod.clone());
            }
        }
        for entry in wanted.values_mut() {
            entry
                .pods
                .sort_by(|a, b| Key::from_object(&**a).cmp(&Key::from_object(&**b)));
        }
        wanted
    }

    fn wanting(&self, volume: Arc<PersistentVolume>, node: &str) -> DesiredVolume {
        let attachments = self.by_volume.objects(&volume.metadata.name);
        let nodes = attachments.iter().map(|attachment| &attachment.spec.node_name);
        let elsewhere: Vec<String> = nodes.filter(|other| *other != node).cloned().collect();
        let claim = volume.spec.claim_ref.as_ref();
        let key = claim.map_or_else(String::new, |claim| format!("{}/{}", claim.namespace, claim.name));
        let mut users_elsewhere = self.by_claim.objects(&key);
        users_elsewhere.retain(|pod| elsewhere.contains(&pod.spec.node_name) && !is_over(pod));
        DesiredVolume {
            volume,
            pods: vec![],
            elsewhere,
            users_elsewhere,
        }
    }

    /// None: there is none (yet), or it needs no attaching.
    fn volume_behind(&self, claim: &Key, pod: &Pod) -> Option<Arc<PersistentVolume>> {
        let claim = self.claims.at(claim)?;
        let owner = claim.metadata.controller();
        let is_own = owner.is_some_and(|owner| owner.uid == pod.metadata.uid);
        let named = (pod.spec.volumes.iter())
            .filter_map(|volume| volume.persistent_volume_claim.as_ref())
            .any(|source| source.claim_name == claim.metadata.name);
        if claim.status.phase != "Bound" || !(named || is_own) {
            return None;
        }
        let volume = self.volumes.get("", &claim.spec.volume_name)?;
        let reference = volume.spec.claim_ref.as_ref()?;
        let driver = self.drivers.get("", &volume.spec.csi.as_ref()?.driver);
        let needs = driver.and_then(|driver| driver.spec.attach_required) != Some(false);
        (needs && reference.uid == claim.metadata.uid).then_some(volume)
    }

    /// Attachments that are ours to judge: made for a volume that is there, under the name that we give.
    fn attached(&self, node: &str) -> BTreeMap<String, Arc<VolumeAttachment>> {
        let found = self.attachments.indexed(node).into_iter();
        let ours = found.filter_map(|attachment| {
            let source = attachment.spec.source.persistent_volume_name.as_deref()?;
            let volume = self.volumes.get("", source)?;
            let ours = plan::attachment_name(&volume, node)? == attachment.metadata.name;
            ours.then_some((plan::unique_name(&volume)?, attachment))
        });
        ours.collect()
    }

    /// As the API server knows it, for the cache may be behind.
    async fn is_used(&self, writer: &Writer, node: &str, volume: &str) -> Result<bool, ReconcileError> {
        let at = path::object(Node::API_VERSION, None, Node::RESOURCE, node);
        match writer.api().get::<Node>(&at).await {
            Ok(node) => Ok(node.status.volumes_in_use.iter().any(|used| used == volume)),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
