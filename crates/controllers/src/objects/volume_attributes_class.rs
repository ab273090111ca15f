//! Classes of the attributes that volumes can change while in use.

use serde::Deserialize;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    pub metadata: Meta,
}

impl Kind for VolumeAttributesClass {
    const API_VERSION: &'static str = "storage.k8s.io/v1";
    const KIND: &'static str = "VolumeAttributesClass";
    const RESOURCE: &'static str = "volumeattributesclasses";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
