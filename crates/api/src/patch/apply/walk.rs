//! Which fields an object has (`fields_of`) and how two objects differ (`compare`), as sets of paths.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element;
use super::set::{Set, put};
use super::shape::Shape;

/// The paths that an applied configuration claims: leaves, map entries and list elements, but not the structs and lists
/// that merely hold them.
pub(super) fn fields_of(object: &Value, shape: Shape<'_>) -> Set {
    claims(object, shape).1
}

/// Whether the place is a leaf, and the paths below it.
fn claims(value: &Value, shape: Shape<'_>) -> (bool, Set) {
    let mut set = Set::new();
    match (shape, value) {
        (Shape::Leaf, _) => return (true, set),
        (Shape::Struct(_) | Shape::Map(_) | Shape::Node(_) | Shape::Custom | Shape::Deduced, Value::Object(map)) => {
            let mut parts = shape.parts();
            for (name, value) in map {
                let part = parts.next(name);
                let (leaf, below) = claims(value, part.shape);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                put(&mut set, element::field(name), leaf || empty || !part.named, below);
            }
        }
        (Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_), Value::Array(list)) => {
            for (element, values) in by_element(list, shape) {
                let below = match values {
                    Found::One(value) => claims(value, shape.elements()).1,
                    Found::Many(_) => Set::new(),
                };
                put(&mut set, element, true, below);
            }
        }
        (Shape::Deduced | Shape::Node(_), _) => return (!value.is_null(), set),
        _ => {}
    }
    (false, set)
}

/// The paths at which a new object differs from an old one.
#[derive(Default, Debug)]
pub(super) struct Diff {
    /// Added, or there before with another value.
    pub changed: Set,
    pub removed: Set,
}

/// What is at a place in one of two objects.
#[derive(Clone, Copy)]
enum Side<'a> {
    Absent,
    /// Not spelt out, but in Kubernetes' types there all the same, with its zero value.
    Zero,
    Real(&'a Value),
}

impl<'a> Side<'a> {
    fn is_absent(self) -> bool {
        matches!(self, Side::Absent)
    }

    fn map(self) -> Option<&'a Map<String, Value>> {
        match self {
            Side::Real(Value::Object(map)) if !map.is_empty() => Some(map),
            _ => None,
        }
    }

    fn list(self) -> &'a [Value] {
        match self {
            Side::Real(Value::Array(list)) => list,
            _ => &[],
        }
    }

    /// The side of a part, given what was found under its name.
    fn part(self, found: Option<&'a Value>, always: bool) -> Side<'a> {
        match found {
            Some(value) => Side::Real(value),
            None if always && !self.is_absent() => Side::Zero,
            None => Side::Absent,
        }
    }
}

/// The difference below a place, and whether the place itself was changed or removed.
#[derive(Default)]
struct Here {
    changed: bool,
    removed: bool,
    below: Diff,
}

/// Compares two objects; without an old one, a new one with what an empty object has anyway.
pub(super) fn compare(old: Option<&Value>, new: &Value, shape: Shape<'_>) -> Diff {
    differ(old.map_or(Side::Zero, Side::Real), Side::Real(new), shape).below
}

fn differ(old: Side<'_>, new: Side<'_>, shape: Shape<'_>) -> Here {
    if let (Side::Absent, Side::Real(value)) = (old, new) {
        let changed = all_of(value, shape);
        return Here {
            changed: true,
            removed: false,
            below: Diff {
                changed,
                removed: Set::new(),
            },
        };
    }
    match shape {
        Shape::Leaf => leaves(old, new, shape),
        Shape::Struct(_) | Shape::Map(_) | Shape::Node(_) | Shape::Custom => match (old.map(), new.map()) {
            (None, None) => leaves(old, new, shape),
            (a, b) => maps(old, new, a, b, shape),
        },
        Shape::Deduced => deduced(old, new),
        Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_) => lists(old, new, shape),
    }
}

/// All paths below a place that was not there before: every struct, map, list and element is new, not only the leaves.
fn all_of(value: &Value, shape: Shape<'_>) -> Set {
    let mut set = Set::new();
    match (shape, value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Node(_) | Shape::Custom | Shape::Deduced, Value::Object(map)) => {
            let mut parts = shape.parts();
            for (name, value) in map {
                let below = all_of(value, parts.next(name).shape);
                put(&mut set, element::field(name), true, below);
            }
        }
        (Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_), Value::Array(list)) => {
            for value in list {
                let element = shape.element(value);
                let below = match set.contains_key(&element) {
                    false => all_of(value, shape.elements()),
                    true => Set::new(),
                };
                put(&mut set, element, true, below);
            }
        }
        _ => {}
    }
    set
}

fn leaves(old: Side<'_>, new: Side<'_>, shape: Shape<'_>) -> Here {
    let (changed, removed) = match (old, new) {
        (Side::Absent, Side::Absent) => (false, false),
        (Side::Absent, _) => (true, false),
        (_, Side::Absent) => (false, true),
        (Side::Zero, Side::Zero) => (false, false),
        (Side::Zero, Side::Real(v)) | (Side::Real(v), Side::Zero) => (!is_zero(v, shape), false),
        (Side::Real(a), Side::Real(b)) => (!same(a, b), false),
    };
    Here {
        changed,
        removed,
        below: Diff::default(),
    }
}

