//! The metadata of embedded resources: read as an ObjectMeta, and validated like that of any object.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/objectmeta (v1.36).

use serde_json::Value;

use super::Structural;
use crate::field::{Cursor, Path, ProblemKind, Problems, shown};
use crate::schema::{DecodeError, from_value, schema};
use crate::{meta, names};

/// Metadata that is none: where, what stands there, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: Invalid value: {value}: {detail}")]
pub struct MetadataError {
    field: String,
    value: String,
    detail: String,
}

impl MetadataError {
    pub fn report(self, p: &mut Problems) {
        let place = Path::default().member(&self.field);
        p.push(ProblemKind::Invalid, &place, Some(self.value), self.detail);
    }
}

/// Reads the metadata of embedded resources (and of the root's if `root`) as ObjectMeta: unknown fields go, wrong types
/// are refused. `at` is where the value stands. The result is the paths of what was removed.
pub fn coerce_metadata(
    schema: &Structural,
    value: &mut Value,
    root: bool,
    at: &Path,
) -> Result<Vec<String>, MetadataError> {
    let mut removed = vec![];
    if root || schema.embedded_resource || schema.has_embedded {
        coerce(schema, value, root, at, &mut removed)?;
    }
    removed.sort();
    Ok(removed)
}

fn coerce(
    schema: &Structural,
    value: &mut Value,
    root: bool,
    at: &Path,
    removed: &mut Vec<String>,
) -> Result<(), MetadataError> {
    match value {
        Value::Object(map) => {
            let embedded = root || schema.embedded_resource;
            for (name, value) in map {
                if embedded {
                    coerce_member(name, value, at, removed)?;
                }
                if let Some(property) = schema.property(name) {
                    coerce(property, value, false, &at.member(name), removed)?;
                } else if let Some(additional) = schema.additional_schema() {
                    coerce(additional, value, false, &at.key(name), removed)?;
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_deref() else {
                return Ok(());
            };
            for (i, value) in list.iter_mut().enumerate() {
                coerce(items, value, false, &at.index(i), removed)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn coerce_member(name: &str, value: &mut Value, at: &Path, removed: &mut Vec<String>) -> Result<(), MetadataError> {
    match name {
        "apiVersion" | "kind" if !value.is_string() => Err(invalid(&at.member(name), value, "must be a string")),
        "metadata" => {
            let given = value.take();
            match object_meta(given.clone()) {
                Ok((meta, unknown)) => {
                    *value = meta;
                    let prefix = at.member(name).to_string();
                    removed.extend(unknown.into_iter().map(|path| format!("{prefix}.{path}")));
                    Ok(())
                }
                Err(e) => {
                    let refused = invalid(&at.member(name), &given, &e.to_string());
                    *value = given;
                    Err(refused)
                }
            }
        }
        _ => Ok(()),
    }
}

fn invalid(at: &Path, value: &Value, detail: &str) -> MetadataError {
    MetadataError {
        field: at.to_string(),
        value: shown(Some(value)),
        detail: detail.to_string(),
    }
}

/// A value read as ObjectMeta, and the paths of fields that ObjectMeta does not have.
pub(super) fn object_meta(value: Value) -> Result<(Value, Vec<String>), DecodeError> {
    if value.is_null() {
        return Ok((Value::Object(Default::default()), vec![]));
    }
    let ty = schema().get("meta/v1.ObjectMeta").expect("the table has ObjectMeta");
    let decoded = from_value(value, ty)?;
    let path_of = |problem: &String| {
        let path = problem.split_once('"')?.1;
        Some(path.trim_end_matches('"').to_string())
    };
    let unknown = decoded.problems.iter().filter_map(path_of).collect();
    Ok((decoded.value, unknown))
}

/// Validates apiVersion, kind and metadata of embedded resources (of the root too if `root`).
pub fn validate_metadata(schema: &Structural, value: &Value, root: bool, at: &Path, p: &mut Problems) {
    if !(root || schema.embedded_resource || schema.has_embedded) {
        return;
    }
    match value {
        Value::Object(map) => {
            if root || schema.embedded_resource {
                validate_embedded(value, at, p);
            }
            for (name, value) in map {
                if let Some(property) = schema.property(name) {
                    validate_metadata(property, value, false, &at.member(name), p);
                } else if let Some(additional) = schema.additional_schema() {
                    validate_metadata(additional, value, false, &at.key(name), p);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_deref() else { return };
            for (i, value) in list.iter().enumerate() {
                validate_metadata(items, value, false, &at.index(i), p);
            }
        }
        _ => {}
    }
}

fn validate_embedded(value: &Value, at: &Path, p: &mut Problems) {
    for name in ["apiVersion", "kind"] {
        let place = at.field(name);
        match value.get(name) {
            None => p.push(ProblemKind::Required, &place, None, ""),
            Some(Value::String(text)) if text.is_empty() => {
                p.invalid_value(&place, &text.as_str().into(), "must not be empty");
            }
            Some(Value::String(text)) if name == "kind" => {
                let errors = names::dns_1035_label(&text.to_lowercase());
                if !errors.is_empty() {
                    let detail = format!("may have mixed case, but should otherwise match: {}", errors.join(","));
                    p.invalid_value(&place, &text.as_str().into(), detail);
                }
            }
            Some(Value::String(text)) if text.matches('/').count() > 1 => {
                let detail = format!("unexpected GroupVersion string: {text}");
                p.invalid_value(&place, &text.as_str().into(), detail);
            }
            Some(Value::String(_)) => {}
            Some(other) => p.invalid_value(&place, other, "must be a string"),
        }
    }
    if let Some(metadata) = value.get("metadata") {
        validate_object_meta(metadata, &at.field("metadata"), p);
    }
}

fn validate_object_meta(metadata: &Value, at: &Path, p: &mut Problems) {
    let mut metadata = match object_meta(metadata.clone()) {
        Ok((metadata, _)) => metadata,
        Err(e) => return p.invalid_value(at, metadata, e.to_string()),
    };
    let has = |name: &str| {
        metadata
            .get(name)
            .and_then(Value::as_str)
            .is_some_and(|s| !s.is_empty())
    };
    let namespaced = has("namespace");
    if !has("name") {
        // An embedded resource needs no name; anything will do for the check.
        metadata["name"] = "fakename".into();
    }
    let cursor = Cursor::new(Some(&metadata), at.clone());
    meta::validate_create(&cursor, namespaced, names::path_segment, p);
}
