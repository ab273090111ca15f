//! Structural schemas: every value has a type known from the schema's plain nodes alone; allOf, anyOf, oneOf and not may
//! only restrict values further.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/{validation,complete,convert}.go (v1.36).

use orlop_api::field::{Cursor, Path, Problem, ProblemKind, Problems};
use orlop_api::pattern;
use orlop_api::structural::Structural;
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Reports what keeps a schema from being structural; false if it cannot even be read as one.
pub(super) fn validate(schema: &Cursor<'_>, p: &mut Problems) -> bool {
    let mut found = Problems::default();
    if !is_sound(schema, &mut found) {
        return false;
    }
    patterns(schema, &mut found);
    found.0.sort_by_cached_key(Problem::to_string);
    for problem in found.0 {
        p.push(
            problem.kind,
            &Path::default().member(&problem.field),
            problem.value,
            problem.detail,
        );
    }
    true
}

/// The same without looking at patterns: to compile them takes time.
pub(super) fn is_sound(schema: &Cursor<'_>, p: &mut Problems) -> bool {
    if schema.value().is_none_or(|s| Structural::parse(s).is_err()) {
        return false;
    }
    invariants(schema, Level::Root, p);
    complete(schema, schema, schema.path(), p);
    true
}

fn either() -> Value {
    json!([{"type": "integer"}, {"type": "string"}])
}

fn given(c: &Cursor<'_>, name: &'static str) -> bool {
    c.at(name).exists()
}

fn structural_below<'a>(c: &Cursor<'a>) -> impl Iterator<Item = (Level, Cursor<'a>)> + use<'a> {
    let items = c.at("items");
    let items = items.exists().then_some((Level::Item, items));
    let properties = c.at("properties").entries().map(|(_, c)| (Level::Field, c));
    let additional = c.at("additionalProperties");
    let additional = additional
        .value()
        .is_some_and(Value::is_object)
        .then_some((Level::Field, additional));
    items.into_iter().chain(properties).chain(additional)
}

fn invariants(c: &Cursor<'_>, level: Level, p: &mut Problems) {
    let ty = c.at("type");
    if ty.str() == "array" && !given(c, "items") {
        p.required(&c.at("items"), "must be specified");
    }
    for (level, below) in structural_below(c) {
        invariants(&below, level, p);
    }
    let additional = c.at("additionalProperties");
    if additional.exists() && level == Level::Root {
        p.forbidden(&additional, "must not be used at the root");
    }
    extensions(c, p);
    let any_of = c.at("anyOf").value() == Some(&either());
    let first_of_all = c.at("allOf").items().next();
    let all_of = first_of_all.is_some_and(|f| f.at("anyOf").value() == Some(&either()));
    value_validation(c, any_of, all_of, level, p);
    types(c, level, p);
    metadata(c, level, p);
}

fn extensions(c: &Cursor<'_>, p: &mut Problems) {
    if !c.at("x-kubernetes-int-or-string").is_true() {
        return;
    }
    for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if c.at(name).is_true() {
            p.invalid(&c.at(name), "must be false if x-kubernetes-int-or-string is true");
        }
    }
}

