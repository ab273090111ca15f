//! Where containers see volumes: mounts (file systems) and devices (blocks).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::Read;
use super::volume_sources::{descending_path, has_backsteps};
use super::volumes::Named;
use crate::field::{Cursor, ProblemKind, Problems};

pub(super) fn validate(container: &Cursor<'_>, volumes: &Named<'_>, p: &mut Problems) {
    let devices = by_name(container, "volumeDevices", "devicePath");
    if let Some(list) = container.given("volumeMounts") {
        let device_paths: HashSet<&str> = devices.values().copied().collect();
        let security = container.given("securityContext");
        let privileged = security.is_some_and(|s| s.flag("privileged") == Some(true));
        let mut seen = HashSet::new();
        for m in list.items() {
            mount(&m, volumes, &devices, &device_paths, &mut seen, p);
            // Upstream reports these without the index of the mount.
            details(&list, &m, privileged, p);
        }
    }
    if !devices.is_empty() {
        self::devices(container, volumes, p);
    }
}

fn by_name<'a>(container: &Cursor<'a>, list: &str, path: &str) -> HashMap<&'a str, &'a str> {
    let text = |v: &'a Value, field: &str| v.get(field).and_then(Value::as_str).unwrap_or("");
    container
        .list(list)
        .iter()
        .map(|v| (text(v, "name"), text(v, path)))
        .collect()
}

fn not_found(c: &Cursor<'_>, p: &mut Problems) {
    p.push(
        ProblemKind::NotFound,
        c.path(),
        Some(Value::from(c.str()).to_string()),
        "",
    );
}

fn mount<'a>(
    m: &Cursor<'a>,
    volumes: &Named<'_>,
    devices: &HashMap<&str, &str>,
    device_paths: &HashSet<&str>,
    seen: &mut HashSet<&'a str>,
    p: &mut Problems,
) {
    let (name, path) = (m.text("name"), m.text("mountPath"));
    if name.is_empty() {
        p.required(&m.at("name"), "");
    }
    if !volumes.contains_key(name) {
        not_found(&m.at("name"), p);
    }
    if path.is_empty() {
        p.required(&m.at("mountPath"), "");
    }
    if !seen.insert(path) {
        p.invalid(&m.at("mountPath"), "must be unique");
    }
    if devices.contains_key(name) {
        p.invalid(&m.at("name"), "must not already exist in volumeDevices");
    }
    if device_paths.contains(path) {
        p.invalid(&m.at("mountPath"), "must not already exist as a path in volumeDevices");
    }
}

fn details(list: &Cursor<'_>, m: &Cursor<'_>, privileged: bool, p: &mut Problems) {
    let sub_path = m.given("subPath").filter(|s| !s.is_empty());
    if let Some(sub) = &sub_path {
        descending_path(sub, list.at("subPath").path(), p);
    }
    if let Some(sub) = m.given("subPathExpr").filter(|s| !s.is_empty()) {
        if sub_path.is_some() {
            p.invalid(&sub, "subPathExpr and subPath are mutually exclusive");
        }
        descending_path(&sub, list.at("subPathExpr").path(), p);
    }
    let propagation = m.text("mountPropagation");
    if m.has("mountPropagation") {
        let path = list.path().field("mountPropagation");
        let at = Cursor::new(m.raw("mountPropagation"), path);
        if !matches!(propagation, "Bidirectional" | "HostToContainer" | "None") {
            p.not_supported(&at, &["Bidirectional", "HostToContainer", "None"]);
        } else if propagation == "Bidirectional" && !privileged {
            p.forbidden(
                &at,
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
    }
    if m.has("recursiveReadOnly") {
        let at = Cursor::new(m.raw("recursiveReadOnly"), list.path().field("recursiveReadOnly"));
        match at.str() {
            "Disabled" => {}
            "Enabled" | "IfPossible" => {
                if m.flag("readOnly") != Some(true) {
                    p.forbidden(&at, "may only be specified when readOnly is true");
                }
                if !matches!(propagation, "" | "None") {
                    p.forbidden(
                        &at,
                        "may only be specified when mountPropagation is None or not specified",
                    );
                }
            }
            _ => p.not_supported(&at, &["Disabled", "Enabled", "IfPossible"]),
        }
    }
}

fn devices(container: &Cursor<'_>, volumes: &Named<'_>, p: &mut Problems) {
    let mounts = by_name(container, "volumeMounts", "mountPath");
    let mount_paths: HashSet<&str> = mounts.values().copied().collect();
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for d in container.each("volumeDevices") {
        let (name, path) = (d.at("name"), d.at("devicePath"));
        if name.is_empty() {
            p.required(&name, "");
        } else if !names.insert(name.str()) {
            p.invalid(&name, "must be unique");
        }
        match volumes.get(name.str()) {
            None => not_found(&name, p),
            Some(v) if v.get("persistentVolumeClaim").is_none() && v.get("ephemeral").is_none() => p.invalid(
                &name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(_) => {}
        }
        if path.is_empty() {
            p.required(&path, "");
        }
        if paths.contains(path.str()) {
            p.invalid(&path, "must be unique");
        }
        if has_backsteps(path.str()) {
            p.invalid(&path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.str());
        }
        if mounts.contains_key(name.str()) {
            p.invalid(&name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path.str()) {
            p.invalid(&path, "must not already exist as a path in volumeMounts");
        }
    }
}
