//! FlowSchema: which requests belong to which priority level.
//!
//! Upstream: pkg/apis/flowcontrol/{v1/defaults.go,validation}, pkg/registry/flowcontrol/flowschema (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use super::standard;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource};
use crate::printing::{age, int, text, text_or_none};
use crate::{fill, names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "FlowSchema",
    plural: "flowschemas",
    singular: "flowschema",
    namespaced: false,
    schema: "flowcontrol/v1.FlowSchema",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("PriorityLevel"),
        Column::string("MatchingPrecedence"),
        Column::string("DistinguisherMethod"),
        Column::AGE,
        Column::string("MissingPL"),
    ],
    cells,
    default: |schema| {
        let spec = fill::member(schema, "spec");
        if int(spec, "/matchingPrecedence") == 0 {
            spec["matchingPrecedence"] = 1000.into();
        }
    },
    validate,
    validate_status: |new, _, p| super::validate_conditions(&new.at("status").at("conditions"), p),
    generation: true,
    ..KindDef::BASE
};

const PRECEDENCE_MAX: i64 = 10000;

fn validate(schema: &Cursor<'_>, p: &mut Problems) {
    let (name, spec) = (schema.at("metadata").at("name").str(), schema.at("spec"));
    let precedence = spec.at("matchingPrecedence");
    match precedence.as_i64().unwrap_or(0) {
        ..=0 => p.invalid(&precedence, "must be a positive value"),
        1 if name != "exempt" => {
            p.invalid(
                &precedence,
                "only the schema named 'exempt' may have matchingPrecedence 1",
            );
        }
        n if n > PRECEDENCE_MAX => p.invalid(&precedence, format!("must not be greater than {PRECEDENCE_MAX}")),
        _ => {}
    }
    let method = spec.at("distinguisherMethod");
    if method.exists() && !["ByUser", "ByNamespace"].contains(&method.at("type").str()) {
        p.not_supported(&method.at("type"), &["ByUser", "ByNamespace"]);
    }
    let level = spec.at("priorityLevelConfiguration").at("name");
    if level.is_empty() {
        p.required(&level, "must reference a priority level");
    } else {
        p.invalid_each(&level, names::dns_subdomain(level.str()));
    }
    for rule in spec.at("rules").items() {
        validate_rule(&rule, p);
    }
    if let Some(fixed) = standard::mandatory_flow_schema(name)
        && spec.value() != fixed.get("spec")
    {
        p.invalid(&spec, format!("spec of '{name}' must equal the fixed value"));
    }
    super::validate_conditions(&schema.at("status").at("conditions"), p);
}

fn validate_rule(rule: &Cursor<'_>, p: &mut Problems) {
    let subjects = rule.at("subjects");
    if subjects.is_empty() {
        p.required(&subjects, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        validate_subject(&subject, p);
    }
    let (resources, others) = (rule.at("resourceRules"), rule.at("nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        p.required(
            rule,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        );
    }
    for rule in resources.items() {
        validate_resource_rule(&rule, p);
    }
    for rule in others.items() {
        validate_url_rule(&rule, p);
    }
}

/// A subject names exactly the one thing that its kind says.
fn validate_subject(subject: &Cursor<'_>, p: &mut Problems) {
    const KINDS: [(&str, &str); 3] = [
        ("serviceAccount", "ServiceAccount"),
        ("user", "User"),
        ("group", "Group"),
    ];
    let kind = subject.at("kind");
    if !KINDS.iter().any(|(_, k)| *k == kind.str()) {
        return p.not_supported(&kind, &["Group", "ServiceAccount", "User"]);
    }
    for (field, wanted) in KINDS {
        let of = subject.at(field);
        match (wanted == kind.str(), of.exists()) {
            (true, false) => p.required(&of, format!("{field} is required when subject kind is '{wanted}'")),
            (false, true) => p.forbidden(&of, format!("{field} is forbidden when subject kind is not '{wanted}'")),
            (true, true) => validate_named(&of, wanted, p),
            (false, false) => {}
        }
    }
}

fn validate_named(of: &Cursor<'_>, kind: &str, p: &mut Problems) {
    let (name, namespace) = (of.at("name"), of.at("namespace"));
    if name.is_empty() {
        p.required(&name, "");
    }
    if kind != "ServiceAccount" {
        return;
    }
    if name.str() != "*" {
        rules::optional(&name, names::dns_subdomain, p);
    }
    if namespace.is_empty() {
        p.required(&namespace, "must specify namespace for service account");
    } else {
        p.invalid_each(&namespace, names::dns_label(namespace.str()));
    }
}

const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];

