//! What a claim asks for: the same in a claim and in the template of one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{LIST_MAX, TAINT_EFFECTS, complain, unique, within};
use crate::core::pod_spec;
use crate::field::{Cursor, Problems};
use crate::{fill, names, rules, storage};

pub(super) fn default(spec: &mut Value) {
    let Some(devices) = spec.get_mut("devices") else { return };
    for request in fill::items(devices, "requests") {
        if let Some(exactly) = request.get_mut("exactly") {
            default_request(exactly);
        }
        fill::items(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Value) {
    fill::empty(request, "allocationMode", "ExactCount");
    let count = request.get("count").and_then(Value::as_i64).unwrap_or(0);
    if request["allocationMode"] == "ExactCount" && count == 0 {
        request["count"] = 1.into();
    }
}

const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;

pub(super) fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    let devices = spec.at("devices");
    let (requests, known) = (devices.at("requests"), Requests::of(spec));
    if within(&requests, REQUESTS_MAX, p) {
        for request in requests.items() {
            validate_request(&request, p);
        }
        unique(&requests, |r| r.at("name").str().to_string(), p);
    }
    let constraints = devices.at("constraints");
    if within(&constraints, LIST_MAX, p) {
        for constraint in constraints.items() {
            validate_constraint(&constraint, &known, p);
        }
    }
    let config = devices.at("config");
    if within(&config, LIST_MAX, p) {
        for config in config.items() {
            known.validate_list(&config.at("requests"), p);
            super::validate_opaque(&config, p);
        }
    }
}

/// The requests of a claim by name, each with the names of its alternatives.
pub(super) struct Requests<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Requests<'a> {
    pub(super) fn of(spec: &Cursor<'a>) -> Requests<'a> {
        let requests = spec.at("devices").at("requests").items();
        let named = requests.map(|request| {
            let alternatives = request.at("firstAvailable").items().map(|a| a.at("name").str());
            (request.at("name").str(), alternatives.collect())
        });
        Requests(named.collect())
    }

    fn has(&self, reference: &str) -> bool {
        match reference.split_once('/') {
            None => self.0.contains_key(reference),
            Some((request, alternative)) => self.0.get(request).is_some_and(|names| names.contains(alternative)),
        }
    }

    /// A list of references to requests.
    pub(super) fn validate_list(&self, list: &Cursor<'_>, p: &mut Problems) {
        if within(list, REQUESTS_MAX, p) {
            for reference in list.items() {
                self.validate(&reference, p);
            }
            unique(list, |r| r.str().to_string(), p);
        }
    }

    /// `request` or `request/alternative`.
    pub(super) fn validate(&self, reference: &Cursor<'_>, p: &mut Problems) {
        let detail =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        let reference = rules::as_text(reference);
        let parts: Vec<&str> = reference.str().split('/').collect();
        if parts.len() > 2 {
            return p.invalid(&reference, detail);
        }
        for part in parts {
            complain(reference.path(), part, names::dns_label(part), p);
        }
        if !self.has(reference.str()) {
            p.invalid(&reference, detail);
        }
    }
}

fn validate_request(request: &Cursor<'_>, p: &mut Problems) {
    rules::follows(&request.at("name"), names::dns_label, p);
    let (exactly, alternatives) = (request.at("exactly"), request.at("firstAvailable"));
    match (exactly.exists(), alternatives.is_empty()) {
        (false, true) => p.required(request, "exactly one of `exactly` or `firstAvailable` is required"),
        (true, false) => p.invalid_value(
            request.path(),
            &Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (true, true) => validate_wish(&exactly, p),
        (false, false) => {
            if within(&alternatives, ALTERNATIVES_MAX, p) {
                for alternative in alternatives.items() {
                    rules::follows(&alternative.at("name"), names::dns_label, p);
                    validate_wish(&alternative, p);
                }
                unique(&alternatives, |a| a.at("name").str().to_string(), p);
            }
        }
    }
}

/// What a request, or an alternative of one, asks for.
fn validate_wish(wish: &Cursor<'_>, p: &mut Problems) {
    rules::required(&wish.at("deviceClassName"), names::dns_subdomain, p);
    super::validate_selectors(&wish.at("selectors"), p);
    let (mode, count) = (wish.at("allocationMode"), wish.at("count"));
    let number = count.as_i64().unwrap_or(0);
    match mode.str() {
        "All" if number != 0 => p.invalid(&count, "must not be specified when allocationMode is 'All'"),
        "ExactCount" if number <= 0 => {
            p.invalid_value(count.path(), &number.into(), "must be greater than zero");
        }
        "All" | "ExactCount" => {}
        _ => p.not_supported(&mode, &["All", "ExactCount"]),
    }
    for toleration in wish.at("tolerations").items() {
        validate_toleration(&toleration, p);
    }
}

fn validate_toleration(toleration: &Cursor<'_>, p: &mut Problems) {
    let (operator, value, effect) = (
        toleration.at("operator"),
        toleration.at("value"),
        toleration.at("effect"),
    );
    rules::optional(&toleration.at("key"), names::qualified_name, p);
    match operator.str() {
        "Exists" if !value.is_empty() => p.invalid(&value, "must be empty for operator `Exists`"),
        "Equal" => rules::follows(&value, names::label_value, p),
        _ => p.one_of(&operator, true, &["Equal", "Exists"]),
    }
    p.one_of(&effect, false, TAINT_EFFECTS);
}

fn validate_constraint(constraint: &Cursor<'_>, known: &Requests<'_>, p: &mut Problems) {
    known.validate_list(&constraint.at("requests"), p);
    let (same, distinct) = (constraint.at("matchAttribute"), constraint.at("distinctAttribute"));
    if same.exists() {
        super::validate_full_name(&same, p);
    } else if distinct.exists() {
        super::validate_full_name(&distinct, p);
    } else {
        p.required(
            constraint,
            r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
        );
    }
}

/// The devices that a claim was given.
pub(super) fn validate_allocation(allocation: &Cursor<'_>, known: &Requests<'_>, p: &mut Problems) {
    let devices = allocation.at("devices");
    let (results, config) = (devices.at("results"), devices.at("config"));
    if within(&results, REQUESTS_MAX, p) {
        for result in results.items() {
            known.validate(&result.at("request"), p);
            storage::validate_driver_name(&result.at("driver"), p);
            super::validate_pool_name(&result.at("pool"), p);
            rules::follows(&result.at("device"), names::dns_label, p);
            super::validate_binding_conditions(&result, p);
            super::validate_share_id(&result.at("shareID"), p);
        }
    }
    if allocation.at("nodeSelector").exists() {
        pod_spec::validate_node_selector(&allocation.at("nodeSelector"), p);
    }
    // Those of the class and those of the claim.
    if within(&config, 2 * LIST_MAX, p) {
        for config in config.items() {
            p.one_of(&config.at("source"), true, &["FromClaim", "FromClass"]);
            known.validate_list(&config.at("requests"), p);
            super::validate_opaque(&config, p);
        }
    }
}
