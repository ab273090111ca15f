//! Equality and order of values.
//!
//! Upstream: cel-go/common/types/{compare,double,int,uint}.go, apiserver/pkg/cel/common/valuesunstructured.go.

use super::{Check, Key, List, Map, Step, Value};
use crate::decl::ListType;
use crate::program::EvalError;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Whether two values are equal. Values of types that do not compare are not; what cannot be read is not equal either.
pub(super) fn equal(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(a, b) == Some(Ordering::Equal)
        }
        (Value::String(a), Value::String(b)) => a.as_str() == b.as_str(),
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a.at == b.at,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::List(a), Value::List(b)) => lists(a, b),
        (Value::Map(a), Value::Map(b)) => maps(a, b),
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => equal(a, b),
            (a, b) => a.is_none() && b.is_none(),
        },
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Object(a), Value::Object(b)) => {
            let same = |name: &String, value: &Value<'_>| b.fields.get(name).is_some_and(|other| equal(value, other));
            a.ty.name() == b.ty.name()
                && a.fields.len() == b.fields.len()
                && a.fields.iter().all(|(name, value)| same(name, value))
        }
        (Value::Quantity(a), Value::Quantity(b)) => a == b,
        (Value::Url(a), Value::Url(b)) => a.text() == b.text(),
        (Value::Ip(a), Value::Ip(b)) => a == b,
        (Value::Cidr(a), Value::Cidr(b)) => a == b,
        (Value::Semver(a), Value::Semver(b)) => a.cmp(b) == Ordering::Equal,
        (Value::Format(a), Value::Format(b)) => a.name == b.name,
        (Value::Authorizer(a), Value::Authorizer(b)) => checks(a, b),
        _ => false,
    }
}

fn checks(a: &Check<'_>, b: &Check<'_>) -> bool {
    match (&a.0, &b.0) {
        (Step::Authorizer(a), Step::Authorizer(b)) => a.service_account == b.service_account,
        (Step::Path(a, path), Step::Path(b, other)) => {
            a.service_account == b.service_account && path.as_str() == other.as_str()
        }
        (Step::Group(a, group), Step::Group(b, other)) => {
            a.service_account == b.service_account && group.as_str() == other.as_str()
        }
        (Step::Resource(a, resource), Step::Resource(b, other)) => {
            a.service_account == b.service_account && resource == other
        }
        (Step::Decision(a), Step::Decision(b)) => a == b,
        _ => false,
    }
}

/// The order of two numbers; None with a NaN.
fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Int(a), Value::Double(b)) => with_double(*a as f64, i64::MIN as f64, i64::MAX as f64, *b),
        (Value::Uint(a), Value::Double(b)) => with_double(*a as f64, 0.0, u64::MAX as f64, *b),
        (Value::Double(_), _) => numbers(b, a).map(Ordering::reverse),
        _ => None,
    }
}

/// An integer, as a double, against a double that may be beyond all such integers.
fn with_double(integer: f64, lowest: f64, highest: f64, double: f64) -> Option<Ordering> {
    if double < lowest {
        return Some(Ordering::Greater);
    }
    if double > highest {
        return Some(Ordering::Less);
    }
    integer.partial_cmp(&double)
}

fn lists(a: &List<'_>, b: &List<'_>) -> bool {
    if a.len() != b.len() {
        return false;
    }
    match a.unordered() {
        None => a.iter().zip(b.iter()).all(|pair| match pair {
            (Ok(a), Ok(b)) => equal(&a, &b),
            _ => false,
        }),
        Some((_, ListType::Map(_))) => {
            let list_type = a
                .unordered()
                .map(|(_, list_type)| list_type)
                .expect("it was just found");
            let by_key: BTreeMap<_, _> = a
                .iter()
                .flatten()
                .map(|item| (member_key(&item, list_type), item))
                .collect();
            b.iter().all(|item| {
                let Ok(item) = item else { return false };
                by_key
                    .get(&member_key(&item, list_type))
                    .is_some_and(|other| equal(other, &item))
            })
        }
        Some((_, list_type)) => {
            let members: BTreeSet<_> = a.iter().flatten().map(|item| member_key(&item, list_type)).collect();
            b.iter()
                .all(|item| item.is_ok_and(|item| members.contains(&member_key(&item, list_type))))
        }
    }
}

/// What says that two elements of a set or a map list are the same one.
pub(super) fn member_key<'a>(item: &Value<'a>, list_type: &ListType) -> Key<'a> {
    match (list_type, item) {
        (ListType::Map(names), Value::Map(map)) => {
            let keys = names.iter().map(|name| {
                let name = crate::escape::escape(name);
                let value = name.and_then(|name| map.get(&name).ok().flatten());
                value.and_then(|value| Key::of(&value)).unwrap_or(Key::Null)
            });
            Key::Many(keys.collect())
        }
        _ => Key::of(item).unwrap_or(Key::Null),
    }
}

fn maps(a: &Map<'_>, b: &Map<'_>) -> bool {
    // Objects are compared with what no field declares, too.
    if let (Map::Json(a, Some(decl)), Map::Json(b, Some(_))) = (a, b)
        && super::object_type(Some(*decl)).is_some()
    {
        let (whole_a, whole_b) = (Map::Json(a, Some(decl)), Map::Json(b, Some(decl)));
        return a.len() == b.len()
            && a.iter().all(|(name, value)| {
                let Some(other) = b.get(name) else { return false };
                let declared = crate::escape::escape(name).and_then(|name| {
                    let pair = (whole_a.get(&name).ok()??, whole_b.get(&name).ok()??);
                    Some(equal(&pair.0, &pair.1))
                });
                declared.unwrap_or_else(|| value == other)
            });
    }
    a.len() == b.len()
        && a.keys().into_iter().all(|key| {
            let (Ok(Some(value)), Ok(Some(other))) = (a.find(&key), lookup(b, &key)) else {
                return false;
            };
            equal(&value, &other)
        })
}

/// A key of one map in another, which lives for another time.
fn lookup<'b>(map: &Map<'b>, key: &Value<'_>) -> Result<Option<Value<'b>>, EvalError> {
    match (map, key) {
        (_, Value::String(text)) => map.get(text),
        (Map::Shared(entries), _) => {
            let found = entries.iter().find(|(other, _)| equal(other, key));
            Ok(found.map(|(_, value)| value.clone()))
        }
        (Map::Json(..), _) => Ok(None),
    }
}

/// The order of two values of one type, or of two numbers.
pub(crate) fn order(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, EvalError> {
    Ok(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.as_str().cmp(b.as_str()),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.at.cmp(&b.at),
        (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(a, b).ok_or_else(|| EvalError::new("NaN values cannot be ordered"))?
        }
        _ => return Err(EvalError::no_such_overload()),
    })
}
