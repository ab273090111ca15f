//! From JSON to values by their declared types, and back.
//!
//! Upstream: apiserver/pkg/cel/common/valuesunstructured.go (UnstructuredToVal).

use super::{List, Map, Text, Value};
use crate::decl::{DeclType, Shape};
use crate::library::time;
use crate::program::EvalError;
use crate::types::Type;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map as JsonMap, Number, Value as Json};

/// Why a value has no form in JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("unsupported conversion from {0} to JSON")]
    Type(String),
    #[error("map key is of type {0}, not string")]
    Key(String),
    #[error("{0} has no form in JSON")]
    Number(String),
    #[error(transparent)]
    Value(#[from] EvalError),
}

/// The name of a JSON type, as Go's messages have it.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

pub(super) fn declared<'a>(json: &'a Json, decl: &'a DeclType) -> Result<Value<'a>, EvalError> {
    let ty = match decl.ty() {
        Type::Optional(_) => return declared_inside(json, decl).map(|value| Value::Optional(Some(value.into()))),
        ty => ty,
    };
    if json.is_null() {
        if decl.is_nullable() || (matches!(ty, Type::Dyn | Type::Null) && !matches!(decl.shape(), Shape::IntOrString)) {
            return Ok(Value::Null);
        }
        return Err(EvalError::new("invalid data, got null for schema with nullable=false"));
    }
    declared_inside(json, decl)
}

fn declared_inside<'a>(json: &'a Json, decl: &'a DeclType) -> Result<Value<'a>, EvalError> {
    let invalid = |wanted: &str| EvalError::new(format!("invalid data, expected {wanted}, got {}", go_type(json)));
    let ty = match decl.ty() {
        Type::Optional(inner) => inner,
        ty => ty,
    };
    match (decl.shape(), json) {
        (Shape::Object(_) | Shape::Map { .. }, Json::Object(entries)) => {
            return Ok(Value::Map(Map::Json(entries, Some(decl))));
        }
        (Shape::Object(_) | Shape::Map { .. }, _) => {
            return Err(EvalError::new(
                "invalid data, expected a map for the provided schema with type=object",
            ));
        }
        (Shape::List { .. }, Json::Array(items)) => return Ok(Value::List(List::Json(items, Some(decl)))),
        (Shape::List { .. }, _) => {
            return Err(EvalError::new(
                "invalid data, expected an array for the provided schema with type=array",
            ));
        }
        (Shape::IntOrString, Json::String(_)) => return Ok(Value::json(json)),
        (Shape::IntOrString, Json::Number(number)) if number.is_i64() => return Ok(Value::json(json)),
        (Shape::IntOrString, _) => {
            let why = "invalid data, expected XIntOrString value to be either a string or integer";
            return Err(EvalError::new(why));
        }
        (Shape::Scalar, _) => {}
    }
    match (ty, json) {
        (Type::Bool, Json::Bool(bool)) => Ok(Value::Bool(*bool)),
        (Type::Bool, _) => Err(invalid("bool")),
        (Type::Int, Json::Number(number)) => number.as_i64().map(Value::Int).ok_or_else(|| invalid("int")),
        (Type::Int, _) => Err(invalid("int")),
        (Type::Double, Json::Number(number)) => Ok(Value::Double(number.as_f64().unwrap_or(f64::NAN))),
        (Type::Double, _) => Err(invalid("float")),
        (Type::String, Json::String(text)) => Ok(Value::String(Text::Borrowed(text))),
        (Type::Duration, Json::String(text)) => {
            let nanos = time::parse_duration(text);
            let nanos = nanos.map_err(|why| EvalError::new(format!("Invalid duration {text}: {why}")))?;
            Ok(Value::Duration(nanos))
        }
        (Type::Timestamp, Json::String(text)) => {
            let parsed = time::parse_date_or_time(text);
            parsed
                .map(Value::Timestamp)
                .ok_or_else(|| EvalError::new(format!("Invalid date-time formatted string {text}")))
        }
        (Type::Bytes, Json::String(text)) => {
            let bytes = BASE64_STANDARD.decode(text);
            let bytes = bytes.map_err(|why| EvalError::new(format!("Invalid byte formatted string {text}: {why}")))?;
            Ok(Value::Bytes(bytes.into()))
        }
        (Type::String | Type::Duration | Type::Timestamp | Type::Bytes, _) => Err(invalid("string")),
        _ => Ok(Value::json(json)),
    }
}

pub(super) fn to_json(value: &Value<'_>) -> Result<Json, JsonError> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(bool) => Json::Bool(*bool),
        Value::Int(int) => Json::from(*int),
        Value::Uint(uint) => Json::from(*uint),
        Value::Double(double) => {
            Json::Number(Number::from_f64(*double).ok_or_else(|| JsonError::Number(double.to_string()))?)
        }
        Value::String(text) => Json::String(text.to_string()),
        Value::Bytes(bytes) => Json::String(BASE64_STANDARD.encode(bytes)),
        Value::Timestamp(at) => Json::String(time::timestamp_text(at)),
        Value::Duration(nanos) => Json::String(time::duration_text(*nanos)),
        Value::List(List::Json(items, _)) => Json::Array(items.to_vec()),
        Value::List(list) => Json::Array(list.iter().map(|item| to_json(&item?)).collect::<Result<_, _>>()?),
        Value::Map(Map::Json(entries, _)) => Json::Object((*entries).clone()),
        Value::Map(Map::Shared(entries)) => {
            let mut object = JsonMap::new();
            for (key, value) in entries.iter() {
                let key = key
                    .as_str()
                    .ok_or_else(|| JsonError::Key(key.type_of().name().to_string()))?;
                object.insert(key.to_string(), to_json(value)?);
            }
            Json::Object(object)
        }
        Value::Object(object) => {
            let fields = object.fields.iter();
            let fields = fields.map(|(name, value)| Ok::<_, JsonError>((name.clone(), to_json(value)?)));
            Json::Object(fields.collect::<Result<_, _>>()?)
        }
        Value::Quantity(quantity) => Json::String(quantity.canonical()),
        Value::Url(url) => Json::String(url.text().to_string()),
        Value::Ip(ip) => Json::String(ip.to_string()),
        Value::Cidr(cidr) => Json::String(cidr.to_string()),
        Value::Semver(version) => Json::String(version.to_string()),
        Value::Optional(Some(inner)) => to_json(inner)?,
        _ => return Err(JsonError::Type(value.type_of().name().to_string())),
    })
}
