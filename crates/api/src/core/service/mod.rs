//! Services: a name and address for a set of pods.
//!
//! On a write, `prepare_*` settles what belongs together (and what was allocated before), then the object is validated,
//! then the server settles the address families (`cluster_ips::init_families`) and allocates addresses and ports.
//!
//! Upstream: pkg/registry/core/service (strategy.go, storage/storage.go), SetDefaults_Service (v1.36).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::Cursor;
use crate::kind::{Column, KindDef, SelectableField, Subresource, copy_member, keep_status};
use crate::{fill, ip, meta, names, printing};

pub mod cluster_ips;
mod validation;

pub use validation::{validate_load_balancer_status, validate_port_protocol};

pub const DEF: KindDef = KindDef {
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    categories: &["all"],
    schema: "core/v1.Service",
    subresources: &[
        Subresource {
            name: "proxy",
            group: "",
            version: "",
            kind: "ServiceProxyOptions",
            verbs: &["create", "delete", "get", "patch", "update"],
        },
        Subresource::STATUS,
    ],
    fields: &[SelectableField::at("spec.clusterIP"), SelectableField::at("spec.type")],
    columns: &[
        Column::string("Type"),
        Column::string("Cluster-IP"),
        Column::string("External-IP"),
        Column::string("Port(s)"),
        Column::AGE,
        Column::wide("Selector"),
    ],
    cells,
    name_rule: names::dns_label,
    default,
    prepare_create,
    prepare_update,
    prepare_status: |new, old| copy_member(new, old, "spec"),
    validate: validation::validate,
    validate_update: validation::validate_update,
    validate_status: validation::validate_status,
    warnings,
    create_on_update: true,
    ..KindDef::BASE
};

/// How long a client sticks to a backend if nothing is said: three hours.
const CLIENT_IP_SECONDS: i64 = 10800;

