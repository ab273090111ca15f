//! Decoding against the table in one pass over the text: the result is what Go's decode and encode of the type would
//! give. Unknown and repeated fields are dropped and reported; wrong types are refused.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::build::{Builder, zero};
use super::{Ty, Type, TypeRef, schema};
use super::{is_plain_time, micro_time_text, parse_micro_time, parse_time, time_text};
use crate::duration::{duration_text, parse_duration};
use crate::field::MAX_SHOWN;
use crate::quantity::Quantity;

/// How deep lists and objects may nest. A few levels fewer than serde_json reads, so that what was accepted can still
/// be read back inside a list or a watch event.
pub const MAX_DEPTH: u32 = 120;

/// A stack on which values of that depth can be read, changed and written in every format. YAML takes the most: some
/// kilobytes a level, several times that in code that is not optimised.
pub const STACK_BYTES: usize = 8 * 1024 * 1024;

/// Kubernetes reports no more than this many.
const MAX_PROBLEMS: usize = 100;

/// An object, and what strict field validation would complain about.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// `unknown field "spec.foo"`, `duplicate field "spec.containers[0].name"`.
    pub problems: Vec<String>,
}

/// Why a body could not be decoded, in Kubernetes' words where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// What a body says it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}

/// Reads apiVersion and kind alone. The rest is skipped, but must be JSON.
pub fn peek_type(json: &[u8]) -> Result<TypeMeta, DecodeError> {
    let mut found = TypeMeta::default();
    let text = super::text::of_bytes(json);
    let mut de = serde_json::Deserializer::from_str(&text);
    let read = de.deserialize_map(Peek(&mut found)).and_then(|()| de.end());
    read.map_err(|e| DecodeError(syntax(json, &e)))?;
    Ok(found)
}

struct Peek<'a>(&'a mut TypeMeta);

impl<'de> Visitor<'de> for Peek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with apiVersion and kind")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match key.as_ref() {
                "apiVersion" => self.0.api_version = map.next_value::<Option<String>>()?.unwrap_or_default(),
                "kind" => self.0.kind = map.next_value::<Option<String>>()?.unwrap_or_default(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

pub fn decode_json(bytes: &[u8], ty: TypeRef) -> Result<Decoded, DecodeError> {
    // Checking it all at once is cheaper than string by string.
    let text = super::text::of_bytes(bytes);
    let mut de = serde_json::Deserializer::from_str(&text);
    let mut cx = Cx::default();
    let root = Ty::Struct(ty);
    let read = Seed::root(&mut cx, &root)
        .deserialize(&mut de)
        .and_then(|value| de.end().map(|()| value));
    cx.end(read.map_err(|e| syntax(bytes, &e)), ty)
}

/// Decodes a value, such as a patch leaves: the same checks, pruning and filling in.
pub fn from_value(value: Value, ty: TypeRef) -> Result<Decoded, DecodeError> {
    let mut cx = Cx::default();
    let root = Ty::Struct(ty);
    let read = Seed::root(&mut cx, &root).deserialize(value);
    cx.end(read.map_err(|e| e.to_string()), ty)
}

/// Reads JSON of no known type that stands `depth` levels deep in something else.
pub(crate) fn any_json(bytes: &[u8], depth: u32) -> Result<Value, DecodeError> {
    let mut de = serde_json::Deserializer::from_slice(bytes);
    let mut cx = Cx::default();
    let seed = Seed {
        cx: &mut cx,
        ty: &Ty::Any,
        at: &Path::ROOT,
        depth,
    };
    let read = seed.deserialize(&mut de).and_then(|value| de.end().map(|()| value));
    read.map_err(|e| DecodeError(cx.failure.unwrap_or_else(|| syntax(bytes, &e))))
}

/// Not JSON at all: Go's words, serde's for what only serde minds.
fn syntax(bytes: &[u8], error: &serde_json::Error) -> String {
    super::json_syntax_error(bytes).unwrap_or_else(|| error.to_string())
}

#[derive(Default)]
pub(super) struct Cx {
    problems: Vec<String>,
    /// The text of a refusal of ours; serde's own error then only says that there is one.
    failure: Option<String>,
    /// Inside a part whose unknown fields Kubernetes does not report.
    lenient: bool,
}

impl Cx {
    fn end(self, read: Result<Value, String>, ty: TypeRef) -> Result<Decoded, DecodeError> {
        if let Some(text) = self.failure {
            return Err(DecodeError(text));
        }
        match read {
            Ok(Value::Null) => Err(DecodeError(format!(
                "json: cannot unmarshal null into Go value of type {}",
                schema().ty(ty).go_name()
            ))),
            Ok(value) => Ok(Decoded {
                value,
                problems: self.problems,
            }),
            Err(text) => Err(DecodeError(text)),
        }
    }

    fn problem(&mut self, what: &str, at: &Path<'_>, name: &str) {
        if self.lenient || self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let mut path = String::new();
        at.write(&mut path);
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(start(name));
        let text = format!("{what} field {path:?}");
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    fn fail<E: Error>(&mut self, text: String) -> E {
        self.failure.get_or_insert(text);
        E::custom("refused")
    }
}

/// A name as it is told.
fn start(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_SHOWN)]
}

