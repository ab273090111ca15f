//! Whether a configuration can be applied at all: it may have only fields that the type declares, each of the right JSON
//! type, and its lists no two elements that go by one name. Applied configurations are not pruned like other objects.
//!
//! Upstream: structured-merge-diff/v6/typed/validate.go (v1.36), whose words these are.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::ObjectType;
use super::element;
use super::shape::{Node, Shape};
use crate::field::{MAX_PROBLEMS, cut};
use crate::patch::go_format::{GoFormatted, go_type};
use crate::schema::{Field, Ty, TypeRef, schema};
use crate::structural::SchemaType;

/// What is found to be wrong: the first of it, and how much more there is.
#[derive(Default)]
struct Found {
    told: Vec<String>,
    untold: usize,
}

impl Found {
    fn push(&mut self, path: &str, what: impl std::fmt::Display) {
        if self.told.len() >= MAX_PROBLEMS {
            self.untold += 1;
            return;
        }
        let text = match path {
            "" => what.to_string(),
            path => format!("{path}: {what}"),
        };
        self.told.push(cut(text));
    }
}

/// All that is wrong, in one text; None if nothing is.
pub(super) fn problems(object: &Value, ty: ObjectType<'_>) -> Option<String> {
    let mut found = Found::default();
    let mut path = String::new();
    match ty {
        ObjectType::BuiltIn(r) => check_struct(object, r, &mut path, &mut found),
        ObjectType::Custom(schema) => check_node(object, Node::root(schema), &mut path, &mut found),
        ObjectType::Unknown => {
            if let (Some(meta), Some(r)) = (object.get("metadata"), schema().get("meta/v1.ObjectMeta")) {
                path.push_str(".metadata");
                check_struct(meta, r, &mut path, &mut found);
            }
        }
    }
    if found.untold > 0 {
        found.told.push(format!("... and {} more", found.untold));
    }
    match found.told.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn check_struct(value: &Value, r: TypeRef, path: &mut String, found: &mut Found) {
    let map = match value {
        Value::Null => return,
        Value::Object(map) => map,
        other => return found.push(path, format_args!("expected map, got &{{{}}}", GoFormatted(other))),
    };
    let here = path.len();
    for (name, value) in map {
        path.push('.');
        path.push_str(name);
        match schema().ty(r).field(name) {
            Some(field) => check_field(value, field, path, found),
            None => found.push(path, "field not declared in schema"),
        }
        path.truncate(here);
    }
}

fn check_field(value: &Value, field: &'static Field, path: &mut String, found: &mut Found) {
    match (Shape::of_field(field), value) {
        (shape @ (Shape::Set | Shape::Keyed(..)), Value::Array(list)) => {
            let item = field.ty.item().expect("only lists have elements by name");
            check_associative(list, shape, path, found, |value, path, found| {
                check(value, item, path, found)
            });
        }
        _ => check(value, &field.ty, path, found),
    }
}

fn check_associative(
    list: &[Value],
    shape: Shape<'_>,
    path: &mut String,
    found: &mut Found,
    check: impl Fn(&Value, &mut String, &mut Found),
) {
    let here = path.len();
    let mut names = HashSet::new();
    for (i, value) in list.iter().enumerate() {
        if let Some(why) = shape.unfit_element(value) {
            return found.push(path, format_args!("element {i}: {why}"));
        }
        let name = shape.element(value);
        let mut shown = String::new();
        element::show(&name, &mut shown);
        if !names.insert(name) {
            found.push(path, format_args!("duplicate entries for key {shown}"));
        }
        path.push_str(&shown);
        check(value, path, found);
        path.truncate(here);
    }
}

fn check(value: &Value, ty: &'static Ty, path: &mut String, found: &mut Found) {
    let here = path.len();
    let wrong = match (ty, value) {
        (_, Value::Null) | (Ty::Any | Ty::SchemaOrBool(_) | Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_), _) => None,
        (Ty::Struct(r), _) => return check_struct(value, *r, path, found),
        (Ty::Map(element), Value::Object(map)) => {
            for (name, value) in map {
                path.push('.');
                path.push_str(name);
                check(value, element, path, found);
                path.truncate(here);
            }
            None
        }
        (Ty::Map(_), other) => Some(format!("expected map, got &{{{}}}", GoFormatted(other))),
        (Ty::List(element) | Ty::Items(element), Value::Array(list)) => {
            for (i, value) in list.iter().enumerate() {
                path.push_str(&format!("[{i}]"));
                check(value, element, path, found);
                path.truncate(here);
            }
            None
        }
        (Ty::List(_) | Ty::Items(_), other) => Some(format!("expected list, got &{{{}}}", GoFormatted(other))),
        (Ty::Int32 | Ty::Int64 | Ty::Float64, Value::Number(_)) => None,
        (Ty::Int32 | Ty::Int64 | Ty::Float64, other) => {
            Some(format!("expected numeric (int or float), got {}", go_type(other)))
        }
        (Ty::Bool, Value::Bool(_)) => None,
        (Ty::Bool, other) => Some(format!("expected boolean, got &{{{}}}", GoFormatted(other))),
        (Ty::String | Ty::Bytes | Ty::Duration, Value::String(_)) => None,
        (Ty::String | Ty::Bytes | Ty::Duration, other) => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            GoFormatted(other)
        )),
        (Ty::Quantity | Ty::IntOrString | Ty::Time | Ty::MicroTime, Value::Object(_) | Value::Array(_)) => {
            Some(format!("expected any scalar, got &{{{}}}", GoFormatted(value)))
        }
        (Ty::Quantity | Ty::IntOrString | Ty::Time | Ty::MicroTime, _) => None,
    };
    if let Some(what) = wrong {
        found.push(path, what);
    }
}

