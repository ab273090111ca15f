//! A request to stop the whole cluster, by a signal or by `orlop down`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop_base::Shutdown;
use orlop_kubelet::agent::PodStop;
use parking_lot::Mutex;

/// Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRequest {
    shutdown: Shutdown,
    pods: PodStop,
    grace_seconds: Arc<Mutex<Option<i64>>>,
    /// Signals leave pods to the next start; `orlop down` does not.
    keep_pods: bool,
    requested: Arc<AtomicBool>,
}

impl StopRequest {
    /// One that this shutdown triggers as well.
    pub(crate) fn new(shutdown: Shutdown) -> StopRequest {
        StopRequest {
            shutdown,
            ..StopRequest::default()
        }
    }

    /// Whether a signal stops pods as well.
    pub(crate) fn keeping_pods(self, keep_pods: bool) -> StopRequest {
        StopRequest { keep_pods, ..self }
    }

    /// Whether pods are to run on without this process.
    pub(crate) fn keeps_pods(&self) -> bool {
        self.keep_pods && !self.requested.load(Ordering::Acquire)
    }

    /// Pods get at most this many seconds; `None`: as many as they ask for.
    pub(crate) fn request(&self, grace_seconds: Option<i64>) {
        tracing::info!(grace_seconds, "stopping");
        *self.grace_seconds.lock() = grace_seconds;
        self.requested.store(true, Ordering::Release);
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
