//! Containers, init containers (sidecars among them) and ephemeral containers.

use std::collections::HashSet;

use serde_json::Value;

use super::read::choice;
use super::{Read, Scope, env, handlers, mounts, requirements, security};
use crate::field::{Cursor, ProblemKind, Problems};
use crate::names;

pub(super) fn validate(spec: &Cursor<'_>, scope: &Scope<'_>, p: &mut Problems) {
    let mut names = HashSet::new();
    regular(spec, scope, &mut names, p);
    init(spec, scope, &mut names, p);
    ephemeral(spec, scope, &mut names, p);
}

fn regular<'a>(spec: &Cursor<'a>, scope: &Scope<'_>, names: &mut HashSet<&'a str>, p: &mut Problems) {
    if spec.list("containers").is_empty() {
        return p.required(&spec.at("containers"), "");
    }
    let mut host_ports = HashSet::new();
    for c in spec.each("containers") {
        common(&c, scope, p);
        if !names.insert(c.text("name")) {
            p.duplicate(&c.at("name"));
        }
        handlers::validate(&c, scope.grace_period, p);
        restart_rules(&c, p);
        unique_host_ports(&c, &mut host_ports, p);
    }
}

fn init<'a>(spec: &Cursor<'a>, scope: &Scope<'_>, names: &mut HashSet<&'a str>, p: &mut Problems) {
    for c in spec.each("initContainers") {
        common(&c, scope, p);
        restart_rules(&c, p);
        let name = c.text("name");
        if !name.is_empty() && !names.insert(name) {
            p.duplicate(&c.at("name"));
        }
        // Init containers run one by one, so ports only clash within one.
        unique_host_ports(&c, &mut HashSet::new(), p);
        if c.text("restartPolicy") == "Always" {
            handlers::validate(&c, scope.grace_period, p);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(found) = c.given(field) {
                p.forbidden(
                    &found,
                    "may not be set for init containers without restartPolicy=Always",
                );
            }
        }
        for policy in c.each("resizePolicy") {
            if policy.text("restartPolicy") == "RestartContainer" {
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                p.invalid(&policy.at("restartPolicy"), detail);
            }
        }
    }
}

/// An ephemeral container is for looking around, nothing may depend on it.
const NOT_FOR_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn ephemeral<'a>(spec: &Cursor<'a>, scope: &Scope<'_>, names: &mut HashSet<&'a str>, p: &mut Problems) {
    const REFUSED: &str = "cannot be set for an Ephemeral Container";
    let containers = spec.list("ephemeralContainers");
    if containers.is_empty() {
        return;
    }
    let targets = names.clone();
    for c in spec.each("ephemeralContainers") {
        common(&c, scope, p);
        untrimmed_image(&c, p);
        if !names.insert(c.text("name")) {
            p.duplicate(&c.at("name"));
        }
        let target = c.text("targetContainerName");
        if !target.is_empty() && !targets.contains(target) {
            p.not_found(&c.at("targetContainerName"));
        }
        for field in NOT_FOR_EPHEMERAL {
            if c.given(field).is_some_and(|f| !f.is_empty()) {
                p.forbidden(&c.at(field), REFUSED);
            }
        }
        for mount in c.each("volumeMounts") {
            for field in ["subPath", "subPathExpr"] {
                if !mount.text(field).is_empty() {
                    p.forbidden(&mount.at(field), REFUSED);
                }
            }
        }
    }
}

/// In a pod (not in a template, where " " is known to be used as a placeholder) the image has no spaces around it.
pub(crate) fn untrimmed_image(c: &Cursor<'_>, p: &mut Problems) {
    let image = c.text("image");
    if image.trim().len() != image.len() {
        p.invalid(&c.at("image"), "must not have leading or trailing whitespace");
    }
}

fn common(c: &Cursor<'_>, scope: &Scope<'_>, p: &mut Problems) {
    let name = c.text("name");
    if name.is_empty() {
        p.required(&c.at("name"), "");
    } else {
        let problems = names::dns_label(name);
        if !problems.is_empty() {
            p.invalid_each(&c.at("name"), problems);
        }
    }
    if c.text("image").is_empty() {
        p.required(&c.at("image"), "");
    }
    choice(c, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], p);
    ports(c, p);
    env::validate(c, p);
    mounts::validate(c, &scope.volumes, p);
    pull_policy(c, "imagePullPolicy", p);
    if let Some(resources) = c.given("resources") {
        requirements::of_container(&resources, &scope.claims, p);
    }
    resize_policy(c, scope.restart_policy, p);
    if let Some(context) = c.given("securityContext") {
        security::container(&context, scope.host_users, p);
    }
}

