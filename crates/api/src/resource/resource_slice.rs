//! ResourceSlice: a part of a pool of devices, published by a driver.
//!
//! Fields that belong to gates which are off in 1.36 (lists as attributes, mappings to node resources) are dropped.

use serde_json::{Value, json};

use super::device;
use super::{unique, within};
use crate::core::pod_spec;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, SelectableField};
use crate::printing::{age, text};
use crate::{fill, names, rules, storage};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "ResourceSlice",
    plural: "resourceslices",
    singular: "resourceslice",
    namespaced: false,
    schema: "resource/v1.ResourceSlice",
    fields: &[SelectableField::at("spec.nodeName"), SelectableField::at("spec.driver")],
    columns: &[
        Column::string("Node"),
        Column::string("Driver"),
        Column::string("Pool"),
        Column::AGE,
    ],
    cells: |slice, now| {
        vec![
            text(slice, "/spec/nodeName").into(),
            text(slice, "/spec/driver").into(),
            text(slice, "/spec/pool/name").into(),
            age(slice, now),
        ]
    },
    prepare_create: |slice| {
        drop_gated(slice);
        date_taints(slice);
    },
    prepare_update: |new, _| drop_gated(new),
    validate: |slice, p| validate_spec(&slice.at("spec"), p),
    validate_update,
    warnings: |slice, _| warnings(slice.at("spec").at("driver").str()),
    generation: true,
    ..KindDef::BASE
};

fn drop_gated(slice: &mut Value) {
    let Some(spec) = slice.get_mut("spec") else { return };
    for device in fill::items(spec, "devices") {
        if let Some(map) = device.as_object_mut() {
            map.remove("nodeAllocatableResourceMappings");
        }
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut);
        for attribute in attributes.into_iter().flat_map(|a| a.values_mut()) {
            for list in ["bools", "ints", "strings", "versions"] {
                attribute.as_object_mut().map(|a| a.remove(list));
            }
        }
    }
}

/// A taint is as old as the slice that brings it, unless it says otherwise.
fn date_taints(slice: &mut Value) {
    let Some(now) = slice
        .pointer("/metadata/creationTimestamp")
        .filter(|t| t.is_string())
        .cloned()
    else {
        return;
    };
    let Some(spec) = slice.get_mut("spec") else { return };
    for taint in fill::items(spec, "devices").flat_map(|device| fill::items(device, "taints")) {
        fill::absent(taint, "timeAdded", now.clone());
    }
}

const DEVICES_MAX: usize = 128;
/// With taints or counters a device takes more room.
const LARGE_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;

fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    storage::validate_driver_name(&spec.at("driver"), p);
    let pool = spec.at("pool");
    super::validate_pool_name(&pool.at("name"), p);
    let (count, generation) = (pool.at("resourceSliceCount"), pool.at("generation"));
    if count.as_i64().unwrap_or(0) <= 0 {
        let shown = json!(count.as_i64().unwrap_or(0));
        p.invalid_value(count.path(), &shown, "must be greater than zero");
    }
    if generation.as_i64().is_some_and(|n| n < 0) {
        p.invalid(&generation, "must be greater than or equal to zero");
    }
    validate_place(spec, p);
    let (devices, counters) = (spec.at("devices"), spec.at("sharedCounters"));
    if devices.exists() && counters.exists() {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        p.invalid_value(spec.path(), &json!(""), detail);
    }
    let large = devices
        .items()
        .any(|d| !d.at("taints").is_empty() || !d.at("consumesCounters").is_empty());
    if within(&devices, if large { LARGE_DEVICES_MAX } else { DEVICES_MAX }, p) {
        for device in devices.items() {
            device::validate(&device, spec.at("perDeviceNodeSelection").is_true(), p);
        }
        unique(&devices, |d| d.at("name").str().to_string(), p);
    }
    if within(&counters, COUNTER_SETS_MAX, p) {
        for set in counters.items() {
            rules::required(&set.at("name"), names::dns_label, p);
            validate_counters(&set.at("counters"), p);
        }
        unique(&counters, |s| s.at("name").str().to_string(), p);
    }
}

/// Named counters, of a set or of what a device takes from one.
pub(super) fn validate_counters(counters: &Cursor<'_>, p: &mut Problems) {
    if counters.is_empty() {
        p.required(counters, "");
    } else if within(counters, COUNTERS_MAX, p) {
        for (name, _) in counters.entries() {
            super::complain(counters.path(), name, names::dns_label(name), p);
        }
    }
}

