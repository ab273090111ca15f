//! The checks of the restricted standard: a pod has no more rights than it must.

use std::collections::BTreeSet;

use orlop_api::Value;

use super::baseline::{self, adds_beyond, is_seccomp_type};
use super::checks::{Pod, Violation, named, plural, quoted, uses};
use crate::lookup::{items, text};

pub(super) fn allow_privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad =
        pod.containers_where(|c| c.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false)));
    (!bad.is_empty()).then(|| Violation {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            named("container", &bad)
        ),
    })
}

pub(super) fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let keeping = pod.containers_where(|c| {
        let dropped = items(c, &["securityContext", "capabilities", "drop"]);
        !dropped.iter().any(|d| d == "ALL")
    });
    let mut added = BTreeSet::new();
    let adding = pod.containers_where(|c| adds_beyond(c, &["NET_BIND_SERVICE"], &mut added));
    let mut told = vec![];
    if !keeping.is_empty() {
        told.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named("container", &keeping)
        ));
    }
    if !adding.is_empty() {
        told.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named("container", &adding),
            quoted(&added)
        ));
    }
    (!told.is_empty()).then(|| Violation {
        reason: "unrestricted capabilities",
        detail: told.join("; "),
    })
}

const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let mut bad = vec![];
    for volume in items(pod.spec, &["volumes"]) {
        let sources = || {
            let members = volume.as_object().into_iter().flatten();
            members.map(|(name, _)| name.as_str()).filter(|name| *name != "name")
        };
        if !sources().any(|source| VOLUMES.contains(&source)) {
            bad.push(text(volume, &["name"]));
            kinds.insert(sources().next().unwrap_or("unknown"));
        }
    }
    (!bad.is_empty()).then(|| Violation {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {} {}",
            named("volume", &bad),
            uses(bad.len()),
            plural("restricted volume type", kinds.len()),
            quoted(&kinds)
        ),
    })
}

pub(super) fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters("/runAsNonRoot");
    let refusing = setters.bad(|v| *v == false);
    let detail = if !refusing.is_empty() {
        format!("{refusing} must not set securityContext.runAsNonRoot=false")
    } else {
        let silent = silent_containers(pod, setters.pod.is_some(), "/securityContext/runAsNonRoot");
        if silent.is_empty() {
            return None;
        }
        let named = named("container", &silent);
        format!("pod or {named} must set securityContext.runAsNonRoot=true")
    };
    Some(Violation {
        reason: "runAsNonRoot != true",
        detail,
    })
}

/// The containers that say nothing, unless the pod speaks for them.
fn silent_containers<'a>(pod: &Pod<'a>, pod_speaks: bool, path: &str) -> Vec<&'a str> {
    pod.containers_where(|c| !pod_speaks && c.pointer(path).is_none())
}

pub(super) fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters("/runAsUser").bad(|v| v.as_i64() == Some(0));
    (!setters.is_empty()).then(|| Violation {
        reason: "runAsUser=0",
        detail: format!("{setters} must not set runAsUser=0"),
    })
}

pub(super) fn seccomp_profile(pod: &Pod<'_>) -> Option<Violation> {
    let wrong = baseline::seccomp_profile(pod);
    if wrong.is_some() {
        return wrong;
    }
    let kind = pod.spec.pointer("/securityContext/seccompProfile/type");
    let set = kind.and_then(Value::as_str).is_some_and(is_seccomp_type);
    let silent = silent_containers(pod, set, "/securityContext/seccompProfile");
    (!silent.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            named("container", &silent)
        ),
    })
}
