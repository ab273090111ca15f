//! The object that comes of applying a configuration to it (`merge`), and taking fields out of one (`remove`).

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::element;
use super::set::{self, Set};
use super::shape::Shape;
use super::walk::{Found, by_element};

/// What the configuration says, and the object's own where it says nothing.
pub(super) fn merge(object: &Value, config: &Value, shape: Shape<'_>) -> Value {
    match shape {
        Shape::Leaf => config.clone(),
        Shape::Struct(_) | Shape::Map(_) | Shape::Node(_) | Shape::Custom => merge_maps(object, config, shape),
        Shape::Deduced => match (object, config) {
            (Value::Object(_), Value::Object(_) | Value::Null) => merge_maps(object, config, shape),
            _ => config.clone(),
        },
        Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_) => merge_lists(object, config, shape),
    }
}

fn merge_maps(object: &Value, config: &Value, shape: Shape<'_>) -> Value {
    let (Value::Object(old), Value::Object(new)) = (object, config) else {
        // A null says nothing about a map that is there.
        return if config.is_null() && object.as_object().is_some_and(|m| !m.is_empty()) {
            object.clone()
        } else {
            config.clone()
        };
    };
    let mut merged = old.clone();
    for (name, value) in new {
        match merged.get_mut(name) {
            Some(old) => *old = merge(old, value, shape.part(name).shape),
            None => {
                merged.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(merged)
}

/// The configuration's elements in its order; the object's others stay after what they followed.
fn merge_lists(object: &Value, config: &Value, shape: Shape<'_>) -> Value {
    let (old, new) = match (object, config) {
        (Value::Array(old), Value::Array(new)) => (old, new),
        (Value::Array(old), Value::Null) if !old.is_empty() => return object.clone(),
        _ => return config.clone(),
    };
    let olds = by_element(old, shape);
    let old_names: Vec<String> = old.iter().map(|v| shape.element(v)).collect();
    let new_names: Vec<String> = new.iter().map(|v| shape.element(v)).collect();
    let place: HashMap<&str, usize> = new_names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let merged = |i: usize| match olds.get(&new_names[i]) {
        Some(Found::One(old)) => merge(old, &new[i], shape.elements()),
        _ => new[i].clone(),
    };

    let mut out = Vec::with_capacity(old.len().max(new.len()));
    let mut next = 0;
    // The next of the configuration's elements that the object has too: the only one to wait for.
    let shared_from = |from: usize| (from..new.len()).find(|i| olds.contains_key(&new_names[*i]));
    let mut shared = shared_from(0);
    for (value, name) in old.iter().zip(&old_names) {
        match place.get(name.as_str()) {
            None => out.push(value.clone()),
            Some(i) if shared == Some(*i) => {
                out.extend((next..=*i).map(merged));
                next = i + 1;
                shared = shared_from(next);
            }
            // In another order than the configuration's: it comes when its turn there comes.
            Some(_) => {}
        }
    }
    out.extend((next..new.len()).map(merged));
    Value::Array(out)
}

/// Takes the fields of a set out of an object. What loses its last part that way becomes null.
pub(super) fn remove(value: &mut Value, fields: &Set, shape: Shape<'_>) {
    match (shape, &mut *value) {
        (Shape::Leaf, Value::Object(_) | Value::Array(_)) => *value = Value::Null,
        (Shape::Struct(_) | Shape::Map(_) | Shape::Node(_) | Shape::Custom | Shape::Deduced, Value::Object(map)) => {
            remove_parts(map, fields, shape);
            if map.is_empty() {
                *value = Value::Null;
            }
        }
        (Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_), Value::Array(list)) => {
            list.retain_mut(|item| {
                let element = shape.element(item);
                if set::has(fields, &element) {
                    return false;
                }
                if let Some(below) = set::below(fields, &element) {
                    remove(item, below, shape.elements());
                }
                true
            });
            if list.is_empty() {
                *value = Value::Null;
            }
        }
        _ => {}
    }
}

fn remove_parts(map: &mut Map<String, Value>, fields: &Set, shape: Shape<'_>) {
    map.retain(|name, value| {
        let element = element::field(name);
        if set::has(fields, &element) {
            return false;
        }
        if let Some(below) = set::below(fields, &element) {
            remove(value, below, shape.part(name).shape);
        }
        true
    });
}

/// Adds the struct fields that hold a path of the set but are not in it themselves.
pub(super) fn with_named_parents(mut fields: Set, shape: Shape<'_>) -> Set {
    let named: Vec<String> = fields
        .iter()
        .filter(|(element, below)| {
            let name = element.strip_prefix("f:");
            below.as_object().is_some_and(set::has_below) && name.is_some_and(|n| shape.part(n).named)
        })
        .map(|(element, _)| element.clone())
        .collect();
    for element in named {
        set::put_member(&mut fields, element);
    }
    for (element, below) in &mut fields {
        let of = match (element.strip_prefix("f:"), shape) {
            (Some(name), _) => shape.part(name).shape,
            (None, Shape::Keyed(..) | Shape::NodeKeyed(_)) => shape.elements(),
            (None, _) => continue,
        };
        if let Value::Object(map) = below {
            *below = Value::Object(with_named_parents(std::mem::take(map), of));
        }
    }
    fields
}
