//! Probes and lifecycle hooks.

use serde_json::Value;

use super::Read;
use crate::field::{Cursor, Problems};
use crate::names;

/// Probes and hooks of a container that keeps running: a regular one or a sidecar.
pub(super) fn validate(container: &Cursor<'_>, grace_period: Option<i64>, p: &mut Problems) {
    if let Some(lifecycle) = container.given("lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(h) = lifecycle.given(hook) {
                handler(&h, &["exec", "httpGet", "tcpSocket", "sleep"], grace_period, p);
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.given(name) {
            self::probe(&probe, name == "readinessProbe", p);
        }
    }
}

fn probe(probe: &Cursor<'_>, readiness: bool, p: &mut Problems) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], None, p);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        if let Some(n) = probe.given(field) {
            p.non_negative(&n);
        }
    }
    if let Some(seconds) = probe.given("terminationGracePeriodSeconds") {
        if seconds.as_i64().unwrap_or(0) <= 0 {
            p.invalid(&seconds, "must be greater than 0");
        }
        if readiness {
            p.invalid(&seconds, "must not be set for readinessProbes");
        }
    }
    let successes = probe.number("successThreshold").unwrap_or(0);
    if !readiness && successes != 1 {
        p.invalid_value(probe.at("successThreshold").path(), &successes.into(), "must be 1");
    }
}

fn handler(c: &Cursor<'_>, kinds: &[&'static str], grace_period: Option<i64>, p: &mut Problems) {
    let mut given = kinds.iter().filter_map(|kind| Some((*kind, c.given(kind)?)));
    let Some((kind, action)) = given.next() else {
        return p.required(c, "must specify a handler type");
    };
    match kind {
        "exec" if action.list("command").is_empty() => p.required(&action.at("command"), ""),
        "httpGet" => http_get(&action, p),
        "tcpSocket" | "grpc" => port(&action.at("port"), p),
        "sleep" => sleep(&action, grace_period, p),
        _ => {}
    }
    for (_, surplus) in given {
        p.forbidden(&surplus, "may not specify more than 1 handler type");
    }
}

fn http_get(c: &Cursor<'_>, p: &mut Problems) {
    if c.text("path").is_empty() {
        p.required(&c.at("path"), "");
    }
    port(&c.at("port"), p);
    if !matches!(c.text("scheme"), "HTTP" | "HTTPS") {
        p.not_supported(&c.at("scheme"), &["HTTP", "HTTPS"]);
    }
    for header in c.list("httpHeaders") {
        let name = header.get("name").and_then(Value::as_str).unwrap_or("");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let detail = names::pattern_message(
                "a valid HTTP header must consist of alphanumeric characters or '-'",
                "[-A-Za-z0-9]+",
                &["X-Header-Name"],
            );
            p.invalid_value(c.at("httpHeaders").path(), &name.into(), detail);
        }
    }
}

/// A port by number or by name.
fn port(c: &Cursor<'_>, p: &mut Problems) {
    match c.as_str() {
        Some(name) => p.invalid_each(c, names::port_name(name)),
        None => {
            let n = c.as_i64().unwrap_or(0);
            for problem in names::port_number(n) {
                p.invalid_value(c.path(), &n.into(), problem);
            }
        }
    }
}

fn sleep(c: &Cursor<'_>, grace_period: Option<i64>, p: &mut Problems) {
    let seconds = c.number("seconds").unwrap_or(0);
    if let Some(grace) = grace_period
        && !(0..=grace).contains(&seconds)
    {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        p.invalid_value(c.path(), &seconds.into(), detail);
    }
}
