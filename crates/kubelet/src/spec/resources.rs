//! Resources in the kernel's terms: QoS class, CPU shares and quota, memory limits, OOM scores, and the names of cgroups.

use std::collections::BTreeMap;

use orlop_api::quantity::Quantity;
use orlop_api::resources::{self as rules, CPU, MEMORY, PodResourceOptions, ResourceList};
use orlop_api::types::core::{Container, Pod, PodSpec, ResourceRequirements};
use orlop_api::types::meta::Quantity as ApiQuantity;
use orlop_runtime::cri::messages as cri;
use serde_json::{Value, json};

use super::{CgroupLayout, CgroupVersion, NodeFacts, labels, uid};

/// What the kernel takes at least and at most.
pub const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
/// Microseconds; the kernel refuses less.
const MIN_QUOTA: i64 = 1000;

const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

/// The class the API server wrote into the status; what follows from the spec where it has not.
pub fn qos_class(pod: &Pod) -> QosClass {
    let written = pod
        .status
        .as_ref()
        .and_then(|s| s.qos_class.as_deref())
        .filter(|c| !c.is_empty());
    let class = match written {
        Some(class) => class,
        None => rules::qos_class(&view(pod)),
    };
    match class {
        "Guaranteed" => QosClass::Guaranteed,
        "Burstable" => QosClass::Burstable,
        _ => QosClass::BestEffort,
    }
}

/// Just the parts of a pod that the rules about resources read.
fn view(pod: &Pod) -> Value {
    let Some(spec) = pod.spec.as_ref() else {
        return json!({});
    };
    let one = |c: &Container| json!({"restartPolicy": c.restart_policy, "resources": c.resources});
    let init = spec.init_containers.as_deref().unwrap_or_default();
    json!({"spec": {
        "containers": spec.containers.iter().map(one).collect::<Vec<_>>(),
        "initContainers": init.iter().map(one).collect::<Vec<_>>(),
        "resources": spec.resources,
        "overhead": spec.overhead,
    }})
}

/// What the pod asks for: sidecars, init containers and pod-level resources considered.
pub fn pod_requests(pod: &Pod, with_overhead: bool) -> ResourceList {
    rules::pod_requests(&view(pod), options(with_overhead))
}

/// What the pod may use at most, of those things that have a limit.
pub fn pod_limits(pod: &Pod, with_overhead: bool) -> ResourceList {
    rules::pod_limits(&view(pod), options(with_overhead))
}

fn options(with_overhead: bool) -> PodResourceOptions<'static> {
    PodResourceOptions {
        exclude_overhead: !with_overhead,
        ..Default::default()
    }
}

/// A list of the API in numbers; what is no quantity is left out.
pub fn quantities(list: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceList {
    let list = list.into_iter().flatten();
    list.filter_map(|(name, q)| Some((name.clone(), Quantity::parse(&q.0).ok()?)))
        .collect()
}

/// As scheduling counts: cpu in thousandths, all else whole.
pub fn amount_of(name: &str, quantity: &Quantity) -> i64 {
    match name {
        CPU => quantity.milli_value(),
        _ => quantity.value(),
    }
}

fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

fn request(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    amount(resources?.requests.as_ref(), name)
}

fn limit(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    amount(resources?.limits.as_ref(), name).filter(|q| !q.is_zero())
}

fn memory_request(container: &Container) -> i64 {
    request(container.resources.as_ref(), MEMORY).map_or(0, |q| q.value())
}

/// The pod's own `spec.resources`, if they say anything that counts.
fn pod_level(spec: &PodSpec) -> Option<&ResourceRequirements> {
    let own = spec.resources.as_ref()?;
    let mut names = own.requests.iter().chain(&own.limits).flat_map(|list| list.keys());
    names.any(|name| rules::is_pod_level(name)).then_some(own)
}

/// Relative weight of a CPU request.
pub fn milli_cpu_to_shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_PER_CPU) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CPU time in a period, both in microseconds; zero stands for no limit.
pub fn milli_cpu_to_quota(milli: i64, period_us: i64) -> i64 {
    match milli {
        0 => 0,
        _ => (milli.saturating_mul(period_us) / 1000).max(MIN_QUOTA),
    }
}

