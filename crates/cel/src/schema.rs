//! Declared types from OpenAPI schemas, as the rules of custom resource definitions see them.
//!
//! Upstream: apiserver/pkg/cel/common/schemas.go (SchemaDeclType).

mod lazy;

pub use lazy::{Resolver, declare_lazily};

use crate::decl::{DeclType, Field, ListType, ObjectType};
use crate::escape::escape;
use crate::limits;
use crate::types::Type;
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// The type of `self` in rules at this place of a structural schema, with `name` as the name of its type in messages.
/// None if expressions cannot see what is there (no type, unknown fields are preserved).
///
/// `resource_root` says that it is the root of a custom resource; there, and at embedded resources, `apiVersion`,
/// `kind`, `metadata.name` and `metadata.generateName` can always be seen.
pub fn self_type(schema: &Json, name: &str, resource_root: bool) -> Option<Arc<DeclType>> {
    declare(schema, name, resource_root).map(Arc::new)
}

/// The declared type of a schema.
pub fn declare(schema: &Json, name: &str, resource_root: bool) -> Option<DeclType> {
    let nullable = flag(schema, "nullable");
    declare_value(schema, name, resource_root).map(|decl| decl.with_nullable(nullable))
}

fn declare_value(schema: &Json, name: &str, resource_root: bool) -> Option<DeclType> {
    if flag(schema, "x-kubernetes-int-or-string") {
        let most =
            number(schema, "maxLength").map_or(limits::MAX_REQUEST_SIZE_BYTES - 2, |most| most.saturating_mul(4));
        return Some(DeclType::int_or_string().with_max_elements(most));
    }
    match text(schema, "type") {
        "array" => declare_array(schema, name),
        "object" => declare_object(schema, name, resource_root),
        "string" => Some(declare_string(schema)),
        "boolean" => Some(DeclType::simple(Type::Bool)),
        "number" => Some(DeclType::simple(Type::Double)),
        "integer" => Some(DeclType::simple(Type::Int)),
        _ if resource_root => declare_object(schema, name, resource_root),
        _ => None,
    }
}

fn embedded(schema: &Json) -> bool {
    flag(schema, "x-kubernetes-embedded-resource")
}

fn declare_array(schema: &Json, name: &str) -> Option<DeclType> {
    let items = schema.get("items").filter(|items| items.is_object())?;
    let items = declare(items, &format!("{name}.@idx"), embedded(items))?;
    let most = number(schema, "maxItems");
    let most = most.unwrap_or_else(|| (limits::MAX_REQUEST_SIZE_BYTES - 2) / (items.min_serialized_size() + 1));
    let list_type = match text(schema, "x-kubernetes-list-type") {
        "set" => ListType::Set,
        "map" => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
            let keys = keys.into_iter().flatten().filter_map(Json::as_str);
            ListType::Map(keys.map(str::to_string).collect())
        }
        _ => ListType::Atomic,
    };
    Some(DeclType::list(Arc::new(items), list_type, Some(most)))
}

