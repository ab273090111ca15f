//! Security contexts of pods and containers.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::volume_sources::descending_path;
use super::{Read, windows};
use crate::field::{Cursor, Problems};
use crate::names;

/// User and group ids alike.
pub(crate) fn user_id_problems(id: i64) -> Vec<String> {
    names::in_range(id, 0, i64::from(i32::MAX))
}

fn ids(c: &Cursor<'_>, fields: &[&'static str], p: &mut Problems) {
    for field in fields {
        if let Some(id) = c.given(field) {
            p.invalid_each(&id, user_id_problems(id.as_i64().unwrap_or(0)));
        }
    }
}

fn supported(c: &Cursor<'_>, field: &'static str, words: &[&str], p: &mut Problems) {
    if let Some(word) = c.given(field)
        && !words.contains(&word.str())
    {
        p.not_supported(&word, words);
    }
}

/// The pod's security context, and what of the spec belongs with it.
pub(super) fn pod(spec: &Cursor<'_>, p: &mut Problems) {
    if spec.flag("shareProcessNamespace") == Some(true) && spec.flag("hostPID") == Some(true) {
        let path = spec.path().field("securityContext").field("shareProcessNamespace");
        p.invalid_value(
            &path,
            &true.into(),
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    let Some(c) = spec.given("securityContext").filter(|c| !c.is_empty()) else {
        return;
    };
    ids(&c, &["fsGroup", "runAsUser", "runAsGroup"], p);
    for group in c.each("supplementalGroups") {
        p.invalid_each(&group, user_id_problems(group.as_i64().unwrap_or(0)));
    }
    sysctls(spec, &c, p);
    supported(&c, "fsGroupChangePolicy", &["OnRootMismatch", "Always"], p);
    seccomp(&c, p);
    windows::options(&c, p);
    if let Some(profile) = c.given("appArmorProfile") {
        validate_app_armor(&profile, p);
    }
    supported(&c, "supplementalGroupsPolicy", &["Merge", "Strict"], p);
    // "MountOption" waits for a gate that is off.
    supported(&c, "seLinuxChangePolicy", &["Recursive"], p);
}

pub(super) fn container(c: &Cursor<'_>, host_users: bool, p: &mut Problems) {
    ids(c, &["runAsUser", "runAsGroup"], p);
    supported(c, "procMount", &["Default", "Unmasked"], p);
    if host_users && c.text("procMount") == "Unmasked" {
        p.invalid(&c.at("procMount"), "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(c, p);
    if c.flag("allowPrivilegeEscalation") == Some(false) {
        if c.flag("privileged") == Some(true) {
            p.invalid(
                c,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = c
            .raw("capabilities")
            .and_then(|caps| caps.get("add"))
            .and_then(Value::as_array);
        if added.is_some_and(|list| list.iter().any(|cap| cap == "CAP_SYS_ADMIN")) {
            p.invalid(
                c,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    windows::options(c, p);
    if let Some(profile) = c.given("appArmorProfile") {
        validate_app_armor(&profile, p);
    }
}

fn seccomp(context: &Cursor<'_>, p: &mut Problems) {
    let Some(c) = context.given("seccompProfile") else {
        return;
    };
    match c.text("type") {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => p.required(&c.at("type"), "type is required when seccompProfile is set"),
        _ => p.not_supported(&c.at("type"), &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    match (c.text("type"), c.given("localhostProfile")) {
        ("Localhost", None) => p.required(&c.at("localhostProfile"), "must be set when seccomp type is Localhost"),
        ("Localhost", Some(file)) => descending_path(&file, file.path(), p),
        (_, Some(file)) => {
            let shown = c.value().unwrap_or(&Value::Null);
            p.invalid_value(file.path(), shown, "can only be set when seccomp type is Localhost");
        }
        (_, None) => {}
    }
}

/// An AppArmor profile: type, and the profile's name for a local one.
pub(crate) fn validate_app_armor(c: &Cursor<'_>, p: &mut Problems) {
    const MISSING: &str = "must be set when AppArmor type is Localhost";
    const MAX_NAME: usize = 4095;
    let profile = c.given("localhostProfile");
    match (c.text("type"), profile) {
        ("Localhost", None) => p.required(&c.at("localhostProfile"), MISSING),
        ("Localhost", Some(name)) => {
            let trimmed = name.str().trim();
            if trimmed != name.str() {
                p.invalid(&name, "must not be padded with whitespace");
            } else if trimmed.is_empty() {
                p.required(&name, MISSING);
            }
            if name.len() > MAX_NAME {
                p.too_long(&name, MAX_NAME);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            p.invalid(&name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => p.required(&c.at("type"), "type is required when appArmorProfile is set"),
        _ => p.not_supported(&c.at("type"), &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

/// The profile that an annotation of the time before the field asks for.
pub fn app_armor_from_annotation(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = annotation.strip_prefix("localhost/").filter(|n| !n.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

const SYSCTL: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn sysctls(spec: &Cursor<'_>, c: &Cursor<'_>, p: &mut Problems) {
    let mut seen = HashSet::new();
    for sysctl in c.each("sysctls") {
        let name = sysctl.at("name");
        if name.is_empty() {
            p.required(&name, "");
        } else if !is_sysctl(name.str()) {
            p.invalid(
                &name,
                format!("must have at most 253 characters and match regex {SYSCTL}"),
            );
        } else if seen.contains(name.str()) {
            p.duplicate(&name);
        }
        match namespace_of(name.str()) {
            Some("net") if spec.flag("hostNetwork") == Some(true) => {
                p.invalid(&name, "may not be specified when 'hostNetwork' is true");
            }
            Some("ipc") if spec.flag("hostIPC") == Some(true) => {
                p.invalid(&name, "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
        seen.insert(name.str());
    }
}

fn is_sysctl(name: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let b = part.as_bytes();
            let ends = b.first().is_some_and(|&c| word(c)) && b.last().is_some_and(|&c| word(c));
            ends && b.iter().all(|&c| word(c) || matches!(c, b'-' | b'_'))
        })
}

/// The kernel namespace that keeps a sysctl apart, if it is one of those.
fn namespace_of(name: &str) -> Option<&'static str> {
    // With a slash as the first separator, slashes separate and dots are part of names.
    let dotted: String = match name.find(['.', '/']).map(|i| name.as_bytes()[i]) {
        Some(b'/') => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_string(),
    };
    let name = dotted.split('*').next().unwrap_or("");
    match name {
        "kernel.sem" | "kernel.shmall" | "kernel.shmmax" | "kernel.shmmni" | "kernel.shm_rmid_forced" => Some("ipc"),
        "kernel.shm" | "kernel.msgmax" | "kernel.msgmnb" | "kernel.msgmni" | "kernel.msg" => Some("ipc"),
        _ if name.starts_with("fs.mqueue.") => Some("ipc"),
        _ if name.starts_with("net.") => Some("net"),
        _ => None,
    }
}

/// A user namespace of the pod's own does not go with the host's other namespaces, nor with block devices.
pub(super) fn host_users(spec: &Cursor<'_>, p: &mut Problems) {
    const REFUSED: &str = "when `hostUsers` is false";
    if spec.flag("hostUsers") != Some(false) {
        return;
    }
    for (field, shown) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if spec.flag(field) == Some(true) {
            p.forbidden(&spec.at(shown), REFUSED);
        }
    }
    for c in super::all_containers(spec) {
        if !c.list("volumeDevices").is_empty() {
            p.forbidden(&c.at("volumeDevices"), REFUSED);
        }
    }
}
