//! The picture that a worker's last status was made from, kept where others can reach it.
//!
//! A turn of a worker may take long: a pull, a hook, the grace of a container that is restarted. What probes say must not
//! wait for that: traffic depends on it. So whoever brings a result makes the status anew from this picture.

use std::sync::Arc;

use orlop_api::types::core::Pod;
use tokio::sync::watch;

use super::{PodWork, Shared, View};
use crate::pod::observed::ObservedPod;
use crate::pod::status;
use crate::pod::worker_state::WorkerState;

pub(super) struct PublishedStatus {
    pub view: watch::Sender<View>,
    /// The worker is in the middle of a turn.
    pub busy: bool,
    /// None before the first status.
    pub picture: Option<StatusInputs>,
}

pub(super) struct StatusInputs {
    pub mail: PodWork,
    pub pod: Arc<Pod>,
    pub observed: Arc<ObservedPod>,
    pub memory: WorkerState,
}

impl PublishedStatus {
    pub(super) fn new(view: watch::Sender<View>) -> PublishedStatus {
        PublishedStatus {
            view,
            busy: false,
            picture: None,
        }
    }

    /// Tells what probes say now, unless the worker is about to do so itself.
    pub(super) fn probed(&mut self, shared: &Shared, uid: &str) {
        let Some(picture) = self.picture.as_mut().filter(|_| self.busy) else {
            return;
        };
        let memory = &mut picture.memory;
        memory.probes = shared.prober.probe_results(uid).into_iter().collect();
        let now = shared.clock.now();
        let status = status::pod_status(&picture.pod, &picture.observed, memory, &shared.host, now);
        if picture.mail.orphan || memory.status == status {
            return;
        }
        memory.status = status.clone();
        shared.writer.set(&picture.mail.pod, &status, false);
        let mut pod = (*picture.mail.pod).clone();
        pod.status = Some(status);
        self.view.send_modify(|view| view.pod = Arc::new(pod));
    }
}
