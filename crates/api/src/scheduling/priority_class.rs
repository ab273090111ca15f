//! PriorityClass: a name for how important pods are.
//!
//! Upstream: pkg/apis/scheduling and pkg/registry/scheduling/priorityclass (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef};
use crate::printing;
use crate::workload::count;

/// The highest value users may give; above it are the system's.
pub const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
/// Names with this prefix are the system's.
pub const SYSTEM_PREFIX: &str = "system-";

/// A class that every cluster has.
pub struct SystemClass {
    pub name: &'static str,
    pub value: i64,
    pub description: &'static str,
}

pub const SYSTEM_CLASSES: [SystemClass; 2] = [
    SystemClass {
        name: "system-node-critical",
        value: 2 * HIGHEST_USER_PRIORITY + 1000,
        description: "Used for system critical pods that must not be moved from their current node.",
    },
    SystemClass {
        name: "system-cluster-critical",
        value: 2 * HIGHEST_USER_PRIORITY,
        description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    },
];

impl SystemClass {
    /// The object to create when the cluster starts.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": self.name},
            "value": self.value, "description": self.description, "preemptionPolicy": "PreemptLowerPriority",
        })
    }
}

pub const DEF: KindDef = KindDef {
    group: "scheduling.k8s.io",
    kind: "PriorityClass",
    plural: "priorityclasses",
    singular: "priorityclass",
    short_names: &["pc"],
    namespaced: false,
    schema: "scheduling/v1.PriorityClass",
    columns: &[
        Column::integer("Value"),
        Column {
            kind: "boolean",
            ..Column::string("Global-Default")
        },
        Column::AGE,
        Column::string("PreemptionPolicy"),
    ],
    cells,
    default: |object| fill::absent(object, "preemptionPolicy", "PreemptLowerPriority"),
    // Set once and never raised, as there is no spec.
    prepare_create: |object| fill::member(object, "metadata")["generation"] = 1.into(),
    validate,
    validate_update,
    ..KindDef::BASE
};

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let (name, value) = (object.at("metadata").at("name"), object.at("value"));
    if name.str().starts_with(SYSTEM_PREFIX) {
        if let Err(why) = known_system_class(name.str(), count(&value), object.at("globalDefault").is_true()) {
            p.forbidden(
                &name,
                format!(
                    "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
                ),
            );
        }
    } else if count(&value) > HIGHEST_USER_PRIORITY {
        p.forbidden(
            &value,
            format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"),
        );
    }
    let policy = object.at("preemptionPolicy");
    if policy.exists() && !["PreemptLowerPriority", "Never"].contains(&policy.str()) {
        p.not_supported_as_listed(&policy, &["PreemptLowerPriority", "Never"]);
    }
}

fn known_system_class(name: &str, value: i64, global_default: bool) -> Result<(), String> {
    let class = SYSTEM_CLASSES
        .iter()
        .find(|c| c.name == name)
        .ok_or_else(|| format!("{name} is not a known system priority class"))?;
    if class.value != value {
        return Err(format!("value of {name} PriorityClass must be {}", class.value));
    }
    if global_default {
        return Err(format!("globalDefault of {name} PriorityClass must be false"));
    }
    Ok(())
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    if count(&new.at("value")) != count(&old.at("value")) {
        p.forbidden(&new.at("value"), "may not be changed in an update.");
    }
    p.immutable(&new.at("preemptionPolicy"), &old.at("preemptionPolicy"));
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        printing::int(object, "/value").into(),
        (object["globalDefault"] == true).into(),
        printing::age(object, now),
        printing::text(object, "/preemptionPolicy").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn class(name: &str, value: i64) -> Value {
        json!({"metadata": {"name": name}, "value": value})
    }

    #[test]
    fn what_is_refused() {
        let reserved = "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error:";
        for (object, wanted) in [
            (class("high", 1_000_000_000), String::new()),
            (class("low", -5), String::new()),
            (
                class("high", 1_000_000_001),
                "value: Forbidden: maximum allowed value of a user defined priority is 1000000000".into(),
            ),
            (class("system-x", 5), format!("{reserved} system-x is not a known system priority class")),
            (
                class("system-node-critical", 5),
                format!("{reserved} value of system-node-critical PriorityClass must be 2000001000"),
            ),
            (
                with(&SYSTEM_CLASSES[1].object(), "/globalDefault", json!(true)),
                format!("{reserved} globalDefault of system-cluster-critical PriorityClass must be false"),
            ),
            (
                with(&class("a", 1), "/preemptionPolicy", json!("Sometimes")),
                "preemptionPolicy: Unsupported value: \"Sometimes\": supported values: \"PreemptLowerPriority\", \"Never\"".into(),
            ),
        ] {
            assert_eq!(refused(&DEF, &object).join("\n"), wanted);
        }
        for class in &SYSTEM_CLASSES {
            assert!(refused(&DEF, &class.object()).is_empty());
        }
    }

    #[test]
    fn value_and_policy_stay() {
        let old = class("a", 1);
        assert_eq!(defaulted(&DEF, &old)["preemptionPolicy"], "PreemptLowerPriority");
        assert!(update_refused(&DEF, &with(&old, "/globalDefault", json!(true)), &old).is_empty());
        assert_eq!(
            update_refused(&DEF, &class("a", 2), &old),
            ["value: Forbidden: may not be changed in an update."]
        );
        assert_eq!(
            update_refused(&DEF, &with(&old, "/preemptionPolicy", json!("Never")), &old),
            ["preemptionPolicy: Invalid value: \"Never\": field is immutable"]
        );
    }

    #[test]
    fn a_row() {
        let object = defaulted(&DEF, &class("a", 7));
        let wanted = json!([7, false, "<unknown>", "PreemptLowerPriority"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:00:00Z"))), wanted);
    }
}
