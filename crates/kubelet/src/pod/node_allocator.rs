//! Admission and exclusive allocations on a real node: the spec's own demands, the CPU manager, the Node object and the
//! device plugins, in this order.

use std::sync::Arc;

use async_trait::async_trait;
use orlop_api::types::core::Pod;
use orlop_base::BoxFuture;

use super::interfaces::PodAllocator;
use super::policy;
use crate::cpus::Cpus;
use crate::devices::Devices;
use crate::sources::admission::Rejection;
use crate::spec::{self, NodeFacts};

/// Whether a pod may run on this node beside others, and which of them to preempt for it.
pub type Admission = Arc<dyn Fn(&Pod, &[&Pod]) -> Result<Vec<usize>, Rejection> + Send + Sync>;

/// Reads the Node object again; true if there is a newer one.
pub type RefreshNode = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

pub struct NodeAllocator {
    pub facts: Arc<NodeFacts>,
    /// `None` where all containers share all CPUs.
    pub cpus: Option<Cpus>,
    /// `None` where device plugins are not supported.
    pub devices: Option<Devices>,
    /// `None`: every pod whose spec this node supports is admitted.
    pub admission: Option<Admission>,
    /// `None` where there is no Node object.
    pub refresh_node: Option<RefreshNode>,
}

#[async_trait]
impl PodAllocator for NodeAllocator {
    fn admit_pod(&self, pod: &Pod, others: &[&Pod], allocated: Option<&Pod>) -> Result<Vec<usize>, Rejection> {
        let infeasible = allocated.and_then(|allocated| spec::never_resized(pod, allocated, &self.facts));
        if let Some(message) = infeasible {
            return Err(Rejection {
                reason: "Infeasible".to_string(),
                message,
            });
        }
        if let Some(notice) = spec::refusal(pod, &self.facts) {
            return Err(Rejection {
                reason: notice.reason.to_string(),
                message: notice.message,
            });
        }
        let cpus = self.cpus.as_ref().filter(|_| allocated.is_none());
        cpus.map_or(Ok(()), |cpus| cpus.admit(pod))?;
        let admission = self.admission.as_ref();
        let answer = admission.map_or(Ok(Vec::new()), |admission| admission(pod, others));
        if answer.is_err()
            && let Some(cpus) = cpus
        {
            cpus.release(policy::uid(pod));
        }
        answer
    }

    async fn allocate_devices(&self, pod: &Pod) -> Result<(), Rejection> {
        match &self.devices {
            Some(devices) => devices.claim(pod).await,
            None => Ok(()),
        }
    }

    fn release_allocation(&self, uid: &str) {
        if let Some(cpus) = &self.cpus {
            cpus.release(uid);
        }
        if let Some(devices) = &self.devices {
            devices.release(uid);
        }
    }

    fn list_allocated_pods(&self) -> Vec<String> {
        let mut uids = self.cpus.as_ref().map(Cpus::pods).unwrap_or_default();
        uids.extend(self.devices.as_ref().map(Devices::pods).unwrap_or_default());
        uids
    }

    async fn refresh_node(&self) -> bool {
        match &self.refresh_node {
            Some(refresh) => refresh().await,
            None => false,
        }
    }
}
