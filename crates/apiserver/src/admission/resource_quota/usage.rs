//! What one object counts for, and which quotas it counts against.
//! Upstream: pkg/quota/v1/evaluator/core (v1.36).

use jiff::Timestamp;
use orlop_api::quantity::{Format, Quantity};
use orlop_api::resources::{self, PodResourceOptions, ResourceList};
use orlop_api::{KindDef, Value};

/// Resources that are counted under their plural as well as under `count/…`.
const PLAIN_COUNTS: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

fn one() -> Quantity {
    Quantity::from_i64(1, Format::DecimalSI)
}

/// The `count/…` name of a resource.
pub fn count_name(kind: &KindDef) -> String {
    format!("count/{}", orlop_api::status::qualified(kind.group, kind.plural))
}

/// Everything the object counts for, under every name a quota may use.
pub fn of_object(kind: &KindDef, object: &Value, now: Timestamp) -> ResourceList {
    let mut usage = ResourceList::from([(count_name(kind), one())]);
    if !kind.group.is_empty() {
        return usage;
    }
    if PLAIN_COUNTS.contains(&kind.plural) {
        usage.insert(kind.plural.to_string(), one());
    }
    match kind.plural {
        "pods" if is_counted_pod(object, now) => of_pod(object, &mut usage),
        "services" => of_service(object, &mut usage),
        "persistentvolumeclaims" => of_claim(object, &mut usage),
        _ => {}
    }
    usage
}

/// A pod that has ended, or whose time to end has run out, takes nothing any more.
fn is_counted_pod(pod: &Value, now: Timestamp) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or("");
    if matches!(phase, "Failed" | "Succeeded") {
        return false;
    }
    let deadline = pod.pointer("/metadata/deletionTimestamp").and_then(Value::as_str);
    let grace = pod
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64);
    match (deadline.and_then(|d| d.parse::<Timestamp>().ok()), grace) {
        (Some(at), Some(grace)) => now.as_second() <= at.as_second() + grace,
        _ => true,
    }
}

fn of_pod(pod: &Value, usage: &mut ResourceList) {
    usage.insert("pods".into(), one());
    let options = PodResourceOptions {
        use_status: true,
        ..Default::default()
    };
    for (name, quantity) in resources::pod_requests(pod, options) {
        if resources::is_extended(&name) {
            usage.insert(format!("requests.{name}"), quantity);
        } else if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || resources::is_hugepages(&name) {
            usage.insert(format!("requests.{name}"), quantity.clone());
            usage.insert(name, quantity);
        }
    }
    for (name, quantity) in resources::pod_limits(pod, options) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), quantity);
        }
    }
}

fn of_service(service: &Value, usage: &mut ResourceList) {
    let ports = service
        .pointer("/spec/ports")
        .and_then(Value::as_array)
        .map_or(0, Vec::len) as i64;
    let allocates = service
        .pointer("/spec/allocateLoadBalancerNodePorts")
        .and_then(Value::as_bool)
        != Some(false);
    let (node_ports, balancers) = match service.pointer("/spec/type").and_then(Value::as_str) {
        Some("NodePort") => (ports, 0),
        Some("LoadBalancer") if allocates => (ports, 1),
        Some("LoadBalancer") => (given_node_ports(service), 1),
        _ => (0, 0),
    };
    usage.insert(
        "services.nodeports".into(),
        Quantity::from_i64(node_ports, Format::DecimalSI),
    );
    usage.insert(
        "services.loadbalancers".into(),
        Quantity::from_i64(balancers, Format::DecimalSI),
    );
}

fn given_node_ports(service: &Value) -> i64 {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    ports
        .into_iter()
        .flatten()
        .filter(|p| p["nodePort"].as_i64().unwrap_or(0) > 0)
        .count() as i64
}

