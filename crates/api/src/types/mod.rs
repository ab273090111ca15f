//! Structs of the kinds that a node agent reads and writes: pods, nodes, and what pods refer to.
//!
//! The server has no use for them (it works on values by schema, see `crate::schema`); components that read many fields of
//! an object do. Names and shapes are those of Kubernetes' Go types: what is optional there is an `Option` and left out
//! when it is `None`, the rest is always written. Decoding takes what any server sends: unknown fields are ignored, and
//! `null` is as good as absent.
//!
//! Kinds that are written as a whole (`kind!`: Pod, Node, Lease, CSINode, TokenRequest) have all their fields, so that a
//! read followed by a write loses nothing; parts that nobody looks into are a `Value`. Kinds that are only read
//! (`partial!`) have the fields that somebody reads and can't be encoded. To add a field, add its line.

use serde_json::Value;

pub mod authentication;
pub mod coordination;
pub mod core;
mod json;
pub mod meta;
pub mod storage;

#[cfg(test)]
mod tests;

pub use json::{DecodeError, FromJson, ToJson};

pub fn from_value<T: FromJson + Default>(value: Value) -> Result<T, DecodeError> {
    let mut object = T::default();
    object.read(value)?;
    Ok(object)
}

pub fn to_value(object: &impl ToJson) -> Value {
    object.write().unwrap_or_default()
}
