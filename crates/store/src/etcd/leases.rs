//! Leases: what shall vanish by itself hangs on one, and many records share one.
// Upstream: staging/src/k8s.io/apiserver/pkg/storage/etcd3/lease_manager.go (v1.36)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use orlop_base::clock::{Shift, monotonic};
use tokio::sync::Mutex;

use super::client::{CallError, Client};

/// Records of one lease, at most.
const RECORDS: usize = 1000;
/// A lease is given out for this long, at most, or a twentieth of the time to live.
const SHARED_FOR: Duration = Duration::from_secs(60);

struct Lease {
    id: i64,
    records: usize,
    expires: Instant,
}

#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<Duration, Lease>>);

impl Leases {
    /// A lease that lasts for `ttl`, and not much longer.
    pub(super) async fn get(
        &self,
        client: &Client,
        ttl: Duration,
        until: tokio::time::Instant,
    ) -> Result<i64, CallError> {
        let mut leases = self.0.lock().await;
        let now = monotonic();
        if let Some(lease) = leases.get_mut(&ttl)
            && lease.records < RECORDS
            && now.later(ttl) <= lease.expires
        {
            lease.records += 1;
            return Ok(lease.id);
        }
        let lasts = ttl.saturating_add(shared_for(ttl));
        let granted = client.grant(lasts.as_secs().max(1) as i64, until).await?;
        let lease = Lease {
            id: granted.id,
            records: 1,
            expires: now.later(lasts),
        };
        leases.insert(ttl, lease);
        Ok(granted.id)
    }

    /// It is gone: somebody revoked it, or our clock stood still.
    pub(super) async fn forget(&self, ttl: Duration) {
        self.0.lock().await.remove(&ttl);
    }
}

fn shared_for(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() / 20).min(SHARED_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_shared_for_a_twentieth_of_their_time() {
        for (ttl, wanted) in [(3600, 60), (600, 30), (15, 0)] {
            assert_eq!(shared_for(Duration::from_secs(ttl)), Duration::from_secs(wanted));
        }
    }
}
