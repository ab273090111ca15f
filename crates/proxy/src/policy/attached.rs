//! Pods that the runtime has just given their addresses, before anybody reads that in their status. Whoever starts a pod
//! waits here until the node's rules know it: a pod that policies isolate is isolated before it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::facts::ObjectName;

/// How long a pod waits at most: rather a pod without policies for a moment than none, as with other network plugins.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shared by the runtime of a node and what enforces policies there. Outlives both.
#[derive(Clone, Default)]
pub struct AttachedPods {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    pods: Mutex<BTreeMap<ObjectName, Attached>>,
    changed: Notify,
    applied: Notify,
}

struct Attached {
    ips: Vec<IpAddr>,
    is_applied: bool,
}

impl AttachedPods {
    /// Returns once the rules of the node are those of a pod with these addresses. False if that took too long: it goes on
    /// without, and catches up.
    pub async fn attach(&self, namespace: &str, name: &str, ips: &[IpAddr]) -> bool {
        let pod = ObjectName::new(namespace, name);
        let attached = Attached {
            ips: ips.to_vec(),
            is_applied: false,
        };
        self.shared.pods.lock().insert(pod.clone(), attached);
        self.shared.changed.notify_one();
        let applied = async {
            loop {
                let notified = self.shared.applied.notified();
                let mut notified = std::pin::pin!(notified);
                notified.as_mut().enable();
                // One that was detached meanwhile waits for nothing.
                if self.shared.pods.lock().get(&pod).is_none_or(|pod| pod.is_applied) {
                    return;
                }
                notified.await;
            }
        };
        tokio::time::timeout(PATIENCE, applied).await.is_ok()
    }

    /// These addresses are another's from now on. A pod of the same name that has others by now keeps those.
    pub fn detach(&self, namespace: &str, name: &str, ips: &[IpAddr]) {
        let pod = ObjectName::new(namespace, name);
        let mut pods = self.shared.pods.lock();
        if pods.get(&pod).is_some_and(|pod| pod.ips == ips) {
            pods.remove(&pod);
        }
        drop(pods);
        self.shared.changed.notify_one();
        self.shared.applied.notify_waiters();
    }

    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    pub(super) fn all(&self) -> BTreeMap<ObjectName, Vec<IpAddr>> {
        let pods = self.shared.pods.lock();
        pods.iter().map(|(name, pod)| (name.clone(), pod.ips.clone())).collect()
    }

    /// These are in place. One that has other addresses by now is not.
    pub(super) fn set_applied(&self, applied: &[(ObjectName, Vec<IpAddr>)]) {
        let mut pods = self.shared.pods.lock();
        for (name, ips) in applied {
            if let Some(pod) = pods.get_mut(name).filter(|pod| pod.ips == *ips) {
                pod.is_applied = true;
            }
        }
        drop(pods);
        self.shared.applied.notify_waiters();
    }
}
