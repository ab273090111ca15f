//! Puts together an object of a type, field by field, as Go would write it: zero values left out or filled in.

use serde_json::{Map, Value};

use super::{Field, Presence, Ty, Type, schema};

/// What Go writes for the zero value of a type.
pub fn zero(ty: &Ty) -> Value {
    match ty {
        Ty::String => Value::String(String::new()),
        Ty::Bool | Ty::SchemaOrBool(_) => Value::Bool(false),
        Ty::Int32 | Ty::Int64 | Ty::Float64 | Ty::IntOrString => Value::from(0),
        Ty::Quantity => Value::from("0"),
        Ty::Duration => Value::from("0s"),
        Ty::Struct(r) => Builder::new(schema().ty(*r)).finish(),
        Ty::Bytes
        | Ty::Time
        | Ty::MicroTime
        | Ty::Any
        | Ty::SchemaOrArray(_)
        | Ty::SchemaOrStrings(_)
        | Ty::List(_)
        | Ty::Items(_)
        | Ty::Map(_) => Value::Null,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0) || n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// The value to write for a field that was given as `value` (null: given as null or not at all), if any.
fn written(field: &Field, value: Value) -> Option<Value> {
    match field.presence {
        Presence::OmitEmpty => (!is_empty(&value)).then_some(value),
        Presence::Pointer => (!value.is_null()).then_some(value),
        Presence::Nullable => Some(value),
        // Stored and read back, an empty list is none.
        Presence::Always if matches!(&value, Value::Array(list) if list.is_empty()) => Some(Value::Null),
        Presence::Always if value.is_null() => Some(zero(&field.ty)),
        Presence::Always => Some(value),
    }
}

pub(crate) struct Builder {
    ty: &'static Type,
    map: Map<String, Value>,
    /// A bit per field that was given.
    seen: u128,
}

impl Builder {
    pub(crate) fn new(ty: &'static Type) -> Builder {
        Builder {
            ty,
            map: Map::new(),
            seen: 0,
        }
    }

    /// Whether the field was given before; from now on it was.
    pub(crate) fn see(&mut self, index: usize) -> bool {
        let bit = 1u128 << index;
        let before = self.seen & bit != 0;
        self.seen |= bit;
        before
    }

    /// Sets a field for which `see` was called; a later value replaces an earlier one.
    pub(crate) fn put(&mut self, index: usize, value: Value, again: bool) {
        let field = &self.ty.fields[index];
        match written(field, value) {
            Some(value) => {
                self.map.insert(field.name.to_string(), value);
            }
            None if again => {
                self.map.remove(field.name);
            }
            None => {}
        }
    }

    /// The list or map being collected in a field.
    pub(crate) fn collect(&mut self, index: usize, empty: fn() -> Value) -> &mut Value {
        let name = self.ty.fields[index].name;
        if !self.see(index) {
            self.map.insert(name.to_string(), empty());
        }
        self.map.get_mut(name).expect("it was inserted when first seen")
    }

    pub(crate) fn finish(mut self) -> Value {
        for &i in &self.ty.always {
            if self.seen & (1u128 << i) == 0 {
                let field = &self.ty.fields[usize::from(i)];
                if let Some(value) = written(field, Value::Null) {
                    self.map.insert(field.name.to_string(), value);
                }
            }
        }
        Value::Object(self.map)
    }
}