/// Where we are: kept on the stack, written out only when something is wrong.
struct Path<'a> {
    up: Option<&'a Path<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Root,
    Field(&'static Type, &'static str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    const ROOT: Path<'static> = Path {
        up: None,
        step: Step::Root,
    };

    fn down(&'a self, step: Step<'a>) -> Path<'a> {
        Path { up: Some(self), step }
    }

    /// Of a path with huge keys in it only the start: it is written for every problem below.
    fn write(&self, out: &mut String) {
        if let Some(up) = self.up {
            up.write(out);
        }
        if out.len() > MAX_SHOWN {
            return;
        }
        match &self.step {
            Step::Root => {}
            Step::Index(i) => out.push_str(&format!("[{i}]")),
            Step::Field(_, name) | Step::Key(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(start(name));
            }
        }
    }

    /// As Go names the place of a wrong type: the struct, then the fields that lead there.
    fn go_field(&self) -> Option<String> {
        let mut owner = None;
        let mut names = vec![];
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Field(ty, name) = path.step {
                owner.get_or_insert(ty.short_name());
                names.push(name);
            }
            at = path.up;
        }
        names.reverse();
        owner.map(|owner| format!("{owner}.{}", names.join(".")))
    }
}

/// The Go type that a value was expected to be of.
fn go_type(ty: &Ty) -> String {
    match ty {
        Ty::String => "string".into(),
        Ty::Bytes => "[]uint8".into(),
        Ty::Bool => "bool".into(),
        Ty::Int32 | Ty::IntOrString => "int32".into(),
        Ty::Int64 => "int64".into(),
        Ty::Float64 => "float64".into(),
        Ty::Quantity => "resource.Quantity".into(),
        Ty::Time | Ty::MicroTime | Ty::Duration => "string".into(),
        Ty::Any => "interface {}".into(),
        Ty::SchemaOrBool(_) => "v1.JSONSchemaPropsOrBool".into(),
        Ty::SchemaOrArray(_) => "v1.JSONSchemaPropsOrArray".into(),
        Ty::SchemaOrStrings(_) => "v1.JSONSchemaPropsOrStringArray".into(),
        Ty::Struct(r) => schema().ty(*r).go_name().into(),
        Ty::List(item) | Ty::Items(item) => format!("[]{}", go_type(item)),
        Ty::Map(value) => format!("map[string]{}", go_type(value)),
    }
}

/// Reads one value of a type. Null comes out as null, whatever the type; whoever asked knows what it means.
struct Seed<'a> {
    cx: &'a mut Cx,
    ty: &'a Ty,
    at: &'a Path<'a>,
    depth: u32,
}

