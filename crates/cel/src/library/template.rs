//! `'%s has %d'.format([…])`.
//!
//! Upstream: cel-go/ext/formatting.go, with the locale that Kubernetes leaves at en_US.

use super::conversions::double_text;
use super::{Body, Outcome, no_overload, time};
use crate::program::EvalError;
use crate::types::Type;
use crate::value::{List, Map, Value};
use std::fmt::Write;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[("format", format)];

/// Decimals, if the clause does not say how many.
const PRECISION: usize = 6;
/// More decimals are refused: they say nothing, but take memory.
const MAX_PRECISION: usize = 1000;
const LONGEST: usize = 64 << 20;

/// A clause of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Clause {
    pub(crate) kind: char,
    precision: usize,
}

/// A part of a template.
pub(crate) enum Part<'t> {
    Text(&'t str),
    Clause(Clause),
}

/// What clauses take, and what is said to others.
pub(crate) fn complaint(kind: char, ty: &str) -> String {
    match kind {
        'd' => format!("decimal clause can only be used on integers, was given {ty}"),
        'f' => format!("fixed-point clause can only be used on doubles, was given {ty}"),
        'e' => format!("scientific clause can only be used on doubles, was given {ty}"),
        'b' => format!("only integers and bools can be formatted as binary, was given {ty}"),
        'x' | 'X' => format!("only integers, byte buffers, and strings can be formatted as hex, was given {ty}"),
        'o' => format!("octal clause can only be used on integers, was given {ty}"),
        _ => format!(
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and \
             timestamps, was given {ty}"
        ),
    }
}

/// The types that a clause takes.
pub(crate) fn takes(kind: char, ty: &Type) -> bool {
    match kind {
        _ if ty.is_dyn() => true,
        'd' | 'o' => matches!(ty, Type::Int | Type::Uint),
        'f' | 'e' => matches!(ty, Type::Double | Type::String),
        'b' => matches!(ty, Type::Int | Type::Uint | Type::Bool),
        'x' | 'X' => matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes),
        _ => !matches!(ty, Type::Opaque(_) | Type::Object(_) | Type::Optional(_)),
    }
}

fn clause_error(why: &str) -> EvalError {
    EvalError::new(format!("could not parse formatting clause: {why}"))
}

/// The parts of a template for so many arguments. When it is evaluated, missing arguments are noticed before an end in
/// the middle of a clause; when it is checked, after that.
pub(crate) fn parse(template: &str, args: usize, evaluated: bool) -> Result<Vec<Part<'_>>, EvalError> {
    let (mut parts, mut rest, mut count) = (Vec::new(), template, 0);
    while let Some(at) = rest.find('%') {
        if at > 0 {
            parts.push(Part::Text(&rest[..at]));
        }
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            parts.push(Part::Text("%"));
            rest = after;
            continue;
        }
        if count >= args && (evaluated || !rest.is_empty()) {
            return Err(EvalError::new(format!("index {count} out of range")));
        }
        if rest.is_empty() {
            return Err(EvalError::new("unexpected end of string"));
        }
        let mut precision = PRECISION;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(|c: char| !c.is_ascii_digit());
            let end = end.ok_or_else(|| {
                clause_error("error while parsing precision: could not find end of precision specifier")
            })?;
            let digits = after[..end]
                .parse::<usize>()
                .ok()
                .filter(|digits| *digits <= MAX_PRECISION);
            precision = digits.ok_or_else(|| {
                clause_error("error while parsing precision: error while converting precision to integer")
            })?;
            rest = &after[end..];
        }
        let kind = rest.chars().next().unwrap_or(' ');
        if !"sdfebxXo".contains(kind) {
            return Err(clause_error(&format!("unrecognized formatting clause \"{kind}\"")));
        }
        parts.push(Part::Clause(Clause { kind, precision }));
        rest = &rest[kind.len_utf8()..];
        count += 1;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

fn format<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(template), Value::List(list)] = args else {
        return no_overload();
    };
    let (mut out, mut next) = (String::new(), 0);
    for part in parse(template, list.len(), true)? {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Clause(clause) => {
                let value = list.get(next).unwrap_or(Ok(Value::Null))?;
                next += 1;
                let text = one(clause, &value);
                let text = text.map_err(|error| EvalError::new(format!("error during formatting: {error}")))?;
                out.push_str(&text);
            }
        }
        if out.len() > LONGEST {
            return Err(EvalError::cost_limit());
        }
    }
    Ok(Value::string(out))
}

fn one(clause: Clause, value: &Value<'_>) -> Result<String, EvalError> {
    let precision = clause.precision;
    Ok(match (clause.kind, value) {
        ('s', _) => string(value)?,
        ('d', Value::Int(int)) => int.to_string(),
        ('d', Value::Uint(uint)) => uint.to_string(),
        ('f', Value::Double(double)) => fixed(*double, precision),
        ('e', Value::Double(double)) => scientific(*double, precision),
        ('f' | 'e', Value::String(text)) if ["NaN", "Infinity", "-Infinity"].contains(&text.as_str()) => {
            special(text.as_str()).to_string()
        }
        ('b', Value::Int(int)) if *int < 0 => format!("-{:b}", int.unsigned_abs()),
        ('b', Value::Int(int)) => format!("{int:b}"),
        ('b', Value::Uint(uint)) => format!("{uint:b}"),
        ('b', Value::Bool(bool)) => u8::from(*bool).to_string(),
        ('o', Value::Int(int)) if *int < 0 => format!("-{:o}", int.unsigned_abs()),
        ('o', Value::Int(int)) => format!("{int:o}"),
        ('o', Value::Uint(uint)) => format!("{uint:o}"),
        ('x' | 'X', _) => hexadecimal(value, clause.kind)?,
        (kind, other) => return Err(EvalError::new(complaint(kind, other.type_of().name()))),
    })
}

