//! Pods that found no node: their events and conditions, and who is evicted for them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use orlop_base::clock::rfc3339;
use orlop_base::v;
use orlop_client::{Api, DeleteOptions, Error, Event, EventType, ObjectReference, Preconditions, path};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::engine::{Engine, advisor};
use super::inbox::Input;
use super::reserve::one_node;
use crate::cluster::node::NodeId;
use crate::cluster::pod::{PodInfo, PodKey};
use crate::fit_error::FitError;
use crate::framework::verdict::Rejection;
use crate::plugins::dynamic_resources;
use crate::preemption::{Candidate, DefaultPreemption, Preemption, best};
use crate::queue::{AttemptFailure, QueuedPod};
use crate::timing::{ERROR, SUCCESS};

/// Evictions for one pod at the same time.
const EVICTIONS: usize = 16;

/// Eviction does not help.
struct Hopeless {
    message: String,
    voids_promise: bool,
}

impl Engine {
    /// No node will do: see whether eviction helps, and let the pod wait.
    pub(super) async fn unfit(&mut self, profile: usize, queued: QueuedPod, mut error: FitError, started: Instant) {
        let pod = queued.pod.clone();
        if error.all_nodes == 0 {
            // Nobody rejected it: it waits like any other pod, and a first node makes it try again.
            let name = &self.core.profiles[profile].name;
            self.metrics.attempt("unschedulable", name, started.elapsed());
            v!(
                2,
                pod = pod.key.to_string(),
                "Unable to schedule pod; no nodes are registered to the cluster; waiting"
            );
            self.warn(profile, &pod, "FailedScheduling", "Scheduling", error.message());
            self.report(&pod, "Unschedulable", &error.message(), None);
            return self.requeue(queued, AttemptFailure::Error);
        }
        let nominated = self.run_post_filter(profile, &pod, &mut error).await;
        let message = error.message();
        v!(
            2,
            pod = pod.key.to_string(),
            err = message,
            "Unable to schedule pod; no fit; waiting"
        );
        let name = &self.core.profiles[profile].name;
        self.metrics.attempt("unschedulable", name, started.elapsed());
        self.warn(profile, &pod, "FailedScheduling", "Scheduling", message.clone());
        self.report(&pod, "Unschedulable", &message, nominated.as_deref());
        let by: Vec<&'static str> = error.diagnosis.rejected_by.iter().copied().collect();
        self.requeue(queued, AttemptFailure::Rejected { by: &by, pending: &[] });
    }

    /// A plugin turned the pod away after a node was chosen.
    pub(super) fn rejected(
        &mut self,
        profile: usize,
        queued: QueuedPod,
        node: NodeId,
        by: &'static str,
        rejection: Rejection,
        started: Instant,
    ) {
        let pod = queued.pod.clone();
        // Of the one node in question.
        let message = one_node(node, by, rejection).message();
        v!(
            2,
            pod = pod.key.to_string(),
            err = message,
            "Unable to schedule pod; no fit; waiting"
        );
        let name = &self.core.profiles[profile].name;
        self.metrics.attempt("unschedulable", name, started.elapsed());
        self.warn(profile, &pod, "FailedScheduling", "Scheduling", message.clone());
        self.report(&pod, "Unschedulable", &message, None);
        self.requeue(
            queued,
            AttemptFailure::Rejected {
                by: &[by],
                pending: &[],
            },
        );
    }

    /// The PostFilter plugins in their order, until one helps; their messages go to `error`. Gives the node that was
    /// promised; `Some("")` voids an old promise.
    // Upstream: RunPostFilterPlugins in pkg/scheduler/framework/runtime (v1.36)
    async fn run_post_filter(&mut self, profile: usize, pod: &Arc<PodInfo>, error: &mut FitError) -> Option<Arc<str>> {
        let asked = Instant::now();
        let plugins = &self.core.profiles[profile];
        if plugins.post_filter.is_empty() {
            v!(
                3,
                "No PostFilter plugins are registered, so no preemption will be performed"
            );
            return None;
        }
        let names: Vec<&'static str> = (plugins.post_filter.iter())
            .map(|place| plugins.plugins[*place].name())
            .collect();
        let (mut reasons, mut nominated, mut outcome) = (vec![], None, "Unschedulable");
        for name in names {
            if name == dynamic_resources::NAME {
                match dynamic_resources::post_filter(&self.core.profiles[profile], pod, &error.diagnosis) {
                    Ok(reason) => reasons.push(reason.to_string()),
                    Err(message) => {
                        (reasons, outcome) = (vec![message.to_string()], ERROR);
                        break;
                    }
                }
            } else if let Some(args) = self.preemption[profile].filter(|_| name == "DefaultPreemption") {
                match self.preempt(profile, pod, error, &args).await {
                    Ok(node) => {
                        (reasons, nominated, outcome) = (vec![], Some(node), SUCCESS);
                        break;
                    }
                    Err(Hopeless { message, voids_promise }) => {
                        reasons.push(message);
                        nominated = voids_promise.then(|| "".into());
                    }
                }
            }
        }
        self.observe_point("PostFilter", profile, outcome, asked.elapsed());
        error.post_filter = reasons.join(", ");
        v!(
            5,
            pod = pod.key.to_string(),
            status = error.post_filter,
            "Status after running PostFilter plugins for pod"
        );
        nominated
    }

