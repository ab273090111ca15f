//! Bindings: what must be written before, the binding itself, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use orlop_base::v;
use orlop_client::{Api, Error, EventType, path};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::engine::{Attempt, Engine};
use super::inbox::Input;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::points::{Progress, Write};
use crate::queue::{AttemptFailure, QueuedPod};
use crate::timing::{ERROR, SUCCESS};

impl Engine {
    fn pre_bind_writes(&self, profile: usize, pod: &PodInfo, node: &NodeInfo) -> Vec<Write> {
        let plugins = &self.core.profiles[profile];
        let each = plugins
            .pre_bind
            .iter()
            .filter_map(|place| plugins.plugins[*place].pre_bind());
        each.flat_map(|p| p.writes(pod, node, &self.cluster)).collect()
    }

    /// Nobody objects any more: writes what must come before the binding, and binds.
    pub(super) fn start_binding(&mut self, uid: &Arc<str>) {
        let Some(attempt) = self.binding.get(uid) else { return };
        let pod = attempt.queued.pod.clone();
        let Some(node) = self.cluster.node_named(&attempt.node) else {
            return self.give_up(uid, gone(&attempt.node));
        };
        let writes = self.pre_bind_writes(attempt.profile, &pod, node);
        if writes.is_empty() {
            // Written by an earlier attempt, perhaps, and not seen to have happened yet.
            return self.pre_bound(pod.uid.clone(), Ok(()));
        }
        let (api, outbox) = (self.api.clone(), self.outbox.clone());
        orlop_base::spawn(async move {
            let result = write_all(&api, writes).await;
            let uid = pod.uid.clone();
            let _ = outbox.send(Input::PreBound { uid, result }).await;
        });
    }

    /// What PreBind wanted is written; the binding waits until it is seen to have happened.
    pub(super) fn pre_bound(&mut self, uid: Arc<str>, result: Result<(), BindingError>) {
        match result {
            Ok(()) => {
                if let Some(attempt) = self.binding.get_mut(&uid) {
                    attempt.pre_bind = Some(jiff::Timestamp::MAX);
                }
                self.check_pre_bind(&uid);
            }
            Err(BindingError { message, is_away }) => {
                let message = format!("running PreBind plugin: {message}");
                self.give_up(&uid, BindingError { message, is_away });
            }
        }
    }

