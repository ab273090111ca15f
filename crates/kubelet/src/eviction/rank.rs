//! Ranks pods for eviction, finds those above their ephemeral-storage limits, and words the eviction messages. Pure.
//!
//! Upstream: pkg/kubelet/eviction/{helpers,eviction_manager}.go (v1.36).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use orlop_api::quantity::{Format, Quantity};
use orlop_api::resources::{PodResourceOptions, pod_limits, pod_requests};
use orlop_api::types::core::{Container, Pod};
use orlop_api::types::meta::Quantity as Text;
use serde_json::Value;

use super::signals::{FileSystem, Kind, Layout, Observations, Signal, Threshold};

pub const REASON: &str = "Evicted";

/// Bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    pub name: String,
    /// Working set; `None`: not known.
    pub memory: Option<u64>,
    /// The writable layer.
    pub layer: Option<DiskUse>,
    pub logs: Option<DiskUse>,
}

/// A pod's usage, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUse {
    pub memory: Option<u64>,
    pub processes: u64,
    pub containers: Vec<ContainerUse>,
    /// By the volume's name.
    pub volumes: BTreeMap<String, DiskUse>,
}

/// A candidate for eviction; `None`: its usage is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    pub used: Option<&'a PodUse>,
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

/// The eviction order. Pods of unknown usage come first, then those that use more than they request;
/// among these the lower priority, then the larger usage beyond the request. Under PID pressure only
/// priority and the number of processes count.
pub fn rank(candidates: &mut [Candidate<'_>], signal: Signal, layout: Layout) {
    candidates.sort_by_cached_key(|candidate| {
        let priority = priority(candidate.pod);
        let Some(used) = candidate.used else {
            let class = if signal.kind() == Kind::Pid { 1 } else { 0 };
            return (class, priority, Reverse(i128::MAX));
        };
        let (class, used_more) = match signal.kind() {
            // There are no requests for processes.
            Kind::Pid => (1, i128::from(used.processes)),
            kind => {
                let request = |name: &str| requested(candidate.pod, name);
                let (used, request, exceeds_of) = match kind {
                    Kind::Memory => {
                        let request = request("memory");
                        (i128::from(used.memory.unwrap_or_default()), request, request)
                    }
                    _ => {
                        let disk = disk_use(candidate.pod, used, signal, layout);
                        let storage = request("ephemeral-storage");
                        match signal.resource() {
                            // There are no requests for inodes: any usage is more.
                            "inodes" => (i128::from(disk.inodes), storage, 0),
                            _ => (i128::from(disk.bytes), storage, storage),
                        }
                    }
                };
                (if used > exceeds_of { 1 } else { 2 }, used - request)
            }
        };
        (class, priority, Reverse(used_more))
    });
}

/// The part of a pod's disk use that counts for a signal: only what is on that file system.
fn disk_use(pod: &Pod, used: &PodUse, signal: Signal, layout: Layout) -> DiskUse {
    let on_images = signal.file_system() == Some(FileSystem::Image);
    let on_containers = signal.file_system() == Some(FileSystem::Container);
    let (layers, rest) = match (layout.dedicated_images, layout.split_containers) {
        (true, false) => (on_images || on_containers, !on_images && !on_containers),
        (true, true) => (!on_images, !on_images),
        (false, _) => (true, true),
    };
    let mut sum = DiskUse::default();
    let mut add = |part: Option<DiskUse>| {
        let part = part.unwrap_or_default();
        sum.bytes += part.bytes;
        sum.inodes += part.inodes;
    };
    for container in &used.containers {
        add(container.layer.filter(|_| layers));
        add(container.logs.filter(|_| rest));
    }
    for volume in pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter(|_| rest)
    {
        let local = volume.host_path.is_some() || is_local_ephemeral(volume);
        add(used.volumes.get(&volume.name).copied().filter(|_| local));
    }
    sum
}

fn is_local_ephemeral(volume: &orlop_api::types::core::Volume) -> bool {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    let empty_dir = volume.empty_dir.as_ref().is_some_and(|dir| on_disk(&dir.medium));
    empty_dir || volume.git_repo.is_some() || volume.config_map.is_some()
}

fn requested(pod: &Pod, name: &str) -> i128 {
    let requests = pod_requests(&json(pod), PodResourceOptions::default());
    requests.get(name).map_or(0, |quantity| i128::from(quantity.value()))
}

fn json(pod: &Pod) -> Value {
    orlop_api::types::to_value(pod)
}

fn bytes(amount: u64) -> Quantity {
    Quantity::from_i64(i64::try_from(amount).unwrap_or(i64::MAX), Format::BinarySI)
}

/// The eviction message of a pod evicted for this signal. `met`: all thresholds acted on, the most urgent first.
pub fn message(signal: Signal, candidate: &Candidate<'_>, met: &[&Threshold], observations: &Observations) -> String {
    let resource = signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    let said = met.iter().filter(|threshold| threshold.signal.resource() == resource);
    let mut said = said.filter_map(|threshold| Some((threshold, observations.get(&threshold.signal)?)));
    if let Some((threshold, observed)) = said.next() {
        let available = Quantity::from_i64(observed.available, threshold.signal.format());
        let quantity = threshold.quantity(observed.capacity);
        text += &format!(
            "Threshold quantity: {}, available: {}. ",
            quantity.canonical(),
            available.canonical()
        );
    }
    let (Some(used), Some(spec)) = (candidate.used, &candidate.pod.spec) else {
        return text;
    };
    let own = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
    if let (Some(request), Some(memory), "memory") = (own, used.memory, resource) {
        let name = candidate.pod.metadata.name.as_deref().unwrap_or_default();
        text += &exceeded("Pod", name, &bytes(memory), &quantity_of(Some(request)), resource);
    }
    let containers: Vec<&Container> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .collect();
    for container_use in &used.containers {
        let Some(container) = containers.iter().find(|c| c.name == container_use.name) else {
            continue;
        };
        let amount = match (resource, container_use.layer, container_use.logs) {
            ("memory", ..) => container_use.memory,
            ("ephemeral-storage", Some(layer), Some(logs)) => Some(layer.bytes + logs.bytes),
            _ => None,
        };
        let request = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref()?.get(resource));
        let request = quantity_of(request);
        if let Some(amount) = amount.map(bytes).filter(|amount| *amount > request) {
            text += &exceeded("Container", &container.name, &amount, &request, resource);
        }
    }
    text
}

