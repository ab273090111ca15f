//! What a CSI driver needs of Kubernetes.

use serde::Deserialize;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub metadata: Meta,
    pub spec: CsiDriverSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiDriverSpec {
    /// Unless it says no, its volumes are attached to a node before they are used there.
    pub attach_required: Option<bool>,
    /// Tells how much room there is for its volumes, and where.
    pub storage_capacity: bool,
}

impl Kind for CsiDriver {
    const API_VERSION: &'static str = "storage.k8s.io/v1";
    const KIND: &'static str = "CSIDriver";
    const RESOURCE: &'static str = "csidrivers";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
