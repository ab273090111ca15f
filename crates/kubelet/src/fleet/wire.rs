//! What is read of a pod on the wire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::conditions::{Seen, revision};
use super::life::{Deleting, InitContainer, PodView, RestartPolicy};

#[derive(Deserialize)]
pub struct RawPod {
    pub metadata: RawMeta,
    pub spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RawMeta {
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
pub struct RawSpec {
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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainer {
    name: String,
    #[serde(default)]
    image: String,
    restart_policy: Option<RestartPolicy>,
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
    conditions: Vec<Seen>,
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
    pub fn view(self) -> PodView {
        let (metadata, spec, status) = (self.metadata, self.spec, self.status);
        let owner = metadata.owner_references.into_iter().find(|o| o.controller);
        // All containers of a simulated pod do the same.
        let container = status.container_statuses.into_iter().next();
        let restarts = container.as_ref().map_or(0, |c| c.restart_count);
        let running = container.and_then(|c| c.state.running);
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
