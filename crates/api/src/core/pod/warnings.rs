//! Advice on pods and templates: what is deprecated, does nothing, or is probably not what was meant.
//!
//! Upstream: pkg/api/pod/warnings.go (v1.36).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use serde_json::Value;

use super::text;
use crate::core::persistent_volume_claim;
use crate::core::pod_spec::{self, Read, all_containers};
use crate::field::{Cursor, Path};
use crate::names;
use crate::quantity::Quantity;

/// On a new pod.
pub(super) fn on_create(pod: &Cursor<'_>) -> Vec<String> {
    let metadata = pod.at("metadata");
    let mut out = vec![];
    let problems = names::dns_label(metadata.text("name"));
    if !problems.is_empty() {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label \
             is recommended: [{}]",
            problems.join(" ")
        ));
    }
    out.extend(of(&metadata, &pod.at("spec"), false));
    out
}

/// On the metadata and spec of a pod or template.
pub(crate) fn of(metadata: &Cursor<'_>, spec: &Cursor<'_>, is_template: bool) -> Vec<String> {
    let mut out = vec![];
    node_labels(spec, &mut out);
    annotations(metadata, &mut out);
    volumes(spec, &mut out);
    overlapping_paths(spec, &mut out);
    duplicates(spec, "hostAliases", "ip", &mut out);
    duplicates(spec, "imagePullSecrets", "name", &mut out);
    for secret in spec.each("imagePullSecrets").filter(|s| s.text("name").is_empty()) {
        out.push(format!("{}: invalid empty name \"\"", secret.path().field("name")));
    }
    if let Some(overhead) = spec.given("overhead") {
        fractional(&overhead, &mut out);
    }
    profiles(metadata, spec, is_template, &mut out);
    for c in all_containers(spec) {
        if let Some(resources) = c.given("resources") {
            for part in ["limits", "requests"].iter().filter_map(|part| resources.given(part)) {
                fractional(&part, &mut out);
            }
        }
        hidden_variables(&c, &mut out);
    }
    ports(spec, &mut out);
    if spec.number("terminationGracePeriodSeconds").is_some_and(|n| n < 0) {
        let path = spec.path().field("terminationGracePeriodSeconds");
        out.push(format!(
            "{path}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    empty_selectors(spec, &mut out);
    if let Some(dns) = spec.given("dnsConfig") {
        for server in dns.each("nameservers") {
            ip_spelling(&server, &mut out);
        }
    }
    for alias in spec.each("hostAliases") {
        ip_spelling(&alias.at("ip"), &mut out);
    }
    out
}

/// Node labels that have a successor, or whose time is over.
fn deprecated_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        "beta.kubernetes.io/os" => r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
        "failure-domain.beta.kubernetes.io/region" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        }
        "beta.kubernetes.io/instance-type" => {
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => r#"use "node-role.kubernetes.io/control-plane" instead"#,
        _ => return None,
    })
}

fn node_labels(spec: &Cursor<'_>, out: &mut Vec<String>) {
    let selector = spec.raw("nodeSelector").and_then(Value::as_object);
    for (key, _) in selector.into_iter().flatten() {
        if let Some(advice) = deprecated_label(key) {
            out.push(format!("{}: {advice}", spec.path().field("nodeSelector").key(key)));
        }
    }
    if let Some(node) = spec.given("affinity").and_then(|a| a.given("nodeAffinity")) {
        let required = [
            "requiredDuringSchedulingIgnoredDuringExecution",
            "requiredDuringSchedulingRequiredDuringExecution",
        ];
        for required in required.iter().filter_map(|field| node.given(field)) {
            for term in required.each("nodeSelectorTerms") {
                node_selector_term(&term, false, out);
            }
        }
        for preferred in node.each("preferredDuringSchedulingIgnoredDuringExecution") {
            node_selector_term(&preferred.at("preference"), true, out);
        }
    }
    for constraint in spec.each("topologySpreadConstraints") {
        let key = constraint.text("topologyKey");
        if let Some(advice) = deprecated_label(key) {
            out.push(format!("{}: {key} is {advice}", constraint.path().field("topologyKey")));
        }
        needs_selector(&constraint, out);
    }
}

fn node_selector_term(term: &Cursor<'_>, check_values: bool, out: &mut Vec<String>) {
    for expression in term.each("matchExpressions") {
        let key = expression.text("key");
        if let Some(advice) = deprecated_label(key) {
            out.push(format!("{}: {key} is {advice}", expression.path().field("key")));
        }
        for value in expression.each("values").filter(|_| check_values) {
            for problem in names::label_value(value.str()) {
                out.push(format!("{}: {} is invalid, {problem}", value.path(), value.str()));
            }
        }
    }
}

fn needs_selector(term: &Cursor<'_>, out: &mut Vec<String>) {
    if !term.has("labelSelector") {
        let path = term.path().field("labelSelector");
        out.push(format!("{path}: a null labelSelector results in matching no pod"));
    }
}

