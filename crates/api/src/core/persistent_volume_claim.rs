//! Persistent volume claims. Upstream: pkg/registry/core/persistentvolumeclaim, pkg/api/persistentvolumeclaim,
//! ValidatePersistentVolumeClaim (v1.36).

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::persistent_volume::{
    CLASS_ANNOTATION, difference, shown_access_modes, shown_phase, storage_class, validate_access_modes,
    validate_volume_mode,
};
use super::resource_rules::{round_up, validate_quantity};
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::kind::{Column, KindDef, Subresource, copy_member, keep_status};
use crate::quantity::Quantity;
use crate::{fill, meta, names, printing, resources};

pub const DEF: KindDef = KindDef {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    short_names: &["pvc"],
    schema: "core/v1.PersistentVolumeClaim",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Status"),
        Column::string("Volume"),
        Column::string("Capacity"),
        Column::string("Access Modes"),
        Column::string("StorageClass"),
        Column::string("VolumeAttributesClass"),
        Column::AGE,
        Column::wide("VolumeMode"),
    ],
    cells,
    default,
    prepare_create,
    prepare_update,
    prepare_status: |new, old| copy_member(new, old, "spec"),
    validate: |claim, p| validate_spec(&claim.at("spec"), p),
    validate_update,
    validate_status,
    warnings,
    ..KindDef::BASE
};

fn default(claim: &mut Value) {
    let status = fill::member(claim, "status");
    fill::empty(status, "phase", "Pending");
    for list in ["capacity", "allocatedResources"] {
        round_up(status, list);
    }
    default_spec(fill::member(claim, "spec"));
}

/// The defaults of a claim's spec, also in templates.
pub fn default_spec(spec: &mut Value) {
    fill::absent(spec, "volumeMode", "Filesystem");
    if let Some(resources) = spec.get_mut("resources") {
        round_up(resources, "limits");
        round_up(resources, "requests");
    }
}

fn prepare_create(claim: &mut Value) {
    claim["status"] = json!({"phase": "Pending"});
    prepare_data_sources(fill::member(claim, "spec"), None);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    prepare_data_sources(fill::member(new, "spec"), old.get("spec"));
}

/// `dataSource` and `dataSourceRef` say the same, the latter more: what is only in one is copied to the other. What
/// `dataSource` alone cannot say is dropped, as it always was.
fn prepare_data_sources(spec: &mut Value, old: Option<&Value>) {
    let given = |spec: &Value, field: &str| spec.get(field).filter(|v| v.is_object()).cloned();
    let had_one = old.is_some_and(|o| given(o, "dataSource").is_some() || given(o, "dataSourceRef").is_some());
    let copied = |from: &Value| {
        let mut to = json!({"apiGroup": null});
        for field in ["apiGroup", "kind", "name"] {
            copy_member(&mut to, from, field);
        }
        fill_null(&mut to, "apiGroup");
        to
    };
    match (given(spec, "dataSource"), given(spec, "dataSourceRef")) {
        (Some(source), None) => {
            if had_one || is_claim_or_snapshot(&source) {
                spec["dataSourceRef"] = copied(&source);
            } else if let Some(map) = spec.as_object_mut() {
                map.remove("dataSource");
            }
        }
        (None, Some(reference)) if printing::text(&reference, "/namespace").is_empty() => {
            spec["dataSource"] = copied(&reference);
        }
        _ => {}
    }
}

