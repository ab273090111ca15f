//! Kubernetes' protobuf encoding, transcoded from and to the JSON shape with the table of types: one reader and one
//! writer for all kinds. What is read has exactly the shape `schema::decode_json` gives.
//!
//! An object on the wire is the bytes `k8s\0` and a message (runtime.Unknown) with its apiVersion and kind, in which
//! the object's own message is wrapped. Upstream: apimachinery/pkg/runtime/serializer/protobuf (v1.36).

mod read;
mod write;

use serde_json::Value;

use crate::schema::{TypeMeta, TypeRef, schema};

pub use read::decode_message;
pub use write::{encode, encode_message, encode_watch_event};

pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every enveloped object starts with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Why bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("proto: {0}")]
pub struct ProtoError(pub String);

impl ProtoError {
    fn new(text: impl Into<String>) -> ProtoError {
        ProtoError(text.into())
    }
}

/// Takes the envelope off: what the object is, and its message.
pub fn open(bytes: &[u8]) -> Result<(TypeMeta, &[u8]), ProtoError> {
    let Some(unknown) = bytes.strip_prefix(MAGIC) else {
        return Err(ProtoError::new(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ));
    };
    read::envelope(unknown)
}

/// Reads an enveloped object of a built-in kind: its apiVersion, its kind, and the object.
pub fn decode(bytes: &[u8]) -> Result<(String, String, Value), ProtoError> {
    read::object(bytes, 0)
}

/// Reads an enveloped object as a type known beforehand, whatever it says it is.
pub fn decode_as(bytes: &[u8], ty: TypeRef) -> Result<(TypeMeta, Value), ProtoError> {
    let (meta, raw) = open(bytes)?;
    let mut value = decode_message(raw, ty)?;
    name(&mut value, &meta);
    Ok((meta, value))
}

/// Writes apiVersion and kind, which are in the envelope only, into the object.
fn name(value: &mut Value, meta: &TypeMeta) {
    for (member, word) in [("apiVersion", &meta.api_version), ("kind", &meta.kind)] {
        if let Some(map) = value.as_object_mut()
            && !word.is_empty()
        {
            map.insert(member.to_string(), Value::String(word.clone()));
        }
    }
}

fn type_of(meta: &TypeMeta) -> Result<TypeRef, ProtoError> {
    schema().kind(&meta.api_version, &meta.kind).ok_or_else(|| {
        ProtoError::new(format!(
            "no kind {:?} is registered for version {:?}",
            meta.kind, meta.api_version
        ))
    })
}

#[cfg(test)]
mod tests;
