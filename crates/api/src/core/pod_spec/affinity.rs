//! Affinity to nodes and to other pods.

use std::collections::HashSet;

use serde_json::Value;

use super::Read;
use crate::field::{Cursor, Problems};
use crate::{meta, names};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// Ours alone, and of nodes only: docs/required-during-execution.md.
const REQUIRED_DURING_EXECUTION: &str = "requiredDuringSchedulingRequiredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    let Some(affinity) = spec.given("affinity") else { return };
    if let Some(node) = affinity.given("nodeAffinity") {
        for selector in [REQUIRED, REQUIRED_DURING_EXECUTION]
            .iter()
            .filter_map(|field| node.given(field))
        {
            validate_node_selector(&selector, p);
        }
        for term in node.each(PREFERRED) {
            weight(&term, p);
            // Values that no label can have are let through here: a preference that never holds does no harm.
            node_selector_term(&term.at("preference"), false, p);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.given(kind) else { continue };
        for term in pods.each(REQUIRED) {
            pod_affinity_term(&term, p);
        }
        for term in pods.each(PREFERRED) {
            weight(&term, p);
            pod_affinity_term(&term.at("podAffinityTerm"), p);
        }
    }
}

fn weight(term: &Cursor<'_>, p: &mut Problems) {
    let n = term.number("weight").unwrap_or(0);
    if !(1..=100).contains(&n) {
        p.invalid_value(term.at("weight").path(), &n.into(), "must be in the range 1-100");
    }
}

/// A `NodeSelector`, as in a required node affinity or on a persistent volume.
pub fn validate_node_selector(selector: &Cursor<'_>, p: &mut Problems) {
    let terms = selector.at("nodeSelectorTerms");
    if terms.is_empty() {
        return p.required(&terms, "must have at least one node selector term");
    }
    for term in terms.items() {
        node_selector_term(&term, true, p);
    }
}

fn node_selector_term(term: &Cursor<'_>, check_values: bool, p: &mut Problems) {
    for r in term.each("matchExpressions") {
        label_requirement(&r, check_values, p);
    }
    for r in term.each("matchFields") {
        field_requirement(&r, p);
    }
}

fn label_requirement(r: &Cursor<'_>, check_values: bool, p: &mut Problems) {
    let values = r.list("values").len();
    match r.text("operator") {
        "In" | "NotIn" if values == 0 => {
            p.required(&r.at("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            p.forbidden(
                &r.at("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values != 1 => {
            p.required(
                &r.at("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => p.invalid_value(r.at("operator").path(), &other.into(), "not a valid selector operator"),
    }
    label_key(&r.at("key"), p);
    if check_values {
        for value in r.each("values") {
            p.invalid_each(&value, names::label_value(value.str()));
        }
    }
}

fn field_requirement(r: &Cursor<'_>, p: &mut Problems) {
    match r.text("operator") {
        "In" | "NotIn" => {
            if r.list("values").len() != 1 {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                p.required(&r.at("values"), detail);
            }
        }
        other => p.invalid_value(r.at("operator").path(), &other.into(), "not a valid selector operator"),
    }
    if r.text("key") == "metadata.name" {
        for value in r.each("values") {
            p.invalid_each(&value, names::dns_subdomain(value.str()));
        }
    } else {
        p.invalid_value(
            r.at("key").path(),
            &r.text("key").into(),
            "not a valid field selector key",
        );
    }
}

fn label_key(c: &Cursor<'_>, p: &mut Problems) {
    for problem in names::qualified_name(c.str()) {
        p.invalid_value(c.path(), &c.str().into(), problem);
    }
}

fn pod_affinity_term(term: &Cursor<'_>, p: &mut Problems) {
    for field in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = term.given(field) {
            meta::validate_label_selector(&selector, p);
        }
    }
    for namespace in term.list("namespaces").iter().filter_map(Value::as_str) {
        for problem in names::dns_label(namespace) {
            p.invalid_value(&term.path().field("namespace"), &namespace.into(), problem);
        }
    }
    label_keys(term, p);
    let topology = term.at("topologyKey");
    if topology.is_empty() {
        p.required(&topology, "can not be empty");
    }
    label_key(&topology, p);
}

/// `matchLabelKeys` and `mismatchLabelKeys` of an affinity term or spread constraint. By now the selector holds what they
/// stand for (see `pod::prepare_create`), so a key of the user's own shows as a second requirement on it.
pub(super) fn label_keys(term: &Cursor<'_>, p: &mut Problems) {
    let (matching, other) = (term.given("matchLabelKeys"), term.given("mismatchLabelKeys"));
    if matching.is_none() && other.is_none() {
        return;
    }
    let selector = term.given("labelSelector");
    for keys in [&matching, &other]
        .into_iter()
        .flatten()
        .filter(|keys| !keys.is_empty())
    {
        if selector.is_none() {
            p.forbidden(keys, "must not be specified when labelSelector is not set");
            continue;
        }
        for key in keys.items() {
            label_key(&key, p);
        }
    }
    let Some(matching) = matching else { return };
    if let Some(selector) = selector {
        let labels = selector.raw("matchLabels").and_then(Value::as_object);
        let mut seen: HashSet<&str> = labels.into_iter().flatten().map(|(k, _)| k.as_str()).collect();
        for expression in selector.each("matchExpressions") {
            let key = expression.text("key");
            let position = matching.items().enumerate().filter(|(_, k)| k.str() == key).last();
            if let (false, Some((i, _))) = (seen.insert(key), position) {
                let detail = "exists in both matchLabelKeys and labelSelector";
                p.invalid_value(&term.path().index(i), &key.into(), detail);
            }
        }
    }
    let mismatching: HashSet<&str> = other.iter().flat_map(Cursor::items).map(|k| k.str()).collect();
    for key in matching.items().filter(|k| mismatching.contains(k.str())) {
        p.invalid(&key, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}
