//! What a place in an object is to field ownership: one leaf, or something whose parts have owners of their own.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::ObjectType;
use super::element;
use crate::schema::{Field, ListType, Presence, Ty, Type, TypeRef, schema};
use crate::structural::{Additional, Members, SchemaListType, SchemaType, Structural};

#[derive(Clone, Copy)]
pub(super) enum Shape<'s> {
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
    /// An object of a custom kind, or one in it.
    Node(Node<'s>),
    /// A list of objects in one, each told apart by the values of its keys.
    NodeKeyed(Node<'s>),
}

/// A place in an object of a custom kind.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    pub schema: &'s Structural,
    /// Here or above, unknown fields are preserved.
    preserve: bool,
    /// The object itself.
    root: bool,
}

impl<'s> Node<'s> {
    fn below(self, schema: &'s Structural) -> Node<'s> {
        Node {
            schema,
            preserve: self.preserve || schema.preserve_unknown_fields,
            root: false,
        }
    }

    pub(super) fn root(schema: &'s Structural) -> Node<'s> {
        Node {
            schema,
            preserve: schema.preserve_unknown_fields,
            root: true,
        }
    }

    /// Whether it has apiVersion, kind and metadata even if the schema says nothing of them.
    pub(super) fn is_resource(self) -> bool {
        self.root || self.schema.embedded_resource
    }

    /// The property of that name.
    pub(super) fn property(self, name: &str) -> Option<Node<'s>> {
        self.schema.property(name).map(|schema| self.below(schema))
    }

    pub(super) fn items(self) -> Option<Node<'s>> {
        self.schema.items.as_deref().map(|schema| self.below(schema))
    }

    /// The schema of what stands under names that are no properties.
    pub(super) fn additional(self) -> Option<Node<'s>> {
        self.schema.additional_schema().map(|schema| self.below(schema))
    }

    /// What stands under names that are no properties: None if nothing may.
    pub(super) fn other(self) -> Option<Shape<'s>> {
        match &self.schema.additional {
            Additional::Schema(schema) => Some(Shape::of_node(self.below(schema))),
            Additional::Allowed(true) => Some(Shape::Deduced),
            Additional::Allowed(false) => None,
            Additional::Unspecified if self.preserve => Some(Shape::Deduced),
            // An object of which nothing is said may be anything; one with apiVersion and the like says something.
            Additional::Unspecified if self.schema.properties.is_empty() && !self.is_resource() => Some(Shape::Deduced),
            Additional::Unspecified => None,
        }
    }
}

/// A part of a struct or map.
pub(super) struct Part<'s> {
    pub shape: Shape<'s>,
    /// A field that the type declares, not a map key.
    pub named: bool,
    /// There whenever its parent is there, if only with its zero value.
    pub always: bool,
}