/// The request that leads to these shares.
pub fn shares_to_milli_cpu(shares: i64) -> i64 {
    match shares {
        ..MIN_SHARES => 0,
        _ => (shares.saturating_mul(1000).saturating_add(SHARES_PER_CPU - 1)) / SHARES_PER_CPU,
    }
}

/// The limit that leads to this quota; zero stands for none.
pub fn quota_to_milli_cpu(quota_us: i64, period_us: i64) -> i64 {
    match (quota_us, period_us) {
        (..0, _) | (_, ..=0) => 0,
        _ => quota_us.saturating_mul(1000) / period_us,
    }
}

/// Shares, quota and memory limit of anything that has a request and limits.
fn limits_of(
    cpu_request: Option<&Quantity>,
    cpu_limit: Option<&Quantity>,
    memory_limit: Option<&Quantity>,
    facts: &NodeFacts,
) -> cri::LinuxContainerResources {
    let milli = |q: Option<&Quantity>| q.map_or(0, Quantity::milli_value);
    let mut out = cri::LinuxContainerResources {
        // Without a request the limit stands for it.
        cpu_shares: milli_cpu_to_shares(milli(cpu_request.or(cpu_limit))),
        memory_limit_in_bytes: memory_limit.map_or(0, Quantity::value),
        ..Default::default()
    };
    if facts.cpu_cfs_quota {
        out.cpu_period = facts.quota_period_us();
        out.cpu_quota = milli_cpu_to_quota(milli(cpu_limit), out.cpu_period);
    }
    if facts.cgroups.version == CgroupVersion::V2 && !facts.single_process_oom_kill {
        out.unified.insert("memory.oom.group".to_string(), "1".to_string());
    }
    out
}

/// A container's limits. Where it has none of its own, the pod's apply to it.
pub fn linux_resources(pod: &Pod, container: &Container, facts: &NodeFacts) -> cri::LinuxContainerResources {
    let own = container.resources.as_ref();
    let of_pod = pod.spec.as_ref().and_then(pod_level);
    let cpu_limit = limit(own, CPU).or_else(|| limit(of_pod, CPU));
    let memory_limit = limit(own, MEMORY).or_else(|| limit(of_pod, MEMORY));
    let mut out = limits_of(
        request(own, CPU).as_ref(),
        cpu_limit.as_ref(),
        memory_limit.as_ref(),
        facts,
    );
    out.oom_score_adj = oom_score_adj(pod, container, facts.memory_capacity);
    out.hugepage_limits = hugepage_limits(of_pod, own, facts);
    set_swap(&mut out, pod, container, facts);
    if facts.cgroups.version == CgroupVersion::V2 {
        out.unified.extend(memory_qos(pod, container, facts));
    }
    out
}

/// What the sandbox takes beside its containers.
pub(crate) fn overhead(pod: &Pod, facts: &NodeFacts) -> cri::LinuxContainerResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|s| s.overhead.as_ref()) else {
        return cri::LinuxContainerResources::default();
    };
    let cpu = amount(Some(overhead), CPU).unwrap_or(Quantity::ZERO);
    limits_of(Some(&cpu), Some(&cpu), amount(Some(overhead), MEMORY).as_ref(), facts)
}

/// What the containers of a sandbox take together: for runtimes that size something by it.
pub(crate) fn sandbox_resources(pod: &Pod, facts: &NodeFacts) -> cri::LinuxContainerResources {
    let (requests, limits) = (pod_requests(pod, false), pod_limits(pod, false));
    limits_of(requests.get(CPU), limits.get(CPU), limits.get(MEMORY), facts)
}

