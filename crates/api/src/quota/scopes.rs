//! Which part of a namespace's objects a quota is about.
//! Upstream: pkg/quota/v1/evaluator/core (v1.36).

use serde_json::Value;

use super::{items, text};
use crate::{KindDef, resources};

/// Whether the object falls under all scopes of the quota. Only pods and volume claims have scopes; nothing else counts
/// against a quota with some.
pub fn covers(quota: &Value, kind: &KindDef, object: &Value) -> bool {
    let matches: fn(&Value, &str, &str, &[String]) -> bool = match (kind.group, kind.plural) {
        ("", "pods") => pod_matches,
        ("", "persistentvolumeclaims") => claim_matches,
        _ => |_, _, _, _| false,
    };
    let plain = items(quota, &["spec", "scopes"]).iter().filter_map(Value::as_str);
    let selected = items(quota, &["spec", "scopeSelector", "matchExpressions"]);
    plain.into_iter().all(|scope| matches(object, scope, "Exists", &[]))
        && selected.iter().all(|e| {
            let values = items(e, &["values"]).iter().filter_map(Value::as_str);
            let values: Vec<String> = values.map(str::to_string).collect();
            matches(object, text(e, &["scopeName"]), text(e, &["operator"]), &values)
        })
}

fn pod_matches(pod: &Value, scope: &str, operator: &str, values: &[String]) -> bool {
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => resources::qos_class(pod) == "BestEffort",
        "NotBestEffort" => resources::qos_class(pod) != "BestEffort",
        "PriorityClass" => {
            let class = text(pod, &["spec", "priorityClassName"]);
            selects(operator, values, &[class])
        }
        "CrossNamespacePodAffinity" => reaches_other_namespaces(pod),
        _ => false,
    }
}

/// Pods that end by themselves at a given time.
pub fn is_terminating(pod: &Value) -> bool {
    pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0)
}

fn claim_matches(claim: &Value, scope: &str, operator: &str, values: &[String]) -> bool {
    let classes = [
        text(claim, &["spec", "volumeAttributesClassName"]),
        text(claim, &["status", "currentVolumeAttributesClassName"]),
        text(
            claim,
            &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
        ),
    ];
    scope == "VolumeAttributesClass" && selects(operator, values, &classes)
}

/// Whether the operator holds for any of the names; empty names are none.
fn selects(operator: &str, values: &[String], names: &[&str]) -> bool {
    let names: Vec<&str> = names.iter().copied().filter(|n| !n.is_empty()).collect();
    let listed = |name: &&str| values.iter().any(|v| v == name);
    match operator {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => names.iter().any(listed),
        "NotIn" => names.is_empty() || !names.iter().all(listed),
        _ => false,
    }
}

fn reaches_other_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| !items(term, &["namespaces"]).is_empty() || term.get("namespaceSelector").is_some();
    ["podAffinity", "podAntiAffinity"].iter().any(|side| {
        let list = |name: &str| items(pod, &["spec", "affinity", side, name]);
        list("requiredDuringSchedulingIgnoredDuringExecution")
            .iter()
            .any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|t| t.get("podAffinityTerm").is_some_and(crosses))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(plural: &str) -> &'static KindDef {
        let mut all = crate::kinds::all();
        all.find(|kind| kind.group.is_empty() && kind.plural == plural).unwrap()
    }

    #[test]
    fn scopes_pick_pods() {
        let kind = kind("pods");
        let plain = |scope: &str| json!({"spec": {"scopes": [scope]}});
        let by_class = |operator: &str, values: &[&str]| {
            json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values}]}}})
        };
        let best = json!({"spec": {"containers": [{"name": "c"}]}});
        let burst = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "activeDeadlineSeconds": 0, "priorityClassName": "high"}});
        let term = |term: Value| {
            json!({"spec": {"affinity": {"podAntiAffinity":
            {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}})
        };
        let (own, other) = (
            term(json!({"topologyKey": "k"})),
            term(json!({"namespaceSelector": {}})),
        );
        let cases = [
            (json!({"spec": {}}), &best, true),
            (plain("BestEffort"), &best, true),
            (plain("BestEffort"), &burst, false),
            (plain("NotBestEffort"), &burst, true),
            (plain("NotBestEffort"), &best, false),
            (plain("Terminating"), &burst, true),
            (plain("Terminating"), &best, false),
            (plain("NotTerminating"), &burst, false),
            (plain("NotTerminating"), &best, true),
            (plain("CrossNamespacePodAffinity"), &own, false),
            (plain("CrossNamespacePodAffinity"), &other, true),
            (plain("PriorityClass"), &burst, true),
            (plain("PriorityClass"), &best, false),
            (by_class("In", &["high", "low"]), &burst, true),
            (by_class("In", &["low"]), &burst, false),
            (by_class("In", &["low"]), &best, false),
            (by_class("NotIn", &["low"]), &burst, true),
            (by_class("NotIn", &["high"]), &burst, false),
            (by_class("NotIn", &["high"]), &best, true),
            (by_class("DoesNotExist", &[]), &best, true),
            (by_class("DoesNotExist", &[]), &burst, false),
            (
                json!({"spec": {"scopes": ["BestEffort", "Terminating"]}}),
                &burst,
                false,
            ),
        ];
        for (quota, pod, expected) in cases {
            assert_eq!(covers(&quota, kind, pod), expected, "{quota} {pod}");
        }
    }

    #[test]
    fn scopes_pick_claims_and_nothing_else() {
        let claims = kind("persistentvolumeclaims");
        let quota = |operator: &str| {
            json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "VolumeAttributesClass", "operator": operator, "values": ["gold"]}]}}})
        };
        let silver = json!({"spec": {"volumeAttributesClassName": "silver"}});
        let changing = json!({"spec": {"volumeAttributesClassName": "silver"},
            "status": {"currentVolumeAttributesClassName": "gold"}});
        let none = json!({"spec": {}});
        let cases = [
            ("Exists", [true, true, false]),
            ("In", [false, true, false]),
            ("NotIn", [true, true, true]),
            ("DoesNotExist", [false, false, true]),
        ];
        for (operator, expected) in cases {
            let found = [&silver, &changing, &none].map(|claim| covers(&quota(operator), claims, claim));
            assert_eq!(found, expected, "{operator}");
        }
        let maps = kind("configmaps");
        assert!(covers(&json!({"spec": {}}), maps, &none));
        assert!(!covers(&json!({"spec": {"scopes": ["BestEffort"]}}), maps, &none));
        assert!(!covers(&json!({"spec": {"scopes": ["BestEffort"]}}), claims, &none));
    }
}
