//! The spec of a Job, wherever it stands: in a Job or in the template of a CronJob.
//!
//! Upstream: pkg/apis/batch/validation (v1.36).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::batch::job_indexes;
use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::workload::{self, count, unsupported};
use crate::{meta, names};

/// Above this many completions an indexed Job must be modest otherwise, or its index lists outgrow the status.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// The limit of parallelism and failed indexes beyond `MANY_COMPLETIONS`.
const MODEST: i64 = 10_000;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_POD_CONDITIONS: usize = 20;
const MAX_MANAGED_BY_BYTES: usize = 63;
const MAX_SUCCEEDED_INDEXES_BYTES: usize = 64 * 1024;

/// What both places default; the rest is a Job's own.
pub fn default(spec: &mut Value) {
    let rules = spec
        .pointer_mut("/podFailurePolicy/rules")
        .and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        let patterns = rule.get_mut("onPodConditions").and_then(Value::as_array_mut);
        for pattern in patterns.into_iter().flatten() {
            fill::empty(pattern, "status", "True");
        }
    }
    let template = fill::member(spec, "template");
    fill::member(template, "spec");
    pod_template::default(template);
}

pub fn is_indexed(spec: &Cursor<'_>) -> bool {
    spec.at("completionMode").str() == "Indexed"
}

/// All but the selector, which a CronJob's template has none of.
pub fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    workload::validate_counts(spec, &counts, p);
    let (per_index, max_failed) = (spec.at("backoffLimitPerIndex"), spec.at("maxFailedIndexes"));
    if max_failed.exists() && !per_index.exists() {
        p.required(&per_index, "when maxFailedIndexes is specified");
    }
    if spec.at("managedBy").exists() {
        validate_managed_by(&spec.at("managedBy"), p);
    }
    let mode = spec.at("completionMode");
    match mode.str() {
        "Indexed" => validate_indexed(spec, p),
        "NonIndexed" | "" => {
            for c in [&per_index, &max_failed] {
                if c.exists() {
                    p.invalid(c, "requires indexed completion mode");
                }
            }
        }
        other => unsupported(mode.path(), format!("{other:?}"), &["NonIndexed", "Indexed"], p),
    }
    validate_policies(spec, p);
    pod_template::validate(&spec.at("template"), p);
    validate_restart_policy(spec, p);
}

