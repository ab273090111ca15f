//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::matching;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource};
use crate::printing::{age, text};
use crate::{fill, meta, names, rules};

pub const VALIDATING: KindDef = KindDef {
    kind: "ValidatingAdmissionPolicy",
    plural: "validatingadmissionpolicies",
    singular: "validatingadmissionpolicy",
    schema: "admissionregistration/v1.ValidatingAdmissionPolicy",
    subresources: &[Subresource::STATUS],
    columns: &[Column::integer("Validations"), Column::string("ParamKind"), Column::AGE],
    cells: |policy, now| cells(policy, "validations", now),
    default,
    validate: validate_validating,
    validate_status,
    ..super::BASE
};

pub const MUTATING: KindDef = KindDef {
    kind: "MutatingAdmissionPolicy",
    plural: "mutatingadmissionpolicies",
    singular: "mutatingadmissionpolicy",
    schema: "admissionregistration/v1.MutatingAdmissionPolicy",
    columns: &[Column::integer("Mutations"), Column::string("ParamKind"), Column::AGE],
    cells: |policy, now| cells(policy, "mutations", now),
    default,
    validate: validate_mutating,
    ..super::BASE
};

fn default(policy: &mut Value) {
    let spec = fill::member(policy, "spec");
    fill::absent(spec, "failurePolicy", "Fail");
    if let Some(constraints) = spec.get_mut("matchConstraints") {
        matching::default_resources(constraints);
    }
}

/// What both kinds of policy have.
fn validate_common(spec: &Cursor<'_>, mutating: bool, p: &mut Problems) {
    p.one_of(&spec.at("failurePolicy"), true, &["Fail", "Ignore"]);
    let kind = spec.at("paramKind");
    if kind.exists() {
        validate_param_kind(&kind, p);
    }
    let constraints = spec.at("matchConstraints");
    if constraints.exists() {
        matching::validate_match_resources(&constraints, p);
        if constraints.at("resourceRules").is_empty() {
            p.required(&constraints.at("resourceRules"), "");
        }
        if mutating {
            matching::validate_mutating_operations(&constraints, p);
        }
    } else {
        p.required(&constraints, "");
    }
    matching::validate_conditions(&spec.at("matchConditions"), p);
    for variable in spec.at("variables").items() {
        let (name, expression) = (variable.at("name"), variable.at("expression"));
        if name.str().trim().is_empty() {
            p.required(&name, "name is not specified");
        } else if !is_cel_identifier(name.str()) {
            p.invalid(&name, "must be a valid CEL identifier");
        }
        if expression.str().trim().is_empty() {
            p.required(&expression, "expression is not specified");
        }
    }
}

fn is_cel_identifier(name: &str) -> bool {
    const RESERVED: &[&str] = &[
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "namespace",
        "null",
        "package",
        "return",
        "true",
        "var",
        "void",
        "while",
    ];
    let word = name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
    word && !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && !RESERVED.contains(&name)
}

fn validate_param_kind(kind: &Cursor<'_>, p: &mut Problems) {
    let version = kind.at("apiVersion");
    let parts: Vec<&str> = version.str().split('/').collect();
    match parts.as_slice() {
        [""] => p.required(&version, ""),
        [name] => validate_version(&version, name, p),
        [group, name] => {
            let complaints = names::dns_subdomain(group);
            if !group.is_empty() && !complaints.is_empty() {
                p.invalid_value(version.path(), &(*group).into(), complaints.join(","));
            }
            validate_version(&version, name, p);
        }
        _ => p.invalid(&version, format!("unexpected GroupVersion string: {}", version.str())),
    }
    let name = kind.at("kind");
    let complaints = names::dns_1035_label(&name.str().to_lowercase());
    if name.is_empty() {
        p.required(&name, "");
    } else if !complaints.is_empty() {
        let detail = format!(
            "may have mixed case, but should otherwise match: {}",
            complaints.join(",")
        );
        p.invalid(&name, detail);
    }
}

