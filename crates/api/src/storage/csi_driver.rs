//! CSIDriver.
//!
//! Upstream: pkg/apis/storage/{v1/defaults.go,validation}, pkg/registry/storage/csidriver (v1.36).
//! `preventPodSchedulingIfMissing` belongs to a gate that is off in 1.36: it is dropped.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::age;
use crate::{fill, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "CSIDriver",
    plural: "csidrivers",
    singular: "csidriver",
    namespaced: false,
    schema: "storage/v1.CSIDriver",
    columns: &[
        boolean("AttachRequired"),
        boolean("PodInfoOnMount"),
        boolean("StorageCapacity"),
        Column::string("TokenRequests"),
        boolean("RequiresRepublish"),
        Column::string("Modes"),
        Column::AGE,
    ],
    cells,
    default,
    prepare_create: drop_gated,
    prepare_update,
    validate: |driver, p| validate_spec(&driver.at("spec"), p),
    validate_update,
    warnings,
    unconditional_update: false,
    ..KindDef::BASE
};

const fn boolean(name: &'static str) -> Column {
    Column {
        kind: "boolean",
        ..Column::string(name)
    }
}

fn default(driver: &mut Value) {
    let spec = fill::member(driver, "spec");
    fill::absent(spec, "attachRequired", true);
    fill::absent(spec, "podInfoOnMount", false);
    fill::absent(spec, "storageCapacity", false);
    fill::absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    fill::empty(spec, "volumeLifecycleModes", json!(["Persistent"]));
    fill::absent(spec, "requiresRepublish", false);
    fill::absent(spec, "seLinuxMount", false);
}

fn drop_gated(driver: &mut Value) {
    if let Some(spec) = driver.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("preventPodSchedulingIfMissing");
    }
}

/// Drivers count their generation from the first change on: a new one has none.
fn prepare_update(new: &mut Value, old: &Value) {
    drop_gated(new);
    if new.get("spec") != old.get("spec") {
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        fill::member(new, "metadata")["generation"] = (generation + 1).into();
    }
}

fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    p.one_of(
        &spec.at("fsGroupPolicy"),
        false,
        &["File", "None", "ReadWriteOnceWithFSType"],
    );
    validate_token_requests(&spec.at("tokenRequests"), p);
    let modes = spec.at("volumeLifecycleModes");
    for mode in modes.items() {
        if !["Persistent", "Ephemeral"].contains(&mode.str()) {
            p.not_supported_as_listed(
                &Cursor::new(mode.value(), modes.path().clone()),
                &["Persistent", "Ephemeral"],
            );
        }
    }
    let period = spec.at("nodeAllocatableUpdatePeriodSeconds");
    if period.as_i64().is_some_and(|n| n < 10) {
        p.invalid(&period, "must be greater than or equal to 10 seconds");
    }
    let in_secrets = spec.at("serviceAccountTokenInSecrets");
    if in_secrets.exists() && spec.at("tokenRequests").is_empty() {
        p.invalid(
            &in_secrets,
            "serviceAccountTokenInSecrets is set but no tokenRequests are specified",
        );
    }
}

