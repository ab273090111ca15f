//! Volumes, claims and what CSI drivers say: the facts that the volume plugins decide by.
//!
//! ```text
//!   watches ──observe_*──▶ Tables (as the API server has it) ◀── decisions hold on to one version of it
//!   VolumeBinding ──────▶ Assumed (copies that the next revision of the object takes the place of)
//! ```

mod assumed;
#[cfg(test)]
pub mod fixture;
mod tables;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::pod::{PodInfo, PodKey};
use crate::framework::event::{Actions, Event, Object, Resource};
use crate::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
};

pub use assumed::Assumed;
pub use tables::{HOSTNAME, Tables, Unclaimed};

#[derive(Default, Debug)]
pub struct Storage {
    tables: Arc<Tables>,
    assumed: Arc<Assumed>,
    /// Namespace → claim → how many volumes of pods on nodes name it.
    in_use: HashMap<Arc<str>, HashMap<String, u32>>,
}

impl Storage {
    /// What the API server has, as it is now: later changes do not show in it.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    pub fn assumed(&self) -> &Arc<Assumed> {
        &self.assumed
    }

    /// The claim with what is assumed of it.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let known = self.tables.claim(namespace, name)?;
        Some(self.assumed.claim(known).unwrap_or_else(|| known.clone()))
    }

    /// Some pod on a node uses this claim, by name.
    pub fn is_in_use(&self, namespace: &str, claim: &str) -> bool {
        self.in_use.get(namespace).is_some_and(|c| c.contains_key(claim))
    }

    /// A pod is on a node from now on.
    pub fn pod_placed(&mut self, pod: &PodInfo) {
        for volume in &pod.volumes {
            let Some(source) = &volume.claim else { continue };
            let claims = self.in_use.entry(pod.namespace().clone()).or_default();
            *claims.entry(source.claim_name.clone()).or_default() += 1;
        }
    }

    /// Takes back `pod_placed`.
    pub fn pod_displaced(&mut self, pod: &PodInfo) {
        for volume in &pod.volumes {
            let (Some(source), Some(claims)) = (&volume.claim, self.in_use.get_mut(pod.namespace())) else {
                continue;
            };
            if let Some(count) = claims.get_mut(&source.claim_name) {
                *count -= 1;
                if *count == 0 {
                    claims.remove(&source.claim_name);
                }
            }
            if claims.is_empty() {
                self.in_use.remove(pod.namespace());
            }
        }
    }

    // ---- what watches show: the object, or None when it is gone; the event, unless nothing changed ----

    pub fn observe_volume(&mut self, name: &str, new: Option<PersistentVolume>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = Arc::make_mut(&mut self.tables).set_volume(name, new.clone());
        self.assumed.volume_observed(name, new.as_deref());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::PersistentVolume, Object::PersistentVolume, old, new, same)
    }

    pub fn observe_claim(&mut self, namespace: &str, name: &str, new: Option<PersistentVolumeClaim>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = Arc::make_mut(&mut self.tables).set_claim(namespace, name, new.clone());
        self.assumed.claim_observed(namespace, name, new.as_deref());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(
            Resource::PersistentVolumeClaim,
            Object::PersistentVolumeClaim,
            old,
            new,
            same,
        )
    }

    pub fn observe_class(&mut self, name: &str, new: Option<StorageClass>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = set(&mut Arc::make_mut(&mut self.tables).classes, name, new.clone());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::StorageClass, Object::StorageClass, old, new, same)
    }

    pub fn observe_csi_node(&mut self, name: &str, new: Option<CsiNode>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = set(&mut Arc::make_mut(&mut self.tables).csi_nodes, name, new.clone());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::CsiNode, Object::CsiNode, old, new, same)
    }

    pub fn observe_driver(&mut self, name: &str, new: Option<CsiDriver>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = set(&mut Arc::make_mut(&mut self.tables).drivers, name, new.clone());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::CsiDriver, Object::CsiDriver, old, new, same)
    }

    pub fn observe_capacity(&mut self, namespace: &str, name: &str, new: Option<CsiStorageCapacity>) -> Option<Event> {
        let new = new.map(Arc::new);
        let key = format!("{namespace}/{name}");
        let old = Arc::make_mut(&mut self.tables).set_capacity(&key, new.clone());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::CsiStorageCapacity, Object::CsiStorageCapacity, old, new, same)
    }

    pub fn observe_attachment(&mut self, name: &str, new: Option<VolumeAttachment>) -> Option<Event> {
        let new = new.map(Arc::new);
        let old = Arc::make_mut(&mut self.tables).set_attachment(name, new.clone());
        let same = matches!((&old, &new), (Some(o), Some(n))
            if is_same(&o.metadata.resource_version, &n.metadata.resource_version));
        event(Resource::VolumeAttachment, Object::VolumeAttachment, old, new, same)
    }
}

fn set<T>(table: &mut FxHashMap<String, Arc<T>>, name: &str, new: Option<Arc<T>>) -> Option<Arc<T>> {
    match new {
        Some(new) => table.insert(name.to_string(), new),
        None => table.remove(name),
    }
}

