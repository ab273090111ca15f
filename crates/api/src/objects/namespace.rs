//! Namespaces.

use serde::{Deserialize, Serialize};

use super::{Condition, Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Meta,
    pub spec: NamespaceSpec,
    pub status: NamespaceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    pub finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NamespaceStatus {
    pub phase: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl Kind for Namespace {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "Namespace";
    const RESOURCE: &'static str = "namespaces";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Namespace {
    /// Things can still be made in it.
    pub fn is_active(&self) -> bool {
        self.status.phase == "Active"
    }
}
