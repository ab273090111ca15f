//! Resource lists and what follows from them: which names count as what, the effective requests and limits of a pod
//! (sidecars, pod-level resources, overhead, resizes under way), and its quality-of-service class.
//!
//! Upstream: component-helpers/resource, pkg/apis/core/helper and helper/qos (v1.36).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

/// Resource name → quantity, as in `resources.requests`.
pub type ResourceList = BTreeMap<String, Quantity>;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const HUGEPAGES: &str = "hugepages-";

/// Reads a resource list; what is no quantity is left out (validation has refused it before).
pub fn list(value: Option<&Value>) -> ResourceList {
    entries(value).map(|(name, q)| (name.to_string(), q)).collect()
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = (&str, Quantity)> {
    let map = value.and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(name, q)| {
        let q = q.as_str().and_then(|q| Quantity::parse(q).ok())?;
        Some((name.as_str(), q))
    })
}

/// The value at a JSON pointer (without escapes). `Value::pointer` copies each word, which hot paths cannot afford.
pub(crate) fn find<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let words = pointer.split('/').skip(1);
    let found = words.into_iter().try_fold(object, |value, word| match value {
        Value::Array(list) => list.get(word.parse::<usize>().ok()?),
        _ => value.get(word),
    });
    found.filter(|v| !v.is_null())
}

/// A resource list as JSON.
pub fn to_value(list: &ResourceList) -> Value {
    Value::Object(list.iter().map(|(k, q)| (k.clone(), q.canonical().into())).collect())
}

/// Adds each quantity of `more` to `list`.
pub fn add(list: &mut ResourceList, more: &ResourceList) {
    for (name, q) in more {
        match list.get_mut(name) {
            Some(sum) => sum.add(q),
            None => {
                list.insert(name.clone(), q.clone());
            }
        }
    }
}

/// Raises each quantity of `list` to at least that of `other`.
pub fn raise(list: &mut ResourceList, other: &ResourceList) {
    for (name, q) in other {
        match list.get_mut(name) {
            Some(have) if *have >= *q => {}
            Some(have) => *have = q.clone(),
            None => {
                list.insert(name.clone(), q.clone());
            }
        }
    }
}

pub fn is_hugepages(name: &str) -> bool {
    name.starts_with(HUGEPAGES)
}

/// Huge pages in a quota: also with the `requests.` prefix.
pub fn is_quota_hugepages(name: &str) -> bool {
    is_hugepages(name) || name.starts_with("requests.hugepages-")
}

/// Kubernetes' own: without a domain, or in `kubernetes.io/`.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// A device or the like: `example.com/gpu`. It must still be a qualified name with the quota's `requests.` before it.
pub fn is_extended(name: &str) -> bool {
    if is_native(name) || name.starts_with("requests.") {
        return false;
    }
    // Everything that is wrong with the name alone is wrong with the longer one; only the length of the prefix can differ.
    let prefix = name.split('/').next().unwrap_or("");
    prefix.len() + "requests.".len() <= 253 && crate::names::qualified_name(name).is_empty()
}

/// Requests may be lower than limits.
pub fn overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Things counted, not measured.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Whole numbers only.
pub fn is_integer(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

pub fn is_standard_for_containers(name: &str) -> bool {
    matches!(name, CPU | MEMORY | EPHEMERAL_STORAGE) || is_hugepages(name)
}

/// Known to quotas without a domain.
pub fn is_standard_for_quota(name: &str) -> bool {
    name != "storage" && is_standard(name)
}

/// Known to the system at all.
pub fn is_standard(name: &str) -> bool {
    let compute = name
        .strip_prefix("requests.")
        .or_else(|| name.strip_prefix("limits."))
        .unwrap_or(name);
    matches!(compute, CPU | MEMORY | EPHEMERAL_STORAGE)
        || matches!(name, "storage" | "requests.storage")
        || COUNTED.contains(&name)
        || is_quota_hugepages(name)
}

/// May stand in the pod's own `spec.resources`.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, CPU | MEMORY) || is_hugepages(name)
}

/// What is counted in `pod_requests` and `pod_limits`. The default is what the scheduler and quota see before a pod runs.
#[derive(Clone, Copy, Default)]
pub struct PodResourceOptions<'a> {
    /// Resizes under way: what is allocated or in effect counts too, if it is more.
    pub use_status: bool,
    pub exclude_overhead: bool,
    /// Containers only, whatever the pod-level resources say.
    pub skip_pod_level: bool,
    /// Requests assumed for containers that name none (scores of the scheduler).
    pub non_missing: Option<&'a ResourceList>,
}

