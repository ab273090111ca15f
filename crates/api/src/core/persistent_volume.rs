//! Persistent volumes. Upstream: pkg/registry/core/persistentvolume, ValidatePersistentVolume (v1.36).

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::persistent_volume_source as source;
use super::pod_spec;
use super::resource_rules::round_up;
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::kind::{Column, KindDef, Subresource, copy_member, keep_status};
use crate::quantity::Quantity;
use crate::{fill, meta, names, printing};

pub const DEF: KindDef = KindDef {
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    singular: "persistentvolume",
    short_names: &["pv"],
    namespaced: false,
    schema: "core/v1.PersistentVolume",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Capacity"),
        Column::string("Access Modes"),
        Column::string("Reclaim Policy"),
        Column::string("Status"),
        Column::string("Claim"),
        Column::string("StorageClass"),
        Column::string("VolumeAttributesClass"),
        Column::string("Reason"),
        Column::AGE,
        Column::wide("VolumeMode"),
    ],
    cells,
    default,
    prepare_create,
    prepare_update: keep_status,
    prepare_status,
    validate,
    validate_update,
    warnings,
    ..KindDef::BASE
};

/// Where the storage class stood before it had a field, in volumes and claims.
pub(super) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const MOUNT_OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

fn default(volume: &mut Value) {
    fill::empty(fill::member(volume, "status"), "phase", "Pending");
    let spec = fill::member(volume, "spec");
    default_spec(spec);
}