fn validate_token_requests(requests: &Cursor<'_>, p: &mut Problems) {
    let mut audiences = BTreeSet::new();
    for request in requests.items() {
        let (audience, expires) = (request.at("audience"), request.at("expirationSeconds"));
        if !audiences.insert(audience.str()) {
            p.duplicate(&rules::as_text(&audience));
            continue;
        }
        match expires.as_i64() {
            Some(..600) => p.invalid(&expires, "may not specify a duration less than 10 minutes"),
            Some(seconds) if seconds > 1 << 32 => {
                p.invalid(&expires, "may not specify a duration larger than 2^32 seconds");
            }
            _ => {}
        }
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (new.at("spec"), old.at("spec"));
    // The path has a slip of the pen in it that clients have come to see.
    let attach = Cursor::new(new.at("attachRequired").value(), new.path().field("attachedRequired"));
    p.immutable(&attach, &old.at("attachRequired"));
    p.immutable(&new.at("volumeLifecycleModes"), &old.at("volumeLifecycleModes"));
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let requests = new.at("spec").at("tokenRequests");
    let unchanged = old.is_some_and(|o| o.at("spec").at("tokenRequests").value() == requests.value());
    if requests.is_empty() || unchanged || new.at("spec").at("serviceAccountTokenInSecrets").exists() {
        return vec![];
    }
    vec![
        "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"
            .into(),
    ]
}

fn cells(driver: &Value, now: Timestamp) -> Vec<Value> {
    let spec = Cursor::root(driver).at("spec");
    let is = |field: &'static str| Value::from(spec.at(field).is_true());
    let tokens = match spec.at("tokenRequests").exists() {
        true => spec
            .at("tokenRequests")
            .items()
            .map(|t| t.at("audience").str())
            .collect::<Vec<_>>()
            .join(","),
        false => "<unset>".to_string(),
    };
    let modes = spec
        .at("volumeLifecycleModes")
        .items()
        .map(|m| m.str())
        .collect::<Vec<_>>()
        .join(",");
    vec![
        spec.at("attachRequired").as_bool().unwrap_or(true).into(),
        is("podInfoOnMount"),
        is("storageCapacity"),
        tokens.into(),
        is("requiresRepublish"),
        if modes.is_empty() {
            "<none>".into()
        } else {
            modes.into()
        },
        age(driver, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, merged, refuses, refuses_update, row};

    #[test]
    fn defaults() {
        let driver = defaulted(&DEF, json!({"spec": {}}));
        assert_eq!(
            driver["spec"],
            json!({"attachRequired": true, "podInfoOnMount": false, "storageCapacity": false,
                "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"],
                "requiresRepublish": false, "seLinuxMount": false})
        );
        assert_eq!(
            row(&DEF, &driver),
            "true|false|false|<unset>|false|Persistent|<unknown>"
        );
    }

    #[test]
    fn drivers_are_checked() {
        refuses(
            &DEF,
            &json!({"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 600}, {"audience": ""}]}}),
            &[
                (
                    json!({"spec": {"fsGroupPolicy": "Some"}}),
                    r#"spec.fsGroupPolicy: Unsupported value: "Some": supported values: "File", "None", "ReadWriteOnceWithFSType""#,
                ),
                (
                    json!({"spec": {"volumeLifecycleModes": ["Brief"]}}),
                    r#"spec.volumeLifecycleModes: Unsupported value: "Brief": supported values: "Persistent", "Ephemeral""#,
                ),
                (
                    json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": 9}}),
                    "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
                ),
                (
                    json!({"spec": {"tokenRequests": null, "serviceAccountTokenInSecrets": true}}),
                    "spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
                ),
                (
                    json!({"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}}),
                    r#"spec.tokenRequests[1].audience: Duplicate value: "a""#,
                ),
                (
                    json!({"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 599}]}}),
                    "spec.tokenRequests[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
                ),
                (
                    json!({"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 4294967297i64}]}}),
                    "spec.tokenRequests[0].expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
                ),
            ],
        );
        refuses_update(
            &DEF,
            &json!({"spec": {}}),
            &[
                (
                    json!({"spec": {"attachRequired": false}}),
                    "spec.attachedRequired: Invalid value: false: field is immutable",
                ),
                (
                    json!({"spec": {"volumeLifecycleModes": ["Ephemeral"]}}),
                    r#"spec.volumeLifecycleModes: Invalid value: ["Ephemeral"]: field is immutable"#,
                ),
            ],
        );
    }

    #[test]
    fn generation_counts_changes() {
        let old = defaulted(&DEF, json!({"metadata": {"name": "d"}, "spec": {}}));
        let mut new = merged(
            &old,
            &json!({"spec": {"requiresRepublish": true, "preventPodSchedulingIfMissing": true}}),
        );
        prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 1);
        assert!(new["spec"].get("preventPodSchedulingIfMissing").is_none());
        let mut same = old.clone();
        prepare_update(&mut same, &old);
        assert_eq!(same, old);
    }

    #[test]
    fn tokens_in_the_open_are_warned_of() {
        let driver = json!({"spec": {"tokenRequests": [{"audience": "a"}]}});
        let (c, safe) = (
            Cursor::root(&driver),
            merged(&driver, &json!({"spec": {"serviceAccountTokenInSecrets": true}})),
        );
        assert_eq!(warnings(&c, None).len(), 1);
        assert!(warnings(&c, Some(&c)).is_empty(), "not new");
        assert!(warnings(&Cursor::root(&safe), None).is_empty());
    }
}
