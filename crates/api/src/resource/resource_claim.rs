//! ResourceClaim.

use std::collections::BTreeSet;

use serde_json::Value;

use super::claim_spec::{self, Requests};
use super::{unique, within};
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource, keep_all_but_status};
use crate::printing::age;
use crate::{ip, meta, names, rules, storage};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "ResourceClaim",
    plural: "resourceclaims",
    singular: "resourceclaim",
    schema: "resource/v1.ResourceClaim",
    subresources: &[Subresource::STATUS],
    columns: &[Column::string("State"), Column::AGE],
    cells: |claim, now| vec![state(claim).into(), age(claim, now)],
    default: |claim| {
        if let Some(spec) = claim.get_mut("spec") {
            claim_spec::default(spec);
        }
    },
    prepare_status,
    validate: |claim, p| claim_spec::validate(&claim.at("spec"), p),
    validate_update: |new, old, p| p.immutable(&new.at("spec"), &old.at("spec")),
    validate_status,
    ..KindDef::BASE
};

/// A device, or a share of one, as claims tell them apart.
fn device_id(of: &Cursor<'_>) -> String {
    let parts = ["driver", "pool", "device", "shareID"].map(|field| of.at(field).str());
    match parts {
        [driver, pool, device, ""] => format!("{driver}/{pool}/{device}"),
        parts => parts.join("/"),
    }
}

fn allocated(claim: &Cursor<'_>) -> BTreeSet<String> {
    let results = claim.at("status").at("allocation").at("devices").at("results");
    results.items().map(|r| device_id(&r)).collect()
}

/// The status of a device goes with its allocation.
fn prepare_status(new: &mut Value, old: &Value) {
    keep_all_but_status(new, old);
    let before = allocated(&Cursor::root(old));
    let after = allocated(&Cursor::root(new));
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) else {
        return;
    };
    devices.retain(|d| {
        let id = device_id(&Cursor::root(d));
        !before.contains(&id) || after.contains(&id)
    });
    if devices.is_empty() {
        status.remove("devices");
    }
}

const RESERVED_MAX: usize = 256;

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (status, before) = (new.at("status"), old.at("status"));
    let (reserved, allocation, devices) = (status.at("reservedFor"), status.at("allocation"), status.at("devices"));
    if within(&reserved, RESERVED_MAX, p) {
        for consumer in reserved.items() {
            for field in ["resource", "name", "uid"] {
                if consumer.at(field).is_empty() {
                    p.required(&consumer.at(field), "");
                }
            }
        }
        unique(&reserved, |c| c.at("uid").str().to_string(), p);
    }
    let given = allocated(new);
    for device in devices.items() {
        validate_device(&device, &given, p);
    }
    unique(&devices, device_id, p);
    if !reserved.is_empty() && !allocation.exists() {
        p.forbidden(&reserved, "may not be specified when `allocated` is not set");
    } else if new.at("metadata").at("deletionTimestamp").exists() && has_new_consumer(&reserved, &before) {
        p.forbidden(
            &reserved,
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
        );
    }
    if before.at("allocation").exists() && allocation.exists() {
        p.immutable(&allocation, &before.at("allocation"));
    } else if allocation.exists() {
        claim_spec::validate_allocation(&allocation, &Requests::of(&new.at("spec")), p);
    }
}

fn has_new_consumer(reserved: &Cursor<'_>, before: &Cursor<'_>) -> bool {
    let old: Vec<&Value> = before.at("reservedFor").items().filter_map(|c| c.value()).collect();
    reserved.items().any(|c| c.value().is_some_and(|v| !old.contains(&v)))
}

fn validate_device(device: &Cursor<'_>, given: &BTreeSet<String>, p: &mut Problems) {
    const CONDITIONS_MAX: usize = 8;
    storage::validate_driver_name(&device.at("driver"), p);
    super::validate_pool_name(&device.at("pool"), p);
    rules::follows(&device.at("device"), names::dns_label, p);
    super::validate_share_id(&device.at("shareID"), p);
    let id = device_id(device);
    if !given.contains(&id) {
        p.invalid_value(device.path(), &id.into(), "must be an allocated device in the claim");
    }
    let conditions = device.at("conditions");
    within(&conditions, CONDITIONS_MAX, p);
    meta::validate_conditions(&conditions, p);
    if device.at("data").exists() {
        super::validate_raw(&device.at("data"), p);
    }
    validate_network(&device.at("networkData"), p);
}