    /// Finds pods to evict and starts doing so. Gives the node that was promised.
    async fn preempt(
        &mut self,
        profile: usize,
        pod: &Arc<PodInfo>,
        error: &FitError,
        args: &DefaultPreemption,
    ) -> Result<Arc<str>, Hopeless> {
        self.metrics.preemption_attempt();
        let candidates = match self.core.preempt(profile, &self.cluster, pod, &error.diagnosis, args) {
            Preemption::Candidates(candidates) => candidates,
            Preemption::Hopeless { message, clear } => {
                let voids_promise = clear && self.cluster.nominated.node_of(&pod.uid).is_some();
                if voids_promise {
                    self.cluster.nominated.remove(&pod.uid);
                }
                return Err(Hopeless { message, voids_promise });
            }
        };
        let candidates = self.ask_extenders(pod, candidates).await;
        let Some(chosen) = best(candidates) else {
            return Err(Hopeless {
                message: "preemption: no candidate node for preemption".to_string(),
                voids_promise: false,
            });
        };
        let node = chosen.name.clone();
        v!(
            2,
            node = &*node,
            pod = pod.key.to_string(),
            "the target node for the preemption is determined"
        );
        self.cluster.nominated.add(pod.clone(), &node);
        self.void_lesser_promises(pod, &node);
        self.evict(profile, pod, chosen);
        Ok(node)
    }

    async fn ask_extenders(&mut self, pod: &Arc<PodInfo>, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        let mut extenders = self.interested_extenders(pod);
        extenders.retain(crate::extender::Extender::preempts);
        for extender in extenders {
            let request = extender.preempt_request(pod, &candidates);
            let response = extender.send(request).await;
            candidates = extender.apply_preempt(response, &self.cluster, candidates);
        }
        candidates
    }

    /// Pods of lower priority that were promised the node look elsewhere.
    fn void_lesser_promises(&mut self, pod: &PodInfo, node: &str) {
        let lesser: Vec<Arc<PodInfo>> = (self.cluster.nominated.on(node).iter())
            .filter(|p| p.priority() < pod.priority())
            .cloned()
            .collect();
        for other in lesser {
            self.cluster.nominated.remove(&other.uid);
            let (api, at) = (self.api.clone(), status_path(&other));
            orlop_base::spawn(async move {
                let patch = json!({"status": {"nominatedNodeName": null}});
                if let Err(e) = api.patch_strategic::<IgnoredAny>(&at, &patch).await {
                    tracing::debug!(path = at, err = e.chain(), "failed to clear nominated node name");
                }
            });
        }
    }

    fn evict(&mut self, profile: usize, pod: &Arc<PodInfo>, chosen: Candidate) {
        self.metrics.preemption_victims(chosen.victims.len());
        for victim in &chosen.victims {
            v!(
                2,
                preemptor = pod.key.to_string(),
                victim = victim.key.to_string(),
                node = &*chosen.name,
                "Preemptor Pod preempted victim Pod"
            );
            let note = format!("Preempted by pod {} on node {}", pod.uid, chosen.name);
            let mut event = event(victim, EventType::Normal, "Preempted", "Preempting", note);
            event.related = Some(reference(pod));
            self.recorders[profile].record(event);
        }
        let mut victims = chosen.victims;
        // One that is not bound yet need not be deleted: it gives its place back.
        victims.retain(|victim| !self.permits.preempt(&victim.uid));
        self.preempting.insert(pod.uid.clone());
        let scheduler = self.core.profiles[profile].name.clone();
        let (api, outbox, uid, now) = (self.api.clone(), self.outbox.clone(), pod.uid.clone(), self.clock.now());
        orlop_base::spawn(async move {
            let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
            let evict = |victim: &Arc<PodInfo>| evict_one(api.clone(), victim.clone(), message.clone(), rfc3339(now));
            let mut result = Ok(());
            let last = victims.pop();
            for some in victims.chunks(EVICTIONS) {
                let running: Vec<_> = some.iter().map(evict).collect();
                result = futures::future::try_join_all(running).await.map(drop);
                if result.is_err() {
                    break;
                }
            }
            // The last one is what makes the pod try again, so it goes when the others are gone.
            if let (Ok(()), Some(last)) = (&result, &last) {
                result = evict(last).await;
            }
            let _ = outbox.send(Input::Preempted { uid, result }).await;
        });
    }

