//! What an old definition was allowed to have, its successors may have too.

use orlop_api::field::{Cursor, Path, Problems};
use orlop_api::structural::Structural;
use serde_json::{Map, Value};

use super::schema::{is_openapi_type, validate_map_keys};
use super::{is_true, list, structure, text};
use crate::names::is_condition_true;

pub(super) const MAX_SELECTABLE_FIELDS: usize = 8;

/// Which rules apply.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub require_review_version: bool,
    pub require_immutable_names: bool,
    pub require_schema: bool,
    pub require_valid_types: bool,
    pub require_structural: bool,
    pub require_pruned_defaults: bool,
    pub require_atomic_sets: bool,
    pub require_map_keys: bool,
    pub allow_invalid_ca_bundle: bool,
    /// Versions that may go on having too many selectable fields.
    pub too_many_fields: Vec<String>,
    /// Versions whose schema was that before.
    pub unchanged_schemas: Vec<String>,
}

impl Options {
    pub(super) fn for_create() -> Options {
        Options {
            require_review_version: true,
            require_immutable_names: false,
            require_schema: true,
            require_valid_types: true,
            require_structural: true,
            require_pruned_defaults: true,
            require_atomic_sets: true,
            require_map_keys: true,
            // Nothing is served by it yet.
            allow_invalid_ca_bundle: true,
            too_many_fields: vec![],
            unchanged_schemas: vec![],
        }
    }

    pub(super) fn for_update(new: &Value, old: &Value) -> Options {
        let spec = old.get("spec").unwrap_or(&Value::Null);
        let has = |pred: &mut dyn FnMut(&Map<String, Value>) -> bool| schemas(old).any(|s| any_schema(s, pred));
        let webhook = spec.pointer("/conversion/webhook");
        let reviews = webhook.map_or(&[][..], |w| list(w, "conversionReviewVersions"));
        let established = is_condition_true(old, "Established");
        let bundle = webhook
            .and_then(|w| w.pointer("/clientConfig/caBundle"))
            .and_then(Value::as_str);
        Options {
            require_review_version: reviews.is_empty() || reviews.iter().any(|v| v == "v1" || v == "v1beta1"),
            require_immutable_names: established,
            require_schema: list(spec, "versions")
                .iter()
                .all(|v| v.pointer("/schema/openAPIV3Schema").is_some_and(Value::is_object)),
            require_valid_types: !has(&mut |s| !is_openapi_type(s.get("type").and_then(Value::as_str).unwrap_or(""))),
            require_structural: schemas(old).all(has_structure),
            require_pruned_defaults: !schemas(old).any(has_unpruned_defaults),
            require_atomic_sets: !has(&mut has_non_atomic_set),
            require_map_keys: !has(&mut |s| {
                let list_type = s.get("x-kubernetes-list-type").and_then(Value::as_str);
                if !matches!(list_type, Some("set" | "map")) {
                    return false;
                }
                let mut p = Problems::default();
                let schema = Value::Object(s.clone());
                validate_map_keys(&Cursor::root(&schema), &mut p);
                !p.is_empty()
            }),
            allow_invalid_ca_bundle: !established || bundle.is_some_and(|b| super::ca_bundle_error(b).is_some()),
            too_many_fields: same_versions(new, old, |new, old| {
                let before = list(old, "selectableFields");
                before.len() > MAX_SELECTABLE_FIELDS && list(new, "selectableFields") == before
            }),
            unchanged_schemas: same_versions(new, old, |new, old| new.get("schema") == old.get("schema")),
        }
    }
}

/// The names of versions that satisfy a condition together with the old version of that name.
fn same_versions(new: &Value, old: &Value, holds: impl Fn(&Value, &Value) -> bool) -> Vec<String> {
    fn versions(definition: &Value) -> &[Value] {
        definition.get("spec").map_or(&[], |s| list(s, "versions"))
    }
    let of_name = |name: &str| versions(old).iter().find(|v| text(v, "name") == name);
    let same = versions(new)
        .iter()
        .filter(|new| of_name(text(new, "name")).is_some_and(|old| holds(new, old)));
    same.map(|v| text(v, "name").to_string()).collect()
}

