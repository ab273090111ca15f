//! The reader. It trusts nothing: lengths are checked against what is there, and nesting is bounded.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{MAGIC, ProtoError, name, open, type_of};
use crate::duration::duration_text;
use crate::quantity::Quantity;
use crate::schema::{
    Builder, MAX_DEPTH, Ty, Type, TypeMeta, TypeRef, Wire, any_json, base64_text, float, micro_time_text, schema,
    time_text, unless_zero, zero,
};

type Result<T> = std::result::Result<T, ProtoError>;

/// Reads a bare message of a type.
pub fn decode_message(raw: &[u8], ty: TypeRef) -> Result<Value> {
    message(raw, ty, 1)
}

/// Reads an enveloped object that stands `depth` levels deep in another.
pub(super) fn object(bytes: &[u8], depth: u32) -> Result<(String, String, Value)> {
    let (meta, raw) = open(bytes)?;
    let mut value = message(raw, type_of(&meta)?, depth + 1)?;
    name(&mut value, &meta);
    Ok((meta.api_version, meta.kind, value))
}

/// Reads runtime.Unknown.
pub(super) fn envelope(bytes: &[u8]) -> Result<(TypeMeta, &[u8])> {
    let mut meta = TypeMeta::default();
    let mut raw: &[u8] = &[];
    let mut fields = Fields(bytes);
    while let Some((number, data)) = fields.next()? {
        match number {
            1 => meta = type_meta(data.bytes()?)?,
            2 => raw = data.bytes()?,
            3 if !data.bytes()?.is_empty() => return Err(ProtoError::new("content encodings are not supported")),
            4 => match data.text()? {
                "" | super::CONTENT_TYPE => {}
                other => return Err(ProtoError::new(format!("content type {other:?} inside protobuf"))),
            },
            _ => {}
        }
    }
    Ok((meta, raw))
}

fn type_meta(bytes: &[u8]) -> Result<TypeMeta> {
    let mut meta = TypeMeta::default();
    let mut fields = Fields(bytes);
    while let Some((number, data)) = fields.next()? {
        match number {
            1 => meta.api_version = data.text()?.to_string(),
            2 => meta.kind = data.text()?.to_string(),
            _ => {}
        }
    }
    Ok(meta)
}

/// The value of a field on the wire.
#[derive(Clone, Copy)]
enum Data<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// Nothing of ours has 32 bits.
    Fixed32,
}

impl<'a> Data<'a> {
    fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Data::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtoError::new("wrong wireType")),
        }
    }

    fn text(self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ProtoError::new("string is not UTF-8"))
    }

    fn varint(self) -> Result<u64> {
        match self {
            Data::Varint(n) => Ok(n),
            _ => Err(ProtoError::new("wrong wireType")),
        }
    }
}

/// The fields of a message, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, byte) in self.0.iter().take(10).enumerate() {
            // The tenth byte holds the last bit.
            if i == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.0 = &self.0[i + 1..];
                return Ok(value);
            }
        }
        Err(ProtoError::new(if self.0.len() < 10 {
            "unexpected EOF"
        } else {
            "integer overflow"
        }))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        match usize::try_from(length).ok().and_then(|n| self.0.split_at_checked(n)) {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(head)
            }
            None => Err(ProtoError::new("unexpected EOF")),
        }
    }

    fn next(&mut self) -> Result<Option<(u32, Data<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        if number == 0 {
            return Err(ProtoError::new(format!("illegal tag {}", key >> 3)));
        }
        let data = match key & 7 {
            0 => Data::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?.try_into().expect("eight bytes were taken");
                Data::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let length = self.varint()?;
                Data::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Data::Fixed32
            }
            other => return Err(ProtoError::new(format!("illegal wireType {other}"))),
        };
        Ok(Some((number, data)))
    }
}

/// `depth` is how deep the message's own object stands, counted from one.
fn message(bytes: &[u8], ty: TypeRef, depth: u32) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(ProtoError::new(format!("exceeded max depth of {MAX_DEPTH}")));
    }
    let ty = schema().ty(ty);
    let mut builder = Builder::new(ty);
    fields(bytes, ty, &ty.wire, &mut builder, depth)?;
    Ok(builder.finish())
}

