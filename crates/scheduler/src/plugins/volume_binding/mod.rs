//! VolumeBinding: pods go where their volumes can be reached, and claims that wait for a pod get their volume with it.

mod binding;
mod claims;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::cluster::storage::uses_claim;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Object, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, PostBind, PreBind, Progress, Reserve, Scope, Write};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::MIGRATED_PLUGINS;
use binding::{BindingState, Reservation};
use claims::Claims;

pub const DEFAULT_BIND_TIMEOUT: Duration = Duration::from_secs(600);

pub struct VolumeBinding {
    bind_timeout: Duration,
    /// By uid: pods whose claims are not all bound yet.
    reserved: Mutex<HashMap<Arc<str>, Reservation>>,
}

impl Default for VolumeBinding {
    fn default() -> VolumeBinding {
        VolumeBinding::new(DEFAULT_BIND_TIMEOUT)
    }
}

impl VolumeBinding {
    pub fn new(bind_timeout: Duration) -> VolumeBinding {
        VolumeBinding {
            bind_timeout,
            reserved: Mutex::default(),
        }
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }

    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }

    fn post_bind(&self) -> Option<&dyn PostBind> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        let changed = Actions::ADD.or(Actions::UPDATE);
        vec![
            EventKind::new(Resource::StorageClass, changed),
            EventKind::new(Resource::PersistentVolumeClaim, changed),
            EventKind::new(Resource::PersistentVolume, changed),
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL)),
            EventKind::new(Resource::CsiNode, changed),
            EventKind::new(Resource::CsiDriver, Actions::UPDATE),
            EventKind::new(Resource::CsiStorageCapacity, changed),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        match (&event.old, &event.new) {
            (_, Object::PersistentVolumeClaim(claim)) => Hint::queue_if(uses_claim(pod, claim)),
            (Object::StorageClass(old), Object::StorageClass(new)) => {
                Hint::queue_if(old.allowed_topologies != new.allowed_topologies)
            }
            (Object::CsiNode(old), Object::CsiNode(new)) => {
                let migrated = |n: &crate::model::CsiNode| n.metadata.annotations.get(MIGRATED_PLUGINS).cloned();
                Hint::queue_if(migrated(old).unwrap_or_default() != migrated(new).unwrap_or_default())
            }
            (Object::CsiDriver(old), Object::CsiDriver(new)) => {
                let mut inline = pod.volumes.iter().filter_map(|v| v.csi.as_ref());
                let uses_driver = inline.any(|v| v.driver == new.metadata.name);
                Hint::queue_if(uses_driver && old.spec.storage_capacity && !new.spec.storage_capacity)
            }
            (Object::CsiStorageCapacity(old), Object::CsiStorageCapacity(new)) => {
                // An absent limit is less than any.
                Hint::queue_if(new.volume_limit() > old.volume_limit())
            }
            _ => Hint::Queue,
        }
    }
}

impl Filter for VolumeBinding {
    type State = Arc<Claims>;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<Arc<Claims>> {
        match Claims::of(pod, &cluster.storage) {
            Ok(None) => PreFilter::Skip,
            Ok(Some(claims)) => PreFilter::Run(Arc::new(claims)),
            Err(rejection) => PreFilter::Reject(rejection),
        }
    }

    fn filter(&self, claims: &Arc<Claims>, _: &PodInfo, node: &NodeInfo) -> Verdict {
        claims.find(node).map(drop)
    }

    fn details(&self, claims: &Arc<Claims>, _: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        claims.problems(node)
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, pod: &Arc<PodInfo>, node: &NodeInfo, cluster: &Cluster) -> Result<(), Rejection> {
        let Some(claims) = Claims::of(pod, &cluster.storage)? else {
            return Ok(());
        };
        // Found anew: nothing changed since the node was filtered, so this gives what filtering saw.
        let found = claims.find(node)?;
        if !claims.are_all_bound() {
            let reservation = Reservation::new(found, &node.name, cluster.storage.assumed());
            self.reserved.lock().insert(pod.uid.clone(), reservation);
        }
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, _: &str) {
        if let Some(reservation) = self.reserved.lock().remove(&pod.uid) {
            reservation.give_back();
        }
    }
}

impl PreBind for VolumeBinding {
    fn writes(&self, pod: &PodInfo, _: &NodeInfo, cluster: &Cluster) -> Vec<Write> {
        let reserved = self.reserved.lock();
        reserved
            .get(&pod.uid)
            .map_or_else(Vec::new, |r| r.writes(&cluster.storage))
    }

    fn progress(&self, pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Progress {
        let reserved = self.reserved.lock();
        let Some(reservation) = reserved.get(&pod.uid) else {
            return Progress::Done;
        };
        match reservation.progress(node, &cluster.storage) {
            BindingState::Bound => Progress::Done,
            BindingState::Waiting => Progress::Waiting(self.bind_timeout),
            BindingState::Failed(reason) => Progress::Failed(format!("binding volumes: {reason}")),
        }
    }
}

impl PostBind for VolumeBinding {
    /// What was assumed has been written: the watch shows it, or will.
    fn bound(&self, pod: &PodInfo, _: &str) {
        self.reserved.lock().remove(&pod.uid);
    }
}