/// The schemas of all versions.
pub(super) fn schemas(definition: &Value) -> impl Iterator<Item = &Value> {
    let versions = definition.get("spec").map_or(&[][..], |s| list(s, "versions"));
    versions
        .iter()
        .filter_map(|v| v.pointer("/schema/openAPIV3Schema"))
        .filter(|s| s.is_object())
}

/// Whether something holds for a schema or any schema in it, wherever it stands.
pub(super) fn any_schema(schema: &Value, holds: &mut dyn FnMut(&Map<String, Value>) -> bool) -> bool {
    let Some(map) = schema.as_object() else { return false };
    if holds(map) {
        return true;
    }
    for name in ["items", "additionalProperties", "additionalItems", "not"] {
        let found = match map.get(name) {
            Some(Value::Array(list)) => list.iter().any(|s| any_schema(s, holds)),
            Some(schema) => any_schema(schema, holds),
            None => false,
        };
        if found {
            return true;
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        let list = map.get(name).and_then(Value::as_array);
        if list.into_iter().flatten().any(|s| any_schema(s, holds)) {
            return true;
        }
    }
    for name in ["properties", "patternProperties", "definitions", "dependencies"] {
        let members = map.get(name).and_then(Value::as_object);
        if members.into_iter().flatten().any(|(_, s)| any_schema(s, holds)) {
            return true;
        }
    }
    false
}

fn has_non_atomic_set(schema: &Map<String, Value>) -> bool {
    let word = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_string);
    let Some(items) = schema.get("items").filter(|i| i.is_object()) else {
        return false;
    };
    if schema.get("x-kubernetes-list-type") != Some(&Value::from("set")) {
        return false;
    }
    match text(items, "type") {
        "array" => word(items, "x-kubernetes-list-type").is_some_and(|t| t != "atomic"),
        "object" => word(items, "x-kubernetes-map-type").as_deref() != Some("atomic"),
        _ => false,
    }
}

/// Whether a schema is structural in every respect.
fn has_structure(schema: &Value) -> bool {
    let mut p = Problems::default();
    structure::validate(&Cursor::root(schema), &mut p) && p.is_empty()
}

fn has_unpruned_defaults(schema: &Value) -> bool {
    if !super::is_structural(schema) {
        return false;
    }
    let Ok(parsed) = Structural::parse(schema) else {
        return false;
    };
    let mut pruned = parsed.clone();
    pruned.prune_defaults();
    pruned != parsed
}

/// Whether any schema has a default.
pub(super) fn has_defaults(spec: &Value) -> bool {
    versions_have(spec, &mut |s| s.get("default").is_some_and(|d| !d.is_null()))
}

/// Whether any schema has an extension of Kubernetes.
pub(super) fn has_extensions(spec: &Value) -> bool {
    versions_have(spec, &mut |s| {
        let object = |name: &str| s.get(name) == Some(&Value::Bool(true));
        let given = |name: &str| s.get(name).is_some_and(|v| !v.is_null() && v != &Value::Array(vec![]));
        object("x-kubernetes-embedded-resource")
            || object("x-kubernetes-int-or-string")
            || given("x-kubernetes-preserve-unknown-fields")
            || given("x-kubernetes-list-map-keys")
            || given("x-kubernetes-list-type")
            || given("x-kubernetes-validations")
    })
}

fn versions_have(spec: &Value, holds: &mut dyn FnMut(&Map<String, Value>) -> bool) -> bool {
    let schemas = list(spec, "versions")
        .iter()
        .filter_map(|v| v.pointer("/schema/openAPIV3Schema"));
    schemas.into_iter().any(|s| any_schema(s, holds))
}

/// A version of the internal form's top: what all versions have alike.
pub(super) fn shared<'a>(versions: &Cursor<'a>, name: &'static str) -> Option<&'a Value> {
    let mut all = versions.items().map(|v| v.at(name).value());
    let first = all.next()??;
    all.all(|v| v == Some(first)).then_some(first)
}

/// Where it stands in messages.
pub(super) fn shared_cursor<'a>(spec: &Cursor<'a>, name: &'static str, shown: &'static str) -> Option<Cursor<'a>> {
    let value = shared(&spec.at("versions"), name)?;
    let path: Path = spec.path().field(shown);
    Some(Cursor::new(Some(value), path))
}

/// Whether pruning is off for all of a definition.
pub(super) fn preserves(spec: &Value) -> bool {
    is_true(spec, "preserveUnknownFields")
}
