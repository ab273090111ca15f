//! Resource quotas. Upstream: pkg/registry/core/resourcequota, ValidateResourceQuota (v1.36).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::resource_rules::{round_up, validate_quantity, validate_quota_resource};
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource, copy_member};
use crate::meta::invalid_text;
use crate::quantity::Quantity;
use crate::{printing, resources};

pub const DEF: KindDef = KindDef {
    kind: "ResourceQuota",
    plural: "resourcequotas",
    singular: "resourcequota",
    short_names: &["quota"],
    schema: "core/v1.ResourceQuota",
    subresources: &[Subresource::STATUS],
    columns: &[Column::string("Request"), Column::string("Limit"), Column::AGE],
    cells,
    default,
    prepare_status: |new, old| copy_member(new, old, "spec"),
    validate,
    validate_update,
    validate_status,
    warnings,
    ..KindDef::BASE
};

fn default(quota: &mut Value) {
    for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
        if let Some(part) = quota.get_mut(part) {
            round_up(part, list);
        }
    }
}

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];

/// Whether a scope can narrow what is counted for a resource.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = || {
        let bare = resource
            .strip_prefix("requests.")
            .or_else(|| resource.strip_prefix("limits."))
            .unwrap_or(resource);
        matches!(bare, "cpu" | "memory")
    };
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || compute()
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn validate(quota: &Cursor<'_>, p: &mut Problems) {
    let spec = quota.at("spec");
    validate_amounts(&spec.at("hard"), p);
    validate_scopes(&spec, p);
    validate_selector(&spec, p);
    validate_status_amounts(&quota.at("status"), p);
}

fn validate_amounts(amounts: &Cursor<'_>, p: &mut Problems) {
    for (name, quantity) in amounts.entries() {
        validate_quota_resource(name, quantity.path(), p);
        validate_quantity(name, &quantity, p);
    }
}

fn validate_status_amounts(status: &Cursor<'_>, p: &mut Problems) {
    validate_amounts(&status.at("hard"), p);
    validate_amounts(&status.at("used"), p);
}

/// The known resources of a quota that a scope cannot narrow.
fn misfits(spec: &Cursor<'_>, scope: &str) -> usize {
    let hard = spec.at("hard");
    let names = hard.entries().map(|(name, _)| name);
    names
        .filter(|n| resources::is_standard_for_quota(n) && !scope_fits(scope, n))
        .count()
}

fn are_opposed(scopes: &BTreeSet<&str>) -> usize {
    let pairs = [("BestEffort", "NotBestEffort"), ("NotTerminating", "Terminating")];
    pairs
        .iter()
        .filter(|(a, b)| scopes.contains(a) && scopes.contains(b))
        .count()
}

