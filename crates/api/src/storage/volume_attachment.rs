//! VolumeAttachment: that a volume is, or is to be, attached to a node.
//!
//! Upstream: pkg/apis/storage/validation, pkg/registry/storage/volumeattachment (v1.36).

use serde_json::Value;

use crate::core::persistent_volume;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource};
use crate::printing::{age, text};
use crate::{names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "VolumeAttachment",
    plural: "volumeattachments",
    singular: "volumeattachment",
    namespaced: false,
    schema: "storage/v1.VolumeAttachment",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Attacher"),
        Column::string("PV"),
        Column::string("Node"),
        Column {
            kind: "boolean",
            ..Column::string("Attached")
        },
        Column::AGE,
    ],
    cells: |a, now| {
        vec![
            text(a, "/spec/attacher").into(),
            text(a, "/spec/source/persistentVolumeName").into(),
            text(a, "/spec/nodeName").into(),
            (a.pointer("/status/attached") == Some(&Value::Bool(true))).into(),
            age(a, now),
        ]
    },
    default: |attachment| {
        if let Some(volume) = attachment.pointer_mut("/spec/source/inlineVolumeSpec") {
            persistent_volume::default_spec(volume);
        }
    },
    validate,
    validate_update: |new, old, p| p.immutable(&new.at("spec"), &old.at("spec")),
    validate_status: |new, _, p| validate(new, p),
    unconditional_update: false,
    ..KindDef::BASE
};

fn validate(attachment: &Cursor<'_>, p: &mut Problems) {
    let spec = attachment.at("spec");
    super::validate_driver_name(&spec.at("attacher"), p);
    validate_source(&spec.at("source"), p);
    rules::follows(&spec.at("nodeName"), names::dns_subdomain, p);
    let status = attachment.at("status");
    let metadata = status.at("attachmentMetadata");
    if super::map_bytes(&metadata) > METADATA_BYTES_MAX {
        p.too_long(&metadata, METADATA_BYTES_MAX);
    }
    validate_error(&status.at("attachError"), p);
    validate_error(&status.at("detachError"), p);
    let volume = spec.at("source").at("persistentVolumeName");
    if volume.exists() {
        rules::follows(&volume, names::dns_subdomain, p);
    }
}

const METADATA_BYTES_MAX: usize = 256 << 10;
const MESSAGE_BYTES_MAX: usize = 1024;

fn validate_source(source: &Cursor<'_>, p: &mut Problems) {
    let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let volume = source.at("persistentVolumeName");
    let inline = source.at("inlineVolumeSpec");
    match (inline.exists(), volume.exists()) {
        (false, false) => p.required(source, detail),
        (true, true) => p.forbidden(source, detail),
        (false, true) if volume.is_empty() => p.required(&volume, "must specify non empty persistentVolumeName"),
        (false, true) => {}
        (true, false) => persistent_volume::validate_inline_spec(&inline, p),
    }
}

fn validate_error(error: &Cursor<'_>, p: &mut Problems) {
    let (message, code) = (error.at("message"), error.at("errorCode"));
    if message.len() > MESSAGE_BYTES_MAX {
        // The number shown is not the limit that was passed; upstream tells this one too.
        p.too_long(&message, METADATA_BYTES_MAX);
    }
    if code.as_i64().is_some_and(|n| n < 0) {
        p.invalid_each(&code, names::in_range(-1, 0, i64::from(i32::MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{merged, refuses, refuses_update, row, status_problems};
    use serde_json::json;

    fn attachment() -> Value {
        json!({"metadata": {"name": "a"},
            "spec": {"attacher": "disk.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}})
    }

    #[test]
    fn attachments_are_checked() {
        let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        refuses(
            &DEF,
            &attachment(),
            &[
                (json!({"spec": {"attacher": null}}), "spec.attacher: Required value"),
                (
                    json!({"spec": {"attacher": format!("{}.example.com", "a".repeat(60))}}),
                    "spec.attacher: Too long: may not be more than 63 bytes",
                ),
                (
                    json!({"spec": {"source": null}}),
                    &format!("spec.source: Required value: {detail}"),
                ),
                (
                    json!({"spec": {"source": {"inlineVolumeSpec": {}}}}),
                    &format!("spec.source: Forbidden: {detail}"),
                ),
                (
                    json!({"spec": {"source": {"persistentVolumeName": null, "inlineVolumeSpec": {"claimRef": {"name": "c"},
                        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.com", "volumeHandle": "h"}}}}}),
                    "spec.source.inlineVolumeSpec.claimRef: Forbidden: may not be specified in the context of inline volumes",
                ),
                (
                    json!({"status": {"attachmentMetadata": {"k": "x".repeat(256 << 10)}}}),
                    "status.attachmentMetadata: Too long: may not be more than 262144 bytes",
                ),
                (
                    json!({"status": {"attachError": {"message": "x".repeat(1025)}}}),
                    "status.attachError.message: Too long: may not be more than 262144 bytes",
                ),
                (
                    json!({"status": {"detachError": {"errorCode": -1}}}),
                    "status.detachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                ),
            ],
        );
        assert_eq!(row(&DEF, &attachment()), "disk.example.com|pv1|n1|false|<unknown>");
    }

    #[test]
    fn the_spec_does_not_change_and_status_is_apart() {
        refuses_update(
            &DEF,
            &attachment(),
            &[(
                json!({"spec": {"nodeName": "n2"}}),
                r#"spec: Invalid value: {"attacher":"disk.example.com","nodeName":"n2","source":{"persistentVolumeName":"pv1"}}: field is immutable"#,
            )],
        );
        let attached = merged(
            &attachment(),
            &json!({"spec": {"nodeName": "n2"}, "status": {"attached": true}}),
        );
        assert!(
            status_problems(&DEF, attached, attachment()).is_empty(),
            "the spec is kept"
        );
    }
}
