//! The pod spec, wherever it stands: in a pod or in the template of one.

use serde_json::Value;

use crate::field::{Cursor, Problems};

/// Fills in the defaults of a pod spec.
pub fn default(_spec: &mut Value) {}

pub fn validate(_spec: &Cursor<'_>, _p: &mut Problems) {}
