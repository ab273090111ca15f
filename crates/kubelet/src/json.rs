//! API objects to and from `Value`, by way of text: serde makes the code that reads or writes a type anew for each format,
//! and for types as large as a pod that is minutes of building and megabytes of binary. None of this is hot.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Result, Value};

pub fn to_value(object: &impl Serialize) -> Result<Value> {
    serde_json::from_slice(&serde_json::to_vec(object)?)
}

pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T> {
    serde_json::from_slice(&serde_json::to_vec(value)?)
}