/// Listed once more, not changed.
fn is_same(old: &str, new: &str) -> bool {
    !old.is_empty() && old == new
}

fn event<T>(
    resource: Resource,
    object: fn(Arc<T>) -> Object,
    old: Option<Arc<T>>,
    new: Option<Arc<T>>,
    same: bool,
) -> Option<Event> {
    let actions = match (&old, &new) {
        (None, None) => return None,
        (None, Some(_)) => Actions::ADD,
        (Some(_), None) => Actions::DELETE,
        (Some(_), Some(_)) if same => return None,
        (Some(_), Some(_)) => Actions::UPDATE_OTHER,
    };
    let or_none = |o: Option<Arc<T>>| o.map_or(Object::None, object);
    Some(Event {
        resource,
        actions,
        old: or_none(old),
        new: or_none(new),
    })
}

/// A claim that a volume of a pod stands for.
pub struct NamedClaim<'a> {
    pub name: Cow<'a, str>,
    /// Made for this pod alone, from the template in its volume.
    pub ephemeral: bool,
}

/// The pod's claims, in the order of its volumes.
pub fn claims_of(pod: &PodInfo) -> impl Iterator<Item = NamedClaim<'_>> {
    pod.volumes.iter().filter_map(|volume| {
        if let Some(source) = &volume.claim {
            return Some(NamedClaim {
                name: Cow::Borrowed(&source.claim_name),
                ephemeral: false,
            });
        }
        volume.ephemeral.as_ref()?;
        Some(NamedClaim {
            name: Cow::Owned(format!("{}-{}", pod.key.name, volume.name)),
            ephemeral: true,
        })
    })
}

/// Whether one of the pod's volumes, ephemeral ones included, stands for this claim.
pub fn uses_claim(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    **pod.namespace() == *claim.metadata.namespace && claims_of(pod).any(|c| c.name == claim.metadata.name)
}

/// A claim of that name was there before the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
pub struct NotMadeForPod {
    claim: String,
    pod: PodKey,
}

/// A claim of an ephemeral volume must have been made for that very pod.
pub fn check_made_for(pod: &PodInfo, claim: &PersistentVolumeClaim) -> Result<(), NotMadeForPod> {
    let owners = &claim.metadata.owner_references;
    if owners.iter().any(|o| o.is_controller() && o.uid == *pod.uid) {
        return Ok(());
    }
    Err(NotMadeForPod {
        claim: claim.metadata.key(),
        pod: pod.key.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fixture::World;
    use super::*;

    /// Adding, changing, listing again and removing: the events for the queue.
    #[test]
    fn events_say_what_happened() {
        let mut storage = Storage::default();
        let volume = |revision: &str, class: &str| -> Option<PersistentVolume> {
            let object = json!({
                "metadata": {"name": "v", "resourceVersion": revision},
                "spec": {"storageClassName": class},
            });
            Some(serde_json::from_value(object).unwrap())
        };
        let steps = [
            (None, None),
            (volume("1", "a"), Some(Actions::ADD)),
            (volume("1", "a"), None),
            (volume("2", "b"), Some(Actions::UPDATE_OTHER)),
            (None, Some(Actions::DELETE)),
            (None, None),
        ];
        for (step, (new, expected)) in steps.into_iter().enumerate() {
            let gone = new.is_none();
            let event = storage.observe_volume("v", new);
            assert_eq!(event.as_ref().map(|e| e.actions), expected, "step {step}");
            let Some(event) = event else { continue };
            assert_eq!(matches!(event.new, Object::None), gone, "step {step}");
            assert_eq!(matches!(event.old, Object::None), expected == Some(Actions::ADD));
        }
        assert!(storage.tables.is_empty(), "nothing is left in the indices");
    }

    #[test]
    fn claims_are_in_use_while_pods_are_on_nodes() {
        let mut world = World::default();
        world.node("n", json!({}));
        for pod in ["one", "two"] {
            world.place(
                pod,
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
                "n",
            );
        }
        assert!(world.cluster.storage.is_in_use("default", "data"));
        assert!(!world.cluster.storage.is_in_use("other", "data"));
        world.cluster.remove_pod("uid-one");
        assert!(world.cluster.storage.is_in_use("default", "data"));
        world.cluster.remove_node("n");
        assert!(
            !world.cluster.storage.is_in_use("default", "data"),
            "its node is not known"
        );
        world.node("n", json!({}));
        assert!(world.cluster.storage.is_in_use("default", "data"));
        world.cluster.remove_pod("uid-two");
        assert!(!world.cluster.storage.is_in_use("default", "data"));
        assert!(world.cluster.storage.in_use.is_empty());
    }

    #[test]
    fn a_version_that_is_held_does_not_change() {
        let mut storage = Storage::default();
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        storage.observe_class("a", Some(class));
        let held = storage.tables().clone();
        storage.observe_class("a", None);
        assert!(held.class("a").is_some());
        assert!(storage.tables().class("a").is_none());
    }
}
