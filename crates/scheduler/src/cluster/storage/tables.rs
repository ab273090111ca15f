//! Storage objects as the API server has them, with the indices that filters ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, Labels, Op, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment,
};

/// Volumes on a node's own disk say by this label which node that is.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Cloned (and not cheap to clone) only when it changes while a decision still holds on to it.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    volumes: FxHashMap<String, Arc<PersistentVolume>>,
    /// Namespace → name.
    claims: FxHashMap<String, FxHashMap<String, Arc<PersistentVolumeClaim>>>,
    pub(super) classes: FxHashMap<String, Arc<StorageClass>>,
    pub(super) csi_nodes: FxHashMap<String, Arc<CsiNode>>,
    pub(super) drivers: FxHashMap<String, Arc<CsiDriver>>,
    /// By `namespace/name`.
    capacities: FxHashMap<String, Arc<CsiStorageCapacity>>,
    attachments: FxHashMap<String, Arc<VolumeAttachment>>,

    /// Class → volumes that are nobody's.
    unclaimed: FxHashMap<String, Unclaimed>,
    /// `namespace/name` of a claim → volumes that refer to it.
    claimed: FxHashMap<String, BTreeSet<String>>,
    /// Class → capacities.
    capacities_of: FxHashMap<String, BTreeSet<String>>,
    /// Node → attachments.
    attached_to: FxHashMap<String, BTreeSet<String>>,
}

/// Volumes of one class that refer to no claim; the smallest first.
#[derive(Clone, Debug, Default)]
pub struct Unclaimed {
    /// By the host name that nodes must have.
    pinned: FxHashMap<String, BySize>,
    anywhere: BySize,
}

/// By capacity and name.
type BySize = BTreeMap<(i128, String), Arc<PersistentVolume>>;

impl Unclaimed {
    /// The smallest that has at least this capacity and suits; only such as may be reached with these labels are asked
    /// about (there may still be some that are not).
    pub fn smallest(
        &self,
        labels: &Labels,
        capacity: i128,
        suits: impl Fn(&PersistentVolume) -> bool,
    ) -> Option<&Arc<PersistentVolume>> {
        let here = labels.get(HOSTNAME).and_then(|host| self.pinned.get(host));
        let candidates = [here, Some(&self.anywhere)].into_iter().flatten();
        candidates
            .filter_map(|volumes| volumes.range((capacity, String::new())..).find(|(_, v)| suits(v)))
            .min_by(|a, b| a.0.cmp(b.0))
            .map(|(_, volume)| volume)
    }

    fn is_empty(&self) -> bool {
        self.pinned.is_empty() && self.anywhere.is_empty()
    }

    fn insert(&mut self, volume: &Arc<PersistentVolume>) {
        let key = (volume.spec.capacity.nanos(), volume.metadata.name.clone());
        match hosts(volume) {
            None => {
                self.anywhere.insert(key, volume.clone());
            }
            Some(hosts) => {
                for host in hosts {
                    let volumes = self.pinned.entry(host.to_string()).or_default();
                    volumes.insert(key.clone(), volume.clone());
                }
            }
        }
    }

    fn remove(&mut self, volume: &PersistentVolume) {
        let key = (volume.spec.capacity.nanos(), volume.metadata.name.clone());
        self.anywhere.remove(&key);
        for host in hosts(volume).unwrap_or_default() {
            if let Some(volumes) = self.pinned.get_mut(host) {
                volumes.remove(&key);
                if volumes.is_empty() {
                    self.pinned.remove(host);
                }
            }
        }
    }
}

/// Host names outside of which the volume cannot be reached; None if it does not say it by host name.
fn hosts(volume: &PersistentVolume) -> Option<BTreeSet<&str>> {
    let terms = &volume.spec.node_affinity.required.as_ref()?.node_selector_terms;
    let mut all = BTreeSet::new();
    for term in terms {
        let named = term.match_expressions.iter().find_map(|r| match &r.op {
            Op::In(values) if r.key == HOSTNAME => Some(values),
            _ => None,
        })?;
        all.extend(named.iter().map(String::as_str));
    }
    Some(all)
}

