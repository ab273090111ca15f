//! Environment variables and where their values come from.

use std::collections::HashMap;

use serde_json::Value;

use super::Read;
use super::volume_sources::no_backsteps;
use crate::field::{Cursor, ProblemKind, Problems};
use crate::names;
use crate::quantity::Quantity;

/// Fields that a variable may show.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields that a file of a downward API volume may show.
pub(super) const VOLUME_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
];

/// All fields that exist for the downward API anywhere.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

pub(super) fn validate(container: &Cursor<'_>, p: &mut Problems) {
    for var in container.each("env") {
        let name = var.text("name");
        if name.is_empty() {
            p.required(&var.at("name"), "");
        } else {
            p.invalid_each(&var.at("name"), names::env_var_name(name));
        }
        if let Some(from) = var.given("valueFrom") {
            value_from(&from, !var.text("value").is_empty(), p);
        }
    }
    if let Some(list) = container.given("envFrom") {
        for source in list.items() {
            env_from(&list, &source, p);
        }
    }
}

fn value_from(from: &Cursor<'_>, has_value: bool, p: &mut Problems) {
    let mut sources = 0;
    let mut source = |name| {
        let found = from.given(name);
        sources += usize::from(found.is_some());
        found
    };
    if let Some(field) = source("fieldRef") {
        field_ref(&field, ENV_FIELDS, p);
    }
    if let Some(resource) = source("resourceFieldRef") {
        resource_field_ref(&resource, false, p);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(key) = source(name) {
            key_ref(&key, p);
        }
    }
    if let Some(file) = source("fileKeyRef") {
        file_key_ref(&file, p);
    }
    let complaint = match sources {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if has_value => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    p.invalid_value(from.path(), &Value::from(""), complaint);
}

fn env_from(list: &Cursor<'_>, source: &Cursor<'_>, p: &mut Problems) {
    if let Some(prefix) = source.given("prefix").filter(|x| !x.is_empty()) {
        p.invalid_each(&prefix, names::env_var_name(prefix.str()));
    }
    let mut sources = 0;
    for field in ["configMapRef", "secretRef"] {
        let Some(reference) = source.given(field) else { continue };
        sources += 1;
        let name = reference.text("name");
        if name.is_empty() {
            p.required(&reference.at("name"), "");
        } else {
            // A name that is still to be completed may end in a hyphen.
            let stem = name.strip_suffix('-').filter(|s| !s.is_empty()).unwrap_or(name);
            p.invalid_each(&reference.at("name"), names::dns_subdomain(stem));
        }
    }
    let complaint = match sources {
        0 => "must specify one of: `configMapRef` or `secretRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    p.invalid_value(list.path(), &Value::from(""), complaint);
}

fn key_ref(c: &Cursor<'_>, p: &mut Problems) {
    let problems = names::dns_subdomain(c.text("name"));
    if !problems.is_empty() {
        let name = Value::from(c.text("name"));
        for problem in problems {
            p.invalid_value(&c.path().field("name"), &name, problem);
        }
    }
    let key = c.text("key");
    if key.is_empty() {
        p.required(&c.at("key"), "");
    } else {
        p.invalid_each(&c.at("key"), names::config_key(key));
    }
}

fn file_key_ref(c: &Cursor<'_>, p: &mut Problems) {
    let rules: [(&'static str, names::Rule); 2] = [("key", names::env_var_name), ("volumeName", names::dns_label)];
    for (field, rule) in rules {
        let text = c.text(field);
        if text.is_empty() {
            p.required(&c.at(field), "");
        } else {
            p.invalid_each(&c.at(field), rule(text));
        }
    }
    let path = c.at("path");
    if path.is_empty() {
        p.required(&path, "");
    } else {
        no_backsteps(&path, path.path(), p);
    }
}

/// `metadata.labels['app']` → ("metadata.labels", Some("app")).
fn split_subscript(path: &str) -> (&str, Option<&str>) {
    match path.strip_suffix("']").and_then(|s| s.split_once("['")) {
        Some((name, key)) if !name.is_empty() => (name, Some(key)),
        _ => (path, None),
    }
}

pub(super) fn field_ref(c: &Cursor<'_>, allowed: &[&str], p: &mut Problems) {
    for field in ["apiVersion", "fieldPath"] {
        if c.text(field).is_empty() {
            return p.required(&c.at(field), "");
        }
    }
    let path = c.at("fieldPath");
    let refuse = |p: &mut Problems, why: String| p.invalid(&path, format!("error converting fieldPath: {why}"));
    if c.text("apiVersion") != "v1" {
        return refuse(p, format!("unsupported pod version: {}", c.text("apiVersion")));
    }
    let (name, key) = split_subscript(path.str());
    let Some(key) = key else {
        if !KNOWN_FIELDS.contains(&name) {
            return refuse(p, format!("field label not supported: {name}"));
        }
        let name = if name == "spec.host" { "spec.nodeName" } else { name };
        if !allowed.contains(&name) {
            p.not_supported(&path, allowed);
        }
        return;
    };
    let problems = match name {
        "metadata.annotations" => names::qualified_name(&key.to_lowercase()),
        "metadata.labels" => names::qualified_name(key),
        _ => return refuse(p, format!("field label does not support subscript: {}", path.str())),
    };
    for problem in problems {
        p.invalid_value(c.path(), &Value::from(key), problem);
    }
}

pub(super) fn resource_field_ref(c: &Cursor<'_>, in_volume: bool, p: &mut Problems) {
    let resource = c.text("resource");
    let hugepages = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if in_volume && c.text("containerName").is_empty() {
        p.required(&c.at("containerName"), "");
    } else if resource.is_empty() {
        p.required(&c.at("resource"), "");
    } else if !RESOURCES.contains(&resource) && !hugepages {
        p.not_supported(&c.at("resource"), RESOURCES);
    }
    divisor(c, resource, hugepages, p);
}

const CPU_DIVISORS: &str = "1m and 1";
const BYTE_DIVISORS: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";

fn divisor(c: &Cursor<'_>, resource: &str, hugepages: bool, p: &mut Problems) {
    let text = c.text("divisor");
    if text.is_empty() || Quantity::parse(text).is_ok_and(|q| q.is_zero()) {
        return;
    }
    let what = match resource {
        "limits.cpu" | "requests.cpu" => "cpu",
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if hugepages => "hugepages",
        _ => return,
    };
    let (fine, values) = match what {
        "cpu" => (matches!(text, "1" | "1m"), CPU_DIVISORS),
        _ => (BYTE_DIVISORS.split(", ").any(|d| d == text), BYTE_DIVISORS),
    };
    if !fine {
        let detail = format!("only divisor's values {values} are supported with the {what} resource");
        p.invalid_value(c.at("divisor").path(), &Value::from(resource), detail);
    }
}

/// Variables read from files need a volume that containers of the pod share: an emptyDir.
pub(super) fn file_volumes(spec: &Cursor<'_>, p: &mut Problems) {
    let mut volumes: Option<HashMap<&str, &Value>> = None;
    for container in super::all_containers(spec) {
        if !container
            .list("env")
            .iter()
            .any(|v| v.pointer("/valueFrom/fileKeyRef").is_some())
        {
            continue;
        }
        let volumes = volumes.get_or_insert_with(|| {
            let list = spec.list("volumes").iter();
            list.filter_map(|v| Some((v.get("name")?.as_str()?, v))).collect()
        });
        for var in container.each("env") {
            let Some(file) = var.given("valueFrom").and_then(|f| f.given("fileKeyRef")) else {
                continue;
            };
            let name = file.at("volumeName");
            match volumes.get(name.str()) {
                None => p.push(
                    ProblemKind::NotFound,
                    name.path(),
                    Some(Value::from(name.str()).to_string()),
                    "",
                ),
                Some(volume) if volume.get("emptyDir").is_none() => {
                    p.invalid(&name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}
