//! The status of a pod, which the kubelet writes, and the scheduler in part.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::restart::{all_may_restart, should_restart};
use crate::core::pod_spec::{self, Read, legacy_ip};
use crate::field::{Cursor, Problems};
use crate::kind::copy_member;
use crate::names;

const CONTAINER_STATUSES: [&str; 3] = [
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
];

/// The old `podIP` and the first of `podIPs` are the same; if a writer makes them differ, the old one counts.
pub(super) fn default(status: &mut Map<String, Value>) {
    let first = |status: &Map<String, Value>| {
        let ip = status.get("podIPs").and_then(|ips| ips.get(0)?.get("ip")?.as_str());
        ip.map(str::to_string)
    };
    let old = status
        .get("podIP")
        .and_then(Value::as_str)
        .filter(|ip| !ip.is_empty())
        .map(str::to_string);
    match (old, first(status)) {
        (Some(old), new) if new.as_ref() != Some(&old) => {
            status.insert("podIPs".into(), json!([{"ip": old}]));
        }
        (None, Some(new)) if !new.is_empty() => {
            status.insert("podIP".into(), new.into());
        }
        _ => {}
    }
    for name in CONTAINER_STATUSES {
        let list = status.get_mut(name).and_then(Value::as_array_mut);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
            .for_each(round_up);
    }
    round_up(status);
}

fn round_up(holder: &mut Map<String, Value>) {
    if let Some(list) = holder.get_mut("allocatedResources").and_then(Value::as_object_mut) {
        pod_spec::round_up(list);
    }
    for part in ["limits", "requests"] {
        if let Some(list) = holder
            .get_mut("resources")
            .and_then(|r| r.get_mut(part)?.as_object_mut())
        {
            pod_spec::round_up(list);
        }
    }
}

/// An update through the status endpoint. Labels and annotations may change with it, as upstream lets them.
pub(super) fn prepare(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
    let none = Value::Null;
    let old_metadata = old.get("metadata").unwrap_or(&none);
    if let Some(metadata) = new.get_mut("metadata") {
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"] {
            copy_member(metadata, old_metadata, name);
        }
    }
    let Some(status) = pod_spec::ensure_object(new, "status") else {
        return;
    };
    let old_status = old.get("status").unwrap_or(&none);
    if super::text(status, "/qosClass").is_empty() {
        copy_member(status, old_status, "qosClass");
    }
    keep_observed_generation(status, old_status);
}

fn observed(holder: &Value) -> i64 {
    holder.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0)
}

/// Writers that know nothing of `observedGeneration` do not wipe it out, in the status and in each condition.
fn keep_observed_generation(status: &mut Value, old: &Value) {
    if observed(status) == 0 && observed(old) != 0 {
        copy_member(status, old, "observedGeneration");
    }
    // Several conditions of one type are possible: the first stands for the first.
    let mut before: HashMap<String, Vec<i64>> = HashMap::new();
    let conditions = old.get("conditions").and_then(Value::as_array);
    for condition in conditions.into_iter().flatten().rev() {
        before
            .entry(super::text(condition, "/type").to_string())
            .or_default()
            .push(observed(condition));
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let old = before
            .get_mut(super::text(condition, "/type"))
            .and_then(Vec::pop)
            .unwrap_or(0);
        if old != 0 && observed(condition) == 0 && condition.is_object() {
            condition["observedGeneration"] = old.into();
        }
    }
}

pub(super) fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    super::update::annotations(new, old, p);
    let (spec, status) = (new.at("spec"), new.at("status"));
    let (old_spec, old_status) = (old.at("spec"), old.at("status"));
    conditions(&status, p);
    if spec.text("nodeName") != old_spec.text("nodeName") {
        p.forbidden(&status.at("nodeName"), "may not be changed directly");
    }
    nominated_node(&status, &old_status, &old_spec, p);
    if observed(status.value().unwrap_or(&Value::Null)) < 0 {
        p.invalid(&status.at("observedGeneration"), "must be a non-negative integer");
    }
    p.immutable(&status.at("qosClass"), &old_status.at("qosClass"));
    for (list, of) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ] {
        transitions(&status, &old_status, list, Some((&old_spec, of)), p);
    }
    transitions(&status, &old_status, "ephemeralContainerStatuses", None, p);
    resource_claims(&status, &spec, p);
    extended_resource_claim(&status, &spec, p);
    addresses(&status, &old_status, "podIPs", p);
    host_ips(&status, &old_status, p);
    for list in CONTAINER_STATUSES {
        users(&status, list, &spec, p);
    }
    for (list, of) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ] {
        for s in status.each(list) {
            allocated_resources(&s, &spec, of, p);
        }
    }
    for s in status.each("ephemeralContainerStatuses") {
        if s.given("allocatedResourcesStatus").is_some_and(|a| !a.is_empty()) {
            p.forbidden(
                &s.at("allocatedResourcesStatus"),
                "must not be specified in container status",
            );
        }
    }
}

