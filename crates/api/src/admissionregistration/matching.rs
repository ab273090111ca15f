//! Which requests a webhook or a policy looks at: rules, selectors, match conditions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::{fill, meta, names};

/// Fills in the scope of each rule of a list.
pub(super) fn default_rules(object: &mut Value, list: &str) {
    for rule in fill::items(object, list) {
        fill::absent(rule, "scope", "*");
    }
}

/// Fills in what webhooks and `MatchResources` have in common.
pub(super) fn default_selectors(object: &mut Value) {
    fill::absent(object, "matchPolicy", "Equivalent");
    fill::absent(object, "namespaceSelector", json!({}));
    fill::absent(object, "objectSelector", json!({}));
}

/// Fills in a `MatchResources`.
pub(super) fn default_resources(resources: &mut Value) {
    default_selectors(resources);
    default_rules(resources, "resourceRules");
    default_rules(resources, "excludeResourceRules");
}

fn wildcard_alone(list: &Cursor<'_>, others: &str, p: &mut Problems) {
    if list.len() > 1 && list.items().any(|item| item.str() == "*") {
        p.invalid(list, format!("if '*' is present, must not specify other {others}"));
    }
}

fn at_least_one(list: &Cursor<'_>, p: &mut Problems) {
    if list.is_empty() {
        p.required(list, "");
    }
}

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

pub(super) fn validate_rule(rule: &Cursor<'_>, p: &mut Problems) {
    let operations = rule.at("operations");
    at_least_one(&operations, p);
    wildcard_alone(&operations, "operations", p);
    for operation in operations.items().filter(|o| !OPERATIONS.contains(&o.str())) {
        p.not_supported(&operation, OPERATIONS);
    }
    let (groups, versions) = (rule.at("apiGroups"), rule.at("apiVersions"));
    at_least_one(&groups, p);
    wildcard_alone(&groups, "API groups", p);
    at_least_one(&versions, p);
    wildcard_alone(&versions, "API versions", p);
    for version in versions.items().filter(Cursor::is_empty) {
        p.required(&version, "");
    }
    validate_resources(&rule.at("resources"), p);
    p.one_of(&rule.at("scope"), false, &["*", "Cluster", "Namespaced"]);
}

/// `pods`, `pods/log`, `pods/*`, `*/scale`, `*`, `*/*`: none may be covered by one before it.
fn validate_resources(resources: &Cursor<'_>, p: &mut Problems) {
    at_least_one(resources, p);
    let (mut whole, mut everywhere) = (BTreeSet::new(), BTreeSet::new());
    let mut last_plain_is_named = false;
    for item in resources.items() {
        if item.is_empty() {
            p.required(&item, "");
            continue;
        }
        let Some((resource, sub)) = item.str().split_once('/') else {
            last_plain_is_named = item.str() != "*";
            continue;
        };
        if whole.contains(resource) {
            p.invalid(
                &item,
                format!("if '{resource}/*' is present, must not specify {}", item.str()),
            );
        }
        if everywhere.contains(sub) {
            p.invalid(
                &item,
                format!("if '*/{sub}' is present, must not specify {}", item.str()),
            );
        }
        if sub == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(sub);
        }
    }
    let has = |wanted: &str| resources.items().any(|item| item.str() == wanted);
    if resources.len() > 1 && has("*/*") {
        p.invalid(resources, "if '*/*' is present, must not specify other resources");
    }
    if has("*") && last_plain_is_named {
        let detail = "if '*' is present, must not specify other resources without subresources";
        p.invalid(resources, detail);
    }
}

