//! Conversions between types.
//!
//! Upstream: ConvertToType in cel-go/common/types.

use super::{Body, Outcome, no_overload, time};
use crate::program::EvalError;
use crate::types::Type;
use crate::value::Value;
use std::fmt::Write;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("type", |args| one(args, |value| Ok(Value::Type(value.type_of())))),
    ("dyn", |args| one(args, |value| Ok(value.clone()))),
    ("bool", |args| one(args, to_bool)),
    ("bytes", |args| one(args, to_bytes)),
    ("double", |args| one(args, to_double)),
    ("int", |args| one(args, to_int)),
    ("uint", |args| one(args, to_uint)),
    ("string", |args| one(args, to_string)),
    ("duration", |args| one(args, to_duration)),
    ("timestamp", |args| one(args, to_timestamp)),
];

fn one<'a>(args: &[Value<'a>], convert: impl FnOnce(&Value<'a>) -> Outcome<'a>) -> Outcome<'a> {
    match args {
        [value] => convert(value),
        _ => no_overload(),
    }
}

fn cannot<'a>(value: &Value<'_>, to: &Type) -> Outcome<'a> {
    let from = value.type_of();
    Err(EvalError::new(format!(
        "type conversion error from '{}' to '{}'",
        from.name(),
        to.name()
    )))
}

fn to_bool<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Bool(bool) => Ok(Value::Bool(*bool)),
        Value::String(text) => match text.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => cannot(value, &Type::Bool),
        },
        _ => no_overload(),
    }
}

fn to_bytes<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Bytes(_) => Ok(value.clone()),
        Value::String(text) => Ok(Value::Bytes(text.as_bytes().into())),
        _ => no_overload(),
    }
}

/// A number as Go reads it: Rust's syntax, less what only Rust takes.
fn go_double(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    if ["inf", "infinity", "nan"].contains(&lower.as_str()) {
        return text.to_ascii_lowercase().parse().ok();
    }
    let number: f64 = text.parse().ok()?;
    number.is_finite().then_some(number)
}

fn to_double<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Double(_) => Ok(value.clone()),
        Value::Int(int) => Ok(Value::Double(*int as f64)),
        Value::Uint(uint) => Ok(Value::Double(*uint as f64)),
        Value::String(text) => go_double(text).map_or_else(|| cannot(value, &Type::Double), |d| Ok(Value::Double(d))),
        _ => no_overload(),
    }
}

fn to_int<'a>(value: &Value<'a>) -> Outcome<'a> {
    let overflow = || EvalError::new("integer overflow");
    match value {
        Value::Int(_) => Ok(value.clone()),
        Value::Uint(uint) => i64::try_from(*uint).map(Value::Int).map_err(|_| overflow()),
        Value::Double(double) => {
            // The bounds themselves are refused, as upstream does: they may be rounded.
            let inside = *double > i64::MIN as f64 && *double < i64::MAX as f64;
            if inside {
                Ok(Value::Int(*double as i64))
            } else {
                Err(overflow())
            }
        }
        Value::String(text) => text.parse().map(Value::Int).or_else(|_| cannot(value, &Type::Int)),
        Value::Timestamp(time) => Ok(Value::Int(time.at.as_nanosecond().div_euclid(1_000_000_000) as i64)),
        Value::Duration(nanos) => Ok(Value::Int(*nanos)),
        _ => no_overload(),
    }
}

fn to_uint<'a>(value: &Value<'a>) -> Outcome<'a> {
    let overflow = || EvalError::new("unsigned integer overflow");
    match value {
        Value::Uint(_) => Ok(value.clone()),
        Value::Int(int) => u64::try_from(*int).map(Value::Uint).map_err(|_| overflow()),
        Value::Double(double) => {
            let inside = *double >= 0.0 && *double < u64::MAX as f64;
            if inside {
                Ok(Value::Uint(*double as u64))
            } else {
                Err(overflow())
            }
        }
        Value::String(text) if !text.starts_with('+') => {
            text.parse().map(Value::Uint).or_else(|_| cannot(value, &Type::Uint))
        }
        Value::String(_) => cannot(value, &Type::Uint),
        _ => no_overload(),
    }
}

/// A double as Go's `%g` writes it.
pub(crate) fn double_text(double: f64) -> String {
    if double.is_nan() {
        return "NaN".to_string();
    }
    if double.is_infinite() {
        return if double > 0.0 { "+Inf" } else { "-Inf" }.to_string();
    }
    let scientific = format!("{double:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{double}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let mut text = digits.to_string();
    let _ = write!(text, "e{sign}{:02}", exponent.abs());
    text
}

fn to_string<'a>(value: &Value<'a>) -> Outcome<'a> {
    Ok(match value {
        Value::String(_) => value.clone(),
        Value::Bool(bool) => Value::string(bool.to_string()),
        Value::Int(int) => Value::string(int.to_string()),
        Value::Uint(uint) => Value::string(uint.to_string()),
        Value::Double(double) => Value::string(double_text(*double)),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::string(text),
            Err(_) => return Err(EvalError::new("invalid UTF-8 in bytes, cannot convert to string")),
        },
        Value::Timestamp(at) => Value::string(time::timestamp_text(at)),
        Value::Duration(nanos) => Value::string(time::duration_text(*nanos)),
        Value::Ip(ip) => Value::string(ip.to_string()),
        Value::Cidr(cidr) => Value::string(cidr.to_string()),
        _ => return no_overload(),
    })
}

fn to_duration<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Duration(_) => Ok(value.clone()),
        Value::Int(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => match orlop_api::duration::parse_duration(text) {
            Ok(nanos) => Ok(Value::Duration(nanos)),
            Err(_) => cannot(value, &Type::Duration),
        },
        _ => no_overload(),
    }
}

fn to_timestamp<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Timestamp(_) => Ok(value.clone()),
        Value::Int(seconds) => time::of_seconds(*seconds).map(Value::Timestamp),
        Value::String(text) => match time::parse_timestamp(text) {
            Some(at) => time::in_range(at).map(Value::Timestamp),
            None => cannot(value, &Type::Timestamp),
        },
        _ => no_overload(),
    }
}
