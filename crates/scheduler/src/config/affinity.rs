//! `addedAffinity` of NodeAffinityArgs: a v1.NodeAffinity whose selectors can be evaluated.
// Upstream: staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity (v1.36)

use orlop_api::schema::{from_value, schema};
use orlop_api::{Cursor, Path, names};
use serde_json::Value;

use super::problem::Problems;

const OPERATORS: [&str; 6] = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];
const FIELD_OPERATORS: [&str; 2] = ["In", "NotIn"];

pub(super) fn read(given: &Cursor<'_>, p: &mut Problems) -> Option<Value> {
    let value = given.value()?;
    let ty = schema().get("core/v1.NodeAffinity").expect("a type of Kubernetes");
    let decoded = match from_value(value.clone(), ty) {
        Ok(decoded) => decoded,
        Err(error) => {
            p.wrong_type(given.path(), value, &error.to_string());
            return None;
        }
    };
    for problem in decoded.problems {
        // `unknown field "a.b"`: the path is that inside the affinity.
        match problem.split_once(" \"") {
            Some((what, field)) => p.strict(what, format!("{}.{}", given.path(), field.trim_end_matches('"'))),
            None => p.unreadable(format!("{}: {problem}", given.path())),
        }
    }
    check(&Cursor::new(Some(&decoded.value), given.path().clone()), p);
    Some(decoded.value)
}

/// Terms that are empty match nothing and are not looked at; nor are preferred terms without a weight.
fn check(affinity: &Cursor<'_>, p: &mut Problems) {
    for field in [
        "requiredDuringSchedulingIgnoredDuringExecution",
        "requiredDuringSchedulingRequiredDuringExecution",
    ] {
        for term in affinity.at(field).at("nodeSelectorTerms").items() {
            check_term(&term, term.path(), p);
        }
    }
    for preferred in affinity.at("preferredDuringSchedulingIgnoredDuringExecution").items() {
        if !preferred.at("weight").is_empty() {
            check_term(&preferred.at("preference"), preferred.path(), p);
        }
    }
}

fn check_term(term: &Cursor<'_>, path: &Path, p: &mut Problems) {
    for (i, r) in term.at("matchExpressions").items().enumerate() {
        check_expression(&r, &path.field("matchExpressions").index(i), p);
    }
    for (i, r) in term.at("matchFields").items().enumerate() {
        let path = path.field("matchFields").index(i);
        let operator = r.at("operator").str();
        if !FIELD_OPERATORS.contains(&operator) {
            p.not_supported(&path.field("operator"), operator, &FIELD_OPERATORS);
        } else if r.at("values").len() != 1 {
            p.invalid(&path.field("values"), list(&r), "must have one element");
        }
    }
}

fn list(requirement: &Cursor<'_>) -> Value {
    requirement.at("values").value().cloned().unwrap_or_default()
}

fn check_expression(r: &Cursor<'_>, path: &Path, p: &mut Problems) {
    let operator = r.at("operator").str();
    if !OPERATORS.contains(&operator) {
        return p.not_supported(&path.field("operator"), operator, &OPERATORS);
    }
    let key = r.at("key").str();
    let wrong_key = names::qualified_name(key);
    if !wrong_key.is_empty() {
        p.invalid(&path.field("key"), key, wrong_key.join("; "));
    }
    let values: Vec<&str> = r.at("values").items().map(|v| v.as_str().unwrap_or("")).collect();
    let values_path = path.field("values");
    let wrong = match operator {
        "In" | "NotIn" if values.is_empty() => Some("for 'in', 'notin' operators, values set can't be empty"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            Some("values set must be empty for exists and does not exist")
        }
        "Gt" | "Lt" if values.len() != 1 => Some("for 'Gt', 'Lt' operators, exactly one value is required"),
        _ => None,
    };
    if let Some(text) = wrong {
        p.invalid(&values_path, list(r), text);
    }
    for (i, value) in values.into_iter().enumerate() {
        let path = values_path.index(i);
        if matches!(operator, "Gt" | "Lt") && value.parse::<i64>().is_err() {
            p.invalid(&path, value, "for 'Gt', 'Lt' operators, the value must be an integer");
        }
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            p.invalid(&path.key(key), value, wrong.join("; "));
        }
    }
}