fn validate_network(network: &Cursor<'_>, p: &mut Problems) {
    const ADDRESSES_MAX: usize = 16;
    for (field, max) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if network.at(field).len() > max {
            p.too_long(&network.at(field), max);
        }
    }
    let addresses = network.at("ips");
    if within(&addresses, ADDRESSES_MAX, p) {
        for address in addresses.items() {
            match ip::parse_network(address.str()) {
                None => p.invalid(
                    &address,
                    "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
                ),
                Some((ip, length)) if format!("{ip}/{length}") != address.str() => {
                    p.invalid(&address, format!("must be in canonical form (\"{ip}/{length}\")"));
                }
                Some(_) => {}
            }
        }
        unique(&addresses, |a| a.str().to_string(), p);
    }
}

fn state(claim: &Value) -> String {
    let root = Cursor::root(claim);
    let deleted = root.at("metadata").at("deletionTimestamp").exists();
    let status = root.at("status");
    let mut words = vec![];
    if deleted {
        words.push("deleted");
    }
    if status.at("allocation").exists() {
        words.push("allocated");
        if !status.at("reservedFor").is_empty() {
            words.push("reserved");
        }
    } else if !deleted {
        words.push("pending");
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, refuses_update, row, status_problems};
    use serde_json::json;

    fn request(patch: Value) -> Value {
        merged(&json!({"name": "r", "exactly": {"deviceClassName": "c"}}), &patch)
    }

    fn with(devices: Value) -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"devices": devices}, "status": {}})
    }

    fn claim() -> Value {
        with(json!({"requests": [request(json!({}))]}))
    }

    fn result() -> Value {
        json!({"request": "r", "driver": "d.com", "pool": "p", "device": "dev"})
    }

    fn status(patch: Value) -> Value {
        let base = json!({"status": {"allocation": {"devices": {"results": [result()]}}}});
        merged(&merged(&claim(), &base), &json!({"status": patch}))
    }

    #[test]
    fn requests_are_filled_in() {
        let alternatives = json!({"exactly": null, "firstAvailable": [{"name": "a", "deviceClassName": "c", "allocationMode": "All"}]});
        let devices = json!({"requests": [request(json!({})), request(alternatives)]});
        let filled = defaulted(&DEF, with(devices));
        let requests = &filled["spec"]["devices"]["requests"];
        assert_eq!(requests[0]["exactly"]["allocationMode"], "ExactCount");
        assert_eq!(requests[0]["exactly"]["count"], 1);
        assert_eq!(requests[1]["firstAvailable"][0].get("count"), None);
    }

    #[test]
    fn specs_are_checked() {
        let one = |patch: Value| with(json!({"requests": [request(patch)]}));
        let exactly = |patch: Value| one(json!({"exactly": patch}));
        let beside = |patch: Value| with(merged(&json!({"requests": [request(json!({}))]}), &patch));
        let opaque = json!({"opaque": {"driver": "d.com", "parameters": {"a": 1}}});
        let requests: Vec<Value> = (0..33).map(|i| request(json!({"name": format!("r{i}")}))).collect();
        refuses(
            &DEF,
            &beside(json!({"constraints": [{"matchAttribute": "a.com/x"}], "config": [opaque]})),
            &[
                (
                    with(json!({"requests": requests})),
                    "spec.devices.requests: Too many: 33: must have at most 32 items",
                ),
                (
                    with(json!({"requests": [request(json!({})), request(json!({}))]})),
                    r#"spec.devices.requests[1]: Duplicate value: "r""#,
                ),
                (
                    one(json!({"exactly": null})),
                    "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                ),
                (
                    one(json!({"firstAvailable": [{"name": "a", "deviceClassName": "c"}]})),
                    "spec.devices.requests[0]: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
                ),
                (
                    exactly(json!({"deviceClassName": null})),
                    "spec.devices.requests[0].exactly.deviceClassName: Required value",
                ),
                (
                    exactly(json!({"allocationMode": "Some"})),
                    r#"spec.devices.requests[0].exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount""#,
                ),
                (
                    exactly(json!({"allocationMode": "All", "count": 2})),
                    "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
                ),
                (
                    exactly(json!({"count": -1})),
                    "spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
                ),
                (
                    exactly(json!({"selectors": [{}]})),
                    "spec.devices.requests[0].exactly.selectors[0].cel: Required value",
                ),
                (
                    exactly(json!({"selectors": [{"cel": {"expression": "x".repeat(10241)}}]})),
                    "spec.devices.requests[0].exactly.selectors[0].cel.expression: Too long: may not be more than 10240 bytes",
                ),
                (
                    exactly(json!({"tolerations": [{"operator": "Exists", "value": "a"}]})),
                    r#"spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: "a": must be empty for operator `Exists`"#,
                ),
                (
                    exactly(json!({"tolerations": [{"operator": "Like"}]})),
                    r#"spec.devices.requests[0].exactly.tolerations[0].operator: Unsupported value: "Like": supported values: "Equal", "Exists""#,
                ),
                (
                    exactly(json!({"tolerations": [{"operator": "Exists", "effect": "Never"}]})),
                    r#"spec.devices.requests[0].exactly.tolerations[0].effect: Unsupported value: "Never": supported values: "NoExecute", "NoSchedule", "None""#,
                ),
                (
                    beside(json!({"constraints": [{}]})),
                    r#"spec.devices.constraints[0]: Required value: exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
                ),
                (
                    beside(json!({"constraints": [{"requests": ["q"], "matchAttribute": "a.com/x"}]})),
                    r#"spec.devices.constraints[0].requests[0]: Invalid value: "q": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
                ),
                (
                    beside(json!({"config": [{}]})),
                    "spec.devices.config[0].opaque: Required value",
                ),
                (
                    beside(
                        json!({"config": [{"opaque": {"driver": "d.com", "parameters": {"a": "x".repeat(10240)}}}]}),
                    ),
                    "spec.devices.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
                ),
                (
                    beside(json!({"config": [{"opaque": {"driver": "d.com"}}]})),
                    "spec.devices.config[0].opaque.parameters: Required value",
                ),
            ],
        );
        let alternative = json!({"exactly": null, "firstAvailable": [{"name": "a", "deviceClassName": "c"}]});
        let referred = json!({"requests": [request(alternative)], "constraints": [{"requests": ["r/a"], "distinctAttribute": "a.com/x"}]});
        assert!(create_problems(&DEF, with(referred)).is_empty());
    }

    #[test]
    fn the_spec_does_not_change() {
        let changed = json!({"spec": {"devices": {"requests": null}}});
        refuses_update(
            &DEF,
            &claim(),
            &[(
                changed,
                r#"spec: Invalid value: {"devices":{"requests":null}}: field is immutable"#,
            )],
        );
    }

    #[test]
    fn statuses_are_checked() {
        let consumer = json!({"resource": "pods", "name": "p", "uid": "u"});
        let device = json!({"driver": "d.com", "pool": "p", "device": "dev", "networkData": {"ips": ["10.0.0.1/8"]}});
        for (new, old, wanted) in [
            (merged(&claim(), &json!({"status": {"allocation": {}}})), claim(), ""),
            (
                status(json!({"reservedFor": [consumer], "devices": [device]})),
                claim(),
                "",
            ),
            (
                status(json!({"allocation": null, "reservedFor": [consumer]})),
                claim(),
                "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
            ),
            (
                status(json!({"reservedFor": [{"resource": "pods", "name": "p"}]})),
                claim(),
                "status.reservedFor[0].uid: Required value",
            ),
            (
                status(json!({"reservedFor": [consumer, consumer]})),
                claim(),
                r#"status.reservedFor[1]: Duplicate value: "u""#,
            ),
            (
                status(json!({"devices": [merged(&device, &json!({"device": "other"}))]})),
                claim(),
                r#"status.devices[0]: Invalid value: "d.com/p/other": must be an allocated device in the claim"#,
            ),
            (
                status(json!({"devices": [merged(&device, &json!({"networkData": {"ips": ["010.0.0.1/8"]}}))]})),
                claim(),
                r#"status.devices[0].networkData.ips[0]: Invalid value: "010.0.0.1/8": must be in canonical form ("10.0.0.1/8")"#,
            ),
            (
                status(json!({"allocation": {"devices": {"results": [merged(&result(), &json!({"request": "q"}))]}}})),
                claim(),
                r#"status.allocation.devices.results[0].request: Invalid value: "q": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
            ),
            (
                merged(&claim(), &json!({"status": {"allocation": {"devices": {}}}})),
                status(json!({})),
                r#"status.allocation: Invalid value: {"devices":{}}: field is immutable"#,
            ),
        ] {
            assert_eq!(status_problems(&DEF, new, old).join("; "), wanted);
        }
    }

    #[test]
    fn deallocation_takes_the_status_of_devices_along() {
        let device = json!({"driver": "d.com", "pool": "p", "device": "dev"});
        let old = status(json!({"devices": [device]}));
        let mut new = merged(&old, &json!({"status": {"allocation": null}}));
        prepare_status(&mut new, &old);
        assert_eq!(new["status"], json!({}));
        assert_eq!(row(&DEF, &claim()), "pending|<unknown>");
        assert_eq!(
            row(&DEF, &status(json!({"reservedFor": [{}]}))),
            "allocated,reserved|<unknown>"
        );
        let deleted = merged(
            &claim(),
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        assert_eq!(row(&DEF, &deleted), "deleted|<unknown>");
    }
}
