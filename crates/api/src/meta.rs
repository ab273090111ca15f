//! Object metadata and label selectors as objects: the same rules in every kind.

use crate::field::{Cursor, Problems};
use crate::names::Rule;

/// Validates the ObjectMeta of a new object. `namespaced` and `name_rule` come from the kind.
pub fn validate_create(_meta: &Cursor<'_>, _namespaced: bool, _name_rule: Rule, _p: &mut Problems) {}

/// Validates the ObjectMeta of an update: what may not change has not changed.
pub fn validate_update(_new: &Cursor<'_>, _old: &Cursor<'_>, _p: &mut Problems) {}

/// `metadata.labels` or any other string map with label syntax.
pub fn validate_labels(_labels: &Cursor<'_>, _p: &mut Problems) {}

pub fn validate_annotations(_annotations: &Cursor<'_>, _p: &mut Problems) {}

/// A `metav1.LabelSelector`.
pub fn validate_label_selector(_selector: &Cursor<'_>, _p: &mut Problems) {}