/// The group is written even if there is none.
fn fill_null(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.entry(field).or_insert(Value::Null);
    }
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    matches!(
        (printing::text(source, "/apiGroup"), printing::text(source, "/kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

/// The spec of a claim, also in templates.
pub fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    validate_access_modes(&spec.at("accessModes"), "at least 1 access mode is required", p);
    meta::validate_label_selector(&spec.at("selector"), p);
    let resources = spec.at("resources");
    let storage = Cursor::new(
        resources.at("requests").at("storage").value(),
        resources.path().key("storage"),
    );
    match storage.as_str().map(Quantity::parse) {
        None => p.required(&storage, ""),
        Some(Ok(q)) if q.sign() <= 0 => p.invalid(&storage, "must be greater than zero"),
        Some(_) => validate_quantity("storage", &storage, p),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let class = spec.at(field);
        if !class.is_empty() {
            p.invalid_each(&class, names::dns_subdomain(class.str()));
        }
    }
    validate_volume_mode(&spec.at("volumeMode"), p);
    validate_data_sources(spec, p);
}

fn validate_data_sources(spec: &Cursor<'_>, p: &mut Problems) {
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    for source in [&source, &reference].into_iter().filter(|s| s.exists()) {
        validate_data_source(source, p);
    }
    let namespace = reference.at("namespace");
    if !namespace.is_empty() {
        p.invalid_each(&namespace, names::dns_label(namespace.str()));
    }
    if !source.exists() || !reference.exists() {
        return;
    }
    let differs = ["apiGroup", "kind", "name"]
        .iter()
        .any(|f| source.at(f).value() != reference.at(f).value());
    let detail = if !namespace.is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if differs {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream shows the path of the other field as the value.
    p.push(
        ProblemKind::Invalid,
        spec.path(),
        Some(source.path().to_string()),
        detail,
    );
}

fn validate_data_source(source: &Cursor<'_>, p: &mut Problems) {
    for field in ["name", "kind"] {
        if source.at(field).is_empty() {
            p.required(&source.at(field), "");
        }
    }
    let group = source.at("apiGroup");
    if !group.is_empty() {
        p.invalid_each(&group, names::dns_subdomain(group.str()));
    } else if source.at("kind").str() != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        p.invalid_value(source.path(), &json!(source.at("kind").str()), detail);
    }
}

fn storage(claim: &Cursor<'_>) -> Quantity {
    let amount = claim.at("spec").at("resources").at("requests").at("storage").str();
    Quantity::parse(amount).unwrap_or(Quantity::ZERO)
}

/// A claim's spec stays; but the volume is filled in once, a class may be named if none was, and a bound claim may
/// grow or change the class of its attributes.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (spec, before) = (new.at("spec"), old.at("spec"));
    let (mut now, mut then) = (object(&spec), object(&before));
    if before.at("volumeName").is_empty() {
        copy(&now, &mut then, "volumeName");
    }
    if !is_class_moved_to_field(new, old) {
        let annotations = Path::default().field("metadata").field("annotations");
        let at = |claim: &Cursor<'_>| json!(meta::annotation(claim, CLASS_ANNOTATION).unwrap_or(""));
        if at(new) != at(old) {
            p.invalid_value(&annotations.field(CLASS_ANNOTATION), &at(new), "field is immutable");
        }
    }
    if is_class_moved_to_field(new, old) || is_class_named_late(new, old) {
        copy(&then, &mut now, "storageClassName");
    }
    if new.at("status").at("phase").str() == "Bound" {
        copy(&then, &mut now, "volumeAttributesClassName");
        let amount = before.at("resources").at("requests").at("storage").value();
        let requests = now.get_mut("resources").and_then(|r| r.pointer_mut("/requests"));
        if let (Some(requests), Some(amount)) = (requests.and_then(Value::as_object_mut), amount) {
            requests.insert("storage".into(), amount.clone());
        }
    }
    if now != then {
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{}",
            difference(&then, &now)
        );
        p.forbidden(&spec, detail);
    }
    let capacity = old.at("status").at("capacity").at("storage").str();
    let capacity = Quantity::parse(capacity).unwrap_or(Quantity::ZERO);
    // A growth that failed may be taken back, but not below what there is.
    if storage(new) < storage(old) && storage(new) <= capacity {
        let path = spec.at("resources").at("requests").at("storage");
        p.forbidden(&path, "field can not be less than status.capacity");
    }
    let mode = Cursor::new(spec.at("volumeMode").value(), Path::default().field("volumeMode"));
    p.immutable(&mode, &before.at("volumeMode"));
    let class = spec.at("volumeAttributesClassName");
    let in_use = old.at("status").at("currentVolumeAttributesClassName").exists();
    if in_use && class.is_empty() && class.value() != before.at("volumeAttributesClassName").value() {
        let what = if class.exists() { "empty string" } else { "nil" };
        let detail = format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        p.forbidden(&class, detail);
    }
}

