//! Whether an object satisfies its schema, in the words of Kubernetes' OpenAPI validation.
//!
//! Upstream: kube-openapi pkg/validation/validate and apiextensions-apiserver pkg/apiserver/validation (v1.36). On updates
//! problems of parts that have not changed are forgiven (ratcheting), where the old part can be told.

mod formats;
mod lists;
mod scalars;

use std::fmt::Write as _;

use orlop_api::field::{Path, ProblemKind, Problems, shown};
use orlop_api::structural::{Additional, SchemaListType, SchemaType, Structural, ValueValidation};
use serde_json::{Map, Value};

pub(crate) use formats::unrecognized;
pub(crate) use lists::validate_lists;

/// More failures of one value are not kept: no more are told.
const MAX_FAILURES: usize = 300;
/// More comparisons of a value with a schema than this are not made for one object: a schema of many alternatives against
/// a list of many elements would take minutes.
const MAX_STEPS: u64 = 2_000_000;

/// Validates a value at a place against a schema. With an old value, parts that are equal to their old ones are fine.
pub(crate) fn validate_schema(schema: &Structural, value: &Value, old: Option<&Value>, at: &Path, p: &mut Problems) {
    let mut validator = Validator::default();
    let outcome = validator.ratchet(schema, value, old);
    if validator.steps > MAX_STEPS {
        let detail = "validation against the schema takes too many steps";
        p.push(ProblemKind::Internal, at, None, detail);
    }
    for failure in outcome.failures {
        failure.report(at, p);
    }
}

/// One complaint.
#[derive(Debug, Clone, PartialEq)]
struct Failure {
    /// The place, as messages name it.
    path: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Required,
    /// The value as it is shown, and what is supported.
    NotSupported(String, Box<[String]>),
    TooLong(i64),
    TooMany(i64, i64),
    /// The type that the value is of, and the message.
    Type(&'static str, String),
    /// A text that is not of its format, and the message.
    Format(String, String),
    /// The value as it is shown, and the message.
    Invalid(Option<String>, String),
    /// Not of a place: only a message.
    Whole(String),
}

impl Failure {
    fn report(self, at: &Path, p: &mut Problems) {
        let place = match self.path.strip_prefix('.').unwrap_or(&self.path) {
            "" => at.clone(),
            path => at.member(path),
        };
        let empty = || Some("\"\"".to_string());
        match self.what {
            What::Required => p.push(ProblemKind::Required, &place, None, ""),
            What::NotSupported(value, supported) => {
                let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
                let detail = format!("supported values: {}", quoted.join(", "));
                p.push(ProblemKind::NotSupported, &place, Some(value), detail);
            }
            What::TooLong(max) => {
                let unit = if max == 1 { "byte" } else { "bytes" };
                p.push(
                    ProblemKind::TooLong,
                    &place,
                    None,
                    format!("may not be more than {max} {unit}"),
                );
            }
            What::TooMany(actual, max) => {
                let unit = if max == 1 { "item" } else { "items" };
                let detail = format!("must have at most {max} {unit}");
                p.push(ProblemKind::TooMany, &place, Some(actual.to_string()), detail);
            }
            What::Type(found, message) => {
                p.push(ProblemKind::TypeInvalid, &place, Some(format!("{found:?}")), message);
            }
            What::Format(text, message) => {
                let value = shown(Some(&text.into()));
                p.push(ProblemKind::TypeInvalid, &place, Some(value), message);
            }
            What::Invalid(value, message) => {
                p.push(ProblemKind::Invalid, &place, value.or_else(empty), message);
            }
            What::Whole(message) => p.push(ProblemKind::Invalid, at, empty(), message),
        }
    }
}

/// The failures of a value, and how many validators looked at it without one: of alternatives, the one that most of them
/// looked at is reported.
#[derive(Debug, Default)]
struct Outcome {
    failures: Vec<Failure>,
    matches: u64,
}

impl Outcome {
    fn is_valid(&self) -> bool {
        self.failures.is_empty()
    }

