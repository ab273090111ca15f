//! Pods.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::{LabelSelector, Labels, NodeSelector, NodeSelectorTerm, ObjectMeta, ResourceList, Toleration, or_default};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// What matters for placing a pod. Pods that are equal in this (but for `node_name`) are of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub scheduler_name: String,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    pub node_selector: Labels,
    pub affinity: Affinity,
    #[serde(deserialize_with = "untimed_tolerations")]
    pub tolerations: Vec<Toleration>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub overhead: ResourceList,
    pub resources: ContainerResources,
    #[serde(deserialize_with = "relevant_volumes")]
    pub volumes: Vec<Volume>,
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    pub scheduling_gates: Vec<SchedulingGate>,
    pub host_network: bool,
    #[serde(rename = "hostUsers")]
    pub host_users: Option<bool>,
    #[serde(deserialize_with = "count")]
    pub resource_claims: usize,
    pub termination_grace_period_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct SchedulingGate {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    pub node_affinity: Option<NodeAffinity>,
    pub pod_affinity: PodAffinity,
    pub pod_anti_affinity: PodAffinity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
    /// Counts like `required` here. That the pod also leaves when it no longer holds is not the scheduler's business.
    #[serde(rename = "requiredDuringSchedulingRequiredDuringExecution")]
    pub required_during_execution: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<PreferredNodeTerm>,
}

impl NodeAffinity {
    /// All of these must match a node.
    pub fn requirements(&self) -> impl Iterator<Item = &NodeSelector> {
        self.required.iter().chain(&self.required_during_execution)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PreferredNodeTerm {
    pub weight: i32,
    pub preference: NodeSelectorTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Vec<PodAffinityTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<WeightedPodAffinityTerm>,
}

/// `matchLabelKeys` and `mismatchLabelKeys` are already in the selector: the API server puts them there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// None matches nothing.
    pub label_selector: Option<LabelSelector>,
    pub namespaces: Vec<String>,
    pub namespace_selector: Option<LabelSelector>,
    pub topology_key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeightedPodAffinityTerm {
    pub weight: i32,
    pub pod_affinity_term: PodAffinityTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    #[serde(deserialize_with = "host_ports")]
    pub ports: Vec<ContainerPort>,
    pub resources: ContainerResources,
    pub restart_policy: Option<String>,
    pub restart_policy_rules: Vec<RestartRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct RestartRule {
    pub action: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    pub requests: ResourceList,
    pub limits: ResourceList,
}

/// Only those with a host port are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub host_port: i32,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    pub protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologySpreadConstraint {
    pub max_skew: i32,
    pub topology_key: String,
    pub when_unsatisfiable: String,
    pub label_selector: Option<LabelSelector>,
    pub min_domains: Option<i32>,
    pub node_affinity_policy: Option<String>,
    pub node_taints_policy: Option<String>,
    pub match_label_keys: Vec<String>,
}

/// Volumes of kinds that some plugin looks at; the others are dropped while decoding, as their names differ from pod to
/// pod (service-account tokens) and would make every pod a class of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    #[serde(rename = "persistentVolumeClaim")]
    pub claim: Option<ClaimSource>,
    pub ephemeral: Option<EphemeralSource>,
    pub gce_persistent_disk: Option<GceDisk>,
    pub aws_elastic_block_store: Option<AwsDisk>,
    pub rbd: Option<Rbd>,
    pub iscsi: Option<Iscsi>,
    pub image: Option<ImageSource>,
    pub csi: Option<InlineCsi>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    pub claim_name: String,
    pub read_only: bool,
}

/// A claim made for the pod; its name is `<pod>-<volume>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct EphemeralSource {}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GceDisk {
    pub pd_name: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AwsDisk {
    #[serde(rename = "volumeID")]
    pub volume_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rbd {
    pub monitors: Vec<String>,
    pub pool: String,
    pub image: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Iscsi {
    pub iqn: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ImageSource {
    pub reference: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct InlineCsi {
    pub driver: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: String,
    pub nominated_node_name: String,
    pub start_time: Option<Timestamp>,
    pub conditions: Vec<PodCondition>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
    pub allocated_resources: ResourceList,
    pub resources: ContainerResources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    pub allocated_resources: ResourceList,
    pub resources: Option<ContainerResources>,
}

impl Volume {
    fn is_relevant(&self) -> bool {
        self.claim.is_some()
            || self.ephemeral.is_some()
            || self.gce_persistent_disk.is_some()
            || self.aws_elastic_block_store.is_some()
            || self.rbd.is_some()
            || self.iscsi.is_some()
            || self.image.is_some()
            || self.csi.is_some()
    }
}

fn relevant_volumes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Volume>, D::Error> {
    let mut volumes: Vec<Volume> = or_default(from)?;
    volumes.retain(Volume::is_relevant);
    Ok(volumes)
}

/// For how long a taint is tolerated does not decide about a placement, and must not set classes apart.
fn untimed_tolerations<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Toleration>, D::Error> {
    let mut tolerations: Vec<Toleration> = or_default(from)?;
    for toleration in &mut tolerations {
        toleration.toleration_seconds = None;
    }
    Ok(tolerations)
}

fn host_ports<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ContainerPort>, D::Error> {
    let mut ports: Vec<ContainerPort> = or_default(from)?;
    ports.retain(|p| p.host_port > 0);
    Ok(ports)
}

/// How many there are: that is all we need to know of them.
fn count<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let list: Vec<serde::de::IgnoredAny> = or_default(from)?;
    Ok(list.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn how_long_a_taint_is_tolerated_sets_no_classes_apart() {
        let spec = |seconds: Option<i64>| -> PodSpec {
            let toleration = json!({"key": "k", "operator": "Exists", "tolerationSeconds": seconds});
            serde_json::from_value(json!({"tolerations": [toleration]})).unwrap()
        };
        assert_eq!(spec(Some(300)), spec(None));
    }
}
