//! What one object counts for, and which quotas it counts against.
//! Upstream: pkg/quota/v1/evaluator/core (v1.36). Left out: what resource claims count for under the name of an extended
//! resource, which depends on device classes and pods that come and go by themselves.

use jiff::Timestamp;
use serde_json::Value;

use super::{items, scopes, text};
use crate::KindDef;
use crate::quantity::{Format, Quantity};
use crate::resources::{self, PodResourceOptions, ResourceList};

/// Resources that are counted under their plural as well as under `count/…`.
const PLAIN_COUNTS: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// A request for all devices of a class counts as this many: a claim can't hold more.
const MAX_DEVICES: i64 = 32;
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";

fn number(n: i64) -> Quantity {
    Quantity::from_i64(n, Format::DecimalSI)
}

/// Events come and go too fast to be counted; what is not stored can't be.
pub fn is_counted(kind: &KindDef) -> bool {
    kind.namespaced && kind.is_stored() && kind.plural != "events"
}

/// The `count/…` name of a resource.
fn count_name(kind: &KindDef) -> String {
    format!("count/{}", crate::status::qualified(kind.group, kind.plural))
}

/// What the object counts for in a quota, under every name a quota may use; nothing outside the quota's scopes.
pub fn in_quota(quota: &Value, kind: &KindDef, object: &Value, now: Timestamp) -> ResourceList {
    match scopes::covers(quota, kind, object) {
        true => of_object(kind, object, now),
        false => ResourceList::new(),
    }
}

fn of_object(kind: &KindDef, object: &Value, now: Timestamp) -> ResourceList {
    let mut usage = ResourceList::from([(count_name(kind), number(1))]);
    match (kind.group, kind.plural) {
        ("", "pods") if is_counted_pod(object, now) => of_pod(object, &mut usage),
        ("", "services") => of_service(object, &mut usage),
        ("", "persistentvolumeclaims") => of_claim(object, &mut usage),
        ("resource.k8s.io", "resourceclaims") => of_resource_claim(object, &mut usage),
        _ => {}
    }
    if kind.group.is_empty() && PLAIN_COUNTS.contains(&kind.plural) {
        usage.insert(kind.plural.to_string(), number(1));
    }
    usage
}

/// A pod that has ended, or whose time to end has run out, takes nothing any more.
fn is_counted_pod(pod: &Value, now: Timestamp) -> bool {
    !matches!(text(pod, &["status", "phase"]), "Failed" | "Succeeded") && !is_overdue(pod, now)
}

/// Whether the pod should have been gone for as long as it had to end. It stops counting then, without any write.
pub fn is_overdue(pod: &Value, now: Timestamp) -> bool {
    let deadline: Option<Timestamp> = text(pod, &["metadata", "deletionTimestamp"]).parse().ok();
    let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
    match (deadline, grace) {
        (Some(deadline), Some(grace)) => now.as_second() > deadline.as_second() + grace,
        _ => false,
    }
}

