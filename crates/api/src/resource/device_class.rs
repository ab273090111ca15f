//! DeviceClass: devices that are asked for by one name.

use super::{LIST_MAX, within};
use crate::field::{Cursor, Problems};
use crate::kind::KindDef;
use crate::resources;

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "DeviceClass",
    plural: "deviceclasses",
    singular: "deviceclass",
    namespaced: false,
    schema: "resource/v1.DeviceClass",
    validate,
    generation: true,
    ..KindDef::BASE
};

fn validate(class: &Cursor<'_>, p: &mut Problems) {
    let spec = class.at("spec");
    super::validate_selectors(&spec.at("selectors"), p);
    let config = spec.at("config");
    if within(&config, LIST_MAX, p) {
        for config in config.items() {
            super::validate_opaque(&config, p);
        }
    }
    let extended = spec.at("extendedResourceName");
    if extended.exists() && !resources::is_extended(extended.str()) {
        p.invalid(&extended, "must be a valid extended resource name");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, row};
    use serde_json::{Value, json};

    #[test]
    fn classes_are_checked() {
        let many: Vec<Value> = (0..33).map(|_| json!({"cel": {"expression": "true"}})).collect();
        let base = json!({"spec": {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "a.com/gpu",
            "config": [{"opaque": {"driver": "d.com", "parameters": {}}}]}});
        refuses(
            &DEF,
            &base,
            &[
                (
                    json!({"spec": {"selectors": many}}),
                    "spec.selectors: Too many: 33: must have at most 32 items",
                ),
                (
                    json!({"spec": {"selectors": [{}]}}),
                    "spec.selectors[0].cel: Required value",
                ),
                (
                    json!({"spec": {"config": [{"opaque": {"parameters": {}}}]}}),
                    "spec.config[0].opaque.driver: Required value",
                ),
                (
                    json!({"spec": {"extendedResourceName": "kubernetes.io/gpu"}}),
                    r#"spec.extendedResourceName: Invalid value: "kubernetes.io/gpu": must be a valid extended resource name"#,
                ),
            ],
        );
        assert_eq!(row(&DEF, &base), "<unknown>");
    }
}
