//! Lists whose elements must be unique: `x-kubernetes-list-type` set and map.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/listtype (v1.36).

use std::collections::HashMap;

use orlop_api::field::{Path, ProblemKind, Problems, shown};
use orlop_api::structural::{SchemaListType, Structural};
use serde_json::{Map, Value};

/// Validates all lists in a value.
pub(crate) fn validate_lists(schema: &Structural, value: &Value, at: &Path, p: &mut Problems) {
    if !schema.has_unique_lists {
        return;
    }
    match value {
        Value::Object(map) => {
            let mut members = schema.members();
            for (name, value) in map {
                if let Some(property) = members.property(name) {
                    if property.has_unique_lists {
                        validate_lists(property, value, &at.member(name), p);
                    }
                } else if let Some(additional) = schema.additional_schema() {
                    validate_lists(additional, value, &at.key(name), p);
                }
            }
        }
        Value::Array(list) => {
            match schema.list_type() {
                Some(SchemaListType::Set) => {
                    for i in repeated(list.iter().map(Some)) {
                        p.push(ProblemKind::Duplicate, &at.index(i), Some(shown(Some(&list[i]))), "");
                    }
                }
                Some(SchemaListType::Map) => validate_keys(schema, list, at, p),
                _ => {}
            }
            if let Some(items) = schema.items.as_deref().filter(|i| i.has_unique_lists) {
                for (i, value) in list.iter().enumerate() {
                    validate_lists(items, value, &at.index(i), p);
                }
            }
        }
        _ => {}
    }
}

fn validate_keys(schema: &Structural, list: &[Value], at: &Path, p: &mut Problems) {
    let other = list.iter().position(|v| !v.is_null() && !v.is_object());
    if let Some(i) = other {
        let detail = "must be an object for an array of list-type map";
        return p.invalid_value(&at.index(i), &list[i], detail);
    }
    let key_of = |value: &Value| -> Value {
        let found = schema.list_map_keys().iter().filter_map(|name| {
            let value = value.get(&**name)?;
            Some((name.to_string(), value.clone()))
        });
        Value::Object(found.collect::<Map<_, _>>())
    };
    let keys: Vec<Value> = list.iter().map(key_of).collect();
    for i in repeated(keys.iter().map(Some)) {
        p.push(ProblemKind::Duplicate, &at.index(i), Some(shown(Some(&keys[i]))), "");
    }
}

/// The places of values that were there before, each value once.
fn repeated<'v>(values: impl ExactSizeIterator<Item = Option<&'v Value>>) -> Vec<usize> {
    if values.len() <= 1 {
        return vec![];
    }
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(values.len());
    let mut found = vec![];
    for (i, value) in values.enumerate() {
        let times = seen
            .entry(serde_json::to_string(&value).unwrap_or_default())
            .or_default();
        *times += 1;
        if *times == 2 {
            found.push(i);
        }
    }
    found
}

pub(super) fn first_duplicate(list: &[Value]) -> Option<usize> {
    repeated(list.iter().map(Some)).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repeated_elements_are_reported_once() {
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let keyed = |keys: &[&str]| {
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
                   "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}})
        };
        for (list, value, expected) in [
            (set.clone(), json!(["a", "b"]), vec![]),
            (
                set.clone(),
                json!(["a", "a", "b", "a"]),
                vec!["x[1]: Duplicate value: \"a\""],
            ),
            (
                set.clone(),
                json!([1, 1.5, null, null]),
                vec!["x[3]: Duplicate value: null"],
            ),
            (keyed(&["a"]), json!([{"a": "1"}, {"a": "2"}]), vec![]),
            (
                keyed(&["a"]),
                json!([{"a": "1", "b": 1}, {"a": "1", "b": 2}]),
                vec!["x[1]: Duplicate value: {\"a\":\"1\"}"],
            ),
            (
                keyed(&["a"]),
                json!([{"b": 1}, {"b": 2}]),
                vec!["x[1]: Duplicate value: {}"],
            ),
            (
                keyed(&["a", "b"]),
                json!([{"a": "1", "b": 1}, {"a": "1", "b": 2}, {"a": "1", "b": 1}]),
                vec!["x[2]: Duplicate value: {\"a\":\"1\",\"b\":1}"],
            ),
            (
                keyed(&["a"]),
                json!([{"a": "1"}, 7]),
                vec!["x[1]: Invalid value: 7: must be an object for an array of list-type map"],
            ),
        ] {
            let schema = Structural::parse(&json!({"type": "object", "properties": {"x": list}})).unwrap();
            let mut p = Problems::default();
            validate_lists(&schema, &json!({"x": value}), &Path::default(), &mut p);
            let found: Vec<String> = p.0.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{value}");
        }
    }
}
