//! The claims of a pod.

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::cluster::storage::claims_of;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRow {
    pub claim: String,
    /// `Bound`, `Pending`, `Lost` or `NotFound`.
    pub phase: String,
    pub storage_class: String,
    pub volume: String,
    /// When a volume is chosen: `Immediate` or `WaitForFirstConsumer`.
    pub binding_mode: String,
}

pub(super) fn rows(cluster: &Cluster, pod: &PodInfo) -> Vec<ClaimRow> {
    let tables = cluster.storage.tables();
    let claims = claims_of(pod).map(|named| {
        let Some(claim) = tables.claim(pod.namespace(), &named.name) else {
            return ClaimRow {
                claim: named.name.to_string(),
                phase: "NotFound".into(),
                storage_class: String::new(),
                volume: String::new(),
                binding_mode: String::new(),
            };
        };
        let class = tables.class(claim.class());
        let phase = match claim.status.phase.as_str() {
            "" if claim.is_bound() => "Bound",
            "" => "Pending",
            phase => phase,
        };
        ClaimRow {
            claim: named.name.to_string(),
            phase: phase.to_string(),
            storage_class: claim.class().to_string(),
            volume: claim.spec.volume_name.clone(),
            binding_mode: class.and_then(|c| c.volume_binding_mode.clone()).unwrap_or_default(),
        }
    });
    claims.collect()
}
