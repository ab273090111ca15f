//! From a JSONSchemaProps to a `Structural`.

use serde_json::{Map, Value};

use super::{
    Additional, Enumeration, Extra, Junctors, ListShape, NumberBounds, Property, Range, SchemaListType, SchemaType,
    Structural, ValidationRule, ValueValidation,
};
use crate::pattern::Pattern;

/// How deep schemas may nest. A body nests at most 120 levels, and each schema takes two of them.
pub const MAX_SCHEMA_DEPTH: usize = 64;

/// What makes a JSONSchemaProps one that cannot be read as a structural schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("OpenAPIV3Schema '{0}' is not supported")]
    Unsupported(&'static str),
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    ItemsArray,
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    PreserveFalse,
    #[error("schema nests deeper than {MAX_SCHEMA_DEPTH} levels")]
    TooDeep,
    #[error("schema must be an object")]
    NotAnObject,
}

impl Structural {
    /// Reads the schema of a version as it stands in its definition.
    pub fn parse(schema: &Value) -> Result<Structural, ParseError> {
        node(schema, 0)
    }
}

fn node(schema: &Value, depth: usize) -> Result<Structural, ParseError> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err(ParseError::TooDeep);
    }
    let s = schema.as_object().ok_or(ParseError::NotAnObject)?;
    refuse_unsupported(s)?;
    let mut out = Structural {
        ty: schema_type(text(s, "type")),
        nullable: flag(s, "nullable"),
        preserve_unknown_fields: preserve(s)?,
        embedded_resource: flag(s, "x-kubernetes-embedded-resource"),
        int_or_string: flag(s, "x-kubernetes-int-or-string"),
        items: match s.get("items") {
            None | Some(Value::Null) => None,
            Some(Value::Array(_)) => return Err(ParseError::ItemsArray),
            Some(items) => Some(Box::new(node(items, depth + 1)?)),
        },
        properties: properties(s, depth)?,
        additional: match s.get("additionalProperties") {
            None | Some(Value::Null) => Additional::Unspecified,
            Some(Value::Bool(allowed)) => Additional::Allowed(*allowed),
            Some(schema) => Additional::Schema(Box::new(node(schema, depth + 1)?)),
        },
        ..Default::default()
    };
    let extra = extra(s, depth)?;
    if extra != Extra::default() {
        out.extra = Some(Box::new(extra));
    }
    summarize(&mut out);
    Ok(out)
}

/// Notes what the nodes below have, so that walks that look for it need not go there.
fn summarize(s: &mut Structural) {
    s.has_defaults = s.default_value().is_some();
    s.has_unique_lists = matches!(s.list_type(), Some(SchemaListType::Set | SchemaListType::Map));
    s.has_rules = !s.rules().is_empty();
    let below = s.properties.iter().map(|p| &p.schema);
    let below = below.chain(s.items.as_deref());
    let below = below.chain(match &s.additional {
        Additional::Schema(schema) => Some(&**schema),
        _ => None,
    });
    let (mut defaults, mut lists, mut embedded, mut rules) = (false, false, false, false);
    for b in below {
        defaults |= b.has_defaults;
        lists |= b.has_unique_lists;
        embedded |= b.embedded_resource || b.has_embedded;
        rules |= b.has_rules;
    }
    s.has_defaults |= defaults;
    s.has_unique_lists |= lists;
    s.has_embedded = embedded;
    s.has_rules |= rules;
}

fn refuse_unsupported(s: &Map<String, Value>) -> Result<(), ParseError> {
    let has_members = |v: &Value| match v {
        Value::Object(o) => !o.is_empty(),
        Value::String(s) => !s.is_empty(),
        Value::Null => false,
        _ => true,
    };
    for name in ["id", "$schema", "$ref", "patternProperties", "dependencies"] {
        if s.get(name).is_some_and(has_members) {
            return Err(ParseError::Unsupported(if name == "$schema" { "schema" } else { name }));
        }
    }
    if s.get("additionalItems").is_some_and(|v| !v.is_null()) {
        return Err(ParseError::Unsupported("additionalItems"));
    }
    if s.get("definitions").is_some_and(has_members) {
        return Err(ParseError::Unsupported("definitions"));
    }
    Ok(())
}

fn preserve(s: &Map<String, Value>) -> Result<bool, ParseError> {
    match s.get("x-kubernetes-preserve-unknown-fields") {
        Some(Value::Bool(false)) => Err(ParseError::PreserveFalse),
        Some(Value::Bool(true)) => Ok(true),
        _ => Ok(false),
    }
}

fn schema_type(name: &str) -> SchemaType {
    match name {
        "" => SchemaType::Unspecified,
        "object" => SchemaType::Object,
        "array" => SchemaType::Array,
        "string" => SchemaType::String,
        "integer" => SchemaType::Integer,
        "number" => SchemaType::Number,
        "boolean" => SchemaType::Boolean,
        _ => SchemaType::Invalid,
    }
}