impl<'a> Seed<'a> {
    fn root(cx: &'a mut Cx, ty: &'a Ty) -> Seed<'a> {
        Seed {
            cx,
            ty,
            at: &Path::ROOT,
            depth: 0,
        }
    }

    fn mismatch<E: Error>(self, found: &str) -> E {
        let place = match self.at.go_field() {
            Some(field) => format!("Go struct field {field}"),
            None => "Go value".to_string(),
        };
        let text = format!(
            "json: cannot unmarshal {found} into {place} of type {}",
            go_type(self.ty)
        );
        self.cx.fail(text)
    }

    fn deeper<E: Error>(&mut self) -> Result<u32, E> {
        if self.depth >= MAX_DEPTH {
            return Err(self.cx.fail(format!("exceeded max depth of {MAX_DEPTH}")));
        }
        Ok(self.depth + 1)
    }

    fn quantity<E: Error>(self, text: &str) -> Result<Value, E> {
        match Quantity::canonical_text(text.trim()) {
            Ok(text) => Ok(Value::String(text.into_owned())),
            Err(problem) => Err(self.cx.fail(problem.to_string())),
        }
    }

    fn text<E: Error>(self, text: Cow<'_, str>) -> Result<Value, E> {
        match self.ty {
            Ty::String | Ty::Any | Ty::IntOrString => Ok(Value::String(text.into_owned())),
            Ty::Quantity => self.quantity(&text),
            Ty::Bytes => match base64_normalised(&text) {
                Ok(text) => Ok(Value::String(text)),
                Err(problem) => Err(self.cx.fail(problem.to_string())),
            },
            Ty::Time if is_plain_time(&text) => Ok(Value::String(text.into_owned())),
            Ty::Time => match parse_time(&text) {
                Ok(at) => Ok(at.map_or(Value::Null, |at| Value::String(time_text(at)))),
                Err(problem) => Err(self.cx.fail(problem.to_string())),
            },
            Ty::MicroTime => match parse_micro_time(&text) {
                Ok(at) => Ok(at.map_or(Value::Null, |at| Value::String(micro_time_text(at)))),
                Err(problem) => Err(self.cx.fail(problem.to_string())),
            },
            Ty::Duration => match parse_duration(&text) {
                Ok(nanos) => Ok(Value::String(duration_text(nanos))),
                Err(problem) => Err(self.cx.fail(problem.to_string())),
            },
            Ty::SchemaOrBool(_) => Err(self.cx.fail("boolean or JSON schema expected".into())),
            // Kubernetes takes anything it does not know here for nothing.
            Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Ok(Value::Null),
            _ => Err(self.mismatch("string")),
        }
    }

    fn integer<E: Error>(self, n: i64) -> Result<Value, E> {
        match self.ty {
            Ty::Int64 | Ty::Any | Ty::Float64 => Ok(Value::from(n)),
            Ty::Int32 | Ty::IntOrString if i32::try_from(n).is_ok() => Ok(Value::from(n)),
            Ty::Int32 | Ty::IntOrString => Err(self.mismatch(&format!("number {n}"))),
            Ty::Quantity => self.quantity(&n.to_string()),
            _ => self.other_number("number"),
        }
    }

    fn other_number<E: Error>(self, found: &str) -> Result<Value, E> {
        match self.ty {
            Ty::SchemaOrBool(_) => Err(self.cx.fail("boolean or JSON schema expected".into())),
            Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Ok(Value::Null),
            _ => Err(self.mismatch(found)),
        }
    }

    fn list<'de, A: SeqAccess<'de>>(mut self, item: &Ty, mut seq: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut out = Vec::new();
        loop {
            let at = self.at.down(Step::Index(out.len()));
            let seed = Seed {
                cx: &mut *self.cx,
                ty: item,
                at: &at,
                depth,
            };
            match seq.next_element_seed(seed)? {
                None => return Ok(Value::Array(out)),
                Some(Value::Null) => out.push(zero(item)),
                Some(value) => out.push(value),
            }
        }
    }

    fn map<'de, A: MapAccess<'de>>(mut self, ty: &Ty, mut map: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = self.at.down(Step::Key(&key));
            let value = map.next_value_seed(Seed {
                cx: &mut *self.cx,
                ty,
                at: &at,
                depth,
            })?;
            let value = if value.is_null() { zero(ty) } else { value };
            // What is inside an Any is not looked at by Kubernetes either.
            if *self.ty != Ty::Any && out.contains_key(&key) {
                self.cx.problem("duplicate", self.at, &key);
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }

    fn object<'de, A: MapAccess<'de>>(mut self, r: TypeRef, mut map: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let ty = schema().ty(r);
        let mut builder = Builder::new(ty);
        while let Some(key) = map.next_key_seed(Key(ty))? {
            let index = match key {
                Ok(index) => index,
                Err(name) => {
                    self.cx.problem("unknown", self.at, &name);
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let field = &ty.fields[index];
            let again = builder.see(index);
            if again {
                self.cx.problem("duplicate", self.at, field.name);
            }
            let at = self.at.down(Step::Field(ty, field.name));
            let value = map.next_value_seed(Seed {
                cx: &mut *self.cx,
                ty: &field.ty,
                at: &at,
                depth,
            })?;
            builder.put(index, value, again);
        }
        Ok(builder.finish())
    }

    /// A JSON schema where something else might stand: its unknown fields are not reported.
    fn schema_in_union<'de, A: MapAccess<'de>>(self, r: TypeRef, map: A) -> Result<Value, A::Error> {
        let before = std::mem::replace(&mut self.cx.lenient, true);
        let ty = Ty::Struct(r);
        let seed = Seed {
            cx: &mut *self.cx,
            ty: &ty,
            at: self.at,
            depth: self.depth,
        };
        let read = seed.object(r, map);
        self.cx.lenient = before;
        read
    }

    fn list_in_union<'de, A: SeqAccess<'de>>(self, item: Ty, seq: A) -> Result<Value, A::Error> {
        let before = std::mem::replace(&mut self.cx.lenient, true);
        let seed = Seed {
            cx: &mut *self.cx,
            ty: &item,
            at: self.at,
            depth: self.depth,
        };
        let read = seed.list(&item, seq);
        self.cx.lenient = before;
        // An empty list is the zero value, which is null.
        read.map(|v| {
            if v.as_array().is_some_and(Vec::is_empty) {
                Value::Null
            } else {
                v
            }
        })
    }
}

/// A field's place, or the name that no field has.
struct Key(&'static Type);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Result<usize, String>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Result<usize, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.index(name).ok_or_else(|| name.to_string()))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_type(self.ty))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, b: bool) -> Result<Value, E> {
        match self.ty {
            Ty::Bool | Ty::Any | Ty::SchemaOrBool(_) => Ok(Value::Bool(b)),
            Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Ok(Value::Null),
            Ty::Quantity => self.quantity(if b { "true" } else { "false" }),
            _ => Err(self.mismatch("bool")),
        }
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Value, E> {
        self.integer(n)
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Value, E> {
        match (i64::try_from(n), self.ty) {
            (Ok(n), _) => self.integer(n),
            (_, Ty::Any | Ty::Float64) => Ok(Value::from(n)),
            (_, Ty::Quantity) => self.quantity(&n.to_string()),
            (_, Ty::Int32 | Ty::Int64 | Ty::IntOrString) => Err(self.mismatch(&format!("number {n}"))),
            _ => self.other_number("number"),
        }
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        match self.ty {
            Ty::Any => Ok(Number::from_f64(n).map_or(Value::Null, Value::Number)),
            Ty::Float64 => Ok(float(n)),
            Ty::Quantity => self.quantity(&n.to_string()),
            Ty::Int32 | Ty::Int64 | Ty::IntOrString => Err(self.mismatch(&format!("number {n:?}"))),
            _ => self.other_number("number"),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.text(Cow::Borrowed(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        self.text(Cow::Owned(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Value, A::Error> {
        match self.ty {
            Ty::List(item) | Ty::Items(item) => self.list(item, seq),
            Ty::Any => self.list(&Ty::Any, seq),
            Ty::SchemaOrArray(r) => self.list_in_union(Ty::Struct(*r), seq),
            Ty::SchemaOrStrings(_) => self.list_in_union(Ty::String, seq),
            Ty::SchemaOrBool(_) => Err(self.cx.fail("boolean or JSON schema expected".into())),
            _ => Err(self.mismatch("array")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        match self.ty {
            Ty::Struct(r) => self.object(*r, map),
            Ty::Map(value) => self.map(value, map),
            Ty::Any => self.map(&Ty::Any, map),
            Ty::SchemaOrBool(r) | Ty::SchemaOrArray(r) | Ty::SchemaOrStrings(r) => self.schema_in_union(*r, map),
            _ => Err(self.mismatch("object")),
        }
    }
}

/// Reads a struct that stands somewhere in an object of no known type: the metadata of a custom resource.
pub(crate) struct PartSeed<'a> {
    pub ty: TypeRef,
    pub depth: u32,
    /// The path that leads there.
    pub place: &'a str,
    pub problems: &'a mut Vec<String>,
    pub failure: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for PartSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        let mut cx = Cx::default();
        let at = Path::ROOT;
        let at = at.down(Step::Key(self.place));
        let ty = Ty::Struct(self.ty);
        let seed = Seed {
            cx: &mut cx,
            ty: &ty,
            at: &at,
            depth: self.depth,
        };
        let read = seed.deserialize(d);
        self.problems.extend(cx.problems);
        if self.failure.is_none() {
            *self.failure = cx.failure;
        }
        read
    }
}

/// Go writes whole floats without a point.
pub(crate) fn float(n: f64) -> Value {
    if n.fract() == 0.0 && n.abs() < 9e15 {
        return Value::from(n as i64);
    }
    Number::from_f64(n).map_or(Value::Null, Value::Number)
}

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// A text that is not base64, in Go's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {at}")]
pub(crate) struct Base64Error {
    at: usize,
}

/// Go ignores line breaks in base64 and spare bits at its end.
pub(crate) fn base64_bytes(text: &str) -> Result<Vec<u8>, Base64Error> {
    let read = if text.contains(['\r', '\n']) {
        LENIENT.decode(text.replace(['\r', '\n'], ""))
    } else {
        LENIENT.decode(text)
    };
    read.map_err(|e| {
        use base64::DecodeError::{InvalidByte, InvalidLastSymbol};
        let at = match e {
            InvalidByte(at, _) | InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        Base64Error { at }
    })
}

fn base64_normalised(text: &str) -> Result<String, Base64Error> {
    base64_bytes(text).map(|bytes| base64_text(&bytes))
}

pub(crate) fn base64_text(bytes: &[u8]) -> String {
    LENIENT.encode(bytes)
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