/// The defaults of a volume's spec, which VolumeAttachments hold as well.
pub fn default_spec(spec: &mut Value) {
    fill::empty(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill::absent(spec, "volumeMode", "Filesystem");
    source::default(spec);
    round_up(spec, "capacity");
}

/// A new volume is pending since it was made.
fn prepare_create(volume: &mut Value) {
    let made = volume
        .pointer("/metadata/creationTimestamp")
        .filter(|t| t.is_string())
        .cloned();
    volume["status"] = json!({"phase": "Pending"});
    if let Some(made) = made {
        volume["status"]["lastPhaseTransitionTime"] = made;
    }
}

fn prepare_status(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
    let time = old.pointer("/status/lastPhaseTransitionTime");
    if let Some(time) = time
        && printing::text(new, "/status/phase") == printing::text(old, "/status/phase")
    {
        fill::absent(fill::member(new, "status"), "lastPhaseTransitionTime", time.clone());
    }
}

/// Notes when the phase changed, unless the writer says so itself. For the status endpoint, after `prepare_status`.
pub fn stamp_phase_transition(new: &mut Value, old: &Value, now: Timestamp) {
    let phase = |volume: &Value| printing::text(volume, "/status/phase").to_string();
    let time = |volume: &Value| printing::text(volume, "/status/lastPhaseTransitionTime").to_string();
    if phase(new) != phase(old) && (time(new).is_empty() || time(new) == time(old)) {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        fill::member(new, "status")["lastPhaseTransitionTime"] = now.to_string().into();
    }
}

fn validate(volume: &Cursor<'_>, p: &mut Problems) {
    let spec = volume.at("spec");
    validate_access_modes(&spec.at("accessModes"), "", p);
    validate_capacity(&spec.at("capacity"), p);
    p.one_of(
        &spec.at("persistentVolumeReclaimPolicy"),
        false,
        &["Delete", "Recycle", "Retain"],
    );
    let affinity = spec.at("nodeAffinity");
    if affinity.exists() {
        if affinity.at("required").exists() {
            pod_spec::validate_node_selector(&affinity.at("required"), p);
        } else {
            p.required(&affinity.at("required"), "must specify required node constraints");
        }
    }
    source::validate(&spec, p);
    source::validate_iscsi_length(volume.at("metadata").at("name").str(), &spec, p);
    let policy = spec.at("persistentVolumeReclaimPolicy");
    if policy.str() == "Recycle" && spec.at("hostPath").exists() && is_root(spec.at("hostPath").at("path").str()) {
        p.forbidden(&policy, "may not be 'recycle' for a hostPath mount of '/'");
    }
    let class = spec.at("storageClassName");
    if !class.is_empty() {
        p.invalid_each(&class, names::dns_subdomain(class.str()));
    }
    validate_volume_mode(&spec.at("volumeMode"), p);
    validate_attributes_class(&spec, p);
    if meta::annotation(volume, MOUNT_OPTIONS_ANNOTATION).is_some() && !source::allows_mount_options(&spec) {
        let path = Path::default()
            .field("metadata")
            .field("annotations")
            .field(MOUNT_OPTIONS_ANNOTATION);
        let detail = "may not specify mount options for this volume type";
        p.push(ProblemKind::Forbidden, &path, None, detail);
    }
}

/// The spec of a volume that no PersistentVolume object stands for: in a VolumeAttachment. It is CSI's only.
pub fn validate_inline_spec(spec: &Cursor<'_>, p: &mut Problems) {
    const INLINE: &str = "may not be specified in the context of inline volumes";
    for field in ["claimRef", "capacity"] {
        if !spec.at(field).is_empty() {
            p.forbidden(&spec.at(field), INLINE);
        }
    }
    if !spec.at("csi").exists() {
        p.required(&spec.at("csi"), "has to be specified in the context of inline volumes");
    }
    validate_access_modes(&spec.at("accessModes"), "", p);
    let policy = spec.at("persistentVolumeReclaimPolicy");
    if !matches!(policy.str(), "" | "Retain") {
        p.forbidden(&policy, "may only be Retain in the context of inline volumes");
    }
    if spec.at("nodeAffinity").exists() {
        p.forbidden(&spec.at("nodeAffinity"), INLINE);
    }
    source::validate(spec, p);
    if !spec.at("storageClassName").is_empty() {
        p.forbidden(&spec.at("storageClassName"), INLINE);
    }
    let mode = spec.at("volumeMode");
    if mode.exists() && mode.str() != "Filesystem" {
        p.forbidden(
            &mode,
            "may not specify volumeMode other than Filesystem in the context of inline volumes",
        );
    }
    validate_attributes_class(spec, p);
}

pub(super) const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// There is one, all are known, and the one that means "one pod only" stands alone.
pub(super) fn validate_access_modes(modes: &Cursor<'_>, none: &str, p: &mut Problems) {
    if modes.is_empty() {
        p.required(modes, none);
    }
    for mode in modes.items() {
        if !ACCESS_MODES.contains(&mode.str()) {
            p.not_supported(&Cursor::new(mode.value(), modes.path().clone()), &ACCESS_MODES);
        }
    }
    let is_single = |mode: Cursor<'_>| mode.str() == "ReadWriteOncePod";
    let others = modes.items().any(|m| ACCESS_MODES[..3].contains(&m.str()));
    if modes.items().any(is_single) && others {
        p.forbidden(modes, "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn validate_volume_mode(mode: &Cursor<'_>, p: &mut Problems) {
    if mode.exists() && !matches!(mode.str(), "Block" | "Filesystem") {
        p.not_supported(mode, &["Block", "Filesystem"]);
    }
}

/// A volume has storage, and nothing else.
fn validate_capacity(capacity: &Cursor<'_>, p: &mut Problems) {
    if capacity.is_empty() {
        p.required(capacity, "");
    }
    if !capacity.has_key("storage") || capacity.len() > 1 {
        let shown = crate::field::shown(capacity.value());
        p.push(
            ProblemKind::NotSupported,
            capacity.path(),
            Some(shown),
            "supported values: \"storage\"",
        );
    }
    for (_, amount) in capacity.entries() {
        let Ok(quantity) = Quantity::parse(amount.str()) else {
            continue;
        };
        if quantity.value() < 0 {
            p.invalid_value(
                amount.path(),
                &json!(quantity.value()),
                "must be a valid resource quantity",
            );
        }
        if quantity.sign() <= 0 {
            p.invalid(&amount, "must be greater than zero");
        }
    }
}

fn validate_attributes_class(spec: &Cursor<'_>, p: &mut Problems) {
    let class = spec.at("volumeAttributesClassName");
    if !class.exists() {
        return;
    }
    if class.is_empty() {
        p.required(&class, "an empty string is disallowed");
    } else {
        p.invalid_each(&class, names::dns_subdomain(class.str()));
    }
    if !spec.at("csi").exists() {
        p.required(
            &spec.at("csi"),
            "has to be specified when using volumeAttributesClassName",
        );
    }
}

fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (spec, before) = (new.at("spec"), old.at("spec"));
    let (mut now, then) = (sources(&spec), sources(&before));
    // The secret for growing the volume may be added later.
    if before.at("csi").exists()
        && !before.at("csi").at("controllerExpandSecretRef").exists()
        && let Some(csi) = now.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove("controllerExpandSecretRef");
    }
    if now != then {
        let detail = format!(
            "spec.persistentvolumesource is immutable after creation\n{}",
            difference(&then, &now)
        );
        p.push(
            ProblemKind::Forbidden,
            &spec.path().field("persistentvolumesource"),
            None,
            detail,
        );
    }
    let mode = Cursor::new(spec.at("volumeMode").value(), Path::default().field("volumeMode"));
    p.immutable(&mode, &before.at("volumeMode"));
    let affinity = before.at("nodeAffinity");
    if affinity.exists() {
        let now = spec.at("nodeAffinity");
        if with_current_labels(&now, &affinity) != now.value().cloned() {
            let path = Path::default().field("nodeAffinity");
            let detail = "field is immutable, except for updating from beta label to GA";
            p.invalid_value(&path, now.value().unwrap_or(&Value::Null), detail);
        }
    }
    let class = spec.at("volumeAttributesClassName");
    if before.at("volumeAttributesClassName").exists() && !class.exists() {
        p.forbidden(&class, "update from non-nil value to nil is forbidden");
    }
}

fn sources(spec: &Cursor<'_>) -> Map<String, Value> {
    let found = source::fields().filter_map(|field| Some((field.to_string(), spec.at(field).value()?.clone())));
    found.collect()
}

/// What was and what is, field by field, for a message.
pub(super) fn difference(old: &Map<String, Value>, new: &Map<String, Value>) -> String {
    let mut lines = vec![];
    for (sign, here, there) in [("-", old, new), ("+", new, old)] {
        for (name, value) in here.iter().filter(|(name, value)| there.get(*name) != Some(value)) {
            lines.push(format!("{sign} {name}: {value}"));
        }
    }
    lines.join("\n")
}

const CURRENT_LABELS: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// The old affinity with those label keys brought up to date that the new one has brought up to date.
fn with_current_labels(new: &Cursor<'_>, old: &Cursor<'_>) -> Option<Value> {
    let mut updated = old.value()?.clone();
    let terms = updated
        .pointer_mut("/required/nodeSelectorTerms")
        .and_then(Value::as_array_mut);
    for (t, term) in terms.into_iter().flatten().enumerate() {
        for list in ["matchExpressions", "matchFields"] {
            for (i, requirement) in fill::items(term, list).enumerate() {
                let path = format!("/required/nodeSelectorTerms/{t}/{list}/{i}/key");
                let key = new.value().map_or("", |n| printing::text(n, &path));
                let before = printing::text(requirement, "/key");
                if CURRENT_LABELS.contains(&(before, key)) {
                    requirement["key"] = key.into();
                }
            }
        }
    }
    Some(updated)
}

fn warnings(volume: &Cursor<'_>, _old: Option<&Cursor<'_>>) -> Vec<String> {
    let spec = volume.at("spec");
    let mut out = vec![];
    for (key, advice) in [
        (
            CLASS_ANNOTATION,
            "deprecated since v1.8; use \"storageClassName\" attribute instead",
        ),
        (
            MOUNT_OPTIONS_ANNOTATION,
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ] {
        if meta::annotation(volume, key).is_some() {
            out.push(format!("metadata.annotations[{key}]: {advice}"));
        }
    }
    if spec.at("persistentVolumeReclaimPolicy").str() == "Recycle" {
        out.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
                .to_string(),
        );
    }
    for term in spec.at("nodeAffinity").at("required").at("nodeSelectorTerms").items() {
        for requirement in term.at("matchExpressions").items() {
            let key = requirement.at("key");
            if let Some(advice) = node_label_advice(key.str()) {
                out.push(format!("{}: {} is {advice}", key.path(), key.str()));
            }
        }
    }
    for (field, since, gone) in [
        ("cephfs", "1.28", "1.31"),
        ("photonPersistentDisk", "1.11", "1.16"),
        ("scaleIO", "1.16", "1.22"),
        ("storageos", "1.22", "1.25"),
        ("glusterfs", "1.25", "1.26"),
        ("rbd", "1.28", "1.31"),
    ] {
        if spec.at(field).exists() {
            let shown = if field == "storageos" { "storageOS" } else { field };
            out.push(format!(
                "spec.{shown}: deprecated in v{since}, non-functional in v{gone}+"
            ));
        }
    }
    out
}

fn node_label_advice(key: &str) -> Option<String> {
    let fixed = match key {
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => {
            let (_, new) = CURRENT_LABELS.iter().find(|(old, _)| *old == key)?;
            let since = if new.starts_with("kubernetes.io/") {
                "1.14"
            } else {
                "1.17"
            };
            return Some(format!("deprecated since v{since}; use {new:?} instead"));
        }
    };
    Some(fixed.to_string())
}

/// `RWO,ROX,RWX,RWOP`, in this order.
pub(super) fn shown_access_modes(modes: &Cursor<'_>) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let shown: Vec<&str> = known
        .iter()
        .filter(|(mode, _)| modes.items().any(|m| m.str() == *mode))
        .map(|(_, short)| *short)
        .collect();
    shown.join(",")
}

/// The storage class of a volume or claim: the annotation, if there is one, goes before the field.
pub(super) fn storage_class<'a>(object: &Cursor<'a>) -> &'a str {
    meta::annotation(object, CLASS_ANNOTATION).unwrap_or_else(|| object.at("spec").at("storageClassName").str())
}

