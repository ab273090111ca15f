//! From JSON to structs and back.
//!
//! Every struct is a table of its fields: the JSON name and where the value goes. What walks the tables is written once,
//! not generated for each type. Serde's derive gives about four hundred lines of intermediate code a field, for each format
//! and again in each crate that decodes; for types as many and as wide as a pod's that is much of a build and megabytes of
//! binary. None of this is hot: an object is decoded once for each change of it.
//!
//! `Deserialize` and `Serialize` are there for whoever is generic over them (the client), by way of a `Value`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// Why a value is no object of a type, and where in it.
#[derive(Debug)]
pub struct DecodeError {
    path: String,
    expected: &'static str,
}

impl DecodeError {
    pub(super) fn expected(expected: &'static str) -> DecodeError {
        let path = String::new();
        DecodeError { path, expected }
    }

    fn within(mut self, name: &str) -> DecodeError {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{name}{dot}{}", self.path);
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "expected {}", self.expected),
            path => write!(f, "{path}: expected {}", self.expected),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A value that can be read from JSON into the place where it is kept.
pub trait FromJson {
    fn read(&mut self, value: Value) -> Result<(), DecodeError>;
}

/// A value that can be written as JSON; `None` if the field is to be left out.
pub trait ToJson {
    fn write(&self) -> Option<Value>;
}

pub(super) fn read_object(value: Value, fields: &mut [(&str, &mut dyn FromJson)]) -> Result<(), DecodeError> {
    let Value::Object(mut object) = value else {
        return Err(DecodeError::expected("an object"));
    };
    for (name, field) in fields {
        // Null is as good as absent.
        if let Some(value) = object.remove(*name).filter(|value| !value.is_null()) {
            field.read(value).map_err(|e| e.within(name))?;
        }
    }
    Ok(())
}

pub(super) fn write_object(fields: &[(&str, &dyn ToJson)]) -> Map<String, Value> {
    let present = fields.iter().filter_map(|(name, field)| Some((*name, field.write()?)));
    present.map(|(name, value)| (name.to_string(), value)).collect()
}

impl<T: FromJson + Default> FromJson for Option<T> {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        self.insert(T::default()).read(value)
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn write(&self) -> Option<Value> {
        self.as_ref()?.write()
    }
}

impl<T: FromJson + Default> FromJson for Vec<T> {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let Value::Array(items) = value else {
            return Err(DecodeError::expected("a list"));
        };
        self.reserve_exact(items.len());
        for (i, item) in items.into_iter().enumerate() {
            let mut element = T::default();
            element.read(item).map_err(|e| e.within(&format!("[{i}]")))?;
            self.push(element);
        }
        Ok(())
    }
}

impl<T: ToJson> ToJson for Vec<T> {
    fn write(&self) -> Option<Value> {
        let items = self.iter().map(|item| item.write().unwrap_or_default());
        Some(Value::Array(items.collect()))
    }
}

impl<T: FromJson + Default> FromJson for BTreeMap<String, T> {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let Value::Object(object) = value else {
            return Err(DecodeError::expected("an object"));
        };
        for (key, value) in object {
            let mut element = T::default();
            element.read(value).map_err(|e| e.within(&key))?;
            self.insert(key, element);
        }
        Ok(())
    }
}

impl<T: ToJson> ToJson for BTreeMap<String, T> {
    fn write(&self) -> Option<Value> {
        let entries = self
            .iter()
            .map(|(key, value)| (key.clone(), value.write().unwrap_or_default()));
        Some(Value::Object(entries.collect()))
    }
}

impl FromJson for Value {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        *self = value;
        Ok(())
    }
}

impl ToJson for Value {
    fn write(&self) -> Option<Value> {
        Some(self.clone())
    }
}

impl FromJson for String {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let Value::String(text) = value else {
            return Err(DecodeError::expected("a string"));
        };
        *self = text;
        Ok(())
    }
}

impl ToJson for String {
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.clone()))
    }
}

impl FromJson for bool {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        *self = value.as_bool().ok_or(DecodeError::expected("a boolean"))?;
        Ok(())
    }
}

impl ToJson for bool {
    fn write(&self) -> Option<Value> {
        Some(Value::Bool(*self))
    }
}

impl FromJson for i64 {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        *self = value.as_i64().ok_or(DecodeError::expected("a 64-bit integer"))?;
        Ok(())
    }
}

impl ToJson for i64 {
    fn write(&self) -> Option<Value> {
        Some(Value::from(*self))
    }
}

impl FromJson for i32 {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
        *self = number.ok_or(DecodeError::expected("a 32-bit integer"))?;
        Ok(())
    }
}

impl ToJson for i32 {
    fn write(&self) -> Option<Value> {
        Some(Value::from(*self))
    }
}

/// `Deserialize` for what can be read.
macro_rules! deserialize {
    ($($type:ident),*) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let value = serde_json::Value::deserialize(deserializer)?;
                crate::types::from_value(value).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

/// `Serialize` for what can be written.
macro_rules! serialize {
    ($($type:ident),*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                crate::types::to_value(self).serialize(serializer)
            }
        }
    )*};
}

/// A struct with the fields that somebody reads; it can't be encoded.
macro_rules! partial {
    (pub struct $name:ident { $($field:ident: $type:ty = $json:literal,)* }) => {
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl crate::types::FromJson for $name {
            fn read(&mut self, value: serde_json::Value) -> Result<(), crate::types::DecodeError> {
                crate::types::json::read_object(value, &mut [$(($json, &mut self.$field)),*])
            }
        }

        crate::types::json::deserialize!($name);
    };
}

/// A struct with all its fields.
macro_rules! object {
    (pub struct $name:ident { $($field:ident: $type:ty = $json:literal,)* }) => {
        crate::types::json::partial! { pub struct $name { $($field: $type = $json,)* } }

        impl crate::types::ToJson for $name {
            fn write(&self) -> Option<serde_json::Value> {
                let fields = crate::types::json::write_object(&[$(($json, &self.$field)),*]);
                Some(serde_json::Value::Object(fields))
            }
        }

        crate::types::json::serialize!($name);
    };
}

/// A kind with all its fields, written with its `apiVersion` and `kind`.
macro_rules! kind {
    ($version:literal; pub struct $name:ident { $($field:ident: $type:ty = $json:literal,)* }) => {
        crate::types::json::partial! { pub struct $name { $($field: $type = $json,)* } }

        impl crate::types::ToJson for $name {
            fn write(&self) -> Option<serde_json::Value> {
                let mut fields = crate::types::json::write_object(&[$(($json, &self.$field)),*]);
                fields.insert("apiVersion".to_string(), $version.into());
                fields.insert("kind".to_string(), stringify!($name).into());
                Some(serde_json::Value::Object(fields))
            }
        }

        crate::types::json::serialize!($name);
    };
}

pub(super) use {deserialize, kind, object, partial, serialize};