fn validate_scopes(spec: &Cursor<'_>, p: &mut Problems) {
    let scopes = spec.at("scopes");
    for scope in scopes.items() {
        if !SCOPES.contains(&scope.str()) {
            p.invalid(&scopes, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope.str()) {
            p.invalid(&scopes, "unsupported scope applied to resource");
        }
    }
    for _ in 0..are_opposed(&scopes.items().map(|s| s.str()).collect()) {
        p.invalid(&scopes, "conflicting scopes");
    }
}

fn validate_selector(spec: &Cursor<'_>, p: &mut Problems) {
    let selector = spec.at("scopeSelector");
    let terms = selector.at("matchExpressions");
    for term in terms.items() {
        // Problems stand at the list, without an index.
        let at = |field| Cursor::new(term.at(field).value(), terms.path().field(field));
        let (scope, operator, values) = (at("scopeName"), at("operator"), at("values"));
        if !SCOPES.contains(&scope.str()) {
            invalid_text(&scope, "unsupported scope", p);
        }
        for _ in 0..misfits(spec, scope.str()) {
            let shown = selector.value().unwrap_or(&Value::Null);
            p.invalid_value(terms.path(), shown, "unsupported scope applied to resource");
        }
        let existence_only = matches!(
            scope.str(),
            "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" | "CrossNamespacePodAffinity"
        );
        if existence_only && operator.str() != "Exists" {
            invalid_text(
                &operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
                p,
            );
        }
        match operator.str() {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                p.required(&values, detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                p.invalid(&values, detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => invalid_text(&operator, "not a valid selector operator", p),
        }
    }
    for _ in 0..are_opposed(&terms.items().map(|t| t.at("scopeName").str()).collect()) {
        let shown = spec.at("scopes").value().unwrap_or(&Value::Null);
        p.invalid_value(terms.path(), shown, "conflicting scopes");
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let scopes = new.at("spec").at("scopes");
    let set = |c: Cursor<'_>| -> BTreeSet<String> { c.items().map(|s| s.str().to_string()).collect() };
    if set(scopes.clone()) != set(old.at("spec").at("scopes")) {
        p.invalid(&scopes, "field is immutable");
    }
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    validate_status_amounts(&new.at("status"), p);
}

/// Requests above limits can never be used up.
fn warnings(quota: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    if old.is_some() {
        return vec![];
    }
    let hard = quota.at("spec").at("hard");
    let amount = |name: &str| {
        let text = hard.value()?.get(name)?.as_str()?;
        Some((text, Quantity::parse(text).ok()?))
    };
    let mut out = vec![];
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (requests, limits) = (format!("requests.{name}"), format!("limits.{name}"));
        // Of CPU and memory the bare name is a request as well.
        let bare = matches!(name, "cpu" | "memory").then_some(name);
        let request = [Some(requests.as_str()), bare]
            .into_iter()
            .flatten()
            .find_map(|n| Some((n, amount(n)?)));
        if let (Some((request_name, (request_text, request))), Some((limit_text, limit))) = (request, amount(&limits))
            && request > limit
        {
            out.push(format!(
                "ResourceQuota {request_name} ({request_text}) should be less than {limits} ({limit_text})"
            ));
        }
    }
    out
}

fn cells(quota: &Value, now: Timestamp) -> Vec<Value> {
    let status = Cursor::root(quota).at("status");
    let used = status.at("used");
    let (mut requests, mut limits) = (vec![], vec![]);
    for (name, hard) in status.at("hard").entries() {
        let used = used
            .value()
            .and_then(|u| u.get(name))
            .and_then(Value::as_str)
            .unwrap_or("0");
        let column = if name.starts_with("limits.") {
            &mut limits
        } else {
            &mut requests
        };
        column.push(format!("{name}: {used}/{}", hard.str()));
    }
    vec![
        requests.join(", ").into(),
        limits.join(", ").into(),
        printing::age(quota, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row, status_problems};
    use serde_json::json;

    fn hard(amounts: Value) -> Value {
        json!({"spec": {"hard": amounts}})
    }

    #[test]
    fn amounts() {
        refuses(
            &DEF,
            &hard(json!({"cpu": "1500m", "pods": "3", "count/deployments.apps": "2", "requests.hugepages-2Mi": "4Mi"})),
            &[
                (
                    hard(json!({"storage": "1"})),
                    "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
                ),
                (
                    hard(json!({"cpu": "-1"})),
                    "spec.hard[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                ),
                (
                    hard(json!({"pods": "1500m"})),
                    "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
                ),
                (
                    json!({"status": {"used": {"secrets": "-1"}}}),
                    "status.used[secrets]: Invalid value: \"-1\": must be greater than or equal to 0",
                ),
            ],
        );
    }

    #[test]
    fn scopes() {
        let base = hard(json!({"pods": "1"}));
        let selector = |term: Value| json!({"spec": {"scopeSelector": {"matchExpressions": [term]}}});
        let terms = "spec.scopeSelector.matchExpressions";
        refuses(
            &DEF,
            &base,
            &[
                (
                    json!({"spec": {"scopes": ["Odd"]}}),
                    "spec.scopes: Invalid value: [\"Odd\"]: unsupported scope",
                ),
                (
                    json!({"spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}}),
                    "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
                ),
                (
                    json!({"spec": {"scopes": ["Terminating", "NotTerminating"]}}),
                    "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes",
                ),
                (
                    selector(json!({"scopeName": "Odd", "operator": "Exists"})),
                    &format!("{terms}.scopeName: Invalid value: \"Odd\": unsupported scope"),
                ),
                (
                    selector(json!({"scopeName": "BestEffort", "operator": "In", "values": ["a"]})),
                    &format!(
                        "{terms}.operator: Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
                    ),
                ),
                (
                    selector(json!({"scopeName": "PriorityClass", "operator": "In"})),
                    &format!(
                        "{terms}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                    ),
                ),
                (
                    selector(json!({"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]})),
                    &format!(
                        "{terms}.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                    ),
                ),
                (
                    selector(json!({"scopeName": "PriorityClass", "operator": "Near"})),
                    &format!("{terms}.operator: Invalid value: \"Near\": not a valid selector operator"),
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[(
                json!({"spec": {"scopes": ["Terminating"]}}),
                "spec.scopes: Invalid value: [\"Terminating\"]: field is immutable",
            )],
        );
    }

    #[test]
    fn status_rows_and_warnings() {
        let quota = json!({"spec": {}, "status": {"hard": {"requests.cpu": "2", "limits.cpu": "4", "pods": "3"}, "used": {"requests.cpu": "1"}}});
        assert_eq!(
            row(&DEF, &quota),
            "pods: 0/3, requests.cpu: 1/2|limits.cpu: 0/4|<unknown>"
        );
        let odd = json!({"spec": {}, "status": {"hard": {"pods": "1500m"}}});
        assert_eq!(
            status_problems(&DEF, odd, json!({"spec": {}})),
            ["status.hard[pods]: Invalid value: \"1500m\": must be an integer"]
        );
        let quota = hard(json!({"cpu": "3", "limits.cpu": "2", "requests.memory": "1", "limits.memory": "1"}));
        assert_eq!(
            warnings(&Cursor::root(&quota), None),
            ["ResourceQuota cpu (3) should be less than limits.cpu (2)"]
        );
    }
}
