//! The kinds of the authorization group: questions about who may do what, answered at once and never stored.
//!
//! Upstream: pkg/apis/authorization/validation, pkg/registry/authorization (v1.36). The answers are the API server's.

use crate::field::{Cursor, Problems};
use crate::kind::{KindDef, Verbs};
use crate::{names, rules};

pub const GROUP: &str = "authorization.k8s.io";

pub const ALL: &[&KindDef] = &[
    &LOCAL_SUBJECT_ACCESS_REVIEW,
    &SELF_SUBJECT_ACCESS_REVIEW,
    &SELF_SUBJECT_RULES_REVIEW,
    &SUBJECT_ACCESS_REVIEW,
];

pub const SUBJECT_ACCESS_REVIEW: KindDef = KindDef {
    group: GROUP,
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    singular: "subjectaccessreview",
    namespaced: false,
    schema: "authorization/v1.SubjectAccessReview",
    verbs: Verbs::CreateOnly,
    validate: |review, p| {
        validate_spec(&review.at("spec"), true, p);
        validate_metadata(&review.at("metadata"), &[], "must be empty", p);
    },
    ..KindDef::BASE
};

pub const SELF_SUBJECT_ACCESS_REVIEW: KindDef = KindDef {
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    schema: "authorization/v1.SelfSubjectAccessReview",
    validate: |review, p| {
        validate_spec(&review.at("spec"), false, p);
        validate_metadata(&review.at("metadata"), &[], "must be empty", p);
    },
    ..SUBJECT_ACCESS_REVIEW
};

pub const LOCAL_SUBJECT_ACCESS_REVIEW: KindDef = KindDef {
    kind: "LocalSubjectAccessReview",
    plural: "localsubjectaccessreviews",
    singular: "localsubjectaccessreview",
    namespaced: true,
    schema: "authorization/v1.LocalSubjectAccessReview",
    validate: validate_local,
    ..SUBJECT_ACCESS_REVIEW
};

/// A review without a namespace is refused as a bad request, not as an invalid object: `NO_NAMESPACE` says so.
pub const SELF_SUBJECT_RULES_REVIEW: KindDef = KindDef {
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    schema: "authorization/v1.SelfSubjectRulesReview",
    validate: |_, _| {},
    ..SUBJECT_ACCESS_REVIEW
};

pub const NO_NAMESPACE: &str = "no namespace on request";

