//! Nodes. Upstream: pkg/registry/core/node/strategy.go, ValidateNode, ValidateNodeUpdate (v1.36).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::resource_rules::{round_up, validate_quantity};
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::kind::{Column, KindDef, SelectableField, Subresource, copy_member, keep_status};
use crate::meta::invalid_text;
use crate::{fill, ip, meta, names, printing};

pub const DEF: KindDef = KindDef {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    schema: "core/v1.Node",
    subresources: &[
        Subresource {
            name: "proxy",
            group: "",
            version: "",
            kind: "NodeProxyOptions",
            verbs: &["create", "delete", "get", "patch", "update"],
        },
        Subresource::STATUS,
    ],
    fields: &[SelectableField {
        name: "spec.unschedulable",
        read: Some(|node| is_unschedulable(node).to_string()),
    }],
    columns: &[
        Column::string("Status"),
        Column::string("Roles"),
        Column::AGE,
        Column::string("Version"),
        Column::wide("Internal-IP"),
        Column::wide("External-IP"),
        Column::wide("OS-Image"),
        Column::wide("Kernel-Version"),
        Column::wide("Container-Runtime"),
    ],
    cells,
    default,
    prepare_create,
    prepare_update,
    prepare_status,
    validate,
    validate_update,
    validate_status,
    warnings,
    ..KindDef::BASE
};

const TAINTS_ANNOTATION: &str = "scheduler.alpha.kubernetes.io/taints";

fn is_unschedulable(node: &Value) -> bool {
    node.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
}

/// `podCIDR` is the first of `podCIDRs` (where they differ the former is meant); all capacity is allocatable unless said
/// otherwise.
fn default(node: &mut Value) {
    let spec = fill::member(node, "spec");
    let first = spec
        .pointer("/podCIDRs/0")
        .and_then(Value::as_str)
        .unwrap_or("")
        .to_string();
    let single = printing::text(spec, "/podCIDR").to_string();
    if single.is_empty() && !first.is_empty() {
        spec["podCIDR"] = first.into();
    } else if single != first {
        spec["podCIDRs"] = json!([single]);
    }
    let status = fill::member(node, "status");
    if let Some(capacity) = status.get("capacity").cloned() {
        fill::absent(status, "allocatable", capacity);
    }
    round_up(status, "capacity");
    round_up(status, "allocatable");
}

fn remove(object: &mut Value, name: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(name);
    }
}

/// A kubelet registers itself with its status; only what is no longer supported is dropped.
fn prepare_create(node: &mut Value) {
    remove(fill::member(node, "spec"), "configSource");
    remove(fill::member(node, "status"), "config");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    if old.pointer("/spec/configSource").is_none() {
        remove(fill::member(new, "spec"), "configSource");
    }
}

fn prepare_status(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
    if old.pointer("/status/config").is_none() {
        remove(fill::member(new, "status"), "config");
    }
}

fn validate(node: &Cursor<'_>, p: &mut Problems) {
    let metadata = node.at("metadata");
    validate_annotations(node, p);
    // Upstream reports taints under metadata.
    let taints = Cursor::new(node.at("spec").at("taints").value(), metadata.path().field("taints"));
    validate_taints(&taints, p);
    let status = node.at("status");
    validate_resources(&status, p);
    let swap = status.at("nodeInfo").at("swap").at("capacity");
    if swap.as_i64().is_some_and(|n| n <= 0) {
        let path = metadata.path().field("nodeSwapStatus").field("capacity");
        p.invalid_value(&path, &json!(swap.as_i64()), "must be greater than zero");
    }
    validate_declared_features(&status.at("declaredFeatures"), p);
    let cidrs = node.at("spec").at("podCIDRs");
    for cidr in cidrs.items() {
        ip::validate_cidr(&cidr, p);
    }
    let families: BTreeSet<_> = cidrs
        .items()
        .map(|c| ip::parse_network(c.str()).map(|(ip, _)| ip.is_ipv4()))
        .collect();
    if cidrs.len() > 2 || (cidrs.len() == 2 && families.len() < 2) {
        p.invalid(&cidrs, "may specify no more than one CIDR for each IP family");
    }
}

