//! The writer. Its bytes are those of Kubernetes' generated marshallers: fields in order of their numbers, map entries
//! in order of their keys, and plain values written even when zero.

use serde_json::Value;

use super::MAGIC;
use crate::duration::parse_duration;
use crate::schema::{Presence, Ty, Type, TypeRef, Wire, base64_bytes, parse_micro_time, parse_time, schema};

/// An object in its envelope.
pub fn encode(value: &Value, api_version: &str, kind: &str, ty: TypeRef) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(MAGIC);
    nested(&mut out, 1, |out| {
        text(out, 1, api_version);
        text(out, 2, kind);
    });
    nested(&mut out, 2, |out| message(out, value, schema().ty(ty)));
    text(&mut out, 3, "");
    text(&mut out, 4, "");
    out
}

/// A bare message.
pub fn encode_message(value: &Value, ty: TypeRef) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    message(&mut out, value, schema().ty(ty));
    out
}

/// A meta/v1.WatchEvent around an object that is encoded already.
pub fn encode_watch_event(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + 32);
    text(&mut out, 1, kind);
    nested(&mut out, 2, |out| bytes(out, 1, object));
    out
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn key(out: &mut Vec<u8>, number: u32, wire_type: u32) {
    varint(out, u64::from(number << 3 | wire_type));
}

fn number(out: &mut Vec<u8>, field: u32, n: i64) {
    key(out, field, 0);
    varint(out, n as u64);
}

fn bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    key(out, field, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn text(out: &mut Vec<u8>, field: u32, text: &str) {
    bytes(out, field, text.as_bytes());
}

/// A field whose length is known only after it was written. Most are short: one byte is set aside for the length, and
/// longer content is moved up.
fn nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, 2);
    let start = out.len();
    out.push(0);
    write(out);
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(5);
    varint(&mut prefix, length as u64);
    let end = out.len();
    out.resize(end + prefix.len() - 1, 0);
    out.copy_within(start + 1..end, start + prefix.len());
    out[start..start + prefix.len()].copy_from_slice(&prefix);
}

fn message(out: &mut Vec<u8>, value: &Value, ty: &Type) {
    fields(out, value, ty, &ty.wire);
}

fn fields(out: &mut Vec<u8>, value: &Value, ty: &Type, wire: &[(u32, Wire)]) {
    for (number, wire) in wire {
        match wire {
            Wire::Inline(inner) => nested(out, *number, |out| fields(out, value, ty, inner)),
            Wire::Field(index) => {
                let field = &ty.fields[usize::from(*index)];
                let given = value.get(field.name).unwrap_or(&Value::Null);
                let pointer = matches!(field.presence, Presence::Pointer | Presence::Nullable);
                match &field.ty {
                    Ty::List(item) => {
                        for element in given.as_array().into_iter().flatten() {
                            one(out, *number, element, item);
                        }
                    }
                    Ty::Map(value) => {
                        for (name, element) in given.as_object().into_iter().flatten() {
                            nested(out, *number, |out| {
                                text(out, 1, name);
                                if !(element.is_null() && no_zero(value)) {
                                    one(out, 2, element, value);
                                }
                            });
                        }
                    }
                    ty if given.is_null() && (pointer || no_zero(ty)) => {}
                    ty => one(out, *number, given, ty),
                }
            }
        }
    }
}

/// Types whose zero value is nil in Go, which has no wire form even where plain zeros are written.
fn no_zero(ty: &Ty) -> bool {
    matches!(ty, Ty::Bytes | Ty::Items(_))
}

fn one(out: &mut Vec<u8>, field: u32, value: &Value, ty: &Ty) {
    let str = value.as_str().unwrap_or_default();
    match ty {
        Ty::String => text(out, field, str),
        Ty::Bytes => bytes(out, field, &base64_bytes(str).unwrap_or_default()),
        Ty::Bool => number(out, field, i64::from(value.as_bool().unwrap_or_default())),
        Ty::Int32 | Ty::Int64 => number(out, field, value.as_i64().unwrap_or_default()),
        Ty::Float64 => {
            key(out, field, 1);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        Ty::Quantity => nested(out, field, |out| text(out, 1, if str.is_empty() { "0" } else { str })),
        Ty::IntOrString => nested(out, field, |out| {
            number(out, 1, i64::from(value.is_string()));
            number(out, 2, value.as_i64().unwrap_or_default());
            text(out, 3, str);
        }),
        Ty::Time => time(out, field, parse_time(str).ok().flatten().map(|at| (at.as_second(), 0))),
        Ty::MicroTime => {
            let at = parse_micro_time(str).ok().flatten();
            // Nanoseconds count forward from the second, before 1970 too.
            let parts = at.map(|at| {
                let nanos = at.as_nanosecond();
                (
                    nanos.div_euclid(1_000_000_000) as i64,
                    nanos.rem_euclid(1_000_000_000) as i64,
                )
            });
            time(out, field, parts);
        }
        Ty::Duration => nested(out, field, |out| {
            number(out, 1, parse_duration(str).unwrap_or_default())
        }),
        Ty::Any => nested(out, field, |out| {
            if !value.is_null() {
                let json = serde_json::to_vec(value).expect("a value is always JSON");
                bytes(out, 1, &json);
            }
        }),
        Ty::Struct(r) => nested(out, field, |out| message(out, value, schema().ty(*r))),
        Ty::SchemaOrBool(r) => nested(out, field, |out| {
            number(out, 1, i64::from(value.as_bool().unwrap_or(value.is_object())));
            if value.is_object() {
                nested(out, 2, |out| message(out, value, schema().ty(*r)));
            }
        }),
        Ty::SchemaOrArray(r) => nested(out, field, |out| union(out, value, *r, &Ty::Struct(*r))),
        Ty::SchemaOrStrings(r) => nested(out, field, |out| union(out, value, *r, &Ty::String)),
        Ty::Items(item) => nested(out, field, |out| {
            for element in value.as_array().into_iter().flatten() {
                one(out, 1, element, item);
            }
        }),
        // A list in a list: no type of the table has one.
        Ty::List(_) | Ty::Map(_) => {}
    }
}

fn time(out: &mut Vec<u8>, field: u32, at: Option<(i64, i64)>) {
    nested(out, field, |out| {
        if let Some((seconds, nanos)) = at {
            number(out, 1, seconds);
            number(out, 2, nanos);
        }
    });
}

fn union(out: &mut Vec<u8>, value: &Value, r: TypeRef, item: &Ty) {
    match value {
        Value::Object(_) => nested(out, 1, |out| message(out, value, schema().ty(r))),
        Value::Array(list) => list.iter().for_each(|element| one(out, 2, element, item)),
        _ => {}
    }
}