/// A `MatchResources`, if there is one.
pub(super) fn validate_match_resources(resources: &Cursor<'_>, p: &mut Problems) {
    if !resources.exists() {
        return;
    }
    p.one_of(&resources.at("matchPolicy"), true, &["Equivalent", "Exact"]);
    for selector in [resources.at("namespaceSelector"), resources.at("objectSelector")] {
        match selector.exists() {
            true => meta::validate_label_selector(&selector, p),
            false => p.required(&selector, ""),
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in resources.at(list).items() {
            let mut seen = BTreeSet::new();
            for name in rule.at("resourceNames").items() {
                p.invalid_each(&name, names::path_segment(name.str()));
                if !seen.insert(name.str()) {
                    p.duplicate(&name);
                }
            }
            validate_rule(&rule, p);
        }
    }
}

/// A policy that changes objects has nothing to say about their deletion.
pub(super) fn validate_mutating_operations(resources: &Cursor<'_>, p: &mut Problems) {
    let rules = resources.at("resourceRules");
    let path = rules.path().field("operations");
    for operation in rules.items().flat_map(|rule| rule.at("operations").items()) {
        let allowed = ["*", "CONNECT", "CREATE", "UPDATE"];
        if !allowed.contains(&operation.str()) {
            p.not_supported(&Cursor::new(operation.value(), path.clone()), &allowed);
        }
    }
}

const CONDITIONS_MAX: usize = 64;

pub(super) fn validate_conditions(conditions: &Cursor<'_>, p: &mut Problems) {
    if conditions.len() > CONDITIONS_MAX {
        p.too_many(conditions, conditions.len(), CONDITIONS_MAX);
    }
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let (name, expression) = (condition.at("name"), condition.at("expression"));
        if expression.str().trim().is_empty() {
            p.required(&expression, "");
        }
        if name.is_empty() {
            p.required(&name, "");
        } else {
            p.invalid_each(&name, names::qualified_name(name.str()));
            if !seen.insert(name.str()) {
                p.duplicate(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;
    use crate::kind_check::merged;

    fn check(validate: fn(&Cursor<'_>, &mut Problems), object: &Value) -> String {
        let mut p = Problems::default();
        validate(&Cursor::root(object), &mut p);
        p.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn rules() {
        let base = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"});
        for (patch, wanted) in [
            (json!({}), ""),
            (json!({"operations": null}), "operations: Required value"),
            (
                json!({"operations": ["*", "CREATE"]}),
                r#"operations: Invalid value: ["*","CREATE"]: if '*' is present, must not specify other operations"#,
            ),
            (
                json!({"operations": ["READ"]}),
                r#"operations[0]: Unsupported value: "READ": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE""#,
            ),
            (json!({"apiGroups": null}), "apiGroups: Required value"),
            (
                json!({"apiGroups": ["*", "a"]}),
                r#"apiGroups: Invalid value: ["*","a"]: if '*' is present, must not specify other API groups"#,
            ),
            (json!({"apiVersions": [""]}), "apiVersions[0]: Required value"),
            (
                json!({"apiVersions": ["*", "v1"]}),
                r#"apiVersions: Invalid value: ["*","v1"]: if '*' is present, must not specify other API versions"#,
            ),
            (json!({"resources": null}), "resources: Required value"),
            (json!({"resources": ["pods/*", "*/scale", "*"]}), ""),
            (
                json!({"resources": ["pods/*", "pods/log"]}),
                r#"resources[1]: Invalid value: "pods/log": if 'pods/*' is present, must not specify pods/log"#,
            ),
            (
                json!({"resources": ["*/scale", "pods/scale"]}),
                r#"resources[1]: Invalid value: "pods/scale": if '*/scale' is present, must not specify pods/scale"#,
            ),
            (
                json!({"resources": ["pods", "*/*"]}),
                r#"resources: Invalid value: ["pods","*/*"]: if '*/*' is present, must not specify other resources"#,
            ),
            (
                json!({"resources": ["*", "pods"]}),
                r#"resources: Invalid value: ["*","pods"]: if '*' is present, must not specify other resources without subresources"#,
            ),
            (
                json!({"scope": "Zone"}),
                r#"scope: Unsupported value: "Zone": supported values: "*", "Cluster", "Namespaced""#,
            ),
        ] {
            assert_eq!(check(validate_rule, &merged(&base, &patch)), wanted, "{patch}");
        }
    }

    #[test]
    fn resources_and_conditions() {
        let mut filled = json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "resourceNames": ["a", "a"]}]});
        assert_eq!(
            check(validate_match_resources, &json!({})),
            "matchPolicy: Required value; namespaceSelector: Required value; objectSelector: Required value"
        );
        default_resources(&mut filled);
        assert_eq!(filled["resourceRules"][0]["scope"], "*");
        assert_eq!(
            check(validate_match_resources, &filled),
            r#"resourceRules[0].resourceNames[1]: Duplicate value: "a""#
        );
        assert_eq!(
            check(
                validate_mutating_operations,
                &json!({"resourceRules": [{"operations": ["DELETE"]}]})
            ),
            r#"resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE""#
        );
        for (list, wanted) in [
            (json!([{"name": "a", "expression": "true"}]), ""),
            (
                json!([{"name": "a", "expression": " "}]),
                "[0].expression: Required value",
            ),
            (json!([{"expression": "true"}]), "[0].name: Required value"),
            (
                json!([{"name": "a", "expression": "true"}, {"name": "a", "expression": "true"}]),
                r#"[1].name: Duplicate value: "a""#,
            ),
        ] {
            assert_eq!(check(validate_conditions, &list), wanted, "{list}");
        }
        let many: Vec<Value> = (0..65)
            .map(|i| json!({"name": format!("c{i}"), "expression": "true"}))
            .collect();
        assert_eq!(
            check(validate_conditions, &many.into()),
            "<nil>: Too many: 65: must have at most 64 items"
        );
    }
}