/// What the pod takes from a node.
pub fn pod_requests(pod: &Value, opts: PodResourceOptions<'_>) -> ResourceList {
    let mut total = container_requests(pod, opts);
    let own = find(pod, "/spec/resources");
    if !opts.skip_pod_level
        && let Some(spec) = own.and_then(|r| r.get("requests"))
    {
        let status = find(pod, "/status/resources").filter(|_| opts.use_status);
        let effective = status.map(|s| {
            let allocated = find(pod, "/status/allocatedResources");
            effective_requests(pod, Some(spec), s.get("requests"), allocated)
        });
        overlay(&mut total, spec, effective);
    }
    if !opts.exclude_overhead {
        add(&mut total, &list(find(pod, "/spec/overhead")));
    }
    total
}

/// What the pod may use at most; overhead only raises limits that are there.
pub fn pod_limits(pod: &Value, opts: PodResourceOptions<'_>) -> ResourceList {
    let mut total = container_limits(pod, opts);
    let own = find(pod, "/spec/resources");
    if !opts.skip_pod_level
        && let Some(spec) = own.and_then(|r| r.get("limits"))
    {
        let status = find(pod, "/status/resources").filter(|_| opts.use_status);
        let effective = status.map(|s| effective_limits(pod, Some(spec), s.get("limits")));
        overlay(&mut total, spec, effective);
    }
    if !opts.exclude_overhead {
        for (name, q) in entries(find(pod, "/spec/overhead")) {
            if let Some(limit) = total.get_mut(name).filter(|l| !l.is_zero()) {
                limit.add(&q);
            }
        }
    }
    total
}

/// Pod-level values replace the containers' sums.
fn overlay(total: &mut ResourceList, spec: &Value, effective: Option<ResourceList>) {
    for (name, q) in entries(Some(spec)).filter(|(name, _)| is_pod_level(name)) {
        let q = match &effective {
            Some(list) => list.get(name).cloned().unwrap_or_default(),
            None => q,
        };
        total.insert(name.to_string(), q);
    }
}

/// The requests of all containers together, without pod-level resources and overhead.
pub fn container_requests(pod: &Value, opts: PodResourceOptions<'_>) -> ResourceList {
    aggregate(pod, |container, status| {
        let spec = find(container, "/resources/requests");
        let mut requests = match status
            .filter(|_| opts.use_status)
            .and_then(|s| Some((s, s.get("resources")?)))
        {
            Some((status, actuated)) => {
                effective_requests(pod, spec, actuated.get("requests"), status.get("allocatedResources"))
            }
            None => list(spec),
        };
        for (name, q) in opts.non_missing.into_iter().flatten() {
            requests.entry(name.clone()).or_insert_with(|| q.clone());
        }
        requests
    })
}

/// The limits of all containers together, without pod-level resources and overhead.
pub fn container_limits(pod: &Value, opts: PodResourceOptions<'_>) -> ResourceList {
    aggregate(pod, |container, status| {
        let spec = find(container, "/resources/limits");
        match status.filter(|_| opts.use_status).and_then(|s| s.get("resources")) {
            Some(actuated) => effective_limits(pod, spec, actuated.get("limits")),
            None => list(spec),
        }
    })
}

/// The most that is in use at any time: all containers and sidecars, or an init container and the sidecars before it.
fn aggregate(pod: &Value, of: impl Fn(&Value, Option<&Value>) -> ResourceList) -> ResourceList {
    let mut total = ResourceList::new();
    for container in items(pod, "/spec/containers") {
        add(
            &mut total,
            &of(container, status_of(pod, "/status/containerStatuses", container)),
        );
    }
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in items(pod, "/spec/initContainers") {
        if is_sidecar(container) {
            let own = of(container, status_of(pod, "/status/initContainerStatuses", container));
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut use_now = of(container, None);
            add(&mut use_now, &sidecars);
            raise(&mut peak, &use_now);
        }
    }
    raise(&mut total, &peak);
    total
}

/// An init container that keeps running beside the others.
pub fn is_sidecar(init_container: &Value) -> bool {
    init_container.get("restartPolicy").and_then(Value::as_str) == Some("Always")
}

fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    find(object, pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn status_of<'a>(pod: &'a Value, pointer: &str, container: &Value) -> Option<&'a Value> {
    let name = container.get("name")?;
    items(pod, pointer).iter().find(|s| s.get("name") == Some(name))
}

fn effective_requests(
    pod: &Value,
    spec: Option<&Value>,
    actuated: Option<&Value>,
    allocated: Option<&Value>,
) -> ResourceList {
    let mut most = list(actuated);
    raise(&mut most, &list(allocated));
    if !resize_is_infeasible(pod) {
        raise(&mut most, &list(spec));
    }
    most
}

