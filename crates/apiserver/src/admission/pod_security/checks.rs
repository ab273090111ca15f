//! The table of checks: which standard has them, since when, and what each finds wrong with a pod.
//! Upstream: pod-security-admission/policy (v1.36).

use std::collections::BTreeSet;

use orlop_api::Value;

use super::policy::{Level, Standard, Version};
use super::{baseline, restricted};
use crate::lookup::{items, text};

/// What a check looks at: a pod, or the template of one.
pub(super) struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

/// Why a pod does not pass: `hostPort (container "c" uses hostPort 80)`.
pub(super) struct Violation {
    pub reason: &'static str,
    pub detail: String,
}

type CheckPod = fn(&Pod<'_>) -> Option<Violation>;

struct Check {
    id: &'static str,
    level: Level,
    /// Ascending: the minor version from which on a form of the check counts.
    since: &'static [(u32, CheckPod)],
    /// The laxer check that this one replaces.
    replaces: &'static str,
}

const fn baseline_check(id: &'static str, since: &'static [(u32, CheckPod)]) -> Check {
    Check {
        id,
        level: Level::Baseline,
        since,
        replaces: "",
    }
}

const fn restricted_check(id: &'static str, since: &'static [(u32, CheckPod)], replaces: &'static str) -> Check {
    Check {
        id,
        level: Level::Restricted,
        since,
        replaces,
    }
}

/// In the order in which violations are told.
const ALL: &[Check] = &[
    baseline_check("appArmorProfile", &[(0, baseline::app_armor_profile)]),
    baseline_check("capabilities_baseline", &[(0, baseline::capabilities)]),
    baseline_check("hostNamespaces", &[(0, baseline::host_namespaces)]),
    baseline_check("hostPathVolumes", &[(0, baseline::host_path_volumes)]),
    baseline_check("hostPorts", &[(0, baseline::host_ports)]),
    baseline_check(
        "hostProbesAndHostLifecycle",
        &[(34, baseline::host_probes_and_lifecycle)],
    ),
    baseline_check("privileged", &[(0, baseline::privileged)]),
    baseline_check(
        "procMount",
        &[
            (0, baseline::proc_mount),
            (35, |pod| outside(baseline::proc_mount, pod)),
        ],
    ),
    baseline_check(
        "seLinuxOptions",
        &[(0, baseline::se_linux_1_0), (31, baseline::se_linux_1_31)],
    ),
    baseline_check(
        "seccompProfile_baseline",
        &[(0, baseline::seccomp_annotations), (19, baseline::seccomp_profile)],
    ),
    baseline_check(
        "sysctls",
        &[
            (0, |pod| baseline::sysctls(pod, 0)),
            (27, |pod| baseline::sysctls(pod, 27)),
            (29, |pod| baseline::sysctls(pod, 29)),
            (32, |pod| baseline::sysctls(pod, 32)),
        ],
    ),
    baseline_check("windowsHostProcess", &[(0, baseline::windows_host_process)]),
    restricted_check(
        "allowPrivilegeEscalation",
        &[
            (8, restricted::allow_privilege_escalation),
            (25, |pod| on_linux(restricted::allow_privilege_escalation, pod)),
        ],
        "",
    ),
    restricted_check(
        "capabilities_restricted",
        &[
            (22, restricted::capabilities),
            (25, |pod| on_linux(restricted::capabilities, pod)),
        ],
        "capabilities_baseline",
    ),
    restricted_check("procMount_restricted", &[(35, baseline::proc_mount)], "procMount"),
    restricted_check("restrictedVolumes", &[(0, restricted::volumes)], "hostPathVolumes"),
    restricted_check(
        "runAsNonRoot",
        &[
            (0, restricted::run_as_non_root),
            (35, |pod| outside(restricted::run_as_non_root, pod)),
        ],
        "",
    ),
    restricted_check(
        "runAsUser",
        &[
            (23, restricted::run_as_user),
            (35, |pod| outside(restricted::run_as_user, pod)),
        ],
        "",
    ),
    restricted_check(
        "seccompProfile_restricted",
        &[
            (19, restricted::seccomp_profile),
            (25, |pod| on_linux(restricted::seccomp_profile, pod)),
        ],
        "seccompProfile_baseline",
    ),
];

/// Checks of what Windows does not have do not apply to its pods.
fn on_linux(check: CheckPod, pod: &Pod<'_>) -> Option<Violation> {
    match text(pod.spec, &["os", "name"]) {
        "windows" => None,
        _ => check(pod),
    }
}

/// Root in a user namespace of the pod's own is not root.
fn outside(check: CheckPod, pod: &Pod<'_>) -> Option<Violation> {
    match pod.spec["hostUsers"].as_bool() {
        Some(false) => None,
        _ => check(pod),
    }
}

impl Check {
    /// The form of the check that counts in a version.
    fn form(&self, version: Version) -> Option<CheckPod> {
        let counts = |since: &&(u32, CheckPod)| Version::Minor(since.0) <= version;
        self.since.iter().rev().find(counts).map(|(_, check)| *check)
    }
}

/// Everything that keeps the pod from meeting the standard.
pub(super) fn violations(standard: Standard, pod: &Pod<'_>) -> Vec<Violation> {
    let active: Vec<(&Check, CheckPod)> = ALL
        .iter()
        .filter(|check| check.level <= standard.level)
        .filter_map(|check| Some((check, check.form(standard.version)?)))
        .collect();
    let replaced: BTreeSet<&str> = active.iter().map(|(check, _)| check.replaces).collect();
    active
        .iter()
        .filter(|(check, _)| !replaced.contains(check.id))
        .filter_map(|(_, form)| form(pod))
        .collect()
}

/// `reason (detail), reason`.
pub(super) fn told(violations: &[Violation]) -> String {
    let told = |v: &Violation| match v.detail.as_str() {
        "" => v.reason.to_string(),
        detail => format!("{} ({detail})", v.reason),
    };
    violations.iter().map(told).collect::<Vec<_>>().join(", ")
}

/// The reasons alone, for summaries.
pub(super) fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|v| v.reason).collect::<Vec<_>>().join(", ")
}