pub(super) fn pull_policy(c: &Cursor<'_>, field: &'static str, p: &mut Problems) {
    choice(c, field, &["Always", "IfNotPresent", "Never"], p);
}

fn ports(c: &Cursor<'_>, p: &mut Problems) {
    let mut seen = HashSet::new();
    for port in c.each("ports") {
        let name = port.text("name");
        if !name.is_empty() {
            let problems = names::port_name(name);
            if !problems.is_empty() {
                p.invalid_each(&port.at("name"), problems);
            } else if !seen.insert(name) {
                p.duplicate(&port.at("name"));
            }
        }
        match port.number("containerPort") {
            None | Some(0) => p.required(&port.at("containerPort"), ""),
            Some(1..=65535) => {}
            Some(n) => p.invalid_each(&port.at("containerPort"), names::port_number(n)),
        }
        match port.number("hostPort") {
            None | Some(0..=65535) => {}
            Some(n) => p.invalid_each(&port.at("hostPort"), names::port_number(n)),
        }
        choice(&port, "protocol", &["SCTP", "TCP", "UDP"], p);
    }
}

fn unique_host_ports<'a>(c: &Cursor<'a>, seen: &mut HashSet<(&'a str, &'a str, i64)>, p: &mut Problems) {
    for port in c.each("ports") {
        let Some(number) = port.number("hostPort").filter(|n| *n != 0) else {
            continue;
        };
        let (protocol, ip) = (port.text("protocol"), port.text("hostIP"));
        if !seen.insert((protocol, ip, number)) {
            let shown = Value::from(format!("{protocol}/{ip}/{number}")).to_string();
            p.push(ProblemKind::Duplicate, port.at("hostPort").path(), Some(shown), "");
        }
    }
}

fn resize_policy(c: &Cursor<'_>, pod_restart_policy: &str, p: &mut Problems) {
    let Some(list) = c.given("resizePolicy") else { return };
    let mut seen = HashSet::new();
    for policy in list.items() {
        let (resource, restart) = (policy.text("resourceName"), policy.text("restartPolicy"));
        let shown = |text: &str| Some(Value::from(text).to_string());
        if !seen.insert(resource) {
            p.push(ProblemKind::Duplicate, policy.path(), shown(resource), "");
        }
        // Upstream reports both at the list.
        for (field, supported) in [
            ("resourceName", &["cpu", "memory"]),
            ("restartPolicy", &["NotRequired", "RestartContainer"]),
        ] {
            p.one_of(&Cursor::new(policy.raw(field), list.path().clone()), true, supported);
        }
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            p.push(ProblemKind::Invalid, list.path(), shown(restart), detail);
        }
    }
}

/// The container's own restart policy and the rules that refine it by exit code.
fn restart_rules(c: &Cursor<'_>, p: &mut Problems) {
    let rules = c.list("restartPolicyRules");
    match c.given("restartPolicy") {
        None if rules.is_empty() => return,
        None => p.required(
            &c.at("restartPolicy"),
            "must specify restartPolicy when restart rules are used",
        ),
        Some(policy) => {
            let supported = ["Always", "Never", "OnFailure"];
            if !supported.contains(&policy.str()) {
                p.not_supported(&policy, &supported);
            }
        }
    }
    if rules.len() > 20 {
        p.too_many(&c.at("restartPolicyRules"), rules.len(), 20);
    }
    for rule in c.each("restartPolicyRules") {
        let action = rule.at("action");
        if !matches!(action.str(), "Restart" | "RestartAllContainers") {
            p.not_supported(&action, &["Restart", "RestartAllContainers"]);
        }
        let Some(codes) = rule.given("exitCodes") else {
            p.required(&rule.at("exitCodes"), "must be specified");
            continue;
        };
        let operator = codes.at("operator");
        if !matches!(operator.str(), "In" | "NotIn") {
            p.not_supported(&operator, &["In", "NotIn"]);
        }
        let values = codes.list("values").len();
        if values > 255 {
            p.too_many(&codes.at("values"), values, 255);
        }
    }
}
