//! The template of a pod, in every workload kind.

use serde_json::Value;

use crate::core::pod_spec;
use crate::field::{Cursor, Problems};

/// Fills in the defaults of a `PodTemplateSpec`.
pub fn default(template: &mut Value) {
    if let Some(spec) = template.get_mut("spec") {
        pod_spec::default(spec);
    }
}

/// Validates a `PodTemplateSpec` (metadata and spec). What the workload demands beyond that (restartPolicy, selector
/// match) is its own business.
pub fn validate(template: &Cursor<'_>, p: &mut Problems) {
    pod_spec::validate(&template.at("spec"), p);
}