/// Taints once stood in an annotation; they are still looked at there.
fn validate_annotations(node: &Cursor<'_>, p: &mut Problems) {
    let Some(text) = meta::annotation(node, TAINTS_ANNOTATION).filter(|t| !t.is_empty()) else {
        return;
    };
    let path = Path::default().field("metadata").field("annotations");
    match serde_json::from_str::<Vec<Value>>(text) {
        Ok(taints) => {
            let taints = Value::Array(taints);
            validate_taints(&Cursor::new(Some(&taints), path.field(TAINTS_ANNOTATION)), p);
        }
        Err(e) => p.invalid_value(&path, &json!(TAINTS_ANNOTATION), e.to_string()),
    }
}

fn validate_taints(taints: &Cursor<'_>, p: &mut Problems) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut seen = BTreeSet::new();
    for taint in taints.items() {
        let (key, value, effect) = (taint.at("key"), taint.at("value"), taint.at("effect"));
        meta::validate_label_key(key.str(), key.path(), p);
        let messages = names::label_value(value.str());
        if !messages.is_empty() {
            p.invalid(&value, messages.join(";"));
        }
        if effect.is_empty() {
            p.required(&effect, "");
        } else if !EFFECTS.contains(&effect.str()) {
            meta::not_supported(&effect, &EFFECTS, p);
        }
        if !seen.insert((key.str(), effect.str())) {
            // As upstream prints its inner form of a taint.
            let shown = format!(
                r#"{{"Key":{:?},"Value":{:?},"Effect":{:?},"TimeAdded":{}}}"#,
                key.str(),
                value.str(),
                effect.str(),
                crate::field::shown(taint.at("timeAdded").value())
            );
            let detail = "taints must be unique by key and effect pair";
            p.push(ProblemKind::Duplicate, taint.path(), Some(shown), detail);
        }
    }
}

fn validate_resources(status: &Cursor<'_>, p: &mut Problems) {
    for list in [status.at("capacity"), status.at("allocatable")] {
        for (name, quantity) in list.entries() {
            let before = p.0.len();
            validate_quantity(name, &quantity, p);
            // Upstream takes the name for a field, not for a key.
            for problem in &mut p.0[before..] {
                problem.field = format!("{}.{name}", list.path());
            }
        }
    }
}

/// `MyFeature` or `MyFeature/mySubFeature`, sorted and each once.
fn validate_declared_features(features: &Cursor<'_>, p: &mut Problems) {
    let mut previous: Option<&str> = None;
    for feature in features.items() {
        let name = feature.str();
        if let Some(previous) = previous {
            if previous == name {
                p.duplicate(&feature);
            } else if previous > name {
                p.invalid(&feature, "list must be sorted alphabetically");
            }
        }
        previous = Some(name);
        if name.len() > 253 {
            p.invalid(
                &feature,
                format!("invalid feature name {name:?}: must be no more than 253 characters"),
            );
        } else if !is_feature_name(name) {
            p.invalid(
                &feature,
                format!("invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"),
            );
        }
    }
}

fn is_feature_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('/').all(|segment| {
            segment.starts_with(|c: char| c.is_ascii_alphabetic()) && segment.bytes().all(|b| b.is_ascii_alphanumeric())
        })
}

/// What may not change; the addresses are looked at here because a new node may have none yet.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for address in new.at("status").at("addresses").items() {
        let (kind, text) = (address.at("type").str(), address.at("address").str());
        if !seen.insert((kind, text)) {
            let shown = format!(r#"{{"Type":{kind:?},"Address":{text:?}}}"#);
            p.push(ProblemKind::Duplicate, address.path(), Some(shown), "");
        }
    }
    let (spec, before) = (new.at("spec"), old.at("spec"));
    let (cidrs, old_cidrs) = (spec.at("podCIDRs"), before.at("podCIDRs"));
    if !old_cidrs.is_empty() {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        let changed = cidrs
            .items()
            .zip(old_cidrs.items())
            .filter(|(a, b)| a.str() != b.str())
            .count();
        let times = if cidrs.len() == old_cidrs.len() { changed } else { 1 };
        for _ in 0..times {
            p.forbidden(&cidrs, detail);
        }
    }
    let (provider, old_provider) = (spec.at("providerID"), before.at("providerID"));
    if !old_provider.is_empty() && provider.str() != old_provider.str() {
        p.forbidden(
            &provider,
            "node updates may not change providerID except from \"\" to valid",
        );
    }
    let source = spec.at("configSource");
    if source.exists() {
        validate_config_source(&source, false, p);
    }
    for field in ["assigned", "active", "lastKnownGood"] {
        let source = new.at("status").at("config").at(field);
        if source.exists() {
            validate_config_source(&source, true, p);
        }
    }
    if spec.at("externalID").str() != before.at("externalID").str() {
        p.forbidden(&spec.at("externalID"), "may not be updated");
    }
}

