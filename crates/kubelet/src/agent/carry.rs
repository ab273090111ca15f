//! The sync loop and its companions: pods from sources to workers, probe results, mirror pods, QoS cgroups.

use std::collections::HashMap;
use std::time::Duration;

use orlop_api::types::core::Pod;
use orlop_base::Shutdown;

use super::parts::Parts;
use crate::hosted;
use crate::pod::policy;
use crate::sources::PodUpdate;

/// How often the sync loop goes round without updates of pods, for its health check.
const SYNC_LOOP: Duration = Duration::from_secs(10);
/// How often the statuses of mirror pods are compared with what others may have made of them. Upstream: the status manager's
/// syncPeriod.
const MIRROR_STATUSES: Duration = Duration::from_secs(10);
/// How often the QoS cgroups are updated.
const CLASSES: Duration = Duration::from_secs(60);

/// Runs until the shutdown.
pub(super) async fn run(mut parts: Parts, shutdown: Shutdown) {
    let follow_runtime = {
        let workers = parts.workers.clone();
        async move { workers.run().await }
    };
    let follow_probes = {
        let (workers, mut changes) = (parts.workers.clone(), parts.probes.changes());
        async move {
            while let Some(uid) = changes.recv().await {
                workers.probed(&uid);
            }
        }
    };
    let follow_mirrors = {
        let (writer, mut mirrors, mut known) = (parts.writer.clone(), parts.mirrors.clone(), HashMap::new());
        async move {
            while let Some(news) = mirrors.changed(&mut known).await {
                news.iter().for_each(|uid| writer.mirror_changed(uid));
            }
        }
    };
    let compare_mirrors = {
        let (writer, mirrors) = (parts.writer.clone(), parts.mirrors.clone());
        async move {
            let mut turns = tokio::time::interval(MIRROR_STATUSES);
            loop {
                turns.tick().await;
                let all = mirrors.all();
                all.iter().for_each(|(uid, mirror)| writer.mirror_seen(uid, mirror));
            }
        }
    };
    let report_hosted = hosted::report(
        parts.hosted.clone(),
        parts.facts.addresses.clone(),
        parts.writer.clone(),
    );
    let weigh = weigh_classes(&parts);
    let sync_loop = async {
        let mut ticks = tokio::time::interval(SYNC_LOOP);
        loop {
            // Upstream: while the runtime does not answer, pods are not synced.
            if parts.metrics.is_pleg_healthy(parts.clock.now()) {
                parts.health.enter_sync_loop();
            }
            let update = tokio::select! {
                update = parts.updates.recv() => update,
                _ = ticks.tick() => continue,
            };
            let Some(update) = update else { return };
            match update {
                PodUpdate::Set(pod) => {
                    if !policy::is_static(&pod) {
                        parts.services.wait().await;
                    }
                    parts.objects.pod_added(&pod);
                    parts.workers.update(pod);
                }
                PodUpdate::Removed(pod) => {
                    parts.objects.pod_gone(policy::uid(&pod));
                    parts.workers.remove(policy::uid(&pod));
                }
                PodUpdate::Synced => parts.workers.sources_ready(),
            }
        }
    };
    let all = async {
        tokio::join!(
            follow_runtime,
            follow_probes,
            follow_mirrors,
            compare_mirrors,
            report_hosted,
            weigh,
            sync_loop
        )
    };
    tokio::select! {
        _ = all => {}
        _ = shutdown.wait() => {}
    }
}

fn weigh_classes(parts: &Parts) -> impl Future<Output = ()> + Send + use<> {
    let (workers, cgroups) = (parts.workers.clone(), parts.cgroups.clone());
    async move {
        let mut turns = tokio::time::interval(CLASSES);
        while let Some(cgroups) = &cgroups {
            turns.tick().await;
            let pods = workers.pods();
            let active = pods.iter().map(|pod| &**pod).filter(|pod| !has_ended(pod));
            if let Err(error) = cgroups.update_classes(active).await {
                tracing::warn!(err = %error, "failed to update QoS cgroups");
            }
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    policy::is_terminal(phase)
}
