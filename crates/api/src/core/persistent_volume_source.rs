//! What a persistent volume is made of: exactly one of these. Upstream: ValidatePersistentVolumeSpec (v1.36).

use serde_json::{Value, json};

use crate::field::{Cursor, ProblemKind, Problems};
use crate::meta::{invalid_text, not_supported};
use crate::{fill, names};

struct Source {
    field: &'static str,
    validate: fn(&Cursor<'_>, &mut Problems),
    /// The mount-options annotation means something to it.
    mount_options: bool,
}

const fn source(field: &'static str, validate: fn(&Cursor<'_>, &mut Problems)) -> Source {
    Source {
        field,
        validate,
        mount_options: true,
    }
}

const fn without_mount_options(field: &'static str, validate: fn(&Cursor<'_>, &mut Problems)) -> Source {
    Source {
        field,
        validate,
        mount_options: false,
    }
}

/// In the order in which they are looked at: the first one counts, the others are too many.
const SOURCES: &[Source] = &[
    without_mount_options("hostPath", validate_host_path),
    source("gcePersistentDisk", |s, p| {
        // Upstream reports it under a shorter name.
        let parent = s.path().to_string();
        let before = p.0.len();
        require(s, &["pdName"], p);
        validate_partition(&s.at("partition"), p);
        for problem in &mut p.0[before..] {
            problem.field = problem.field.replacen(&parent, "spec.persistentDisk", 1);
        }
    }),
    source("awsElasticBlockStore", |s, p| {
        require(s, &["volumeID"], p);
        validate_partition(&s.at("partition"), p);
    }),
    source("glusterfs", validate_glusterfs),
    without_mount_options("flocker", validate_flocker),
    source("nfs", |s, p| {
        require(s, &["server", "path"], p);
        if !s.at("path").str().starts_with('/') {
            invalid_text(&s.at("path"), "must be an absolute path", p);
        }
    }),
    source("rbd", |s, p| require(s, &["monitors", "image"], p)),
    source("quobyte", validate_quobyte),
    source("cephfs", |s, p| require(s, &["monitors"], p)),
    source("iscsi", validate_iscsi),
    source("cinder", |s, p| {
        require(s, &["volumeID"], p);
        if s.at("secretRef").exists() {
            require(&s.at("secretRef"), &["name", "namespace"], p);
        }
    }),
    without_mount_options("fc", validate_fibre_channel),
    without_mount_options("flexVolume", validate_flex),
    source("azureFile", |s, p| {
        require(s, &["secretName", "shareName"], p);
        if s.at("secretNamespace").exists() {
            require(s, &["secretNamespace"], p);
        }
    }),
    source("vsphereVolume", |s, p| require(s, &["volumePath"], p)),
    source("photonPersistentDisk", |s, p| require(s, &["pdID"], p)),
    without_mount_options("portworxVolume", |s, p| require(s, &["volumeID"], p)),
    source("azureDisk", validate_azure_disk),
    without_mount_options("scaleIO", |s, p| require(s, &["gateway", "system", "volumeName"], p)),
    without_mount_options("local", |s, p| {
        require(s, &["path"], p);
        validate_no_backsteps(&s.at("path"), p);
    }),
    without_mount_options("storageos", validate_storageos),
    without_mount_options("csi", validate_csi),
];

/// The names of the sources' fields in a volume's spec.
pub(super) fn fields() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|s| s.field)
}

pub(super) fn allows_mount_options(spec: &Cursor<'_>) -> bool {
    SOURCES.iter().any(|s| s.mount_options && spec.at(s.field).exists())
}

pub(super) fn default(spec: &mut Value) {
    for (field, defaults) in [
        (
            "rbd",
            &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")][..],
        ),
        ("iscsi", &[("iscsiInterface", "default")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ] {
        for (name, value) in defaults {
            if let Some(source) = spec.get_mut(field) {
                fill::empty(source, name, *value);
            }
        }
    }
    if let Some(path) = spec.get_mut("hostPath") {
        fill::absent(path, "type", "");
    }
    if let Some(disk) = spec.get_mut("azureDisk") {
        fill::absent(disk, "cachingMode", "ReadWrite");
        fill::absent(disk, "fsType", "ext4");
        fill::absent(disk, "readOnly", false);
        fill::absent(disk, "kind", "Shared");
    }
}

pub(super) fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    let mut found = 0;
    for source in SOURCES {
        let here = spec.at(source.field);
        if !here.exists() {
            continue;
        }
        // Flex volumes do not mind company, upstream.
        if found > 0 && source.field != "flexVolume" {
            let name = if source.field == "cephfs" {
                "cephFS"
            } else {
                source.field
            };
            let path = spec.path().field(name);
            p.push(
                ProblemKind::Forbidden,
                &path,
                None,
                "may not specify more than 1 volume type",
            );
            continue;
        }
        found += 1;
        (source.validate)(&here, p);
        if source.field == "local" && !spec.at("nodeAffinity").exists() {
            p.required(&spec.at("nodeAffinity"), "Local volume requires node affinity");
        }
    }
    if found == 0 {
        p.required(spec, "must specify a volume type");
    }
}

fn require(c: &Cursor<'_>, fields: &[&'static str], p: &mut Problems) {
    for field in fields {
        if c.at(field).is_empty() {
            p.required(&c.at(field), "");
        }
    }
}

