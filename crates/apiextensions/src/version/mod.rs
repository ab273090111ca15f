//! One version of a custom kind, compiled: what the server needs to know of it for every request.

use std::cmp::Ordering;

use jiff::Timestamp;
use orlop_api::field::{Path, ProblemKind, Problems};
use orlop_api::names;
use orlop_api::patch::apply::ObjectType;
use orlop_api::schema::{DecodeError, Decoded};
use orlop_api::structural::{ParseError, Structural, validate_metadata};
use serde_json::Value;

use crate::columns::{self, CustomColumn, printed};
use crate::jsonpath::JsonPath;
use crate::rules::{LazyRules, RuleTree, validate_rules};
use crate::scale::ScalePaths;
use crate::validate::{validate_lists, validate_schema};

/// A definition that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("the definition has no version {0:?}")]
    NoVersion(String),
    #[error("failed to read the schema of version {version:?}: {source}")]
    Schema { version: String, source: ParseError },
}

/// A field selector beside metadata.name and metadata.namespace.
#[derive(Debug, Clone)]
pub struct SelectablePath {
    /// As users write it: "spec.color".
    pub name: Box<str>,
    path: Option<JsonPath>,
}

/// A served version of a custom kind.
#[derive(Debug)]
pub struct CustomVersion {
    api_version: Box<str>,
    kind: Box<str>,
    schema: Structural,
    rules: Option<LazyRules>,
    has_status: bool,
    scale: Option<ScalePaths>,
    columns: Box<[CustomColumn]>,
    selectable: Box<[SelectablePath]>,
    deprecation: Option<Box<str>>,
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn versions(spec: &Value) -> &[Value] {
    spec.get("versions")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

impl CustomVersion {
    /// Compiles a version of a definition that was validated.
    pub fn compile(definition: &Value, version: &str) -> Result<CustomVersion, CompileError> {
        let spec = definition.get("spec").unwrap_or(&Value::Null);
        let found = versions(spec).iter().find(|v| text(v, "name") == version);
        let found = found.ok_or_else(|| CompileError::NoVersion(version.to_string()))?;
        let schema = compile_schema(spec, found).map_err(|source| CompileError::Schema {
            version: version.to_string(),
            source,
        })?;
        let subresources = found.get("subresources");
        let given = found.get("schema").and_then(|s| s.get("openAPIV3Schema"));
        let rules = given.and_then(|given| LazyRules::new(given, &schema));
        Ok(CustomVersion {
            api_version: format!("{}/{version}", text(spec, "group")).into(),
            kind: spec.get("names").map_or("", |n| text(n, "kind")).into(),
            schema,
            rules,
            has_status: subresources.and_then(|s| s.get("status")).is_some_and(|s| !s.is_null()),
            scale: ScalePaths::compile(found),
            columns: columns::compile(found),
            selectable: compile_selectable(found),
            deprecation: deprecation(spec, found).map(Box::from),
        })
    }

    /// "example.com/v1"
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn schema(&self) -> &Structural {
        &self.schema
    }

    /// Decodes a body in JSON: pruned, its metadata read as ObjectMeta. The problems are what strict field validation would
    /// complain about.
    pub fn decode_json(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        self.schema.decode_json(bytes)
    }

    /// The same for YAML.
    pub fn decode_yaml(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        self.schema.decode_yaml(bytes)
    }

    /// The same for what a patch or a conversion leaves.
    // Not a constructor: a version reads a value.
    #[allow(clippy::wrong_self_convention)]
    pub fn from_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        self.schema.from_value(value)
    }

    /// Fills in defaults, of objects that are written and of those that are read.
    pub fn default(&self, object: &mut Value) {
        self.schema.default(object);
    }

    /// Validates all of an object but its own ObjectMeta. `subresource` is "" or "status".
    pub fn validate(&self, new: &Value, old: Option<&Value>, subresource: &str, problems: &mut Problems) {
        if !self.validate_type(new, problems) {
            return;
        }
        let root = Path::default();
        let of_status = subresource == "status";
        if of_status {
            if let (Some(status), Some(schema)) = (new.get("status"), self.schema.property("status")) {
                let before = old.and_then(|o| o.get("status"));
                validate_schema(schema, status, before, &root.field("status"), problems);
            }
        } else {
            validate_schema(&self.schema, new, old, &root, problems);
        }
        if let Some(scale) = &self.scale {
            if !of_status {
                scale.validate_spec(new, problems);
            }
            scale.validate_status(new, problems);
        }
        if !of_status {
            validate_metadata(&self.schema, new, false, &root, problems);
        }
        self.validate_unique_lists(new, old, problems);
        if let Some(rules) = self.rules.as_ref().and_then(|rules| rules.tree(&self.schema)) {
            validate_by_rules(rules, new, old, problems);
        }
    }

    /// Whether the object says that it is of this version's kind.
    fn validate_type(&self, object: &Value, p: &mut Problems) -> bool {
        let mut fits = true;
        for (name, expected) in [("kind", &self.kind), ("apiVersion", &self.api_version)] {
            let found = text(object, name);
            if found != &**expected {
                fits = false;
                p.invalid_value(
                    &Path::default().field(name),
                    &found.into(),
                    format!("must be {expected}"),
                );
            }
        }
        fits
    }

    /// Lists that had elements twice before may go on having them.
    fn validate_unique_lists(&self, new: &Value, old: Option<&Value>, p: &mut Problems) {
        if !self.schema.has_unique_lists {
            return;
        }
        let root = Path::default();
        let mut found = Problems::default();
        validate_lists(&self.schema, new, &root, &mut found);
        if found.is_empty() {
            return;
        }
        if let Some(old) = old {
            let mut before = Problems::default();
            validate_lists(&self.schema, old, &root, &mut before);
            if !before.is_empty() {
                return;
            }
        }
        for problem in found.0 {
            p.push(
                problem.kind,
                &root.member(&problem.field),
                problem.value,
                problem.detail,
            );
        }
    }

    /// Advice for the writer: finalizers with names that others might use too.
    pub fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let finalizers = |object: &Value| -> Vec<String> {
            let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
            let texts = list.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_string).collect()
        };
        let before = old.map(finalizers).unwrap_or_default();
        let mut added = finalizers(new);
        added.retain(|f| !before.contains(f));
        added.sort();
        added.dedup();
        added.iter().flat_map(|f| finalizer_warnings(f)).collect()
    }

    /// What follows NAME in a table.
    pub fn columns(&self) -> &[CustomColumn] {
        &self.columns
    }

    /// The cells of an object, one per column.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.iter().map(|column| column.cell(object, now)).collect()
    }

    pub fn selectable_fields(&self) -> &[SelectablePath] {
        &self.selectable
    }

    /// The value of the i-th selectable field; "" if it is not there.
    pub fn field_value(&self, i: usize, object: &Value) -> String {
        let path = self.selectable.get(i).and_then(|field| field.path.as_ref());
        let found = path.and_then(|path| path.find(object)).unwrap_or_default();
        match found.first().map(|value| &**value) {
            None | Some(Value::Null) => String::new(),
            Some(value) => printed(value),
        }
    }

    pub fn scale_paths(&self) -> Option<&ScalePaths> {
        self.scale.as_ref()
    }

    pub fn has_status(&self) -> bool {
        self.has_status
    }

    pub fn has_scale(&self) -> bool {
        self.scale.is_some()
    }

    /// For server-side apply and managed fields.
    pub fn object_type(&self) -> ObjectType<'_> {
        ObjectType::Custom(&self.schema)
    }

    /// What every request for a deprecated version is answered with.
    pub fn deprecation_warning(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// Readies a new object: its status is not the creator's to set.
    pub fn prepare_create(&self, object: &mut Value) {
        if self.has_status
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
    }

    /// Readies an update of the object itself: it keeps the old status.
    pub fn prepare_update(&self, new: &mut Value, old: &Value) {
        if self.has_status {
            orlop_api::kind::keep_status(new, old);
        }
    }

    /// Readies an update of the status: all else is kept.
    pub fn prepare_status(&self, new: &mut Value, old: &Value) {
        orlop_api::kind::keep_all_but_status(new, old);
    }
}

