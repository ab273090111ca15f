//! Namespaces. One is gone only when its `spec.finalizers` are empty, which happens through the finalize subresource.
//!
//! Upstream: pkg/registry/core/namespace/strategy.go (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, SelectableField, Subresource, Verbs, copy_member, keep_status};
use crate::meta::{self, UNQUALIFIED_FINALIZER, invalid_text, is_standard_or_qualified};
use crate::{fill, names, printing};

/// The label every namespace has: its name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The finalizer that stands for "the contents are gone".
pub const FINALIZER: &str = "kubernetes";

pub const DEF: KindDef = KindDef {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    verbs: Verbs::NoCollectionDelete,
    schema: "core/v1.Namespace",
    subresources: &[
        Subresource {
            name: "finalize",
            group: "",
            version: "",
            kind: "",
            verbs: &["update"],
        },
        Subresource::STATUS,
    ],
    fields: &[SelectableField::at("status.phase")],
    columns: &[Column::string("Status"), Column::AGE],
    cells,
    name_rule: names::dns_label,
    default,
    prepare_create,
    prepare_update,
    prepare_status,
    validate,
    validate_status,
    ..KindDef::BASE
};

fn default(namespace: &mut Value) {
    set_name_label(namespace);
    fill::empty(fill::member(namespace, "status"), "phase", "Active");
}

/// A name that is still to be generated has no label yet.
fn set_name_label(namespace: &mut Value) {
    let name = printing::text(namespace, "/metadata/name").to_string();
    if !name.is_empty() {
        fill::member(fill::member(namespace, "metadata"), "labels")[NAME_LABEL] = name.into();
    }
}

fn prepare_create(namespace: &mut Value) {
    set_name_label(namespace);
    namespace["status"] = json!({"phase": "Active"});
    let spec = fill::member(namespace, "spec");
    fill::empty(spec, "finalizers", json!([]));
    if let Some(list) = spec["finalizers"].as_array_mut()
        && !list.iter().any(|f| f == FINALIZER)
    {
        list.push(FINALIZER.into());
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    if let Some(spec) = old.get("spec") {
        copy_member(fill::member(new, "spec"), spec, "finalizers");
    }
    set_name_label(new);
}

fn prepare_status(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
    set_name_label(new);
}

/// Readies an update through the finalize subresource: the spec's finalizers may change, the status may not.
pub fn prepare_finalize(new: &mut Value, old: &Value) {
    keep_status(new, old);
    set_name_label(new);
}

fn validate(namespace: &Cursor<'_>, p: &mut Problems) {
    let finalizers = namespace.at("spec").at("finalizers");
    for finalizer in finalizers.items() {
        let at_list = Cursor::new(finalizer.value(), finalizers.path().clone());
        validate_finalizer(&at_list, p);
    }
}

/// Validates an update through the finalize subresource, beside the metadata's own rules.
pub fn validate_finalize(namespace: &Cursor<'_>, p: &mut Problems) {
    for finalizer in namespace.at("spec").at("finalizers").items() {
        validate_finalizer(&finalizer, p);
    }
}

fn validate_finalizer(finalizer: &Cursor<'_>, p: &mut Problems) {
    meta::validate_label_key(finalizer.str(), finalizer.path(), p);
    if !is_standard_or_qualified(finalizer.str()) {
        p.invalid(finalizer, UNQUALIFIED_FINALIZER);
    }
}

fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    let phase = Cursor::new(status.at("phase").value(), status.path().field("Phase"));
    if !new.at("metadata").at("deletionTimestamp").exists() {
        if phase.str() != "Active" {
            invalid_text(&phase, "may only be 'Active' if `deletionTimestamp` is empty", p);
        }
    } else if phase.str() != "Terminating" {
        invalid_text(
            &phase,
            "may only be 'Terminating' if `deletionTimestamp` is not empty",
            p,
        );
    }
}

fn cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        printing::text(namespace, "/status/phase").into(),
        printing::age(namespace, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;
    use crate::kind_check::{defaulted, refuses, row, status_problems};

    #[test]
    fn created_namespaces_are_active_and_labelled() {
        let mut ns = defaulted(&DEF, json!({"metadata": {"name": "a", "labels": {"x": "y"}}}));
        assert_eq!(ns["metadata"]["labels"], json!({"x": "y", NAME_LABEL: "a"}));
        prepare_create(&mut ns);
        assert_eq!(ns["spec"], json!({"finalizers": ["kubernetes"]}));
        assert_eq!(ns["status"], json!({"phase": "Active"}));
        assert_eq!(row(&DEF, &ns), "Active|<unknown>");

        let mut other = json!({"metadata": {"generateName": "a-"}, "spec": {"finalizers": ["a.io/b"]}});
        prepare_create(&mut other);
        assert_eq!(other["spec"]["finalizers"], json!(["a.io/b", "kubernetes"]));
        assert!(other["metadata"].get("labels").is_none());
    }

    #[test]
    fn the_label_cannot_be_removed_nor_the_finalizers_changed() {
        let old =
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let mut new =
            json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "b"}}, "spec": {}, "status": {"phase": "X"}});
        (DEF.prepare_update)(&mut new, &old);
        assert_eq!(new["metadata"]["labels"][NAME_LABEL], "a");
        assert_eq!(new["spec"], old["spec"]);
        assert_eq!(new["status"], old["status"]);

        let mut finalized = json!({"metadata": {"name": "a"}, "spec": {}, "status": {"phase": "X"}});
        prepare_finalize(&mut finalized, &old);
        assert_eq!(finalized["spec"], json!({}));
        assert_eq!(finalized["status"], old["status"]);
    }

    #[test]
    fn finalizer_names() {
        let unqualified = "name is neither a standard finalizer name nor is it fully qualified";
        let wanted = format!("spec.finalizers: Invalid value: \"foo\": {unqualified}");
        refuses(
            &DEF,
            &json!({"metadata": {"name": "a"}}),
            &[(json!({"spec": {"finalizers": ["foo"]}}), &wanted)],
        );
        let ns = json!({"spec": {"finalizers": ["kubernetes", "foo"]}});
        let mut p = Problems::default();
        validate_finalize(&Cursor::root(&ns), &mut p);
        let found: Vec<String> = p.0.iter().map(Problem::to_string).collect();
        assert_eq!(
            found,
            [format!("spec.finalizers[1]: Invalid value: \"foo\": {unqualified}")]
        );
    }

    #[test]
    fn the_phase_follows_the_deletion() {
        let at = "2026-01-01T00:00:00Z";
        for (deleted, phase, wanted) in [
            (false, "Active", ""),
            (true, "Terminating", ""),
            (
                false,
                "Terminating",
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
            ),
            (
                true,
                "Active",
                "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty",
            ),
        ] {
            let mut ns = json!({"metadata": {"name": "a"}, "status": {"phase": phase}});
            if deleted {
                ns["metadata"]["deletionTimestamp"] = at.into();
            }
            assert_eq!(status_problems(&DEF, ns.clone(), ns).join(""), wanted);
        }
    }
}
