//! The schema of a version: what OpenAPI v3 allows in a definition, and what Kubernetes' extensions demand.
//!
//! Upstream: apiextensions-apiserver pkg/apis/apiextensions/validation: ValidateCustomResourceDefinitionOpenAPISchema and
//! what it calls (v1.36).

use orlop_api::field::{Cursor, Path, ProblemKind, Problems};
use orlop_api::structural::Structural;
use orlop_cel::limits;
use serde_json::Value;

use super::ratchet::Options;
use super::{defaults, field_path, structure};
use crate::rules;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];
/// What may stand at the root if the status is validated apart, by Go's names.
const AT_ROOT_WITH_STATUS: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

pub(super) fn is_openapi_type(ty: &str) -> bool {
    ty.is_empty() || TYPES.contains(&ty)
}

/// Where in a schema we are, as far as rules depend on it.
#[derive(Clone)]
struct Place {
    root: bool,
    /// Why there may be no defaults here.
    no_defaults: Option<String>,
    inside_metadata: bool,
    /// What lies here cannot be told from its old self, because of this place above.
    uncorrelatable: Option<Path>,
    /// How many values there can be here at most; None if nothing bounds that.
    cardinality: Option<u64>,
}

impl Place {
    fn below(&self, c: &Cursor<'_>) -> Place {
        let most = self.cardinality.zip(max_elements(c));
        Place {
            root: false,
            cardinality: most.map(|(here, elements)| here.saturating_mul(elements)),
            ..self.clone()
        }
    }

    fn without_old_self(mut self, path: &Path) -> Place {
        self.uncorrelatable.get_or_insert_with(|| path.clone());
        self
    }
}

/// Validates `schema` of a version: the object that holds openAPIV3Schema. `unchanged`: it was there before.
pub(super) fn validate(validation: &Cursor<'_>, status: bool, options: &Options, unchanged: bool, p: &mut Problems) {
    let schema = validation.at("openAPIV3Schema");
    if !schema.exists() {
        return;
    }
    let before = p.count();
    if status {
        at_root_with_status(validation, &schema, p);
    }
    if schema.at("nullable").is_true() {
        let place = Cursor::new(None, validation.path().member("openAPIV3Schema.nullable"));
        p.forbidden(&place, "nullable cannot be true at the root");
    }
    let mut parsed = None;
    let mut unreadable = None;
    if options.require_structural {
        match schema.value().map(Structural::parse) {
            Some(Ok(structural)) => parsed = Some(structural),
            Some(Err(e)) => unreadable = Some(e.to_string()),
            None => {}
        }
    }
    let mut sound = false;
    if let Some(structural) = &parsed {
        let count = p.count();
        structure::validate(&schema, p);
        if p.count() == count {
            let given = schema.value().unwrap_or(&Value::Null);
            defaults::validate(structural, given, schema.path(), options.require_pruned_defaults, p);
        }
        sound = p.count() == count;
    }
    let place = Place {
        root: true,
        no_defaults: None,
        inside_metadata: false,
        uncorrelatable: None,
        cardinality: Some(1),
    };
    let mut rules = Problems::default();
    let mut walk = Walk {
        options,
        unchanged,
        rules: &mut rules,
        with_rules: sound,
        total: TotalCost::default(),
    };
    walk.node(&schema, &place, p);
    let total = std::mem::take(&mut walk.total);
    for problem in rules.0 {
        p.push(
            problem.kind,
            &Path::default().member(&problem.field),
            problem.value,
            problem.detail,
        );
    }
    total.report(&schema, p);
    if let Some(why) = unreadable.filter(|_| p.count() == before) {
        p.invalid_value(schema.path(), &"".into(), why);
    }
}

