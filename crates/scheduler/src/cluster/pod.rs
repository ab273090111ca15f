//! Pods as the scheduler keeps them: what is one pod's own, and the class that it shares with its like.
//!
//! A *class* is everything that decides where a pod may go but its labels: pods of one Deployment share one, and what is
//! worked out for a class is worked out once. A *label class* is a namespace with a set of labels: no selector can tell
//! two pods of one label class apart.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use jiff::Timestamp;

use super::resources::{Requests, Resources, scoring_requests};
use crate::model::{Labels, OwnerReference, Pod, PodSpec, Volume};

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl PodKey {
    pub fn new(namespace: &str, name: &str) -> PodKey {
        PodKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A port taken on the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Two of them cannot be had on one node. `0.0.0.0` is every address.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// What pods of one class have in common, with everything that follows from it.
#[derive(Debug)]
pub struct PodClass {
    /// Never reused: what is cached by class is keyed by this.
    pub id: u64,
    pub namespace: Arc<str>,
    /// `node_name` is empty here; of `volumes` there are only images.
    pub spec: PodSpec,
    pub requests: Requests,
    /// What NodeResourcesFit's score counts.
    pub scoring: Resources,
    pub ports: Vec<HostPort>,
    pub priority: i32,
    /// Images of containers and init containers, and how many containers there are, for ImageLocality.
    pub images: Vec<String>,
}

impl PodClass {
    fn new(id: u64, namespace: Arc<str>, spec: PodSpec) -> PodClass {
        let images = (spec.init_containers.iter().chain(&spec.containers))
            .map(|c| normalized_image(&c.image))
            .chain(
                spec.volumes
                    .iter()
                    .filter_map(|v| Some(normalized_image(&v.image.as_ref()?.reference))),
            )
            .collect();
        PodClass {
            id,
            namespace,
            requests: Requests::of_spec(&spec),
            scoring: scoring_requests(&spec),
            ports: host_ports(&spec),
            priority: spec.priority.unwrap_or(0),
            images,
            spec,
        }
    }

    pub fn has_affinity(&self) -> bool {
        let a = &self.spec.affinity;
        !(a.pod_affinity.required.is_empty()
            && a.pod_affinity.preferred.is_empty()
            && a.pod_anti_affinity.required.is_empty()
            && a.pod_anti_affinity.preferred.is_empty())
    }
}

/// Ports that containers and sidecars take on the node; host-network pods have them filled in by the API server.
fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let or = |text: &str, default: &str| if text.is_empty() { default } else { text }.to_string();
    let mut ports: Vec<HostPort> = (spec.containers.iter().chain(sidecars))
        .flat_map(|c| &c.ports)
        .map(|p| HostPort {
            ip: or(&p.host_ip, "0.0.0.0"),
            protocol: or(&p.protocol, "TCP"),
            port: p.host_port,
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

/// As nodes name images: with a tag.
pub fn normalized_image(image: &str) -> String {
    let tagged = match (image.rfind(':'), image.rfind('/')) {
        (None, _) => false,
        (Some(colon), Some(slash)) => colon > slash,
        (Some(_), None) => true,
    };
    if tagged {
        image.to_string()
    } else {
        format!("{image}:latest")
    }
}

/// What selectors see of a pod. Terminating pods are of label classes of their own, as spreading does not count them.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct LabelSet {
    pub namespace: Arc<str>,
    pub labels: Labels,
    pub terminating: bool,
}

#[derive(Debug)]
pub struct LabelClass {
    /// Never reused.
    pub id: u64,
    pub set: LabelSet,
}

/// A pod, decoded and ready for decisions. Replaced as a whole when the pod changes.
#[derive(Clone, Debug)]
pub struct PodInfo {
    pub key: PodKey,
    pub uid: Arc<str>,
    pub class: Arc<PodClass>,
    pub labels: Arc<LabelClass>,
    /// `spec.nodeName`.
    pub node_name: Option<Arc<str>>,
    /// `status.nominatedNodeName`.
    pub nominated_node: Option<Arc<str>>,
    pub start_time: Option<Timestamp>,
    pub creation_time: Option<Timestamp>,
    pub controller: Option<Box<OwnerReference>>,
    /// Claims, disks and the like. Not the class's: pods of a StatefulSet differ in nothing but their claims.
    pub volumes: Box<[Volume]>,
    /// Differs from the class's while the pod is being resized.
    resized: Option<Box<Requests>>,
    /// Is going because some pod of ours preempted it.
    pub preempted: bool,
    /// Succeeded or Failed.
    pub finished: bool,
    pub revision: u64,
}

impl PodInfo {
    pub fn priority(&self) -> i32 {
        self.class.priority
    }

    /// The pod as it would be on this node.
    pub fn on(&self, node: &Arc<str>) -> PodInfo {
        PodInfo {
            node_name: Some(node.clone()),
            ..self.clone()
        }
    }

    /// The pod as it was before it had a node.
    pub fn unbound(&self) -> PodInfo {
        PodInfo {
            node_name: None,
            nominated_node: None,
            start_time: None,
            resized: None,
            ..self.clone()
        }
    }

    /// The pod that a controller makes in its place.
    pub fn recreated(&self, name: &str, uid: &str) -> PodInfo {
        PodInfo {
            key: PodKey {
                namespace: self.key.namespace.clone(),
                name: name.into(),
            },
            uid: uid.into(),
            preempted: false,
            ..self.unbound()
        }
    }

    /// What it takes of the node it is on.
    pub fn requests(&self) -> &Requests {
        self.resized.as_deref().unwrap_or(&self.class.requests)
    }

    pub fn is_terminating(&self) -> bool {
        self.labels.set.terminating
    }

    pub fn namespace(&self) -> &Arc<str> {
        &self.key.namespace
    }

    pub fn label_set(&self) -> &Labels {
        &self.labels.set.labels
    }
}

/// Gives equal things one shared copy, and forgets it when nobody holds it any more.
#[derive(Debug)]
struct Shared<K, T> {
    known: HashMap<Arc<K>, Weak<T>>,
    next: u64,
    /// Forgotten entries are swept when the map has doubled since the last sweep.
    sweep_at: usize,
}

impl<K: Eq + Hash, T> Shared<K, T> {
    fn new() -> Shared<K, T> {
        Shared {
            known: HashMap::new(),
            next: 0,
            sweep_at: 1024,
        }
    }

    fn get(&mut self, key: K, make: impl FnOnce(u64, &K) -> T) -> Arc<T> {
        if let Some(found) = self.known.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, v| v.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        self.next += 1;
        let made = Arc::new(make(self.next, &key));
        self.known.insert(Arc::new(key), Arc::downgrade(&made));
        made
    }
}

/// Turns pods of the API into `PodInfo`s.
#[derive(Debug)]
pub struct Pods {
    classes: Shared<(Arc<str>, PodSpec), PodClass>,
    labels: Shared<LabelSet, LabelClass>,
}

impl Default for Pods {
    fn default() -> Pods {
        Pods {
            classes: Shared::new(),
            labels: Shared::new(),
        }
    }
}

impl Pods {
    pub fn observe(&mut self, mut pod: Pod) -> Arc<PodInfo> {
        let namespace: Arc<str> = pod.metadata.namespace.as_str().into();
        let non_empty = |text: String| (!text.is_empty()).then(|| Arc::<str>::from(text));
        let resized = (pod.status.container_statuses.iter().any(|c| c.resources.is_some())
            || pod.status.init_container_statuses.iter().any(|c| c.resources.is_some())
            || !pod.status.resources.requests.is_empty())
        .then(|| Requests::of_pod(&pod));
        let node_name = non_empty(std::mem::take(&mut pod.spec.node_name));
        let volumes = std::mem::take(&mut pod.spec.volumes);
        let (images, volumes): (Vec<Volume>, Vec<Volume>) = volumes.into_iter().partition(|v| v.image.is_some());
        pod.spec.volumes = images;
        let class = self
            .classes
            .get((namespace.clone(), pod.spec), |id, (namespace, spec)| {
                PodClass::new(id, namespace.clone(), spec.clone())
            });
        let labels = self.labels.get(
            LabelSet {
                namespace: namespace.clone(),
                labels: std::mem::take(&mut pod.metadata.labels),
                terminating: pod.metadata.deletion_timestamp.is_some(),
            },
            |id, set| LabelClass {
                id,
                set: LabelSet {
                    namespace: set.namespace.clone(),
                    labels: set.labels.clone(),
                    terminating: set.terminating,
                },
            },
        );
        Arc::new(PodInfo {
            key: PodKey {
                namespace,
                name: pod.metadata.name.into(),
            },
            uid: pod.metadata.uid.into(),
            resized: resized.filter(|r| *r != class.requests).map(Box::new),
            class,
            labels,
            node_name,
            nominated_node: non_empty(pod.status.nominated_node_name),
            start_time: pod.status.start_time,
            creation_time: pod.metadata.creation_timestamp,
            controller: (pod.metadata.owner_references.into_iter())
                .find(|o| o.is_controller())
                .map(Box::new),
            volumes: volumes.into(),
            preempted: pod
                .status
                .conditions
                .iter()
                .any(|c| c.kind == "DisruptionTarget" && c.status == "True" && c.reason == "PreemptionByScheduler"),
            finished: matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"),
            revision: pod.metadata.resource_version.parse().unwrap_or(0),
        })
    }
}