impl<'a> Pod<'a> {
    /// Init containers, containers, ephemeral containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| items(spec, &[list]))
    }

    /// The names of the containers for which something holds.
    pub(super) fn containers_where(&self, mut holds: impl FnMut(&Value) -> bool) -> Vec<&'a str> {
        self.containers()
            .filter(|c| holds(c))
            .map(|c| text(c, &["name"]))
            .collect()
    }

    /// The members at a path under the security contexts of the pod ("pod") and its containers, where there are any.
    pub(super) fn setters(&self, path: &str) -> Setters<'a> {
        let path = format!("/securityContext{path}");
        Setters {
            pod: self.spec.pointer(&path),
            containers: self
                .containers()
                .filter_map(|c| Some((text(c, &["name"]), c.pointer(&path)?)))
                .collect(),
        }
    }
}

/// Who sets something in a security context, and to what.
pub(super) struct Setters<'a> {
    pub pod: Option<&'a Value>,
    pub containers: Vec<(&'a str, &'a Value)>,
}

impl Setters<'_> {
    /// Those who set a bad value, as `pod and containers "a", "b"`; empty if nobody does.
    pub(super) fn bad(&self, mut is_bad: impl FnMut(&Value) -> bool) -> String {
        let mut told = vec![];
        if self.pod.is_some_and(&mut is_bad) {
            told.push("pod".to_string());
        }
        let containers: Vec<&str> = self
            .containers
            .iter()
            .filter(|(_, value)| is_bad(value))
            .map(|(name, _)| *name)
            .collect();
        if !containers.is_empty() {
            told.push(named("container", &containers));
        }
        told.join(" and ")
    }
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn named(what: &str, names: &[&str]) -> String {
    format!("{} {}", plural(what, names.len()), quoted(names))
}

pub(super) fn plural(what: &str, count: usize) -> String {
    format!("{what}{}", if count == 1 { "" } else { "s" })
}

/// "uses" or "use".
pub(super) fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

pub(super) fn quoted<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|w| format!("\"{}\"", w.as_ref())).collect();
    quoted.join(", ")
}
