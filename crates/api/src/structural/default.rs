//! Defaults of the schema, and nulls that may not be there.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/defaulting (v1.36): Default and
//! PruneNonNullableNullsWithoutDefaults, here in one pass.

use serde_json::{Map, Value};

use super::{Members, Structural};

impl Structural {
    /// Fills in defaults. A null where the schema allows none gets the default or is removed; in a list without a default
    /// for its elements it stays, for validation to refuse.
    pub fn default(&self, value: &mut Value) {
        match value {
            Value::Object(map) => self.default_members(map),
            Value::Array(list) => {
                let Some(items) = self.items.as_deref() else { return };
                for value in list {
                    if value.is_null()
                        && !items.nullable
                        && let Some(default) = items.default_value()
                    {
                        *value = default.clone();
                    }
                    items.default(value);
                }
            }
            _ => {}
        }
    }

    fn default_members(&self, map: &mut Map<String, Value>) {
        let mut members: Members<'_> = self.members();
        let mut nulls = false;
        for (name, value) in map.iter_mut() {
            let Some(schema) = members.member(name) else { continue };
            if value.is_null() && !schema.nullable {
                match schema.default_value() {
                    Some(default) => *value = default.clone(),
                    None => {
                        nulls = true;
                        continue;
                    }
                }
            }
            schema.default(value);
        }
        if nulls {
            map.retain(|name, value| {
                let unwanted = value.is_null() && self.member(name).is_some_and(|s| !s.nullable);
                !unwanted
            });
        }
        if !self.has_defaults {
            return;
        }
        for property in &self.properties {
            let Some(default) = property.schema.default_value() else {
                continue;
            };
            if !map.contains_key(&*property.name) {
                let mut value = default.clone();
                property.schema.default(&mut value);
                map.insert(property.name.to_string(), value);
            }
        }
    }

    /// Removes from the defaults what pruning would remove, so that defaulting never adds anything to be pruned.
    pub fn prune_defaults(&mut self) {
        self.prune_defaults_below(false);
    }

    fn prune_defaults_below(&mut self, root: bool) {
        if !self.has_defaults {
            return;
        }
        if let Some(mut default) = self.extra.as_mut().and_then(|e| e.default.take()) {
            self.prune(&mut default, root);
            if let Some(extra) = &mut self.extra {
                extra.default = Some(default);
            }
        }
        if let Some(items) = &mut self.items {
            items.prune_defaults_below(false);
        }
        if let super::Additional::Schema(schema) = &mut self.additional {
            schema.prune_defaults_below(false);
        }
        for property in &mut self.properties {
            property.schema.prune_defaults_below(false);
        }
    }
}
