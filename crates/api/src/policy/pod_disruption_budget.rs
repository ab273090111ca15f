//! PodDisruptionBudget: how many pods of a set may be evicted at once.
//!
//! Upstream: pkg/apis/policy/validation and pkg/registry/policy/poddisruptionbudget (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, ProblemKind, Problems, shown};
use crate::kind::{Column, KindDef, Subresource};
use crate::{int_or_string, meta, printing, workload};

pub const DEF: KindDef = KindDef {
    group: "policy",
    kind: "PodDisruptionBudget",
    plural: "poddisruptionbudgets",
    singular: "poddisruptionbudget",
    short_names: &["pdb"],
    schema: "policy/v1.PodDisruptionBudget",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Min Available"),
        Column::string("Max Unavailable"),
        Column::integer("Allowed Disruptions"),
        Column::AGE,
    ],
    cells,
    prepare_create: |object| workload::reset_status(object, DEF.schema),
    prepare_status: workload::keep_spec,
    validate,
    validate_status,
    generation: true,
    unconditional_update: false,
    ..KindDef::BASE
};

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let bounds = [spec.at("minAvailable"), spec.at("maxUnavailable")];
    if bounds.iter().all(Cursor::exists) {
        // Upstream shows the spec with the names of its Go fields.
        let part = |name: &'static str| shown(spec.at(name).value());
        let whole = format!(
            "{{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
            part("minAvailable"),
            part("selector"),
            part("maxUnavailable"),
            part("unhealthyPodEvictionPolicy")
        );
        let detail = "minAvailable and maxUnavailable cannot be both set";
        p.push(ProblemKind::Invalid, spec.path(), Some(whole), detail);
    }
    for bound in bounds.iter().filter(|b| b.exists()) {
        int_or_string::validate(bound, p);
        int_or_string::validate_at_most_100_percent(bound, p);
    }
    meta::validate_label_selector(&spec.at("selector"), p);
    let policy = spec.at("unhealthyPodEvictionPolicy");
    if policy.exists() && !matches!(policy.str(), "IfHealthyBudget" | "AlwaysAllow") {
        p.not_supported(&policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    meta::validate_conditions(&status.at("conditions"), p);
    let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    workload::validate_counts(&status, &counts, p);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let bound = |pointer: &str| {
        object
            .pointer(pointer)
            .map_or("N/A".to_string(), int_or_string::text)
            .into()
    };
    vec![
        bound("/spec/minAvailable"),
        bound("/spec/maxUnavailable"),
        printing::int(object, "/status/disruptionsAllowed").into(),
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
        let selector = json!({"matchLabels": {"a": "b"}});
        for (spec, wanted) in [
            (json!({}), ""),
            (json!({"minAvailable": 1, "selector": selector}), ""),
            (
                json!({"maxUnavailable": "50%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
                "",
            ),
            (
                json!({"minAvailable": 1, "maxUnavailable": "5%", "selector": selector}),
                "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":{\"matchLabels\":{\"a\":\"b\"}},\"MaxUnavailable\":\"5%\",\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set",
            ),
            (
                json!({"minAvailable": -1}),
                "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"maxUnavailable": "101%"}),
                "spec.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (
                json!({"unhealthyPodEvictionPolicy": "Never"}),
                "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
            ),
        ] {
            assert_eq!(refused(&DEF, &json!({"spec": spec})).join("\n"), wanted);
        }
        let status =
            json!({"status": {"expectedPods": -1, "conditions": [{"type": "A", "status": "True", "reason": "r"}]}});
        assert_eq!(
            status_refused(&DEF, &status, &json!({})),
            [
                "status.conditions[0].lastTransitionTime: Required value",
                "status.expectedPods: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn rows() {
        let now = at("2026-01-01T00:10:00Z");
        let row = |object: Value| Value::from(cells(&object, now));
        assert_eq!(
            row(json!({"spec": {"minAvailable": 2}})),
            json!(["2", "N/A", 0, "<unknown>"])
        );
        assert_eq!(
            row(json!({"spec": {"maxUnavailable": "50%"}, "status": {"disruptionsAllowed": 1}})),
            json!(["N/A", "50%", 1, "<unknown>"])
        );
    }
}
