//! Leases: keys that go when nobody keeps their lease alive.
//!
//! Which leases there are is in a small store of its own, since granting one takes no revision. Which keys a lease has
//! follows from the keys themselves: from all of them at the start, then from each event ([`Leases::observe`]). So
//! nothing must be kept in step: a lease whose keys are gone but which is still there expires once more, with no keys.
//!
//! After a restart every lease has its whole time again, as after a change of etcd's leader.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orlop_base::Random;
use orlop_base::clock::{Shift, seconds};
use orlop_store::{Action, CommitError, Expect, Item, Op, RangeQuery, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::apply::LiveLeases;
use crate::errors::Error;
use crate::pair::Pair;

/// Upstream: about thirty years.
const TTL_MAX: i64 = 9_000_000_000;
/// Upstream: one and a half election timeouts, in whole seconds.
const TTL_MIN: i64 = 2;
/// When to try again to revoke a lease whose keys could not be deleted.
const RETRY: Duration = Duration::from_secs(1);
const PREFIX: &str = "/e/l/";

type StoredEvent = orlop_store::Event<Pair>;

pub(crate) struct Leases {
    store: Store<Bytes>,
    inner: Mutex<Inner>,
    /// The next deadline may be another one.
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    leases: HashMap<i64, Lease>,
    deadlines: BTreeSet<(Instant, i64)>,
}

struct Lease {
    ttl: i64,
    deadline: Instant,
    keys: BTreeSet<Arc<str>>,
    revoking: bool,
}

/// How a lease stands.
pub(crate) struct Standing {
    pub remaining: i64,
    pub granted: i64,
    pub keys: Vec<Arc<str>>,
}

/// The runtime's time, which tests hold still.
fn now() -> Instant {
    Instant::now()
}

fn key(id: i64) -> String {
    format!("{PREFIX}{id:016x}")
}

impl Leases {
    /// The leases of before, each with its whole time.
    pub(crate) fn open(store: Store<Bytes>) -> Leases {
        let mut inner = Inner::default();
        let query = RangeQuery {
            prefix: PREFIX,
            ..RangeQuery::default()
        };
        let page = store
            .range(query, &mut |_| true)
            .expect("a range over the present can always be read");
        for item in page.items {
            let id = item
                .key
                .strip_prefix(PREFIX)
                .and_then(|id| u64::from_str_radix(id, 16).ok());
            let ttl = <[u8; 8]>::try_from(&item.record[..]).ok().map(i64::from_le_bytes);
            match id.zip(ttl) {
                Some((id, ttl)) => inner.grant(id.cast_signed(), ttl),
                None => tracing::warn!(key = %item.key, "ignoring a lease that cannot be read"),
            }
        }
        Leases {
            store,
            inner: Mutex::new(inner),
            changed: Notify::new(),
        }
    }

    /// A key that was there at the start.
    pub(crate) fn attach(&self, item: &Item<Pair>) {
        if item.record.lease != 0 {
            self.inner.lock().attach(item.record.lease, item.key.clone());
        }
    }

    /// Follows the keys; every event once, in order.
    pub(crate) fn observe(&self, event: &StoredEvent) {
        let lease = |item: &Option<Item<Pair>>| item.as_ref().map_or(0, |item| item.record.lease);
        let (old, new) = (lease(&event.previous), lease(&event.item));
        if old == new {
            return;
        }
        let mut inner = self.inner.lock();
        if old != 0 {
            inner.detach(old, &event.key);
        }
        if new != 0 {
            inner.attach(new, event.key.clone());
        }
    }

    /// Number and time to live of a new lease.
    pub(crate) async fn grant(&self, id: i64, ttl: i64) -> Result<(i64, i64), Error> {
        if ttl > TTL_MAX {
            return Err(Error::LeaseTtlTooLarge);
        }
        let ttl = ttl.max(TTL_MIN);
        let id = match id {
            0 => self.free_id(),
            id => id,
        };
        let record = Arc::new(Bytes::copy_from_slice(&ttl.to_le_bytes()));
        match self
            .store
            .commit(Op::new(key(id), Expect::Absent, Action::Put(record)))
            .await
        {
            Ok(_) => {}
            Err(CommitError::Conflict { .. }) => return Err(Error::LeaseExists),
            Err(error) => return Err(error.into()),
        }
        self.inner.lock().grant(id, ttl);
        self.changed.notify_one();
        Ok((id, ttl))
    }

    fn free_id(&self) -> i64 {
        let inner = self.inner.lock();
        let mut random = Random::from_entropy();
        loop {
            let id = (random.next_u64() >> 1).cast_signed();
            if id != 0 && !inner.leases.contains_key(&id) {
                return id;
            }
        }
    }

    /// The time to live that it has again.
    pub(crate) fn keep_alive(&self, id: i64) -> Option<i64> {
        let mut inner = self.inner.lock();
        let lease = inner.leases.get_mut(&id).filter(|lease| !lease.revoking)?;
        let (ttl, old) = (lease.ttl, lease.deadline);
        lease.deadline = now().later(seconds(ttl));
        let new = lease.deadline;
        // A later deadline need not wake anybody.
        inner.deadlines.remove(&(old, id));
        inner.deadlines.insert((new, id));
        Some(ttl)
    }

    pub(crate) fn standing(&self, id: i64, with_keys: bool) -> Option<Standing> {
        let inner = self.inner.lock();
        let lease = inner.leases.get(&id)?;
        let remaining = lease.deadline.saturating_duration_since(now()).as_secs();
        Some(Standing {
            remaining: i64::try_from(remaining).unwrap_or(i64::MAX),
            granted: lease.ttl,
            keys: match with_keys {
                true => lease.keys.iter().cloned().collect(),
                false => vec![],
            },
        })
    }

    /// All, the one that ends first first.
    pub(crate) fn ids(&self) -> Vec<i64> {
        let inner = self.inner.lock();
        let mut ids: Vec<_> = inner.leases.iter().map(|(id, lease)| (lease.deadline, *id)).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.inner.lock().leases.len()
    }

    /// From now on no key gets this lease. False if there is none, or if it is being revoked already.
    pub(crate) fn begin_revoking(&self, id: i64) -> bool {
        let mut inner = self.inner.lock();
        let Some(lease) = inner.leases.get_mut(&id).filter(|lease| !lease.revoking) else {
            return false;
        };
        lease.revoking = true;
        let deadline = lease.deadline;
        inner.deadlines.remove(&(deadline, id));
        true
    }

    /// The keys of a lease that is being revoked.
    pub(crate) fn keys(&self, id: i64) -> Vec<Arc<str>> {
        let inner = self.inner.lock();
        let keys = inner.leases.get(&id).map(|lease| lease.keys.iter().cloned().collect());
        keys.unwrap_or_default()
    }

    /// Its keys are gone: so is it.
    pub(crate) async fn end_revoking(&self, id: i64) -> Result<(), Error> {
        self.store.commit(Op::new(key(id), Expect::Any, Action::Delete)).await?;
        self.inner.lock().leases.remove(&id);
        Ok(())
    }

    /// Something went wrong: it is a lease as before that ends soon.
    pub(crate) fn give_up_revoking(&self, id: i64) {
        let mut inner = self.inner.lock();
        if let Some(lease) = inner.leases.get_mut(&id) {
            lease.revoking = false;
            lease.deadline = now().later(RETRY);
            let deadline = lease.deadline;
            inner.deadlines.insert((deadline, id));
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Waits for a lease to end, and returns it.
    pub(crate) async fn expired(&self) -> i64 {
        loop {
            let next = self.inner.lock().deadlines.first().copied();
            match next {
                Some((deadline, id)) if deadline <= now() => return id,
                Some((deadline, _)) => tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}

impl LiveLeases for Leases {
    fn is_live(&self, id: i64) -> bool {
        self.inner.lock().leases.get(&id).is_some_and(|lease| !lease.revoking)
    }
}

impl Inner {
    fn grant(&mut self, id: i64, ttl: i64) {
        let deadline = now().later(seconds(ttl));
        let lease = Lease {
            ttl,
            deadline,
            keys: BTreeSet::new(),
            revoking: false,
        };
        self.leases.insert(id, lease);
        self.deadlines.insert((deadline, id));
    }

    /// No key gets a lease that is not there, so there is one.
    fn attach(&mut self, id: i64, key: Arc<str>) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.insert(key);
        }
    }

    fn detach(&mut self, id: i64, key: &str) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.remove(key);
        }
    }
}