/// A kubelet's configuration from a ConfigMap: without effect for long, but old objects may have it.
fn validate_config_source(source: &Cursor<'_>, in_status: bool, p: &mut Problems) {
    let map = source.at("configMap");
    if !map.exists() {
        return p.invalid(source, "exactly one reference subfield must be non-nil");
    }
    for (field, detail) in [
        ("uid", "uid must not be set in spec"),
        ("resourceVersion", "resourceVersion must not be set in spec"),
    ] {
        match (in_status, map.at(field).is_empty()) {
            (true, true) => p.required(&map.at(field), ""),
            (false, false) => p.forbidden(&map.at(field), detail),
            _ => {}
        }
    }
    for (field, rule) in [
        ("namespace", names::dns_label as names::Rule),
        ("name", names::dns_subdomain),
        ("kubeletConfigKey", names::config_key),
    ] {
        let value = map.at(field);
        if value.is_empty() {
            p.required(&value, "");
        }
        for message in rule(value.str()).into_iter().filter(|_| !value.is_empty()) {
            invalid_text(&value, message, p);
        }
    }
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    validate_annotations(new, p);
    validate_resources(&new.at("status"), p);
    validate_declared_features(&new.at("status").at("declaredFeatures"), p);
    validate_update(new, old, p);
}

fn warnings(node: &Cursor<'_>, _old: Option<&Cursor<'_>>) -> Vec<String> {
    let spec = node.at("spec");
    let mut out = vec![];
    if spec.at("configSource").exists() {
        out.push("spec.configSource: the feature is removed".to_string());
    }
    if !spec.at("externalID").is_empty() {
        out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_string());
    }
    let cidrs = spec.at("podCIDRs");
    out.extend(cidrs.items().flat_map(|c| ip::cidr_warnings(c.path(), c.str())));
    out
}

fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let c = Cursor::root(node);
    let ready = c
        .at("status")
        .at("conditions")
        .items()
        .find(|c| c.at("type").str() == "Ready");
    let mut status = match ready.map(|r| r.at("status").str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_string();
    if is_unschedulable(node) {
        status.push_str(",SchedulingDisabled");
    }
    let info = |field: &str| match printing::text(node, &format!("/status/nodeInfo/{field}")) {
        "" => "<unknown>".to_string(),
        text => text.to_string(),
    };
    let mut kernel = info("kernelVersion");
    let architecture = printing::text(node, "/status/nodeInfo/architecture");
    if !architecture.is_empty() {
        kernel.push_str(&format!(" ({architecture})"));
    }
    let address = |kind: &str| {
        let addresses = c.at("status").at("addresses");
        let found = addresses.items().find(|a| a.at("type").str() == kind);
        found.map_or("<none>", |a| a.at("address").str())
    };
    vec![
        status.into(),
        roles(&c).into(),
        printing::age(node, now),
        printing::text(node, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        info("osImage").into(),
        kernel.into(),
        info("containerRuntimeVersion").into(),
    ]
}

/// From `node-role.kubernetes.io/<role>` and `kubernetes.io/role=<role>`, sorted.
fn roles(node: &Cursor<'_>) -> String {
    let labels = node.at("metadata").at("labels");
    let roles: BTreeSet<&str> = labels
        .entries()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => Some(value.str()),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        return "<none>".to_string();
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, refuses_update, row, status_problems};

    #[test]
    fn defaults_and_preparation() {
        for (spec, wanted) in [
            (
                json!({"podCIDR": "10.0.0.0/24"}),
                json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}),
            ),
            (
                json!({"podCIDRs": ["10.0.0.0/24"]}),
                json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}),
            ),
            (
                json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.1.0/24", "fd00::/64"]}),
                json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}),
            ),
            (json!({}), json!({})),
        ] {
            assert_eq!(defaulted(&DEF, json!({"spec": spec}))["spec"], wanted);
        }
        let mut node = defaulted(
            &DEF,
            json!({"spec": {"configSource": {}}, "status": {"capacity": {"cpu": "4"}}}),
        );
        (DEF.prepare_create)(&mut node);
        assert_eq!(
            node,
            json!({"spec": {}, "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}})
        );
        assert_eq!(DEF.fields[0].value(&node), "false");
    }

    #[test]
    fn rules() {
        let taints = |list: Value| json!({"spec": {"taints": list}});
        let upper = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
        refuses(
            &DEF,
            &json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]}}),
            &[
                (
                    taints(json!([{"key": "a"}])),
                    "metadata.taints[0].effect: Required value",
                ),
                (
                    taints(json!([{"key": "a", "effect": "Stop"}])),
                    "metadata.taints[0].effect: Unsupported value: \"Stop\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
                ),
                (
                    taints(
                        json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "value": "b", "effect": "NoExecute"}]),
                    ),
                    "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"b\",\"Effect\":\"NoExecute\",\"TimeAdded\":null}: taints must be unique by key and effect pair",
                ),
                (
                    json!({"metadata": {"annotations": {TAINTS_ANNOTATION: "[{\"key\":\"a\"}]"}}}),
                    "metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].effect: Required value",
                ),
                (
                    json!({"status": {"capacity": {"memory": "-1"}, "allocatable": {"memory": "1"}}}),
                    "status.capacity.memory: Invalid value: \"-1\": must be greater than or equal to 0",
                ),
                (
                    json!({"status": {"allocatable": {"x.io/gpu": "500m"}}}),
                    "status.allocatable.x.io/gpu: Invalid value: \"500m\": must be an integer",
                ),
                (
                    json!({"status": {"nodeInfo": {"swap": {"capacity": 0}}}}),
                    "metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero",
                ),
                (
                    json!({"status": {"declaredFeatures": ["B", "A"]}}),
                    "status.declaredFeatures[1]: Invalid value: \"A\": list must be sorted alphabetically",
                ),
                (
                    json!({"status": {"declaredFeatures": ["A", "A/b", "A/b"]}}),
                    "status.declaredFeatures[2]: Duplicate value: \"A/b\"",
                ),
                (
                    json!({"status": {"declaredFeatures": ["a"]}}),
                    &format!("status.declaredFeatures[0]: Invalid value: \"a\": invalid feature name \"a\": {upper}"),
                ),
                (
                    json!({"spec": {"podCIDRs": ["10.0.0.0/33"]}}),
                    "spec.podCIDRs[0]: Invalid value: \"10.0.0.0/33\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                ),
                (
                    json!({"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}}),
                    "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
                ),
            ],
        );
    }

    #[test]
    fn what_may_not_change() {
        let cidr = "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid";
        refuses_update(
            &DEF,
            &json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "podCIDR": "10.0.0.0/24", "providerID": "x"}, "status": {}}),
            &[
                (json!({"spec": {"podCIDRs": ["10.0.1.0/24"], "podCIDR": null}}), cidr),
                (json!({"spec": {"podCIDRs": null, "podCIDR": null}}), cidr),
                (
                    json!({"spec": {"providerID": "y"}}),
                    "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
                ),
                (
                    json!({"spec": {"externalID": "e"}}),
                    "spec.externalID: Forbidden: may not be updated",
                ),
            ],
        );
        refuses_update(
            &DEF,
            &json!({"spec": {"configSource": {"configMap": {"name": "a", "namespace": "b", "kubeletConfigKey": "c"}}}, "status": {}}),
            &[
                (
                    json!({"spec": {"configSource": {"configMap": null}}}),
                    "spec.configSource: Invalid value: {}: exactly one reference subfield must be non-nil",
                ),
                (
                    json!({"spec": {"configSource": {"configMap": {"uid": "u"}}}}),
                    "spec.configSource.configMap.uid: Forbidden: uid must not be set in spec",
                ),
                (
                    json!({"spec": {"configSource": {"configMap": {"name": ""}}}}),
                    "spec.configSource.configMap.name: Required value",
                ),
            ],
        );
        let address = json!({"type": "InternalIP", "address": "1.1.1.1"});
        let node = json!({"spec": {}, "status": {"addresses": [address, address]}});
        assert_eq!(
            status_problems(&DEF, node, json!({"spec": {}, "status": {}})),
            ["status.addresses[1]: Duplicate value: {\"Type\":\"InternalIP\",\"Address\":\"1.1.1.1\"}"]
        );
    }

    #[test]
    fn rows() {
        let node = json!({
            "metadata": {
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "db", "a": "b"}},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Linux", "kernelVersion": "6.1", "architecture": "amd64"}}});
        assert_eq!(
            row(&DEF, &node),
            "Ready,SchedulingDisabled|control-plane,db|10m|v1.36.0|10.0.0.1|<none>|Linux|6.1 (amd64)|<unknown>"
        );
        assert_eq!(DEF.fields[0].value(&node), "true");
        assert!(row(&DEF, &json!({})).starts_with("Unknown|<none>|<unknown>||"));
    }
}