fn text<'a>(s: &'a Map<String, Value>, name: &str) -> &'a str {
    s.get(name).and_then(Value::as_str).unwrap_or("")
}

fn flag(s: &Map<String, Value>, name: &str) -> bool {
    s.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn list<'a>(s: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    s.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn texts(s: &Map<String, Value>, name: &str) -> Box<[Box<str>]> {
    list(s, name).iter().filter_map(Value::as_str).map(Box::from).collect()
}

fn properties(s: &Map<String, Value>, depth: usize) -> Result<Box<[Property]>, ParseError> {
    let Some(map) = s.get("properties").and_then(Value::as_object) else {
        return Ok(Box::default());
    };
    // The map's names are in order already.
    map.iter()
        .map(|(name, schema)| {
            Ok(Property {
                name: name.as_str().into(),
                schema: node(schema, depth + 1)?,
            })
        })
        .collect()
}

fn nodes(s: &Map<String, Value>, name: &str, depth: usize) -> Result<Box<[Structural]>, ParseError> {
    list(s, name).iter().map(|schema| node(schema, depth + 1)).collect()
}

/// Boxed, unless it says nothing.
fn boxed<T: Default + PartialEq>(value: T) -> Option<Box<T>> {
    (value != T::default()).then(|| Box::new(value))
}

fn extra(s: &Map<String, Value>, depth: usize) -> Result<Extra, ParseError> {
    Ok(Extra {
        list: list_shape(s).map(Box::new),
        map_atomic: text(s, "x-kubernetes-map-type") == "atomic",
        default: s.get("default").filter(|v| !v.is_null()).cloned().map(Box::new),
        rules: list(s, "x-kubernetes-validations").iter().filter_map(rule).collect(),
        validation: boxed(value_validation(s, depth)?),
    })
}

fn list_shape(s: &Map<String, Value>) -> Option<ListShape> {
    let ty = match text(s, "x-kubernetes-list-type") {
        "set" => Some(SchemaListType::Set),
        "map" => Some(SchemaListType::Map),
        "" => None,
        _ => Some(SchemaListType::Atomic),
    };
    let map_keys = texts(s, "x-kubernetes-list-map-keys");
    (ty.is_some() || !map_keys.is_empty()).then_some(ListShape { ty, map_keys })
}

fn rule(rule: &Value) -> Option<ValidationRule> {
    let r = rule.as_object()?;
    Some(ValidationRule {
        rule: text(r, "rule").into(),
        message: text(r, "message").into(),
        message_expression: text(r, "messageExpression").into(),
        reason: r.get("reason").and_then(Value::as_str).map(Box::from),
        field_path: text(r, "fieldPath").into(),
        optional_old_self: r.get("optionalOldSelf").and_then(Value::as_bool),
    })
}

fn value_validation(s: &Map<String, Value>, depth: usize) -> Result<ValueValidation, ParseError> {
    let number = |name: &str| s.get(name).and_then(Value::as_f64);
    let count = |name: &str| s.get(name).and_then(Value::as_i64);
    let range = |min: &str, max: &str| {
        boxed(Range {
            min: count(min),
            max: count(max),
        })
    };
    let nonempty = |name: &str| Some(text(s, name)).filter(|t| !t.is_empty());
    Ok(ValueValidation {
        format: nonempty("format").map(Box::from),
        pattern: nonempty("pattern").map(|text| Box::new(Pattern::new(text))),
        numbers: boxed(NumberBounds {
            maximum: number("maximum"),
            minimum: number("minimum"),
            multiple_of: number("multipleOf"),
            exclusive_maximum: flag(s, "exclusiveMaximum"),
            exclusive_minimum: flag(s, "exclusiveMinimum"),
        }),
        lengths: range("minLength", "maxLength"),
        items: range("minItems", "maxItems"),
        properties: range("minProperties", "maxProperties"),
        required: texts(s, "required"),
        enumeration: boxed(Enumeration {
            values: list(s, "enum").into(),
            sorted: sorted_strings(list(s, "enum")),
        }),
        junctors: boxed(Junctors {
            all_of: nodes(s, "allOf", depth)?,
            any_of: nodes(s, "anyOf", depth)?,
            one_of: nodes(s, "oneOf", depth)?,
            not: match s.get("not") {
                None | Some(Value::Null) => None,
                Some(schema) => Some(node(schema, depth + 1)?),
            },
        }),
        unique_items: flag(s, "uniqueItems"),
    })
}

/// The places of the strings among many values, in order of their text: looking through all would take too long.
fn sorted_strings(values: &[Value]) -> Box<[u32]> {
    if values.len() <= 16 {
        return Box::default();
    }
    let strings = (0u32..).zip(values).filter(|(_, v)| v.is_string());
    let mut places: Vec<u32> = strings.map(|(i, _)| i).collect();
    places.sort_by_key(|i| values[*i as usize].as_str());
    places.into()
}