fn default(service: &mut Value) {
    let spec = fill::member(service, "spec");
    fill::empty(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => remove(spec, "sessionAffinityConfig"),
        "ClientIP" if spec.pointer("/sessionAffinityConfig/clientIP/timeoutSeconds").is_none() => {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": CLIENT_IP_SECONDS}});
        }
        _ => {}
    }
    fill::empty(spec, "type", "ClusterIP");
    for port in fill::items(spec, "ports") {
        fill::empty(port, "protocol", "TCP");
        let target = port.get("targetPort");
        if target.is_none_or(|t| *t == 0 || *t == "") {
            port["targetPort"] = port.get("port").cloned().unwrap_or(json!(0));
        }
    }
    if is_external(spec) {
        fill::empty(spec, "externalTrafficPolicy", "Cluster");
    }
    let kind = text(spec, "type").to_string();
    if matches!(&*kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        fill::absent(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill::absent(spec, "allocateLoadBalancerNodePorts", true);
        let ingress = service
            .pointer_mut("/status/loadBalancer/ingress")
            .and_then(Value::as_array_mut);
        for ingress in ingress.into_iter().flatten() {
            if !text(ingress, "ip").is_empty() {
                fill::absent(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn prepare_create(service: &mut Value) {
    service["status"] = json!({"loadBalancer": {}});
    cluster_ips::normalize(service, None);
    drop_useless(service);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    keep_allocated(new, old);
    cluster_ips::normalize(new, Some(old));
    drop_other_types_fields(new, old);
    drop_useless(new);
}

/// An ExternalName service has no traffic of its own.
fn drop_useless(service: &mut Value) {
    let spec = fill::member(service, "spec");
    if text(spec, "type") == "ExternalName" {
        remove(spec, "internalTrafficPolicy");
    }
}

/// What was allocated stays without being repeated: a client may apply the same manifest again.
fn keep_allocated(new: &mut Value, old: &Value) {
    let Some(old) = old.get("spec") else { return };
    let new = fill::member(new, "spec");
    if has_cluster_ip(old) && has_cluster_ip(new) {
        if text(new, "clusterIP").is_empty() {
            copy_member(new, old, "clusterIP");
        }
        if list(new, "clusterIPs").is_empty() {
            copy_member(new, old, "clusterIPs");
        }
    }
    if allocates_node_ports(old) && allocates_node_ports(new) {
        let taken: BTreeSet<i64> = node_ports(old).intersection(&node_ports(new)).copied().collect();
        for port in fill::items(new, "ports").filter(|p| printing::int(p, "/nodePort") == 0) {
            let name = text(port, "name");
            // Of several old ports with one name (unnamed, that is) the last counts.
            let before = list(old, "ports").iter().rev().find(|o| text(o, "name") == name);
            let before = before.map_or(0, |o| printing::int(o, "/nodePort"));
            if before != 0 && !taken.contains(&before) {
                port["nodePort"] = before.into();
            }
        }
    }
    if needs_health_check(old) && needs_health_check(new) && printing::int(new, "/healthCheckNodePort") == 0 {
        copy_member(new, old, "healthCheckNodePort");
    }
}

/// When the type changes, what the new type has no use for goes, unless the user touched it as well: then validation
/// is to refuse it.
fn drop_other_types_fields(new: &mut Value, old: &Value) {
    let Some(before) = old.get("spec") else { return };
    let spec = fill::member(new, "spec");
    let same = |spec: &Value, field: &str| spec.get(field) == before.get(field);
    if has_cluster_ip(before) && !has_cluster_ip(spec) {
        if same(spec, "clusterIP") && list(spec, "clusterIPs") == list(before, "clusterIPs") {
            remove(spec, "clusterIP");
            remove(spec, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(spec, field) {
                remove(spec, field);
            }
        }
    }
    let uses_node_ports = |spec: &Value| matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
    if uses_node_ports(before) && !uses_node_ports(spec) && node_ports(before).is_superset(&node_ports(spec)) {
        for port in fill::items(spec, "ports") {
            remove(port, "nodePort");
        }
    }
    if needs_health_check(before) && !needs_health_check(spec) && same(spec, "healthCheckNodePort") {
        remove(spec, "healthCheckNodePort");
    }
    let balanced = |spec: &Value| text(spec, "type") == "LoadBalancer";
    if balanced(before) && !balanced(spec) {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(spec, field) {
                remove(spec, field);
            }
        }
    }
    if is_external(before) && !is_external(spec) && same(spec, "externalTrafficPolicy") {
        remove(spec, "externalTrafficPolicy");
    }
    if !balanced(spec) {
        fill::member(new, "status")["loadBalancer"] = json!({});
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], |v| v.as_slice())
}

fn remove(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

fn node_ports(spec: &Value) -> BTreeSet<i64> {
    let ports = list(spec, "ports").iter().map(|p| printing::int(p, "/nodePort"));
    ports.filter(|n| *n != 0).collect()
}

/// The type has cluster IPs ("None" counts). Takes a service's spec, as do the next three.
pub fn has_cluster_ip(spec: &Value) -> bool {
    text(spec, "type") != "ExternalName"
}

/// Node ports are allocated for it.
pub fn allocates_node_ports(spec: &Value) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// A load balancer with local endpoints only asks each node for their health.
pub fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

/// Reached from outside the cluster.
pub fn is_external(spec: &Value) -> bool {
    match text(spec, "type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !list(spec, "externalIPs").is_empty(),
        _ => false,
    }
}

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

fn warnings(service: &Cursor<'_>, _old: Option<&Cursor<'_>>) -> Vec<String> {
    let spec = service.at("spec");
    let (kind, ips, external) = (spec.at("type").str(), spec.at("clusterIPs"), spec.at("externalIPs"));
    let headless = kind == "ClusterIP" && spec.at("clusterIP").str() == "None";
    let mut out = vec![];
    if meta::annotation(service, TOPOLOGY_HINTS).is_some() {
        out.push(format!(
            "annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
        ));
    }
    if !matches!(spec.at("clusterIP").str(), "" | "None") {
        out.extend(ips.items().flat_map(|ip| ip::ip_warnings(ip.path(), ip.str())));
    }
    if headless {
        if !spec.at("loadBalancerIP").is_empty() {
            out.push("spec.loadBalancerIP is ignored for headless services".to_string());
        }
        if !external.is_empty() {
            out.push("spec.externalIPs is ignored for headless services".to_string());
        }
        if spec.at("sessionAffinity").str() != "None" {
            out.push("spec.SessionAffinity is ignored for headless services".to_string());
        }
    }
    out.extend(external.items().flat_map(|ip| ip::ip_warnings(ip.path(), ip.str())));
    if !external.is_empty() && !headless && kind != "ExternalName" {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_string());
    }
    let balancer = spec.at("loadBalancerIP");
    out.extend(ip::ip_warnings(balancer.path(), balancer.str()));
    let ranges = spec.at("loadBalancerSourceRanges");
    out.extend(ranges.items().flat_map(|r| ip::cidr_warnings(r.path(), r.str())));
    if kind == "ExternalName" && !external.is_empty() {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_string());
    }
    if kind != "ExternalName" && !spec.at("externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_string());
    }
    if spec.at("trafficDistribution").str() == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_string());
    }
    out
}

fn cells(service: &Value, now: Timestamp) -> Vec<Value> {
    let empty = Value::Null;
    let spec = service.get("spec").unwrap_or(&empty);
    let cluster_ip = list(spec, "clusterIPs")
        .first()
        .and_then(Value::as_str)
        .unwrap_or("<none>");
    let ports: Vec<String> = list(spec, "ports").iter().map(shown_port).collect();
    let ports = if ports.is_empty() {
        "<none>".to_string()
    } else {
        ports.join(",")
    };
    vec![
        text(spec, "type").into(),
        cluster_ip.into(),
        shown_external(service, spec).into(),
        ports.into(),
        printing::age(service, now),
        printing::labels(spec.get("selector")).into(),
    ]
}

fn shown_port(port: &Value) -> String {
    let (number, protocol) = (printing::int(port, "/port"), text(port, "protocol"));
    match printing::int(port, "/nodePort") {
        0 => format!("{number}/{protocol}"),
        node => format!("{number}:{node}/{protocol}"),
    }
}

fn shown_external(service: &Value, spec: &Value) -> String {
    let mut shown: Vec<&str> = vec![];
    match text(spec, "type") {
        "ExternalName" => return text(spec, "externalName").to_string(),
        "LoadBalancer" => {
            let ingress = service
                .pointer("/status/loadBalancer/ingress")
                .and_then(Value::as_array);
            let addresses: BTreeSet<&str> = ingress
                .into_iter()
                .flatten()
                .map(|i| match text(i, "ip") {
                    "" => text(i, "hostname"),
                    ip => ip,
                })
                .filter(|a| !a.is_empty())
                .collect();
            shown.extend(addresses);
        }
        "ClusterIP" | "NodePort" => {}
        _ => return "<unknown>".to_string(),
    }
    shown.extend(list(spec, "externalIPs").iter().filter_map(Value::as_str));
    match (shown.is_empty(), text(spec, "type")) {
        (true, "LoadBalancer") => "<pending>".to_string(),
        (true, _) => "<none>".to_string(),
        _ => shown.join(","),
    }
}

#[cfg(test)]
mod tests;