fn effective_limits(pod: &Value, spec: Option<&Value>, actuated: Option<&Value>) -> ResourceList {
    let mut most = list(actuated);
    if !resize_is_infeasible(pod) {
        raise(&mut most, &list(spec));
    }
    most
}

/// The node has said that it can never grant the resize asked for.
pub fn resize_is_infeasible(pod: &Value) -> bool {
    items(pod, "/status/conditions")
        .iter()
        .find(|c| c.get("type").and_then(Value::as_str) == Some("PodResizePending"))
        .is_some_and(|c| c.get("reason").and_then(Value::as_str) == Some("Infeasible"))
}

/// The class that follows from the spec alone: "Guaranteed", "Burstable" or "BestEffort".
pub fn qos_class(pod: &Value) -> &'static str {
    let mut sums = QosSums::default();
    let mut all_limited = true;
    match find(pod, "/spec/resources").filter(|r| !r.is_null()) {
        Some(own) => {
            sums.add(own);
            if own
                .get("limits")
                .and_then(Value::as_object)
                .is_some_and(|l| !l.is_empty())
            {
                all_limited = is_limited(own);
            }
        }
        None => {
            let containers = items(pod, "/spec/containers")
                .iter()
                .chain(items(pod, "/spec/initContainers"));
            for container in containers {
                let resources = container.get("resources").unwrap_or(&Value::Null);
                sums.add(resources);
                all_limited &= is_limited(resources);
            }
        }
    }
    if sums.requests.iter().chain(&sums.limits).all(Quantity::is_zero) {
        "BestEffort"
    } else if all_limited && sums.requests == sums.limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Sums of cpu and memory over containers; zero is the same as none.
#[derive(Default)]
struct QosSums {
    requests: [Quantity; 2],
    limits: [Quantity; 2],
}

impl QosSums {
    fn add(&mut self, resources: &Value) {
        for (i, name) in [CPU, MEMORY].into_iter().enumerate() {
            for (sums, part) in [(&mut self.requests, "requests"), (&mut self.limits, "limits")] {
                if let Some(q) = positive(resources, part, name) {
                    sums[i].add(&q);
                }
            }
        }
    }
}

fn positive(resources: &Value, part: &str, name: &str) -> Option<Quantity> {
    let text = resources.get(part)?.get(name)?.as_str()?;
    Quantity::parse(text).ok().filter(|q| !q.is_zero() && !q.is_negative())
}

