//! Storage classes: who makes volumes, and when.

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, Labels, Meta};

const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    pub metadata: Meta,
    pub provisioner: String,
    pub parameters: Labels,
    pub reclaim_policy: String,
    pub mount_options: Vec<String>,
    pub volume_binding_mode: String,
    pub allowed_topologies: Vec<Value>,
}

impl Kind for StorageClass {
    const API_VERSION: &'static str = "storage.k8s.io/v1";
    const KIND: &'static str = "StorageClass";
    const RESOURCE: &'static str = "storageclasses";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl StorageClass {
    /// Claims without a class get this one.
    pub fn is_default(&self) -> bool {
        IS_DEFAULT
            .iter()
            .any(|key| self.metadata.annotation(key) == Some("true"))
    }

    /// Volumes are bound, or made, only for a pod that has a node.
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode == "WaitForFirstConsumer"
    }
}