/// "Terminating" once it is being deleted.
pub(super) fn shown_phase<'a>(object: &Cursor<'a>) -> &'a str {
    match object.at("metadata").at("deletionTimestamp").exists() {
        true => "Terminating",
        false => object.at("status").at("phase").str(),
    }
}

fn cells(volume: &Value, now: Timestamp) -> Vec<Value> {
    let c = Cursor::root(volume);
    let spec = c.at("spec");
    let claim = spec.at("claimRef");
    let claim = match claim.exists() {
        true => format!("{}/{}", claim.at("namespace").str(), claim.at("name").str()),
        false => String::new(),
    };
    vec![
        spec.at("capacity").at("storage").as_str().unwrap_or("0").into(),
        shown_access_modes(&spec.at("accessModes")).into(),
        spec.at("persistentVolumeReclaimPolicy").str().into(),
        shown_phase(&c).into(),
        claim.into(),
        storage_class(&c).into(),
        spec.at("volumeAttributesClassName")
            .as_str()
            .unwrap_or("<unset>")
            .into(),
        c.at("status").at("reason").str().into(),
        printing::age(volume, now),
        spec.at("volumeMode").as_str().unwrap_or("<unset>").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, merged, refuses, refuses_update, row};

    fn base() -> Value {
        json!({"metadata": {"name": "v"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}})
    }

    fn spec(patch: Value) -> Value {
        json!({"spec": patch})
    }

    #[test]
    fn defaults_and_preparation() {
        let mut volume = defaulted(&DEF, base());
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
        assert_eq!(volume["spec"]["hostPath"], json!({"path": "/data", "type": ""}));
        assert_eq!(volume["status"], json!({"phase": "Pending"}));
        volume["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        volume["status"] = json!({"phase": "Bound"});
        (DEF.prepare_create)(&mut volume);
        let wanted = json!({"phase": "Pending", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"});
        assert_eq!(volume["status"], wanted);

        let now = "2026-01-01T00:05:00.5Z".parse().unwrap();
        let mut same = json!({"status": {"phase": "Pending"}});
        (DEF.prepare_status)(&mut same, &volume);
        stamp_phase_transition(&mut same, &volume, now);
        assert_eq!(same["status"], wanted);
        let mut bound = json!({"status": {"phase": "Bound"}});
        stamp_phase_transition(&mut bound, &volume, now);
        assert_eq!(bound["status"]["lastPhaseTransitionTime"], "2026-01-01T00:05:00Z");
    }

    #[test]
    fn rules() {
        let modes = "supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"";
        refuses(
            &DEF,
            &base(),
            &[
                (spec(json!({"accessModes": []})), "spec.accessModes: Required value"),
                (
                    spec(json!({"accessModes": ["Any"]})),
                    &format!("spec.accessModes: Unsupported value: \"Any\": {modes}"),
                ),
                (
                    spec(json!({"accessModes": ["ReadWriteOnce", "ReadWriteOncePod"]})),
                    "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
                ),
                (
                    spec(json!({"capacity": {"cpu": "1"}})),
                    "spec.capacity: Unsupported value: {\"cpu\":\"1\",\"storage\":\"1Gi\"}: supported values: \"storage\"",
                ),
                (
                    spec(json!({"capacity": {"storage": "0"}})),
                    "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
                ),
                (
                    spec(json!({"persistentVolumeReclaimPolicy": "Burn"})),
                    "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
                ),
                (
                    spec(json!({"nodeAffinity": {}})),
                    "spec.nodeAffinity.required: Required value: must specify required node constraints",
                ),
                (
                    spec(json!({"nodeAffinity": {"required": {"nodeSelectorTerms": []}}})),
                    "spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term",
                ),
                (
                    spec(json!({"hostPath": {"path": "//"}, "persistentVolumeReclaimPolicy": "Recycle"})),
                    "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
                ),
                (
                    spec(json!({"volumeMode": "Tape"})),
                    "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
                ),
                (
                    spec(json!({"volumeAttributesClassName": "fast"})),
                    "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
                ),
                (
                    json!({"metadata": {"annotations": {MOUNT_OPTIONS_ANNOTATION: "ro"}}}),
                    "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type",
                ),
            ],
        );
        let nothing = create_problems(
            &DEF,
            spec(json!({"capacity": null, "accessModes": ["ReadWriteOnce"], "nfs": {"server": "s", "path": "/"}})),
        );
        assert_eq!(
            nothing,
            [
                "spec.capacity: Required value",
                "spec.capacity: Unsupported value: null: supported values: \"storage\""
            ]
        );
    }

    #[test]
    fn updates() {
        let term = |key: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]}});
        let old = merged(
            &base(),
            &spec(json!({"nodeAffinity": term("failure-domain.beta.kubernetes.io/zone")})),
        );
        let other = term("other");
        refuses_update(
            &DEF,
            &old,
            &[
                (
                    spec(json!({"hostPath": {"path": "/other"}})),
                    "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n- hostPath: {\"path\":\"/data\",\"type\":\"\"}\n+ hostPath: {\"path\":\"/other\",\"type\":\"\"}",
                ),
                (
                    spec(json!({"volumeMode": "Block"})),
                    "volumeMode: Invalid value: \"Block\": field is immutable",
                ),
                (
                    spec(json!({"nodeAffinity": other})),
                    &format!(
                        "nodeAffinity: Invalid value: {other}: field is immutable, except for updating from beta label to GA"
                    ),
                ),
            ],
        );
        let newer = merged(
            &old,
            &spec(json!({"nodeAffinity": term("topology.kubernetes.io/zone")})),
        );
        assert_eq!(crate::kind_check::update_problems(&DEF, newer, old), [""; 0]);
        let csi = json!({"spec": {"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.io", "volumeHandle": "h"}, "volumeAttributesClassName": "fast"}});
        let secret = json!({"csi": {"controllerExpandSecretRef": {"name": "n", "namespace": "ns"}}});
        assert_eq!(
            crate::kind_check::update_problems(&DEF, merged(&csi, &spec(secret)), csi.clone()),
            [""; 0]
        );
        refuses_update(
            &DEF,
            &csi,
            &[(
                spec(json!({"volumeAttributesClassName": null})),
                "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden",
            )],
        );
    }

    #[test]
    fn inline_specs_are_for_csi() {
        use crate::field::Problem;
        let inline = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"},
            "volumeMode": "Block", "storageClassName": "s", "persistentVolumeReclaimPolicy": "Delete"});
        let mut p = Problems::default();
        validate_inline_spec(&Cursor::new(Some(&inline), Path::default().field("spec")), &mut p);
        let found: Vec<String> = p.0.iter().map(Problem::to_string).collect();
        assert_eq!(
            found,
            [
                "spec.capacity: Forbidden: may not be specified in the context of inline volumes",
                "spec.csi: Required value: has to be specified in the context of inline volumes",
                "spec.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes",
                "spec.storageClassName: Forbidden: may not be specified in the context of inline volumes",
                "spec.volumeMode: Forbidden: may not specify volumeMode other than Filesystem in the context of inline volumes",
            ]
        );
    }

    #[test]
    fn rows_and_warnings() {
        let volume = merged(
            &defaulted(&DEF, base()),
            &json!({"metadata": {"annotations": {CLASS_ANNOTATION: "slow"}}, "spec": {"claimRef": {"namespace": "n", "name": "c"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"]}}),
        );
        assert_eq!(
            row(&DEF, &volume),
            "1Gi|RWO,RWX|Retain|Pending|n/c|slow|<unset>||<unknown>|Filesystem"
        );
        let going = merged(
            &volume,
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        assert!(row(&DEF, &going).contains("|Terminating|"));
        let old = json!({"spec": {"rbd": {}, "persistentVolumeReclaimPolicy": "Recycle", "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "beta.kubernetes.io/os"}, {"key": "beta.kubernetes.io/instance-type"}]}]}}}});
        let term = "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions";
        assert_eq!(
            warnings(&Cursor::root(&old), None),
            [
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_string(),
                format!("{term}[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead"),
                format!("{term}[1].key: beta.kubernetes.io/instance-type is deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+".to_string(),
            ]
        );
    }
}
