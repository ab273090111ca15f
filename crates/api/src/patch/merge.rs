//! JSON merge patch (RFC 7386): maps merge, null deletes, all else replaces.

use serde_json::{Map, Value};

use super::PatchError;
use super::go_format::json_kind;
use crate::schema::json_syntax_error;

/// Reads a merge patch from a request body. Only a map can patch an object.
pub fn decode(patch: &[u8]) -> Result<Value, PatchError> {
    if let Some(why) = json_syntax_error(patch) {
        return Err(PatchError::Malformed(format!("error decoding patch: {why}")));
    }
    match serde_json::from_slice(patch) {
        Ok(patch @ Value::Object(_)) => Ok(patch),
        Ok(Value::Null) => Err(PatchError::Malformed("Invalid JSON Patch".into())),
        Ok(other) => Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_kind(&other)
        ))),
        Err(why) => Err(PatchError::Malformed(format!("error decoding patch: {why}"))),
    }
}

pub fn apply(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => merge(target, patch),
        (target, mut patch) => {
            drop_nulls(&mut patch);
            *target = patch;
        }
    }
}

fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            value => apply(target.entry(key).or_insert(Value::Null), value),
        }
    }
}

/// Removes map entries that are null, at any depth: there is nothing there for them to delete.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The examples of RFC 7386, appendix A (those whose patch is a map), and what Kubernetes does beyond it.
    #[test]
    fn merges_as_the_rfc_says() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({}), json!({"a": [{"b": null}, null]}), json!({"a": [{}, null]})),
        ];
        for (target, patch, expected) in cases {
            let mut result = target.clone();
            apply(&mut result, patch.clone());
            assert_eq!(result, expected, "{target} + {patch}");
        }
    }

    #[test]
    fn only_maps_are_patches() {
        assert_eq!(decode(b"{\"a\":1}"), Ok(json!({"a": 1})));
        for (patch, expected) in [
            ("null", "Invalid JSON Patch"),
            (
                "[]",
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ),
        ] {
            let error = decode(patch.as_bytes()).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.status().code), (expected, 400));
        }
        assert_eq!(decode(b"{").unwrap_err().status().code, 400);
    }
}