/// Where the devices can be used: exactly one of four ways to say it.
fn validate_place(spec: &Cursor<'_>, p: &mut Problems) {
    let mut set = vec![];
    let node = spec.at("nodeName");
    if node.exists() && node.is_empty() {
        p.invalid(&node, "must be either unset or set to a non-empty string");
    } else if node.exists() {
        set.push("`nodeName`");
        p.invalid_each(&node, names::dns_subdomain(node.str()));
    }
    let selector = spec.at("nodeSelector");
    if selector.exists() {
        set.push("`nodeSelector`");
        pod_spec::validate_node_selector(&selector, p);
        let terms = selector.at("nodeSelectorTerms");
        if terms.len() != 1 {
            p.invalid(&terms, "must have exactly one node selector term");
        }
    }
    for (field, name) in [
        ("allNodes", "`allNodes`"),
        ("perDeviceNodeSelection", "`perDeviceNodeSelection`"),
    ] {
        let c = spec.at(field);
        match c.as_bool() {
            Some(true) => set.push(name),
            Some(false) => p.invalid(&c, "must be either unset or set to true"),
            None => {}
        }
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => p.required(spec, detail),
        1 => {}
        _ => {
            let shown = json!(format!("{{{}}}", set.join(", ")));
            p.invalid_value(spec.path(), &shown, format!("{detail}, but multiple fields are set"));
        }
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (new.at("spec"), old.at("spec"));
    p.immutable(&new.at("pool").at("name"), &old.at("pool").at("name"));
    p.immutable(&new.at("driver"), &old.at("driver"));
    p.immutable(&new.at("nodeName"), &old.at("nodeName"));
}

fn warnings(driver: &str) -> Vec<String> {
    match driver == driver.to_lowercase() {
        true => vec![],
        false => vec![format!(
            "spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{merged, refuses, refuses_update, row};

    fn slice() -> Value {
        json!({"spec": {"driver": "d.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}})
    }

    #[test]
    fn slices_are_checked() {
        let spec = |patch: Value| json!({"spec": patch});
        let devices = |n: usize, patch: Value| -> Vec<Value> {
            (0..n)
                .map(|i| merged(&json!({"name": format!("d{i}")}), &patch))
                .collect()
        };
        let taint = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        refuses(
            &DEF,
            &slice(),
            &[
                (spec(json!({"driver": null})), "spec.driver: Required value"),
                (spec(json!({"pool": {"name": null}})), "spec.pool.name: Required value"),
                (
                    spec(json!({"pool": {"resourceSliceCount": 0}})),
                    "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                ),
                (
                    spec(json!({"pool": {"generation": -1}})),
                    "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
                ),
                (
                    spec(json!({"nodeName": null})),
                    "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
                ),
                (
                    spec(json!({"allNodes": true})),
                    r#"spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"#,
                ),
                (
                    spec(json!({"allNodes": false})),
                    "spec.allNodes: Invalid value: false: must be either unset or set to true",
                ),
                (
                    spec(json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [{}, {}]}})),
                    "spec.nodeSelector.nodeSelectorTerms: Invalid value: [{},{}]: must have exactly one node selector term",
                ),
                (
                    spec(
                        json!({"devices": devices(1, json!({})), "sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}]}),
                    ),
                    r#"spec: Invalid value: "": only one of `sharedCounters` or `devices` is allowed"#,
                ),
                (
                    spec(json!({"devices": devices(129, json!({}))})),
                    "spec.devices: Too many: 129: must have at most 128 items",
                ),
                (
                    spec(json!({"devices": devices(65, taint)})),
                    "spec.devices: Too many: 65: must have at most 64 items",
                ),
                (
                    spec(json!({"devices": [{"name": "d"}, {"name": "d"}]})),
                    r#"spec.devices[1]: Duplicate value: "d""#,
                ),
                (
                    spec(json!({"sharedCounters": [{"name": "s"}]})),
                    "spec.sharedCounters[0].counters: Required value",
                ),
                (
                    spec(json!({"sharedCounters": [{"counters": {"c": {"value": "1"}}}]})),
                    "spec.sharedCounters[0].name: Required value",
                ),
                (
                    spec(json!({"sharedCounters": [{"name": "s", "counters": {"a.b": {"value": "1"}}}]})),
                    r#"spec.sharedCounters[0].counters: Invalid value: "a.b": must not contain dots"#,
                ),
            ],
        );
        refuses_update(
            &DEF,
            &slice(),
            &[
                (
                    spec(json!({"driver": "e.com"})),
                    r#"spec.driver: Invalid value: "e.com": field is immutable"#,
                ),
                (
                    spec(json!({"pool": {"name": "q"}})),
                    r#"spec.pool.name: Invalid value: "q": field is immutable"#,
                ),
                (
                    spec(json!({"nodeName": "m"})),
                    r#"spec.nodeName: Invalid value: "m": field is immutable"#,
                ),
            ],
        );
        assert_eq!(row(&DEF, &slice()), "n|d.com|p|<unknown>");
        assert_eq!(warnings("D.com").len(), 1);
    }

    #[test]
    fn gated_fields_go_and_taints_get_a_date() {
        let mut new = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"devices": [{
            "nodeAllocatableResourceMappings": {}, "attributes": {"a": {"string": "x", "strings": ["x"]}}, "taints": [{}]}]}});
        (DEF.prepare_create)(&mut new);
        let device = json!({"attributes": {"a": {"string": "x"}}, "taints": [{"timeAdded": "2026-01-01T00:00:00Z"}]});
        assert_eq!(new["spec"]["devices"][0], device);
    }
}
