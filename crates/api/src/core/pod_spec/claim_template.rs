//! The claim that is made for an ephemeral volume: a PersistentVolumeClaim without a name.

use super::Read;
use crate::core::persistent_volume_claim;
use crate::field::{Cursor, Problems};
use crate::meta;

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
    persistent_volume_claim::validate_spec(&template.at("spec"), p);
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