fn declare_object(schema: &Json, name: &str, resource_root: bool) -> Option<DeclType> {
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        let values = declare(values, &format!("{name}.@elem"), embedded(values))?;
        let most = number(schema, "maxProperties");
        // Quotes, a colon, a comma, and two bytes of a key.
        let most = most.unwrap_or_else(|| (limits::MAX_REQUEST_SIZE_BYTES - 2) / (values.min_serialized_size() + 6));
        return Some(DeclType::map(Arc::new(values), Some(most)));
    }
    let none = Map::new();
    let properties = schema.get("properties").and_then(Json::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Json::as_array);
    let is_required = |property: &str| required.is_some_and(|all| all.iter().any(|one| one == property));
    let (mut fields, mut smallest) = (Vec::new(), 2u64);
    let mut add = |property: &str, decl: DeclType, has_default: bool| {
        if is_required(property) && !has_default {
            smallest = smallest.saturating_add(property.len() as u64 + decl.min_serialized_size() + 4);
        }
        if let Some(escaped) = escape(property) {
            let (_, field) = Field::new(property, decl);
            fields.push((escaped.into_owned(), field));
        }
    };
    let meta_by_us = resource_root && !has_type_and_object_meta(properties);
    for (property, inner) in properties {
        if meta_by_us && ["apiVersion", "kind", "metadata"].contains(&property.as_str()) {
            continue;
        }
        let escaped = escape(property).unwrap_or_default();
        if let Some(decl) = declare(inner, &format!("{name}.{escaped}"), embedded(inner)) {
            add(
                property,
                decl,
                inner.get("default").is_some_and(|default| !default.is_null()),
            );
        }
    }
    if meta_by_us {
        let string = || declare_string(&Json::Null);
        let names = [Field::new("name", string()), Field::new("generateName", string())];
        let metadata = ObjectType::new(format!("{name}.metadata"), names);
        add("apiVersion", string(), false);
        add("kind", string(), false);
        add("metadata", DeclType::object(Arc::new(metadata)), false);
    }
    let object = DeclType::object(Arc::new(ObjectType::new(name, fields)));
    Some(object.with_min_serialized_size(smallest))
}

/// The properties declare what every resource has, as far as expressions may always see it.
fn has_type_and_object_meta(properties: &Map<String, Json>) -> bool {
    let is = |properties: &Map<String, Json>, name: &str, ty: &str| {
        properties
            .get(name)
            .is_some_and(|property| text(property, "type") == ty)
    };
    let metadata = properties
        .get("metadata")
        .and_then(|metadata| metadata.get("properties"));
    is(properties, "kind", "string")
        && is(properties, "apiVersion", "string")
        && is(properties, "metadata", "object")
        && metadata
            .and_then(Json::as_object)
            .is_some_and(|metadata| is(metadata, "name", "string") && is(metadata, "generateName", "string"))
}

fn declare_string(schema: &Json) -> DeclType {
    let longest = limits::MAX_REQUEST_SIZE_BYTES - 2;
    let simple = |ty, smallest, most| {
        DeclType::simple(ty)
            .with_min_serialized_size(smallest)
            .with_max_elements(most)
    };
    match text(schema, "format") {
        "byte" => simple(
            Type::Bytes,
            limits::MIN_STRING_SIZE,
            number(schema, "maxLength").unwrap_or(longest),
        ),
        "duration" => simple(
            Type::Duration,
            limits::MIN_DURATION_SIZE_JSON,
            limits::MAX_DURATION_SIZE_JSON,
        ),
        "date" => simple(Type::Timestamp, limits::JSON_DATE_SIZE, limits::JSON_DATE_SIZE),
        "date-time" => simple(
            Type::Timestamp,
            limits::MIN_DATETIME_SIZE_JSON,
            limits::MAX_DATETIME_SIZE_JSON,
        ),
        _ => {
            let words = schema
                .get("enum")
                .and_then(Json::as_array)
                .filter(|words| !words.is_empty());
            let most = match (number(schema, "maxLength"), words) {
                // In characters, of up to four bytes each.
                (Some(most), _) => most.saturating_mul(4),
                (None, Some(words)) => {
                    let lengths = words.iter().filter_map(Json::as_str).map(|word| word.len() as u64);
                    lengths.max().unwrap_or(0)
                }
                (None, None) => longest,
            };
            simple(Type::String, limits::MIN_STRING_SIZE, most)
        }
    }
}

fn flag(schema: &Json, name: &str) -> bool {
    schema.get(name) == Some(&Json::Bool(true))
}

fn text<'a>(schema: &'a Json, name: &str) -> &'a str {
    schema.get(name).and_then(Json::as_str).unwrap_or("")
}

/// A bound; what is below zero is zero.
fn number(schema: &Json, name: &str) -> Option<u64> {
    let number = schema.get(name)?;
    number.as_u64().or_else(|| number.as_i64().map(|_| 0))
}
