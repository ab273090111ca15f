//! PriorityLevelConfiguration: how many requests of a level run at once, and what happens to the others.
//!
//! Upstream: pkg/apis/flowcontrol/{v1/defaults.go,validation}, pkg/registry/flowcontrol/prioritylevelconfiguration
//! (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use super::standard;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource};
use crate::printing::{age, int, text};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "PriorityLevelConfiguration",
    plural: "prioritylevelconfigurations",
    singular: "prioritylevelconfiguration",
    namespaced: false,
    schema: "flowcontrol/v1.PriorityLevelConfiguration",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Type"),
        Column::string("NominalConcurrencyShares"),
        Column::string("Queues"),
        Column::string("HandSize"),
        Column::string("QueueLengthLimit"),
        Column::AGE,
    ],
    cells,
    default,
    validate,
    validate_status: |new, _, p| super::validate_conditions(&new.at("status").at("conditions"), p),
    generation: true,
    ..KindDef::BASE
};

fn default(level: &mut Value) {
    let Some(spec) = level.get_mut("spec") else { return };
    if let Some(exempt) = spec.get_mut("exempt") {
        fill::absent(exempt, "nominalConcurrencyShares", 0);
        fill::absent(exempt, "lendablePercent", 0);
    }
    let Some(limited) = spec.get_mut("limited") else { return };
    fill::absent(limited, "nominalConcurrencyShares", 30);
    fill::absent(limited, "lendablePercent", 0);
    if let Some(queuing) = limited.pointer_mut("/limitResponse/queuing") {
        for (field, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
            if queuing.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                queuing[field] = value.into();
            }
        }
    }
}

const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

fn validate(level: &Cursor<'_>, p: &mut Problems) {
    let (name, spec) = (level.at("metadata").at("name").str(), level.at("spec"));
    let annotations = level.at("metadata").at("annotations");
    if annotations.has_key(PRESERVE_ZERO) {
        p.forbidden(&annotations, format!("annotation '{PRESERVE_ZERO}' is forbidden"));
    }
    validate_spec(name, &spec, p);
    validate_mandatory(name, &spec, p);
    super::validate_conditions(&level.at("status").at("conditions"), p);
}

fn validate_spec(name: &str, spec: &Cursor<'_>, p: &mut Problems) {
    let (kind, exempt, limited) = (spec.at("type"), spec.at("exempt"), spec.at("limited"));
    if (name == "exempt") != (kind.str() == "Exempt") {
        p.invalid(
            &crate::rules::as_text(&kind),
            "must be 'Exempt' if and only if `name` is 'exempt'",
        );
    }
    match kind.str() {
        "Exempt" => {
            if limited.exists() {
                p.forbidden(&limited, "must be nil if the type is not Limited");
            }
            validate_shares(&exempt, p);
        }
        "Limited" => {
            if exempt.exists() {
                p.forbidden(&exempt, "must be nil if the type is Limited");
            }
            if limited.exists() {
                validate_limited(&limited, p);
            } else {
                p.required(&limited, "must not be empty when type is Limited");
            }
        }
        "" => p.required(&kind, ""),
        _ => p.not_supported(&kind, &["Exempt", "Limited"]),
    }
}