    fn add(&mut self, failure: Failure) {
        if self.failures.len() < MAX_FAILURES && !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        if self.failures.is_empty() {
            self.failures = other.failures;
        } else {
            other.failures.into_iter().for_each(|f| self.add(f));
        }
    }
}

#[derive(Default)]
struct Validator {
    path: String,
    steps: u64,
    /// Only whether a value is valid is asked: nobody reads the messages.
    quiet: bool,
}

/// Stands for a failure that nobody reads.
const UNREAD: Failure = Failure {
    path: String::new(),
    what: What::Required,
};

impl Validator {
    fn failure(&self, what: What) -> Failure {
        if self.quiet {
            return UNREAD;
        }
        Failure {
            path: self.path.clone(),
            what,
        }
    }

    fn invalid(&self, value: &Value, message: impl FnOnce(&str) -> String) -> Failure {
        if self.quiet {
            return UNREAD;
        }
        self.failure(What::Invalid(Some(shown(Some(value))), message(&self.path)))
    }

    fn whole(&self, message: impl FnOnce(&str) -> String) -> Failure {
        if self.quiet {
            return UNREAD;
        }
        self.failure(What::Whole(message(&self.path)))
    }

    /// The same without messages.
    fn quietly(&mut self, schema: &Structural, value: &Value, old: Option<&Value>) -> Outcome {
        let before = std::mem::replace(&mut self.quiet, true);
        let outcome = self.value(schema, value, old);
        self.quiet = before;
        outcome
    }

    /// What has not changed is not complained about.
    fn ratchet(&mut self, schema: &Structural, value: &Value, old: Option<&Value>) -> Outcome {
        let mut outcome = self.value(schema, value, old);
        if !outcome.is_valid() && old == Some(value) {
            outcome.failures.clear();
        }
        outcome
    }

    fn value(&mut self, schema: &Structural, value: &Value, old: Option<&Value>) -> Outcome {
        let mut outcome = Outcome::default();
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return outcome;
        }
        let validation = schema.validation();
        if value.is_null() {
            if let Some(failure) = scalars::check_null(self, schema) {
                outcome.add(failure);
            }
            if let Some(failure) = validation.and_then(|v| self.enumeration(v, value)) {
                outcome.add(failure);
            }
            return outcome;
        }
        let format = scalars::format_of(schema, validation);
        if schema.ty != SchemaType::Unspecified || schema.int_or_string || format.is_some() {
            match scalars::check_type(self, schema, format, value) {
                Some(failure) => outcome.add(failure),
                None => outcome.matches += 1,
            }
            outcome.matches += 1;
        }
        if let Some(v) = validation {
            outcome.merge(self.alternatives(v, value, old));
        }
        outcome.matches += 2;
        match value {
            Value::String(text) => {
                let failure = validation.and_then(|v| scalars::check_string(self, v, text));
                outcome.failures.extend(failure);
                if let Some(format) = format
                    && let Some(failure) = scalars::check_format(self, format, text)
                {
                    outcome.add(failure);
                }
                outcome.matches += 1;
            }
            Value::Number(number) => {
                let checked = scalars::check_number(self, schema, format, validation, number);
                outcome.merge(checked);
                outcome.matches += 2;
            }
            Value::Array(list) => {
                let checked = self.elements(schema, validation, list, old);
                outcome.merge(checked);
                outcome.matches += 1;
            }
            _ => {}
        }
        if let Some(failure) = validation.and_then(|v| self.enumeration(v, value)) {
            outcome.add(failure);
        }
        outcome.matches += 1;
        if let Value::Object(map) = value {
            let checked = self.members(schema, validation, map, old);
            outcome.merge(checked);
            outcome.matches += 1;
        }
        outcome.matches += 1;
        outcome
    }

