//! Filling in what an object leaves out: the few moves that defaults are made of.

use serde_json::{Map, Value};

/// `object[name] = value`, if nothing (or null) is there.
pub(crate) fn absent(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut()
        && map.get(name).is_none_or(Value::is_null)
    {
        map.insert(name.to_string(), value.into());
    }
}

/// `object[name] = value`, if nothing, or an empty string or list, is there.
pub(crate) fn empty(object: &mut Value, name: &str, value: impl Into<Value>) {
    let is_empty = match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Array(a)) => a.is_empty(),
        Some(_) => false,
    };
    if is_empty && let Some(map) = object.as_object_mut() {
        map.insert(name.to_string(), value.into());
    }
}

/// The object at `object[name]`, made empty if it is not there: for structs that Go never leaves out.
pub(crate) fn member<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let slot = &mut object[name];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot
}

/// The elements of the list at `object[name]`, if there is one.
pub(crate) fn items<'a>(object: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}
