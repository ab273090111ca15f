//! What is to be attached to a node, and what may be taken from it. Pure: objects in, a plan out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::objects::{Node, PersistentVolume, Pod, VolumeAttachment};
use crate::runtime::Next;

/// Upstream: how long an unhealthy node's mounts are waited for.
const UNMOUNT_PATIENCE: SignedDuration = SignedDuration::from_mins(6);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const PLUGIN: &str = "kubernetes.io/csi/";

/// A volume that pods on the node use.
pub(super) struct DesiredVolume {
    pub volume: Arc<PersistentVolume>,
    pub pods: Vec<Arc<Pod>>,
    /// Other nodes that have it, or still have it.
    pub elsewhere: Vec<String>,
    /// Pods that use it there.
    pub users_elsewhere: Vec<Arc<Pod>>,
}

pub(super) struct View<'a> {
    pub node_name: &'a str,
    /// None: it is gone.
    pub node: Option<&'a Node>,
    /// By the volume's name in the node's status.
    pub wanted: BTreeMap<String, DesiredVolume>,
    /// What was attached, or is to be: by the volume's name, as above.
    pub attachments: BTreeMap<String, Arc<VolumeAttachment>>,
    /// `--disable-force-detach-on-timeout`
    pub wait_forever: bool,
    pub now: Timestamp,
}

/// What is remembered of a node from one reconcile to the next; losing it costs time or a repeated event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeHistory {
    /// Since when a volume is to be detached.
    since: BTreeMap<String, Timestamp>,
    /// The last that was said of a volume.
    told: BTreeMap<String, String>,
}

impl NodeHistory {
    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty() && self.told.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Plan {
    pub attach: Vec<Value>,
    /// The volume's name, its attachment, and whether to look first if the node still uses it.
    pub detach: Vec<(String, Arc<VolumeAttachment>, bool)>,
    /// What the node's status is to say, if it does not say that.
    pub report: Option<Vec<Value>>,
    pub events: Vec<Said>,
    pub next: Next,
    pub memory: NodeHistory,
}

#[derive(Debug)]
pub(super) struct Said {
    pub pod: Arc<Pod>,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// How a volume is called in the status of nodes.
pub(super) fn unique_name(volume: &PersistentVolume) -> Option<String> {
    let csi = volume.spec.csi.as_ref()?;
    Some(format!("{PLUGIN}{}^{}", csi.driver, csi.volume_handle))
}

/// The same for all who attach, and for the kubelet that waits for it.
pub(super) fn attachment_name(volume: &PersistentVolume, node: &str) -> Option<String> {
    let csi = volume.spec.csi.as_ref()?;
    let parts = [csi.volume_handle.as_str(), &csi.driver, node].concat();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, parts.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("csi-{hex}"))
}

pub(super) fn plan(view: &View<'_>, before: &NodeHistory) -> Plan {
    let mut plan = Plan {
        attach: vec![],
        detach: vec![],
        report: None,
        events: vec![],
        next: Next::Done,
        memory: NodeHistory::default(),
    };
    for (name, wanted) in &view.wanted {
        attach(view, name, wanted, before, &mut plan);
    }
    for (name, attachment) in &view.attachments {
        if !view.wanted.contains_key(name) && !attachment.metadata.is_deleted() {
            detach(view, name, attachment, before, &mut plan);
        }
    }
    report(view, &mut plan);
    plan
}

fn attach(view: &View<'_>, name: &str, wanted: &DesiredVolume, before: &NodeHistory, plan: &mut Plan) {
    let volume = &wanted.volume.metadata.name;
    let message = match view.attachments.get(name) {
        Some(attachment) if attachment.status.attached => return,
        Some(attachment) => match &attachment.status.attach_error {
            Some(error) => format!("AttachVolume.Attach failed for volume \"{volume}\" : {}", error.message),
            None => return,
        },
        None if may_be_shared(&wanted.volume) || wanted.elsewhere.is_empty() => {
            if let (Some(_), Some(id)) = (view.node, attachment_name(&wanted.volume, view.node_name)) {
                let driver = wanted.volume.spec.csi.as_ref().map(|csi| &csi.driver);
                plan.attach.push(json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": id},
                    "spec": {"attacher": driver, "nodeName": view.node_name, "source": {"persistentVolumeName": volume}},
                }));
            }
            return;
        }
        None => String::new(),
    };
    let mut told = message.clone();
    for pod in &wanted.pods {
        let message = match message.is_empty() {
            true => format!(
                "Waiting for detach for volume \"{volume}\" {}",
                taken(pod, &wanted.users_elsewhere)
            ),
            false => message.clone(),
        };
        told = message.clone();
        if before.told.get(name) != Some(&message) {
            plan.events.push(Said {
                pod: pod.clone(),
                warning: true,
                reason: "FailedAttachVolume",
                message,
            });
        }
    }
    plan.memory.told.insert(name.to_string(), told);
}

