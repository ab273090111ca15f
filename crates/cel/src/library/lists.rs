//! Lists, sets and the insertion into maps.
//!
//! Upstream: apiserver/pkg/cel/library/lists.go, cel-go/ext/{lists,sets,comprehensions}.go.

use super::{Body, Outcome, arithmetic, no_overload, shown};
use crate::program::EvalError;
use crate::value::{Entries, Key, List, MAX_LENGTH, Map, Value, order};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("isSorted", is_sorted),
    ("sum", |args| sum(args, Value::Int(0))),
    (SUM_OF_DURATIONS, |args| sum(args, Value::Duration(0))),
    ("max", |args| best(args, "max", Ordering::Less)),
    ("min", |args| best(args, "min", Ordering::Greater)),
    ("slice", slice),
    ("flatten", flatten),
    ("sort", |args| match args {
        [Value::List(list)] => sort_by(list, list),
        _ => no_overload(),
    }),
    ("@sortByAssociatedKeys", |args| match args {
        [Value::List(list), Value::List(keys)] => sort_by(list, keys),
        _ => no_overload(),
    }),
    ("lists.range", range),
    ("reverse", reverse),
    ("distinct", distinct),
    ("sets.contains", |args| two(args, contains_all)),
    ("sets.equivalent", |args| {
        two(args, |one, two| Ok(contains_all(one, two)? && contains_all(two, one)?))
    }),
    ("sets.intersects", |args| two(args, intersects)),
    ("cel.@mapInsert", map_insert),
];

fn is_sorted<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        if let Some(before) = &before
            && order(before, &item)?.is_gt()
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

/// `sum` where the list is known to be of durations, of which there may be none.
pub(crate) const SUM_OF_DURATIONS: &str = "@sum_of_durations";

fn sum<'a>(args: &[Value<'a>], of_none: Value<'a>) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut items = list.iter();
    let Some(first) = items.next() else {
        // Zeros of all number types are equal.
        return Ok(of_none);
    };
    items.try_fold(first?, |sum, item| arithmetic::add(&[sum, item?]))
}

/// The first element that is the last one in this order.
fn best<'a>(args: &[Value<'a>], name: &str, worse: Ordering) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut best: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        let better = match &best {
            None => true,
            Some(best) => order(best, &item)? == worse,
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| EvalError::new(format!("{name} called on empty list")))
}

fn slice<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return no_overload();
    };
    let refuse = |why: String| Err(EvalError::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refuse("negative indexes not supported".to_string());
    };
    if from > to {
        return refuse("start index must be less than or equal to end index".to_string());
    }
    if to > list.len() {
        return refuse(format!("list is length {}", list.len()));
    }
    let items: Result<Vec<_>, _> = (from..to).filter_map(|at| list.get(at)).collect();
    Ok(Value::list(items?))
}

fn flatten<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return no_overload(),
    };
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut items = Vec::new();
    flatten_into(&mut items, list, depth)?;
    Ok(Value::list(items))
}

fn flatten_into<'a>(items: &mut Vec<Value<'a>>, list: &List<'a>, depth: i64) -> Result<(), EvalError> {
    for item in list.iter() {
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(items, &inner, depth - 1)?,
            other => items.push(other),
        }
        if items.len() > MAX_LENGTH {
            return Err(EvalError::cost_limit());
        }
    }
    Ok(())
}

fn sort_by<'a>(list: &List<'a>, keys: &List<'a>) -> Outcome<'a> {
    if list.len() != keys.len() {
        return Err(EvalError::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.values()?.into_iter().zip(list.values()?).collect();
    let Some((first, _)) = pairs.first() else {
        return Ok(Value::List(list.clone()));
    };
    if order(first, first).is_err() && !matches!(first, Value::Double(_)) {
        return Err(EvalError::new("list elements must be comparable"));
    }
    let ty = std::mem::discriminant(first);
    if pairs.iter().any(|(key, _)| std::mem::discriminant(key) != ty) {
        return Err(EvalError::new("list elements must have the same type"));
    }
    pairs.sort_by(|(a, _), (b, _)| match (a, b) {
        // NaNs have no order, but sorting needs one.
        (Value::Double(a), Value::Double(b)) => a.total_cmp(b),
        _ => order(a, b).unwrap_or(Ordering::Equal),
    });
    Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

fn range<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(end)] if usize::try_from(*end).is_ok_and(|end| end > MAX_LENGTH) => Err(EvalError::cost_limit()),
        [Value::Int(end)] => Ok(Value::list((0..*end).map(Value::Int).collect())),
        _ => no_overload(),
    }
}

fn reverse<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut items = list.values()?;
    items.reverse();
    Ok(Value::list(items))
}

fn distinct<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return no_overload();
    };
    let mut seen = BTreeSet::new();
    let mut items: Vec<Value<'a>> = Vec::new();
    for item in list.iter() {
        let item = item?;
        let is_new = match Key::of(&item) {
            Some(key) => seen.insert(key),
            None => !items.iter().any(|other| other.equals(&item)),
        };
        if is_new {
            items.push(item);
        }
    }
    Ok(Value::list(items))
}

fn two<'a>(args: &[Value<'a>], test: fn(&List<'a>, &List<'a>) -> Result<bool, EvalError>) -> Outcome<'a> {
    match args {
        [Value::List(one), Value::List(two)] => Ok(Value::Bool(test(one, two)?)),
        _ => no_overload(),
    }
}

fn contains_all<'a>(list: &List<'a>, part: &List<'a>) -> Result<bool, EvalError> {
    for item in part.iter() {
        if !list.contains(&item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(one: &List<'a>, two: &List<'a>) -> Result<bool, EvalError> {
    for item in one.iter() {
        if two.contains(&item?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds an entry, which must be new.
pub(crate) fn insert<'a>(map: &mut Entries<'a>, key: Value<'a>, value: Value<'a>) -> Result<(), EvalError> {
    if map.has(&key) {
        return Err(EvalError::new(format!(
            "insert failed: key {} already exists",
            shown(&key)
        )));
    }
    let ty = key.type_of();
    if map.insert(key, value) {
        Ok(())
    } else {
        Err(EvalError::new(format!("unsupported key type: {ty}")))
    }
}

fn map_insert<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (map, added) = match args {
        [Value::Map(map), Value::Map(added)] => (map, added.pairs()?),
        [Value::Map(map), key, value] => (map, vec![(key.clone(), value.clone())]),
        _ => return no_overload(),
    };
    let mut entries = match map {
        Map::Shared(entries) => (**entries).clone(),
        Map::Json(..) => {
            let mut entries = Entries::default();
            for (key, value) in map.pairs()? {
                insert(&mut entries, key, value)?;
            }
            entries
        }
    };
    for (key, value) in added {
        insert(&mut entries, key, value)?;
    }
    Ok(Value::Map(Map::Shared(Arc::new(entries))))
}
