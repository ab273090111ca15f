//! Storage classes: who makes volumes, and when.

use serde::Deserialize;

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
    pub volume_binding_mode: Option<String>,
    pub allowed_topologies: Vec<TopologyTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologyTerm {
    pub match_label_expressions: Vec<TopologyRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologyRequirement {
    pub key: String,
    pub values: Vec<String>,
}

impl TopologyTerm {
    /// An empty one matches nothing.
    fn matches(&self, labels: &Labels) -> bool {
        let wanted = &self.match_label_expressions;
        let has = |r: &TopologyRequirement| labels.get(&r.key).is_some_and(|value| r.values.contains(value));
        !wanted.is_empty() && wanted.iter().all(has)
    }
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
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// Whether volumes may be made for nodes with these labels.
    pub fn allows(&self, labels: &Labels) -> bool {
        self.allowed_topologies.is_empty() || self.allowed_topologies.iter().any(|term| term.matches(labels))
    }
}