    fn enumeration(&self, v: &ValueValidation, value: &Value) -> Option<Failure> {
        if v.enumeration().is_empty() || v.enumerates(value) {
            return None;
        }
        if self.quiet {
            return Some(UNREAD);
        }
        let text = |allowed: &Value| match allowed {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // No message shows more.
        let supported = v.enumeration().iter().take(1000).map(text).collect();
        Some(self.failure(What::NotSupported(shown(Some(value)), supported)))
    }

    fn alternatives(&mut self, v: &ValueValidation, value: &Value, old: Option<&Value>) -> Outcome {
        let mut outcome = Outcome::default();
        if !v.any_of().is_empty() {
            let any = self.any_of(v.any_of(), value, old);
            outcome.merge(any);
        }
        if !v.one_of().is_empty() {
            let one = self.one_of(v.one_of(), value, old);
            outcome.merge(one);
        }
        if !v.all_of().is_empty() {
            let mut valid = 0;
            for schema in v.all_of() {
                let result = self.value(schema, value, old);
                valid += usize::from(result.is_valid());
                outcome.merge(result);
            }
            if valid != v.all_of().len() {
                let more = if valid == 0 { ". None validated" } else { "" };
                outcome.add(self.whole(|path| format!("{path:?} must validate all the schemas (allOf){more}")));
            }
        }
        if let Some(not) = v.not()
            && self.quietly(not, value, old).is_valid()
        {
            outcome.add(self.whole(|path| format!("{path:?} must not validate the schema (not)")));
        }
        outcome
    }

    fn any_of(&mut self, schemas: &[Structural], value: &Value, old: Option<&Value>) -> Outcome {
        for schema in schemas {
            let result = self.quietly(schema, value, old);
            if result.is_valid() {
                return result;
            }
        }
        let mut outcome = Outcome::default();
        outcome.add(self.whole(|path| format!("{path:?} must validate at least one schema (anyOf)")));
        if !self.quiet {
            outcome.merge(self.best_failure(schemas, value, old));
        }
        outcome
    }

    fn one_of(&mut self, schemas: &[Structural], value: &Value, old: Option<&Value>) -> Outcome {
        let (mut valid, mut first) = (0, None);
        for schema in schemas {
            let result = self.quietly(schema, value, old);
            if result.is_valid() {
                valid += 1;
                first.get_or_insert(result);
            }
        }
        if valid == 1 {
            return first.unwrap_or_default();
        }
        let found = match valid {
            0 => "Found none valid".to_string(),
            n => format!("Found {n} valid alternatives"),
        };
        let mut outcome = Outcome::default();
        outcome.add(self.whole(|path| format!("{path:?} must validate one and only one schema (oneOf). {found}")));
        if valid == 0 && !self.quiet {
            outcome.merge(self.best_failure(schemas, value, old));
        }
        outcome
    }

    /// Of alternatives that all fail, the one that comes closest.
    fn best_failure(&mut self, schemas: &[Structural], value: &Value, old: Option<&Value>) -> Outcome {
        let mut best: Option<Outcome> = None;
        for schema in schemas {
            let result = self.value(schema, value, old);
            if best.as_ref().is_none_or(|b| result.matches > b.matches) {
                best = Some(result);
            }
        }
        best.unwrap_or_default()
    }

    fn elements(
        &mut self,
        schema: &Structural,
        validation: Option<&ValueValidation>,
        list: &[Value],
        old: Option<&Value>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(items) = schema.items.as_deref() {
            let here = self.path.len();
            let mut before = OldElements::new(schema, old);
            for (i, value) in list.iter().enumerate() {
                write!(self.path, "[{i}]").expect("writing to a string");
                let result = self.ratchet(items, value, before.of(value));
                outcome.merge(result);
                self.path.truncate(here);
                if outcome.failures.len() >= MAX_FAILURES {
                    break;
                }
            }
        }
        let Some(v) = validation else { return outcome };
        let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
        if let Some(min) = v.items().min.filter(|min| length < *min) {
            let shown = Value::from(length);
            outcome.add(self.invalid(&shown, |path| {
                format!("{path} in body should have at least {min} items")
            }));
        }
        if let Some(max) = v.items().max.filter(|max| length > *max) {
            outcome.add(self.failure(What::TooMany(length, max)));
        }
        if v.unique_items && lists::first_duplicate(list).is_some() {
            let message = format!("{} in body shouldn't contain duplicates", self.path);
            outcome.add(self.failure(What::Invalid(None, message)));
        }
        outcome.matches += 1;
        outcome
    }

    fn members(
        &mut self,
        schema: &Structural,
        validation: Option<&ValueValidation>,
        map: &Map<String, Value>,
        old: Option<&Value>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(v) = validation {
            self.count_members(v, map, &mut outcome);
        }
        let here = self.path.len();
        let mut members = schema.members();
        for (name, value) in map {
            let property = members.property(name);
            if property.is_none() && schema.additional == Additional::Allowed(false) {
                let message = format!("{}.{name} in body is a forbidden property", self.path);
                outcome.add(self.failure(What::Invalid(Some(format!("{name:?}")), message)));
                continue;
            }
            let Some(schema) = property.or_else(|| schema.additional_schema()) else {
                continue;
            };
            // A path that starts with a dot is how additional properties of the root are named.
            if here > 0 || property.is_none() {
                self.path.push('.');
            }
            self.path.push_str(name);
            let is_type_meta = here == 0 && matches!(name.as_str(), "apiVersion" | "kind");
            let before = old.filter(|_| !is_type_meta).and_then(|o| o.get(name));
            let result = self.ratchet(schema, value, before);
            outcome.merge(result);
            self.path.truncate(here);
            if outcome.failures.len() >= MAX_FAILURES {
                break;
            }
        }
        for name in validation.map_or(&[][..], |v| &v.required) {
            if !map.contains_key(&**name) {
                let path = format!("{}.{name}", self.path);
                outcome.add(Failure {
                    path,
                    what: What::Required,
                });
            }
        }
        outcome
    }

    fn count_members(&self, v: &ValueValidation, map: &Map<String, Value>, outcome: &mut Outcome) {
        let count = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(min) = v.properties().min.filter(|min| count < *min) {
            let shown = Value::from(count);
            outcome.add(self.invalid(&shown, |path| {
                format!("{path} in body should have at least {min} properties")
            }));
        }
        if let Some(max) = v.properties().max.filter(|max| count > *max) {
            outcome.add(self.failure(What::TooMany(count, max)));
        }
    }
}

/// The old elements of a list: only those of a list with keys can be told.
struct OldElements<'v> {
    keys: Vec<String>,
    old: &'v [Value],
    by_key: Option<std::collections::HashMap<String, &'v Value>>,
}

impl<'v> OldElements<'v> {
    fn new(schema: &Structural, old: Option<&'v Value>) -> OldElements<'v> {
        let keyed = schema.list_type() == Some(SchemaListType::Map);
        let old = old.and_then(Value::as_array).filter(|_| keyed);
        OldElements {
            keys: match old {
                Some(_) => schema.list_map_keys().iter().map(ToString::to_string).collect(),
                None => vec![],
            },
            old: old.map_or(&[], |v| v.as_slice()),
            by_key: None,
        }
    }

    fn of(&mut self, value: &Value) -> Option<&'v Value> {
        if self.old.is_empty() {
            return None;
        }
        let keys = &self.keys;
        let key = |value: &Value| {
            let parts: Vec<Option<&Value>> = keys.iter().map(|k| value.get(k)).collect();
            serde_json::to_string(&parts).unwrap_or_default()
        };
        let by_key = self.by_key.get_or_insert_with(|| {
            let mut found = std::collections::HashMap::new();
            for value in self.old {
                found.entry(key(value)).or_insert(value);
            }
            found
        });
        by_key.get(&key(value)).copied()
    }
}
