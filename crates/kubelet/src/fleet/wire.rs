//! What is read of a pod on the wire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use orlop_api::types::core::{PodOS, Toleration};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::admission::{
    Amounts, ContainerResources, HostPort, OS, Placement, PlacementAffinity, PodResources, ResourceLists,
};
use super::conditions::{ReportedCondition, revision};
use super::life::{Deleting, InitContainer, PodView, RestartPolicy};

#[derive(Deserialize)]
pub(super) struct RawPod {
    pub metadata: RawMeta,
    pub spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawMeta {
    #[serde(default)]
    namespace: String,
    name: String,
    pub uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<RawOwner>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
    #[serde(default)]
    controller: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawSpec {
    #[serde(default)]
    pub node_name: String,
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    restart_policy: RestartPolicy,
    #[serde(default)]
    init_containers: Vec<RawContainer>,
    containers: Vec<RawContainer>,
    #[serde(default)]
    readiness_gates: Vec<RawGate>,
    #[serde(default)]
    overhead: Amounts,
    #[serde(default)]
    resources: ResourceLists,
    priority: Option<i32>,
    #[serde(default)]
    node_selector: BTreeMap<String, String>,
    #[serde(default)]
    affinity: PlacementAffinity,
    #[serde(default)]
    tolerations: Vec<Toleration>,
    os: Option<PodOS>,
    host_users: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainer {
    name: String,
    #[serde(default)]
    image: String,
    restart_policy: Option<RestartPolicy>,
    #[serde(default)]
    resources: ResourceLists,
    #[serde(default)]
    ports: Vec<HostPort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawGate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: String,
    start_time: Option<Timestamp>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Vec<ReportedCondition>,
    container_statuses: Vec<RawContainerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerStatus {
    restart_count: u32,
    #[serde(default)]
    state: RawState,
}

#[derive(Default, Deserialize)]
struct RawState {
    running: Option<RawRunning>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRunning {
    started_at: Option<Timestamp>,
}

impl RawContainer {
    fn pod_resources(&self) -> ContainerResources {
        let ports = self.ports.iter().filter(|port| port.host_port > 0);
        ContainerResources {
            resources: self.resources.clone(),
            ports: ports.cloned().collect(),
            sidecar: self.restart_policy == Some(RestartPolicy::Always),
        }
    }

    fn pair(self) -> (String, String) {
        (self.name, self.image)
    }

    fn init(self) -> InitContainer {
        InitContainer {
            sidecar: self.restart_policy == Some(RestartPolicy::Always),
            container: self.pair(),
        }
    }
}

impl RawPod {
    pub(super) fn view(self) -> PodView {
        let (metadata, spec, status) = (self.metadata, self.spec, self.status);
        let owner = metadata.owner_references.into_iter().find(|o| o.controller);
        // All containers of a simulated pod do the same.
        let container = status.container_statuses.into_iter().next();
        let restarts = container.as_ref().map_or(0, |c| c.restart_count);
        let running = container.and_then(|c| c.state.running);
        let pod_resources = PodResources {
            containers: spec.containers.iter().map(RawContainer::pod_resources).collect(),
            init_containers: spec.init_containers.iter().map(RawContainer::pod_resources).collect(),
            overhead: spec.overhead,
            resources: spec.resources,
            priority: spec.priority,
        };
        let placement = Placement {
            node_selector: spec.node_selector,
            affinity: spec.affinity,
            tolerations: spec.tolerations,
            os: spec.os,
            host_users: spec.host_users,
            os_label: metadata.labels.get(OS).cloned(),
        };
        PodView {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            revision: revision(&metadata.resource_version),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner: owner.map(|o| o.kind),
            host_network: spec.host_network,
            restart_policy: spec.restart_policy,
            init_containers: spec.init_containers.into_iter().map(RawContainer::init).collect(),
            containers: spec.containers.into_iter().map(RawContainer::pair).collect(),
            pod_resources,
            placement,
            gates: spec
                .readiness_gates
                .into_iter()
                .map(|gate| gate.condition_type)
                .collect(),
            deleting: metadata.deletion_timestamp.map(|_| Deleting),
            phase: status.phase,
            started: status.start_time,
            ip: status.pod_ip,
            conditions: status.conditions,
            restarts,
            runs: running.is_some(),
            run_began: running.and_then(|running| running.started_at),
        }
    }
}
