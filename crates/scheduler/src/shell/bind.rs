//! Bindings: what must be written before, the binding itself, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use orlop_client::{Api, Error, EventType, path};
use serde::de::IgnoredAny;

use super::engine::{Attempt, Engine};
use super::inbox::Input;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::points::{Progress, Write};
use crate::queue::Outcome;

impl Engine {
    pub(super) fn pre_bind_writes(&self, profile: usize, pod: &PodInfo, node: &NodeInfo) -> Vec<Write> {
        let plugins = &self.core.profiles[profile];
        let each = plugins
            .pre_bind
            .iter()
            .filter_map(|place| plugins.plugins[*place].pre_bind());
        each.flat_map(|p| p.writes(pod, node, &self.cluster)).collect()
    }

    pub(super) fn start_binding(&mut self, pod: Arc<PodInfo>, writes: Vec<Write>) {
        if writes.is_empty() {
            // Written by an earlier attempt, perhaps, and not seen to have happened yet.
            return self.pre_bound(pod.uid.clone(), Ok(()));
        }
        let (api, outbox) = (self.api.clone(), self.outbox.clone());
        tokio::spawn(async move {
            let result = write_all(&api, writes).await;
            let uid = pod.uid.clone();
            let _ = outbox.send(Input::PreBound { uid, result }).await;
        });
    }

    /// What PreBind wanted is written; the binding waits until it is seen to have happened.
    pub(super) fn pre_bound(&mut self, uid: Arc<str>, result: Result<(), String>) {
        match result {
            Ok(()) => {
                if let Some(attempt) = self.binding.get_mut(&uid) {
                    attempt.pre_bind = Some(jiff::Timestamp::MAX);
                }
                self.check_pre_bind(&uid);
            }
            Err(message) => self.give_up(&uid, format!("running PreBind plugin: {message}")),
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
            return self.give_up(uid, format!("node \"{}\" is gone", attempt.node));
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
                if let Some(attempt) = self.binding.get_mut(uid) {
                    attempt.pre_bind = None;
                }
                self.bind(&pod);
            }
            Some(limit) if attempt.started.elapsed() > limit => {
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
        if let Some(extender) = self.extenders.iter().find(|e| e.binds(&pod.class.spec)).cloned() {
            tokio::spawn(async move {
                let result = extender.bind(&pod, &node).await;
                let uid = pod.uid.clone();
                let _ = outbox.send(Input::Bound { uid, result }).await;
            });
            return;
        }
        tokio::spawn(async move {
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
        match result {
            // Unreadable: it was done, only the answer is odd.
            Ok(()) | Err(Error::Unreadable { .. }) => self.finish(&uid),
            Err(Error::NotFound(_)) if !self.waiting.contains_key(&uid) => {
                // Deleted meanwhile: nothing to tell and nobody to try again.
                self.take_back(&uid);
                self.queue.done(&uid);
            }
            Err(error) => self.give_up(&uid, format!("binding rejected: {}", error.chain())),
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
        let note = format!("Successfully assigned {} to {}", pod.key, attempt.node);
        self.record(attempt.profile, pod, EventType::Normal, "Scheduled", "Binding", note);
        let name = &self.core.profiles[attempt.profile].name;
        self.metrics
            .scheduled(name, attempt.started.elapsed(), &attempt.queued, self.clock.now());
        let plugins = &self.core.profiles[attempt.profile];
        for point in plugins
            .post_bind
            .iter()
            .filter_map(|place| plugins.plugins[*place].post_bind())
        {
            point.bound(pod, &attempt.node);
        }
    }

    /// The binding failed: whatever was assumed is forgotten and the pod waits again.
    fn give_up(&mut self, uid: &str, message: String) {
        let Some(Attempt {
            queued,
            profile,
            started,
            ..
        }) = self.take_back(uid)
        else {
            return;
        };
        tracing::debug!(pod = %queued.pod.key, "{message}");
        // Room was made: others may fit now.
        self.announce_release(&queued.pod);
        self.error(profile, queued, message, started);
    }

    fn take_back(&mut self, uid: &str) -> Option<Attempt> {
        let attempt = self.binding.remove(uid)?;
        self.cluster.forget(uid);
        self.unreserve(attempt.profile, &attempt.queued.pod, &attempt.node);
        Some(attempt)
    }

    /// Something went wrong that is nobody's verdict: back off and try again.
    pub(super) fn error(
        &mut self,
        profile: usize,
        queued: crate::queue::QueuedPod,
        message: String,
        started: std::time::Instant,
    ) {
        let name = &self.core.profiles[profile].name;
        self.metrics.attempt("error", name, started.elapsed());
        let pod = queued.pod.clone();
        self.warn(profile, &pod, "FailedScheduling", "Scheduling", message.clone());
        self.report(&pod, "SchedulerError", &message, None);
        self.requeue(queued, Outcome::Error);
    }
}

async fn write_all(api: &Api, writes: Vec<Write>) -> Result<(), String> {
    for write in writes {
        let done = match write.method {
            "PATCH" => api.patch_merge::<IgnoredAny>(&write.path, &write.body).await,
            "PUT" => api.replace::<IgnoredAny>(&write.path, &write.body).await,
            _ => api.create::<IgnoredAny>(&write.path, &write.body).await,
        };
        done.map_err(|e| format!("{}: {}", write.path, e.chain()))?;
    }
    Ok(())
}