    pub(super) fn preempted(&mut self, uid: Arc<str>, result: Result<(), EvictionError>) {
        self.preempting.remove(&uid);
        if let Err(error) = result {
            tracing::error!(pod = %uid, err = %error, "failed to preempt");
            self.cluster.nominated.remove(&uid);
        }
        let now = self.clock.now();
        self.queue.activate(&uid, now, &advisor!(self));
    }

    /// Writes the pod's condition, if it says something new.
    pub(super) fn report(&mut self, pod: &Arc<PodInfo>, reason: &str, message: &str, nominated: Option<&str>) {
        let mut hasher = rustc_hash::FxHasher::default();
        (reason, message, nominated).hash(&mut hasher);
        let before = self.reported.insert(pod.uid.clone(), hasher.finish());
        if before == Some(hasher.finish()) {
            return;
        }
        let mut condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
        if before.is_none() {
            condition["lastTransitionTime"] = rfc3339(self.clock.now()).into();
        }
        let mut status = json!({"conditions": [condition]});
        match nominated {
            Some("") => status["nominatedNodeName"] = Value::Null,
            Some(node) => status["nominatedNodeName"] = node.into(),
            None => {}
        }
        let (api, at) = (self.api.clone(), status_path(pod));
        orlop_base::spawn(async move {
            let patch = json!({"status": status});
            match api.patch_strategic::<IgnoredAny>(&at, &patch).await {
                Ok(_) | Err(Error::NotFound(_)) => {}
                Err(e) => tracing::debug!(path = at, err = e.chain(), "failed to update pod condition"),
            }
        });
    }

    pub(super) fn warn(&self, profile: usize, pod: &PodInfo, reason: &'static str, action: &'static str, note: String) {
        self.record(profile, pod, EventType::Warning, reason, action, note);
    }

    pub(super) fn record(
        &self,
        profile: usize,
        pod: &PodInfo,
        kind: EventType,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.recorders[profile].record(event(pod, kind, reason, action, note));
    }
}

fn event(pod: &PodInfo, kind: EventType, reason: &'static str, action: &'static str, note: String) -> Event {
    Event {
        regarding: reference(pod),
        related: None,
        kind,
        reason: reason.into(),
        action: action.into(),
        note,
    }
}

fn reference(pod: &PodInfo) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.uid.to_string(),
        resource_version: pod.revision.to_string(),
        field_path: String::new(),
    }
}

fn status_path(pod: &PodInfo) -> String {
    path::subresource("v1", Some(&pod.key.namespace), "pods", &pod.key.name, "status")
}

/// A victim that did not go.
#[derive(Debug, thiserror::Error)]
#[error("{victim}: {}", source.chain())]
pub(super) struct EvictionError {
    victim: PodKey,
    source: Error,
}

/// Says why, then deletes. One that is gone already is fine.
async fn evict_one(api: Api, victim: Arc<PodInfo>, message: String, now: String) -> Result<(), EvictionError> {
    let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": message, "lastTransitionTime": now,
    }]}});
    let failed = |source| EvictionError {
        victim: victim.key.clone(),
        source,
    };
    match api.patch_strategic::<IgnoredAny>(&status_path(&victim), &patch).await {
        Ok(_) => {}
        Err(Error::NotFound(_) | Error::Conflict(_)) => return Ok(()),
        Err(source) => return Err(failed(source)),
    }
    let options = DeleteOptions {
        preconditions: Some(Preconditions {
            uid: Some(victim.uid.to_string()),
            resource_version: None,
        }),
        ..DeleteOptions::default()
    };
    let at = path::object("v1", Some(&victim.key.namespace), "pods", &victim.key.name);
    match api.delete(&at, &options).await {
        Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
        Err(source) => Err(failed(source)),
    }
}
