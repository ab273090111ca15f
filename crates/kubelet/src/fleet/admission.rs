//! Admission to simulated nodes: the kubelet's own function (`sources::admission`) decides, on pods and nodes that are
//! built from the few fields kept here.
//!
//! What a pod requests (`PodResources`) is kept with its shape, which many pods share. Its scheduling constraints
//! (`Placement`) are kept until it is admitted.

use std::collections::BTreeMap;

use orlop_api::resources::{self, ResourceList};
use orlop_api::types::core::{
    Affinity, Container, ContainerPort, Node, NodeAffinity, NodeSpec, NodeStatus, Pod, PodOS, PodSpec,
    ResourceRequirements, Taint, Toleration,
};
use orlop_api::types::meta::ObjectMeta;
use orlop_api::types::meta::Quantity as ApiQuantity;
use serde::Deserialize;

use super::behaviour::Fault;
use crate::node::Pressure;
use crate::sources::admission::{NodeState, Rejection, admit};
use crate::spec::resources::{is_critical, pod_requests};

/// `status.declaredFeatures`
pub(super) const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// The label by which a pod says on which system it runs.
pub(super) const OS: &str = "kubernetes.io/os";

/// The parts of a pod's spec that its resource requests and host ports depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PodResources {
    pub containers: Vec<ContainerResources>,
    pub init_containers: Vec<ContainerResources>,
    pub overhead: Amounts,
    /// Pod-level resources.
    pub resources: ResourceLists,
    pub priority: Option<i32>,
}

pub(super) type Amounts = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ContainerResources {
    pub resources: ResourceLists,
    pub ports: Vec<HostPort>,
    pub sidecar: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(super) struct ResourceLists {
    pub requests: Amounts,
    pub limits: Amounts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HostPort {
    pub host_port: i32,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    pub protocol: String,
}

/// The parts of a pod that decide which nodes it may run on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placement {
    pub node_selector: BTreeMap<String, String>,
    pub affinity: PlacementAffinity,
    pub tolerations: Vec<Toleration>,
    pub os: Option<PodOS>,
    pub host_users: Option<bool>,
    /// A label of the pod.
    pub os_label: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PlacementAffinity {
    pub node_affinity: Option<NodeAffinity>,
}

impl Placement {
    /// No constraints.
    pub(super) fn is_any(&self) -> bool {
        *self == Placement::default()
    }
}

/// The parts of a node that admission depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeTraits {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: Amounts,
}

impl NodeTraits {
    fn node(self, name: &str) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_string()),
                labels: Some(self.labels),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: Some(self.taints),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                allocatable: quantities(&self.allocatable),
                declared_features: Some(DECLARED_FEATURES.map(str::to_string).into()),
                ..NodeStatus::default()
            }),
        }
    }
}

fn quantities(amounts: &Amounts) -> Option<BTreeMap<String, ApiQuantity>> {
    let quantities = amounts
        .iter()
        .map(|(name, text)| (name.clone(), ApiQuantity(text.clone())));
    (!amounts.is_empty()).then(|| quantities.collect())
}

impl ResourceLists {
    fn requirements(&self) -> Option<ResourceRequirements> {
        (*self != ResourceLists::default()).then(|| ResourceRequirements {
            requests: quantities(&self.requests),
            limits: quantities(&self.limits),
            ..ResourceRequirements::default()
        })
    }
}

impl ContainerResources {
    fn container(&self) -> Container {
        let ports = self.ports.iter().map(|port| ContainerPort {
            host_port: Some(port.host_port),
            host_ip: Some(port.host_ip.clone()).filter(|ip| !ip.is_empty()),
            protocol: Some(port.protocol.clone()).filter(|protocol| !protocol.is_empty()),
            ..ContainerPort::default()
        });
        Container {
            resources: self.resources.requirements(),
            ports: (!self.ports.is_empty()).then(|| ports.collect()),
            restart_policy: self.sidecar.then(|| "Always".to_string()),
            ..Container::default()
        }
    }
}

