//! Whether the controllers are well: they hold their lease, and their informer caches are synced.

use orlop_client::leader::LeaseHealth;
use parking_lot::Mutex;

use crate::runtime::Caches;

/// The health of one run of the controllers, which fills it in; `serving` reports it.
#[derive(Default)]
pub struct Health {
    lease: Mutex<Option<LeaseHealth>>,
    caches: Mutex<Option<Caches>>,
}

impl Health {
    pub(crate) fn set_lease(&self, lease: LeaseHealth) {
        *self.lease.lock() = Some(lease);
    }

    pub(crate) fn set_caches(&self, caches: Caches) {
        *self.caches.lock() = Some(caches);
    }

    /// False if this process leads, or led, by a lease that it failed to renew. True without an election.
    pub fn is_lease_healthy(&self) -> bool {
        self.lease.lock().as_ref().is_none_or(LeaseHealth::is_healthy)
    }

    /// Whether all informer caches of the controllers hold the state of the cluster. A standby has none and is ready to
    /// take over; without an election false until the controllers have started.
    pub fn are_caches_synced(&self) -> bool {
        match &*self.caches.lock() {
            Some(caches) => caches.are_synced(),
            None => self.lease.lock().is_some(),
        }
    }
}
