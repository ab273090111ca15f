//! ControllerRevisions: earlier states of a DaemonSet or StatefulSet.

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    pub metadata: Meta,
    /// A patch that brings the state back.
    pub data: Value,
    /// The higher, the newer.
    pub revision: i64,
}

impl Kind for ControllerRevision {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "ControllerRevision";
    const RESOURCE: &'static str = "controllerrevisions";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