fn validate_no_backsteps(path: &Cursor<'_>, p: &mut Problems) {
    if path.str().split('/').any(|part| part == "..") {
        p.invalid(path, "must not contain '..'");
    }
}

fn validate_partition(partition: &Cursor<'_>, p: &mut Problems) {
    if !(0..=255).contains(&partition.as_i64().unwrap_or(0)) {
        // 0 stands for none: the message leaves it out.
        p.invalid(partition, "must be between 1 and 255, inclusive");
    }
}

fn validate_host_path(s: &Cursor<'_>, p: &mut Problems) {
    if s.at("path").is_empty() {
        return p.required(&s.at("path"), "");
    }
    validate_no_backsteps(&s.at("path"), p);
    const TYPES: [&str; 8] = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if !TYPES.contains(&s.at("type").str()) {
        p.not_supported(&s.at("type"), &TYPES);
    }
}

fn validate_glusterfs(s: &Cursor<'_>, p: &mut Problems) {
    require(s, &["endpoints", "path"], p);
    let namespace = s.at("endpointsNamespace");
    if namespace.exists() {
        if namespace.is_empty() {
            p.invalid(
                &namespace,
                "if the endpointnamespace is set, it must be a valid namespace name",
            );
        } else {
            p.invalid_each(&namespace, names::dns_label(namespace.str()));
        }
    }
}

fn validate_flocker(s: &Cursor<'_>, p: &mut Problems) {
    let (name, uuid) = (s.at("datasetName"), s.at("datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => p.required(s, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            p.invalid_value(s.path(), &json!("resource"), detail);
        }
        _ => {}
    }
    if name.str().contains('/') {
        p.invalid(&name, "must not contain '/'");
    }
}

fn validate_quobyte(s: &Cursor<'_>, p: &mut Problems) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = s.at("registry");
    if registry.is_empty() {
        p.required(&registry, PAIRS);
    } else if s.at("tenant").len() >= 65 {
        p.required(
            &s.at("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        for _ in registry.str().split(',').filter(|pair| !is_host_port(pair)) {
            p.invalid(&registry, PAIRS);
        }
    }
    require(s, &["volume"], p);
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    !port.contains(']') && (bracketed || !host.contains([':', '[', ']']))
}

fn validate_iscsi(s: &Cursor<'_>, p: &mut Problems) {
    require(s, &["targetPortal", "iqn"], p);
    let iqn = s.at("iqn");
    if !iqn.is_empty() && !is_iscsi_name(iqn.str()) {
        p.invalid(&iqn, "must be valid format");
    }
    if let Some(lun) = s.at("lun").as_i64() {
        p.invalid_each(&s.at("lun"), names::in_range(lun, 0, 255));
    }
    let secret = s.at("secretRef");
    if (s.at("chapAuthDiscovery").is_true() || s.at("chapAuthSession").is_true()) && !secret.exists() {
        p.required(&secret, "");
    }
    if secret.exists() {
        require(&secret, &["name"], p);
    }
    let initiator = s.at("initiatorName");
    if initiator.exists() && !is_iscsi_name(initiator.str()) {
        let path = s.path().field("initiatorname");
        p.invalid_value(&path, &json!(initiator.str()), "must be valid format");
    }
}

/// With the name of the volume before it, the portal names a session: there is room for 64 characters.
pub(super) fn validate_iscsi_length(volume: &str, spec: &Cursor<'_>, p: &mut Problems) {
    let iscsi = spec.at("iscsi");
    let portal = iscsi.at("targetPortal").str();
    if iscsi.at("initiatorName").exists() && volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        p.invalid_value(&iscsi.path().field("targetportal"), &json!(portal), detail);
    }
}