fn of_pod(pod: &Value, usage: &mut ResourceList) {
    usage.insert("pods".into(), number(1));
    let options = PodResourceOptions {
        use_status: true,
        ..Default::default()
    };
    for (name, quantity) in resources::pod_requests(pod, options) {
        if resources::is_extended(&name) || name.starts_with(DEVICE_CLASS) {
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
    let ports = items(service, &["spec", "ports"]);
    let given = || {
        ports
            .iter()
            .filter(|p| p["nodePort"].as_i64().unwrap_or(0) != 0)
            .count()
    };
    let allocates = service["spec"]["allocateLoadBalancerNodePorts"] != false;
    let (node_ports, balancers) = match text(service, &["spec", "type"]) {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if allocates => (ports.len(), 1),
        "LoadBalancer" => (given(), 1),
        _ => (0, 0),
    };
    usage.insert("services.nodeports".into(), number(node_ports as i64));
    usage.insert("services.loadbalancers".into(), number(balancers));
}

fn of_claim(claim: &Value, usage: &mut ResourceList) {
    let class = storage_class_of(claim);
    let size = claim_size(claim);
    if !class.is_empty() {
        usage.insert(format!("{class}{STORAGE_CLASS}persistentvolumeclaims"), number(1));
        if let Some(size) = &size {
            usage.insert(format!("{class}{STORAGE_CLASS}requests.storage"), size.clone());
        }
    }
    usage.extend(size.map(|size| ("requests.storage".into(), size)));
}

/// An annotation came before the field.
fn storage_class_of(claim: &Value) -> &str {
    let annotation = &claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    annotation
        .as_str()
        .unwrap_or_else(|| text(claim, &["spec", "storageClassName"]))
}

/// What is asked for, or what was allocated if that is more (a growth that was taken back), in whole bytes.
fn claim_size(claim: &Value) -> Option<Quantity> {
    let storage = |pointer: &str| resources::list(claim.pointer(pointer)).remove("storage");
    let asked = storage("/spec/resources/requests")?;
    let size = match storage("/status/allocatedResources") {
        Some(allocated) if allocated > asked => allocated,
        _ => asked,
    };
    Some(match size.is_whole() {
        true => size,
        false => Quantity::from_i64(size.value(), size.format()),
    })
}

/// Devices by class: all requests together; of the alternatives of one request the largest per class.
fn of_resource_claim(claim: &Value, usage: &mut ResourceList) {
    let devices = |request: &Value| -> (String, Quantity) {
        let count = match text(request, &["allocationMode"]) {
            "ExactCount" => request["count"].as_i64().unwrap_or(0),
            "All" => MAX_DEVICES,
            _ => 0,
        };
        let class = text(request, &["deviceClassName"]);
        (format!("{class}{DEVICES}"), number(count))
    };
    for request in items(claim, &["spec", "devices", "requests"]) {
        let mut wanted = ResourceList::new();
        for alternative in items(request, &["firstAvailable"]) {
            resources::raise(&mut wanted, &ResourceList::from([devices(alternative)]));
        }
        wanted.extend(request.get("exactly").map(devices));
        resources::add(usage, &wanted);
    }
}

/// Whether a quota on `name` is about objects of this kind at all.
pub fn concerns(name: &str, kind: &KindDef) -> bool {
    if name == count_name(kind) {
        return true;
    }
    match (kind.group, kind.plural) {
        ("", "pods") => concerns_pods(name),
        ("", "services") => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => {
            let of_class = name.rsplit_once(STORAGE_CLASS).map(|(_, rest)| rest);
            matches!(of_class.unwrap_or(name), "persistentvolumeclaims" | "requests.storage")
        }
        ("resource.k8s.io", "resourceclaims") => name.ends_with(DEVICES),
        ("", plural) => PLAIN_COUNTS.contains(&plural) && name == plural,
        _ => false,
    }
}

fn concerns_pods(name: &str) -> bool {
    let request = name.strip_prefix("requests.");
    let compute = request.or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    name == "pods"
        || matches!(compute, "cpu" | "memory" | "ephemeral-storage")
        || resources::is_quota_hugepages(name)
        || request.is_some_and(|r| !resources::is_native(r) || r.starts_with(DEVICE_CLASS))
}

/// With a quota on cpu or memory every container must say how much of it it wants. Tells what is missing.
pub fn missing_requirements(pod: &Value, hard: &ResourceList) -> Option<String> {
    let own = |side: &str| resources::list(pod["spec"]["resources"].get(side));
    if ["requests", "limits"]
        .iter()
        .any(|side| own(side).keys().any(|n| resources::is_pod_level(n)))
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
        let (side, resource) = name.split_once('.').unwrap_or(("requests", name));
        let mut without: Vec<&str> = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| items(pod, &["spec", list]))
            .filter(|c| c["resources"][side].get(resource).is_none())
            .map(|c| text(c, &["name"]))
            .collect();
        without.sort();
        if !without.is_empty() {
            told.push(format!("{name} for: {}", without.join(",")));
        }
    }
    (!told.is_empty()).then(|| format!("must specify {}", told.join("; ")))
}
