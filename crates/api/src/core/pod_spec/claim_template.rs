//! The claim that is made for an ephemeral volume: a PersistentVolumeClaim without a name.

use serde_json::Value;

use super::Read;
use crate::field::{Cursor, Problems};
use crate::quantity::Quantity;
use crate::{meta, names};

/// Metadata of which only labels and annotations may be set, and a claim's spec.
pub fn validate(template: &Cursor<'_>, p: &mut Problems) {
    if let Some(metadata) = template.given("metadata") {
        if let Some(annotations) = metadata.given("annotations") {
            meta::validate_annotations(&annotations, p);
        }
        if let Some(labels) = metadata.given("labels") {
            meta::validate_labels(&labels, p);
        }
        for field in NOT_IN_TEMPLATES {
            if metadata.given(field).is_some_and(|f| !f.is_empty()) {
                p.forbidden(&metadata.at(field), "cannot be set");
            }
        }
    }
    claim_spec(&template.at("spec"), p);
}

const NOT_IN_TEMPLATES: [&str; 13] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

fn claim_spec(spec: &Cursor<'_>, p: &mut Problems) {
    access_modes(spec, p);
    if let Some(selector) = spec.given("selector") {
        meta::validate_label_selector(&selector, p);
    }
    storage(spec, p);
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if let Some(class) = spec.given(field).filter(|c| !c.is_empty()) {
            p.invalid_each(&class, names::dns_subdomain(class.str()));
        }
    }
    if let Some(mode) = spec.given("volumeMode")
        && !matches!(mode.str(), "Block" | "Filesystem")
    {
        p.not_supported(&mode, &["Block", "Filesystem"]);
    }
    data_source(spec, p);
}

fn access_modes(spec: &Cursor<'_>, p: &mut Problems) {
    let modes = spec.at("accessModes");
    if modes.is_empty() {
        p.required(&modes, "at least 1 access mode is required");
    }
    let (mut alone, mut others) = (false, false);
    for mode in modes.items() {
        match mode.str() {
            "ReadWriteOncePod" => alone = true,
            m if ACCESS_MODES.contains(&m) => others = true,
            _ => p.not_supported(&Cursor::new(mode.value(), modes.path().clone()), &ACCESS_MODES),
        }
    }
    if alone && others {
        p.forbidden(&modes, "may not use ReadWriteOncePod with other access modes");
    }
}

fn storage(spec: &Cursor<'_>, p: &mut Problems) {
    let resources = spec.at("resources");
    let path = resources.path().key("storage");
    let request = resources.raw("requests").and_then(|r| r.get("storage"));
    let at = Cursor::new(request, path);
    match request.and_then(Value::as_str).map(Quantity::parse) {
        None => p.required(&at, ""),
        Some(Ok(q)) if !q.is_zero() && !q.is_negative() => {}
        Some(_) => p.invalid(&at, "must be greater than zero"),
    }
}

fn data_source(spec: &Cursor<'_>, p: &mut Problems) {
    let (plain, reference) = (spec.given("dataSource"), spec.given("dataSourceRef"));
    for source in [&plain, &reference].into_iter().flatten() {
        for field in ["name", "kind"] {
            if source.text(field).is_empty() {
                p.required(&source.at(field), "");
            }
        }
        let group = source.text("apiGroup");
        if group.is_empty() && source.text("kind") != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            p.invalid_value(source.path(), &source.text("kind").into(), detail);
        } else if !group.is_empty() {
            p.invalid_each(&source.at("apiGroup"), names::dns_subdomain(group));
        }
    }
    let Some(reference) = reference else { return };
    let namespace = reference.text("namespace");
    if !namespace.is_empty() {
        p.invalid_each(&reference.at("namespace"), names::dns_label(namespace));
    }
    let Some(plain) = plain else { return };
    let same = ["apiGroup", "kind", "name"]
        .iter()
        .all(|f| plain.raw(f) == reference.raw(f));
    let shown = Value::from(plain.path().to_string());
    if !namespace.is_empty() {
        p.invalid_value(
            spec.path(),
            &shown,
            "may not be specified when dataSourceRef.namespace is specified",
        );
    } else if !same {
        p.invalid_value(spec.path(), &shown, "must match dataSourceRef");
    }
}
