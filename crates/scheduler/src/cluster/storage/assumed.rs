//! Copies of volumes and claims as they will be once our writes are done.
//!
//! A copy counts while the API server's object is of the revision that the copy was made of. Any newer revision takes its
//! place, whether it is ours or somebody else's.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Tables;
use crate::model::{PersistentVolume, PersistentVolumeClaim};

/// Shared, and behind a lock, as reservations are given back without the cluster at hand.
#[derive(Debug, Default)]
pub struct Assumed {
    copies: Mutex<Copies>,
}

#[derive(Debug, Default)]
struct Copies {
    volumes: HashMap<String, Arc<PersistentVolume>>,
    /// By `namespace/name`.
    claims: HashMap<String, Arc<PersistentVolumeClaim>>,
}

impl Assumed {
    pub fn assume_volume(&self, copy: Arc<PersistentVolume>) {
        self.copies.lock().volumes.insert(copy.metadata.name.clone(), copy);
    }

    pub fn assume_claim(&self, copy: Arc<PersistentVolumeClaim>) {
        self.copies.lock().claims.insert(copy.metadata.key(), copy);
    }

    /// Ends the assumption, if it still is this one.
    pub fn forget_volume(&self, copy: &Arc<PersistentVolume>) {
        let volumes = &mut self.copies.lock().volumes;
        if volumes.get(&copy.metadata.name).is_some_and(|c| Arc::ptr_eq(c, copy)) {
            volumes.remove(&copy.metadata.name);
        }
    }

    pub fn forget_claim(&self, copy: &Arc<PersistentVolumeClaim>) {
        let claims = &mut self.copies.lock().claims;
        let key = copy.metadata.key();
        if claims.get(&key).is_some_and(|c| Arc::ptr_eq(c, copy)) {
            claims.remove(&key);
        }
    }

    /// What is assumed of this claim.
    pub fn claim(&self, known: &PersistentVolumeClaim) -> Option<Arc<PersistentVolumeClaim>> {
        let copies = self.copies.lock();
        if copies.claims.is_empty() {
            return None;
        }
        let copy = copies.claims.get(&known.metadata.key())?;
        (copy.metadata.resource_version == known.metadata.resource_version).then(|| copy.clone())
    }

    /// All volumes of which something is assumed.
    pub fn volumes(&self, tables: &Tables) -> HashMap<String, Arc<PersistentVolume>> {
        let copies = self.copies.lock();
        let current = |name: &str, copy: &PersistentVolume| {
            let known = tables.volume(name);
            known.is_some_and(|k| k.metadata.resource_version == copy.metadata.resource_version)
        };
        let live = copies.volumes.iter().filter(|(name, copy)| current(name, copy));
        live.map(|(name, copy)| (name.clone(), copy.clone())).collect()
    }

    pub(super) fn volume_observed(&self, name: &str, new: Option<&PersistentVolume>) {
        let volumes = &mut self.copies.lock().volumes;
        let over =
            |copy: &PersistentVolume| new.is_none_or(|n| n.metadata.resource_version != copy.metadata.resource_version);
        if volumes.get(name).is_some_and(|copy| over(copy)) {
            volumes.remove(name);
        }
    }

    pub(super) fn claim_observed(&self, namespace: &str, name: &str, new: Option<&PersistentVolumeClaim>) {
        let claims = &mut self.copies.lock().claims;
        if claims.is_empty() {
            return;
        }
        let key = format!("{namespace}/{name}");
        let over = |copy: &PersistentVolumeClaim| {
            new.is_none_or(|n| n.metadata.resource_version != copy.metadata.resource_version)
        };
        if claims.get(&key).is_some_and(|copy| over(copy)) {
            claims.remove(&key);
        }
    }

    /// How many assumptions there are: volumes, claims.
    pub fn len(&self) -> (usize, usize) {
        let copies = self.copies.lock();
        (copies.volumes.len(), copies.claims.len())
    }
}