fn validate_spec(spec: &Cursor<'_>, names_subject: bool, p: &mut Problems) {
    let (resource, other) = (spec.at("resourceAttributes"), spec.at("nonResourceAttributes"));
    match (resource.exists(), other.exists()) {
        (true, true) => p.invalid(&other, "cannot be specified in combination with resourceAttributes"),
        (false, false) => p.invalid(
            &resource,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
    if names_subject && spec.at("user").is_empty() && spec.at("groups").is_empty() {
        p.invalid(
            &rules::as_text(&spec.at("user")),
            "at least one of user or group must be specified",
        );
    }
    validate_selector(&resource.at("fieldSelector"), false, p);
    validate_selector(&resource.at("labelSelector"), true, p);
}

fn validate_selector(selector: &Cursor<'_>, by_label: bool, p: &mut Problems) {
    if !selector.exists() {
        return;
    }
    let (raw, requirements) = (selector.at("rawSelector"), selector.at("requirements"));
    if !raw.is_empty() && !requirements.is_empty() {
        p.invalid(&raw, "may not specified at the same time as requirements");
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!(
            "when {} is specified, requirements or rawSelector is required",
            selector.path()
        );
        p.required(&requirements, detail);
    }
    for requirement in requirements.items() {
        validate_requirement(&requirement, by_label, p);
    }
}

/// Operators nobody knows yet are let through: the authoriser decides what it makes of them.
fn validate_requirement(requirement: &Cursor<'_>, by_label: bool, p: &mut Problems) {
    let (key, values) = (requirement.at("key"), requirement.at("values"));
    if !by_label && key.is_empty() {
        p.required(&key, "must be specified");
    }
    match requirement.at("operator").str() {
        "In" | "NotIn" if values.is_empty() => {
            p.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            p.forbidden(
                &values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        _ => {}
    }
    if by_label {
        rules::follows(&key, names::qualified_name, p);
        for value in values.items() {
            p.invalid_each(&value, names::label_value(value.str()));
        }
    }
}

/// A review is not an object that lasts: its metadata says nothing. What the server itself writes there does not count.
fn validate_metadata(metadata: &Cursor<'_>, allowed: &[&str], detail: &str, p: &mut Problems) {
    let says_something = metadata.entries().any(|(name, value)| {
        !matches!(name, "managedFields" | "creationTimestamp") && !allowed.contains(&name) && !value.is_empty()
    });
    if says_something {
        p.invalid(metadata, detail);
    }
}

fn validate_local(review: &Cursor<'_>, p: &mut Problems) {
    let (spec, metadata) = (review.at("spec"), review.at("metadata"));
    validate_spec(&spec, true, p);
    validate_metadata(&metadata, &["namespace"], "must be empty except for namespace", p);
    let resource = spec.at("resourceAttributes");
    let namespace = resource.at("namespace");
    if resource.exists() && namespace.str() != metadata.at("namespace").str() {
        p.invalid(&rules::as_text(&namespace), "must match metadata.namespace");
    }
    let other = spec.at("nonResourceAttributes");
    if other.exists() {
        p.invalid(&other, "disallowed on this kind of request");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, merged, refuses};
    use serde_json::{Value, json};

    #[test]
    fn reviews_are_checked() {
        let base = json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
        let selector = |kind: &str, s: Value| json!({"spec": {"resourceAttributes": {kind: s}}});
        let shared = [
            (
                json!({"spec": {"nonResourceAttributes": {"path": "/"}}}),
                r#"spec.nonResourceAttributes: Invalid value: {"path":"/"}: cannot be specified in combination with resourceAttributes"#,
            ),
            (
                json!({"spec": {"resourceAttributes": null}}),
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ),
            (
                json!({"metadata": {"name": "x"}}),
                r#"metadata: Invalid value: {"name":"x"}: must be empty"#,
            ),
            (
                selector("fieldSelector", json!({})),
                "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required",
            ),
            (
                selector("fieldSelector", json!({"requirements": [{"operator": "Exists"}]})),
                "spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified",
            ),
            (
                selector(
                    "labelSelector",
                    json!({"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists"}]}),
                ),
                r#"spec.resourceAttributes.labelSelector.rawSelector: Invalid value: "a": may not specified at the same time as requirements"#,
            ),
            (
                selector(
                    "labelSelector",
                    json!({"requirements": [{"key": "a", "operator": "In"}]}),
                ),
                "spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                selector(
                    "labelSelector",
                    json!({"requirements": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                ),
                "spec.resourceAttributes.labelSelector.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
        ];
        refuses(&SUBJECT_ACCESS_REVIEW, &base, &shared);
        let own = merged(&base, &json!({"spec": {"user": null}}));
        refuses(&SELF_SUBJECT_ACCESS_REVIEW, &own, &shared);
        refuses(
            &SUBJECT_ACCESS_REVIEW,
            &base,
            &[(
                json!({"spec": {"user": null}}),
                r#"spec.user: Invalid value: "": at least one of user or group must be specified"#,
            )],
        );
        let local = json!({"metadata": {"namespace": "a"}, "spec": {"groups": ["g"], "resourceAttributes": {"namespace": "a"}}});
        refuses(
            &LOCAL_SUBJECT_ACCESS_REVIEW,
            &local,
            &[
                (
                    json!({"spec": {"resourceAttributes": {"namespace": "b"}}}),
                    r#"spec.resourceAttributes.namespace: Invalid value: "b": must match metadata.namespace"#,
                ),
                (
                    json!({"metadata": {"name": "x"}}),
                    r#"metadata: Invalid value: {"name":"x","namespace":"a"}: must be empty except for namespace"#,
                ),
                (
                    json!({"spec": {"resourceAttributes": null, "nonResourceAttributes": {"path": "/"}}}),
                    r#"spec.nonResourceAttributes: Invalid value: {"path":"/"}: disallowed on this kind of request"#,
                ),
            ],
        );
        assert!(create_problems(&SELF_SUBJECT_RULES_REVIEW, json!({"metadata": {"name": "x"}})).is_empty());
    }
}