fn types(c: &Cursor<'_>, level: Level, p: &mut Problems) {
    let ty = c.at("type");
    let embedded = c.at("x-kubernetes-embedded-resource").is_true();
    let preserve = c.at("x-kubernetes-preserve-unknown-fields").is_true();
    if embedded && ty.str() != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        match ty.is_empty() {
            true => p.required(&ty, detail),
            false => p.invalid(&ty, detail),
        }
    } else if ty.is_empty() && !c.at("x-kubernetes-int-or-string").is_true() && !preserve {
        p.required(
            &ty,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    let additional = c.at("additionalProperties");
    if embedded && additional.exists() {
        p.forbidden(&additional, "must not be used if x-kubernetes-embedded-resource is set");
    }
    if level == Level::Root && !ty.is_empty() && ty.str() != "object" {
        p.invalid(&ty, "must be object at the root");
    }
    if embedded && !preserve && c.at("properties").is_empty() {
        let detail =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        p.required(&c.at("properties"), detail);
    }
}

/// What is said of apiVersion, kind and metadata of resources.
fn metadata(c: &Cursor<'_>, level: Level, p: &mut Problems) {
    let is_resource = level == Level::Root || c.at("x-kubernetes-embedded-resource").is_true();
    for (name, property) in c.at("properties").entries() {
        let ty = property.at("type");
        match name {
            "kind" | "apiVersion" if is_resource && ty.str() != "string" => {
                p.invalid_value(ty.path(), &ty.str().into(), "must be string");
            }
            "metadata" => {
                if is_resource && ty.str() != "object" {
                    p.invalid_value(ty.path(), &ty.str().into(), "must be object");
                }
                if level == Level::Root && !says_only_names(&property) {
                    let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                    p.forbidden(&property, detail);
                }
            }
            _ => {}
        }
    }
}

fn says_only_names(metadata: &Cursor<'_>) -> bool {
    let Some(map) = metadata.value().and_then(Value::as_object) else {
        return true;
    };
    let is_empty = |v: &Value| match v {
        Value::Null => true,
        Value::Object(o) => o.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::String(s) => s.is_empty(),
        Value::Bool(b) => !b,
        Value::Number(_) => false,
    };
    map.iter().all(|(name, value)| match (name.as_str(), value) {
        ("type" | "default", _) => true,
        ("properties", Value::Object(o)) => o.keys().all(|k| k == "name" || k == "generateName"),
        // Whatever they say, they are specified.
        ("additionalProperties", value) => value.is_null(),
        (_, value) => is_empty(value),
    })
}

fn value_validation(c: &Cursor<'_>, skip_any_of: bool, skip_first_any_of: bool, level: Level, p: &mut Problems) {
    if !skip_any_of {
        c.at("anyOf").items().for_each(|n| nested(&n, false, level, p));
    }
    for (i, n) in c.at("allOf").items().enumerate() {
        nested(&n, skip_first_any_of && i == 0, level, p);
    }
    c.at("oneOf").items().for_each(|n| nested(&n, false, level, p));
    if given(c, "not") {
        nested(&c.at("not"), false, level, p);
    }
}

/// Patterns that are none, anywhere in a schema.
fn patterns(c: &Cursor<'_>, p: &mut Problems) {
    let pattern = c.at("pattern");
    if !pattern.is_empty()
        && let Err(e) = pattern::compile(pattern.str())
    {
        p.invalid(&pattern, format!("must be a valid regular expression, but isn't: {e}"));
    }
    structural_below(c).for_each(|(_, below)| patterns(&below, p));
    for name in JUNCTORS {
        c.at(name).items().for_each(|below| patterns(&below, p));
    }
    if given(c, "not") {
        patterns(&c.at("not"), p);
    }
}

/// A node in allOf, anyOf, oneOf or not: it may say nothing of the structure.
fn nested(c: &Cursor<'_>, skip_any_of: bool, level: Level, p: &mut Problems) {
    value_validation(c, skip_any_of, false, level, p);
    if given(c, "items") {
        nested(&c.at("items"), false, level, p);
    }
    for (name, property) in c.at("properties").entries() {
        nested(&property, false, Level::Field, p);
        if name == "metadata" {
            p.forbidden(&property, "must not be specified in a nested context");
        }
    }
    let additional = c.at("additionalProperties");
    if additional.exists() && additional.as_bool() != Some(false) {
        p.forbidden(&additional, "must be undefined to be structural");
    }
    for (name, detail) in [
        ("type", "must be empty to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let found = c.at(name);
        let forbidden = match name {
            "default" => found.exists(),
            _ => !found.is_empty(),
        };
        if forbidden {
            p.forbidden(&found, detail);
        }
    }
}

/// Every field that allOf and the like restrict must be specified by the schema itself.
fn complete(structural: &Cursor<'_>, validation: &Cursor<'_>, at: &Path, p: &mut Problems) {
    for name in JUNCTORS {
        let list = Cursor::new(validation.value().and_then(|v| v.get(name)), at.member(name));
        for n in list.items() {
            complete_nested(structural, &n, p);
        }
    }
    let not = validation.at("not");
    if not.exists() {
        complete_nested(structural, &not, p);
    }
}

fn complete_nested(structural: &Cursor<'_>, n: &Cursor<'_>, p: &mut Problems) {
    if !structural.exists() {
        let detail = format!("because it is defined in {}", n.path());
        return p.required(structural, detail);
    }
    complete(structural, n, n.path(), p);
    if given(n, "items") {
        complete_nested(&structural.at("items"), &n.at("items"), p);
    }
    let properties = structural.at("properties");
    for (name, property) in n.at("properties").entries() {
        let known = properties
            .value()
            .and_then(Value::as_object)
            .and_then(|m: &Map<_, _>| m.get(name));
        let place = properties.path().key(name);
        match known {
            Some(schema) => complete_nested(&Cursor::new(Some(schema), place), &property, p),
            None => p.push(
                ProblemKind::Required,
                &place,
                None,
                format!("because it is defined in {}", property.path()),
            ),
        }
    }
}