/// `iqn.2001-04.com.example:disk`, `eui.` and 16 characters, or `naa.` and 32.
fn is_iscsi_name(name: &str) -> bool {
    let plain = |rest: &str, n: usize| {
        let mut chars = rest.chars();
        chars.next().is_some() && chars.as_str().len() == n && chars.all(|c| c.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("eui") {
        return plain(rest, 16);
    }
    if let Some(rest) = name.strip_prefix("naa") {
        return plain(rest, 32);
    }
    let Some(rest) = name.strip_prefix("iqn.") else {
        return false;
    };
    let date = rest.bytes().take(8).enumerate().all(|(i, b)| match i {
        4 => b == b'-',
        7 => b == b'.',
        _ => b.is_ascii_digit(),
    });
    let Some((authority, disk)) = rest.get(8..).and_then(|r| r.split_once(':')) else {
        return false;
    };
    date && !authority.is_empty()
        && authority
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        && !disk.is_empty()
        && !disk.contains([',', ';', '*', '&', '$', '|'])
        && !disk.contains(char::is_whitespace)
}

fn validate_fibre_channel(s: &Cursor<'_>, p: &mut Problems) {
    let (targets, ids, lun) = (s.at("targetWWNs"), s.at("wwids"), s.at("lun"));
    match (!targets.is_empty(), !ids.is_empty()) {
        (false, false) => p.required(&targets, "must specify either targetWWNs or wwids, but not both"),
        (true, true) => p.invalid(&targets, "targetWWNs and wwids can not be specified simultaneously"),
        _ => {}
    }
    if !targets.is_empty() {
        match lun.as_i64() {
            None => p.required(&lun, "lun is required if targetWWNs is specified"),
            Some(n) => p.invalid_each(&lun, names::in_range(n, 0, 255)),
        }
    }
}

fn validate_flex(s: &Cursor<'_>, p: &mut Problems) {
    require(s, &["driver"], p);
    for (key, option) in s.at("options").entries() {
        let domain = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            p.invalid_value(option.path(), &json!(key), detail);
        }
    }
}

fn validate_azure_disk(s: &Cursor<'_>, p: &mut Problems) {
    require(s, &["diskName", "diskURI"], p);
    p.one_of(&s.at("cachingMode"), false, &["None", "ReadOnly", "ReadWrite"]);
    p.one_of(&s.at("kind"), false, &["Dedicated", "Managed", "Shared"]);
    let uri = s.at("diskURI");
    let (start, example) = match s.at("kind").str() {
        "" => return,
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        ),
    };
    if !uri.str().starts_with(start) {
        not_supported(&uri, &[example], p);
    }
}

fn validate_storageos(s: &Cursor<'_>, p: &mut Problems) {
    require(s, &["volumeName"], p);
    for field in ["volumeName", "volumeNamespace"] {
        if !s.at(field).is_empty() {
            p.invalid_each(&s.at(field), names::dns_label(s.at(field).str()));
        }
    }
    if s.at("secretRef").exists() {
        require(&s.at("secretRef"), &["name", "namespace"], p);
    }
}

