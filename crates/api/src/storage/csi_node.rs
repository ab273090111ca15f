//! CSINode: which CSI drivers a node has.
//!
//! Upstream: pkg/apis/storage/validation, pkg/registry/storage/csinode (v1.36).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::field::{Cursor, ProblemKind, Problems};
use crate::kind::{Column, KindDef};
use crate::names;
use crate::printing::age;

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "CSINode",
    plural: "csinodes",
    singular: "csinode",
    namespaced: false,
    schema: "storage/v1.CSINode",
    columns: &[Column::integer("Drivers"), Column::AGE],
    cells: |node, now| vec![Cursor::root(node).at("spec").at("drivers").len().into(), age(node, now)],
    validate,
    validate_update,
    unconditional_update: false,
    ..KindDef::BASE
};

const NODE_ID_MAX: usize = 256;

fn validate(node: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for driver in node.at("spec").at("drivers").items() {
        let (name, id) = (driver.at("name"), driver.at("nodeID"));
        super::validate_driver_name(&name, p);
        if id.is_empty() {
            p.required(&id, "");
        }
        if id.len() > NODE_ID_MAX {
            p.invalid(&id, format!("must be {NODE_ID_MAX} characters or less"));
        }
        p.non_negative(&driver.at("allocatable").at("count"));
        if !seen.insert(name.str()) {
            p.duplicate(&name);
        }
        validate_topology_keys(&driver, p);
    }
}

/// Complaints about a key stand at the driver, not at the key.
fn validate_topology_keys(driver: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for key in driver.at("topologyKeys").items() {
        let here = Cursor::new(key.value(), driver.path().clone());
        if key.is_empty() {
            p.required(&here, "");
        }
        if !seen.insert(key.str()) {
            p.duplicate(&here);
        }
        p.invalid_each(&here, names::qualified_name(key.str()));
    }
}

/// Drivers come and go, but one that stays keeps all but how many volumes it can attach.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let drivers = new.at("spec").at("drivers");
    for old_driver in old.at("spec").at("drivers").items() {
        let before = without_allocatable(&old_driver);
        let same_name = drivers
            .items()
            .filter(|d| d.at("name").str() == old_driver.at("name").str());
        for after in same_name.map(|d| without_allocatable(&d)) {
            if after != before {
                p.push(
                    ProblemKind::Invalid,
                    drivers.path(),
                    Some(after.to_string()),
                    "field is immutable",
                );
            }
        }
    }
}

fn without_allocatable(driver: &Cursor<'_>) -> Value {
    let mut copy = driver.value().cloned().unwrap_or_default();
    if let Some(map) = copy.as_object_mut() {
        map.remove("allocatable");
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{merged, refuses, refuses_update, row, update_problems};
    use serde_json::json;

    #[test]
    fn drivers_are_checked() {
        let with = |driver: Value| {
            let base = json!({"name": "d.example.com", "nodeID": "i"});
            json!({"spec": {"drivers": [merged(&base, &driver)]}})
        };
        let twice = json!({"spec": {"drivers": [{"name": "d", "nodeID": "i"}, {"name": "d", "nodeID": "i"}]}});
        refuses(
            &DEF,
            &with(json!({"topologyKeys": ["example.com/zone"], "allocatable": {"count": 3}})),
            &[
                (with(json!({"name": null})), "spec.drivers[0].name: Required value"),
                (with(json!({"nodeID": null})), "spec.drivers[0].nodeID: Required value"),
                (
                    with(json!({"nodeID": "x".repeat(257)})),
                    &format!(
                        "spec.drivers[0].nodeID: Invalid value: {:?}: must be 256 characters or less",
                        "x".repeat(257)
                    ),
                ),
                (
                    with(json!({"allocatable": {"count": -1}})),
                    "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
                ),
                (
                    with(json!({"topologyKeys": ["a", "a"]})),
                    r#"spec.drivers[0]: Duplicate value: "a""#,
                ),
                (twice, r#"spec.drivers[1].name: Duplicate value: "d""#),
            ],
        );
        refuses_update(
            &DEF,
            &with(json!({})),
            &[(
                with(json!({"nodeID": "j"})),
                r#"spec.drivers: Invalid value: {"name":"d.example.com","nodeID":"j","topologyKeys":null}: field is immutable"#,
            )],
        );
        assert!(update_problems(&DEF, with(json!({"allocatable": {"count": 9}})), with(json!({}))).is_empty());
        assert_eq!(row(&DEF, &with(json!({}))), "1|<unknown>");
    }
}
