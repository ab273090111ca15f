//! The inputs of a worker's last status, shared with whoever brings probe results.
//!
//! A worker's sync may take long: a pull, a hook, the grace period of a container that is restarted. Probe results must not
//! wait for that: traffic depends on them. So the status is computed again from these inputs when a result changes.

use std::sync::Arc;

use orlop_api::types::core::Pod;
use tokio::sync::watch;

use super::{PodWork, Shared, View};
use crate::pod::observed::ObservedPod;
use crate::pod::status;
use crate::pod::worker_state::WorkerState;

pub(super) struct PublishedStatus {
    pub view: watch::Sender<View>,
    /// The worker is in the middle of a sync.
    pub busy: bool,
    /// None before the first status.
    pub inputs: Option<StatusInputs>,
}

pub(super) struct StatusInputs {
    pub work: PodWork,
    pub pod: Arc<Pod>,
    pub observed: Arc<ObservedPod>,
    pub memory: WorkerState,
}

impl PublishedStatus {
    pub(super) fn new(view: watch::Sender<View>) -> PublishedStatus {
        PublishedStatus {
            view,
            busy: false,
            inputs: None,
        }
    }

    /// Tells what probes say now, unless the worker is about to do so itself.
    pub(super) fn probed(&mut self, shared: &Shared, uid: &str) {
        let Some(inputs) = self.inputs.as_mut().filter(|_| self.busy) else {
            return;
        };
        let memory = &mut inputs.memory;
        memory.probes = shared.prober.probe_results(uid).into_iter().collect();
        let now = shared.clock.now();
        let status = status::pod_status(&inputs.pod, &inputs.observed, memory, &shared.host, now);
        if inputs.work.orphan || memory.status == status {
            return;
        }
        memory.status = status.clone();
        shared.writer.set(&inputs.work.pod, &status, false);
        let mut pod = (*inputs.work.pod).clone();
        pod.status = Some(status);
        self.view.send_modify(|view| view.pod = Arc::new(pod));
    }
}