fn validate_csi(s: &Cursor<'_>, p: &mut Problems) {
    let driver = s.at("driver");
    if driver.is_empty() {
        p.required(&driver, "");
    } else {
        if driver.len() > 63 {
            p.too_long(&driver, 63);
        }
        p.invalid_each(&driver, names::dns_subdomain(&driver.str().to_lowercase()));
    }
    require(s, &["volumeHandle"], p);
    for field in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let secret = s.at(field);
        if !secret.exists() {
            continue;
        }
        for (part, rule) in [
            ("name", names::dns_subdomain as names::Rule),
            ("namespace", names::dns_label),
        ] {
            if secret.at(part).is_empty() {
                p.required(&secret.at(part), "");
            } else {
                p.invalid_each(&secret.at(part), rule(secret.at(part).str()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Path, Problem};

    #[test]
    fn each_source_has_its_rules() {
        for (spec, wanted) in [
            (json!({}), "spec: Required value: must specify a volume type"),
            (
                json!({"hostPath": {"path": "/a"}, "cephfs": {"monitors": ["m"]}, "nfs": {"server": "s", "path": "/"}}),
                "spec.nfs: Forbidden: may not specify more than 1 volume type; spec.cephFS: Forbidden: may not specify more than 1 volume type",
            ),
            (json!({"hostPath": {}}), "spec.hostPath.path: Required value"),
            (
                json!({"hostPath": {"path": "/a/../b"}}),
                "spec.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            (
                json!({"hostPath": {"path": "/", "type": "Tree"}}),
                "spec.hostPath.type: Unsupported value: \"Tree\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            ),
            (
                json!({"gcePersistentDisk": {"partition": 256}}),
                "spec.persistentDisk.pdName: Required value; spec.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ),
            (
                json!({"awsElasticBlockStore": {}}),
                "spec.awsElasticBlockStore.volumeID: Required value",
            ),
            (
                json!({"glusterfs": {"endpointsNamespace": ""}}),
                "spec.glusterfs.endpoints: Required value; spec.glusterfs.path: Required value; spec.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name",
            ),
            (
                json!({"flocker": {}}),
                "spec.flocker: Required value: one of datasetName and datasetUUID is required",
            ),
            (
                json!({"flocker": {"datasetName": "a/b", "datasetUUID": "u"}}),
                "spec.flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously; spec.flocker.datasetName: Invalid value: \"a/b\": must not contain '/'",
            ),
            (
                json!({"nfs": {"server": "s", "path": "a"}}),
                "spec.nfs.path: Invalid value: \"a\": must be an absolute path",
            ),
            (json!({"rbd": {"image": "i"}}), "spec.rbd.monitors: Required value"),
            (
                json!({"quobyte": {"volume": "v", "registry": "a:1,[::1]:2,b"}}),
                "spec.quobyte.registry: Invalid value: \"a:1,[::1]:2,b\": must be a host:port pair or multiple pairs separated by commas",
            ),
            (
                json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.2001-04.com.example:disk"}}),
                "",
            ),
            (
                json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.x", "lun": 300, "chapAuthSession": true, "initiatorName": "eui.1"}}),
                "spec.iscsi.iqn: Invalid value: \"iqn.x\": must be valid format; spec.iscsi.lun: Invalid value: 300: must be between 0 and 255, inclusive; spec.iscsi.secretRef: Required value; spec.iscsi.initiatorname: Invalid value: \"eui.1\": must be valid format",
            ),
            (
                json!({"cinder": {"volumeID": "v", "secretRef": {"name": "n"}}}),
                "spec.cinder.secretRef.namespace: Required value",
            ),
            (
                json!({"fc": {}}),
                "spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
            ),
            (
                json!({"fc": {"targetWWNs": ["a"]}}),
                "spec.fc.lun: Required value: lun is required if targetWWNs is specified",
            ),
            (
                json!({"flexVolume": {"driver": "d", "options": {"x.k8s.io/a": "b"}}}),
                "spec.flexVolume.options[x.k8s.io/a]: Invalid value: \"x.k8s.io/a\": kubernetes.io and k8s.io namespaces are reserved",
            ),
            (
                json!({"azureFile": {"secretName": "s"}}),
                "spec.azureFile.shareName: Required value",
            ),
            (
                json!({"vsphereVolume": {}}),
                "spec.vsphereVolume.volumePath: Required value",
            ),
            (
                json!({"photonPersistentDisk": {}}),
                "spec.photonPersistentDisk.pdID: Required value",
            ),
            (
                json!({"portworxVolume": {}}),
                "spec.portworxVolume.volumeID: Required value",
            ),
            (
                json!({"azureDisk": {"diskName": "d", "diskURI": "x", "kind": "Managed"}}),
                "spec.azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ),
            (
                json!({"scaleIO": {"gateway": "g", "system": "s"}}),
                "spec.scaleIO.volumeName: Required value",
            ),
            (
                json!({"local": {"path": "/a"}}),
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ),
            (
                json!({"storageos": {"secretRef": {"name": "n"}}}),
                "spec.storageos.volumeName: Required value; spec.storageos.secretRef.namespace: Required value",
            ),
            (
                json!({"csi": {"driver": "d".repeat(64), "volumeHandle": "h"}}),
                "spec.csi.driver: Too long: may not be more than 63 bytes",
            ),
            (
                json!({"csi": {"driver": "D.io", "nodePublishSecretRef": {}}}),
                "spec.csi.volumeHandle: Required value; spec.csi.nodePublishSecretRef.name: Required value; spec.csi.nodePublishSecretRef.namespace: Required value",
            ),
        ] {
            let mut p = Problems::default();
            validate(&Cursor::new(Some(&spec), Path::default().field("spec")), &mut p);
            let found: Vec<String> = p.0.iter().map(Problem::to_string).collect();
            assert_eq!(found.join("; "), wanted, "{spec}");
        }
    }
}
