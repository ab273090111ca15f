//! Whose request it is, for what must be divided: memory and work aside. The cluster's own components have shares apart, so
//! that no crowd of ordinary users keeps them out. When requests are executed is decided by `flowcontrol`.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authn::{MASTERS, UserInfo, split_service_account};
use crate::bodies::Memory;

/// Memory for large bodies being read or worked on.
const ORDINARY_MEMORY: usize = 64 << 20;
const SYSTEM_MEMORY: usize = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Nodes, the control plane's components, controllers, administrators.
    System,
    Ordinary,
}

impl Share {
    pub(crate) fn of(user: &UserInfo) -> Share {
        match is_system(user) {
            false => Share::Ordinary,
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

tokio::task_local! {
    /// The turn of the work that is done in this task, until it leaves it.
    static TURN: Mutex<Option<OwnedSemaphorePermit>>;
}

/// Does large work that has a turn.
pub(crate) async fn with_turn<T>(turn: OwnedSemaphorePermit, work: impl Future<Output = T>) -> T {
    TURN.scope(Mutex::new(Some(turn)), work).await
}

/// Leaves the turn of large work, if this is some: from here on it waits for somebody else more than it works.
pub(crate) fn leave_turn() {
    let _ = TURN.try_with(|turn| turn.lock().take());
}

impl Shares {
    pub(crate) fn memory(&self, share: Share) -> &Memory {
        match share {
            Share::Ordinary => &self.ordinary_memory,
            Share::System => &self.system_memory,
        }
    }

    /// A turn to work for long; waits for those before.
    pub(crate) async fn turn(&self, share: Share) -> OwnedSemaphorePermit {
        let work = match share {
            Share::Ordinary => &self.ordinary_work,
            Share::System => &self.system_work,
        };
        let turn = work.clone().acquire_owned().await;
        turn.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_shares_of_their_own() {
        let scheduler = UserInfo::new("system:kube-scheduler", &[]);
        let node = UserInfo::new("system:node:n", &["system:nodes"]);
        let controller = UserInfo::service_account("kube-system", "job-controller", "u");
        for user in [&scheduler, &node, &controller, &UserInfo::new("a", &[MASTERS])] {
            assert_eq!(Share::of(user), Share::System, "{}", user.name);
        }
        let strangers = [
            UserInfo::anonymous(),
            UserInfo::new("ann", &[]),
            UserInfo::new("system:node:n", &[]),
            UserInfo::service_account("default", "kube-system", "u"),
        ];
        for user in &strangers {
            assert_eq!(Share::of(user), Share::Ordinary, "{}", user.name);
        }
    }
}
