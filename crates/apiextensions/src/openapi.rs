//! What is published of a version's schema in OpenAPI.
//!
//! Upstream: apiextensions-apiserver pkg/controller/openapi/{builder,v2} (v1.36).

use serde_json::{Map, Value, json};

use crate::definition::is_structural;

const META: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_META: &str = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const EMBEDDED_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META_TYPE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V2,
    V3,
}

impl Version {
    /// A reference to a model, with a description beside it.
    fn reference(self, model: &str, description: &str) -> Value {
        match self {
            Version::V2 => json!({"description": description, "$ref": format!("#/definitions/{model}")}),
            Version::V3 => {
                json!({"description": description, "allOf": [{"$ref": format!("#/components/schemas/{model}")}]})
            }
        }
    }

    fn plain_reference(self, model: &str) -> Value {
        match self {
            Version::V2 => json!({"$ref": format!("#/definitions/{model}")}),
            Version::V3 => json!({"$ref": format!("#/components/schemas/{model}")}),
        }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn find_version<'a>(definition: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = definition.get("spec")?.get("versions")?.as_array()?;
    versions.iter().find(|v| text(v, "name") == version)
}

/// "io.example.v1.Foo", for the kind or its list.
pub fn model_name(definition: &Value, version: &str, list: bool) -> String {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let mut group: Vec<&str> = text(spec, "group").split('.').collect();
    group.reverse();
    let names = spec.get("names").unwrap_or(&Value::Null);
    let kind = text(names, if list { "listKind" } else { "kind" });
    format!("{}.{version}.{kind}", group.join("."))
}

/// The kind's model in OpenAPI v3.
pub fn v3(definition: &Value, version: &str) -> Value {
    kind_model(definition, version, Version::V3)
}

/// The kind's model in OpenAPI v2, without what that cannot say.
pub fn v2(definition: &Value, version: &str) -> Value {
    kind_model(definition, version, Version::V2)
}

/// The list's model in OpenAPI v3.
pub fn v3_list(definition: &Value, version: &str) -> Value {
    list_model(definition, version, Version::V3)
}

/// The list's model in OpenAPI v2.
pub fn v2_list(definition: &Value, version: &str) -> Value {
    list_model(definition, version, Version::V2)
}

fn kind_model(definition: &Value, version: &str, v: Version) -> Value {
    let found = find_version(definition, version).unwrap_or(&Value::Null);
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let schema = found.pointer("/schema/openAPIV3Schema").filter(|s| is_structural(s));
    let preserve = |s: &Value| s.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    let preserve_all = spec.get("preserveUnknownFields") == Some(&Value::Bool(true));
    let mut model = match schema {
        Some(schema) if v == Version::V3 || !(preserve(schema) || preserve_all) => {
            let mut schema = schema.clone();
            unfold(&mut schema);
            if v == Version::V2 {
                restrict_to_v2(&mut schema);
            }
            add_embedded(&mut schema, v);
            set_property(&mut schema, "metadata", v.reference(OBJECT_META, META));
            set_property(
                &mut schema,
                "apiVersion",
                json!({"description": API_VERSION, "type": "string"}),
            );
            set_property(&mut schema, "kind", json!({"description": KIND, "type": "string"}));
            schema
        }
        // Anything more would make kubectl refuse all other fields.
        _ => json!({"type": "object"}),
    };
    let kind = text(spec.get("names").unwrap_or(&Value::Null), "kind");
    add_kind(&mut model, spec, version, kind);
    add_selectable(&mut model, found, v);
    model
}

fn list_model(definition: &Value, version: &str, v: Version) -> Value {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let names = spec.get("names").unwrap_or(&Value::Null);
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    let items = format!(
        "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
        text(names, "plural")
    );
    let mut model = json!({
        "description": format!("{list_kind} is a list of {kind}"), "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": {"description": API_VERSION, "type": "string"},
            "kind": {"description": KIND, "type": "string"},
            "metadata": v.reference(LIST_META_TYPE, LIST_META),
            "items": {"description": items, "type": "array",
                      "items": v.plain_reference(&model_name(definition, version, false))},
        },
    });
    add_kind(&mut model, spec, version, list_kind);
    let found = find_version(definition, version).unwrap_or(&Value::Null);
    add_selectable(&mut model, found, v);
    model
}

fn add_kind(model: &mut Value, spec: &Value, version: &str, kind: &str) {
    model["x-kubernetes-group-version-kind"] =
        json!([{"group": text(spec, "group"), "version": version, "kind": kind}]);
}

fn add_selectable(model: &mut Value, version: &Value, v: Version) {
    let fields = version.get("selectableFields").and_then(Value::as_array);
    if let Some(fields) = fields.filter(|f| !f.is_empty() && v == Version::V3) {
        let of = |field: &Value| json!({"fieldPath": text(field, "jsonPath").trim_start_matches('.')});
        model["x-kubernetes-selectable-fields"] = fields.iter().map(of).collect();
    }
}

fn set_property(schema: &mut Value, name: &str, value: Value) {
    let Some(map) = schema.as_object_mut() else { return };
    let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if let Some(properties) = properties.as_object_mut() {
        properties.insert(name.to_string(), value);
    }
}

/// Calls a function on every structural node: not on those in allOf and the like.
fn visit(schema: &mut Value, node: &mut dyn FnMut(&mut Map<String, Value>)) {
    let Some(map) = schema.as_object_mut() else { return };
    node(map);
    for name in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(name) {
            visit(below, node);
        }
    }
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|below| visit(below, node));
    }
}