fn object(c: &Cursor<'_>) -> Map<String, Value> {
    c.value().and_then(Value::as_object).cloned().unwrap_or_default()
}

fn copy(from: &Map<String, Value>, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => to.insert(field.to_string(), value.clone()),
        None => to.remove(field),
    };
}

/// The class stood in the annotation and now stands in the field.
fn is_class_moved_to_field(new: &Cursor<'_>, old: &Cursor<'_>) -> bool {
    let class = |claim: &Cursor<'_>| claim.at("spec").at("storageClassName").as_str().map(str::to_string);
    let Some(before) = meta::annotation(old, CLASS_ANNOTATION) else {
        return false;
    };
    class(old).is_none()
        && class(new).as_deref() == Some(before)
        && meta::annotation(new, CLASS_ANNOTATION).is_none_or(|a| a == before)
}

/// There was no class, and now there is one.
fn is_class_named_late(new: &Cursor<'_>, old: &Cursor<'_>) -> bool {
    let class = new.at("spec").at("storageClassName");
    class.exists()
        && !old.at("spec").at("storageClassName").exists()
        && meta::annotation(old, CLASS_ANNOTATION).is_none_or(|a| a == class.str())
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    let modes = new.at("spec").at("accessModes");
    if modes.is_empty() {
        let path = Path::default().field("Spec").field("accessModes");
        p.push(ProblemKind::Required, &path, None, "");
    }
    let status = new.at("status");
    for (_, amount) in status.at("capacity").entries() {
        validate_basic(&amount, p);
    }
    const RESIZING: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let statuses = status.at("allocatedResourceStatuses");
    for (name, state) in statuses.entries() {
        validate_resource_key(name, &statuses, p);
        if !RESIZING.contains(&state.str()) {
            p.not_supported(&Cursor::new(Some(&json!(name)), statuses.path().clone()), &RESIZING);
        }
    }
    let allocated = status.at("allocatedResources");
    for (name, amount) in allocated.entries() {
        if validate_resource_key(name, &allocated, p) && validate_basic(&amount, p) {
            validate_quantity("storage", &amount, p);
        }
    }
}

fn validate_basic(amount: &Cursor<'_>, p: &mut Problems) -> bool {
    let value = Quantity::parse(amount.str()).map_or(0, |q| q.value());
    if value < 0 {
        p.invalid_value(amount.path(), &json!(value), "must be a valid resource quantity");
    }
    value >= 0
}

/// Of Kubernetes' own resources only storage, or else a qualified name.
fn validate_resource_key(name: &str, list: &Cursor<'_>, p: &mut Problems) -> bool {
    let before = p.count();
    meta::validate_label_key(name, list.path(), p);
    if p.count() == before && resources::is_native(name) && name != "storage" {
        p.not_supported(&Cursor::new(Some(&json!(name)), list.path().clone()), &["storage"]);
    }
    p.count() == before
}

