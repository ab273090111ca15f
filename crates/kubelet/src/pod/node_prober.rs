//! The probes of this node, as pod workers use them.

use orlop_api::types::core::Pod;

use super::interfaces::{PodProber, RunningContainer};
use super::worker_state::Probed;
use crate::probes::{ProbeTarget, Probes};

impl PodProber for Probes {
    fn update_probes(&self, pod: &Pod, running: &[RunningContainer], pod_ip: Option<&str>) {
        let target = |container: &RunningContainer| ProbeTarget {
            name: container.name.clone(),
            container_id: container.id.clone(),
            started_at: container.started_at,
        };
        let targets: Vec<ProbeTarget> = running.iter().map(target).collect();
        self.update(pod, &targets, pod_ip);
    }

    fn probe_results(&self, uid: &str) -> Vec<(String, Probed)> {
        let results = self.results(uid).containers.into_iter();
        let probed = results.map(|(name, result)| {
            let probed = Probed {
                container_id: result.container_id,
                liveness: result.liveness,
                readiness: result.readiness,
                startup: result.startup,
            };
            (name, probed)
        });
        probed.collect()
    }

    fn stop_liveness_and_startup(&self, uid: &str) {
        self.terminating(uid);
    }

    fn remove_pod(&self, uid: &str) {
        self.forget(uid);
    }
}
