//! The rules of each volume source.

use serde_json::Value;

use super::claim_template;
use super::env::{VOLUME_FIELDS, field_ref, resource_field_ref};
use super::{Read, containers, projected};
use crate::field::{Cursor, Path, Problems};
use crate::names;
use crate::quantity::Quantity;

/// (source, it is a pod and not a template, problems)
type Check = fn(&Cursor<'_>, bool, &mut Problems);

/// Every source in the order in which they are looked at: of several in one volume the first counts, the rest is surplus.
pub(super) const SOURCES: &[(&str, Check)] = &[
    ("emptyDir", empty_dir),
    ("hostPath", host_path),
    ("gitRepo", git_repo),
    ("gcePersistentDisk", |c, _, p| disk(c, "pdName", p)),
    ("awsElasticBlockStore", |c, _, p| disk(c, "volumeID", p)),
    ("secret", |c, _, p| keyed(c, "secretName", p)),
    ("nfs", nfs),
    ("iscsi", iscsi),
    ("glusterfs", |c, _, p| required(c, &["endpoints", "path"], p)),
    ("flocker", flocker),
    ("persistentVolumeClaim", |c, _, p| required(c, &["claimName"], p)),
    ("rbd", rbd),
    ("cinder", cinder),
    ("cephfs", cephfs),
    ("quobyte", quobyte),
    ("downwardAPI", downward_api),
    ("fc", fibre_channel),
    ("flexVolume", flex_volume),
    ("configMap", |c, _, p| keyed(c, "name", p)),
    ("azureFile", |c, _, p| required(c, &["secretName", "shareName"], p)),
    ("vsphereVolume", |c, _, p| required(c, &["volumePath"], p)),
    ("photonPersistentDisk", |c, _, p| required(c, &["pdID"], p)),
    ("portworxVolume", |c, _, p| required(c, &["volumeID"], p)),
    ("azureDisk", azure_disk),
    ("storageos", storage_os),
    ("projected", |c, _, p| projected::validate(c, p)),
    ("scaleIO", |c, _, p| {
        required(c, &["gateway", "system", "volumeName"], p)
    }),
    ("csi", csi),
    ("ephemeral", ephemeral),
    ("image", image),
];

fn required(c: &Cursor<'_>, fields: &[&'static str], p: &mut Problems) {
    for field in fields {
        if c.text(field).is_empty() {
            p.required(&c.at(field), "");
        }
    }
}

/// A reference to a secret that is given names one.
fn secret_ref(c: &Cursor<'_>, p: &mut Problems) {
    if let Some(secret) = c.given("secretRef") {
        required(&secret, &["name"], p);
    }
}

