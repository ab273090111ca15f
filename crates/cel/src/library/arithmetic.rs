//! Operators.
//!
//! Upstream: cel-go/common/stdlib, cel-go/common/types/overflow.go.

use super::{Body, Outcome, no_overload, time};
use crate::program::EvalError;
use crate::value::{List, Map, Text, Value, order};
use std::cmp::Ordering;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("_+_", add),
    ("_-_", subtract),
    ("_*_", multiply),
    ("_/_", divide),
    ("_%_", modulo),
    ("-_", negate),
    ("!_", not),
    ("_<_", |args| compare(args, Ordering::is_lt)),
    ("_<=_", |args| compare(args, Ordering::is_le)),
    ("_>_", |args| compare(args, Ordering::is_gt)),
    ("_>=_", |args| compare(args, Ordering::is_ge)),
    ("@in", is_in),
    ("@not_strictly_false", |args| {
        Ok(Value::Bool(!matches!(args, [Value::Bool(false)])))
    }),
    ("size", size),
];

pub(super) fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}

fn unsigned_overflow() -> EvalError {
    EvalError::new("unsigned integer overflow")
}

fn int<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Int).ok_or_else(overflow)
}

fn uint<'a>(result: Option<u64>) -> Outcome<'a> {
    result.map(Value::Uint).ok_or_else(unsigned_overflow)
}

fn duration<'a>(result: Option<i64>) -> Outcome<'a> {
    result
        .map(Value::Duration)
        .ok_or_else(|| EvalError::new("duration overflow"))
}

pub(super) fn add<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_add(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_add(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a + b)),
        [Value::String(a), Value::String(b)] => Ok(concatenate(a, b)),
        [Value::Bytes(a), Value::Bytes(b)] => Ok(Value::Bytes([a.as_ref(), b.as_ref()].concat().into())),
        [Value::List(a), Value::List(b)] => Ok(Value::List(List::add(a, b)?)),
        [Value::Duration(a), Value::Duration(b)] => duration(a.checked_add(*b)),
        [Value::Timestamp(at), Value::Duration(nanos)] | [Value::Duration(nanos), Value::Timestamp(at)] => {
            time::after(at, i128::from(*nanos)).map(Value::Timestamp)
        }
        _ => no_overload(),
    }
}

fn concatenate<'a>(a: &Text<'a>, b: &Text<'a>) -> Value<'a> {
    let mut text = String::with_capacity(a.len() + b.len());
    text.push_str(a);
    text.push_str(b);
    Value::string(text)
}

fn subtract<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_sub(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_sub(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        [Value::Duration(a), Value::Duration(b)] => duration(a.checked_sub(*b)),
        [Value::Timestamp(at), Value::Duration(nanos)] => time::after(at, -i128::from(*nanos)).map(Value::Timestamp),
        [Value::Timestamp(a), Value::Timestamp(b)] => {
            let between = a.at.as_nanosecond() - b.at.as_nanosecond();
            duration(i64::try_from(between).ok())
        }
        _ => no_overload(),
    }
}

fn multiply<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_mul(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_mul(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
        _ => no_overload(),
    }
}

fn divide<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => Err(EvalError::new("division by zero")),
        [Value::Int(a), Value::Int(b)] => int(a.checked_div(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_div(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
        _ => no_overload(),
    }
}

fn modulo<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => Err(EvalError::new("modulus by zero")),
        [Value::Int(a), Value::Int(b)] => int(a.checked_rem(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_rem(*b)),
        _ => no_overload(),
    }
}

fn negate<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(a)] => int(a.checked_neg()),
        [Value::Double(a)] => Ok(Value::Double(-a)),
        [Value::Duration(a)] => duration(a.checked_neg()),
        _ => no_overload(),
    }
}

fn not<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Bool(a)] => Ok(Value::Bool(!a)),
        _ => no_overload(),
    }
}

fn compare<'a>(args: &[Value<'a>], wanted: fn(Ordering) -> bool) -> Outcome<'a> {
    match args {
        [a, b] => Ok(Value::Bool(wanted(order(a, b)?))),
        _ => no_overload(),
    }
}

fn is_in<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [item, Value::List(list)] => Ok(Value::Bool(list.contains(item)?)),
        [key, Value::Map(map)] => {
            let found = match map {
                Map::Shared(entries) => entries.has(key),
                Map::Json(..) => map.find(key)?.is_some(),
            };
            Ok(Value::Bool(found))
        }
        _ => no_overload(),
    }
}

fn size<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_)] => {
            Ok(Value::Int(i64::try_from(args[0].cost_size()).unwrap_or(i64::MAX)))
        }
        _ => no_overload(),
    }
}
