//! Following the runtime: its events say whom to look at, and a relist of everything now and then says what they missed
//! and what belongs to no pod.

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
    // A stream that has told nothing yet may be one that never will.
    let mut heard = false;
    let mut events_again = Instant::now();
    let mut next = Instant::now();
    let mut last = None;
    loop {
        if events.is_none() && Instant::now() >= events_again {
            events_again = Instant::now().later(EVENTS_RETRY);
            events = shared.runtime.events().await.ok();
            heard = false;
            // What happened while nobody listened.
            next = Instant::now();
        }
        tokio::select! {
            () = shared.shutdown.wait() => return,
            event = async { events.as_mut().expect("guarded").next().await }, if events.is_some() => match event {
                Some(event) => {
                    heard = true;
                    shared.tell(&event);
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
    /// Wakes the worker that an event is about.
    fn tell(&self, event: &Event) {
        let owner = {
            let live = self.live.lock();
            let owner = live.ids.get(&event.container);
            owner.or_else(|| live.ids.get(event.sandbox.as_ref()?)).cloned()
        };
        match owner {
            Some(uid) => self.poke(&uid),
            None => self.relist.notify_one(),
        }
    }
}

/// One pod as the lists show it.
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
            // Not of a pod: somebody else's.
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
            handle.poke.notify_one();
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
        let mail = PodWork {
            pod: Arc::new(remnant(uid, listed)),
            requests: Requests {
                removed: true,
                evict: None,
            },
            orphan: true,
        };
        shared.start(&mut live, mail);
    }
    live.seen = Some(pods.into_iter().map(|(uid, listed)| (uid, listed.digest)).collect());
}

/// All that is known of a pod that no source has: enough to end it.
fn remnant(uid: &str, listed: &Listed) -> Pod {
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

/// Files of pods that neither a source nor the runtime has.
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
