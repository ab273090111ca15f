//! StorageClass.
//!
//! Upstream: pkg/apis/storage/{v1/defaults.go,validation}, pkg/registry/storage/storageclass (v1.36).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::node::deprecated_label;
use crate::printing::{age, text};
use crate::{fill, meta, names};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "StorageClass",
    plural: "storageclasses",
    singular: "storageclass",
    short_names: &["sc"],
    namespaced: false,
    schema: "storage/v1.StorageClass",
    columns: &[
        Column::string("Name"),
        Column::string("Provisioner"),
        Column::string("ReclaimPolicy"),
        Column::string("VolumeBindingMode"),
        Column::string("AllowVolumeExpansion"),
        Column::AGE,
    ],
    cells,
    default,
    validate,
    validate_update,
    warnings,
    ..KindDef::BASE
};

fn default(class: &mut Value) {
    fill::absent(class, "reclaimPolicy", "Delete");
    fill::absent(class, "volumeBindingMode", "Immediate");
}

fn validate(class: &Cursor<'_>, p: &mut Problems) {
    super::validate_provisioner(&class.at("provisioner"), p);
    super::validate_parameters(&class.at("parameters"), p);
    p.one_of(&class.at("reclaimPolicy"), false, &["Delete", "Retain"]);
    let mode = class.at("volumeBindingMode");
    if !mode.exists() {
        p.required(&mode, "");
    } else if !["Immediate", "WaitForFirstConsumer"].contains(&mode.str()) {
        p.not_supported(&mode, &["Immediate", "WaitForFirstConsumer"]);
    }
    validate_topologies(&class.at("allowedTopologies"), p);
}

type Term<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn validate_topologies(topologies: &Cursor<'_>, p: &mut Problems) {
    let mut seen: BTreeSet<Term<'_>> = BTreeSet::new();
    for topology in topologies.items() {
        let expressions = topology.at("matchLabelExpressions");
        let term = validate_term(&expressions, p);
        // A term that says nothing counts as said before.
        if term.is_empty() || seen.contains(&term) {
            p.push(
                crate::field::ProblemKind::Duplicate,
                expressions.path(),
                Some("\"\"".into()),
                "",
            );
        }
        seen.insert(term);
    }
}

fn validate_term<'a>(expressions: &Cursor<'a>, p: &mut Problems) -> Term<'a> {
    let mut term = Term::new();
    for expression in expressions.items() {
        let (key, values) = (expression.at("key"), expression.at("values"));
        if values.is_empty() {
            p.required(&values, "");
        }
        let mut set = BTreeSet::new();
        for value in values.items() {
            if !set.insert(value.str()) {
                p.duplicate(&value);
            }
        }
        p.invalid_each(&key, names::qualified_name(key.str()));
        if term.insert(key.str(), set).is_some() {
            p.duplicate(&key);
        }
    }
    term
}

/// What volumes were made by stays what it was; whether they may grow, and where they may be, can change.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        p.immutable(&new.at(field), &old.at(field));
    }
}

fn warnings(class: &Cursor<'_>, _: Option<&Cursor<'_>>) -> Vec<String> {
    let expressions = class.at("allowedTopologies").items();
    expressions
        .flat_map(|topology| topology.at("matchLabelExpressions").items())
        .filter_map(|e| {
            let key = e.at("key");
            deprecated_label(key.str()).map(|advice| format!("{}: {advice}", key.path()))
        })
        .collect()
}

