//! Lease: who holds something, and until when.
//!
//! Upstream: pkg/apis/coordination/validation and pkg/registry/coordination/lease (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::{names, printing};

pub const DEF: KindDef = KindDef {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    schema: "coordination/v1.Lease",
    columns: &[Column::string("Holder"), Column::AGE],
    cells,
    prepare_create: |object| drop_coordinated(object, None),
    prepare_update: |new, old| drop_coordinated(new, Some(old)),
    validate,
    create_on_update: true,
    unconditional_update: false,
    ..KindDef::BASE
};

/// Coordinated leader election is behind a feature gate that is off: its fields are kept only where they are already.
fn drop_coordinated(object: &mut Value, old: Option<&Value>) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["strategy", "preferredHolder"] {
        let there = old.and_then(|o| o.get("spec")).and_then(|s| s.get(field)).is_some();
        if !there {
            spec.remove(field);
        }
    }
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let duration = spec.at("leaseDurationSeconds");
    if duration.as_i64().is_some_and(|n| n <= 0) {
        p.invalid(&duration, "must be greater than 0");
    }
    p.non_negative(&spec.at("leaseTransitions"));
    let (strategy, preferred) = (spec.at("strategy"), spec.at("preferredHolder"));
    if strategy.exists() {
        // The doubled last word is upstream's.
        let doubled = Cursor::new(strategy.value(), strategy.path().field("strategy"));
        if strategy.str().contains('/') {
            p.invalid_each(&doubled, names::qualified_name(strategy.str()));
        } else if strategy.str() != "OldestEmulationVersion" {
            p.not_supported(&doubled, &["OldestEmulationVersion"]);
        }
    }
    if !preferred.is_empty() && strategy.is_empty() {
        p.forbidden(&preferred, "may only be specified if `strategy` is defined");
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        printing::text(object, "/spec/holderIdentity").into(),
        printing::age(object, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    #[test]
    fn what_is_refused() {
        for (spec, wanted) in [
            (json!({}), ""),
            (
                json!({"leaseDurationSeconds": 15, "leaseTransitions": 0, "holderIdentity": "me"}),
                "",
            ),
            (
                json!({"leaseDurationSeconds": 0}),
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            ),
            (
                json!({"leaseTransitions": -1}),
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ),
            (json!({"strategy": "example.com/mine", "preferredHolder": "x"}), ""),
            (
                json!({"strategy": "Newest"}),
                "spec.strategy.strategy: Unsupported value: \"Newest\": supported values: \"OldestEmulationVersion\"",
            ),
            (
                json!({"preferredHolder": "x"}),
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ),
        ] {
            assert_eq!(refused(&DEF, &json!({"spec": spec})).join("\n"), wanted);
        }
    }

    #[test]
    fn gated_fields_are_dropped_unless_they_were_there() {
        let asked = json!({"spec": {"strategy": "OldestEmulationVersion", "holderIdentity": "me"}});
        let mut created = asked.clone();
        (DEF.prepare_create)(&mut created);
        assert_eq!(created, json!({"spec": {"holderIdentity": "me"}}));
        let mut kept = asked.clone();
        (DEF.prepare_update)(&mut kept, &asked);
        assert_eq!(kept, asked);
    }

    #[test]
    fn a_row() {
        let object = json!({"spec": {"holderIdentity": "me"}});
        assert_eq!(
            Value::from(cells(&object, at("2026-01-01T00:00:00Z"))),
            json!(["me", "<unknown>"])
        );
    }
}