fn conditions(status: &Cursor<'_>, p: &mut Problems) {
    for condition in status.each("conditions") {
        if condition.number("observedGeneration").is_some_and(|n| n < 0) {
            p.invalid(&condition.at("observedGeneration"), "must be a non-negative integer");
        }
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            for problem in names::qualified_name(kind) {
                p.invalid_value(&condition.path().field("Type"), &kind.into(), problem);
            }
        }
    }
}

fn nominated_node(status: &Cursor<'_>, old: &Cursor<'_>, old_spec: &Cursor<'_>, p: &mut Problems) {
    let name = status.text("nominatedNodeName");
    if name.is_empty() || name == old.text("nominatedNodeName") {
        return;
    }
    let at = status.at("nominatedNodeName");
    p.invalid_each(&at, names::dns_subdomain(name));
    if !old_spec.text("nodeName").is_empty() {
        p.forbidden(&at, "may not be set on pods that are already bound to a node");
    }
}

/// A container that has ended for good does not come back to life.
fn transitions(
    status: &Cursor<'_>,
    old: &Cursor<'_>,
    list: &'static str,
    containers: Option<(&Cursor<'_>, &str)>,
    p: &mut Problems,
) {
    let spec = containers.and_then(|(spec, _)| spec.value());
    if spec.is_some_and(all_may_restart) {
        return;
    }
    let now: HashMap<&str, &Value> = status
        .list(list)
        .iter()
        .rev()
        .filter_map(|s| Some((s.get("name")?.as_str()?, s)))
        .collect();
    for (i, before) in old.list(list).iter().enumerate() {
        let Some(terminated) = before.pointer("/state/terminated") else {
            continue;
        };
        let name = super::text(before, "/name");
        let alive = now.get(name).is_some_and(|s| s.pointer("/state/terminated").is_none());
        let may_restart = containers.is_some_and(|(spec, of)| {
            let exit_code = terminated.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
            let container = spec.list(of).iter().find(|c| super::text(c, "/name") == name);
            container.is_some_and(|c| should_restart(c, spec.value().unwrap_or(&Value::Null), exit_code))
        });
        if alive && !may_restart {
            let at = Cursor::new(None, status.path().field(list).index(i).field("state"));
            p.forbidden(&at, "may not be transitioned to non-terminated state");
        }
    }
}

fn resource_claims(status: &Cursor<'_>, spec: &Cursor<'_>, p: &mut Problems) {
    let mut seen = HashSet::new();
    for claim in status.each("resourceClaimStatuses") {
        let name = claim.at("name");
        if !spec
            .list("resourceClaims")
            .iter()
            .any(|c| super::text(c, "/name") == name.str())
        {
            p.invalid(&name, "must match the name of an entry in `spec.resourceClaims`");
        }
        if !seen.insert(name.str()) {
            p.duplicate(&name);
        }
        if let Some(made) = claim.given("resourceClaimName") {
            p.invalid_each(&made, names::dns_subdomain(made.str()));
        }
    }
}

fn extended_resource_claim(status: &Cursor<'_>, spec: &Cursor<'_>, p: &mut Problems) {
    let Some(claim) = status.given("extendedResourceClaimStatus") else {
        return;
    };
    if claim.list("requestMappings").is_empty() {
        p.required(&claim.at("requestMappings"), "at least one request mapping is required");
    }
    let containers = || spec.list("initContainers").iter().chain(spec.list("containers"));
    let mut seen = HashSet::new();
    for m in claim.each("requestMappings") {
        let key = (m.text("containerName"), m.text("resourceName"), m.text("requestName"));
        match containers().find(|c| super::text(c, "/name") == key.0) {
            None => p.invalid(
                &m.at("containerName"),
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ),
            Some(c) if c.pointer("/resources/requests").and_then(|r| r.get(key.1)).is_none() => p.invalid(
                &m.at("resourceName"),
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or \
                 spec.containers.resources.requests",
            ),
            Some(_) => {}
        }
        for problem in names::dns_label(key.2) {
            p.invalid_value(&claim.path().field("requestName"), &key.2.into(), problem);
        }
        if !seen.insert(key) {
            for field in ["containerName", "resourceName", "requestName"] {
                p.duplicate(&m.at(field));
            }
        }
    }
    let name = claim.at("resourceClaimName");
    if name.is_empty() {
        p.required(&name, "");
    } else {
        p.invalid_each(&name, names::dns_subdomain(name.str()));
    }
}

/// At most one address of each family. Addresses that were there before are not looked at again.
fn addresses(status: &Cursor<'_>, old: &Cursor<'_>, list: &'static str, p: &mut Problems) {
    let Some(new) = status.given(list) else { return };
    let known: Vec<&str> = old.list(list).iter().map(|a| super::text(a, "/ip")).collect();
    for address in new.items() {
        let ip = address.at("ip");
        if !known.contains(&ip.str()) {
            legacy_ip(&ip, address.path(), p);
        }
    }
    let families: Vec<bool> = new
        .items()
        .filter_map(|a| Some(a.text("ip").parse::<IpAddr>().ok()?.is_ipv4()))
        .collect();
    let dual = families.len() == 2 && families[0] != families[1];
    if new.len() > 1 && !(dual && new.len() == 2) {
        p.invalid(&new, "may specify no more than one IP for each IP family");
    }
}

fn host_ips(status: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    if let Some(first) = status.each("hostIPs").next()
        && first.text("ip") != status.text("hostIP")
    {
        p.invalid(&first.at("ip"), "must be equal to `hostIP`");
    }
    addresses(status, old, "hostIPs", p);
}

fn users(status: &Cursor<'_>, list: &'static str, spec: &Cursor<'_>, p: &mut Problems) {
    let windows = spec.given("os").is_some_and(|os| os.text("name") == "windows");
    for s in status.each(list) {
        let Some(user) = s.given("user").and_then(|u| u.given("linux")) else {
            continue;
        };
        if windows {
            p.forbidden(&user, "cannot be set for a windows pod");
            continue;
        }
        for id in ["uid", "gid"]
            .iter()
            .filter_map(|f| user.given(f))
            .chain(user.each("supplementalGroups"))
        {
            p.invalid_each(&id, pod_spec::user_id_problems(id.as_i64().unwrap_or(0)));
        }
    }
}

fn allocated_resources(s: &Cursor<'_>, spec: &Cursor<'_>, of: &str, p: &mut Problems) {
    let container = || spec.list(of).iter().find(|c| super::text(c, "/name") == s.text("name"));
    for allocated in s.each("allocatedResourcesStatus") {
        if let Some(container) = container() {
            names_a_resource(&allocated.at("name"), container, p);
        }
        let mut seen = HashSet::new();
        for r in allocated.each("resources") {
            if !matches!(r.text("health"), "Healthy" | "Unhealthy" | "Unknown") {
                p.not_supported(&r.at("health"), &["Healthy", "Unhealthy", "Unknown"]);
            }
            if let Some(message) = r.given("message") {
                match message.len() {
                    0 => p.required(&message, "must be non-empty if specified"),
                    1025.. => p.too_long(&message, 1024),
                    _ => {}
                }
            }
            if !seen.insert(r.text("resourceID")) {
                p.duplicate(&r.at("resourceID"));
            }
        }
    }
}

fn names_a_resource(name: &Cursor<'_>, container: &Value, p: &mut Problems) {
    if name.str().starts_with("claim:") {
        let claims = container.pointer("/resources/claims").and_then(Value::as_array);
        let known = claims.into_iter().flatten().any(|c| {
            let (claim, request) = (super::text(c, "/name"), super::text(c, "/request"));
            let full = if request.is_empty() {
                format!("claim:{claim}")
            } else {
                format!("claim:{claim}/{request}")
            };
            full == name.str()
        });
        if !known {
            p.invalid(
                name,
                "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
                 'claim:<claimName>' if request is empty",
            );
        }
    } else if container
        .pointer("/resources/requests")
        .and_then(|r| r.get(name.str()))
        .is_none()
    {
        p.invalid(name, "must match one of the container's resource requests");
    }
}