fn maps<'a>(
    old: Side<'a>,
    new: Side<'a>,
    a: Option<&'a Map<String, Value>>,
    b: Option<&'a Map<String, Value>>,
    shape: Shape<'_>,
) -> Here {
    let mut below = Diff::default();
    let mut parts = shape.parts();
    for (name, x, y) in zip(a, b) {
        // Most of an object has not changed, and then there is no need to know what it is.
        if x == y {
            continue;
        }
        let part = parts.next(name);
        let here = differ(old.part(x, part.always), new.part(y, part.always), part.shape);
        below.add(here, || element::field(name));
    }
    Here {
        changed: old.is_absent(),
        removed: new.is_absent(),
        below,
    }
}

/// The entries of two maps side by side, in order of their keys.
fn zip<'a>(
    a: Option<&'a Map<String, Value>>,
    b: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = (&'a str, Option<&'a Value>, Option<&'a Value>)> {
    let mut a = a.into_iter().flatten().peekable();
    let mut b = b.into_iter().flatten().peekable();
    std::iter::from_fn(move || {
        let order = match (a.peek(), b.peek()) {
            (Some((x, _)), Some((y, _))) => x.cmp(y),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return None,
        };
        let x = if order.is_le() { a.next() } else { None };
        let y = if order.is_ge() { b.next() } else { None };
        let name = x.or(y)?.0;
        Some((name.as_str(), x.map(|e| e.1), y.map(|e| e.1)))
    })
}

/// Maps have parts, all else is a leaf; where one became the other, the map's parts went or came.
fn deduced(old: Side<'_>, new: Side<'_>) -> Here {
    match (old.map(), new.map()) {
        (None, None) => leaves(old, new, Shape::Deduced),
        (a, b) => {
            let mut here = maps(old, new, a, b, Shape::Deduced);
            let is_leaf = |side: Side<'_>| matches!(side, Side::Real(v) if !v.is_object());
            here.changed |= is_leaf(old) || is_leaf(new);
            here
        }
    }
}

fn lists(old: Side<'_>, new: Side<'_>, shape: Shape<'_>) -> Here {
    let (a, b) = (old.list(), new.list());
    if a.is_empty() && b.is_empty() {
        return leaves(old, new, shape);
    }
    let mut below = Diff::default();
    list_elements(a, b, shape, &mut below);
    Here {
        changed: old.is_absent(),
        removed: new.is_absent(),
        below,
    }
}

fn list_elements(a: &[Value], b: &[Value], shape: Shape<'_>, below: &mut Diff) {
    let of = shape.elements();
    let mut before = by_element(a, shape);
    for (element, after) in by_element(b, shape) {
        let here = match (before.remove(&element), after) {
            (None, Found::One(new)) => differ(Side::Absent, Side::Real(new), of),
            (Some(Found::One(old)), Found::One(new)) if old == new => continue,
            (Some(Found::One(old)), Found::One(new)) => differ(Side::Real(old), Side::Real(new), of),
            // Elements that cannot be told apart are one leaf.
            (Some(Found::Many(old)), Found::Many(new)) => Here {
                changed: old != new,
                ..Here::default()
            },
            (None, Found::Many(_)) => Here {
                changed: true,
                ..Here::default()
            },
            (Some(Found::One(old)), Found::Many(_)) => Here {
                changed: true,
                ..differ(Side::Real(old), Side::Absent, of)
            },
            (Some(Found::Many(_)), Found::One(new)) => differ(Side::Absent, Side::Real(new), of),
        };
        below.add(here, || element);
    }
    for (element, gone) in before {
        let here = match gone {
            Found::One(old) => differ(Side::Real(old), Side::Absent, of),
            Found::Many(_) => Here {
                removed: true,
                ..Here::default()
            },
        };
        below.add(here, || element);
    }
}

impl Diff {
    fn add(&mut self, here: Here, element: impl FnOnce() -> String) {
        let changed = here.changed || !here.below.changed.is_empty();
        let removed = here.removed || !here.below.removed.is_empty();
        match (changed, removed) {
            (false, false) => {}
            (true, false) => put(&mut self.changed, element(), here.changed, here.below.changed),
            (false, true) => put(&mut self.removed, element(), here.removed, here.below.removed),
            (true, true) => {
                let element = element();
                put(&mut self.changed, element.clone(), here.changed, here.below.changed);
                put(&mut self.removed, element, here.removed, here.below.removed);
            }
        }
    }
}

/// The elements of a list that go by one name: one, as it should be, or several, which then are one thing to all.
pub(super) enum Found<'a> {
    One(&'a Value),
    Many(Vec<&'a Value>),
}

pub(super) fn by_element<'a>(list: &'a [Value], shape: Shape<'_>) -> BTreeMap<String, Found<'a>> {
    use std::collections::btree_map::Entry;
    let mut found = BTreeMap::new();
    for value in list {
        match found.entry(shape.element(value)) {
            Entry::Vacant(at) => {
                at.insert(Found::One(value));
            }
            Entry::Occupied(mut at) => match at.get_mut() {
                Found::One(first) => {
                    let both = vec![*first, value];
                    at.insert(Found::Many(both));
                }
                Found::Many(all) => all.push(value),
            },
        }
    }
    found
}

/// Whether a value is the zero of its type. That of a list or map is null, and an empty one is something else.
fn is_zero(value: &Value, shape: Shape<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(_) => false,
        Value::Object(map) => map.is_empty() && !matches!(shape, Shape::Map(_) | Shape::Deduced),
    }
}

/// Equal, where 1 and 1.0 are one number.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || ((x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64()),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|((j, x), (k, y))| j == k && same(x, y))
        }
        _ => a == b,
    }
}