/// Every page size the kernel has is limited: to nothing unless the container, or else the pod, says more.
fn hugepage_limits(
    of_pod: Option<&ResourceRequirements>,
    own: Option<&ResourceRequirements>,
    facts: &NodeFacts,
) -> Vec<cri::HugepageLimit> {
    let mut limits = BTreeMap::new();
    for list in [of_pod, own].into_iter().flatten().filter_map(|r| r.limits.as_ref()) {
        limits.extend(hugepages(&quantities(Some(list))));
    }
    let limit = |size: &String| cri::HugepageLimit {
        page_size: size.clone(),
        limit: limits.get(size).copied().unwrap_or(0).max(0) as u64,
    };
    facts.hugepage_sizes.iter().map(limit).collect()
}

/// Bytes by page size (`2MB`) of the `hugepages-…` in a list.
pub(crate) fn hugepages(list: &ResourceList) -> BTreeMap<String, i64> {
    let sizes = list.iter().filter_map(|(name, q)| {
        let size = Quantity::parse(name.strip_prefix("hugepages-")?).ok()?;
        Some((page_size(size.value())?, q.value()))
    });
    sizes.collect()
}

/// A page size in the form of cgroup files: the largest unit that leaves no fraction.
pub fn page_size(bytes: i64) -> Option<String> {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let (mut size, mut unit) = (bytes, 0);
    while size > 0 && size % 1024 == 0 && unit < UNITS.len() - 1 {
        size /= 1024;
        unit += 1;
    }
    (size > 0 && size <= 1024).then(|| format!("{size}{}", UNITS[unit]))
}

/// No swap, but for burstable pods where that is allowed: by their share of memory.
fn set_swap(out: &mut cri::LinuxContainerResources, pod: &Pod, container: &Container, facts: &NodeFacts) {
    if !facts.swap.controller {
        return;
    }
    if facts.cgroups.version == CgroupVersion::V1 {
        // Here the limit is of memory and swap together.
        out.memory_swap_limit_in_bytes = out.memory_limit_in_bytes;
        return;
    }
    let request = memory_request(container);
    let bytes = match may_swap(pod, container, facts) {
        true => (request as f64 / facts.memory_capacity as f64 * facts.swap.capacity as f64) as i64,
        false => 0,
    };
    out.unified.insert("memory.swap.max".to_string(), bytes.to_string());
}

/// Whether a container may use swap at all.
pub fn may_swap(pod: &Pod, container: &Container, facts: &NodeFacts) -> bool {
    let request = memory_request(container);
    let limit = limit(container.resources.as_ref(), MEMORY).map_or(0, |q| q.value());
    facts.swap.controller
        && facts.swap.limited
        && facts.cgroups.version == CgroupVersion::V2
        && !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        && request != limit
        && (0..=facts.memory_capacity).contains(&request)
        && facts.memory_capacity > 0
}

/// Memory kept by request, and throttling between request and limit.
fn memory_qos(pod: &Pod, container: &Container, facts: &NodeFacts) -> BTreeMap<String, String> {
    let Some(qos) = facts.memory_qos else {
        return BTreeMap::new();
    };
    let request = memory_request(container);
    let limit = limit(container.resources.as_ref(), MEMORY).map_or(0, |q| q.value());
    let mut out = BTreeMap::new();
    let mut set = |key: &str, value: i64| out.insert(key.to_string(), value.to_string());
    match (qos.tiered_reservation && request != 0, qos_class(pod)) {
        (true, QosClass::Guaranteed) => {
            set("memory.min", request);
        }
        (true, _) => {
            set("memory.low", request);
        }
        (false, _) => {
            set("memory.min", 0);
            set("memory.low", 0);
        }
    }
    let top = match limit {
        0 => facts.allocatable.get(MEMORY).map_or(0, Quantity::value),
        limit => limit,
    };
    if request != limit && top > 0 {
        let high = request as f64 + (top - request) as f64 * qos.throttling_factor;
        let high = (high / facts.page_size as f64).floor() as i64 * facts.page_size;
        if high > request {
            set("memory.high", high);
        }
    }
    out
}

