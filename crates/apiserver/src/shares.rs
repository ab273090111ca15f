//! Whose request it is, for what must be divided: places under way, memory, work aside. The cluster's own components and
//! leader election have shares apart, so that no crowd of ordinary users keeps them out.
//! Upstream: a part of what priority and fairness does with its system, node-high and leader-election levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authn::{MASTERS, UserInfo, split_service_account};
use crate::bodies::Memory;
use crate::metrics::InFlight;
use crate::request::RequestInfo;

/// Memory for large bodies being read or worked on.
const ORDINARY_MEMORY: usize = 64 << 20;
const SYSTEM_MEMORY: usize = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    LeaderElection,
    /// Nodes, the control plane's components, controllers, administrators.
    System,
    Ordinary,
}

impl Share {
    pub fn of(info: &RequestInfo, user: &UserInfo) -> Share {
        match is_system(user) {
            false => Share::Ordinary,
            true if info.resource == "leases" && info.namespace == "kube-system" => Share::LeaderElection,
            true => Share::System,
        }
    }
}

fn is_system(user: &UserInfo) -> bool {
    let of_system = split_service_account(&user.name).is_some_and(|(namespace, _)| namespace == "kube-system");
    of_system
        || user.in_group(MASTERS)
        || user.node_name().is_some()
        || user.name.starts_with("system:kube-")
        || user.name == "system:apiserver"
}

/// Requests under way, by share.
#[derive(Default)]
pub struct Places {
    leader_election: Arc<AtomicI64>,
    system: Arc<AtomicI64>,
    ordinary: Arc<AtomicI64>,
}

impl Places {
    /// Enters unless the share is used up. Ordinary requests may be `limit`, those of the system a quarter of that beside
    /// them, leader election a sixteenth.
    pub fn enter(&self, share: Share, limit: usize) -> Option<InFlight> {
        let (counter, limit) = match share {
            Share::Ordinary => (&self.ordinary, limit),
            Share::System => (&self.system, (limit / 4).max(1)),
            Share::LeaderElection => (&self.leader_election, (limit / 16).max(1)),
        };
        InFlight::try_enter(counter, limit)
    }

    pub fn under_way(&self) -> i64 {
        let counters = [&self.leader_election, &self.system, &self.ordinary];
        counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// Memory for large bodies, and turns at large work, by share.
pub(crate) struct Shares {
    ordinary_memory: Memory,
    system_memory: Memory,
    ordinary_work: Arc<Semaphore>,
    system_work: Arc<Semaphore>,
}

impl Default for Shares {
    fn default() -> Shares {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Shares {
            ordinary_memory: Memory::new(ORDINARY_MEMORY),
            system_memory: Memory::new(SYSTEM_MEMORY),
            // Half of the processors are left to small requests.
            ordinary_work: Arc::new(Semaphore::new((processors / 2).max(1))),
            system_work: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Shares {
    pub(crate) fn memory(&self, share: Share) -> &Memory {
        match share {
            Share::Ordinary => &self.ordinary_memory,
            Share::System | Share::LeaderElection => &self.system_memory,
        }
    }

    /// A turn to work for long; waits for those before.
    pub(crate) async fn turn(&self, share: Share) -> OwnedSemaphorePermit {
        let work = match share {
            Share::Ordinary => &self.ordinary_work,
            Share::System | Share::LeaderElection => &self.system_work,
        };
        let turn = work.clone().acquire_owned().await;
        turn.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(user: &UserInfo, path: &str) -> Share {
        Share::of(&RequestInfo::parse(&http::Method::PUT, path, ""), user)
    }

    #[test]
    fn components_have_shares_of_their_own() {
        let pods = "/api/v1/namespaces/d/pods/p";
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
        let scheduler = UserInfo::new("system:kube-scheduler", &[]);
        let node = UserInfo::new("system:node:n", &["system:nodes"]);
        let controller = UserInfo::service_account("kube-system", "job-controller", "u");
        for user in [&scheduler, &node, &controller, &UserInfo::new("a", &[MASTERS])] {
            assert_eq!(share(user, pods), Share::System, "{}", user.name);
            assert_eq!(share(user, lease), Share::LeaderElection, "{}", user.name);
        }
        let strangers = [
            UserInfo::anonymous(),
            UserInfo::new("ann", &[]),
            UserInfo::new("system:node:n", &[]),
            UserInfo::service_account("default", "kube-system", "u"),
        ];
        for user in &strangers {
            assert_eq!(share(user, lease), Share::Ordinary, "{}", user.name);
        }
    }

    #[test]
    fn a_crowd_keeps_nobody_else_out() {
        let places = Places::default();
        let crowd: Vec<InFlight> = std::iter::from_fn(|| places.enter(Share::Ordinary, 8))
            .take(100)
            .collect();
        assert_eq!(crowd.len(), 8);
        let system: Vec<InFlight> = std::iter::from_fn(|| places.enter(Share::System, 8))
            .take(100)
            .collect();
        assert_eq!(system.len(), 2);
        assert!(places.enter(Share::LeaderElection, 8).is_some());
        assert_eq!(places.under_way(), 10);
        drop((crowd, system));
        assert_eq!(places.under_way(), 0);
    }
}
