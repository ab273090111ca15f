//! Defaults in a schema must satisfy it, and may have no fields that it does not know.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/defaulting/validation.go (v1.36).

use orlop_api::field::{Path, Problems};
use orlop_api::structural::{Structural, coerce_metadata, validate_metadata};
use serde_json::{Value, json};

use crate::rules::{RuleTree, validate_rules_at};
use crate::validate::validate_schema;

/// A step from an object to a part of it.
#[derive(Clone, Copy)]
enum Step<'s> {
    Child(&'s str),
    Index,
}

struct Walk<'s> {
    require_pruned: bool,
    /// The schema of the resource that we are in, and how we came from there.
    resource: &'s Structural,
    is_root: bool,
    steps: Vec<Step<'s>>,
}

/// Validates all defaults of a schema: as it was read, and as it is given.
pub(super) fn validate(schema: &Structural, given: &Value, at: &Path, require_pruned: bool, p: &mut Problems) {
    let mut walk = Walk {
        require_pruned,
        resource: schema,
        is_root: true,
        steps: vec![],
    };
    walk.node(schema, given, at, false, p);
}

impl<'s> Walk<'s> {
    fn node(&mut self, schema: &'s Structural, given: &Value, at: &Path, inside_metadata: bool, p: &mut Problems) {
        if !schema.has_defaults {
            return;
        }
        let at_root = self.is_root && self.steps.is_empty();
        if schema.embedded_resource && !at_root {
            let mut inner = Walk {
                require_pruned: self.require_pruned,
                resource: schema,
                is_root: false,
                steps: vec![],
            };
            return inner.parts(schema, given, at, false, p);
        }
        self.parts(schema, given, at, inside_metadata, p);
    }

    fn parts(&mut self, schema: &'s Structural, given: &Value, at: &Path, inside_metadata: bool, p: &mut Problems) {
        if let Some(default) = schema.default_value() {
            let place = at.field("default");
            let before = p.count();
            match inside_metadata {
                true => self.in_metadata(schema, default, &place, p),
                false => self.plain(schema, default, &place, p),
            }
            if p.count() == before {
                self.by_rules(schema, given, default, &place, p);
            }
        }
        if let Some(items) = schema.items.as_deref() {
            self.steps.push(Step::Index);
            let given = given.get("items").unwrap_or(&Value::Null);
            self.node(items, given, &at.field("items"), inside_metadata, p);
            self.steps.pop();
        }
        let is_resource = self.steps.is_empty();
        for property in &schema.properties {
            let is_meta = is_resource && matches!(&*property.name, "metadata" | "apiVersion" | "kind");
            self.steps.push(Step::Child(&property.name));
            let place = at.field("properties").key(&property.name);
            let given = given.get("properties").and_then(|p| p.get(&*property.name));
            let inside = inside_metadata || is_meta;
            self.node(&property.schema, given.unwrap_or(&Value::Null), &place, inside, p);
            self.steps.pop();
        }
    }

    /// Rules must hold for a default that is new, and for one that was there before.
    fn by_rules(&self, schema: &Structural, given: &Value, default: &Value, at: &Path, p: &mut Problems) {
        let root = self.is_root && self.steps.is_empty();
        let Some(tree) = RuleTree::compile(given, schema, root) else {
            return;
        };
        let before = p.count();
        validate_rules_at(&tree, default, Some(default), at, p);
        if p.count() == before {
            validate_rules_at(&tree, default, None, at, p);
        }
    }

    fn plain(&self, schema: &Structural, default: &Value, at: &Path, p: &mut Problems) {
        let mut value = default.clone();
        if self.require_pruned {
            schema.prune(&mut value, schema.embedded_resource);
            if value != *default {
                p.invalid_value(at, default, "must not have unknown fields");
            }
            value = default.clone();
        }
        let before = p.count();
        if let Err(e) = coerce_metadata(schema, &mut value, schema.embedded_resource, at) {
            return e.report(p);
        }
        validate_metadata(schema, &value, schema.embedded_resource, at, p);
        if p.count() == before {
            validate_schema(schema, &value, None, at, p);
        }
    }

    /// A default in metadata is judged by the object that it makes.
    fn in_metadata(&self, schema: &Structural, default: &Value, at: &Path, p: &mut Problems) {
        let mut object = self.steps.iter().rev().fold(default.clone(), |inner, step| match step {
            Step::Child(name) => json!({ *name: inner }),
            Step::Index => json!([inner]),
        });
        for (name, value) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
            if object.get(name).is_none() && object.is_object() {
                object[name] = value.into();
            }
        }
        let root = Path::default();
        let because = |why: String| format!("must result in valid metadata: {why}");
        if let Err(e) = coerce_metadata(self.resource, &mut object, true, &root) {
            return p.invalid_value(at, default, because(e.to_string()));
        }
        let mut found = Problems::default();
        validate_metadata(self.resource, &object, true, &root, &mut found);
        let texts: Vec<String> = found.0.iter().map(ToString::to_string).collect();
        match texts.as_slice() {
            [] => validate_schema(schema, default, None, at, p),
            [one] => p.invalid_value(at, default, because(one.clone())),
            many => p.invalid_value(at, default, because(format!("[{}]", many.join(", ")))),
        }
    }
}