fn of_claim(claim: &Value, usage: &mut ResourceList) {
    let class = claim
        .pointer("/spec/storageClassName")
        .and_then(Value::as_str)
        .unwrap_or("");
    if !class.is_empty() {
        usage.insert(
            format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"),
            one(),
        );
    }
    if let Some(size) = resources::list(claim.pointer("/spec/resources/requests")).remove("storage") {
        if !class.is_empty() {
            usage.insert(
                format!("{class}.storageclass.storage.k8s.io/requests.storage"),
                size.clone(),
            );
        }
        usage.insert("requests.storage".into(), size);
    }
}

/// Whether the object falls under the quota's scopes. Only pods have scopes; nothing else matches a quota with some.
pub fn in_scope(quota: &Value, kind: &KindDef, object: &Value) -> bool {
    let is_pod = kind.group.is_empty() && kind.plural == "pods";
    let plain = quota
        .pointer("/spec/scopes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let selected = quota
        .pointer("/spec/scopeSelector/matchExpressions")
        .and_then(Value::as_array);
    plain
        .filter_map(Value::as_str)
        .all(|scope| is_pod && matches_scope(object, scope, "Exists", &[]))
        && selected.into_iter().flatten().all(|e| {
            let values: Vec<&str> = e["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let word = |name: &str| e.get(name).and_then(Value::as_str).unwrap_or("");
            is_pod && matches_scope(object, word("scopeName"), word("operator"), &values)
        })
}

fn matches_scope(pod: &Value, scope: &str, operator: &str, values: &[&str]) -> bool {
    let terminating = || {
        pod.pointer("/spec/activeDeadlineSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|s| s >= 0)
    };
    let best_effort = || resources::qos_class(pod) == "BestEffort";
    match scope {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = pod
                .pointer("/spec/priorityClassName")
                .and_then(Value::as_str)
                .unwrap_or("");
            match operator {
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                "In" => values.contains(&class),
                "NotIn" => !values.contains(&class),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => reaches_other_namespaces(pod),
        _ => false,
    }
}

fn reaches_other_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|n| !n.is_empty()) || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|side| {
        let affinity = &pod["spec"]["affinity"][*side];
        let list = |name: &str| affinity[name].as_array().cloned().unwrap_or_default();
        list("requiredDuringSchedulingIgnoredDuringExecution")
            .iter()
            .any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|t| crosses(&t["podAffinityTerm"]))
    })
}

/// With a quota on cpu or memory every container must say how much of it it wants. Tells what is missing.
pub fn missing_requirements(pod: &Value, hard: &ResourceList) -> Option<String> {
    if pod
        .pointer("/spec/resources")
        .and_then(Value::as_object)
        .is_some_and(|r| !r.is_empty())
    {
        return None;
    }
    let mut told = vec![];
    for name in [
        "cpu",
        "limits.cpu",
        "limits.memory",
        "memory",
        "requests.cpu",
        "requests.memory",
    ] {
        if !hard.contains_key(name) {
            continue;
        }
        let (side, resource) = match name.split_once('.') {
            Some((side, resource)) => (side, resource),
            None => ("requests", name),
        };
        let mut without: Vec<&str> = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
            .filter(|c| c["resources"][side].get(resource).is_none())
            .filter_map(|c| c["name"].as_str())
            .collect();
        without.sort();
        if !without.is_empty() {
            told.push(format!("{name} for: {}", without.join(",")));
        }
    }
    (!told.is_empty()).then(|| format!("must specify {}", told.join("; ")))
}

/// Whether a quota on `name` is about objects of this kind at all.
pub fn concerns(name: &str, kind: &KindDef) -> bool {
    if name == count_name(kind) {
        return true;
    }
    let core = kind.group.is_empty();
    match kind.plural {
        "pods" if core => {
            name == "pods"
                || matches!(name, "cpu" | "memory" | "ephemeral-storage")
                || resources::is_hugepages(name)
                || (name.starts_with("requests.") && name != "requests.storage")
                || name.starts_with("limits.")
        }
        "services" if core => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        "persistentvolumeclaims" if core => {
            matches!(name, "persistentvolumeclaims" | "requests.storage")
                || name.contains(".storageclass.storage.k8s.io/")
        }
        plural => core && PLAIN_COUNTS.contains(&plural) && name == plural,
    }
}