fn validate_version(c: &Cursor<'_>, version: &str, p: &mut Problems) {
    let complaints = names::dns_1035_label(version);
    if version.is_empty() {
        p.invalid(c, "version must be specified");
    } else if !complaints.is_empty() {
        p.invalid_value(c.path(), &version.into(), complaints.join(","));
    }
}

fn validate_validating(policy: &Cursor<'_>, p: &mut Problems) {
    let spec = policy.at("spec");
    validate_common(&spec, false, p);
    let (validations, annotations) = (spec.at("validations"), spec.at("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        p.required(&validations, detail);
        p.required(&annotations, detail);
    }
    for validation in validations.items() {
        validate_validation(&validation, p);
    }
    validate_annotations(policy.at("metadata").at("name").str(), &annotations, p);
}

fn validate_validation(validation: &Cursor<'_>, p: &mut Problems) {
    let (expression, message) = (validation.at("expression"), validation.at("message"));
    if expression.str().trim().is_empty() {
        p.required(&expression, "expression is not specified");
    }
    for field in ["messageExpression", "message"] {
        let c = validation.at(field);
        if !c.is_empty() && c.str().trim().is_empty() {
            p.invalid(&c, "must be non-empty if specified");
        }
    }
    if message.str().trim().contains(['\n', '\r']) {
        p.invalid(&message, "must not contain line breaks");
    }
    let reason = validation.at("reason");
    if reason.exists() && !REASONS.contains(&reason.str()) {
        p.not_supported(&reason, REASONS);
    }
}

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];
const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_BYTES_MAX: usize = 5 << 10;

fn validate_annotations(policy: &str, annotations: &Cursor<'_>, p: &mut Problems) {
    if annotations.len() > ANNOTATIONS_MAX {
        p.invalid(
            annotations,
            format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations"),
        );
    }
    let mut seen = BTreeSet::new();
    for annotation in annotations.items() {
        let (key, value) = (annotation.at("key"), annotation.at("valueExpression"));
        if policy.is_empty() {
            p.invalid(&rules::as_text(&key), "requires metadata.name be non-empty");
        } else {
            let full = format!("{policy}/{}", key.str());
            for message in names::qualified_name(&full) {
                p.invalid_value(key.path(), &full.as_str().into(), message);
            }
        }
        match value.str().trim().len() {
            0 => p.required(&value, "valueExpression is not specified"),
            n if n > ANNOTATION_BYTES_MAX => {
                p.required(
                    &value,
                    format!("must not exceed {ANNOTATION_BYTES_MAX} bytes in length"),
                );
            }
            _ => {}
        }
        if !seen.insert(key.str()) {
            p.duplicate(&rules::as_text(&key));
        }
    }
}

fn validate_mutating(policy: &Cursor<'_>, p: &mut Problems) {
    let spec = policy.at("spec");
    validate_common(&spec, true, p);
    let mutations = spec.at("mutations");
    if mutations.is_empty() {
        p.required(&mutations, "mutations must contain at least one item");
    }
    for mutation in mutations.items() {
        validate_mutation(&mutation, p);
    }
    p.one_of(&spec.at("reinvocationPolicy"), true, &["IfNeeded", "Never"]);
}