/// Who has the volume that the pod waits for.
fn taken(pod: &Pod, users: &[Arc<Pod>]) -> String {
    let (near, far): (Vec<_>, Vec<_>) =
        (users.iter()).partition(|user| user.metadata.namespace == pod.metadata.namespace);
    let names: Vec<&str> = near.iter().map(|user| user.metadata.name.as_str()).collect();
    match (names.is_empty(), far.len()) {
        (true, 0) => {
            "Volume is already exclusively attached to one node, waiting on detach before it can be attached to \
                      another node"
                .to_string()
        }
        (true, n) => format!("Volume is already used by {n} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
        (false, n) => format!(
            "Volume is already used by pod(s) {} and {n} pod(s) in different namespaces",
            names.join(", ")
        ),
    }
}

/// By several nodes at once. Without access modes nobody knows: the driver will say.
fn may_be_shared(volume: &PersistentVolume) -> bool {
    let modes = &volume.spec.access_modes;
    modes.is_empty() || modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany")
}

fn detach(view: &View<'_>, name: &str, attachment: &Arc<VolumeAttachment>, before: &NodeHistory, plan: &mut Plan) {
    let since = before.since.get(name).copied().unwrap_or(view.now);
    let mut take = |check: bool| plan.detach.push((name.to_string(), attachment.clone(), check));
    let Some(node) = view.node else { return take(false) };
    if node.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
        return take(false);
    }
    let is_used = node.status.volumes_in_use.iter().any(|used| used == name);
    if !is_used {
        return take(true);
    }
    let is_ready = node.condition("Ready").is_some_and(|ready| ready.is_true());
    let left = UNMOUNT_PATIENCE.saturating_sub(view.now.duration_since(since));
    if !is_ready && !view.wait_forever {
        if !left.is_positive() {
            return take(false);
        }
        let left = Duration::try_from(left)
            .unwrap_or_default()
            .saturating_add(Duration::from_millis(1));
        plan.next = plan.next.or(Next::After(left));
    }
    plan.memory.since.insert(name.to_string(), since);
}

/// `volumesAttached` of the node's status; what is about to be detached is left out first.
fn report(view: &View<'_>, plan: &mut Plan) {
    let Some(node) = view.node else { return };
    let leaving = |name: &str| plan.detach.iter().any(|(gone, _, _)| gone == name);
    let now = &node.status.volumes_attached;
    // Other plugins' volumes are not ours to judge.
    let mut names: Vec<(&str, &str)> = (now.iter())
        .filter(|volume| !volume.name.starts_with(PLUGIN))
        .map(|volume| (volume.name.as_str(), volume.device_path.as_str()))
        .collect();
    let mut fresh = vec![];
    for (name, attachment) in &view.attachments {
        if !attachment.status.attached || attachment.metadata.is_deleted() || leaving(name) {
            continue;
        }
        names.push((name, ""));
        if !now.iter().any(|volume| volume.name == *name) {
            fresh.push(name);
        }
    }
    let wanted: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let known: Vec<&str> = now.iter().map(|volume| volume.name.as_str()).collect();
    let same = wanted.len() == known.len() && wanted.iter().all(|name| known.contains(name));
    if same {
        return;
    }
    for wanted in fresh.iter().filter_map(|name| view.wanted.get(*name)) {
        for pod in &wanted.pods {
            let volume = &wanted.volume.metadata.name;
            plan.events.push(Said {
                pod: pod.clone(),
                warning: false,
                reason: "SuccessfulAttachVolume",
                message: format!("AttachVolume.Attach succeeded for volume \"{volume}\" "),
            });
        }
    }
    let entry = |(name, path): &(&str, &str)| json!({"name": name, "devicePath": path});
    plan.report = Some(names.iter().map(entry).collect());
}
