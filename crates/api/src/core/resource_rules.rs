//! Resource names and quantities where they are counted or limited: quotas, limit ranges, nodes, volumes.

use serde_json::{Value, json};

use super::pod_spec;
use crate::field::{Cursor, Path, Problems};
use crate::quantity::Quantity;
use crate::{names, resources};

/// Quantities of the resource list at `object[name]` are kept to thousandths.
pub(super) fn round_up(object: &mut Value, name: &str) {
    if let Some(list) = object.get_mut(name).and_then(Value::as_object_mut) {
        pod_spec::round_up(list);
    }
}

/// A resource's name: one that is known, or a qualified one. The problem stands at `path`.
pub(super) fn validate_resource(name: &str, path: &Path, p: &mut Problems) {
    let messages = names::qualified_name(name);
    if messages.is_empty() && !name.contains('/') && !resources::is_standard(name) {
        p.invalid_value(
            path,
            &json!(name),
            "must be a standard resource type or fully qualified",
        );
    }
    for message in messages {
        p.invalid_value(path, &json!(name), message);
    }
}

/// What a container can ask for.
pub(super) fn validate_container_resource(name: &str, path: &Path, p: &mut Problems) {
    validate_resource(name, path, p);
    if !name.contains('/') {
        if !resources::is_standard_for_containers(name) {
            p.invalid_value(path, &json!(name), "must be a standard resource for containers");
        }
    } else if !resources::is_native(name) && !resources::is_extended(name) {
        p.invalid_value(path, &json!(name), "doesn't follow extended resource name standard");
    }
}

/// What a quota can limit.
pub(super) fn validate_quota_resource(name: &str, path: &Path, p: &mut Problems) {
    validate_resource(name, path, p);
    if !name.contains('/') && !resources::is_standard_for_quota(name) {
        p.invalid_value(path, &json!(name), "must be a standard resource for quota");
    }
}

/// Not negative, and whole where only whole numbers make sense.
pub(super) fn validate_quantity(name: &str, c: &Cursor<'_>, p: &mut Problems) {
    let Ok(quantity) = Quantity::parse(c.str()) else {
        return;
    };
    if quantity.is_negative() {
        p.invalid(c, "must be greater than or equal to 0");
    }
    if resources::is_integer(name) && quantity.milli_value() % 1000 != 0 {
        p.invalid(c, "must be an integer");
    }
}
