//! VolumeAttributesClass: the parameters of a volume that may change during its life.
//!
//! Upstream: pkg/apis/storage/validation, pkg/registry/storage/volumeattributesclass (v1.36).

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::{age, text};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "VolumeAttributesClass",
    plural: "volumeattributesclasses",
    singular: "volumeattributesclass",
    short_names: &["vac"],
    namespaced: false,
    schema: "storage/v1.VolumeAttributesClass",
    columns: &[Column::string("DriverName"), Column::AGE],
    cells: |class, now| vec![text(class, "/driverName").into(), age(class, now)],
    validate,
    validate_update,
    ..KindDef::BASE
};

fn validate(class: &Cursor<'_>, p: &mut Problems) {
    super::validate_provisioner(&class.at("driverName"), p);
    let parameters = class.at("parameters");
    super::validate_parameters(&parameters, p);
    if parameters.is_empty() {
        p.required(&parameters, "must contain at least one key/value pair");
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    for field in ["driverName", "parameters"] {
        let c = new.at(field);
        if c.value() != old.at(field).value() {
            p.forbidden(&c, format!("updates to {field} are forbidden."));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row};
    use serde_json::json;

    #[test]
    fn classes_are_checked_and_do_not_change() {
        let base = json!({"driverName": "disk.example.com", "parameters": {"iops": "100"}});
        refuses(
            &DEF,
            &base,
            &[
                (json!({"driverName": null}), "driverName: Required value"),
                (
                    json!({"parameters": null}),
                    "parameters: Required value: must contain at least one key/value pair",
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[
                (
                    json!({"driverName": "x"}),
                    "driverName: Forbidden: updates to driverName are forbidden.",
                ),
                (
                    json!({"parameters": {"iops": "200"}}),
                    "parameters: Forbidden: updates to parameters are forbidden.",
                ),
            ],
        );
        assert_eq!(row(&DEF, &base), "disk.example.com|<unknown>");
    }
}
