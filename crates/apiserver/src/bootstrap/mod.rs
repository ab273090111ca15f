//! The objects every cluster starts with, as data.

use orlop_api::Value;

/// (resource as in `lookup`, object)
pub fn default_objects() -> Vec<(&'static str, Value)> {
    vec![]
}