fn validate_shares(of: &Cursor<'_>, p: &mut Problems) {
    let shares = of.at("nominalConcurrencyShares");
    if shares.as_i64().is_some_and(|n| n < 0) {
        p.invalid(&shares, "must be a non-negative integer");
    }
    let lendable = of.at("lendablePercent");
    if lendable.as_i64().is_some_and(|n| !(0..=100).contains(&n)) {
        p.invalid(&lendable, "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(limited: &Cursor<'_>, p: &mut Problems) {
    validate_shares(limited, p);
    let borrowing = limited.at("borrowingLimitPercent");
    if borrowing.as_i64().is_some_and(|n| n < 0) {
        p.invalid(&borrowing, "if specified, must be a non-negative integer");
    }
    let response = limited.at("limitResponse");
    let (kind, queuing) = (response.at("type"), response.at("queuing"));
    match (kind.str(), queuing.exists()) {
        ("Reject", true) => p.forbidden(&queuing, "must be nil if limited.limitResponse.type is not Limited"),
        ("Queue", false) => p.required(&queuing, "must not be empty if limited.limitResponse.type is Limited"),
        ("Queue", true) => validate_queuing(&queuing, p),
        ("Reject", false) => {}
        ("", _) => p.required(&kind, ""),
        _ => p.not_supported(&kind, &["Queue", "Reject"]),
    }
}

const QUEUES_MAX: i64 = 10_000_000;
/// What a hash has to choose a hand of queues with.
const HASH_BITS: f64 = 60.0;

fn validate_queuing(queuing: &Cursor<'_>, p: &mut Problems) {
    let (limit, queues, hand) = (
        queuing.at("queueLengthLimit"),
        queuing.at("queues"),
        queuing.at("handSize"),
    );
    let number = |c: &Cursor<'_>| c.as_i64().unwrap_or(0);
    if number(&limit) <= 0 {
        p.invalid(&limit, "must be positive");
    }
    match number(&queues) {
        ..=0 => p.invalid(&queues, "must be positive"),
        n if n > QUEUES_MAX => p.invalid(&queues, format!("must not be greater than {QUEUES_MAX}")),
        _ => {}
    }
    let (decks, cards) = (number(&queues), number(&hand));
    if cards <= 0 {
        p.invalid(&hand, "must be positive");
    } else if cards > decks {
        p.invalid(&hand, format!("should not be greater than queues ({decks})"));
    } else if ((decks as f64).log2() * cards as f64).ceil() > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {decks} and handSize {cards} should not be greater than {HASH_BITS}"
        );
        p.invalid(&hand, detail);
    }
}

/// Of the exempt level, what it lends and counts for may change; of the catch-all level nothing.
fn validate_mandatory(name: &str, spec: &Cursor<'_>, p: &mut Problems) {
    let Some(fixed) = standard::mandatory_priority_level(name) else {
        return;
    };
    let (mut wanted, mut found) = (fixed["spec"].clone(), spec.value().cloned().unwrap_or_default());
    let mut except = "";
    if name == "exempt" {
        for side in [&mut wanted, &mut found] {
            side.as_object_mut().map(|map| map.remove("exempt"));
        }
        except = " except the 'spec.exempt' field";
    }
    if wanted != found {
        p.invalid(spec, format!("spec of '{name}'{except} must equal the fixed value"));
    }
}