fn fields(bytes: &[u8], ty: &'static Type, wire: &[(u32, Wire)], builder: &mut Builder, depth: u32) -> Result<()> {
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        let Ok(found) = wire.binary_search_by_key(&number, |w| w.0) else {
            continue;
        };
        match &wire[found].1 {
            Wire::Inline(inner) => fields(data.bytes()?, ty, inner, builder, depth)?,
            Wire::Field(index) => {
                let index = usize::from(*index);
                let field = &ty.fields[index];
                let read = match &field.ty {
                    Ty::List(item) => element(item, data, builder, index, depth),
                    Ty::Map(value) => entry(value, data, builder, index, depth),
                    ty => value(ty, data, depth).map(|value| {
                        let again = builder.see(index);
                        builder.put(index, value, again);
                    }),
                };
                read.map_err(|e| in_field(e, ty, field.name))?;
            }
        }
    }
    Ok(())
}

/// Says where; only once, or deep nesting would make the text grow with each level.
fn in_field(error: ProtoError, ty: &Type, field: &str) -> ProtoError {
    if error.0.contains(" for field ") {
        return error;
    }
    ProtoError(format!("{}: {} for field {field}", ty.short_name(), error.0))
}

fn element(item: &Ty, data: Data<'_>, builder: &mut Builder, index: usize, depth: u32) -> Result<()> {
    let mut add = |value: Value| {
        if let Value::Array(list) = builder.collect(index, || Value::Array(vec![])) {
            list.push(value);
        }
    };
    // Numbers may come one by one or packed.
    if let (Data::Bytes(packed), Ty::Int32 | Ty::Int64 | Ty::Bool) = (data, item) {
        let mut numbers = Fields(packed);
        while !numbers.0.is_empty() {
            add(value(item, Data::Varint(numbers.varint()?), depth)?);
        }
        return Ok(());
    }
    let value = value(item, data, depth + 1)?;
    add(value);
    Ok(())
}

fn entry(ty: &Ty, data: Data<'_>, builder: &mut Builder, index: usize, depth: u32) -> Result<()> {
    let mut key = "";
    let mut found = Value::Null;
    let mut input = Fields(data.bytes()?);
    while let Some((number, data)) = input.next()? {
        match number {
            1 => key = data.text()?,
            2 => found = value(ty, data, depth + 1)?,
            _ => {}
        }
    }
    if found.is_null() {
        found = zero(ty);
    }
    if let Value::Object(map) = builder.collect(index, || Value::Object(Map::new())) {
        map.insert(key.to_string(), found);
    }
    Ok(())
}

/// One value of a type. Null: its zero value, if that has no other form.
fn value(ty: &Ty, data: Data<'_>, depth: u32) -> Result<Value> {
    Ok(match ty {
        Ty::String => Value::String(data.text()?.to_string()),
        Ty::Bytes => Value::String(base64_text(data.bytes()?)),
        Ty::Bool => Value::Bool(data.varint()? != 0),
        // Negative numbers come sign-extended to 64 bits.
        Ty::Int32 => Value::from(data.varint()? as i32),
        Ty::Int64 => Value::from(data.varint()? as i64),
        Ty::Float64 => match data {
            Data::Fixed64(bits) => float(f64::from_bits(bits)),
            _ => return Err(ProtoError::new("wrong wireType")),
        },
        Ty::Quantity => quantity(data.bytes()?)?,
        Ty::IntOrString => int_or_string(data.bytes()?)?,
        Ty::Time => time(data.bytes()?, |seconds, _| Timestamp::new(seconds, 0), time_text)?,
        Ty::MicroTime => time(
            data.bytes()?,
            |seconds, nanos| Timestamp::new(seconds, nanos / 1000 * 1000),
            micro_time_text,
        )?,
        Ty::Duration => {
            let mut nanos = 0;
            let mut input = Fields(data.bytes()?);
            while let Some((number, data)) = input.next()? {
                if number == 1 {
                    nanos = data.varint()? as i64;
                }
            }
            Value::String(duration_text(nanos))
        }
        Ty::Any => any(data.bytes()?, depth)?,
        Ty::Struct(r) => message(data.bytes()?, *r, depth + 1)?,
        Ty::SchemaOrBool(r) | Ty::SchemaOrArray(r) | Ty::SchemaOrStrings(r) => union(ty, *r, data.bytes()?, depth)?,
        Ty::Items(item) => {
            let mut list = vec![];
            let mut input = Fields(data.bytes()?);
            while let Some((number, data)) = input.next()? {
                if number == 1 {
                    list.push(value(item, data, depth + 1)?);
                }
            }
            // No items and no list are the same on the wire.
            if list.is_empty() {
                Value::Null
            } else {
                Value::Array(list)
            }
        }
        Ty::List(_) | Ty::Map(_) => return Err(ProtoError::new("a list in a list has no wire form")),
    })
}

