//! What the scheduler reads beside affinity: tolerations, spreading, gates, claims.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::Read;
use super::affinity::label_keys;
use super::read::unsupported;
use crate::field::{Cursor, ProblemKind, Problems};
use crate::{meta, names};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The effect of a taint or toleration.
pub fn validate_taint_effect(effect: &Cursor<'_>, required: bool, p: &mut Problems) {
    match effect.str() {
        "" if required => p.required(effect, ""),
        "" => {}
        known if EFFECTS.contains(&known) => {}
        _ => unsupported(effect, &EFFECTS, p),
    }
}

/// A list of tolerations, in a pod or elsewhere.
pub fn validate_tolerations(list: &Cursor<'_>, p: &mut Problems) {
    for t in list.items() {
        let (key, operator, value) = (t.text("key"), t.text("operator"), t.text("value"));
        if !key.is_empty() {
            let problems = names::qualified_name(key);
            if !problems.is_empty() {
                p.invalid_each(&t.at("key"), problems);
            }
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            p.invalid_value(t.at("operator").path(), &operator.into(), detail);
        }
        if t.has("tolerationSeconds") && t.text("effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            p.invalid_value(t.at("effect").path(), &t.text("effect").into(), detail);
        }
        match operator {
            "" | "Equal" => {
                let problems = names::label_value(value);
                if !problems.is_empty() {
                    p.invalid_value(t.at("operator").path(), &value.into(), problems.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                p.invalid_value(t.at("operator").path(), &value.into(), detail);
            }
            // Known, but behind a gate that is off.
            "Lt" | "Gt" => unsupported(&t.at("operator"), &["Equal", "Exists", "Lt", "Gt"], p),
            _ => unsupported(&t.at("operator"), &["Equal", "Exists"], p),
        }
        if let Some(effect) = t.given("effect") {
            validate_taint_effect(&effect, false, p);
        }
    }
}

/// Readiness gates and scheduling gates.
pub(super) fn gates(spec: &Cursor<'_>, p: &mut Problems) {
    for gate in spec.each("readinessGates") {
        let at = gate.at("conditionType");
        for problem in names::qualified_name(at.str()) {
            p.invalid_value(at.path(), &at.str().into(), problem);
        }
    }
    let mut seen = HashSet::new();
    for gate in spec.each("schedulingGates") {
        let name = gate.text("name");
        for problem in names::qualified_name(name) {
            p.invalid_value(gate.path(), &name.into(), problem);
        }
        if !seen.insert(name) {
            p.push(
                ProblemKind::Duplicate,
                gate.path(),
                Some(Value::from(name).to_string()),
                "",
            );
        }
    }
}

pub(super) fn topology_spread(spec: &Cursor<'_>, p: &mut Problems) {
    let Some(list) = spec.given("topologySpreadConstraints") else {
        return;
    };
    let mut left: HashMap<(&str, &str), usize> = HashMap::new();
    for c in list.items() {
        *left
            .entry((c.text("topologyKey"), c.text("whenUnsatisfiable")))
            .or_default() += 1;
    }
    for c in list.items() {
        let (key, action) = (c.text("topologyKey"), c.text("whenUnsatisfiable"));
        positive(&c, "maxSkew", p);
        if key.is_empty() {
            p.required(&c.at("topologyKey"), "can not be empty");
        }
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            p.not_supported(&c.at("whenUnsatisfiable"), &["DoNotSchedule", "ScheduleAnyway"]);
        }
        // Reported at each but the last of its kind.
        let rest = left.get_mut(&(key, action)).expect("counted above");
        *rest -= 1;
        if *rest > 0 {
            let path = c.path().field("{topologyKey, whenUnsatisfiable}");
            let shown = Value::from(format!("{{{key}, {action}}}")).to_string();
            p.push(ProblemKind::Duplicate, &path, Some(shown), "");
        }
        if let Some(domains) = c.given("minDomains") {
            positive(&c, "minDomains", p);
            if action != "DoNotSchedule" {
                p.invalid(
                    &domains,
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"),
                );
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = c.given(field)
                && !matches!(policy.str(), "Honor" | "Ignore")
            {
                p.not_supported(&policy, &["Honor", "Ignore"]);
            }
        }
        label_keys(&c, p);
        if let Some(selector) = c.given("labelSelector") {
            meta::validate_label_selector(&selector, p);
        }
    }
}

fn positive(c: &Cursor<'_>, field: &'static str, p: &mut Problems) {
    let n = c.number(field).unwrap_or(0);
    if n <= 0 {
        p.invalid_value(c.at(field).path(), &n.into(), "must be greater than zero");
    }
}

pub(crate) const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Dynamic resources that the pod's containers may claim.
pub(super) fn resource_claims(spec: &Cursor<'_>, pod: Option<&Cursor<'_>>, p: &mut Problems) {
    let Some(list) = spec.given("resourceClaims").filter(|l| !l.is_empty()) else {
        return;
    };
    let annotations = pod.and_then(|metadata| metadata.raw("annotations"));
    if annotations.is_some_and(|a| a.get(MIRROR_POD).is_some()) {
        return p.forbidden(&super::whole_pod(), "static pods do not support resource claims");
    }
    let mut seen = HashSet::new();
    for claim in list.items() {
        let name = claim.at("name");
        if name.is_empty() {
            p.required(&name, "");
        } else if !seen.insert(name.str()) {
            p.duplicate(&name);
        } else {
            p.invalid_each(&name, names::dns_label(name.str()));
        }
        let sources = [
            claim.given("resourceClaimName"),
            claim.given("resourceClaimTemplateName"),
        ];
        match sources.iter().flatten().count() {
            0 => p.invalid(
                &claim,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            1 => {}
            _ => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                p.invalid(&claim, detail);
            }
        }
        for source in sources.into_iter().flatten() {
            p.invalid_each(&source, names::dns_subdomain(source.str()));
        }
    }
}
