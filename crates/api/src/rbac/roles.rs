//! Role and ClusterRole.
//!
//! Upstream: pkg/apis/rbac/validation, pkg/registry/rbac/{role,clusterrole} (v1.36). That nobody grants more than they
//! have is checked where the request's user is known, in the API server.

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::text;
use crate::{meta, names};

pub const ROLE: KindDef = KindDef {
    group: super::GROUP,
    kind: "Role",
    plural: "roles",
    singular: "role",
    schema: "rbac/v1.Role",
    columns: CREATED_AT,
    cells: created_at,
    name_rule: names::path_segment,
    validate: |role, p| validate_rules(&role.at("rules"), true, p),
    create_on_update: true,
    ..KindDef::BASE
};

pub const CLUSTER_ROLE: KindDef = KindDef {
    kind: "ClusterRole",
    plural: "clusterroles",
    singular: "clusterrole",
    namespaced: false,
    schema: "rbac/v1.ClusterRole",
    validate: validate_cluster_role,
    ..ROLE
};

const CREATED_AT: &[Column] = &[Column::CREATED_AT];

fn created_at(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![text(object, "/metadata/creationTimestamp").into()]
}

fn validate_cluster_role(role: &Cursor<'_>, p: &mut Problems) {
    validate_rules(&role.at("rules"), false, p);
    let aggregation = role.at("aggregationRule");
    if !aggregation.exists() {
        return;
    }
    let selectors = aggregation.at("clusterRoleSelectors");
    if selectors.is_empty() {
        p.required(
            &selectors,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        );
    }
    for selector in selectors.items() {
        let before = p.count();
        meta::validate_label_selector(&selector, p);
        if p.count() > before {
            p.invalid_value(selector.path(), &Value::Null, "invalid label selector.");
        }
    }
}

fn validate_rules(rules: &Cursor<'_>, namespaced: bool, p: &mut Problems) {
    for rule in rules.items() {
        if rule.at("verbs").is_empty() {
            p.required(&rule.at("verbs"), "verbs must contain at least one value");
        }
        let urls = rule.at("nonResourceURLs");
        if !urls.is_empty() {
            if namespaced {
                p.invalid(&urls, "namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"]
                .into_iter()
                .any(|f| !rule.at(f).is_empty())
            {
                p.invalid(
                    &urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if rule.at("apiGroups").is_empty() {
            p.required(
                &rule.at("apiGroups"),
                "resource rules must supply at least one api group",
            );
        }
        if rule.at("resources").is_empty() {
            p.required(
                &rule.at("resources"),
                "resource rules must supply at least one resource",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, refuses, row};
    use serde_json::json;

    #[test]
    fn rules_are_checked() {
        let base = json!({"metadata": {"name": "r"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        refuses(
            &ROLE,
            &base,
            &[
                (
                    json!({"rules": [{"apiGroups": [""], "resources": ["pods"]}]}),
                    "rules[0].verbs: Required value: verbs must contain at least one value",
                ),
                (
                    json!({"rules": [{"verbs": ["get"], "resources": ["pods"]}]}),
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                ),
                (
                    json!({"rules": [{"verbs": ["get"], "apiGroups": [""]}]}),
                    "rules[0].resources: Required value: resource rules must supply at least one resource",
                ),
                (
                    json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]}),
                    r#"rules[0].nonResourceURLs: Invalid value: ["/healthz"]: namespaced rules cannot apply to non-resource URLs"#,
                ),
            ],
        );
        refuses(
            &CLUSTER_ROLE,
            &json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]}),
            &[
                (
                    json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["pods"]}]}),
                    r#"rules[0].nonResourceURLs: Invalid value: ["/a"]: rules cannot apply to both regular resources and non-resource URLs"#,
                ),
                (
                    json!({"aggregationRule": {}}),
                    "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil",
                ),
            ],
        );
        let aggregated = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
        assert!(create_problems(&CLUSTER_ROLE, aggregated).is_empty());
        assert!(create_problems(&ROLE, json!({})).is_empty());
    }

    #[test]
    fn roles_show_when_they_were_made() {
        let role = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(row(&ROLE, &role), "2026-01-01T00:00:00Z");
    }
}
