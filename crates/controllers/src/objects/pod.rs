//! Pods.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{Condition, Kind, Meta, Toleration, condition};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub host_network: bool,
    pub hostname: String,
    pub subdomain: String,
    pub restart_policy: String,
    pub termination_grace_period_seconds: Option<i64>,
    pub tolerations: Vec<Toleration>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub volumes: Vec<Volume>,
    pub resource_claims: Vec<PodResourceClaim>,
    /// Only where somebody asks for it is it taken apart.
    pub affinity: Option<Box<Affinity>>,
    pub readiness_gates: Vec<Value>,
    pub resources: Option<Box<Resources>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    pub node_affinity: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub restart_policy: String,
    pub ports: Vec<ContainerPort>,
    pub resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub container_port: u16,
    pub host_port: i32,
    pub protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A claim of its own, made from a template.
    pub ephemeral: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    pub claim_name: String,
}

/// Devices that the pod wants: a claim, or a template to make one from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResourceClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

/// The claim that was made; none: none is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResourceClaimStatus {
    pub name: String,
    pub resource_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: String,
    pub reason: String,
    pub message: String,
    pub conditions: Vec<Condition>,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    pub start_time: Option<Timestamp>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
    pub nominated_node_name: String,
    pub resource_claim_statuses: Vec<PodResourceClaimStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    pub ready: bool,
    pub restart_count: i64,
    pub state: ContainerState,
    pub last_state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Running {
    pub started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
    pub finished_at: Option<Timestamp>,
}

impl Kind for Pod {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "Pod";
    const RESOURCE: &'static str = "pods";

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// Pods of a node.
    fn index(&self) -> Option<&str> {
        Some(self.spec.node_name.as_str()).filter(|node| !node.is_empty())
    }
}

impl Pod {
    /// Ended for good: its containers will not run again.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Neither ended nor on its way out.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.metadata.is_deleted()
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        condition::find(&self.status.conditions, kind)
    }

    pub fn is_ready(&self) -> bool {
        condition::holds(&self.status.conditions, "Ready")
    }

    /// Ready, and for long enough.
    pub fn is_available(&self, min_ready: Duration, now: Timestamp) -> bool {
        self.available_at(min_ready).is_some_and(|at| at <= now)
    }

    /// When a ready pod counts (or has come to count) as available.
    pub fn available_at(&self, min_ready: Duration) -> Option<Timestamp> {
        let ready = self.condition("Ready").filter(|c| c.is_true())?;
        if min_ready.is_zero() {
            return Some(Timestamp::MIN);
        }
        let wait = i64::try_from(min_ready.as_secs()).unwrap_or(i64::MAX / 4);
        let since = ready.last_transition_time?;
        Some(
            since
                .checked_add(jiff::SignedDuration::from_secs(wait))
                .unwrap_or(Timestamp::MAX),
        )
    }

    /// Its conditions with the one that says why somebody makes it go; none if they say so already.
    pub fn disruption_target(&self, reason: &str, message: &str, now: Timestamp) -> Option<Vec<Condition>> {
        let mut conditions = self.status.conditions.clone();
        let target = Condition {
            r#type: "DisruptionTarget".to_string(),
            status: "True".to_string(),
            observed_generation: Some(self.metadata.generation).filter(|generation| *generation != 0),
            reason: reason.to_string(),
            message: message.to_string(),
            ..Condition::default()
        };
        condition::set(&mut conditions, target, now).then_some(conditions)
    }

    /// Like `restarts`, of init containers that go on running.
    pub fn sidecar_restarts(&self) -> i64 {
        let sidecar = |name: &str| {
            let mut containers = self.spec.init_containers.iter();
            containers.any(|c| c.name == name && c.restart_policy == "Always")
        };
        let statuses = self.status.init_container_statuses.iter();
        let restarts = statuses.filter(|c| sidecar(&c.name)).map(|c| c.restart_count);
        restarts.max().unwrap_or(0)
    }

    /// How often its containers were started again, the most of any of them.
    pub fn restarts(&self) -> i64 {
        self.status
            .container_statuses
            .iter()
            .map(|c| c.restart_count)
            .max()
            .unwrap_or(0)
    }
}