impl Tables {
    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name)
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(namespace)?.get(name)
    }

    pub fn class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.classes.get(name)
    }

    pub fn csi_node(&self, node: &str) -> Option<&Arc<CsiNode>> {
        self.csi_nodes.get(node)
    }

    pub fn driver(&self, name: &str) -> Option<&Arc<CsiDriver>> {
        self.drivers.get(name)
    }

    /// Of the class, what nobody has claimed.
    pub fn unclaimed(&self, class: &str) -> Option<&Unclaimed> {
        self.unclaimed.get(class)
    }

    /// Volumes that refer to a claim of this name.
    pub fn volumes_for(&self, claim: &str) -> impl Iterator<Item = &Arc<PersistentVolume>> {
        let names = self.claimed.get(claim).into_iter().flatten();
        names.map(|name| &self.volumes[name])
    }

    pub fn capacities(&self, class: &str) -> impl Iterator<Item = &Arc<CsiStorageCapacity>> {
        let keys = self.capacities_of.get(class).into_iter().flatten();
        keys.map(|key| &self.capacities[key])
    }

    /// What is, or is being, attached to the node.
    pub fn attachments(&self, node: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        let names = self.attached_to.get(node).into_iter().flatten();
        names.map(|name| &self.attachments[name])
    }

    pub(super) fn set_volume(
        &mut self,
        name: &str,
        new: Option<Arc<PersistentVolume>>,
    ) -> Option<Arc<PersistentVolume>> {
        let old = super::set(&mut self.volumes, name, new.clone());
        if let Some(old) = &old {
            match claim_key(old) {
                Some(key) => unlink(&mut self.claimed, &key, name),
                None => {
                    if let Some(unclaimed) = self.unclaimed.get_mut(old.class()) {
                        unclaimed.remove(old);
                        if unclaimed.is_empty() {
                            self.unclaimed.remove(old.class());
                        }
                    }
                }
            }
        }
        if let Some(new) = &new {
            match claim_key(new) {
                Some(key) => link(&mut self.claimed, key, name),
                None => self.unclaimed.entry(new.class().to_string()).or_default().insert(new),
            }
        }
        old
    }

    pub(super) fn set_claim(
        &mut self,
        namespace: &str,
        name: &str,
        new: Option<Arc<PersistentVolumeClaim>>,
    ) -> Option<Arc<PersistentVolumeClaim>> {
        if new.is_none() && !self.claims.contains_key(namespace) {
            return None;
        }
        let claims = self.claims.entry(namespace.to_string()).or_default();
        let old = super::set(claims, name, new);
        if claims.is_empty() {
            self.claims.remove(namespace);
        }
        old
    }

    pub(super) fn set_capacity(
        &mut self,
        key: &str,
        new: Option<Arc<CsiStorageCapacity>>,
    ) -> Option<Arc<CsiStorageCapacity>> {
        let old = super::set(&mut self.capacities, key, new.clone());
        if let Some(old) = &old {
            unlink(&mut self.capacities_of, &old.storage_class_name, key);
        }
        if let Some(new) = new {
            link(&mut self.capacities_of, new.storage_class_name.clone(), key);
        }
        old
    }

    pub(super) fn set_attachment(
        &mut self,
        name: &str,
        new: Option<Arc<VolumeAttachment>>,
    ) -> Option<Arc<VolumeAttachment>> {
        let old = super::set(&mut self.attachments, name, new.clone());
        if let Some(old) = &old {
            unlink(&mut self.attached_to, &old.spec.node_name, name);
        }
        if let Some(new) = new {
            link(&mut self.attached_to, new.spec.node_name.clone(), name);
        }
        old
    }
}

fn claim_key(volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.claim_ref.as_ref()?;
    Some(format!("{}/{}", claim.namespace, claim.name))
}

fn link(index: &mut FxHashMap<String, BTreeSet<String>>, key: String, value: &str) {
    index.entry(key).or_default().insert(value.to_string());
}

fn unlink(index: &mut FxHashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
impl Tables {
    /// Nothing in the tables, nor in the indices.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
            && self.claims.is_empty()
            && self.classes.is_empty()
            && self.csi_nodes.is_empty()
            && self.drivers.is_empty()
            && self.capacities.is_empty()
            && self.attachments.is_empty()
            && self.unclaimed.is_empty()
            && self.claimed.is_empty()
            && self.capacities_of.is_empty()
            && self.attached_to.is_empty()
    }
}