impl PodResources {
    /// A pod with just these requests.
    fn pod(&self) -> Pod {
        let made = |list: &[ContainerResources]| list.iter().map(ContainerResources::container).collect();
        Pod {
            spec: Some(PodSpec {
                containers: made(&self.containers),
                init_containers: (!self.init_containers.is_empty()).then(|| made(&self.init_containers)),
                overhead: quantities(&self.overhead),
                resources: self.resources.requirements(),
                priority: self.priority,
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn host_ports(&self) -> impl Iterator<Item = &HostPort> {
        let running = self
            .init_containers
            .iter()
            .filter(|c| c.sidecar)
            .chain(&self.containers);
        running.flat_map(|container| &container.ports)
    }
}

/// What an admitted pod holds.
#[derive(Clone, Debug, Default)]
pub(super) struct AllocatedResources {
    pub pod_resources: PodResources,
    /// Their total.
    requests: ResourceList,
}

impl PartialEq for AllocatedResources {
    fn eq(&self, other: &AllocatedResources) -> bool {
        self.pod_resources == other.pod_resources
    }
}

impl Eq for AllocatedResources {}

impl std::hash::Hash for AllocatedResources {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.pod_resources.hash(state);
    }
}

impl AllocatedResources {
    /// Without the total, for comparing.
    pub(super) fn unsummed(pod_resources: PodResources) -> AllocatedResources {
        AllocatedResources {
            pod_resources,
            requests: ResourceList::default(),
        }
    }

    pub(super) fn sum_up(&mut self) {
        self.requests = pod_requests(&self.pod_resources.pod(), true);
    }
}

/// The pod to admit.
pub(super) struct Candidate<'a> {
    pub pod_resources: &'a PodResources,
    /// None: no constraints.
    pub placement: Option<&'a Placement>,
    pub host_network: bool,
}

impl Candidate<'_> {
    fn pod(&self, node: &str) -> Pod {
        let mut pod = self.pod_resources.pod();
        let spec = pod.spec.get_or_insert_default();
        spec.node_name = Some(node.to_string());
        spec.host_network = Some(self.host_network);
        if let Some(placement) = self.placement {
            spec.node_selector = Some(placement.node_selector.clone());
            spec.affinity = Some(Affinity {
                node_affinity: placement.affinity.node_affinity.clone(),
                ..Affinity::default()
            });
            spec.tolerations = Some(placement.tolerations.clone());
            spec.os = placement.os.clone();
            spec.host_users = placement.host_users;
            let label = placement.os_label.clone().map(|os| (OS.to_string(), os));
            pod.metadata.labels = label.map(|label| [label].into());
        }
        pod
    }
}

/// Gives the indexes in `others` of the pods to preempt first.
pub(super) fn admit_candidate(
    candidate: &Candidate<'_>,
    others: &[&AllocatedResources],
    name: &str,
    traits: NodeTraits,
    fault: Option<Fault>,
) -> Result<Vec<usize>, Rejection> {
    let (pod, node) = (candidate.pod(name), traits.node(name));
    let state = NodeState {
        pressure: Pressure {
            memory: fault == Some(Fault::MemoryPressure),
            disk: fault == Some(Fault::DiskPressure),
            pid: fault == Some(Fault::PidPressure),
        },
        ..NodeState::default()
    };
    // Only critical-pod preemption depends on which pod holds what; else one pod with the total is enough, and cheaper.
    if is_critical(&pod) {
        let pods: Vec<Pod> = others.iter().map(|other| other.pod_resources.pod()).collect();
        return admit(&pod, &pods.iter().collect::<Vec<_>>(), &node, state);
    }
    let (together, nothing) = (together(others), Pod::default());
    let mut pods = vec![&nothing; others.len()];
    if let Some(first) = pods.first_mut() {
        *first = &together;
    }
    admit(&pod, &pods, &node, state)
}

/// One pod with the requests and host ports of all.
fn together(others: &[&AllocatedResources]) -> Pod {
    let mut all = ResourceList::default();
    for other in others {
        resources::add(&mut all, &other.requests);
    }
    let requests = all
        .iter()
        .map(|(name, quantity)| (name.to_string(), quantity.canonical()));
    let container = ContainerResources {
        resources: ResourceLists {
            requests: requests.collect(),
            ..ResourceLists::default()
        },
        ports: others
            .iter()
            .flat_map(|other| other.pod_resources.host_ports().cloned())
            .collect(),
        sidecar: false,
    };
    let pod_resources = PodResources {
        containers: vec![container],
        ..PodResources::default()
    };
    pod_resources.pod()
}

#[cfg(test)]
mod tests;