fn quantity(bytes: &[u8]) -> Result<Value> {
    let mut text = Cow::Borrowed("0");
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        if number == 1 {
            text = Quantity::canonical_text(data.text()?).map_err(|e| ProtoError(e.to_string()))?;
        }
    }
    Ok(Value::String(text.into_owned()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    let (mut kind, mut int, mut text) = (0, 0, "");
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        match number {
            1 => kind = data.varint()?,
            2 => int = data.varint()? as i32,
            3 => text = data.text()?,
            _ => {}
        }
    }
    match kind {
        0 => Ok(Value::from(int)),
        1 => Ok(Value::from(text)),
        _ => Err(ProtoError::new("impossible IntOrString.Type")),
    }
}

fn time(
    bytes: &[u8],
    at: fn(i64, i32) -> std::result::Result<Timestamp, jiff::Error>,
    text: fn(Timestamp) -> String,
) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        match number {
            1 => seconds = data.varint()? as i64,
            2 => nanos = data.varint()? as i32,
            _ => {}
        }
    }
    let at = at(seconds, nanos).map_err(|_| ProtoError::new("time out of range"))?;
    let Some(at) = unless_zero(at) else {
        return Ok(Value::Null);
    };
    let text = text(at);
    // RFC 3339 has no years before our era.
    if text.starts_with('-') {
        return Err(ProtoError::new("time out of range"));
    }
    Ok(Value::String(text))
}

/// RawExtension, FieldsV1 and JSON all hold their bytes in field 1: JSON, or another enveloped object.
fn any(bytes: &[u8], depth: u32) -> Result<Value> {
    let mut raw: &[u8] = &[];
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        if number == 1 {
            raw = data.bytes()?;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    if raw.starts_with(MAGIC) {
        return object(raw, depth).map(|(_, _, value)| value);
    }
    any_json(raw, depth).map_err(|e| ProtoError(e.0))
}

/// Field 2 of the unions is what the schema in field 1 (2 with a boolean) is not.
fn union(ty: &Ty, r: TypeRef, bytes: &[u8], depth: u32) -> Result<Value> {
    let mut schema = None;
    let mut allows = false;
    let mut list = vec![];
    let mut input = Fields(bytes);
    while let Some((number, data)) = input.next()? {
        match (ty, number) {
            (Ty::SchemaOrBool(_), 1) => allows = data.varint()? != 0,
            (Ty::SchemaOrBool(_), 2) | (_, 1) => schema = Some(message(data.bytes()?, r, depth + 1)?),
            (Ty::SchemaOrArray(_), 2) => list.push(message(data.bytes()?, r, depth + 2)?),
            (_, 2) => list.push(Value::from(data.text()?)),
            _ => {}
        }
    }
    Ok(match (ty, schema) {
        (Ty::SchemaOrBool(_), None) => Value::Bool(allows),
        (_, _) if !list.is_empty() => Value::Array(list),
        (_, Some(schema)) => schema,
        (_, None) => Value::Null,
    })
}
