//! The structural schema of a custom kind: what its definition says about the shape of objects, in a form made once and
//! read on every request.
//!
//! `Structural::parse` reads a JSONSchemaProps as it stands in a CustomResourceDefinition; descriptions and the like are
//! not kept. With it bodies are decoded and pruned in one pass (`decode`), values already read are pruned (`prune`),
//! defaults filled in (`default`), and the metadata of embedded resources checked (`metadata`). Server-side apply reads
//! how lists and maps merge (`crate::patch::apply`). Whether a schema is acceptable at all and whether values satisfy it
//! is decided in `crates/apiextensions`.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema (v1.36).

mod decode;
mod default;
mod metadata;
mod parse;
mod prune;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::pattern::Pattern;

pub use metadata::{MetadataError, coerce_metadata, validate_metadata};
pub use parse::{MAX_SCHEMA_DEPTH, ParseError};

/// One node of a schema. What few nodes have is behind one pointer: a definition can have thousands of nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Structural {
    pub ty: SchemaType,
    pub nullable: bool,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// Something in or below here has a default.
    pub has_defaults: bool,
    /// Something in or below here is a list whose elements must be unique.
    pub has_unique_lists: bool,
    /// Something below here is an embedded resource.
    pub has_embedded: bool,
    /// Something in or below here has rules in CEL.
    pub has_rules: bool,
    pub items: Option<Box<Structural>>,
    /// In order of their names.
    pub properties: Box<[Property]>,
    pub additional: Additional,
    extra: Option<Box<Extra>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    pub name: Box<str>,
    pub schema: Structural,
}

/// `type`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchemaType {
    /// None given.
    #[default]
    Unspecified,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// A word that is none of these: no value is of this type.
    Invalid,
}

impl SchemaType {
    pub fn name(self) -> &'static str {
        match self {
            SchemaType::Unspecified | SchemaType::Invalid => "",
            SchemaType::Object => "object",
            SchemaType::Array => "array",
            SchemaType::String => "string",
            SchemaType::Integer => "integer",
            SchemaType::Number => "number",
            SchemaType::Boolean => "boolean",
        }
    }
}

/// `additionalProperties`
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Additional {
    #[default]
    Unspecified,
    Allowed(bool),
    Schema(Box<Structural>),
}

/// `x-kubernetes-list-type`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchemaListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// What few nodes have.
#[derive(Debug, Clone, Default, PartialEq)]
struct Extra {
    list: Option<Box<ListShape>>,
    default: Option<Box<Value>>,
    rules: Box<[ValidationRule]>,
    validation: Option<Box<ValueValidation>>,
    map_atomic: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct ListShape {
    ty: Option<SchemaListType>,
    map_keys: Box<[Box<str>]>,
}

/// What is said about values beyond their structure. Most nodes say one thing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueValidation {
    pub format: Option<Box<str>>,
    pub pattern: Option<Box<Pattern>>,
    pub numbers: Option<Box<NumberBounds>>,
    lengths: Option<Box<Range>>,
    items: Option<Box<Range>>,
    properties: Option<Box<Range>>,
    pub required: Box<[Box<str>]>,
    enumeration: Option<Box<Enumeration>>,
    junctors: Option<Box<Junctors>>,
    pub unique_items: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NumberBounds {
    pub maximum: Option<f64>,
    pub minimum: Option<f64>,
    pub multiple_of: Option<f64>,
    pub exclusive_maximum: bool,
    pub exclusive_minimum: bool,
}

/// How long a string, or how large a list or object, may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Enumeration {
    values: Box<[Value]>,
    /// The places of its strings in order of their text, if it is long.
    sorted: Box<[u32]>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Junctors {
    all_of: Box<[Structural]>,
    any_of: Box<[Structural]>,
    one_of: Box<[Structural]>,
    not: Option<Structural>,
}

/// An element of `x-kubernetes-validations`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidationRule {
    pub rule: Box<str>,
    pub message: Box<str>,
    pub message_expression: Box<str>,
    pub reason: Option<Box<str>>,
    pub field_path: Box<str>,
    pub optional_old_self: Option<bool>,
}

impl Structural {
    pub fn property(&self, name: &str) -> Option<&Structural> {
        let at = self.properties.binary_search_by(|p| (*p.name).cmp(name)).ok()?;
        Some(&self.properties[at].schema)
    }