fn validate_managed_by(c: &Cursor<'_>, p: &mut Problems) {
    match c.str().split_once('/') {
        _ if c.str().is_empty() => p.required(c, ""),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            for message in names::dns_subdomain(host) {
                p.invalid_value(c.path(), &json!(host), message);
            }
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
            if !path.bytes().all(fine) {
                let message = names::pattern_message("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
                p.invalid_value(c.path(), &json!(path), message);
            }
        }
        _ => p.invalid(c, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if c.len() > MAX_MANAGED_BY_BYTES {
        p.too_long(c, MAX_MANAGED_BY_BYTES);
    }
}

fn validate_indexed(spec: &Cursor<'_>, p: &mut Problems) {
    let (completions, parallelism) = (spec.at("completions"), spec.at("parallelism"));
    let max_failed = spec.at("maxFailedIndexes");
    if !completions.exists() {
        p.required(&completions, "when completion mode is Indexed");
    }
    if count(&parallelism) > MAX_PARALLELISM {
        p.invalid(
            &parallelism,
            format!("must be less than or equal to {MAX_PARALLELISM} when completion mode is Indexed"),
        );
    }
    if completions.exists() && count(&max_failed) > count(&completions) {
        p.invalid(&max_failed, "must be less than or equal to completions");
    }
    if count(&max_failed) > MAX_FAILED_INDEXES {
        p.invalid(
            &max_failed,
            format!("must be less than or equal to {MAX_FAILED_INDEXES}"),
        );
    }
    if count(&completions) <= MANY_COMPLETIONS || !spec.at("backoffLimitPerIndex").exists() {
        return;
    }
    if !max_failed.exists() {
        p.required(
            &max_failed,
            format!("must be specified when completions is above {MANY_COMPLETIONS}"),
        );
    }
    for c in [&parallelism, &max_failed] {
        if count(c) > MODEST {
            p.invalid(
                c,
                format!(
                    "must be less than or equal to {MODEST} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
                ),
            );
        }
    }
}

fn validate_policies(spec: &Cursor<'_>, p: &mut Problems) {
    let (failure, success) = (spec.at("podFailurePolicy"), spec.at("successPolicy"));
    if failure.exists() {
        validate_failure_policy(spec, &failure.at("rules"), p);
    }
    if success.exists() {
        if is_indexed(spec) {
            validate_success_policy(spec, &success.at("rules"), p);
        } else {
            p.invalid(&success, "requires indexed completion mode");
        }
    }
    let replacement = spec.at("podReplacementPolicy");
    if replacement.exists() {
        let supported: &[&str] = if failure.exists() {
            &["Failed"]
        } else {
            &["Failed", "TerminatingOrFailed"]
        };
        if !supported.contains(&replacement.str()) {
            p.not_supported(&replacement, supported);
        }
    }
}

fn validate_restart_policy(spec: &Cursor<'_>, p: &mut Problems) {
    let policy = spec.at("template").at("spec").at("restartPolicy");
    match policy.str() {
        "Always" | "" => p.required(&policy, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if spec.at("podFailurePolicy").exists() => {
            p.invalid(
                &policy,
                "only \"Never\" is supported when podFailurePolicy is specified",
            );
        }
        "OnFailure" => {}
        other => unsupported(policy.path(), format!("{other:?}"), &["OnFailure", "Never"], p),
    }
}

fn validate_failure_policy(spec: &Cursor<'_>, rules: &Cursor<'_>, p: &mut Problems) {
    if rules.len() > MAX_RULES {
        p.too_many(rules, rules.len(), MAX_RULES);
    }
    let pod = spec.at("template").at("spec");
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod.at(list).items())
        .map(|c| c.at("name").str())
        .collect();
    for rule in rules.items() {
        let action = rule.at("action");
        match action.str() {
            "FailIndex" if !spec.at("backoffLimitPerIndex").exists() => {
                p.invalid(&action, "requires the backoffLimitPerIndex to be set");
            }
            "" => p.required(
                &action,
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            ),
            _ => p.one_of(&action, true, &["Count", "FailIndex", "FailJob", "Ignore"]),
        }
        let (codes, conditions) = (rule.at("onExitCodes"), rule.at("onPodConditions"));
        if codes.exists() {
            validate_exit_codes(&codes, &containers, p);
        }
        validate_pod_conditions(&conditions, p);
        let neither_nor_both = match (codes.exists(), !conditions.is_empty()) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        workload::invalid_whole(rule.path(), neither_nor_both, p);
    }
}

fn validate_exit_codes(codes: &Cursor<'_>, containers: &BTreeSet<&str>, p: &mut Problems) {
    let operator = codes.at("operator");
    match operator.str() {
        "" => p.required(&operator, "valid values: [\"In\" \"NotIn\"]"),
        _ => p.one_of(&operator, true, &["In", "NotIn"]),
    }
    let container = codes.at("containerName");
    if container.exists() && !containers.contains(container.str()) {
        p.invalid(
            &container,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let values = codes.at("values");
    match values.len() {
        0 => p.invalid(&values, "at least one value is required"),
        n if n > MAX_EXIT_CODES => p.too_many(&values, n, MAX_EXIT_CODES),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    let mut previous = i64::MIN;
    let mut ordered = true;
    for value in values.items() {
        let code = count(&value);
        if operator.str() == "In" && code == 0 {
            p.invalid(&value, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            p.duplicate(&value);
        }
        ordered &= previous <= code;
        previous = code;
    }
    if !ordered {
        p.invalid(&values, "must be ordered");
    }
}

fn validate_pod_conditions(conditions: &Cursor<'_>, p: &mut Problems) {
    if conditions.len() > MAX_POD_CONDITIONS {
        p.too_many(conditions, conditions.len(), MAX_POD_CONDITIONS);
    }
    for pattern in conditions.items() {
        let (kind, status) = (pattern.at("type"), pattern.at("status"));
        for message in names::qualified_name(kind.str()) {
            meta::invalid_text(&kind, message, p);
        }
        match status.str() {
            "" => p.required(&status, "valid values: [\"False\" \"True\" \"Unknown\"]"),
            _ => p.one_of(&status, true, &["False", "True", "Unknown"]),
        }
    }
}

fn validate_success_policy(spec: &Cursor<'_>, rules: &Cursor<'_>, p: &mut Problems) {
    match rules.len() {
        0 => p.required(
            rules,
            "at least one rules must be specified when the successPolicy is specified",
        ),
        n if n > MAX_RULES => p.too_many(rules, n, MAX_RULES),
        _ => {}
    }
    let completions = count(&spec.at("completions"));
    for rule in rules.items() {
        validate_success_rule(&rule, completions, p);
    }
}

fn validate_success_rule(rule: &Cursor<'_>, completions: i64, p: &mut Problems) {
    let (wanted, indexes) = (rule.at("succeededCount"), rule.at("succeededIndexes"));
    if !wanted.exists() && !indexes.exists() {
        p.required(
            rule,
            "at least one of succeededCount or succeededIndexes must be specified",
        );
    }
    let mut listed = 0;
    if indexes.exists() {
        if indexes.len() > MAX_SUCCEEDED_INDEXES_BYTES {
            p.too_long(&indexes, MAX_SUCCEEDED_INDEXES_BYTES);
        }
        match job_indexes::parse(indexes.str(), completions) {
            Ok(runs) => listed = job_indexes::total(&runs),
            Err(why) => p.invalid(&indexes, format!("error parsing succeededIndexes: {why}")),
        }
    }
    p.non_negative(&wanted);
    if count(&wanted) > completions {
        p.invalid(
            &wanted,
            format!("must be less than or equal to {completions} (the number of specified completions)"),
        );
    }
    if indexes.exists() && count(&wanted) > listed {
        p.invalid(
            &wanted,
            format!(
                "must be less than or equal to {listed} (the number of indexes in the specified succeededIndexes field)"
            ),
        );
    }
}

/// Advice on the template, and on very large indexed Jobs.
pub fn warnings(spec: &Cursor<'_>) -> Vec<String> {
    let mut out = vec![];
    if is_indexed(spec) && count(&spec.at("completions")) > MANY_COMPLETIONS && count(&spec.at("parallelism")) > MODEST
    {
        out.push(format!(
            "{}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            spec.path()
        ));
    }
    out.extend(pod_template::warnings(&spec.at("template")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn good() -> Value {
        let mut template = template();
        template["spec"]["restartPolicy"] = json!("Never");
        json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "template": template})
    }

    fn indexed() -> Value {
        with(
            &with(&good(), "/completionMode", json!("Indexed")),
            "/completions",
            json!(10),
        )
    }

    fn said(spec: &Value) -> String {
        found(|p| validate(&Cursor::root(spec), p)).join("\n")
    }

    #[test]
    fn plain_jobs() {
        assert_eq!(said(&good()), "");
        for (pointer, value, wanted) in [
            (
                "/parallelism",
                json!(-1),
                "parallelism: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/completions",
                json!(-1),
                "completions: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/backoffLimit",
                json!(-1),
                "backoffLimit: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/activeDeadlineSeconds",
                json!(-1),
                "activeDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/ttlSecondsAfterFinished",
                json!(-1),
                "ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/completionMode",
                json!("Sorted"),
                "completionMode: Unsupported value: \"Sorted\": supported values: \"NonIndexed\", \"Indexed\"",
            ),
            (
                "/backoffLimitPerIndex",
                json!(1),
                "backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            ),
            (
                "/maxFailedIndexes",
                json!(1),
                "backoffLimitPerIndex: Required value: when maxFailedIndexes is specified\nmaxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ),
            ("/managedBy", json!(""), "managedBy: Required value"),
            ("/managedBy", json!("acme.io/foo"), ""),
            (
                "/managedBy",
                json!("foo"),
                "managedBy: Invalid value: \"foo\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            ),
            (
                "/managedBy",
                json!("acme.io/a b"),
                "managedBy: Invalid value: \"a b\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
            ),
            (
                "/managedBy",
                json!(format!("acme.io/{}", "x".repeat(60))),
                "managedBy: Too long: may not be more than 63 bytes",
            ),
            (
                "/successPolicy",
                json!({"rules": []}),
                "successPolicy: Invalid value: {\"rules\":[]}: requires indexed completion mode",
            ),
            (
                "/podReplacementPolicy",
                json!("Never"),
                "podReplacementPolicy: Unsupported value: \"Never\": supported values: \"Failed\", \"TerminatingOrFailed\"",
            ),
            (
                "/template/spec/restartPolicy",
                json!("Always"),
                "template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ),
        ] {
            assert_eq!(said(&with(&good(), pointer, value)), wanted);
        }
    }

    #[test]
    fn indexed_jobs() {
        assert_eq!(said(&indexed()), "");
        let many = |more: Value| {
            let mut spec = with(&indexed(), "/completions", json!(100_001));
            spec["backoffLimitPerIndex"] = json!(1);
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let modest = "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index";
        for (spec, wanted) in [
            (
                with(&indexed(), "/completions", json!(null)),
                "completions: Required value: when completion mode is Indexed".to_string(),
            ),
            (
                with(&indexed(), "/parallelism", json!(100_001)),
                "parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed"
                    .to_string(),
            ),
            (
                with(&with(&indexed(), "/backoffLimitPerIndex", json!(1)), "/maxFailedIndexes", json!(11)),
                "maxFailedIndexes: Invalid value: 11: must be less than or equal to completions".to_string(),
            ),
            (
                many(json!({})),
                "maxFailedIndexes: Required value: must be specified when completions is above 100000".to_string(),
            ),
            (
                many(json!({"maxFailedIndexes": 1, "parallelism": 10_001})),
                format!("parallelism: Invalid value: 10001: {modest}"),
            ),
            (
                many(json!({"maxFailedIndexes": 10_001})),
                format!("maxFailedIndexes: Invalid value: 10001: {modest}"),
            ),
            (
                many(json!({"maxFailedIndexes": 100_001})),
                format!("maxFailedIndexes: Invalid value: 100001: must be less than or equal to 100000\nmaxFailedIndexes: Invalid value: 100001: {modest}"),
            ),
        ] {
            assert_eq!(said(&spec), wanted);
        }
        assert!(warnings(&Cursor::root(&indexed())).is_empty());
        assert_eq!(warnings(&Cursor::root(&many(json!({"parallelism": 10_001})))).len(), 1);
    }

    #[test]
    fn success_policies() {
        for (rules, wanted) in [
            (json!([{"succeededCount": 3, "succeededIndexes": "0-4"}]), ""),
            (
                json!([]),
                "successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
            ),
            (
                json!([{}]),
                "successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            ),
            (
                json!([{"succeededIndexes": "3,1"}]),
                "successPolicy.rules[0].succeededIndexes: Invalid value: \"3,1\": error parsing succeededIndexes: non-increasing order, previous: 3, current: 1",
            ),
            (
                json!([{"succeededCount": 11}]),
                "successPolicy.rules[0].succeededCount: Invalid value: 11: must be less than or equal to 10 (the number of specified completions)",
            ),
            (
                json!([{"succeededCount": 3, "succeededIndexes": "0-1"}]),
                "successPolicy.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
            ),
            (
                json!([{"succeededCount": -1}]),
                "successPolicy.rules[0].succeededCount: Invalid value: -1: must be greater than or equal to 0",
            ),
        ] {
            assert_eq!(
                said(&with(&indexed(), "/successPolicy", json!({"rules": rules}))),
                wanted
            );
        }
        let many = vec![json!({"succeededCount": 1}); 21];
        assert_eq!(
            said(&with(&indexed(), "/successPolicy", json!({"rules": many}))),
            "successPolicy.rules: Too many: 21: must have at most 20 items"
        );
    }

    #[test]
    fn failure_policies() {
        let codes = |value: Value| json!([{"action": "FailJob", "onExitCodes": value}]);
        let at = "podFailurePolicy.rules[0]";
        for (rules, wanted) in [
            (
                codes(json!({"operator": "In", "values": [1, 2], "containerName": "c"})),
                String::new(),
            ),
            (
                json!([{"action": "", "onPodConditions": [{"type": "A", "status": "True"}]}]),
                format!("{at}.action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
            ),
            (
                json!([{"action": "FailIndex", "onPodConditions": [{"type": "A", "status": "True"}]}]),
                format!("{at}.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"),
            ),
            (
                json!([{"action": "Fail", "onPodConditions": [{"type": "A", "status": "True"}]}]),
                format!(
                    "{at}.action: Unsupported value: \"Fail\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\""
                ),
            ),
            (
                json!([{"action": "Count"}]),
                format!("{at}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required"),
            ),
            (
                json!([{"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0]}, "onPodConditions": [{"type": "A", "status": "True"}]}]),
                format!("{at}: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"),
            ),
            (
                json!([{"action": "Count", "onPodConditions": [{"type": "A", "status": "Maybe"}]}]),
                format!(
                    "{at}.onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\""
                ),
            ),
            (
                codes(json!({"values": [1]})),
                format!("{at}.onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]"),
            ),
            (
                codes(json!({"operator": "Near", "values": [1]})),
                format!("{at}.onExitCodes.operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\""),
            ),
            (
                codes(json!({"operator": "In", "values": [1], "containerName": "x"})),
                format!(
                    "{at}.onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template"
                ),
            ),
            (
                codes(json!({"operator": "In", "values": []})),
                format!("{at}.onExitCodes.values: Invalid value: []: at least one value is required"),
            ),
            (
                codes(json!({"operator": "In", "values": [0]})),
                format!("{at}.onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator"),
            ),
            (
                codes(json!({"operator": "In", "values": [2, 1, 1]})),
                format!(
                    "{at}.onExitCodes.values[2]: Duplicate value: 1\n{at}.onExitCodes.values: Invalid value: [2,1,1]: must be ordered"
                ),
            ),
        ] {
            assert_eq!(
                said(&with(&good(), "/podFailurePolicy", json!({"rules": rules}))),
                wanted
            );
        }
        let policy = json!({"rules": codes(json!({"operator": "In", "values": [1]}))});
        let mut spec = with(&good(), "/podFailurePolicy", policy);
        spec["template"]["spec"]["restartPolicy"] = json!("OnFailure");
        spec["podReplacementPolicy"] = json!("TerminatingOrFailed");
        assert_eq!(
            said(&spec),
            "podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"\ntemplate.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is specified"
        );
    }

    #[test]
    fn patterns_default_to_true() {
        let mut spec =
            json!({"podFailurePolicy": {"rules": [{"action": "Count", "onPodConditions": [{"type": "A"}]}]}});
        default(&mut spec);
        assert_eq!(
            spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"],
            "True"
        );
    }
}