/// The same for a place in an object of a custom kind.
fn check_node(value: &Value, node: Node<'_>, path: &mut String, found: &mut Found) {
    let wrong = match (node.schema.ty, value) {
        (_, Value::Null) => None,
        (SchemaType::Object | SchemaType::Unspecified, Value::Object(map)) => {
            return check_members(map, node, path, found);
        }
        (SchemaType::Unspecified | SchemaType::Invalid, _) => None,
        (SchemaType::Array, Value::Array(list)) => return check_elements(list, node, path, found),
        (SchemaType::Object, other) => Some(format!("expected map, got &{{{}}}", GoFormatted(other))),
        (SchemaType::Array, other) => Some(format!("expected list, got &{{{}}}", GoFormatted(other))),
        (SchemaType::String, Value::String(_))
        | (SchemaType::Integer | SchemaType::Number, Value::Number(_))
        | (SchemaType::Boolean, Value::Bool(_)) => None,
        (SchemaType::String, other) => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            GoFormatted(other)
        )),
        (SchemaType::Integer | SchemaType::Number, other) => {
            Some(format!("expected numeric (int or float), got {}", go_type(other)))
        }
        (SchemaType::Boolean, other) => Some(format!("expected boolean, got &{{{}}}", GoFormatted(other))),
    };
    if let Some(what) = wrong {
        found.push(path, what);
    }
}

fn check_members(map: &Map<String, Value>, node: Node<'_>, path: &mut String, found: &mut Found) {
    let here = path.len();
    for (name, value) in map {
        path.push('.');
        path.push_str(name);
        match (name.as_str(), node.property(name)) {
            ("metadata", _) if node.is_resource() => {
                if let Some(r) = schema().get("meta/v1.ObjectMeta") {
                    check_struct(value, r, path, found);
                }
            }
            ("apiVersion" | "kind", _) if node.is_resource() => {}
            (_, Some(property)) => check_node(value, property, path, found),
            (_, None) => match (node.additional(), node.other()) {
                (Some(schema), _) => check_node(value, schema, path, found),
                (None, Some(_)) => {}
                (None, None) => found.push(path, "field not declared in schema"),
            },
        }
        path.truncate(here);
    }
}

fn check_elements(list: &[Value], node: Node<'_>, path: &mut String, found: &mut Found) {
    let Some(items) = node.items() else { return };
    let shape = Shape::of_node(node);
    if matches!(shape, Shape::Set | Shape::NodeKeyed(_)) {
        return check_associative(list, shape, path, found, |value, path, found| {
            check_node(value, items, path, found);
        });
    }
    let here = path.len();
    for (i, value) in list.iter().enumerate() {
        path.push_str(&format!("[{i}]"));
        check_node(value, items, path, found);
        path.truncate(here);
    }
}