/// Whom the kernel kills first when memory runs out: -997 (last) to 1000. Burstable containers stand between by how much of
/// the node's memory they ask for.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let Some(spec) = pod.spec.as_ref() else {
        return BEST_EFFORT_OOM_SCORE;
    };
    if is_node_critical(pod) {
        return GUARANTEED_OOM_SCORE;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => return GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {}
    }
    // What the pod asks for beyond its containers is shared out evenly.
    let share = unassigned_memory(pod, spec);
    let score = |request: i64| 1000 - 1000i64.saturating_mul(request + share) / memory_capacity.max(1);
    let mut adjust = score(memory_request(container));
    if is_sidecar(spec, container) {
        // A sidecar must not go before what it serves.
        let least = spec.containers.iter().map(memory_request).min().unwrap_or(0);
        adjust = adjust.min(score(least));
    }
    adjust.clamp(1000 + GUARANTEED_OOM_SCORE, BEST_EFFORT_OOM_SCORE - 1)
}

fn unassigned_memory(pod: &Pod, spec: &PodSpec) -> i64 {
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let total = amount(requests, MEMORY).map_or(0, |q| q.value());
    if total == 0 {
        return 0;
    }
    let containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    let assigned = rules::container_requests(&view(pod), PodResourceOptions::default());
    let assigned = assigned.get(MEMORY).map_or(0, Quantity::value);
    (total - assigned) / (containers.max(1) as i64)
}

fn is_sidecar(spec: &PodSpec, container: &Container) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    container.restart_policy.as_deref() == Some("Always") && init.any(|c| c.name == container.name)
}

/// Comes from a file or a URL, not from the API server.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, labels::CONFIG_SOURCE).is_some_and(|source| source != "api")
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The cluster or the node needs it: by priority, or because it is static.
pub fn is_critical(pod: &Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    is_static(pod) || annotation(pod, labels::CONFIG_MIRROR).is_some() || priority >= CRITICAL_PRIORITY
}

fn is_node_critical(pod: &Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|s| s.priority_class_name.as_deref());
    is_critical(pod) && class == Some("system-node-critical")
}

/// The cgroup parent of a pod as passed to the runtime, and as a path in the cgroup file system; empty where pods have none.
pub fn pod_cgroup_parent(pod: &Pod, layout: &CgroupLayout) -> String {
    match layout.per_qos {
        true => pod_cgroup(layout, qos_class(pod), uid(pod)),
        false => String::new(),
    }
}

/// `/kubepods/burstable/pod<uid>`, or what systemd makes of it.
pub fn pod_cgroup(layout: &CgroupLayout, class: QosClass, uid: &str) -> String {
    let own = format!("pod{uid}");
    match class {
        QosClass::Guaranteed => cgroup_path(layout, &["kubepods", &own]),
        QosClass::Burstable => cgroup_path(layout, &["kubepods", "burstable", &own]),
        QosClass::BestEffort => cgroup_path(layout, &["kubepods", "besteffort", &own]),
    }
}

/// The group of all pods of a class; for Guaranteed ones that is the group of all pods.
pub fn qos_cgroup(layout: &CgroupLayout, class: QosClass) -> String {
    match class {
        QosClass::Guaranteed => cgroup_path(layout, &["kubepods"]),
        QosClass::Burstable => cgroup_path(layout, &["kubepods", "burstable"]),
        QosClass::BestEffort => cgroup_path(layout, &["kubepods", "besteffort"]),
    }
}

/// A group's path: its names joined, or with systemd each level in a slice named after all levels so far.
fn cgroup_path(layout: &CgroupLayout, names: &[&str]) -> String {
    let root = layout.root.split('/').filter(|part| !part.is_empty());
    let names = root.chain(names.iter().copied());
    match layout.driver {
        cri::CgroupDriver::Cgroupfs => names.fold(String::new(), |path, name| format!("{path}/{name}")),
        cri::CgroupDriver::Systemd => {
            let (mut path, mut slice) = (String::new(), String::new());
            for name in names {
                if !slice.is_empty() {
                    slice.push('-');
                }
                slice.push_str(&name.replace('-', "_"));
                path = format!("{path}/{slice}.slice");
            }
            path
        }
    }
}

#[cfg(test)]
#[path = "resources_tests.rs"]
mod tests;
