//! Aggregated ClusterRoles: roles whose rules are those of all roles with certain labels.
//! Upstream: pkg/controller/clusterroleaggregation (v1.36), which gets there one update at a time.

use std::collections::HashMap;
use std::sync::Arc;

use orlop_api::selector::LabelSelector;
use serde_json::Value;

use super::PolicyRule;
use crate::lookup::{items, text};

/// The aggregated roles whose stored rules are not what they should be, by name, with the rules they should have.
pub fn aggregate(roles: &[Arc<Value>]) -> Vec<(String, Vec<Value>)> {
    let rules = effective_rules(roles);
    let aggregated = roles.iter().filter(|role| is_aggregated(role));
    aggregated
        .filter_map(|role| {
            let name = text(role, &["metadata", "name"]);
            let wanted = &rules[name];
            (PolicyRule::all_of(role) != *wanted)
                .then(|| (name.to_string(), wanted.iter().map(PolicyRule::to_value).collect()))
        })
        .collect()
}

/// The rules of every ClusterRole by name, aggregation done. Aggregated roles may take in one another; they start
/// empty and grow until nothing is new, so that a circle of them cannot keep rules alive that no other role has.
pub(super) fn effective_rules(roles: &[Arc<Value>]) -> HashMap<&str, Vec<PolicyRule>> {
    let mut sorted: Vec<&Value> = roles.iter().map(Arc::as_ref).collect();
    sorted.sort_by_key(|role| text(role, &["metadata", "name"]));
    let aggregated: Vec<(&str, Vec<&str>)> = sorted
        .iter()
        .filter(|role| is_aggregated(role))
        .map(|role| (text(role, &["metadata", "name"]), sources(role, &sorted)))
        .collect();

    let stored = |role: &Value| match is_aggregated(role) {
        true => Vec::new(),
        false => PolicyRule::all_of(role),
    };
    let mut rules: HashMap<&str, Vec<PolicyRule>> = sorted
        .iter()
        .map(|role| (text(role, &["metadata", "name"]), stored(role)))
        .collect();
    // Rules only ever travel along a chain of roles, so this many rounds reach the end of any chain.
    for _ in 0..=aggregated.len() {
        let mut changed = false;
        for (name, sources) in &aggregated {
            let mut union: Vec<PolicyRule> = Vec::new();
            for rule in sources.iter().flat_map(|source| &rules[source]) {
                if !union.contains(rule) {
                    union.push(rule.clone());
                }
            }
            changed |= rules.insert(name, union.clone()).as_ref() != Some(&union);
        }
        if !changed {
            break;
        }
    }
    rules
}

fn is_aggregated(role: &Value) -> bool {
    role.get("aggregationRule").is_some_and(|rule| !rule.is_null())
}

/// The names of the roles that an aggregated role takes in: selector by selector, each in the order of names. Unreadable
/// selectors select nothing.
fn sources<'a>(role: &Value, sorted: &[&'a Value]) -> Vec<&'a str> {
    let name = text(role, &["metadata", "name"]);
    let selectors = items(role, &["aggregationRule", "clusterRoleSelectors"]).iter();
    selectors
        .filter_map(|selector| LabelSelector::from_object(selector).ok())
        .flat_map(|selector| {
            let matching = move |role: &&&'a Value| selector.matches_map(role["metadata"].get("labels"));
            sorted
                .iter()
                .filter(matching)
                .map(|role| text(role, &["metadata", "name"]))
                .collect::<Vec<_>>()
        })
        .filter(|source| *source != name)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn role(name: &str, labels: &[&str], verbs: &[&str]) -> Arc<Value> {
        let labels: HashMap<&str, &str> = labels.iter().map(|l| (*l, "true")).collect();
        let rules: Vec<Value> = verbs
            .iter()
            .map(|v| PolicyRule::resource(&[v], &[""], &["pods"]).to_value())
            .collect();
        Arc::new(json!({"metadata": {"name": name, "labels": labels}, "rules": rules}))
    }

    fn aggregated(name: &str, labels: &[&str], selected: &[&str], verbs: &[&str]) -> Arc<Value> {
        let mut role = Value::clone(&role(name, labels, verbs));
        let selectors: Vec<Value> = selected.iter().map(|l| json!({"matchLabels": {*l: "true"}})).collect();
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        Arc::new(role)
    }

    #[test]
    fn roles_gather_rules_through_one_another() {
        let roles = [
            aggregated("admin", &[], &["to-admin"], &[]),
            aggregated("edit", &["to-admin"], &["to-edit"], &["stale"]),
            aggregated("view", &["to-edit"], &["to-view"], &["get", "list"]),
            aggregated("self", &["to-self"], &["to-self"], &["kept-alive"]),
            aggregated("nothing", &[], &[], &[]),
            role("aggregate-to-admin", &["to-admin"], &["bind"]),
            role("aggregate-to-edit", &["to-edit"], &["update", "get"]),
            role("aggregate-to-view-1", &["to-view"], &["get", "list"]),
            role("unrelated", &[], &["delete"]),
        ];
        let verbs = |rules: &[Value]| {
            rules
                .iter()
                .map(|r| r["verbs"][0].as_str().unwrap().to_string())
                .collect::<Vec<_>>()
        };
        let found: Vec<(String, Vec<String>)> = aggregate(&roles)
            .iter()
            .map(|(name, rules)| (name.clone(), verbs(rules)))
            .collect();
        let expected = [
            ("admin", vec!["bind", "update", "get", "list"]),
            ("edit", vec!["update", "get", "list"]),
            ("self", vec![]),
        ];
        let expected: Vec<(String, Vec<String>)> = expected
            .into_iter()
            .map(|(n, v)| (n.into(), v.into_iter().map(String::from).collect()))
            .collect();
        assert_eq!(found, expected);
    }
}
