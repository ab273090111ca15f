//! A request to stop the whole cluster, by a signal or by `orlop down`.

use std::sync::Arc;

use orlop_base::Shutdown;
use orlop_kubelet::agent::PodStop;
use parking_lot::Mutex;

/// Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRequest {
    shutdown: Shutdown,
    pods: PodStop,
    grace_seconds: Arc<Mutex<Option<i64>>>,
}

impl StopRequest {
    /// One that this shutdown triggers as well.
    pub(crate) fn new(shutdown: Shutdown) -> StopRequest {
        StopRequest {
            shutdown,
            ..StopRequest::default()
        }
    }

    /// Pods get at most this many seconds; `None`: as many as they ask for.
    pub(crate) fn request(&self, grace_seconds: Option<i64>) {
        tracing::info!(grace_seconds, "stopping");
        *self.grace_seconds.lock() = grace_seconds;
        self.shutdown.trigger();
    }

    /// What pods get at most, if whoever asked said so.
    pub(crate) fn grace_seconds(&self) -> Option<i64> {
        *self.grace_seconds.lock()
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// How kubelets are asked to stop their pods.
    pub(crate) fn pods(&self) -> &PodStop {
        &self.pods
    }

    /// Stops the pods of this process' nodes, and waits until they have.
    pub(crate) async fn stop_pods(&self) {
        self.pods.request(self.grace_seconds());
        self.pods.finished().await;
    }
}