/// Rules are for objects that are of the right shape.
fn validate_by_rules(rules: &RuleTree, new: &Value, old: Option<&Value>, p: &mut Problems) {
    if p.0.iter().any(|problem| is_blocking(problem.kind)) {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        return p.push(ProblemKind::Invalid, &Path::default(), Some("null".into()), detail);
    }
    validate_rules(rules, new, old, p);
}

fn compile_schema(spec: &Value, version: &Value) -> Result<Structural, ParseError> {
    let given = version.get("schema").and_then(|s| s.get("openAPIV3Schema"));
    let mut schema = match given {
        Some(schema) if !schema.is_null() => Structural::parse(schema)?,
        _ => Default::default(),
    };
    // Definitions from before pruning.
    if spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true) {
        schema.preserve_unknown_fields = true;
    }
    schema.prune_defaults();
    Ok(schema)
}

fn compile_selectable(version: &Value) -> Box<[SelectablePath]> {
    let fields = version.get("selectableFields").and_then(Value::as_array);
    let compiled = fields.into_iter().flatten().map(|field| {
        let path = text(field, "jsonPath");
        SelectablePath {
            name: path.strip_prefix('.').unwrap_or(path).into(),
            path: JsonPath::parse(path).ok(),
        }
    });
    compiled.collect()
}