/// The schema of the status must be all that validates it: what stands at the root would be lost.
fn at_root_with_status(validation: &Cursor<'_>, schema: &Cursor<'_>, p: &mut Problems) {
    let ty = schema.at("type");
    if !ty.is_empty() && ty.str() != "object" {
        let place = Cursor::new(ty.value(), validation.path().member("openAPIV3Schema.type"));
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return p.invalid(&place, detail);
    }
    let allowed = [
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
        "required",
        "items",
        "properties",
        "externalDocs",
        "example",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    let members = schema.value().and_then(Value::as_object);
    let other = members.into_iter().flatten().find(|(name, value)| {
        let given = !matches!(value, Value::Null | Value::Bool(false));
        given && !allowed.contains(&name.as_str())
    });
    if other.is_some() {
        let detail = format!(
            "only {AT_ROOT_WITH_STATUS} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        p.invalid(schema, detail);
    }
}

struct Walk<'o> {
    options: &'o Options,
    unchanged: bool,
    /// What is wrong with rules in CEL: told after what is wrong with the schema.
    rules: &'o mut Problems,
    with_rules: bool,
    total: TotalCost,
}

impl Walk<'_> {
    fn node(&mut self, c: &Cursor<'_>, place: &Place, p: &mut Problems) {
        if !c.value().is_some_and(Value::is_object) {
            return;
        }
        let before = p.count();
        plain(c, place, self.options, p);
        self.below(c, place, p);
        extensions(c, p);
        list_types(c, self.options, p);
        if self.options.require_map_keys {
            validate_map_keys(c, p);
        }
        let rules = c.at("x-kubernetes-validations");
        rules.items().for_each(|rule| validate_rule(&rule, c, p));
        if self.with_rules && !rules.is_empty() && p.count() == before {
            self.compile_rules(c, place);
        }
    }

    fn below(&mut self, c: &Cursor<'_>, place: &Place, p: &mut Problems) {
        let inner = place.below(c);
        let additional = c.at("additionalProperties");
        if additional.exists() {
            if !c.at("properties").is_empty() && additional.as_bool() != Some(true) {
                p.forbidden(&additional, "additionalProperties and properties are mutual exclusive");
            }
            let mut inner = inner.clone();
            if place.inside_metadata {
                inner.no_defaults = Some("inside additionalProperties applying to object metadata".into());
            }
            self.node(&additional, &inner, p);
        }
        let is_resource = place.root || c.at("x-kubernetes-embedded-resource").is_true();
        let map_type = c.at("x-kubernetes-map-type");
        let odd_map = map_type.exists() && !matches!(map_type.str(), "atomic" | "granular");
        for (name, property) in c.at("properties").entries() {
            let mut inner = inner.clone();
            if odd_map {
                inner = inner.without_old_self(c.path());
            }
            if is_resource && matches!(name, "metadata" | "kind" | "apiVersion") {
                inner.inside_metadata = true;
                if place.root {
                    inner.no_defaults = Some(format!("in top-level {name}"));
                }
            }
            self.node(&property, &inner, p);
        }
        self.without_rules(|walk| {
            walk.node(&c.at("not"), &inner, p);
            for name in ["allOf", "oneOf", "anyOf"] {
                c.at(name).items().for_each(|n| walk.node(&n, &inner, p));
            }
            c.at("definitions")
                .entries()
                .for_each(|(_, n)| walk.node(&n, &inner, p));
        });
        let items = c.at("items");
        let mut of_items = inner.clone();
        if c.at("x-kubernetes-list-type").str() != "map" {
            of_items = of_items.without_old_self(c.path());
        }
        self.node(&items, &of_items, p);
        items.items().for_each(|n| self.node(&n, &of_items, p));
        self.without_rules(|walk| {
            c.at("dependencies")
                .entries()
                .for_each(|(_, n)| walk.node(&n, &inner, p))
        });
    }

    fn without_rules(&mut self, visit: impl FnOnce(&mut Walk<'_>)) {
        let before = std::mem::replace(&mut self.with_rules, false);
        visit(self);
        self.with_rules = before;
    }

    /// Compiles the rules of a node, and adds up what they may cost.
    fn compile_rules(&mut self, c: &Cursor<'_>, place: &Place) {
        let (Some(value), at) = (c.value(), c.path().field("x-kubernetes-validations")) else {
            return;
        };
        let Some(decl) = rules::declared(value, place.root) else {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            return self.rules.push(ProblemKind::Internal, &at, None, why);
        };
        // It was read as a part of the whole.
        let Ok(schema) = Structural::parse(value) else { return };
        let cardinality = place.cardinality.unwrap_or_else(|| rules::max_cardinality(&decl));
        let given = c.at("x-kubernetes-validations");
        for (given, rule) in given.items().zip(rules::compile_rules(&schema, &decl)) {
            let cost = rule.max_cost().saturating_mul(cardinality);
            self.cost("estimated rule cost", &given.at("rule"), cost);
            if let Some(e) = rule.error() {
                let shown = Some(go_rule(&given));
                self.rules
                    .push(ProblemKind::Invalid, given.at("rule").path(), shown, e.to_string());
            }
            let expression = given.at("messageExpression");
            if let Some(e) = rule.message_error() {
                let shown = Some(go_rule(&given));
                self.rules
                    .push(ProblemKind::Invalid, expression.path(), shown, e.to_string());
            } else if let Some(cost) = rule.message_max_cost() {
                self.cost("estimated messageExpression cost", &expression, cost);
            }
            if rule.uses_old_self() {
                if let Some(above) = &place.uncorrelatable {
                    let detail =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
                    self.rules.invalid(&given.at("rule"), detail);
                }
            } else if given.at("optionalOldSelf").exists() {
                let detail = "may not be set if oldSelf is not used in rule";
                self.rules.invalid(&given.at("optionalOldSelf"), detail);
            }
        }
    }

    fn cost(&mut self, what: &str, at: &Cursor<'_>, cost: u64) {
        let limit = limits::STATIC_ESTIMATED_COST_LIMIT;
        if !self.unchanged && cost > limit {
            self.rules.forbidden(at, over_budget(what, cost, limit));
        }
        self.total.observe(at.path(), cost);
    }
}

/// What all rules of a schema may cost, and which of them most.
#[derive(Default)]
struct TotalCost {
    total: u64,
    most: Vec<(u64, Path)>,
}

impl TotalCost {
    fn observe(&mut self, at: &Path, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < limits::STATIC_ESTIMATED_CRD_COST_LIMIT / 100 {
            return;
        }
        self.most.push((cost, at.clone()));
        self.most.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.most.truncate(4);
    }

    fn report(&self, schema: &Cursor<'_>, p: &mut Problems) {
        let limit = limits::STATIC_ESTIMATED_CRD_COST_LIMIT;
        if self.total <= limit {
            return;
        }
        for (_, at) in &self.most {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            p.push(ProblemKind::Forbidden, at, None, detail);
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        p.forbidden(schema, over_budget(what, self.total, limit));
    }
}

fn over_budget(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_string()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule as Go shows it: by the names of its internal type.
fn go_rule(rule: &Cursor<'_>) -> String {
    let text = |name: &'static str| Value::from(rule.at(name).str());
    let of = |name: &'static str| rule.at(name).value().cloned().unwrap_or(Value::Null);
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        text("rule"),
        text("message"),
        text("messageExpression"),
        of("reason"),
        text("fieldPath"),
        of("optionalOldSelf"),
    )
}

/// By how much a schema multiplies what lies below it; None if nothing bounds that.
fn max_elements(c: &Cursor<'_>) -> Option<u64> {
    let bound = |name: &'static str| c.at(name).as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    match c.at("type").str() {
        "object" if c.at("additionalProperties").exists() => bound("maxProperties"),
        "array" => bound("maxItems"),
        _ => Some(1),
    }
}

/// What OpenAPI v3 knows and definitions may not have.
fn plain(c: &Cursor<'_>, place: &Place, options: &Options, p: &mut Problems) {
    let ty = c.at("type");
    if options.require_valid_types && !is_openapi_type(ty.str()) {
        p.not_supported_as_listed(&ty, &TYPES);
    }
    if let Some(reason) = &place.no_defaults
        && c.at("default").exists()
    {
        p.forbidden(&c.at("default"), format!("must not be set {reason}"));
    }
    for (name, detail) in [
        ("id", "id is not supported"),
        ("additionalItems", "additionalItems is not supported"),
        ("patternProperties", "patternProperties is not supported"),
        ("definitions", "definitions is not supported"),
        ("dependencies", "dependencies is not supported"),
        ("$ref", "$ref is not supported"),
    ] {
        let found = c.at(name);
        let given = match name {
            "id" | "patternProperties" | "definitions" => !found.is_empty(),
            _ => found.exists(),
        };
        if given {
            p.forbidden(&found, detail);
        }
    }
    if ty.str() == "null" {
        p.forbidden(&ty, "type cannot be set to null, use nullable as an alternative");
    }
    let items = c.at("items");
    if items.value().is_some_and(Value::is_array) && !items.is_empty() {
        p.forbidden(&items, "items must be a schema object and not an array");
    }
    let embedded = c.at("x-kubernetes-embedded-resource");
    if place.inside_metadata && embedded.is_true() {
        p.forbidden(&embedded, "must not be used inside of resource meta");
    }
    let unique = c.at("uniqueItems");
    if unique.is_true() {
        p.forbidden(
            &unique,
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
}

/// `must be object if …`, where another type, or none, is given.
fn must_be(ty: &Cursor<'_>, expected: &str, extension: &str, p: &mut Problems) {
    let detail = format!("must be {expected} if {extension} is specified");
    match ty.is_empty() {
        true => p.required(ty, detail),
        false => p.invalid(ty, detail),
    }
}

fn extensions(c: &Cursor<'_>, p: &mut Problems) {
    let preserve = c.at("x-kubernetes-preserve-unknown-fields");
    if preserve.as_bool() == Some(false) {
        p.invalid(&preserve, "must be true or undefined");
    }
    let (ty, map_type) = (c.at("type"), c.at("x-kubernetes-map-type"));
    if map_type.exists() {
        if ty.str() != "object" {
            must_be(&ty, "object", "x-kubernetes-map-type", p);
        }
        if !matches!(map_type.str(), "atomic" | "granular") {
            p.not_supported_as_listed(&map_type, &["atomic", "granular"]);
        }
    }
}

fn list_types(c: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let (ty, list_type) = (c.at("type"), c.at("x-kubernetes-list-type"));
    let items = c.at("items");
    if list_type.exists() && ty.str() != "array" {
        must_be(&ty, "array", "x-kubernetes-list-type", p);
    } else if options.require_atomic_sets && list_type.str() == "set" && items.value().is_some_and(Value::is_object) {
        let (list, map) = (items.at("x-kubernetes-list-type"), items.at("x-kubernetes-map-type"));
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        match items.at("type").str() {
            "array" if list.exists() && list.str() != "atomic" => p.invalid(&list, detail),
            // Kubernetes shows the list type here.
            "object" if map.str() != "atomic" => {
                p.invalid_value(map.path(), list.value().unwrap_or(&Value::Null), detail);
            }
            _ => {}
        }
    }
    if list_type.exists() && !matches!(list_type.str(), "atomic" | "set" | "map") {
        p.not_supported_as_listed(&list_type, &["atomic", "set", "map"]);
    }
    let keys = c.at("x-kubernetes-list-map-keys");
    if !keys.is_empty() && list_type.str() != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type.exists() {
            true => p.invalid(&list_type, detail),
            false => p.required(&list_type, detail),
        }
    }
    if list_type.str() == "map" {
        keyed_list(&items, &keys, p);
    }
}

fn keyed_list(items: &Cursor<'_>, keys: &Cursor<'_>, p: &mut Problems) {
    if keys.is_empty() {
        p.required(keys, "must not be empty if x-kubernetes-list-type is map");
    }
    if !items.exists() {
        return p.required(items, "must have a schema if x-kubernetes-list-type is map");
    }
    if !items.value().is_some_and(Value::is_object) {
        return p.invalid(items, "must only have a single schema if x-kubernetes-list-type is map");
    }
    let ty = items.at("type");
    if ty.str() != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        return p.invalid_value(ty.path(), &ty.str().into(), detail);
    }
    let mut seen: Vec<&str> = vec![];
    for key in keys.items() {
        let properties = items.at("properties");
        match properties.value().and_then(|m| m.get(key.str())) {
            Some(property) if matches!(super::text(property, "type"), "array" | "object") => {
                let place = properties.path().key(key.str()).field("type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                p.invalid_value(&place, &"object".into(), detail);
            }
            Some(_) => {}
            None => p.invalid(keys, "entries must all be names of item properties"),
        }
        if seen.contains(&key.str()) {
            p.invalid(keys, "must not contain duplicate entries");
        }
        seen.push(key.str());
    }
}

/// Elements of sets and maps are not null, and keys are always there.
pub(super) fn validate_map_keys(c: &Cursor<'_>, p: &mut Problems) {
    let (list_type, items) = (c.at("x-kubernetes-list-type"), c.at("items"));
    if !matches!(list_type.str(), "set" | "map") || !items.value().is_some_and(Value::is_object) {
        return;
    }
    if items.at("nullable").is_true() {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {}", list_type.str());
        p.forbidden(&items.at("nullable"), detail);
    }
    if list_type.str() != "map" {
        return;
    }
    let required: Vec<&str> = items.at("required").items().map(|r| r.str()).collect();
    for key in c.at("x-kubernetes-list-map-keys").items() {
        let found = items.at("properties").entries().find(|(name, _)| *name == key.str());
        let Some((_, property)) = found else { continue };
        if !required.contains(&key.str()) && !property.at("default").exists() {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            p.required(&property.at("default"), detail);
        }
        if property.at("nullable").is_true() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            p.forbidden(&property.at("nullable"), detail);
        }
    }
}

fn has_newlines(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

/// What is said about a rule before it is compiled.
fn validate_rule(rule: &Cursor<'_>, schema: &Cursor<'_>, p: &mut Problems) {
    let (text, message) = (rule.at("rule"), rule.at("message"));
    if text.str().trim().is_empty() {
        p.required(&text, "rule is not specified");
    } else if !message.is_empty() && message.str().trim().is_empty() {
        p.invalid(&message, "must be non-empty if specified");
    } else if has_newlines(message.str().trim()) {
        p.invalid(&message, "must not contain line breaks");
    } else if has_newlines(text.str().trim()) && message.str().trim().is_empty() {
        p.required(&message, "message must be specified if rule contains line breaks");
    }
    let expression = rule.at("messageExpression");
    if !expression.is_empty() && expression.str().trim().is_empty() {
        p.required(&expression, "messageExpression must be non-empty if specified");
    }
    let reason = rule.at("reason");
    if reason.exists() && !REASONS.contains(&reason.str()) {
        p.not_supported_as_listed(&reason, &REASONS);
    }
    let path = rule.at("fieldPath");
    if path.is_empty() {
        return;
    }
    if path.str().trim().is_empty() {
        p.invalid(&path, "must be non-empty if specified");
    }
    if has_newlines(path.str()) {
        p.invalid(&path, "must not contain line breaks");
    }
    let parsed = schema.value().and_then(|s| Structural::parse(s).ok());
    if parsed.is_some_and(|s| field_path::follow(path.str(), &s, true).is_err()) {
        p.invalid(&path, "must be a valid path");
    }
}
