//! Groups of the Kubernetes project are protected: their definitions say who approved them.
//!
//! Upstream: apiextensions-apiserver pkg/apihelpers and pkg/controller/apiapproval (v1.36).

use orlop_api::field::{Path, ProblemKind, Problems};
use serde_json::Value;

use super::text;

const ANNOTATION: &str = "api-approved.kubernetes.io";

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Invalid,
    Bypassed,
    Missing,
    Approved,
}

fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group == *own || group.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')))
}

fn annotation(definition: &Value) -> &str {
    let annotations = definition.get("metadata").and_then(|m| m.get("annotations"));
    annotations.map_or("", |a| text(a, ANNOTATION))
}

/// A URL with a scheme and a host.
fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) && !host.is_empty() && !text.contains(' ')
}

fn state(definition: &Value) -> (State, String) {
    let found = annotation(definition);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let must = format!("protected groups must have approval annotation {ANNOTATION:?}");
    if found.is_empty() {
        (State::Missing, format!("{must}, {see}"))
    } else if found.starts_with("unapproved") {
        (State::Bypassed, format!("not approved: {found:?}"))
    } else if is_url(found) {
        (State::Approved, format!("approved in {found}"))
    } else {
        let reason = format!("{must} with either a URL or a reason starting with \"unapproved\", {see}");
        (State::Invalid, reason)
    }
}

fn of_protected(definition: &Value) -> bool {
    is_protected(definition.get("spec").map_or("", |s| text(s, "group")))
}

/// A definition whose approval has not changed is not asked for it again.
pub(super) fn validate(new: &Value, old: Option<&Value>, p: &mut Problems) {
    if !of_protected(new) {
        return;
    }
    let (now, reason) = state(new);
    if old.is_some_and(|old| state(old).0 == now) {
        return;
    }
    let place = Path::default().field("metadata").field("annotations").key(ANNOTATION);
    match now {
        State::Invalid => p.invalid_value(&place, &annotation(new).into(), reason),
        State::Missing => p.push(ProblemKind::Required, &place, None, reason),
        State::Approved | State::Bypassed => {}
    }
}

/// Status, reason and message of the condition, for definitions of protected groups.
pub(crate) fn condition(definition: &Value) -> Option<(&'static str, &'static str, String)> {
    if !of_protected(definition) {
        return None;
    }
    let (state, message) = state(definition);
    let (status, reason) = match state {
        State::Invalid => ("False", "InvalidAnnotation"),
        State::Missing => ("False", "MissingAnnotation"),
        State::Bypassed => ("False", "UnapprovedAnnotation"),
        State::Approved => ("True", "ApprovedAnnotation"),
    };
    Some((status, reason, message))
}
