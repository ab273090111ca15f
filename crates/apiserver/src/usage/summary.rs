//! Reads a kubelet's `/stats/summary`: of all it says, CPU and memory.
// Upstream: staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1 (v1.36)

use std::collections::HashMap;

use jiff::Timestamp;
use orlop_api::metrics::Usage;
use serde::Deserialize;

/// What a node and its pods use.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NodeUsage {
    /// None: the kubelet does not know yet.
    pub whole: Option<Measured>,
    /// By `namespace/name`: those of which all is known.
    pub pods: HashMap<String, PodUsage>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub at: Timestamp,
    pub usage: Usage,
}

#[derive(Debug, PartialEq)]
pub(super) struct PodUsage {
    /// When the oldest of the figures was taken.
    pub at: Timestamp,
    pub containers: Vec<(Box<str>, Usage)>,
}

#[derive(Deserialize)]
struct Summary {
    node: Part,
    pods: Option<Vec<Pod>>,
}

/// The node or a container.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    name: Box<str>,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    pod_ref: PodRef,
    containers: Option<Vec<Part>>,
}

#[derive(Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: Timestamp,
    usage_nano_cores: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

/// What a kubelet answered is no summary.
#[derive(Debug, thiserror::Error)]
#[error("failed to decode the summary: {0}")]
pub(super) struct SummaryError(#[from] serde_json::Error);

pub(super) fn read(bytes: &[u8]) -> Result<NodeUsage, SummaryError> {
    let summary: Summary = serde_json::from_slice(bytes)?;
    let pods = summary.pods.unwrap_or_default().into_iter();
    let pods = pods.filter_map(|pod| {
        let key = format!("{}/{}", pod.pod_ref.namespace, pod.pod_ref.name);
        Some((key, of_pod(pod.containers?)?))
    });
    Ok(NodeUsage {
        whole: summary.node.measured(),
        pods: pods.collect(),
    })
}

/// A sum that lacks a part is worse than none: autoscalers would act on it.
fn of_pod(parts: Vec<Part>) -> Option<PodUsage> {
    let mut at = Timestamp::MAX;
    let mut containers = Vec::with_capacity(parts.len());
    for part in parts {
        let measured = part.measured()?;
        at = at.min(measured.at);
        containers.push((part.name, measured.usage));
    }
    (!containers.is_empty()).then_some(PodUsage { at, containers })
}

impl Part {
    fn measured(&self) -> Option<Measured> {
        let cpu = self.cpu.as_ref()?;
        Some(Measured {
            at: cpu.time,
            usage: Usage {
                cpu_nano_cores: cpu.usage_nano_cores?,
                memory_bytes: self.memory.as_ref()?.working_set_bytes?,
            },
        })
    }
}
