//! What happened in the cluster, as far as a rejected pod may care.

use std::sync::Arc;

use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
};

/// Kinds of objects whose changes matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// A pod on a node.
    AssignedPod,
    /// The waiting pod itself.
    OwnPod,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
    /// A timer, or something that no plugin names: every rejected pod is tried again.
    Any,
}

/// A set of things that can happen to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Actions(pub u32);

impl Actions {
    pub const ADD: Actions = Actions(1);
    pub const DELETE: Actions = Actions(1 << 1);
    pub const UPDATE_ALLOCATABLE: Actions = Actions(1 << 2);
    pub const UPDATE_LABEL: Actions = Actions(1 << 3);
    pub const UPDATE_TAINT: Actions = Actions(1 << 4);
    pub const UPDATE_CONDITION: Actions = Actions(1 << 5);
    pub const UPDATE_DECLARED_FEATURES: Actions = Actions(1 << 6);
    /// A pod asks for less.
    pub const SCALE_DOWN: Actions = Actions(1 << 7);
    pub const UPDATE_TOLERATION: Actions = Actions(1 << 8);
    pub const GATES_ELIMINATED: Actions = Actions(1 << 9);
    /// Any other change.
    pub const UPDATE_OTHER: Actions = Actions(1 << 10);
    /// Any change at all.
    pub const UPDATE: Actions = Actions(0b111_1111_1100);

    pub const fn or(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }

    pub const fn meets(self, other: Actions) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a plugin wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventKind {
    pub resource: Resource,
    pub actions: Actions,
}

impl EventKind {
    pub const fn new(resource: Resource, actions: Actions) -> EventKind {
        EventKind { resource, actions }
    }
}

#[derive(Clone, Debug)]
pub enum Object {
    None,
    Pod(Arc<PodInfo>),
    Node(Arc<NodeInfo>),
    PersistentVolume(Arc<PersistentVolume>),
    PersistentVolumeClaim(Arc<PersistentVolumeClaim>),
    StorageClass(Arc<StorageClass>),
    CsiNode(Arc<CsiNode>),
    CsiDriver(Arc<CsiDriver>),
    CsiStorageCapacity(Arc<CsiStorageCapacity>),
    VolumeAttachment(Arc<VolumeAttachment>),
}

/// Something that happened. `old` is None for what was added, `new` for what is gone.
#[derive(Clone, Debug)]
pub struct Event {
    pub resource: Resource,
    pub actions: Actions,
    pub old: Object,
    pub new: Object,
}

impl Object {
    fn pod(&self) -> Option<&Arc<PodInfo>> {
        match self {
            Object::Pod(pod) => Some(pod),
            _ => None,
        }
    }

    fn node(&self) -> Option<&Arc<NodeInfo>> {
        match self {
            Object::Node(node) => Some(node),
            _ => None,
        }
    }
}

impl Event {
    /// Before and after, if it is about a pod.
    pub fn pods(&self) -> (Option<&Arc<PodInfo>>, Option<&Arc<PodInfo>>) {
        (self.old.pod(), self.new.pod())
    }

    /// Before and after, if it is about a node.
    pub fn nodes(&self) -> (Option<&Arc<NodeInfo>>, Option<&Arc<NodeInfo>>) {
        (self.old.node(), self.new.node())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It may fit now: try it (after its back-off).
    Queue,
    /// This changes nothing for it.
    Skip,
}

impl Hint {
    pub fn queue_if(yes: bool) -> Hint {
        if yes { Hint::Queue } else { Hint::Skip }
    }
}