/// A mutation has the one patch that its type says.
fn validate_mutation(mutation: &Cursor<'_>, p: &mut Problems) {
    let kind = mutation.at("patchType");
    let (wanted, other) = match kind.str() {
        "" => return p.required(&kind, ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => return p.not_supported(&kind, &["ApplyConfiguration", "JSONPatch"]),
    };
    let (wanted, other) = (mutation.at(wanted), mutation.at(other));
    if !wanted.exists() {
        p.required(&wanted, format!("must be specified when patchType is {}", kind.str()));
    } else if wanted.at("expression").str().trim().is_empty() {
        p.required(&wanted.at("expression"), "");
    }
    if other.exists() {
        let name = if kind.str() == "JSONPatch" {
            "{applyConfiguration}"
        } else {
            "{jsonPatch}"
        };
        let detail = format!("must not be specified when patchType is {}", kind.str());
        p.invalid_value(other.path(), &name.into(), detail);
    }
}

fn validate_status(new: &Cursor<'_>, _: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    for warning in status.at("typeChecking").at("expressionWarnings").items() {
        for field in ["warning", "fieldRef"] {
            if warning.at(field).str().trim().is_empty() {
                p.required(&warning.at(field), "");
            }
        }
    }
    meta::validate_conditions(&status.at("conditions"), p);
}

