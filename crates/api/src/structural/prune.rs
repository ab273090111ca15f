//! Pruning: fields that the schema does not name are removed, and reported where strict decoding wants to know.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/pruning (v1.36).

use serde_json::Value;

use super::{Structural, is_meta_field};

/// No more paths are reported.
const MAX_PATHS: usize = 100;

impl Structural {
    /// Removes what the schema does not name. At the root, apiVersion, kind and metadata are kept whatever it says, as in
    /// embedded resources. The result is the paths of what was removed, in order: `spec.foo`, `spec.list[0].bar`.
    pub fn prune(&self, value: &mut Value, root: bool) -> Vec<String> {
        let mut pruning = Pruning::default();
        pruning.enter(value, Some(self), root);
        pruning.removed.sort();
        pruning.removed
    }
}

#[derive(Default)]
struct Pruning {
    path: String,
    removed: Vec<String>,
}

impl Pruning {
    fn enter(&mut self, value: &mut Value, schema: Option<&Structural>, root: bool) {
        match schema {
            Some(s) if s.preserve_unknown_fields => self.keep(value, s, root),
            _ => self.prune(value, schema, root),
        }
    }

    fn prune(&mut self, value: &mut Value, schema: Option<&Structural>, root: bool) {
        let here = self.path.len();
        match value {
            Value::Object(map) => {
                let embedded = root || schema.is_some_and(|s| s.embedded_resource);
                let open = schema.is_some_and(Structural::has_additional);
                let mut members = schema.map(Structural::members);
                map.retain(|name, value| {
                    if schema.is_some() && embedded && is_meta_field(name) {
                        return true;
                    }
                    let property = members.as_mut().and_then(|m| m.property(name));
                    if property.is_none() && !open {
                        // Upstream reports no unknown meta fields at the root.
                        if here > 0 || !is_meta_field(name) {
                            self.record(name);
                        }
                        return false;
                    }
                    self.push(name);
                    let schema = property.or_else(|| schema.and_then(Structural::additional_schema));
                    self.enter(value, schema, false);
                    self.path.truncate(here);
                    true
                });
            }
            Value::Array(list) => {
                let items = schema.and_then(|s| s.items.as_deref());
                for (i, value) in list.iter_mut().enumerate() {
                    self.push_index(i);
                    self.enter(value, items, false);
                    self.path.truncate(here);
                }
            }
            _ => {}
        }
    }

    /// Keeps unknown fields, and prunes below those that are known.
    fn keep(&mut self, value: &mut Value, schema: &Structural, root: bool) {
        let here = self.path.len();
        match value {
            Value::Object(map) => {
                let embedded = root || schema.embedded_resource;
                let mut members = schema.members();
                for (name, value) in map {
                    if embedded && is_meta_field(name) {
                        continue;
                    }
                    let property = members.property(name);
                    if property.is_some() || schema.has_additional() {
                        self.push(name);
                        self.enter(value, property.or_else(|| schema.additional_schema()), false);
                        self.path.truncate(here);
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = schema.items.as_deref() else { return };
                for (i, value) in list.iter_mut().enumerate() {
                    self.push_index(i);
                    self.keep(value, items, false);
                    self.path.truncate(here);
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn push_index(&mut self, i: usize) {
        use std::fmt::Write as _;
        write!(self.path, "[{i}]").expect("writing to a string");
    }

    fn record(&mut self, name: &str) {
        if self.removed.len() >= MAX_PATHS {
            return;
        }
        let here = self.path.len();
        self.push(name);
        self.removed.push(crate::field::cut(self.path.clone()));
        self.path.truncate(here);
    }
}
