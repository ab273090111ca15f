//! Resource names and quantities where they are counted or limited: quotas, limit ranges, nodes, volumes.

use serde_json::json;

use crate::field::{Cursor, Path, Problems};
use crate::names;
use crate::quantity::Quantity;

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

/// Which resource names are known, and as what.
pub(super) mod resources {
    use crate::names;

    fn is_hugepages(name: &str) -> bool {
        name.starts_with("hugepages-")
    }

    /// Kubernetes' own: without a domain, or in `kubernetes.io/`.
    pub fn is_native(name: &str) -> bool {
        !name.contains('/') || name.contains("kubernetes.io/")
    }

    pub fn is_extended(name: &str) -> bool {
        !is_native(name)
            && !name.starts_with("requests.")
            && names::qualified_name(&format!("requests.{name}")).is_empty()
    }

    pub fn overcommit_allowed(name: &str) -> bool {
        is_native(name) && !is_hugepages(name)
    }

    const COUNTED: [&str; 9] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];

    pub fn is_integer(name: &str) -> bool {
        COUNTED.contains(&name) || is_extended(name)
    }

    pub fn is_standard_for_containers(name: &str) -> bool {
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_hugepages(name)
    }

    pub fn is_standard_for_quota(name: &str) -> bool {
        let bare = name
            .strip_prefix("requests.")
            .or_else(|| name.strip_prefix("limits."))
            .unwrap_or(name);
        matches!(bare, "cpu" | "memory" | "ephemeral-storage")
            || name == "requests.storage"
            || COUNTED.contains(&name)
            || is_hugepages(name.strip_prefix("requests.").unwrap_or(name))
    }

    pub fn is_standard(name: &str) -> bool {
        name == "storage" || is_standard_for_quota(name)
    }
}