fn exceeded(what: &str, name: &str, used: &Quantity, request: &Quantity, resource: &str) -> String {
    let (used, request) = (used.canonical(), request.canonical());
    format!("{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. ")
}

fn quantity_of(text: Option<&Text>) -> Quantity {
    let quantity = text.and_then(|text| Quantity::parse(&text.0).ok());
    quantity.unwrap_or_else(|| Quantity::from_i64(0, Format::DecimalSI))
}

/// Whether the pod has ephemeral-storage limits at all.
pub fn has_local_limits(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let limited = |c: &Container| {
        let limits = c.resources.as_ref().and_then(|r| r.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key("ephemeral-storage"))
    };
    let sized = |dir: &orlop_api::types::core::EmptyDirVolumeSource| dir.size_limit.is_some();
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .any(limited)
        || spec
            .volumes
            .iter()
            .flatten()
            .any(|v| v.empty_dir.as_ref().is_some_and(sized))
}

/// The eviction message of a pod that exceeds its ephemeral-storage limits.
pub fn over_local_limit(pod: &Pod, used: &PodUse, layout: Layout) -> Option<(&'static str, String)> {
    let spec = pod.spec.as_ref()?;
    for volume in spec.volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref());
        let (Some(limit), Some(used)) = (limit, used.volumes.get(&volume.name)) else {
            continue;
        };
        let limit = quantity_of(Some(limit));
        if limit.sign() > 0 && bytes(used.bytes) > limit {
            let (name, limit) = (&volume.name, limit.canonical());
            let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ");
            return Some(("emptydirfs.limit", message));
        }
    }
    if let Some(limit) = pod_limits(&json(pod), PodResourceOptions::default()).get("ephemeral-storage")
        && bytes(ephemeral_use(pod, used)) > *limit
    {
        let limit = limit.canonical();
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return Some(("ephemeralpodfs.limit", message));
    }
    for container in &used.containers {
        let limits = spec.containers.iter().find(|c| c.name == container.name);
        let limits = limits.and_then(|c| c.resources.as_ref()?.limits.as_ref());
        let limit = limits.and_then(|limits| limits.get("ephemeral-storage"));
        let limit = quantity_of(limit);
        let layer = container.layer.filter(|_| !layout.dedicated_images).unwrap_or_default();
        let amount = container.logs.unwrap_or_default().bytes + layer.bytes;
        if !limit.is_zero() && bytes(amount) > limit {
            let (name, limit) = (&container.name, limit.canonical());
            let message = format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ");
            return Some(("ephemeralcontainerfs.limit", message));
        }
    }
    None
}

/// Layers, logs and volumes that are the pod's own.
fn ephemeral_use(pod: &Pod, used: &PodUse) -> u64 {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let local = volumes.filter(|volume| is_local_ephemeral(volume));
    let volumes: u64 = local.filter_map(|v| Some(used.volumes.get(&v.name)?.bytes)).sum();
    let of = |part: Option<DiskUse>| part.unwrap_or_default().bytes;
    let containers: u64 = used.containers.iter().map(|c| of(c.layer) + of(c.logs)).sum();
    volumes + containers
}

#[cfg(test)]
mod tests;