    /// The schema of what stands under a name: a property's, or that of additional properties.
    pub fn member(&self, name: &str) -> Option<&Structural> {
        self.property(name).or_else(|| self.additional_schema())
    }

    pub fn additional_schema(&self) -> Option<&Structural> {
        match &self.additional {
            Additional::Schema(schema) => Some(schema),
            _ => None,
        }
    }

    /// Whether `additionalProperties` is there at all.
    pub fn has_additional(&self) -> bool {
        self.additional != Additional::Unspecified
    }

    pub fn default_value(&self) -> Option<&Value> {
        self.extra.as_ref()?.default.as_deref()
    }

    pub fn rules(&self) -> &[ValidationRule] {
        self.extra.as_ref().map_or(&[], |e| &e.rules)
    }

    pub fn validation(&self) -> Option<&ValueValidation> {
        self.extra.as_ref()?.validation.as_deref()
    }

    /// As given; a list without one is atomic.
    pub fn list_type(&self) -> Option<SchemaListType> {
        self.extra.as_ref()?.list.as_ref()?.ty
    }

    pub fn list_map_keys(&self) -> &[Box<str>] {
        let list = self.extra.as_ref().and_then(|e| e.list.as_ref());
        list.map_or(&[], |l| &l.map_keys)
    }

    pub fn map_atomic(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.map_atomic)
    }

    /// The members' schemas, for names that come in order: one pass over the properties finds them all.
    pub fn members(&self) -> Members<'_> {
        Members {
            rest: &self.properties,
            additional: self.additional_schema(),
        }
    }
}

impl ValueValidation {
    /// In characters.
    pub fn lengths(&self) -> Range {
        self.lengths.as_deref().copied().unwrap_or_default()
    }

    /// Elements of a list.
    pub fn items(&self) -> Range {
        self.items.as_deref().copied().unwrap_or_default()
    }

    /// Members of an object.
    pub fn properties(&self) -> Range {
        self.properties.as_deref().copied().unwrap_or_default()
    }

    pub fn all_of(&self) -> &[Structural] {
        self.junctors.as_ref().map_or(&[], |j| &j.all_of)
    }

    pub fn any_of(&self) -> &[Structural] {
        self.junctors.as_ref().map_or(&[], |j| &j.any_of)
    }

    pub fn one_of(&self) -> &[Structural] {
        self.junctors.as_ref().map_or(&[], |j| &j.one_of)
    }

    pub fn not(&self) -> Option<&Structural> {
        self.junctors.as_ref()?.not.as_ref()
    }

    /// All that a value may be; empty: anything.
    pub fn enumeration(&self) -> &[Value] {
        self.enumeration.as_ref().map_or(&[], |e| &e.values)
    }

    /// Whether a value is one of the enumeration.
    pub fn enumerates(&self, value: &Value) -> bool {
        let Some(all) = &self.enumeration else { return false };
        if let (Value::String(text), false) = (value, all.sorted.is_empty()) {
            let text_at = |i: &u32| all.values[*i as usize].as_str().unwrap_or("");
            return all.sorted.binary_search_by(|i| text_at(i).cmp(text)).is_ok();
        }
        all.values.iter().any(|allowed| match (allowed, value) {
            (Value::Null, _) => false,
            (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
            (a, b) => a == b,
        })
    }
}

/// See [`Structural::members`].
#[derive(Debug)]
pub struct Members<'s> {
    rest: &'s [Property],
    additional: Option<&'s Structural>,
}

impl<'s> Members<'s> {
    /// The property of a name that comes after all those asked for before.
    pub fn property(&mut self, name: &str) -> Option<&'s Structural> {
        while let [first, rest @ ..] = self.rest {
            match (*first.name).cmp(name) {
                std::cmp::Ordering::Less => self.rest = rest,
                std::cmp::Ordering::Equal => {
                    self.rest = rest;
                    return Some(&first.schema);
                }
                std::cmp::Ordering::Greater => break,
            }
        }
        None
    }

    /// The same, or the schema of additional properties.
    pub fn member(&mut self, name: &str) -> Option<&'s Structural> {
        self.property(name).or(self.additional)
    }
}

/// The members of an object that every resource has, whether or not its schema says so.
pub(crate) fn is_meta_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}
