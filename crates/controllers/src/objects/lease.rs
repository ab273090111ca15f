//! Leases: somebody is still there.

use jiff::Timestamp;
use serde::Deserialize;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: Meta,
    pub spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseSpec {
    pub renew_time: Option<Timestamp>,
}

impl Kind for Lease {
    const API_VERSION: &'static str = "coordination.k8s.io/v1";
    const KIND: &'static str = "Lease";
    const RESOURCE: &'static str = "leases";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
