//! The objects that decide about names, shared with other components.

use serde::de::IgnoredAny;

pub use orlop_api::objects::{ConfigMap, Namespace, Service};

/// Whom endpoints stand for is skipped.
pub type EndpointSlice = orlop_api::objects::EndpointSlice<IgnoredAny>;
