//! ConfigMaps. Upstream: pkg/registry/core/configmap, ValidateConfigMap (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::{names, printing};

/// What a ConfigMap or a Secret may hold, all values together.
pub const MAX_BYTES: usize = 1024 * 1024;

pub const DEF: KindDef = KindDef {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    schema: "core/v1.ConfigMap",
    columns: &[Column::string("Data"), Column::AGE],
    cells,
    validate,
    validate_update,
    ..KindDef::BASE
};

fn validate(map: &Cursor<'_>, p: &mut Problems) {
    let (data, binary) = (map.at("data"), map.at("binaryData"));
    let mut size = 0;
    for (key, value) in data.entries() {
        validate_key(key, &value, p);
        if binary.has_key(key) {
            p.invalid_value(value.path(), &json!(key), "duplicate of key present in binaryData");
        }
        size += value.len();
    }
    for (key, value) in binary.entries() {
        validate_key(key, &value, p);
        size += decoded_len(value.str());
    }
    if size > MAX_BYTES {
        // The whole object is too long: there is no field to point at.
        p.too_long(&Cursor::new(None, Default::default()), MAX_BYTES);
    }
}

/// The key of a ConfigMap or Secret entry; the problem stands at the entry and shows the key.
pub(super) fn validate_key(key: &str, entry: &Cursor<'_>, p: &mut Problems) {
    for message in names::config_key(key) {
        p.invalid_value(entry.path(), &json!(key), message);
    }
}

/// How many bytes a base64 text stands for.
pub(super) fn decoded_len(base64: &str) -> usize {
    let padding = base64.bytes().rev().take_while(|b| *b == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    validate_immutable(new, old, &["data", "binaryData"], p);
}

/// Once `immutable` is true it stays true, and the contents with it.
pub(super) fn validate_immutable(new: &Cursor<'_>, old: &Cursor<'_>, contents: &[&'static str], p: &mut Problems) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if !old.at("immutable").is_true() {
        return;
    }
    if !new.at("immutable").is_true() {
        p.forbidden(&new.at("immutable"), DETAIL);
    }
    for field in contents {
        let (new, old) = (new.at(field), old.at(field));
        if new.value() != old.value() && !(new.is_empty() && old.is_empty()) {
            p.forbidden(&new, DETAIL);
        }
    }
}

fn cells(map: &Value, now: Timestamp) -> Vec<Value> {
    let count = |field: &str| map.get(field).and_then(Value::as_object).map_or(0, |m| m.len());
    vec![(count("data") + count("binaryData")).into(), printing::age(map, now)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row};

    #[test]
    fn keys_and_size() {
        let bad = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
        let base = json!({"data": {"a": "b"}, "binaryData": {"c": "AAA="}});
        refuses(
            &DEF,
            &base,
            &[
                (
                    json!({"data": {"a/b": ""}}),
                    &format!("data[a/b]: Invalid value: \"a/b\": {bad}"),
                ),
                (
                    json!({"binaryData": {"a/b": ""}}),
                    &format!("binaryData[a/b]: Invalid value: \"a/b\": {bad}"),
                ),
                (
                    json!({"data": {"c": ""}}),
                    "data[c]: Invalid value: \"c\": duplicate of key present in binaryData",
                ),
                (
                    json!({"data": {"x": "y".repeat(MAX_BYTES)}}),
                    "<nil>: Too long: may not be more than 1048576 bytes",
                ),
            ],
        );
        assert_eq!(row(&DEF, &base), "2|<unknown>");
        assert_eq!(
            [
                decoded_len(""),
                decoded_len("QQ=="),
                decoded_len("QUI="),
                decoded_len("QUJD")
            ],
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn immutable_ones_stay() {
        let text = "Forbidden: field is immutable when `immutable` is set";
        refuses_update(
            &DEF,
            &json!({"data": {"a": "b"}, "immutable": true}),
            &[
                (json!({"immutable": null}), &format!("immutable: {text}")),
                (json!({"data": {"a": "c"}}), &format!("data: {text}")),
                (json!({"binaryData": {"x": "AAAA"}}), &format!("binaryData: {text}")),
            ],
        );
        refuses_update(&DEF, &json!({"data": {"a": "b"}}), &[]);
    }
}