fn empty_selectors(spec: &Cursor<'_>, out: &mut Vec<String>) {
    let Some(affinity) = spec.given("affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.given(kind) else { continue };
        for term in pods.each("requiredDuringSchedulingIgnoredDuringExecution") {
            needs_selector(&term, out);
        }
        for term in pods.each("preferredDuringSchedulingIgnoredDuringExecution") {
            needs_selector(&term.at("podAffinityTerm"), out);
        }
    }
}

fn annotations(metadata: &Cursor<'_>, out: &mut Vec<String>) {
    const DEPRECATED: [(&str, &str); 3] = [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
        ),
        (
            "security.alpha.kubernetes.io/sysctls",
            r#"non-functional in v1.11+; use the "sysctls" field instead"#,
        ),
        (
            "security.alpha.kubernetes.io/unsafe-sysctls",
            r#"non-functional in v1.11+; use the "sysctls" field instead"#,
        ),
    ];
    let Some(map) = metadata.raw("annotations") else { return };
    for (key, advice) in DEPRECATED {
        if map.get(key).is_some() {
            out.push(format!("{}: {advice}", metadata.path().field("annotations").key(key)));
        }
    }
}

/// Volume plugins of the past.
fn volumes(spec: &Cursor<'_>, out: &mut Vec<String>) {
    const GONE: [(&str, &str, &str); 9] = [
        (
            "photonPersistentDisk",
            "photonPersistentDisk",
            "deprecated in v1.11, non-functional in v1.16+",
        ),
        (
            "gitRepo",
            "gitRepo",
            "deprecated in v1.11, and disabled by default in v1.33+",
        ),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
        (
            "storageos",
            "storageOS",
            "deprecated in v1.22, non-functional in v1.25+",
        ),
        ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
        (
            "glusterfs",
            "glusterfs",
            "deprecated in v1.25, non-functional in v1.26+",
        ),
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    for volume in spec.each("volumes") {
        for (_, shown, advice) in GONE.iter().filter(|(field, ..)| volume.has(field)) {
            out.push(format!("{}: {advice}", volume.path().field(shown)));
        }
        let claim = volume
            .given("ephemeral")
            .and_then(|e| e.given("volumeClaimTemplate")?.given("spec"));
        if let Some(spec) = claim {
            out.extend(persistent_volume_claim::spec_warnings(&spec));
        }
    }
}

fn fractional(list: &Cursor<'_>, out: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let text = list.text(name);
        if Quantity::parse(text).is_ok_and(|q| q.milli_value() % 1000 != 0) {
            let path = list.path().key(name);
            out.push(format!(
                "{path}: fractional byte value {text:?} is invalid, must be an integer"
            ));
        }
    }
}

fn duplicates(spec: &Cursor<'_>, list: &'static str, field: &'static str, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for item in spec.each(list) {
        let value = item.text(field);
        if !seen.insert(value) {
            out.push(format!("{}: duplicate {field} {value:?}", item.path().field(field)));
        }
    }
}

/// Security profiles asked for by annotation only.
fn profiles(metadata: &Cursor<'_>, spec: &Cursor<'_>, is_template: bool, out: &mut Vec<String>) {
    const SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
    const APP_ARMOR: &str = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
    let Some(map) = metadata.raw("annotations").and_then(Value::as_object) else {
        return;
    };
    let mut warn = |key: &str, advice: &str| {
        out.push(format!("{}: {advice}", metadata.path().field("annotations").key(key)));
    };
    let has_field =
        |holder: &Cursor<'_>, field: &str| holder.raw("securityContext").is_some_and(|c| c.get(field).is_some());
    if map.contains_key(pod_spec::SECCOMP_POD) && !has_field(spec, "seccompProfile") {
        warn(pod_spec::SECCOMP_POD, SECCOMP);
    }
    let of_pod = spec.raw("securityContext").and_then(|c| c.get("appArmorProfile"));
    let windows = spec.given("os").is_some_and(|os| os.text("name") == "windows");
    for c in all_containers(spec) {
        let name = c.text("name");
        let key = format!("{}{name}", pod_spec::SECCOMP_PREFIX);
        if map.contains_key(&key) && !has_field(&c, "seccompProfile") {
            warn(&key, SECCOMP);
        }
        let key = format!("{}{name}", pod_spec::APP_ARMOR_PREFIX);
        let Some(annotation) = map.get(&key).and_then(Value::as_str) else {
            continue;
        };
        // A pod's annotation has already become the field; a template's stays as it is.
        let wanted = pod_spec::app_armor_from_annotation(annotation);
        let of_pod_already = wanted.is_some() && wanted.as_ref() == of_pod;
        let has_own = is_template && has_field(&c, "appArmorProfile");
        if !of_pod_already && !has_own && (is_template || !windows) {
            warn(&key, APP_ARMOR);
        }
    }
}

/// A variable named twice: the second hides the first, unless it is built from it.
fn hidden_variables(c: &Cursor<'_>, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for var in c.each("env") {
        let name = var.text("name");
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = var.text("value");
        if var.has("valueFrom") || value == reference || !value.contains(&reference) {
            out.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                var.path()
            ));
        }
    }
}

struct Port<'a> {
    at: Path,
    host_ip: &'a str,
    host_port: i64,
}

