//! Optional values.
//!
//! Upstream: cel-go/cel/library.go (optionalLib), cel-go/common/types/optional.go.

use super::{Body, Outcome, no_overload, shown};
use crate::program::EvalError;
use crate::value::Value;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("optional.of", |args| match args {
        [value] => Ok(Value::optional(Some(value.clone()))),
        _ => no_overload(),
    }),
    ("optional.ofNonZeroValue", |args| match args {
        [value] => Ok(Value::optional((!value.is_zero()).then(|| value.clone()))),
        _ => no_overload(),
    }),
    ("optional.none", |_| Ok(Value::Optional(None))),
    ("value", |args| match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvalError::new("optional.none() dereference")),
        _ => no_overload(),
    }),
    ("hasValue", |args| match args {
        [Value::Optional(inner)] => Ok(Value::Bool(inner.is_some())),
        _ => no_overload(),
    }),
    ("first", |args| end(args, |_| 0)),
    ("last", |args| end(args, |length| length - 1)),
    ("optional.unwrap", unwrap),
    ("unwrapOpt", unwrap),
];

fn end<'a>(args: &[Value<'a>], at: fn(usize) -> usize) -> Outcome<'a> {
    match args {
        [Value::List(list)] if list.is_empty() => Ok(Value::Optional(None)),
        [Value::List(list)] => Ok(Value::optional(list.get(at(list.len())).transpose()?)),
        _ => no_overload(),
    }
}

fn unwrap<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut items = Vec::new();
    for item in list.iter() {
        match item? {
            Value::Optional(inner) => items.extend(inner.map(|inner| (*inner).clone())),
            other => return Err(EvalError::new(format!("value {} is not optional", shown(&other)))),
        }
    }
    Ok(Value::list(items))
}
