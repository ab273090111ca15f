//! Whether a configuration can be applied at all: it may have only fields that the type declares, each of the right JSON
//! type, and its lists no two elements that go by one name. Applied configurations are not pruned like other objects.
//!
//! Upstream: structured-merge-diff/v6/typed/validate.go (v1.36), whose words these are.

use std::collections::HashSet;

use serde_json::Value;

use super::element;
use super::shape::Shape;
use crate::field::{MAX_PROBLEMS, cut};
use crate::patch::go_format::{GoFormatted, go_type};
use crate::schema::{Field, Ty, TypeRef, schema};

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
pub(super) fn problems(object: &Value, ty: Option<TypeRef>) -> Option<String> {
    let mut found = Found::default();
    let mut path = String::new();
    match ty {
        Some(r) => check_struct(object, r, &mut path, &mut found),
        None => {
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
            check_associative(list, shape, item, path, found);
        }
        _ => check(value, &field.ty, path, found),
    }
}

fn check_associative(list: &[Value], shape: Shape, item: &'static Ty, path: &mut String, found: &mut Found) {
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
        check(value, item, path, found);
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