fn ports(spec: &Cursor<'_>, out: &mut Vec<String>) {
    let all: Vec<Cursor<'_>> = all_containers(spec)
        .flat_map(|c| c.each("ports").collect::<Vec<_>>())
        .collect();
    let mut seen: HashMap<(i64, &str), Vec<Port<'_>>> = HashMap::new();
    for port in &all {
        let (host_ip, host_port) = (port.text("hostIP"), port.number("hostPort").unwrap_or(0));
        let (number, protocol) = (port.number("containerPort").unwrap_or(0), port.text("protocol"));
        let path = port.path();
        if !host_ip.is_empty() && host_port == 0 {
            out.push(format!(
                "{path}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{number} \
                 Protocol:{protocol} HostIP:{host_ip}}}",
                port.text("name")
            ));
        }
        let others = seen.entry((number, protocol)).or_default();
        for other in others.iter() {
            let what = if host_ip == other.host_ip && host_port == other.host_port {
                "duplicate"
            } else if host_port == 0 || other.host_port == 0 {
                "overlapping"
            } else if host_port == other.host_port && host_ip.is_empty() != other.host_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            out.push(format!("{path}: {what} port definition with {}", other.at));
        }
        // Past this many on one port the advice is clear, and comparing all with all would take too long.
        if others.len() < 100 {
            others.push(Port {
                at: path.clone(),
                host_ip,
                host_port,
            });
        }
    }
    let mut by_name: HashMap<&str, &Path> = HashMap::new();
    for port in all.iter().filter(|port| !port.text("name").is_empty()) {
        let name = port.text("name");
        match by_name.get(name) {
            Some(other) => out.push(format!(
                "{}: duplicate port name {name:?} with {other}, services and probes that select ports by name will \
                 use {other}",
                port.path()
            )),
            None => {
                by_name.insert(name, port.path());
            }
        }
    }
}

/// An address that is valid but not spelled as it should be.
fn ip_spelling(c: &Cursor<'_>, out: &mut Vec<String>) {
    let text = c.str();
    if let Ok(IpAddr::V6(ip)) = text.parse::<IpAddr>()
        && ip.to_string() != text
    {
        let path = c.path();
        out.push(format!(
            "{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{ip}\")"
        ));
    }
}

/// A path in a volume and the source it comes from.
type Placed<'a> = (&'a str, String);

/// Files of one volume that get in each other's way.
fn overlapping_paths(spec: &Cursor<'_>, out: &mut Vec<String>) {
    for volume in spec.list("volumes") {
        let name = text(volume, "/name");
        let single = [("configMap", "ConfigMap", "/name"), ("secret", "Secret", "/secretName")];
        for (field, kind, of) in single {
            if let Some(source) = volume.get(field) {
                let mut placed = vec![];
                let title = format!("{kind} {:?}", text(source, of));
                place(name, &title, item_paths(source, ""), &mut placed, out);
            }
        }
        if let Some(source) = volume.get("downwardAPI") {
            place(name, "DownwardAPI", item_paths(source, ""), &mut vec![], out);
        }
        let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
        let mut placed = vec![];
        for source in sources.into_iter().flatten() {
            match source.as_object() {
                Some(map) if !map.is_empty() => {
                    place(name, "Projected", projected_paths(source), &mut placed, out);
                }
                _ => out.push(format!("volume {name:?} (Projected) has no sources provided")),
            }
        }
    }
}

fn item_paths<'a>(source: &'a Value, title: &str) -> Vec<Placed<'a>> {
    let items = source.get("items").and_then(Value::as_array);
    items
        .into_iter()
        .flatten()
        .map(|i| (text(i, "/path"), title.to_string()))
        .collect()
}

fn projected_paths(source: &Value) -> Vec<Placed<'_>> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if let Some(s) = source.get(field).filter(|s| s.get("items").is_some()) {
            return item_paths(s, &format!("{kind} {:?}", text(s, "/name")));
        }
    }
    if let Some(s) = source.get("downwardAPI").filter(|s| s.get("items").is_some()) {
        return item_paths(s, "DownwardAPI");
    }
    match source.get("serviceAccountToken") {
        Some(token) => vec![(text(token, "/path"), "ServiceAccountToken".to_string())],
        None => vec![],
    }
}

fn place<'a>(volume: &str, title: &str, paths: Vec<Placed<'a>>, placed: &mut Vec<Placed<'a>>, out: &mut Vec<String>) {
    let shown = |(path, source): &Placed<'_>| match source.as_str() {
        "" => format!("{path:?}"),
        source => format!("{path:?} ({source})"),
    };
    for (path, source) in paths {
        let new = (path.trim_end_matches('/'), source);
        if new.0.is_empty() {
            continue;
        }
        for old in placed.iter().filter(|old| within(old.0, new.0) || within(new.0, old.0)) {
            let body = format!("{} with {}", shown(&new), shown(old));
            out.push(format!("volume {volume:?} ({title}): overlapping paths: {body}"));
        }
        // As with ports: enough is enough.
        if placed.len() < 1000 {
            placed.push(new);
        }
    }
}

/// `path` is `base` or lies below it.
fn within(path: &str, base: &str) -> bool {
    path.strip_prefix(base)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
