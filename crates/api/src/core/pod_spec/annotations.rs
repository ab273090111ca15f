//! Annotations that mean something to Kubernetes, on a pod or a template: mostly fields of a time before the field.

use serde_json::Value;

use super::{MIRROR_POD, Read, all_containers, validate_tolerations};
use crate::field::{Cursor, Path, Problems};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(crate) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(crate) const SECCOMP_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(crate) const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates what stands in `annotations` of a pod or template with this spec.
pub fn validate(annotations: &Cursor<'_>, spec: &Cursor<'_>, p: &mut Problems) {
    let Some(map) = annotations.value().and_then(Value::as_object) else {
        return;
    };
    for (key, value) in map {
        let value = value.as_str().unwrap_or("");
        let path = || annotations.path().key(key);
        match key.as_str() {
            MIRROR_POD if spec.text("nodeName").is_empty() => {
                p.invalid_value(
                    &path(),
                    &value.into(),
                    "must set spec.nodeName if mirror pod annotation is set",
                );
            }
            TOLERATIONS if !value.is_empty() => tolerations(annotations, value, p),
            DELETION_COST if !is_deletion_cost(value) => {
                p.invalid_value(&path(), &value.into(), "must be a 32bit integer");
            }
            SECCOMP_POD => seccomp(value, &path(), p),
            _ if key.starts_with(SECCOMP_PREFIX) => seccomp(value, &path(), p),
            _ => {
                if let Some(container) = key.strip_prefix(APP_ARMOR_PREFIX) {
                    app_armor(container, value, spec, &path(), p);
                }
            }
        }
    }
}

fn tolerations(annotations: &Cursor<'_>, text: &str, p: &mut Problems) {
    match serde_json::from_str::<Value>(text) {
        Ok(list) if list.is_array() => {
            let path = annotations.path().field(TOLERATIONS);
            validate_tolerations(&Cursor::new(Some(&list), path), p);
        }
        Ok(_) => p.invalid_value(annotations.path(), &TOLERATIONS.into(), "must be a list of tolerations"),
        Err(e) => p.invalid_value(annotations.path(), &TOLERATIONS.into(), e.to_string()),
    }
}

/// A 32-bit integer without plus sign and leading zeros.
fn is_deletion_cost(text: &str) -> bool {
    let plain = matches!(text.as_bytes(), [b'0'] | [b'-' | b'1'..=b'9', ..]);
    plain && text.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: &Path, p: &mut Problems) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) => {
            let file = Value::from(file);
            super::volume_sources::descending_path(&Cursor::new(Some(&file), path.clone()), path, p);
        }
        None => p.invalid_value(path, &profile.into(), "must be a valid seccomp profile"),
    }
}

fn app_armor(container: &str, profile: &str, spec: &Cursor<'_>, path: &Path, p: &mut Problems) {
    if !all_containers(spec).any(|c| c.text("name") == container) {
        p.invalid_value(path, &container.into(), "container not found");
    }
    if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
        p.invalid_value(
            path,
            &profile.into(),
            format!("invalid AppArmor profile name: {profile:?}"),
        );
    }
}

/// Where both an annotation and its field are set, they must say the same. Asked of new pods and of templates.
pub fn validate_match(annotations: &Cursor<'_>, spec: &Cursor<'_>, p: &mut Problems) {
    let Some(map) = annotations.value().and_then(Value::as_object).filter(|m| !m.is_empty()) else {
        return;
    };
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    let pod_context = spec.given("securityContext");
    if let (Some(profile), Some(annotation)) = (
        pod_context.as_ref().and_then(|c| c.given("seccompProfile")),
        text(SECCOMP_POD),
    ) {
        agree("seccomp", &profile, profile.path(), annotation, p);
    }
    let windows = spec.raw("os").and_then(|os| os.get("name")) == Some(&Value::from("windows"));
    let pod_app_armor = pod_context.and_then(|c| c.given("appArmorProfile"));
    for c in all_containers(spec) {
        let context = c.given("securityContext");
        let own = |field| context.as_ref().and_then(|c| c.given(field));
        let name = c.text("name");
        if let (Some(profile), Some(annotation)) = (own("seccompProfile"), text(&format!("{SECCOMP_PREFIX}{name}"))) {
            agree("seccomp", &profile, profile.path(), annotation, p);
        }
        if let (Some(profile), Some(annotation)) = (
            own("appArmorProfile")
                .or_else(|| pod_app_armor.clone())
                .filter(|_| !windows),
            text(&format!("{APP_ARMOR_PREFIX}{name}")),
        ) {
            let path = c.path().field("securityContext").field("appArmorProfile");
            agree("apparmor", &profile, &path, annotation, p);
        }
    }
}

fn agree(what: &str, profile: &Cursor<'_>, path: &Path, annotation: &str, p: &mut Problems) {
    let same_type = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default"),
        "Localhost" => annotation.starts_with("localhost/"),
        _ => return,
    };
    if !same_type {
        let detail = format!("{what} type in annotation and field must match");
        p.forbidden(&Cursor::new(None, path.field("type")), detail);
    } else if profile.text("type") == "Localhost"
        && annotation.strip_prefix("localhost/") != profile.raw("localhostProfile").and_then(Value::as_str)
    {
        let detail = format!("{what} profile in annotation and field must match");
        p.forbidden(&Cursor::new(None, path.field("localhostProfile")), detail);
    }
}
