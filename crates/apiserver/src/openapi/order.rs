//! The order in which Kubernetes writes the members of OpenAPI documents.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// Operations, parameters, responses and schemas, in either version. What is not listed comes after, in order of its name.
const ORDER: &[&str] = &[
    "$ref",
    "description",
    "consumes",
    "produces",
    "schemes",
    "tags",
    "summary",
    "operationId",
    "uniqueItems",
    "type",
    "nullable",
    "format",
    "title",
    "name",
    "in",
    "default",
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "enum",
    "required",
    "items",
    "allOf",
    "oneOf",
    "anyOf",
    "properties",
    "additionalProperties",
    "schema",
    "parameters",
    "requestBody",
    "responses",
    "content",
];

/// Members whose own members are named by somebody else.
const NAMED: &[&str] = &["properties", "responses", "content", "parameters", "security"];

/// A path item or a definition, its members in order.
pub(super) struct InOrder<'v> {
    value: &'v Value,
    is_named: bool,
}

impl<'v> InOrder<'v> {
    pub(super) fn of(value: &'v Value) -> InOrder<'v> {
        InOrder { value, is_named: false }
    }
}

fn place(name: &str) -> usize {
    ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len())
}

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Object(object) => {
                let mut members: Vec<(&String, &Value)> = object.iter().collect();
                if !self.is_named {
                    // Stable: the names were in order before.
                    members.sort_by_key(|(name, _)| place(name));
                }
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    let is_named = !self.is_named && NAMED.contains(&name.as_str());
                    map.serialize_entry(name, &InOrder { value, is_named })?;
                }
                map.end()
            }
            Value::Array(list) => serializer.collect_seq(list.iter().map(InOrder::of)),
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_start_with_what_they_are() {
        let schema = json!({
            "x-kubernetes-group-version-kind": [{"version": "v1", "kind": "K", "group": ""}], "type": "object",
            "required": ["a"], "description": "d",
            "properties": {"type": {"type": "string", "description": "t"}, "description": {"$ref": "#/x"}},
        });
        assert_eq!(
            serde_json::to_string(&InOrder::of(&schema)).unwrap(),
            concat!(
                r##"{"description":"d","type":"object","required":["a"],"properties":{"description":{"$ref":"#/x"},"##,
                r#""type":{"description":"t","type":"string"}},"x-kubernetes-group-version-kind":[{"group":"","kind":"K","version":"v1"}]}"#
            )
        );
    }
}