fn is_limited(resources: &Value) -> bool {
    [CPU, MEMORY]
        .iter()
        .all(|name| positive(resources, "limits", name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `cpu/memory` of requests as text, e.g. "1500m/1Gi".
    fn shown(list: &ResourceList) -> String {
        let text = |name: &str| list.get(name).map_or("-".into(), Quantity::canonical);
        format!("{}/{}", text(CPU), text(MEMORY))
    }

    fn container(cpu: &str, memory: &str) -> Value {
        let both = json!({"cpu": cpu, "memory": memory});
        json!({"name": "c", "resources": {"requests": both, "limits": both}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut c = container(cpu, memory);
        c["restartPolicy"] = "Always".into();
        c
    }

    #[test]
    fn names_fall_into_classes() {
        for (name, native, extended, integer, standard, quota, container) in [
            ("cpu", true, false, false, true, true, true),
            ("storage", true, false, false, true, false, false),
            ("pods", true, false, true, true, true, false),
            ("requests.cpu", true, false, false, true, true, false),
            ("limits.ephemeral-storage", true, false, false, true, true, false),
            ("hugepages-2Mi", true, false, false, true, true, true),
            ("requests.hugepages-2Mi", true, false, false, true, true, false),
            ("example.com/gpu", false, true, true, false, false, false),
            ("kubernetes.io/x", true, false, false, false, false, false),
            ("requests.example.com/gpu", false, false, false, false, false, false),
            ("gpu", true, false, false, false, false, false),
        ] {
            let got = (
                is_native(name),
                is_extended(name),
                is_integer(name),
                is_standard(name),
                is_standard_for_quota(name),
                is_standard_for_containers(name),
            );
            assert_eq!(got, (native, extended, integer, standard, quota, container), "{name}");
        }
        let long = format!("{}.example.com/gpu", "a".repeat(240));
        assert!(!is_extended(&long), "no room for the quota prefix");
        assert!(!overcommit_allowed("example.com/gpu") && !overcommit_allowed("hugepages-1Gi"));
    }

    #[test]
    fn requests_count_what_is_used_at_the_same_time() {
        let cases = [
            (
                json!({"containers": [container("1", "1Gi"), container("500m", "1Gi")]}),
                "1500m/2Gi",
            ),
            // A big init container runs alone.
            (
                json!({"containers": [container("1", "1Gi")], "initContainers": [container("3", "512Mi")]}),
                "3/1Gi",
            ),
            // Sidecars run beside the containers and beside the init containers after them.
            (
                json!({"containers": [container("1", "1Gi")],
                       "initContainers": [sidecar("1", "1Gi"), container("2", "1Gi")]}),
                "3/2Gi",
            ),
            (
                json!({"containers": [container("1", "1Gi")],
                       "initContainers": [container("2", "1Gi"), sidecar("1", "1Gi")]}),
                "2/2Gi",
            ),
            (
                json!({"containers": [container("1", "1Gi")], "overhead": {"cpu": "100m", "memory": "1Gi"}}),
                "1100m/2Gi",
            ),
            (
                json!({"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "4"}}}),
                "4/1Gi",
            ),
            (json!({"containers": [{"name": "c"}]}), "-/-"),
        ];
        for (spec, want) in cases {
            let got = pod_requests(&json!({"spec": spec}), PodResourceOptions::default());
            assert_eq!(shown(&got), want, "{spec}");
        }
    }

    #[test]
    fn options_change_what_counts() {
        let pod = json!({
            "spec": {
                "containers": [container("1", "1Gi"), {"name": "d"}],
                "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}},
                "overhead": {"cpu": "1", "memory": "1Gi"},
            },
            "status": {"containerStatuses": [{
                "name": "c",
                "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}},
                "allocatedResources": {"cpu": "2", "memory": "2Gi"},
            }]},
        });
        let get = |opts| (shown(&pod_requests(&pod, opts)), shown(&pod_limits(&pod, opts)));
        let base = PodResourceOptions::default();
        assert_eq!(get(base), ("5/2Gi".into(), "2/9Gi".into()));
        let opts = PodResourceOptions {
            exclude_overhead: true,
            ..base
        };
        assert_eq!(get(opts), ("4/1Gi".into(), "1/8Gi".into()));
        let opts = PodResourceOptions {
            skip_pod_level: true,
            exclude_overhead: true,
            ..base
        };
        assert_eq!(get(opts), ("1/1Gi".into(), "1/1Gi".into()));
        let opts = PodResourceOptions {
            use_status: true,
            ..opts
        };
        assert_eq!(get(opts), ("3/2Gi".into(), "3/1Gi".into()));
        let mut infeasible = pod.clone();
        infeasible["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9".into();
        assert_eq!(shown(&pod_requests(&infeasible, opts)), "9/2Gi");
        infeasible["status"]["conditions"] = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
        assert_eq!(shown(&pod_requests(&infeasible, opts)), "3/2Gi");
        let assumed = list(Some(&json!({"cpu": "100m", "memory": "200Mi"})));
        let opts = PodResourceOptions {
            non_missing: Some(&assumed),
            skip_pod_level: true,
            ..PodResourceOptions::default()
        };
        assert_eq!(shown(&pod_requests(&pod, opts)), "2100m/2248Mi");
    }

    #[test]
    fn qos_follows_requests_and_limits() {
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        for (spec, want) in [
            (json!({"containers": [{"name": "a"}]}), "BestEffort"),
            (
                json!({"containers": [{"resources": {"requests": {"example.com/gpu": "1"}}}]}),
                "BestEffort",
            ),
            (
                json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}]}),
                "BestEffort",
            ),
            (json!({"containers": [container("1", "1Gi")]}), "Guaranteed"),
            (
                json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]}),
                "Burstable",
            ),
            (
                json!({"containers": [container("1", "1Gi"), {"name": "b"}]}),
                "Burstable",
            ),
            (
                json!({"containers": [container("1", "1Gi")], "initContainers": [{"name": "i"}]}),
                "Burstable",
            ),
            (
                json!({"containers": [container("1", "1Gi")], "initContainers": [container("2", "1Gi")]}),
                "Guaranteed",
            ),
            (
                json!({"containers": [{"name": "a"}], "resources": {"requests": limits, "limits": limits}}),
                "Guaranteed",
            ),
            (
                json!({"containers": [{"name": "a"}], "resources": {"limits": {"cpu": "1"}}}),
                "Burstable",
            ),
            (
                json!({"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "2"}}}),
                "Burstable",
            ),
        ] {
            assert_eq!(qos_class(&json!({"spec": spec})), want, "{spec}");
        }
    }
}
