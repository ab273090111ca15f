//! The objects that decide about packets. All but service CIDRs are shared with other components.

use serde::Deserialize;
use serde::de::IgnoredAny;

pub use orlop_api::objects::endpoint_slice::Named;
pub use orlop_api::objects::{ConfigMap, Node, Service};

/// Whom endpoints stand for is skipped.
pub type EndpointSlice = orlop_api::objects::EndpointSlice<IgnoredAny>;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidr {
    pub spec: ServiceCidrSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ServiceCidrSpec {
    pub cidrs: Vec<String>,
}