fn has_wildcard(list: &Cursor<'_>) -> bool {
    list.items().any(|item| item.str() == "*")
}

/// At least one value; a wildcard stands alone. True if there are plain values to look at.
fn validate_list(list: &Cursor<'_>, none: &str, others: &str, p: &mut Problems) -> bool {
    if list.is_empty() {
        p.required(list, none);
        return false;
    }
    if has_wildcard(list) {
        if list.len() > 1 {
            p.invalid(list, format!("if '*' is present, must not specify other {others}"));
        }
        return false;
    }
    true
}

fn validate_verbs(verbs: &Cursor<'_>, p: &mut Problems) {
    let plain = validate_list(verbs, "verbs must contain at least one value", "verbs", p);
    if plain && verbs.items().any(|v| !VERBS.contains(&v.str())) {
        p.not_supported(verbs, VERBS);
    }
}

fn validate_resource_rule(rule: &Cursor<'_>, p: &mut Problems) {
    validate_verbs(&rule.at("verbs"), p);
    let none = "resource rules must supply at least one api group";
    validate_list(&rule.at("apiGroups"), none, "api groups", p);
    let none = "resource rules must supply at least one resource";
    validate_list(&rule.at("resources"), none, "resources", p);
    let namespaces = rule.at("namespaces");
    if namespaces.is_empty() && rule.at("clusterScope").is_true() {
        return;
    }
    let none = "resource rules that are not cluster scoped must supply at least one namespace";
    if validate_list(&namespaces, none, "namespaces", p) {
        for namespace in namespaces.items() {
            for message in names::dns_label(namespace.str()) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {message}");
                p.invalid(&namespace, detail);
            }
        }
    }
}

fn validate_url_rule(rule: &Cursor<'_>, p: &mut Problems) {
    validate_verbs(&rule.at("verbs"), p);
    let urls = rule.at("nonResourceURLs");
    let none = "nonResourceURLs must contain at least one value";
    if validate_list(&urls, none, "non-resource URLs", p) {
        for url in urls.items() {
            if let Some(complaint) = url_complaint(url.str()) {
                p.invalid(&url, complaint);
            }
        }
    }
}