impl<'s> Shape<'s> {
    pub(super) fn of_object(ty: ObjectType<'s>) -> Shape<'s> {
        match ty {
            ObjectType::BuiltIn(r) => Shape::of_struct(r, None),
            ObjectType::Custom(schema) => Shape::Node(Node::root(schema)),
            ObjectType::Unknown => Shape::Custom,
        }
    }

    pub(super) fn of_node(node: Node<'s>) -> Shape<'s> {
        let s = node.schema;
        match s.ty {
            SchemaType::Array => match s.list_type() {
                Some(SchemaListType::Set) => Shape::Set,
                Some(SchemaListType::Map) if s.items.is_some() => Shape::NodeKeyed(node),
                _ => Shape::Leaf,
            },
            SchemaType::Object | SchemaType::Unspecified if s.map_atomic() => Shape::Leaf,
            SchemaType::Object => Shape::Node(node),
            SchemaType::Unspecified if s.properties.is_empty() && !s.has_additional() && !s.embedded_resource => {
                Shape::Deduced
            }
            SchemaType::Unspecified => Shape::Node(node),
            _ => Shape::Leaf,
        }
    }

    fn of_struct(r: TypeRef, atomic: Option<bool>) -> Shape<'s> {
        let ty = schema().ty(r);
        if atomic.unwrap_or(ty.atomic) {
            Shape::Leaf
        } else {
            Shape::Struct(ty)
        }
    }

    pub(super) fn of_field(field: &'static Field) -> Shape<'s> {
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

    fn of(ty: &'static Ty) -> Shape<'s> {
        match ty {
            Ty::Struct(r) => Shape::of_struct(*r, None),
            Ty::Map(element) => Shape::Map(element),
            Ty::SchemaOrBool(_) | Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Shape::Deduced,
            _ => Shape::Leaf,
        }
    }

    /// The part under a field name or map key.
    pub(super) fn part(self, name: &str) -> Part<'s> {
        match self {
            Shape::Struct(ty) => match ty.field(name) {
                Some(field) => Part::field(field),
                None => Part::unnamed(Shape::Leaf),
            },
            Shape::Map(element) => Part::unnamed(Shape::of(element)),
            Shape::Custom => Part::of_resource(name).unwrap_or(Part::unnamed(Shape::Deduced)),
            Shape::Node(node) => Part::of_node(node, name, node.property(name)),
            Shape::Deduced => Part::unnamed(Shape::Deduced),
            Shape::Leaf | Shape::Set | Shape::Keyed(..) | Shape::NodeKeyed(_) => Part::unnamed(Shape::Leaf),
        }
    }

    /// The parts one after the other, for names that come in order.
    pub(super) fn parts(self) -> Parts<'s> {
        Parts {
            shape: self,
            rest: match self {
                Shape::Struct(ty) => &ty.fields,
                _ => &[],
            },
            members: match self {
                Shape::Node(node) => Some(node.schema.members()),
                _ => None,
            },
        }
    }

    /// What the elements of a list are.
    pub(super) fn elements(self) -> Shape<'s> {
        match self {
            Shape::Keyed(_, r) => Shape::of_struct(r, None),
            Shape::NodeKeyed(list) => list.items().map_or(Shape::Leaf, Shape::of_node),
            _ => Shape::Leaf,
        }
    }

    /// The path element of a list's element. Elements without any of their keys stand for themselves.
    pub(super) fn element(self, value: &Value) -> String {
        let (keys, ty) = match self {
            Shape::Keyed(keys, ty) => (keys, ty),
            Shape::NodeKeyed(list) => return node_element(list.schema, value),
            _ => return element::value(value),
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
            (Shape::Keyed(..) | Shape::NodeKeyed(_), Value::Null) => {
                Some("associative list with keys may not have a null element".into())
            }
            (Shape::Keyed(keys, ty), Value::Object(_)) => {
                if keys.iter().any(|k| key_value(ty, k, value).is_some()) {
                    return None;
                }
                Some(omits_all_keys(keys.iter().copied()))
            }
            (Shape::NodeKeyed(list), Value::Object(_)) => {
                let keys = list.schema.list_map_keys();
                if keys.iter().any(|k| node_key_value(list.schema, k, value).is_some()) {
                    return None;
                }
                Some(omits_all_keys(keys.iter().map(|k| &**k)))
            }
            (Shape::Keyed(..) | Shape::NodeKeyed(_), _) => {
                Some("associative list with keys may not have non-map elements".into())
            }
            (_, Value::Object(_)) => Some("associative list without keys has an element that's a map type".into()),
            (_, Value::Array(_)) => Some("not supported: associative list with lists as elements".into()),
            (_, Value::Null) => Some("associative list without keys has an element that's an explicit null".into()),
            _ => None,
        }
    }
}

/// The parts of a struct or map, looked up in order of their names: a struct's fields are sorted too, so that finding
/// them all takes one pass.
pub(super) struct Parts<'s> {
    shape: Shape<'s>,
    rest: &'static [Field],
    members: Option<Members<'s>>,
}

impl<'s> Parts<'s> {
    /// The part under a name that comes after all those asked for before.
    pub(super) fn next(&mut self, name: &str) -> Part<'s> {
        if let (Some(members), Shape::Node(node)) = (&mut self.members, self.shape) {
            let property = members.property(name).map(|schema| node.below(schema));
            return Part::of_node(node, name, property);
        }
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

impl<'s> Part<'s> {
    /// apiVersion, kind and metadata of a resource.
    fn of_resource(name: &str) -> Option<Part<'s>> {
        match name {
            "metadata" => Some(Part {
                shape: object_meta().map_or(Shape::Deduced, Shape::Struct),
                named: true,
                always: true,
            }),
            "apiVersion" | "kind" => Some(Part {
                shape: Shape::Leaf,
                named: true,
                always: false,
            }),
            _ => None,
        }
    }

    fn of_node(node: Node<'s>, name: &str, property: Option<Node<'s>>) -> Part<'s> {
        if node.is_resource()
            && let Some(part) = Part::of_resource(name)
        {
            return Part {
                always: part.always && node.root,
                ..part
            };
        }
        match property {
            Some(property) => Part {
                shape: Shape::of_node(property),
                named: true,
                always: false,
            },
            None => Part::unnamed(node.other().unwrap_or(Shape::Leaf)),
        }
    }

    fn field(field: &'static Field) -> Part<'s> {
        Part {
            shape: Shape::of_field(field),
            named: true,
            always: matches!(field.presence, Presence::Always | Presence::Nullable),
        }
    }

    fn unnamed(shape: Shape<'s>) -> Part<'s> {
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

fn omits_all_keys<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = keys.map(|k| format!("{k:?}")).collect();
    format!(
        "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for \
         any key fields)",
        quoted.join(" ")
    )
}

/// The same for an element of a list of a custom kind.
fn node_key_value<'a>(list: &'a Structural, key: &str, element: &'a Value) -> Option<&'a Value> {
    let default = || list.items.as_deref()?.property(key)?.default_value();
    element.get(key).or_else(default)
}

fn node_element(list: &Structural, value: &Value) -> String {
    let keys = list.list_map_keys();
    let mut pairs: Vec<(&str, &Value)> = keys
        .iter()
        .filter_map(|key| Some((&**key, node_key_value(list, key, value)?)))
        .collect();
    if pairs.is_empty() {
        return element::value(value);
    }
    pairs.sort_by_key(|(key, _)| *key);
    element::key(pairs)
}