    /// Looks at all that wait, after something changed.
    pub(super) fn check_pre_binds(&mut self) {
        let waiting: Vec<Arc<str>> = (self.binding.iter())
            .filter(|(_, a)| a.pre_bind.is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in waiting {
            self.check_pre_bind(&uid);
        }
    }

    fn check_pre_bind(&mut self, uid: &str) {
        let Some(attempt) = self.binding.get(uid) else { return };
        let pod = attempt.queued.pod.clone();
        let Some(node) = self.cluster.node_named(&attempt.node) else {
            return self.give_up(uid, gone(&attempt.node));
        };
        let plugins = &self.core.profiles[attempt.profile];
        let points = plugins
            .pre_bind
            .iter()
            .filter_map(|place| plugins.plugins[*place].pre_bind());
        let mut limit: Option<Duration> = None;
        for point in points {
            match point.progress(&pod, node, &self.cluster) {
                Progress::Done => {}
                Progress::Waiting(at_most) => limit = Some(limit.map_or(at_most, |l| l.min(at_most))),
                Progress::Failed(message) => return self.give_up(uid, message),
            }
        }
        match limit {
            None => {
                self.begin_step(uid, "PreBind", SUCCESS);
                if let Some(attempt) = self.binding.get_mut(uid) {
                    attempt.pre_bind = None;
                }
                self.bind(&pod);
            }
            Some(limit) if attempt.step.elapsed() > limit => {
                self.give_up(uid, "binding volumes: context deadline exceeded".to_string());
            }
            Some(_) => {}
        }
    }

    fn bind(&self, pod: &Arc<PodInfo>) {
        let Some(attempt) = self.binding.get(&pod.uid) else {
            return;
        };
        let (api, outbox) = (self.api.clone(), self.outbox.clone());
        let (pod, node) = (pod.clone(), attempt.node.clone());
        v!(
            3,
            pod = pod.key.to_string(),
            node = &*node,
            "Attempting to bind pod to node"
        );
        if let Some(extender) = self.extenders.iter().find(|e| e.binds(&pod.class.spec)).cloned() {
            orlop_base::spawn(async move {
                let result = extender.bind(&pod, &node).await;
                let uid = pod.uid.clone();
                let _ = outbox.send(Input::Bound { uid, result }).await;
            });
            return;
        }
        orlop_base::spawn(async move {
            let at = path::subresource("v1", Some(&pod.key.namespace), "pods", &pod.key.name, "binding");
            let body = serde_json::json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"namespace": &*pod.key.namespace, "name": &*pod.key.name, "uid": &*pod.uid},
                "target": {"kind": "Node", "name": &*node},
            });
            let result = api.create::<IgnoredAny>(&at, &body).await.map(drop);
            let uid = pod.uid.clone();
            let _ = outbox.send(Input::Bound { uid, result }).await;
        });
    }

    pub(super) fn bound(&mut self, uid: Arc<str>, result: Result<(), Error>) {
        let result = match result {
            // It was done, only the answer is odd.
            Err(Error::Unreadable { .. }) => Ok(()),
            other => other,
        };
        let outcome = if result.is_ok() { SUCCESS } else { ERROR };
        self.begin_step(&uid, "Bind", outcome);
        match result {
            Ok(()) => self.finish(&uid),
            Err(error) => {
                let why = error.status().map_or_else(|| error.chain(), |s| s.message.clone());
                let message = format!("{}{why}", self.binder(&uid));
                let is_away = error.is_away();
                self.give_up(&uid, BindingError { message, is_away });
            }
        }
    }

    /// What a failed binding begins with: the plugin, unless it was an extender that bound.
    fn binder(&self, uid: &str) -> &'static str {
        let pod = self.binding.get(uid).map(|attempt| &attempt.queued.pod);
        let by_extender = pod.is_some_and(|pod| self.extenders.iter().any(|e| e.binds(&pod.class.spec)));
        if by_extender {
            ""
        } else {
            "running Bind plugin \"DefaultBinder\": "
        }
    }

    /// A step of the pod's way to its node is over, the next one begins.
    fn begin_step(&mut self, uid: &str, over: &str, outcome: &str) {
        let Some(attempt) = self.binding.get_mut(uid) else {
            return;
        };
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut attempt.step, now));
        let (profile, sampled) = (attempt.profile, attempt.sampled);
        self.observe_point(over, profile, outcome, took);
        if sampled && over == "Bind" {
            self.metrics.plugin("DefaultBinder", over, outcome, took);
        }
    }

    fn finish(&mut self, uid: &str) {
        let Some(attempt) = self.binding.remove(uid) else {
            return;
        };
        let pod = &attempt.queued.pod;
        self.cluster.finish_binding(uid, None);
        self.queue.done(uid);
        self.waiting.remove(uid);
        self.reported.remove(uid);
        v!(
            2,
            pod = pod.key.to_string(),
            node = &*attempt.node,
            evaluatedNodes = attempt.evaluated,
            feasibleNodes = attempt.feasible,
            "Successfully bound pod to node"
        );
        let note = format!("Successfully assigned {} to {}", pod.key, attempt.node);
        self.record(attempt.profile, pod, EventType::Normal, "Scheduled", "Binding", note);
        let name = &self.core.profiles[attempt.profile].name;
        self.metrics
            .scheduled(name, attempt.started.elapsed(), &attempt.queued, self.clock.now());
        let start = Instant::now();
        let plugins = &self.core.profiles[attempt.profile];
        for point in plugins
            .post_bind
            .iter()
            .filter_map(|place| plugins.plugins[*place].post_bind())
        {
            point.bound(pod, &attempt.node);
        }
        self.observe_point("PostBind", attempt.profile, SUCCESS, start.elapsed());
    }

    /// The binding failed: whatever was assumed is forgotten and the pod waits again.
    pub(super) fn give_up(&mut self, uid: &str, error: impl Into<BindingError>) {
        let BindingError { message, is_away } = error.into();
        let Some(Attempt {
            queued,
            node,
            profile,
            started,
            ..
        }) = self.take_back(uid)
        else {
            return;
        };
        v!(1, pod = queued.pod.key.to_string(), "Failed to bind pod");
        // Room was made: others may fit now.
        self.announce_release(&queued.pod, &node);
        if !self.waiting.contains_key(uid) {
            // Somebody else gave it a node, or it is gone: nothing is to be tried again, and its condition is not ours.
            if self.cluster.placed(uid).is_some() {
                self.warn(profile, &queued.pod, "FailedScheduling", "Scheduling", message);
            }
            let name = &self.core.profiles[profile].name;
            self.metrics.attempt("error", name, started.elapsed());
            self.queue.done(uid);
            return;
        }
        if is_away {
            v!(
                4,
                pod = queued.pod.key.to_string(),
                err = message,
                "Error scheduling pod; retrying"
            );
            return self.retry(profile, queued, message, started);
        }
        self.error(profile, queued, message, started);
    }

    /// Undoes what was assumed and reserved for the pod.
    pub(super) fn take_back(&mut self, uid: &str) -> Option<Attempt> {
        let attempt = self.binding.remove(uid)?;
        self.cluster.forget(uid);
        self.unreserve(attempt.profile, &attempt.queued.pod, &attempt.node);
        Some(attempt)
    }

    /// Something went wrong that is nobody's verdict: back off and try again.
    pub(super) fn error(&mut self, profile: usize, queued: QueuedPod, message: String, started: Instant) {
        tracing::error!(
            pod = queued.pod.key.to_string(),
            err = message,
            "Error scheduling pod; retrying"
        );
        self.retry(profile, queued, message, started);
    }

    fn retry(&mut self, profile: usize, queued: QueuedPod, message: String, started: Instant) {
        let name = &self.core.profiles[profile].name;
        self.metrics.attempt("error", name, started.elapsed());
        let pod = queued.pod.clone();
        self.warn(profile, &pod, "FailedScheduling", "Scheduling", message.clone());
        self.report(&pod, "SchedulerError", &message, None);
        self.requeue(queued, AttemptFailure::Error);
    }
}

fn gone(node: &str) -> String {
    format!("node {node:?} is gone")
}

/// Why a pod is not bound.
pub(super) struct BindingError {
    message: String,
    /// The API server did not answer: that is logged already.
    is_away: bool,
}

impl From<String> for BindingError {
    fn from(message: String) -> BindingError {
        BindingError {
            message,
            is_away: false,
        }
    }
}

async fn write_all(api: &Api, writes: Vec<Write>) -> Result<(), BindingError> {
    for write in writes {
        let done = match write.method {
            "PATCH" => api.patch_merge::<IgnoredAny>(&write.path, &write.body).await,
            "PUT" => api.replace::<IgnoredAny>(&write.path, &write.body).await,
            _ => api.create::<IgnoredAny>(&write.path, &write.body).await,
        };
        done.map_err(|e| BindingError {
            message: format!("{}: {}", write.path, e.chain()),
            is_away: e.is_away(),
        })?;
    }
    Ok(())
}