fn url_complaint(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !path.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

fn cells(schema: &Value, now: Timestamp) -> Vec<Value> {
    let conditions = schema.pointer("/status/conditions").and_then(Value::as_array);
    let dangling = conditions
        .into_iter()
        .flatten()
        .find(|c| text(c, "/type") == "Dangling");
    vec![
        text(schema, "/spec/priorityLevelConfiguration/name").into(),
        int(schema, "/spec/matchingPrecedence").into(),
        text_or_none(schema, "/spec/distinguisherMethod/type"),
        age(schema, now),
        dangling.map_or("?", |c| text(c, "/status")).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, row, status_problems};
    use serde_json::json;

    fn schema() -> Value {
        json!({"metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": "l"}, "rules": [rule(json!({}))]}})
    }

    fn rule(patch: Value) -> Value {
        let base = json!({"subjects": [{"kind": "User", "user": {"name": "ann"}}], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/healthz", "/a/*"]}],
            "resourceRules": [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]});
        merged(&base, &patch)
    }

    fn with(patch: Value) -> Value {
        json!({"spec": {"rules": [rule(patch)]}})
    }

    #[test]
    fn schemas_are_checked() {
        let resource = |patch: Value| {
            let base = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["a"]});
            with(json!({"resourceRules": [merged(&base, &patch)]}))
        };
        let url = |path: &str| with(json!({"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [path]}]}));
        let subject = |s: Value| with(json!({"subjects": [s]}));
        assert_eq!(defaulted(&DEF, schema())["spec"]["matchingPrecedence"], 1000);
        refuses(
            &DEF,
            &schema(),
            &[
                (
                    json!({"spec": {"matchingPrecedence": -1}}),
                    "spec.matchingPrecedence: Invalid value: -1: must be a positive value",
                ),
                (
                    json!({"spec": {"matchingPrecedence": 10001}}),
                    "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000",
                ),
                (
                    json!({"spec": {"matchingPrecedence": 1}}),
                    "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                ),
                (
                    json!({"spec": {"distinguisherMethod": {"type": "ByPod"}}}),
                    r#"spec.distinguisherMethod.type: Unsupported value: "ByPod": supported values: "ByNamespace", "ByUser""#,
                ),
                (
                    json!({"spec": {"priorityLevelConfiguration": null}}),
                    "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                ),
                (
                    with(json!({"subjects": []})),
                    "spec.rules[0].subjects: Required value: subjects must contain at least one value",
                ),
                (
                    with(json!({"resourceRules": null, "nonResourceRules": null})),
                    "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
                ),
                (
                    subject(json!({"kind": "Pod"})),
                    r#"spec.rules[0].subjects[0].kind: Unsupported value: "Pod": supported values: "Group", "ServiceAccount", "User""#,
                ),
                (
                    subject(json!({"kind": "User"})),
                    "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
                ),
                (
                    subject(json!({"kind": "Group", "group": {}})),
                    "spec.rules[0].subjects[0].group.name: Required value",
                ),
                (
                    subject(json!({"kind": "Group", "group": {"name": "a"}, "user": {"name": "a"}})),
                    "spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'",
                ),
                (
                    subject(json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*"}})),
                    "spec.rules[0].subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account",
                ),
                (
                    resource(json!({"verbs": null})),
                    "spec.rules[0].resourceRules[0].verbs: Required value: verbs must contain at least one value",
                ),
                (
                    resource(json!({"verbs": ["*", "get"]})),
                    r#"spec.rules[0].resourceRules[0].verbs: Invalid value: ["*","get"]: if '*' is present, must not specify other verbs"#,
                ),
                (
                    resource(json!({"verbs": ["see"]})),
                    r#"spec.rules[0].resourceRules[0].verbs: Unsupported value: ["see"]: supported values: "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch""#,
                ),
                (
                    resource(json!({"apiGroups": null})),
                    "spec.rules[0].resourceRules[0].apiGroups: Required value: resource rules must supply at least one api group",
                ),
                (
                    resource(json!({"resources": ["*", "pods"]})),
                    r#"spec.rules[0].resourceRules[0].resources: Invalid value: ["*","pods"]: if '*' is present, must not specify other resources"#,
                ),
                (
                    resource(json!({"namespaces": null})),
                    "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
                ),
                (
                    resource(json!({"namespaces": ["a.b"]})),
                    r#"spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: "a.b": each member of this list must be '*' or a DNS-1123 label; must not contain dots"#,
                ),
                (
                    with(json!({"nonResourceRules": [{"verbs": ["*"]}]})),
                    "spec.rules[0].nonResourceRules[0].nonResourceURLs: Required value: nonResourceURLs must contain at least one value",
                ),
                (
                    url("a"),
                    r#"spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "a": must start with slash"#,
                ),
                (
                    url("/a*"),
                    r#"spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "/a*": wildcard can only do suffix matching"#,
                ),
            ],
        );
        assert!(
            create_problems(
                &DEF,
                merged(&schema(), &resource(json!({"namespaces": null, "clusterScope": true})))
            )
            .is_empty()
        );
    }

    #[test]
    fn the_mandatory_ones_are_fixed() {
        for fixed in standard::flow_schemas() {
            assert!(create_problems(&DEF, fixed.clone()).is_empty(), "{fixed}");
            assert_eq!(defaulted(&DEF, fixed.clone()), fixed);
        }
        let other = merged(&schema(), &json!({"metadata": {"name": "catch-all"}}));
        let problems = create_problems(&DEF, other);
        assert!(
            problems[0].ends_with("spec of 'catch-all' must equal the fixed value"),
            "{problems:?}"
        );
    }

    #[test]
    fn rows_and_status() {
        let with = |kinds: &[&str]| {
            let list: Vec<Value> = kinds.iter().map(|k| json!({"type": k, "status": "False"})).collect();
            merged(&schema(), &json!({"status": {"conditions": list}}))
        };
        assert_eq!(row(&DEF, &defaulted(&DEF, schema())), "l|1000|<none>|<unknown>|?");
        assert_eq!(row(&DEF, &with(&["Dangling"])), "l|0|<none>|<unknown>|False");
        assert!(status_problems(&DEF, with(&["A", "B"]), schema()).is_empty());
        assert_eq!(
            status_problems(&DEF, with(&["A", "A"]), schema()),
            [r#"status.conditions[1].type: Duplicate value: "A""#]
        );
        assert_eq!(
            status_problems(&DEF, with(&[""]), schema()),
            ["status.conditions[0].type: Required value"]
        );
    }
}
