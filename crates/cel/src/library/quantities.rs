//! Resource quantities.
//!
//! Upstream: apiserver/pkg/cel/library/quantity.go.

use super::{Body, Outcome, no_overload, semver};
use crate::program::EvalError;
use crate::value::Value;
use orlop_api::quantity::{Format, Quantity};
use std::cmp::Ordering;
use std::sync::Arc;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("quantity", |args| match args {
        [Value::String(text)] => match Quantity::parse(text) {
            Ok(quantity) => Ok(Value::Quantity(Arc::new(quantity))),
            Err(why) => Err(EvalError::new(why.to_string())),
        },
        _ => no_overload(),
    }),
    ("isQuantity", |args| match args {
        [Value::String(text)] => Ok(Value::Bool(Quantity::parse(text).is_ok())),
        _ => no_overload(),
    }),
    ("sign", |args| {
        one(args, |quantity| Ok(Value::Int(i64::from(quantity.sign()))))
    }),
    ("asApproximateFloat", |args| {
        one(args, |quantity| Ok(Value::Double(quantity.as_f64())))
    }),
    ("isInteger", |args| {
        one(args, |quantity| Ok(Value::Bool(integer(quantity).is_some())))
    }),
    ("asInteger", |args| {
        one(args, |quantity| {
            let found = integer(quantity).map(Value::Int);
            found.ok_or_else(|| EvalError::new("cannot convert value to integer"))
        })
    }),
    ("isGreaterThan", |args| {
        compare(args, |order| Value::Bool(order.is_gt()))
    }),
    ("isLessThan", |args| compare(args, |order| Value::Bool(order.is_lt()))),
    ("compareTo", |args| compare(args, |order| Value::Int(order as i64))),
    ("add", |args| change(args, Quantity::add)),
    ("sub", |args| change(args, Quantity::sub)),
];

fn one<'a>(args: &[Value<'a>], of: fn(&Quantity) -> Outcome<'a>) -> Outcome<'a> {
    match args {
        [Value::Quantity(quantity)] => of(quantity),
        _ => no_overload(),
    }
}

/// The whole number that it is.
fn integer(quantity: &Quantity) -> Option<i64> {
    const NANO: i128 = 1_000_000_000;
    let nanos = quantity.nanos();
    (nanos % NANO == 0).then(|| i64::try_from(nanos / NANO).ok()).flatten()
}

/// Of quantities and of versions, which have the same functions.
fn compare<'a>(args: &[Value<'a>], of: fn(Ordering) -> Value<'a>) -> Outcome<'a> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(of(a.as_ref().cmp(b.as_ref()))),
        [Value::Semver(a), Value::Semver(b)] => Ok(of(semver::Version::cmp(a, b))),
        _ => no_overload(),
    }
}

fn change<'a>(args: &[Value<'a>], change: fn(&mut Quantity, &Quantity)) -> Outcome<'a> {
    let (quantity, by) = match args {
        [Value::Quantity(quantity), Value::Quantity(by)] => (quantity, (**by).clone()),
        [Value::Quantity(quantity), Value::Int(by)] => (quantity, Quantity::from_i64(*by, Format::DecimalExponent)),
        _ => return no_overload(),
    };
    let mut sum = (**quantity).clone();
    change(&mut sum, &by);
    Ok(Value::Quantity(Arc::new(sum)))
}