fn cells(class: &Value, now: Timestamp) -> Vec<Value> {
    let or = |pointer: &str, otherwise: &str| -> Value {
        match text(class, pointer) {
            "" => otherwise.into(),
            found => found.into(),
        }
    };
    let is_default = ["", ".beta"].iter().any(|stage| {
        let annotation = format!("storageclass{stage}.kubernetes.io/is-default-class");
        meta::annotation(&Cursor::root(class), &annotation) == Some("true")
    });
    let mark = if is_default { " (default)" } else { "" };
    vec![
        format!("{}{mark}", text(class, "/metadata/name")).into(),
        text(class, "/provisioner").into(),
        or("/reclaimPolicy", "Delete"),
        or("/volumeBindingMode", "Immediate"),
        (class.get("allowVolumeExpansion") == Some(&Value::Bool(true))).into(),
        age(class, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, refuses, refuses_update, row, update_problems};
    use serde_json::json;

    fn class() -> Value {
        json!({"metadata": {"name": "fast", "creationTimestamp": "2026-01-01T00:00:00Z"}, "provisioner": "Example.com/disk"})
    }

    #[test]
    fn defaults() {
        let c = defaulted(&DEF, class());
        assert_eq!(
            (&c["reclaimPolicy"], &c["volumeBindingMode"]),
            (&json!("Delete"), &json!("Immediate"))
        );
        assert_eq!(row(&DEF, &class()), "fast|Example.com/disk|Delete|Immediate|false|10m");
        let mut marked = class();
        marked["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        assert!(row(&DEF, &marked).starts_with("fast (default)|"));
    }

    #[test]
    fn classes_are_checked() {
        let many: serde_json::Map<String, Value> = (0..513).map(|i| (format!("k{i}"), "v".into())).collect();
        let zone = json!({"key": "zone", "values": ["a"]});
        refuses(
            &DEF,
            &class(),
            &[
                (json!({"provisioner": null}), "provisioner: Required value"),
                (
                    json!({"reclaimPolicy": "Recycle"}),
                    r#"reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain""#,
                ),
                (
                    json!({"volumeBindingMode": "Later"}),
                    r#"volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer""#,
                ),
                (
                    json!({"parameters": {"": "v"}}),
                    r#"parameters: Invalid value: "": field can not be empty."#,
                ),
                (
                    json!({"parameters": many}),
                    "parameters: Too long: may not be more than 512 bytes",
                ),
                (
                    json!({"parameters": {"a": "x".repeat(256 << 10)}}),
                    "parameters: Too long: may not be more than 262144 bytes",
                ),
                (
                    json!({"allowedTopologies": [{"matchLabelExpressions": [zone]}, {"matchLabelExpressions": [zone]}]}),
                    r#"allowedTopologies[1].matchLabelExpressions: Duplicate value: """#,
                ),
                (
                    json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone"}]}]}),
                    "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
                ),
                (
                    json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "a"]}]}]}),
                    r#"allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: "a""#,
                ),
                (
                    json!({"allowedTopologies": [{"matchLabelExpressions": [zone, zone]}]}),
                    r#"allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "zone""#,
                ),
            ],
        );
        let bad = create_problems(&DEF, json!({"provisioner": "A_/b"}));
        assert!(
            bad[0].starts_with(r#"provisioner: Invalid value: "a_/b": prefix part"#),
            "{bad:?}"
        );
    }

    #[test]
    fn what_volumes_were_made_by_may_not_change() {
        refuses_update(
            &DEF,
            &class(),
            &[
                (
                    json!({"provisioner": "x"}),
                    r#"provisioner: Invalid value: "x": field is immutable"#,
                ),
                (
                    json!({"parameters": {"a": "b"}}),
                    r#"parameters: Invalid value: {"a":"b"}: field is immutable"#,
                ),
                (
                    json!({"reclaimPolicy": "Retain"}),
                    r#"reclaimPolicy: Invalid value: "Retain": field is immutable"#,
                ),
                (
                    json!({"volumeBindingMode": "WaitForFirstConsumer"}),
                    r#"volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable"#,
                ),
            ],
        );
        let mut grows = class();
        grows["allowVolumeExpansion"] = true.into();
        assert!(update_problems(&DEF, grows, class()).is_empty());
    }

    #[test]
    fn old_labels_are_warned_of() {
        let mut old = class();
        old["allowedTopologies"] = json!([{"matchLabelExpressions":
            [{"key": "failure-domain.beta.kubernetes.io/zone", "values": ["a"]}]}]);
        assert_eq!(
            warnings(&Cursor::root(&old), None),
            [
                r#"allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
            ]
        );
    }
}
