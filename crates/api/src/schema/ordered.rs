//! Values as JSON in the order in which Kubernetes writes them: the members of a known type as its fields are declared,
//! everything else in order of its names.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::{Ty, TypeRef, schema};

/// Serializes a value in the order of its type's fields.
pub struct InOrder<'v> {
    value: &'v Value,
    ty: &'v Ty,
}

impl<'v> InOrder<'v> {
    /// A value that says itself of which kind it is; in order of names if that kind is not known.
    pub fn of(value: &'v Value) -> InOrder<'v> {
        InOrder { value, ty: &Ty::Any }
    }

    /// A value of this type.
    pub fn typed(value: &'v Value, ty: &'v Ty) -> InOrder<'v> {
        InOrder { value, ty }
    }
}

/// The members of an object in the order of the type's fields, each with its own type. Those that the type does not have
/// come last, in order of their names.
pub fn members_in_order(object: &Map<String, Value>, ty: Option<TypeRef>) -> SmallVec<[(&str, InOrder<'_>); 16]> {
    let Some(ty) = ty.map(|ty| schema().ty(ty)) else {
        return object
            .iter()
            .map(|(name, value)| (name.as_str(), InOrder::of(value)))
            .collect();
    };
    let mut members: SmallVec<[(u16, &str, InOrder<'_>); 16]> = object
        .iter()
        .map(|(name, value)| match ty.field(name) {
            Some(field) => (field.order, name.as_str(), InOrder::typed(value, &field.ty)),
            None => (u16::MAX, name.as_str(), InOrder::of(value)),
        })
        .collect();
    // Stable: the names were in order before.
    members.sort_by_key(|(order, ..)| *order);
    members.into_iter().map(|(_, name, value)| (name, value)).collect()
}

/// The kind that an object says it is.
fn own_type(object: &Map<String, Value>) -> Option<TypeRef> {
    let kind = object.get("kind")?.as_str()?;
    let api_version = object.get("apiVersion").map_or(Some("v1"), Value::as_str)?;
    schema().kind(api_version, kind)
}

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.value, self.ty) {
            (Value::Object(object), Ty::Map(inner)) => {
                serializer.collect_map(object.iter().map(|(name, value)| (name, InOrder::typed(value, inner))))
            }
            (Value::Object(object), ty) => {
                let ty = match ty {
                    Ty::Struct(ty) | Ty::SchemaOrBool(ty) | Ty::SchemaOrArray(ty) | Ty::SchemaOrStrings(ty) => {
                        Some(*ty)
                    }
                    _ => own_type(object),
                };
                let mut map = serializer.serialize_map(Some(object.len()))?;
                for (name, value) in members_in_order(object, ty) {
                    map.serialize_entry(name, &value)?;
                }
                map.end()
            }
            (Value::Array(list), ty) => {
                let item = match ty {
                    Ty::SchemaOrArray(schema) => &Ty::Struct(*schema),
                    _ => ty.item().unwrap_or(&Ty::Any),
                };
                serializer.collect_seq(list.iter().map(|value| InOrder::typed(value, item)))
            }
            (other, _) => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(value: &Value) -> String {
        serde_json::to_string(&InOrder::of(value)).unwrap()
    }

    #[test]
    fn members_come_as_they_are_declared() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "status": {}, "zzz": 1, "extra": {"b": 1, "a": 2},
            "spec": {
                "restartPolicy": "Always", "nodeSelector": {"b": "", "a": ""},
                "containers": [{"env": [{"value": "v", "name": "n"}], "image": "i", "name": "c", "envFrom": []}],
            },
            "metadata": {"uid": "u", "labels": {"z": "", "a": ""}, "name": "p"},
        });
        assert_eq!(
            text(&pod),
            concat!(
                r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"u","labels":{"a":"","z":""}},"#,
                r#""spec":{"containers":[{"name":"c","image":"i","envFrom":[],"env":[{"name":"n","value":"v"}]}],"#,
                r#""restartPolicy":"Always","nodeSelector":{"a":"","b":""}},"status":{},"extra":{"a":2,"b":1},"zzz":1}"#
            )
        );
    }

    #[test]
    fn what_stands_inside_may_name_its_own_kind() {
        let table = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "Table", "columnDefinitions": [], "metadata": {},
            "rows": [{"cells": [1], "object": {"metadata": {}, "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}}],
        });
        assert_eq!(
            text(&table),
            concat!(
                r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":[],"rows":[{"cells":[1],"#,
                r#""object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}}]}"#
            )
        );
        let unknown = json!({"kind": "Foo", "apiVersion": "x.io/v1", "b": {"d": 1, "c": [{"f": 1, "e": 2}]}});
        assert_eq!(text(&unknown), unknown.to_string());
        let versions = json!({"versions": ["v1"], "kind": "APIVersions", "serverAddressByClientCIDRs": []});
        assert_eq!(
            text(&versions),
            r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}"#
        );
    }

    #[test]
    fn nothing_is_lost_in_the_order() {
        let schemas = json!({
            "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "spec": {"versions": [{"schema": {"openAPIV3Schema": {
                "type": "object", "items": [{"type": "string", "format": "a"}], "additionalProperties": {"type": "x", "minimum": 1},
                "properties": {"b": {"type": "string", "description": "d"}, "a": {"x-kubernetes-int-or-string": true}},
            }}, "name": "v1"}]},
        });
        assert_eq!(serde_json::from_str::<Value>(&text(&schemas)).unwrap(), schemas);
        assert!(text(&schemas).contains(r#"{"description":"d","type":"string"}"#));
    }
}