pub(super) fn file_mode(c: &Cursor<'_>, field: &'static str, p: &mut Problems) {
    if let Some(mode) = c.given(field)
        && !mode.as_i64().is_some_and(|m| (0..=0o777).contains(&m))
    {
        p.invalid(&mode, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

pub(super) fn no_backsteps(c: &Cursor<'_>, path: &Path, p: &mut Problems) {
    if has_backsteps(c.str()) {
        p.invalid_value(path, &c.str().into(), "must not contain '..'");
    }
}

/// A relative path that stays below where it starts.
pub(super) fn descending_path(c: &Cursor<'_>, path: &Path, p: &mut Problems) {
    if c.str().starts_with('/') {
        p.invalid_value(path, &c.str().into(), "must be a relative path");
    }
    no_backsteps(c, path, p);
}

/// The same, and its first letters are not "..", which the kubelet keeps for itself.
pub(super) fn local_path(c: &Cursor<'_>, path: &Path, p: &mut Problems) {
    descending_path(c, path, p);
    let text = c.str();
    if text.starts_with("..") && !text.starts_with("../") {
        p.invalid_value(path, &text.into(), "must not start with '..'");
    }
}

fn empty_dir(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    if Quantity::parse(c.text("sizeLimit")).is_ok_and(|q| q.is_negative()) {
        p.forbidden(&c.at("sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
}

const HOST_PATH_TYPES: &[&str] = &[
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
];

fn host_path(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    let path = c.at("path");
    if path.is_empty() {
        return p.required(&path, "");
    }
    no_backsteps(&path, path.path(), p);
    if !HOST_PATH_TYPES.contains(&c.text("type")) {
        p.not_supported(&c.at("type"), HOST_PATH_TYPES);
    }
}

fn git_repo(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["repository"], p);
    let directory = c.at("directory");
    descending_path(&directory, directory.path(), p);
}

fn disk(c: &Cursor<'_>, id: &'static str, p: &mut Problems) {
    required(c, &[id], p);
    if let Some(n) = c.given("partition")
        && !n.as_i64().is_some_and(|n| (0..=255).contains(&n))
    {
        p.invalid(&n, "must be between 1 and 255, inclusive");
    }
}

/// A secret or config map.
fn keyed(c: &Cursor<'_>, name: &'static str, p: &mut Problems) {
    required(c, &[name], p);
    file_mode(c, "defaultMode", p);
    for item in c.each("items") {
        key_to_path(&item, p);
    }
}

pub(super) fn key_to_path(c: &Cursor<'_>, p: &mut Problems) {
    required(c, &["key", "path"], p);
    let path = c.at("path");
    local_path(&path, path.path(), p);
    file_mode(c, "mode", p);
}

fn nfs(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["server", "path"], p);
    if !c.text("path").starts_with('/') {
        p.invalid_value(c.at("path").path(), &c.text("path").into(), "must be an absolute path");
    }
}

/// An iSCSI name of one of the three kinds; the second is whether it at least starts like one.
fn iscsi_name(name: &str) -> (bool, bool) {
    let alnum = |s: &str, n: usize| {
        let mut chars = s.chars();
        chars.next().is_some() && chars.as_str().len() == n && chars.all(|c| c.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("iqn") {
        return (is_iqn(rest), true);
    }
    if let Some(rest) = name.strip_prefix("eui") {
        return (alnum(rest, 16), true);
    }
    match name.strip_prefix("naa") {
        Some(rest) => (alnum(rest, 32), true),
        None => (false, false),
    }
}

/// `.2025-01.com.example:disk`
fn is_iqn(rest: &str) -> bool {
    let b = rest.as_bytes();
    let digits = |range: std::ops::Range<usize>| b[range].iter().all(u8::is_ascii_digit);
    if b.len() < 10 || b[0] != b'.' || b[5] != b'-' || b[8] != b'.' || !digits(1..5) || !digits(6..8) {
        return false;
    }
    let authority = b[9..]
        .iter()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'))
        .count();
    let Some(unique) = rest[9 + authority..].strip_prefix(':') else {
        return false;
    };
    authority > 0
        && !unique.is_empty()
        && !unique.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\x0c'])
}

fn iscsi(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["targetPortal", "iqn"], p);
    for (field, shown) in [("iqn", "iqn"), ("initiatorName", "initiatorname")] {
        let Some(name) = c.given(field).filter(|n| field != "iqn" || !n.is_empty()) else {
            continue;
        };
        match iscsi_name(name.str()) {
            (true, _) => {}
            (_, known) => {
                let detail = if known {
                    "must be valid format"
                } else {
                    "must be valid format starting with iqn, eui, or naa"
                };
                p.invalid_value(&c.path().field(shown), &name.str().into(), detail);
            }
        }
    }
    if let Some(lun) = c.given("lun") {
        p.invalid_each(&lun, names::in_range(lun.as_i64().unwrap_or(0), 0, 255));
    }
    let chap = ["chapAuthDiscovery", "chapAuthSession"]
        .iter()
        .any(|f| c.flag(f) == Some(true));
    if chap && !c.has("secretRef") {
        p.required(&c.at("secretRef"), "");
    }
}

pub(super) fn iscsi_name_length(volume: &Cursor<'_>, iscsi: &Cursor<'_>, p: &mut Problems) {
    let length = volume.text("name").len() + 1 + iscsi.text("targetPortal").len();
    if iscsi.has("initiatorName") && length > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                      iscsi.initiatorName is specified.";
        p.invalid(&volume.at("name"), detail);
    }
}

fn flocker(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    match (c.text("datasetName"), c.text("datasetUUID")) {
        ("", "") => p.required(c, "one of datasetName and datasetUUID is required"),
        ("", _) | (_, "") => {}
        _ => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            p.invalid_value(c.path(), &"resource".into(), detail);
        }
    }
    if c.text("datasetName").contains('/') {
        p.invalid(&c.at("datasetName"), "must not contain '/'");
    }
}

fn rbd(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    if c.list("monitors").is_empty() {
        p.required(&c.at("monitors"), "");
    }
    required(c, &["image"], p);
}

fn cinder(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["volumeID"], p);
    secret_ref(c, p);
}

fn cephfs(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    if c.list("monitors").is_empty() {
        p.required(&c.at("monitors"), "");
    }
}

fn quobyte(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = c.text("registry");
    if registry.is_empty() {
        p.required(&c.at("registry"), PAIRS);
    } else if c.text("tenant").len() >= 65 {
        p.required(
            &c.at("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        for pair in registry.split(',') {
            let host = pair.rsplit_once(':').map(|(host, _)| host);
            let bracketed = |h: &str| h.starts_with('[') && h.ends_with(']');
            if !host.is_some_and(|h| !h.contains(':') || bracketed(h)) {
                p.invalid(&c.at("registry"), PAIRS);
            }
        }
    }
    required(c, &["volume"], p);
}

fn downward_api(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    file_mode(c, "defaultMode", p);
    for file in c.each("items") {
        // Upstream reports the files of a volume at the volume.
        downward_api_file(&Cursor::new(file.value(), c.path().clone()), p);
    }
}

pub(super) fn downward_api_file(c: &Cursor<'_>, p: &mut Problems) {
    required(c, &["path"], p);
    let path = c.at("path");
    local_path(&path, path.path(), p);
    match (c.given("fieldRef"), c.given("resourceFieldRef")) {
        (Some(field), resource) => {
            field_ref(&field, VOLUME_FIELDS, p);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                p.invalid_value(c.path(), &"resource".into(), detail);
            }
        }
        (None, Some(resource)) => resource_field_ref(&resource, true, p),
        (None, None) => p.required(c, "one of fieldRef and resourceFieldRef is required"),
    }
    file_mode(c, "mode", p);
}

fn fibre_channel(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    let targets = c.at("targetWWNs");
    match (targets.is_empty(), c.list("wwids").is_empty()) {
        (true, true) => p.required(&targets, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => p.invalid(&targets, "targetWWNs and wwids can not be specified simultaneously"),
        _ => {}
    }
    if !targets.is_empty() {
        match c.given("lun") {
            None => p.required(&c.at("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) => p.invalid_each(&lun, names::in_range(lun.as_i64().unwrap_or(0), 0, 255)),
        }
    }
}

fn flex_volume(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["driver"], p);
    let options = c.raw("options").and_then(Value::as_object);
    for key in options.into_iter().flatten().map(|(k, _)| k) {
        let domain = format!(".{}", key.split('/').next().unwrap_or("").to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let path = c.path().field("options").key(key);
            p.invalid_value(
                &path,
                &key.as_str().into(),
                "kubernetes.io and k8s.io namespaces are reserved",
            );
        }
    }
}

fn azure_disk(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["diskName", "diskURI"], p);
    for (field, supported) in [
        ("cachingMode", &["None", "ReadOnly", "ReadWrite"]),
        ("kind", &["Shared", "Dedicated", "Managed"]),
    ] {
        if let Some(word) = c.given(field)
            && !supported.contains(&word.str())
        {
            p.not_supported(&word, supported);
        }
    }
    let form = match c.text("kind") {
        "" => return,
        "Managed" if c.text("diskURI").starts_with("/subscriptions/") => return,
        "Managed" => "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        _ if c.text("diskURI").starts_with("https://") => return,
        _ => "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
    };
    p.not_supported(&c.at("diskURI"), &[form]);
}

fn storage_os(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    required(c, &["volumeName"], p);
    for field in ["volumeName", "volumeNamespace"] {
        if let Some(name) = c.given(field).filter(|n| !n.is_empty()) {
            p.invalid_each(&name, names::dns_label(name.str()));
        }
    }
    secret_ref(c, p);
}

fn csi(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    validate_csi_driver(&c.at("driver"), p);
    if let Some(secret) = c.given("nodePublishSecretRef") {
        let name = secret.text("name");
        if name.is_empty() {
            p.required(&secret.at("name"), "");
        } else {
            // Upstream reports the name at the source itself.
            p.invalid_each(
                &Cursor::new(secret.raw("name"), c.path().field("name")),
                names::dns_subdomain(name),
            );
        }
    }
}

/// The name of a CSI driver, wherever one is named.
pub(crate) fn validate_csi_driver(c: &Cursor<'_>, p: &mut Problems) {
    let name = c.str();
    if name.is_empty() {
        return p.required(c, "");
    }
    if name.len() > 63 {
        p.too_long(c, 63);
    }
    p.invalid_each(c, names::dns_subdomain(&name.to_lowercase()));
}

fn ephemeral(c: &Cursor<'_>, _: bool, p: &mut Problems) {
    match c.given("volumeClaimTemplate") {
        None => p.required(&c.at("volumeClaimTemplate"), ""),
        Some(template) => claim_template::validate(&template, p),
    }
}

fn image(c: &Cursor<'_>, is_pod: bool, p: &mut Problems) {
    // In a template the reference may come later, from whoever changes the template.
    if is_pod {
        required(c, &["reference"], p);
    }
    containers::pull_policy(c, "pullPolicy", p);
}
