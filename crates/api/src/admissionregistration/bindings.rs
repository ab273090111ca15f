//! ValidatingAdmissionPolicyBinding and MutatingAdmissionPolicyBinding.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::matching;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::{age, text};
use crate::{meta, names, rules};

pub const VALIDATING: KindDef = KindDef {
    kind: "ValidatingAdmissionPolicyBinding",
    plural: "validatingadmissionpolicybindings",
    singular: "validatingadmissionpolicybinding",
    schema: "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
    columns: &[Column::string("PolicyName"), Column::string("ParamRef"), Column::AGE],
    cells,
    default,
    validate: |binding, p| {
        let spec = binding.at("spec");
        validate_common(&spec, p);
        validate_actions(&spec.at("validationActions"), p);
    },
    ..super::BASE
};

pub const MUTATING: KindDef = KindDef {
    kind: "MutatingAdmissionPolicyBinding",
    plural: "mutatingadmissionpolicybindings",
    singular: "mutatingadmissionpolicybinding",
    schema: "admissionregistration/v1.MutatingAdmissionPolicyBinding",
    validate: |binding, p| {
        let spec = binding.at("spec");
        validate_common(&spec, p);
        matching::validate_mutating_operations(&spec.at("matchResources"), p);
    },
    ..VALIDATING
};

fn default(binding: &mut Value) {
    if let Some(resources) = binding.pointer_mut("/spec/matchResources") {
        matching::default_resources(resources);
    }
}

fn validate_common(spec: &Cursor<'_>, p: &mut Problems) {
    rules::required(&spec.at("policyName"), names::dns_subdomain, p);
    let reference = spec.at("paramRef");
    if reference.exists() {
        validate_param_ref(&reference, p);
    }
    matching::validate_match_resources(&spec.at("matchResources"), p);
}

fn validate_param_ref(reference: &Cursor<'_>, p: &mut Problems) {
    let exclusive = "name and selector are mutually exclusive";
    let (name, selector) = (reference.at("name"), reference.at("selector"));
    if !name.is_empty() {
        p.invalid_each(&name, names::path_segment(name.str()));
        if selector.exists() {
            p.forbidden(&name, exclusive);
        }
    }
    if selector.exists() {
        meta::validate_label_selector(&selector, p);
        if !name.is_empty() {
            p.forbidden(&selector, exclusive);
        }
    }
    if name.is_empty() && !selector.exists() {
        p.required(reference, "one of name or selector must be specified");
    }
    let action = reference.at("parameterNotFoundAction");
    match action.str() {
        "Allow" | "Deny" => {}
        "" => p.required(&action, ""),
        _ => p.not_supported_as_listed(&action, &["Deny", "Allow"]),
    }
}

fn validate_actions(actions: &Cursor<'_>, p: &mut Problems) {
    const ACTIONS: &[&str] = &["Audit", "Deny", "Warn"];
    let mut seen = BTreeSet::new();
    for action in actions.items() {
        if !ACTIONS.contains(&action.str()) {
            p.not_supported(&action, ACTIONS);
        }
        if !seen.insert(action.str()) {
            p.duplicate(&action);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        p.invalid(
            actions,
            "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
        );
    }
    if seen.is_empty() {
        p.required(actions, "at least one validation action is required");
    }
}

fn cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let reference = binding.pointer("/spec/paramRef");
    let shown = match reference {
        None => "<unset>".to_string(),
        Some(r) => match (text(r, "/namespace"), text(r, "/name")) {
            (_, "") => r.get("selector").map_or("<unset>".to_string(), selector_text),
            ("", name) => format!("*/{name}"),
            (namespace, name) => format!("{namespace}/{name}"),
        },
    };
    vec![
        text(binding, "/spec/policyName").into(),
        shown.into(),
        age(binding, now),
    ]
}

/// A selector in the form of Go's generated `String`, which is what clients are shown here.
fn selector_text(selector: &Value) -> String {
    let root = Cursor::root(selector);
    let labels: String = root
        .at("matchLabels")
        .entries()
        .map(|(k, v)| format!("{k}: {},", v.str()))
        .collect();
    let expressions: String = root
        .at("matchExpressions")
        .items()
        .map(|e| {
            let values: Vec<&str> = e.at("values").items().map(|v| v.str()).collect();
            let (key, operator) = (e.at("key").str(), e.at("operator").str());
            format!(
                "LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},",
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, row};
    use serde_json::json;

    fn binding() -> Value {
        json!({"spec": {"policyName": "p", "matchResources": {},
            "paramRef": {"name": "a", "namespace": "b", "parameterNotFoundAction": "Deny"}}})
    }

    #[test]
    fn bindings_are_checked() {
        let reference = |patch: Value| json!({"spec": {"paramRef": patch}});
        let shared = [
            (json!({"spec": {"policyName": null}}), "spec.policyName: Required value"),
            (
                reference(json!({"name": null})),
                "spec.paramRef: Required value: one of name or selector must be specified",
            ),
            (
                reference(json!({"name": "a/b"})),
                r#"spec.paramRef.name: Invalid value: "a/b": may not contain '/'"#,
            ),
            (
                reference(json!({"parameterNotFoundAction": null})),
                "spec.paramRef.parameterNotFoundAction: Required value",
            ),
            (
                reference(json!({"parameterNotFoundAction": "Guess"})),
                r#"spec.paramRef.parameterNotFoundAction: Unsupported value: "Guess": supported values: "Deny", "Allow""#,
            ),
        ];
        let validating = merged(&binding(), &json!({"spec": {"validationActions": ["Deny"]}}));
        refuses(&VALIDATING, &validating, &shared);
        refuses(&MUTATING, &binding(), &shared);
        refuses(
            &VALIDATING,
            &validating,
            &[
                (
                    json!({"spec": {"validationActions": null}}),
                    "spec.validationActions: Required value: at least one validation action is required",
                ),
                (
                    json!({"spec": {"validationActions": ["Log"]}}),
                    r#"spec.validationActions[0]: Unsupported value: "Log": supported values: "Audit", "Deny", "Warn""#,
                ),
                (
                    json!({"spec": {"validationActions": ["Deny", "Deny"]}}),
                    r#"spec.validationActions[1]: Duplicate value: "Deny""#,
                ),
                (
                    json!({"spec": {"validationActions": ["Deny", "Warn"]}}),
                    r#"spec.validationActions: Invalid value: ["Deny","Warn"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"#,
                ),
            ],
        );
        let both = merged(&binding(), &reference(json!({"selector": {}})));
        assert_eq!(create_problems(&MUTATING, both).len(), 2);
        assert_eq!(
            defaulted(&MUTATING, binding())["spec"]["matchResources"]["matchPolicy"],
            "Equivalent"
        );
    }

    #[test]
    fn rows() {
        assert_eq!(row(&VALIDATING, &binding()), "p|b/a|<unknown>");
        let selector = json!({"spec": {"policyName": "p", "paramRef": {"selector": {"matchLabels": {"k": "v"}}}}});
        assert_eq!(
            row(&MUTATING, &selector),
            "p|&LabelSelector{MatchLabels:map[string]string{k: v,},MatchExpressions:[]LabelSelectorRequirement{},}|<unknown>"
        );
    }
}