fn hexadecimal(value: &Value<'_>, kind: char) -> Result<String, EvalError> {
    let bytes = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
                let _ = write!(out, "{byte:02x}");
                out
            })
    };
    let text = match value {
        Value::Int(int) if *int < 0 => format!("-{:x}", int.unsigned_abs()),
        Value::Int(int) => format!("{int:x}"),
        Value::Uint(uint) => format!("{uint:x}"),
        Value::String(text) => bytes(text.as_bytes()),
        Value::Bytes(all) => bytes(all),
        other => return Err(EvalError::new(complaint(kind, other.type_of().name()))),
    };
    Ok(if kind == 'X' { text.to_uppercase() } else { text })
}

fn special(text: &str) -> &'static str {
    match text {
        "Infinity" => "∞",
        "-Infinity" => "-∞",
        _ => "NaN",
    }
}

/// With commas between thousands, as English has it.
fn fixed(double: f64, precision: usize) -> String {
    if !double.is_finite() {
        return non_finite(double);
    }
    let plain = format!("{:.precision$}", double.abs());
    let (whole, decimals) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut out = String::with_capacity(plain.len() + 8);
    if double.is_sign_negative() {
        out.push('-');
    }
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out.push_str(decimals);
    out
}

fn non_finite(double: f64) -> String {
    let name = match double {
        _ if double.is_nan() => "NaN",
        _ if double > 0.0 => "Infinity",
        _ => "-Infinity",
    };
    special(name).to_string()
}

/// `1.234567 × 10⁰³`, as the English locale prints it.
fn scientific(double: f64, precision: usize) -> String {
    if !double.is_finite() {
        return non_finite(double);
    }
    let text = format!("{double:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("\u{207b}", digits),
        None => ("", exponent),
    };
    let superscript = |c: char| match c {
        '1' => '\u{b9}',
        '2' => '\u{b2}',
        '3' => '\u{b3}',
        '4'..='9' => char::from_u32(0x2070 + (c as u32 - '0' as u32)).unwrap_or(c),
        _ => '\u{2070}',
    };
    let digits: String = format!("{digits:0>2}").chars().map(superscript).collect();
    format!("{mantissa}×10{sign}{digits}")
}

/// `%s`.
fn string(value: &Value<'_>) -> Result<String, EvalError> {
    Ok(match value {
        Value::Null => "null".to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Uint(uint) => uint.to_string(),
        Value::Double(double) => double_text(*double),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Timestamp(at) => time::timestamp_text(at),
        Value::Duration(nanos) => time::duration_text(*nanos),
        Value::Type(ty) => ty.name().to_string(),
        Value::List(list) => list_text(list)?,
        Value::Map(map) => map_text(map)?,
        other => return Err(EvalError::new(complaint('s', other.type_of().name()))),
    })
}

/// A value inside of a list or map.
fn inner(value: &Value<'_>) -> Result<String, EvalError> {
    Ok(match value {
        Value::Double(double) if double.is_finite() => format!("{double:.PRECISION$}"),
        Value::Double(double) => quoted(&double_text(*double)),
        Value::String(text) => quoted(text),
        Value::Bytes(bytes) => format!("b{}", quoted(&String::from_utf8_lossy(bytes))),
        Value::Timestamp(at) => format!("timestamp(\"{}\")", time::timestamp_text(at)),
        Value::Duration(nanos) => format!("duration(\"{}\")", time::duration_text(*nanos)),
        Value::Optional(_) | Value::Object(_) => {
            return Err(EvalError::new(format!(
                "no formatting function for {}",
                value.type_of().name()
            )));
        }
        other => string(other)?,
    })
}

/// In quotes as Go has them.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn list_text(list: &List<'_>) -> Result<String, EvalError> {
    let items: Vec<String> = list.iter().map(|item| inner(&item?)).collect::<Result<_, _>>()?;
    Ok(format!("[{}]", items.join(", ")))
}

fn map_text(map: &Map<'_>) -> Result<String, EvalError> {
    let mut entries = Vec::new();
    for (key, value) in map.pairs()? {
        let key = match &key {
            Value::String(text) => quoted(text),
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) => string(&key)?,
            other => {
                let ty = other.type_of();
                return Err(EvalError::new(format!(
                    "no formatting function for map key of type {}",
                    ty.name()
                )));
            }
        };
        entries.push((key, inner(&value)?));
    }
    entries.sort();
    let entries: Vec<String> = entries
        .into_iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    Ok(format!("{{{}}}", entries.join(", ")))
}
