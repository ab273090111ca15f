//! What all objects carry, and the values that many fields hold.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use crate::schema::{micro_time_text, time_text};
use crate::types::json::{deserialize, object, serialize};
use crate::types::{DecodeError, FromJson, ToJson};

object! {
    pub struct ObjectMeta {
        annotations: Option<BTreeMap<String, String>> = "annotations",
        creation_timestamp: Option<Time> = "creationTimestamp",
        deletion_grace_period_seconds: Option<i64> = "deletionGracePeriodSeconds",
        deletion_timestamp: Option<Time> = "deletionTimestamp",
        finalizers: Option<Vec<String>> = "finalizers",
        generate_name: Option<String> = "generateName",
        generation: Option<i64> = "generation",
        labels: Option<BTreeMap<String, String>> = "labels",
        managed_fields: Option<Vec<Value>> = "managedFields",
        name: Option<String> = "name",
        namespace: Option<String> = "namespace",
        owner_references: Option<Vec<OwnerReference>> = "ownerReferences",
        resource_version: Option<String> = "resourceVersion",
        self_link: Option<String> = "selfLink",
        uid: Option<String> = "uid",
    }
}

object! {
    pub struct OwnerReference {
        api_version: String = "apiVersion",
        block_owner_deletion: Option<bool> = "blockOwnerDeletion",
        controller: Option<bool> = "controller",
        kind: String = "kind",
        name: String = "name",
        uid: String = "uid",
    }
}

/// An amount as it was written, "100m" or "1Gi". `crate::quantity` computes with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantity(pub String);

/// A time in whole seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

/// A time in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroTime(pub Timestamp);

/// A number or a name, as of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntOrString {
    Int(i32),
    String(String),
}

/// Bytes, in base64 on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteString(pub Vec<u8>);

deserialize!(Quantity, Time, MicroTime, IntOrString, ByteString);
serialize!(Quantity, Time, MicroTime, IntOrString, ByteString);

impl FromJson for Quantity {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        self.0.read(value)
    }
}

impl ToJson for Quantity {
    fn write(&self) -> Option<Value> {
        self.0.write()
    }
}

fn timestamp(value: &Value) -> Result<Timestamp, DecodeError> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or(DecodeError::expected("an RFC 3339 time"))
}

impl FromJson for Time {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        self.0 = timestamp(&value)?;
        Ok(())
    }
}

impl ToJson for Time {
    fn write(&self) -> Option<Value> {
        Some(time_text(self.0).into())
    }
}

impl FromJson for MicroTime {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        self.0 = timestamp(&value)?;
        Ok(())
    }
}

impl ToJson for MicroTime {
    fn write(&self) -> Option<Value> {
        Some(micro_time_text(self.0).into())
    }
}

impl Default for IntOrString {
    fn default() -> IntOrString {
        IntOrString::Int(0)
    }
}

impl FromJson for IntOrString {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let number = |number: i64| i32::try_from(number).ok().map(IntOrString::Int);
        let read = match value {
            Value::String(text) => Some(IntOrString::String(text)),
            value => value.as_i64().and_then(number),
        };
        *self = read.ok_or(DecodeError::expected("a 32-bit integer or a string"))?;
        Ok(())
    }
}

impl ToJson for IntOrString {
    fn write(&self) -> Option<Value> {
        match self {
            IntOrString::Int(number) => number.write(),
            IntOrString::String(text) => text.write(),
        }
    }
}

impl FromJson for ByteString {
    fn read(&mut self, value: Value) -> Result<(), DecodeError> {
        let decoded = match &value {
            // An entry of a Secret without a value.
            Value::Null => Some(Vec::new()),
            value => value.as_str().and_then(|text| STANDARD.decode(text).ok()),
        };
        self.0 = decoded.ok_or(DecodeError::expected("a base64 string"))?;
        Ok(())
    }
}

impl ToJson for ByteString {
    fn write(&self) -> Option<Value> {
        Some(STANDARD.encode(&self.0).into())
    }
}
