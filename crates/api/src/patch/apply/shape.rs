//! What a place in an object is to field ownership: one leaf, or something whose parts have owners of their own.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::element;
use crate::schema::{Field, ListType, Presence, Ty, Type, TypeRef, schema};

#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// Owned as a whole: a scalar, an atomic list, map or struct.
    Leaf,
    Struct(&'static Type),
    Map(&'static Ty),
    /// A list of scalars, each told apart by its value.
    Set,
    /// A list of structs, each told apart by the values of these fields.
    Keyed(&'static [&'static str], TypeRef),
    /// Nothing is known: maps have parts, all else is a leaf.
    Deduced,
    /// A whole object of which only the metadata is known.
    Custom,
}

/// A part of a struct or map.
pub(super) struct Part {
    pub shape: Shape,
    /// A field that the type declares, not a map key.
    pub named: bool,
    /// There whenever its parent is there, if only with its zero value.
    pub always: bool,
}

impl Shape {
    pub(super) fn of_object(ty: Option<TypeRef>) -> Shape {
        match ty {
            Some(r) => Shape::of_struct(r, None),
            None => Shape::Custom,
        }
    }

    fn of_struct(r: TypeRef, atomic: Option<bool>) -> Shape {
        let ty = schema().ty(r);
        if atomic.unwrap_or(ty.atomic) {
            Shape::Leaf
        } else {
            Shape::Struct(ty)
        }
    }

    pub(super) fn of_field(field: &'static Field) -> Shape {
        match (&field.ty, &field.list) {
            (Ty::List(_) | Ty::Items(_), ListType::Set) => Shape::Set,
            (Ty::List(element) | Ty::Items(element), ListType::Map(keys)) => match **element {
                Ty::Struct(r) => Shape::Keyed(keys, r),
                _ => Shape::Leaf,
            },
            (Ty::Struct(r), _) => Shape::of_struct(*r, field.struct_atomic),
            (Ty::Map(_), _) if field.map_atomic => Shape::Leaf,
            (ty, _) => Shape::of(ty),
        }
    }

    fn of(ty: &'static Ty) -> Shape {
        match ty {
            Ty::Struct(r) => Shape::of_struct(*r, None),
            Ty::Map(element) => Shape::Map(element),
            Ty::SchemaOrBool(_) | Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Shape::Deduced,
            _ => Shape::Leaf,
        }
    }

    /// The part under a field name or map key.
    pub(super) fn part(self, name: &str) -> Part {
        match self {
            Shape::Struct(ty) => match ty.field(name) {
                Some(field) => Part::field(field),
                None => Part::unnamed(Shape::Leaf),
            },
            Shape::Map(element) => Part::unnamed(Shape::of(element)),
            Shape::Custom => match name {
                "metadata" => Part {
                    shape: object_meta().map_or(Shape::Deduced, Shape::Struct),
                    named: true,
                    always: true,
                },
                "apiVersion" | "kind" => Part {
                    shape: Shape::Leaf,
                    named: true,
                    always: false,
                },
                _ => Part::unnamed(Shape::Deduced),
            },
            Shape::Deduced => Part::unnamed(Shape::Deduced),
            Shape::Leaf | Shape::Set | Shape::Keyed(..) => Part::unnamed(Shape::Leaf),
        }
    }

    /// The parts one after the other, for names that come in order.
    pub(super) fn parts(self) -> Parts {
        Parts {
            shape: self,
            rest: match self {
                Shape::Struct(ty) => &ty.fields,
                _ => &[],
            },
        }
    }

    /// What the elements of a list are.
    pub(super) fn elements(self) -> Shape {
        match self {
            Shape::Keyed(_, r) => Shape::of_struct(r, None),
            _ => Shape::Leaf,
        }
    }

    /// The path element of a list's element. Elements without any of their keys stand for themselves.
    pub(super) fn element(self, value: &Value) -> String {
        let Shape::Keyed(keys, ty) = self else {
            return element::value(value);
        };
        if let [key] = keys {
            return match key_value(ty, key, value) {
                Some(found) => element::key([(*key, found.as_ref())]),
                None => element::value(value),
            };
        }
        let found = |key: &'static str| Some((key, key_value(ty, key, value)?));
        let mut pairs: Vec<_> = keys.iter().copied().filter_map(found).collect();
        if pairs.is_empty() {
            return element::value(value);
        }
        pairs.sort_by_key(|(key, _)| *key);
        element::key(pairs.iter().map(|(key, value)| (*key, value.as_ref())))
    }

    /// Why a value cannot be an element of this list, if so.
    pub(super) fn unfit_element(self, value: &Value) -> Option<String> {
        match (self, value) {
            (Shape::Keyed(..), Value::Null) => Some("associative list with keys may not have a null element".into()),
            (Shape::Keyed(keys, ty), Value::Object(_)) => {
                if keys.iter().any(|k| key_value(ty, k, value).is_some()) {
                    return None;
                }
                let quoted: Vec<String> = keys.iter().map(|k| format!("{k:?}")).collect();
                Some(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
                     default values for any key fields)",
                    quoted.join(" ")
                ))
            }
            (Shape::Keyed(..), _) => Some("associative list with keys may not have non-map elements".into()),
            (_, Value::Object(_)) => Some("associative list without keys has an element that's a map type".into()),
            (_, Value::Array(_)) => Some("not supported: associative list with lists as elements".into()),
            (_, Value::Null) => Some("associative list without keys has an element that's an explicit null".into()),
            _ => None,
        }
    }
}

/// The parts of a struct or map, looked up in order of their names: a struct's fields are sorted too, so that finding
/// them all takes one pass.
pub(super) struct Parts {
    shape: Shape,
    rest: &'static [Field],
}

impl Parts {
    /// The part under a name that comes after all those asked for before.
    pub(super) fn next(&mut self, name: &str) -> Part {
        while let [field, rest @ ..] = self.rest {
            match field.name.cmp(name) {
                Ordering::Less => self.rest = rest,
                Ordering::Equal => {
                    self.rest = rest;
                    return Part::field(field);
                }
                Ordering::Greater => break,
            }
        }
        match self.shape {
            Shape::Struct(_) => Part::unnamed(Shape::Leaf),
            other => other.part(name),
        }
    }
}

impl Part {
    fn field(field: &'static Field) -> Part {
        Part {
            shape: Shape::of_field(field),
            named: true,
            always: matches!(field.presence, Presence::Always | Presence::Nullable),
        }
    }

    fn unnamed(shape: Shape) -> Part {
        Part {
            shape,
            named: false,
            always: false,
        }
    }
}

fn object_meta() -> Option<&'static Type> {
    schema().get("meta/v1.ObjectMeta").map(|r| schema().ty(r))
}

/// The value of a key field, or the default that the schema gives it (a port's protocol is TCP).
fn key_value<'a>(element_type: TypeRef, key: &str, element: &'a Value) -> Option<Cow<'a, Value>> {
    if let Some(found) = element.get(key) {
        return Some(Cow::Borrowed(found));
    }
    let default = schema().ty(element_type).field(key)?.default?;
    serde_json::from_str(default).ok().map(Cow::Owned)
}
