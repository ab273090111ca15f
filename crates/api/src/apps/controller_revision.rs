//! ControllerRevision: an earlier state of a DaemonSet or a StatefulSet, kept to go back to.
//!
//! Upstream: pkg/apis/apps/validation and pkg/registry/apps/controllerrevision (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing;

pub const DEF: KindDef = KindDef {
    group: "apps",
    kind: "ControllerRevision",
    plural: "controllerrevisions",
    singular: "controllerrevision",
    schema: "apps/v1.ControllerRevision",
    columns: &[Column::string("Controller"), Column::string("Revision"), Column::AGE],
    cells,
    validate,
    validate_update,
    ..KindDef::BASE
};

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    p.non_negative(&object.at("revision"));
    let data = object.at("data");
    match data.value() {
        None => p.required(&data, "data is mandatory"),
        Some(Value::Object(_)) => {}
        Some(_) => p.required(&data, "data must be a valid JSON object"),
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    p.immutable(&new.at("data"), &old.at("data"));
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        controller(object).into(),
        printing::int(object, "/revision").into(),
        printing::age(object, now),
    ]
}

/// The owner that controls the object, as `daemonset.apps/name`.
fn controller(object: &Value) -> String {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let Some(owner) = owners.into_iter().flatten().find(|o| o["controller"] == true) else {
        return "<none>".to_string();
    };
    let (name, kind) = (printing::text(owner, "/name"), printing::text(owner, "/kind"));
    let group = printing::text(owner, "/apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    format!("{}/{name}", crate::status::qualified(group, kind).to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    #[test]
    fn what_is_refused() {
        let good = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"spec": {}}});
        for (pointer, value, wanted) in [
            ("/revision", json!(2), ""),
            (
                "/revision",
                json!(-1),
                "revision: Invalid value: -1: must be greater than or equal to 0",
            ),
            ("/data", json!(null), "data: Required value: data is mandatory"),
            (
                "/data",
                json!([1]),
                "data: Required value: data must be a valid JSON object",
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good, pointer, value)).join("\n"), wanted);
        }
        assert!(update_refused(&DEF, &with(&good, "/revision", json!(2)), &good).is_empty());
        assert_eq!(
            update_refused(&DEF, &with(&good, "/data", json!({})), &good),
            ["data: Invalid value: {}: field is immutable"]
        );
    }

    #[test]
    fn a_row() {
        let owners = json!([{"kind": "DaemonSet", "apiVersion": "apps/v1", "name": "d", "controller": true}]);
        let object = json!({"metadata": {"ownerReferences": owners}, "revision": 3});
        let now = at("2026-01-01T00:05:00Z");
        assert_eq!(
            Value::from(cells(&object, now)),
            json!(["daemonset.apps/d", 3, "<unknown>"])
        );
        assert_eq!(Value::from(cells(&json!({}), now)), json!(["<none>", 0, "<unknown>"]));
    }
}
