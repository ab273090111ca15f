//! The PLEG: the runtime's events wake the pods they regard, and periodic relists find what events missed, and orphans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use orlop_api::types::core::{Pod, PodSpec};
use orlop_base::clock::Shift;
use orlop_runtime::Event;
use orlop_runtime::cri::messages as cri;
use tokio::time::Instant;

use super::{Live, PodWork, Shared};
use crate::pod::worker_state::Requests;
use crate::spec::labels::{POD_NAME, POD_NAMESPACE, POD_UID};

/// With events, a relist is a safety net; without, it is all there is.
const RELIST_SLOW: Duration = Duration::from_secs(60);
const RELIST_FAST: Duration = Duration::from_secs(1);
/// Several reasons for a relist within this time make one.
const RELIST_MIN: Duration = Duration::from_millis(200);
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// Ids with states, sorted.
pub(super) type Digest = Vec<(String, i32)>;

pub(super) async fn run(shared: Arc<Shared>) {
    let mut events: Option<BoxStream<'static, Event>> = None;
    // A stream without events so far may be one that never sends any.
    let mut heard = false;
    let mut events_again = Instant::now();
    let mut next = Instant::now();
    let mut last = None;
    loop {
        if events.is_none() && Instant::now() >= events_again {
            events_again = Instant::now().later(EVENTS_RETRY);
            events = shared.runtime.events().await.ok();
            heard = false;
            // For what happened while there was no event stream.
            next = Instant::now();
        }
        tokio::select! {
            () = shared.shutdown.wait() => return,
            event = async { events.as_mut().expect("guarded").next().await }, if events.is_some() => match event {
                Some(event) => {
                    heard = true;
                    shared.wake_owner(&event);
                }
                None => {
                    events = None;
                    next = next.min(Instant::now().later(RELIST_FAST));
                }
            },
            () = shared.relist.notified() => next = next.min(Instant::now().later(RELIST_MIN)),
            () = tokio::time::sleep_until(next) => {
                let began = Instant::now();
                if relist(&shared).await {
                    shared.metrics.pleg_seen(shared.clock.now());
                }
                let interval = last.replace(began).map(|last| began.duration_since(last));
                shared.metrics.relisted(began.elapsed(), interval);
                next = Instant::now().later(if heard { RELIST_SLOW } else { RELIST_FAST });
            }
        }
    }
}

impl Shared {
    /// Wakes the worker of the pod that an event regards.
    fn wake_owner(&self, event: &Event) {
        let owner = {
            let live = self.live.lock();
            let owner = live.ids.get(&event.container);
            owner.or_else(|| live.ids.get(event.sandbox.as_ref()?)).cloned()
        };
        match owner {
            Some(uid) => self.wake(&uid),
            None => self.relist.notify_one(),
        }
    }
}

/// A pod as listed by the runtime.
#[derive(Default)]
struct Listed {
    namespace: String,
    name: String,
    digest: Digest,
}

/// Whether the runtime answered.
async fn relist(shared: &Arc<Shared>) -> bool {
    let sandboxes = shared.runtime.list_pod_sandboxes(cri::PodSandboxFilter::default());
    let containers = shared.runtime.list_containers(cri::ContainerFilter::default());
    let (sandboxes, containers) = match futures::try_join!(sandboxes, containers) {
        Ok(lists) => lists,
        Err(error) => {
            tracing::debug!(err = %error, "failed to list pods of the runtime");
            return false;
        }
    };
    let mut pods: BTreeMap<String, Listed> = BTreeMap::new();
    let sandboxes = sandboxes.iter().map(|s| (&s.labels, &s.id, s.state));
    let containers = containers.iter().map(|c| (&c.labels, &c.id, c.state));
    for (labels, id, state) in sandboxes.chain(containers) {
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let uid = label(POD_UID);
        if uid.is_empty() {
            // Not of a pod: not ours.
            continue;
        }
        let listed = pods.entry(uid).or_insert_with(|| Listed {
            namespace: label(POD_NAMESPACE),
            name: label(POD_NAME),
            digest: vec![],
        });
        listed.digest.push((id.clone(), state));
    }
    pods.values_mut().for_each(|listed| listed.digest.sort());
    let ready = shared.live.lock().sources_ready;
    compare(shared, pods);
    if ready {
        sweep_disk(shared).await;
    }
    true
}

fn compare(shared: &Arc<Shared>, pods: BTreeMap<String, Listed>) {
    let mut live = shared.live.lock();
    let before = live.seen.take().unwrap_or_default();
    for (uid, handle) in &live.pods {
        let (old, new) = (before.get(uid), pods.get(uid).map(|listed| &listed.digest));
        if old != new {
            handle.wake.notify_one();
        }
    }
    let unknown = |live: &Live, uid: &str| !live.pods.contains_key(uid) && !live.queued.contains_key(uid);
    let orphans: Vec<(&String, &Listed)> = match live.sources_ready {
        true => pods.iter().filter(|(uid, _)| unknown(&live, uid)).collect(),
        false => vec![],
    };
    for (uid, listed) in orphans {
        let pod = format!("{}/{}", listed.namespace, listed.name);
        tracing::info!(pod, uid, "killing orphaned pod");
        let work = PodWork {
            pod: Arc::new(orphan_pod(uid, listed)),
            requests: Requests {
                removed: true,
                ..Requests::default()
            },
            orphan: true,
        };
        shared.start(&mut live, work);
    }
    live.seen = Some(pods.into_iter().map(|(uid, listed)| (uid, listed.digest)).collect());
}

/// The pod object of an orphan: enough to terminate it.
fn orphan_pod(uid: &str, listed: &Listed) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_string());
    pod.metadata.name = Some(listed.name.clone());
    pod.metadata.namespace = Some(listed.namespace.clone());
    pod.spec = Some(PodSpec {
        // Upstream: pods without a spec get no more than this.
        termination_grace_period_seconds: Some(1),
        ..Default::default()
    });
    pod
}

/// Cleans up pods on disk that neither a source nor the runtime has.
async fn sweep_disk(shared: &Arc<Shared>) {
    for uid in shared.environment.list_pods_on_disk().await {
        let known = {
            let live = shared.live.lock();
            let in_runtime = live.seen.as_ref().is_none_or(|seen| seen.contains_key(&uid));
            in_runtime || live.pods.contains_key(&uid) || live.queued.contains_key(&uid)
        };
        if !known && let Err(error) = shared.environment.clean_up_pod(&uid).await {
            tracing::warn!(uid, err = %error, "failed to clean up orphaned pod");
        }
    }
}