fn is_true(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name) == Some(&Value::Bool(true))
}

/// Says in plain OpenAPI that a value is an integer or a string.
fn unfold(schema: &mut Value) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    visit(schema, &mut |map| {
        let said = map.get("anyOf") == Some(&either)
            || map.get("allOf").and_then(|a| a.get(0)).and_then(|f| f.get("anyOf")) == Some(&either);
        if !is_true(map, "x-kubernetes-int-or-string") || said {
            return;
        }
        if !map.contains_key("anyOf") {
            map.insert("anyOf".into(), either.clone());
            return;
        }
        let all = map.entry("allOf").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            all.insert(0, json!({"anyOf": either}));
        }
    });
}

/// Takes out what OpenAPI v2, or kubectl's reading of it, has no words for.
fn restrict_to_v2(schema: &mut Value) {
    visit(schema, &mut |map| {
        for name in ["allOf", "oneOf", "anyOf", "not"] {
            map.remove(name);
        }
        let preserve = is_true(map, "x-kubernetes-preserve-unknown-fields");
        if is_true(map, "nullable") {
            for name in ["type", "nullable", "items", "properties"] {
                map.remove(name);
            }
        }
        if preserve {
            map.remove("items");
            map.remove("properties");
        }
        let ty = map.get("type").and_then(Value::as_str).unwrap_or("");
        if (ty == "array" && !map.contains_key("items")) || (ty == "object" && preserve) {
            map.remove("type");
        }
        let is_nullable = |s: &Value| s.get("nullable") == Some(&Value::Bool(true));
        if map.get("additionalProperties").is_some_and(is_nullable) {
            map.remove("required");
        }
        let nullable: Vec<String> = match map.get("properties").and_then(Value::as_object) {
            Some(properties) => properties
                .iter()
                .filter(|(_, s)| is_nullable(s))
                .map(|(n, _)| n.clone())
                .collect(),
            None => vec![],
        };
        if let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| !nullable.iter().any(|n| name == n));
            if required.is_empty() {
                map.remove("required");
            }
        }
    });
}

/// Embedded resources have apiVersion, kind and metadata.
fn add_embedded(schema: &mut Value, v: Version) {
    visit(schema, &mut |map| {
        let preserve = is_true(map, "x-kubernetes-preserve-unknown-fields");
        if !is_true(map, "x-kubernetes-embedded-resource") || (preserve && v == Version::V2) {
            return;
        }
        let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Some(properties) = properties.as_object_mut() {
            let text = |description: &str| json!({"description": description, "type": "string"});
            properties.insert("apiVersion".into(), text(EMBEDDED_API_VERSION));
            properties.insert("kind".into(), text(EMBEDDED_KIND));
            properties.insert("metadata".into(), v.reference(OBJECT_META, META));
        }
        let required = map.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|r| r == name) {
                    required.push(name.into());
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(schema: Value) -> Value {
        json!({"spec": {
            "group": "ex.io", "names": {"plural": "foos", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}, "selectableFields": [{"jsonPath": ".spec.a"}]}],
        }})
    }

    #[test]
    fn models_have_what_every_object_has() {
        let d = definition(json!({"type": "object", "description": "A foo.", "properties": {
            "spec": {"type": "object", "required": ["a", "n"], "properties": {
                "a": {"type": "string", "anyOf": [{"minLength": 1}]}, "n": {"type": "integer", "nullable": true},
                "p": {"x-kubernetes-int-or-string": true}, "k": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }},
        }}));
        let three = v3(&d, "v1");
        assert_eq!(three["description"], "A foo.");
        assert_eq!(three["properties"]["kind"]["type"], "string");
        assert_eq!(
            three["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(
            three["properties"]["spec"]["properties"]["p"],
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
        );
        assert_eq!(
            three["x-kubernetes-group-version-kind"],
            json!([{"group": "ex.io", "version": "v1", "kind": "Foo"}])
        );
        assert_eq!(
            three["x-kubernetes-selectable-fields"],
            json!([{"fieldPath": "spec.a"}])
        );
        let two = v2(&d, "v1");
        assert_eq!(
            two["properties"]["spec"],
            json!({"type": "object", "required": ["a"], "properties": {
                "a": {"type": "string"}, "n": {}, "p": {"x-kubernetes-int-or-string": true},
                "k": {"x-kubernetes-preserve-unknown-fields": true},
            }})
        );
        assert_eq!(
            two["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(two.get("x-kubernetes-selectable-fields"), None);
        assert_eq!(
            v3_list(&d, "v1")["properties"]["items"]["items"]["$ref"],
            "#/components/schemas/io.ex.v1.Foo"
        );
    }

    #[test]
    fn open_kinds_are_published_as_objects() {
        let d = definition(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
        let two = v2(&d, "v1");
        assert_eq!((two["type"].clone(), two.get("properties")), (json!("object"), None));
        assert!(v3(&d, "v1")["properties"]["metadata"].is_object());
        let broken = definition(json!({"type": "object", "properties": {"a": {}}}));
        assert_eq!(v3(&broken, "v1").get("properties"), None);
    }

    #[test]
    fn embedded_resources_are_resources() {
        let d = definition(json!({"type": "object", "properties": {"e": {
            "type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}));
        let e = &v3(&d, "v1")["properties"]["e"];
        assert_eq!(e["required"], json!(["kind", "apiVersion"]));
        assert!(e["properties"]["metadata"].is_object());
    }
}