fn finalizer_warnings(finalizer: &str) -> Vec<String> {
    let place = format!("metadata.finalizers: {finalizer:?}");
    let mut out: Vec<String> = names::qualified_name(finalizer)
        .into_iter()
        .map(|message| format!("{place}: {message}"))
        .collect();
    if !finalizer.contains('/') && !matches!(finalizer, "orphan" | "foregroundDeletion" | "kubernetes") {
        let path = if finalizer.contains('.') {
            " including a path (/)"
        } else {
            ""
        };
        out.push(format!(
            "{place}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    out
}

/// The warning of a deprecated version: its own, or one that names the version to use.
fn deprecation(spec: &Value, version: &Value) -> Option<String> {
    let is_true = |v: &Value, name: &str| v.get(name).and_then(Value::as_bool) == Some(true);
    if !is_true(version, "deprecated") {
        return None;
    }
    if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(warning.to_string());
    }
    let (group, name) = (text(spec, "group"), text(version, "name"));
    let kind = spec.get("names").map_or("", |n| text(n, "kind"));
    let mut message = format!("{group}/{name} {kind} is deprecated");
    let newer = versions(spec)
        .iter()
        .filter(|v| is_true(v, "served") && !is_true(v, "deprecated"));
    let newer = newer
        .map(|v| text(v, "name"))
        .filter(|v| compare_versions(name, v).is_lt());
    if let Some(newest) = newer.max_by(|a, b| compare_versions(a, b)) {
        message.push_str(&format!("; use {group}/{newest} {kind}"));
    }
    Some(message)
}

/// Versions in order of their stability: v1alpha1 < v1beta1 < v1 < v2; other names before them, in reverse.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (0: alpha, 2: stable), major, minor.
fn parse_version(text: &str) -> Option<(u8, u64, u64)> {
    let rest = text.strip_prefix('v')?;
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u64>().ok())?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let major = number(major).filter(|_| !major.is_empty())?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (rest.strip_prefix("alpha"), rest.strip_prefix("beta")) {
        (Some(minor), _) => (0, minor),
        (_, Some(minor)) => (1, minor),
        _ => return None,
    };
    Some((stability, major, number(minor).filter(|_| !minor.is_empty())?))
}

/// What makes rules in CEL not worth evaluating: the object is not even of the right shape.
fn is_blocking(kind: ProblemKind) -> bool {
    matches!(
        kind,
        ProblemKind::NotSupported
            | ProblemKind::Required
            | ProblemKind::TooLong
            | ProblemKind::TooMany
            | ProblemKind::TypeInvalid
    )
}

#[cfg(test)]
mod tests;
