//! Volumes, claims and what CSI drivers say: the facts that the volume plugins decide by.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
};

#[derive(Default, Debug)]
pub struct Storage {
    pub volumes: HashMap<String, Arc<PersistentVolume>>,
    /// By `namespace/name`.
    pub claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    pub classes: HashMap<String, Arc<StorageClass>>,
    pub csi_nodes: HashMap<String, Arc<CsiNode>>,
    pub drivers: HashMap<String, Arc<CsiDriver>>,
    /// By `namespace/name`.
    pub capacities: HashMap<String, Arc<CsiStorageCapacity>>,
    pub attachments: HashMap<String, Arc<VolumeAttachment>>,
}