fn warnings(claim: &Cursor<'_>, _old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = vec![];
    if meta::annotation(claim, CLASS_ANNOTATION).is_some() {
        out.push(format!(
            "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        ));
    }
    out.extend(spec_warnings(&claim.at("spec")));
    out
}

/// Advice on a claim's spec, also in templates.
pub fn spec_warnings(spec: &Cursor<'_>) -> Vec<String> {
    let lists = ["requests", "limits"].map(|list| spec.at("resources").at(list));
    let mut out = vec![];
    for list in lists {
        let amount = list.at("storage").str();
        if Quantity::parse(amount).is_ok_and(|q| q.milli_value() % 1000 != 0) {
            let path = list.path().key("storage");
            out.push(format!(
                "{path}: fractional byte value {amount:?} is invalid, must be an integer"
            ));
        }
    }
    out
}

fn cells(claim: &Value, now: Timestamp) -> Vec<Value> {
    let c = Cursor::root(claim);
    let (spec, status) = (c.at("spec"), c.at("status"));
    let (mut capacity, mut modes) = ("", String::new());
    if !spec.at("volumeName").is_empty() {
        capacity = status.at("capacity").at("storage").as_str().unwrap_or("0");
        modes = shown_access_modes(&status.at("accessModes"));
    }
    vec![
        shown_phase(&c).into(),
        spec.at("volumeName").str().into(),
        capacity.into(),
        modes.into(),
        storage_class(&c).into(),
        spec.at("volumeAttributesClassName")
            .as_str()
            .unwrap_or("<unset>")
            .into(),
        printing::age(claim, now),
        spec.at("volumeMode").as_str().unwrap_or("<unset>").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, merged, refuses, refuses_update, row, status_problems, update_problems};

    fn base() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    }

    fn spec(patch: Value) -> Value {
        json!({"spec": patch})
    }

    fn with_status(claim: &Value, status: Value) -> Value {
        let mut claim = claim.clone();
        claim["status"] = status;
        claim
    }

    #[test]
    fn defaults_and_data_sources() {
        let claim = defaulted(&DEF, base());
        assert_eq!(
            (&claim["spec"]["volumeMode"], &claim["status"]["phase"]),
            (&json!("Filesystem"), &json!("Pending"))
        );
        let source = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "a"});
        let custom = json!({"apiGroup": "x.io", "kind": "Thing", "name": "a"});
        let foreign = merged(&custom, &json!({"namespace": "n"}));
        for (given, wanted) in [
            (
                json!({"dataSource": source}),
                json!({"dataSource": source, "dataSourceRef": source}),
            ),
            (
                json!({"dataSourceRef": custom}),
                json!({"dataSource": custom, "dataSourceRef": custom}),
            ),
            (json!({"dataSource": custom}), json!({})),
            (json!({"dataSourceRef": foreign}), json!({"dataSourceRef": foreign})),
        ] {
            let mut claim = spec(given.clone());
            (DEF.prepare_create)(&mut claim);
            assert_eq!(claim["spec"], wanted, "{given}");
        }
        let old = spec(json!({"dataSource": custom, "dataSourceRef": custom}));
        let mut new = spec(json!({"dataSource": custom}));
        (DEF.prepare_update)(&mut new, &old);
        assert_eq!(new["spec"], old["spec"]);
    }

    #[test]
    fn rules() {
        refuses(
            &DEF,
            &base(),
            &[
                (
                    spec(json!({"accessModes": null})),
                    "spec.accessModes: Required value: at least 1 access mode is required",
                ),
                (
                    spec(json!({"resources": null})),
                    "spec.resources[storage]: Required value",
                ),
                (
                    spec(json!({"resources": {"requests": {"storage": "0"}}})),
                    "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
                ),
                (
                    spec(json!({"volumeMode": "Tape"})),
                    "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
                ),
                (
                    spec(json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}})),
                    "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                ),
                (
                    spec(json!({"dataSource": {"kind": "Pod", "name": "a"}})),
                    "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
                ),
                (
                    spec(json!({"dataSourceRef": {"apiGroup": "x.io", "kind": "T"}})),
                    "spec.dataSourceRef.name: Required value",
                ),
                (
                    spec(
                        json!({"dataSource": {"apiGroup": "x.io", "kind": "T", "name": "a"}, "dataSourceRef": {"apiGroup": "x.io", "kind": "T", "name": "b"}}),
                    ),
                    "spec: Invalid value: spec.dataSource: must match dataSourceRef",
                ),
                (
                    spec(
                        json!({"dataSource": {"apiGroup": "x.io", "kind": "T", "name": "a"}, "dataSourceRef": {"apiGroup": "x.io", "kind": "T", "name": "a", "namespace": "n"}}),
                    ),
                    "spec: Invalid value: spec.dataSource: may not be specified when dataSourceRef.namespace is specified",
                ),
            ],
        );
    }

    #[test]
    fn what_may_change() {
        let immutable = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let pending = defaulted(&DEF, base());
        let bound = with_status(
            &pending,
            json!({"phase": "Bound", "capacity": {"storage": "512Mi"}, "currentVolumeAttributesClassName": "a"}),
        );
        let bound = merged(
            &bound,
            &spec(json!({"volumeAttributesClassName": "a", "storageClassName": "s", "volumeName": "v"})),
        );
        for (old, patch) in [
            (&pending, spec(json!({"volumeName": "v"}))),
            (&pending, spec(json!({"storageClassName": "s"}))),
            (&bound, spec(json!({"resources": {"requests": {"storage": "2Gi"}}}))),
            (&bound, spec(json!({"resources": {"requests": {"storage": "768Mi"}}}))),
            (&bound, spec(json!({"volumeAttributesClassName": "b"}))),
        ] {
            assert_eq!(
                update_problems(&DEF, merged(old, &patch), old.clone()),
                [""; 0],
                "{patch}"
            );
        }
        refuses_update(
            &DEF,
            &pending,
            &[(
                spec(json!({"resources": {"requests": {"storage": "2Gi"}}})),
                &format!(
                    "{immutable}\n- resources: {{\"requests\":{{\"storage\":\"1Gi\"}}}}\n+ resources: {{\"requests\":{{\"storage\":\"2Gi\"}}}}"
                ),
            )],
        );
        refuses_update(
            &DEF,
            &bound,
            &[
                (
                    spec(json!({"volumeName": "w"})),
                    &format!("{immutable}\n- volumeName: \"v\"\n+ volumeName: \"w\""),
                ),
                (
                    spec(json!({"storageClassName": "t"})),
                    &format!("{immutable}\n- storageClassName: \"s\"\n+ storageClassName: \"t\""),
                ),
                (
                    spec(json!({"resources": {"requests": {"storage": "512Mi"}}})),
                    "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity",
                ),
                (
                    spec(json!({"volumeAttributesClassName": null})),
                    "spec.volumeAttributesClassName: Forbidden: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
                ),
                (
                    spec(json!({"volumeAttributesClassName": ""})),
                    "spec.volumeAttributesClassName: Forbidden: update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
                ),
                (
                    json!({"metadata": {"annotations": {CLASS_ANNOTATION: "x"}}}),
                    "metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: \"x\": field is immutable",
                ),
            ],
        );
        let annotated = merged(&pending, &json!({"metadata": {"annotations": {CLASS_ANNOTATION: "s"}}}));
        let moved = merged(
            &annotated,
            &json!({"metadata": {"annotations": null}, "spec": {"storageClassName": "s"}}),
        );
        assert_eq!(update_problems(&DEF, moved, annotated), [""; 0]);
    }

    #[test]
    fn status_updates() {
        let old = defaulted(&DEF, base());
        for (status, wanted) in [
            (
                json!({"allocatedResources": {"storage": "1"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
                "",
            ),
            (
                json!({"capacity": {"storage": "-1"}}),
                "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
            ),
            (
                json!({"allocatedResources": {"cpu": "1"}}),
                "status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"",
            ),
            (
                json!({"allocatedResourceStatuses": {"storage": "Odd"}}),
                "status.allocatedResourceStatuses: Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"",
            ),
        ] {
            let new = with_status(&old, status.clone());
            assert_eq!(status_problems(&DEF, new, old.clone()).join("; "), wanted, "{status}");
        }
        let bare = json!({"spec": {}, "status": {}});
        assert_eq!(
            status_problems(&DEF, bare.clone(), bare),
            ["Spec.accessModes: Required value"]
        );
    }

    #[test]
    fn rows_and_warnings() {
        let claim = defaulted(&DEF, base());
        assert_eq!(row(&DEF, &claim), "Pending|||||<unset>|<unknown>|Filesystem");
        let bound = merged(
            &claim,
            &json!({"spec": {"volumeName": "v", "storageClassName": "s"}, "status": {"phase": "Bound", "accessModes": ["ReadWriteOncePod"], "capacity": {"storage": "2Gi"}}}),
        );
        assert_eq!(row(&DEF, &bound), "Bound|v|2Gi|RWOP|s|<unset>|<unknown>|Filesystem");
        let odd = json!({"metadata": {"annotations": {CLASS_ANNOTATION: "s"}}, "spec": {"resources": {"requests": {"storage": "500m"}}}});
        assert_eq!(
            warnings(&Cursor::root(&odd), None),
            [
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
                "spec.resources.requests[storage]: fractional byte value \"500m\" is invalid, must be an integer",
            ]
        );
    }
}