fn cells(level: &Value, now: Timestamp) -> Vec<Value> {
    let limited = level.pointer("/spec/limited");
    let queuing = limited.and_then(|l| l.pointer("/limitResponse/queuing"));
    let number = |of: Option<&Value>, pointer: &str| of.map_or("<none>".into(), |v| Value::from(int(v, pointer)));
    vec![
        text(level, "/spec/type").into(),
        number(limited, "/nominalConcurrencyShares"),
        number(queuing, "/queues"),
        number(queuing, "/handSize"),
        number(queuing, "/queueLengthLimit"),
        age(level, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, row};
    use serde_json::json;

    fn level() -> Value {
        json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}})
    }

    #[test]
    fn defaults() {
        let l = defaulted(&DEF, level());
        assert_eq!(
            l["spec"]["limited"],
            json!({"nominalConcurrencyShares": 30, "lendablePercent": 0, "limitResponse": {"type": "Queue",
                "queuing": {"handSize": 8, "queues": 64, "queueLengthLimit": 50}}})
        );
        let exempt = defaulted(&DEF, json!({"spec": {"type": "Exempt", "exempt": {}}}));
        assert_eq!(
            exempt["spec"]["exempt"],
            json!({"nominalConcurrencyShares": 0, "lendablePercent": 0})
        );
        assert_eq!(row(&DEF, &l), "Limited|30|64|8|50|<unknown>");
        assert_eq!(row(&DEF, &exempt), "Exempt|<none>|<none>|<none>|<none>|<unknown>");
    }

    #[test]
    fn levels_are_checked() {
        let limited = |patch: Value| json!({"spec": {"limited": patch}});
        let queuing = |patch: Value| limited(json!({"limitResponse": {"queuing": patch}}));
        refuses(
            &DEF,
            &level(),
            &[
                (
                    json!({"metadata": {"annotations": {PRESERVE_ZERO: ""}}}),
                    "metadata.annotations: Forbidden: annotation 'flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares' is forbidden",
                ),
                (json!({"spec": {"type": ""}}), "spec.type: Required value"),
                (
                    json!({"spec": {"type": "Free"}}),
                    r#"spec.type: Unsupported value: "Free": supported values: "Exempt", "Limited""#,
                ),
                (
                    json!({"spec": {"type": "Exempt", "limited": null}}),
                    r#"spec.type: Invalid value: "Exempt": must be 'Exempt' if and only if `name` is 'exempt'"#,
                ),
                (
                    json!({"spec": {"exempt": {}}}),
                    "spec.exempt: Forbidden: must be nil if the type is Limited",
                ),
                (
                    json!({"spec": {"limited": null}}),
                    "spec.limited: Required value: must not be empty when type is Limited",
                ),
                (
                    limited(json!({"nominalConcurrencyShares": -1})),
                    "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
                ),
                (
                    limited(json!({"lendablePercent": 101})),
                    "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
                ),
                (
                    limited(json!({"borrowingLimitPercent": -1})),
                    "spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer",
                ),
                (
                    limited(json!({"limitResponse": null})),
                    "spec.limited.limitResponse.type: Required value",
                ),
                (
                    limited(json!({"limitResponse": {"type": "Wait"}})),
                    r#"spec.limited.limitResponse.type: Unsupported value: "Wait": supported values: "Queue", "Reject""#,
                ),
                (
                    limited(json!({"limitResponse": {"type": "Reject"}})),
                    "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
                ),
                (
                    limited(json!({"limitResponse": {"queuing": null}})),
                    "spec.limited.limitResponse.queuing: Required value: must not be empty if limited.limitResponse.type is Limited",
                ),
                (
                    queuing(json!({"queueLengthLimit": -1})),
                    "spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: -1: must be positive",
                ),
                (
                    queuing(json!({"queues": 10000001, "handSize": 1})),
                    "spec.limited.limitResponse.queuing.queues: Invalid value: 10000001: must not be greater than 10000000",
                ),
                (
                    queuing(json!({"handSize": -1})),
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: -1: must be positive",
                ),
                (
                    queuing(json!({"handSize": 65})),
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: 65: should not be greater than queues (64)",
                ),
                (
                    queuing(json!({"handSize": 11})),
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: 11: required entropy bits of deckSize 64 and handSize 11 should not be greater than 60",
                ),
            ],
        );
    }

    #[test]
    fn the_mandatory_ones_are_fixed() {
        for fixed in standard::priority_levels() {
            assert!(create_problems(&DEF, fixed.clone()).is_empty(), "{fixed}");
            assert_eq!(defaulted(&DEF, fixed.clone()), fixed);
        }
        let find = |name: &str| standard::mandatory_priority_level(name).unwrap();
        let lends = merged(&find("exempt"), &json!({"spec": {"exempt": {"lendablePercent": 50}}}));
        assert!(create_problems(&DEF, lends).is_empty());
        let grown = merged(
            &find("catch-all"),
            &json!({"spec": {"limited": {"nominalConcurrencyShares": 6}}}),
        );
        assert!(create_problems(&DEF, grown)[0].ends_with("spec of 'catch-all' must equal the fixed value"));
    }
}