fn cells(policy: &Value, list: &'static str, now: Timestamp) -> Vec<Value> {
    let kind = match policy.pointer("/spec/paramKind") {
        Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
        None => "<unset>".to_string(),
    };
    vec![
        Cursor::root(policy).at("spec").at(list).len().into(),
        kind.into(),
        age(policy, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, row, status_problems};
    use serde_json::json;

    fn common() -> Value {
        json!({"metadata": {"name": "p.example.com"}, "spec": {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}}})
    }

    fn validating() -> Value {
        merged(&common(), &json!({"spec": {"validations": [{"expression": "true"}]}}))
    }

    fn mutating() -> Value {
        let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}});
        merged(
            &common(),
            &json!({"spec": {"mutations": [mutation], "reinvocationPolicy": "Never"}}),
        )
    }

    #[test]
    fn what_both_have_is_checked() {
        let spec = |patch: Value| json!({"spec": patch});
        let cases = [
            (
                spec(json!({"failurePolicy": "Retry"})),
                r#"spec.failurePolicy: Unsupported value: "Retry": supported values: "Fail", "Ignore""#,
            ),
            (
                spec(json!({"paramKind": {"apiVersion": null}})),
                "spec.paramKind.apiVersion: Required value",
            ),
            (
                spec(json!({"paramKind": {"apiVersion": "a/"}})),
                r#"spec.paramKind.apiVersion: Invalid value: "a/": version must be specified"#,
            ),
            (
                spec(json!({"paramKind": {"apiVersion": "a/b/c"}})),
                r#"spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
            ),
            (
                spec(json!({"paramKind": {"kind": null}})),
                "spec.paramKind.kind: Required value",
            ),
            (
                spec(json!({"matchConstraints": null})),
                "spec.matchConstraints: Required value",
            ),
            (
                spec(json!({"matchConstraints": {"resourceRules": null}})),
                "spec.matchConstraints.resourceRules: Required value",
            ),
            (
                spec(json!({"variables": [{"expression": "a"}]})),
                "spec.variables[0].name: Required value: name is not specified",
            ),
            (
                spec(json!({"variables": [{"name": "for", "expression": "a"}]})),
                r#"spec.variables[0].name: Invalid value: "for": must be a valid CEL identifier"#,
            ),
            (
                spec(json!({"variables": [{"name": "a"}]})),
                "spec.variables[0].expression: Required value: expression is not specified",
            ),
        ];
        refuses(&VALIDATING, &validating(), &cases);
        refuses(&MUTATING, &mutating(), &cases);
        let filled = defaulted(&VALIDATING, validating());
        assert_eq!(filled["spec"]["failurePolicy"], "Fail");
        assert_eq!(filled["spec"]["matchConstraints"]["matchPolicy"], "Equivalent");
        assert_eq!(filled["spec"]["matchConstraints"]["resourceRules"][0]["scope"], "*");
        assert_eq!(row(&VALIDATING, &filled), "1|v1/ConfigMap|<unknown>");
        assert_eq!(row(&MUTATING, &json!({})), "0|<unset>|<unknown>");
    }

    #[test]
    fn validations_are_checked() {
        let validation =
            |patch: Value| json!({"spec": {"validations": [merged(&json!({"expression": "true"}), &patch)]}});
        let annotation = |list: Value| json!({"spec": {"auditAnnotations": list}});
        refuses(
            &VALIDATING,
            &validating(),
            &[
                (
                    validation(json!({"expression": ""})),
                    "spec.validations[0].expression: Required value: expression is not specified",
                ),
                (
                    validation(json!({"message": " "})),
                    r#"spec.validations[0].message: Invalid value: " ": must be non-empty if specified"#,
                ),
                (
                    validation(json!({"messageExpression": " "})),
                    r#"spec.validations[0].messageExpression: Invalid value: " ": must be non-empty if specified"#,
                ),
                (
                    validation(json!({"message": "a\nb"})),
                    r#"spec.validations[0].message: Invalid value: "a\nb": must not contain line breaks"#,
                ),
                (
                    validation(json!({"reason": "Because"})),
                    r#"spec.validations[0].reason: Unsupported value: "Because": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
                ),
                (
                    annotation(json!([{"key": "a"}])),
                    "spec.auditAnnotations[0].valueExpression: Required value: valueExpression is not specified",
                ),
                (
                    annotation(json!([{"key": "a", "valueExpression": "x".repeat(5121)}])),
                    "spec.auditAnnotations[0].valueExpression: Required value: must not exceed 5120 bytes in length",
                ),
                (
                    annotation(json!([{"key": "a", "valueExpression": "x"}, {"key": "a", "valueExpression": "x"}])),
                    r#"spec.auditAnnotations[1].key: Duplicate value: "a""#,
                ),
            ],
        );
        let detail = "validations or auditAnnotations must contain at least one item";
        assert_eq!(
            create_problems(&VALIDATING, common()),
            [
                format!("spec.validations: Required value: {detail}"),
                format!("spec.auditAnnotations: Required value: {detail}")
            ]
        );
    }

    #[test]
    fn mutations_are_checked() {
        let mutation = |m: Value| json!({"spec": {"mutations": [m]}});
        refuses(
            &MUTATING,
            &mutating(),
            &[
                (
                    json!({"spec": {"mutations": null}}),
                    "spec.mutations: Required value: mutations must contain at least one item",
                ),
                (
                    json!({"spec": {"reinvocationPolicy": null}}),
                    "spec.reinvocationPolicy: Required value",
                ),
                (mutation(json!({})), "spec.mutations[0].patchType: Required value"),
                (
                    mutation(json!({"patchType": "Merge"})),
                    r#"spec.mutations[0].patchType: Unsupported value: "Merge": supported values: "ApplyConfiguration", "JSONPatch""#,
                ),
                (
                    mutation(json!({"patchType": "JSONPatch"})),
                    "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                ),
                (
                    mutation(json!({"patchType": "ApplyConfiguration", "applyConfiguration": {}})),
                    "spec.mutations[0].applyConfiguration.expression: Required value",
                ),
                (
                    mutation(
                        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "x"}, "jsonPatch": {}}),
                    ),
                    r#"spec.mutations[0].jsonPatch: Invalid value: "{jsonPatch}": must not be specified when patchType is ApplyConfiguration"#,
                ),
                (
                    json!({"spec": {"matchConstraints": {"resourceRules": [{"operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}}}),
                    r#"spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE""#,
                ),
            ],
        );
    }

    #[test]
    fn status_is_checked() {
        let with = |warnings: Value| {
            merged(
                &validating(),
                &json!({"status": {"typeChecking": {"expressionWarnings": warnings}}}),
            )
        };
        assert!(
            status_problems(
                &VALIDATING,
                with(json!([{"warning": "w", "fieldRef": "spec"}])),
                validating()
            )
            .is_empty()
        );
        assert_eq!(
            status_problems(&VALIDATING, with(json!([{"fieldRef": "spec"}])), validating()),
            ["status.typeChecking.expressionWarnings[0].warning: Required value"]
        );
    }
}
