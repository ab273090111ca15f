//! DaemonSets: a pod on every node that is meant for it.
//!
//! Pods are bound to their nodes by affinity and placed by the scheduler. A node wakes a set only when it begins or ceases to
//! be meant for it, so that the heartbeats of thousands of nodes cost nothing here.
// Upstream: pkg/controller/daemon (v1.36)

mod failures;
mod placement;
mod plan;
mod rolling;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::join_all;
use orlop_base::Clock;
use orlop_client::Error;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use self::failures::Failures;
use self::placement::Placement;
use self::plan::{Plan, View};
use crate::objects::{ControllerRevision, DaemonSet, Node, Pod, PodTemplate};
use crate::revisions::{self, DesiredRevision, Ensured};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, status_patch,
};
use crate::{ownership, pod_template};

pub(crate) const DEF: Def = Def {
    name: "daemonset-controller",
    account: "daemon-set-controller",
    on_by_default: true,
    start,
};

struct Controller {
    sets: Cache<DaemonSet>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    revisions: Cache<ControllerRevision>,
    placements: Arc<Placements>,
    failures: Mutex<Failures>,
    recorder: Recorder,
    clock: Clock,
}

/// Where each set's pods belong, read from its template once a generation.
#[derive(Default)]
struct Placements(Mutex<FxHashMap<Key, (String, i64, Arc<Placement>)>>);

impl Placements {
    fn placement(&self, set: &DaemonSet) -> Arc<Placement> {
        let meta = &set.metadata;
        let mut known = self.0.lock();
        if let Some((uid, generation, placement)) = known.get(&Key::from_object(set))
            && (uid, *generation) == (&meta.uid, meta.generation)
        {
            return placement.clone();
        }
        let placement = Arc::new(Placement::from_template(&set.spec.template));
        known.insert(
            Key::from_object(set),
            (meta.uid.clone(), meta.generation, placement.clone()),
        );
        placement
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

fn start(setup: &Setup) {
    let queue = setup.queue("daemonset");
    let controller = Controller {
        sets: setup.cache(),
        pods: setup.cache(),
        nodes: setup.cache(),
        revisions: setup.cache(),
        placements: Arc::default(),
        failures: Mutex::default(),
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
    };
    queue.follow(&controller.sets);
    ownership::wake_owners(&queue, &controller.sets, &controller.pods, |set, pod| {
        set.selector().is_some_and(|s| ownership::matches(&s, pod))
    });
    ownership::wake_owners(&queue, &controller.sets, &controller.revisions, |_, _| false);
    let (wake, known, placements) = (queue.clone(), controller.sets.clone(), controller.placements.clone());
    controller.nodes.on_change(move |old, new| {
        if !may_matter(old, new) {
            return;
        }
        for set in known.list() {
            let placement = placements.placement(&set);
            let fit = |node: Option<&Arc<Node>>| node.map(|node| placement.fit(node));
            if fit(old) != fit(new) {
                wake.add(Key::from_object(&*set));
            }
        }
    });
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// Only labels and taints decide where pods belong; a node's status changes all the time.
fn may_matter(old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return true;
    };
    old.metadata.labels != new.metadata.labels || old.spec.taints != new.spec.taints
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(set) = self.sets.at(key) else {
            self.placements.forget(key);
            return Ok(Next::Done);
        };
        // Its revisions may be gone already, so nothing true can be said of it any more.
        if set.metadata.is_deleted() {
            return Ok(Next::Done);
        }
        let Some(selector) = set.selector() else {
            if set.spec.selector == json!({}) {
                let note = "This daemon set is selecting all pods. A non-empty selector is required.";
                self.recorder.warning(&*set, "SelectingAll", note);
            }
            return Ok(Next::Done);
        };
        let pods = ownership::claim(writer, &*set, Some(&selector), &self.pods).await?;
        let mut history = ownership::claim(writer, &*set, Some(&selector), &self.revisions).await?;
        revisions::sort(&mut history);
        let Some(present) = self.present_revision(writer, &set, &history, &pods).await? else {
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        let plan = plan::plan(&View {
            set: &set,
            hash: plan::hash_of(&present),
            placement: &self.placements.placement(&set),
            nodes: &self.nodes.list_in(""),
            pods: &pods,
            failures: &self.failures.lock(),
            now,
        });
        let done = self.apply(writer, &set, &plan, plan::hash_of(&present)).await;
        if plan.status != set.status {
            writer
                .patch_status::<DaemonSet>(&set.metadata, &status_patch(&set.metadata, &plan.status))
                .await?;
        }
        done?;
        history.retain(|revision| revision.metadata.name != present.metadata.name);
        revisions::delete(writer, &plan::revisions_to_forget(&set, &history, &pods)).await?;
        Ok(plan.look_again.map_or(Next::Done, Next::After))
    }
}

impl Controller {
    /// None: its name was taken, which the set's status now says; that wakes the set again.
    async fn present_revision(
        &self,
        writer: &Writer,
        set: &DaemonSet,
        history: &[Arc<ControllerRevision>],
        pods: &[Arc<Pod>],
    ) -> Result<Option<Arc<ControllerRevision>>, ReconcileError> {
        let patch = revisions::patch_of(&set.spec.template);
        let wanted = DesiredRevision {
            patch: &patch,
            template_labels: template(set).metadata.labels,
            hash_label: revisions::POD_LABEL,
            probe: set.status.collision_count,
        };
        match revisions::ensure(writer, set, history, &wanted).await? {
            Ensured::There(present) => {
                let twin = |r: &&Arc<ControllerRevision>| {
                    r.metadata.name != present.metadata.name && revisions::same(&r.data, &patch)
                };
                for twin in history.iter().filter(twin) {
                    self.merge_twin(writer, twin, &present, pods).await?;
                }
                Ok(Some(present))
            }
            Ensured::NameTaken => {
                let patch = revisions::count_collision(&set.metadata, set.status.collision_count);
                writer.patch_status::<DaemonSet>(&set.metadata, &patch).await?;
                Ok(None)
            }
        }
    }

    /// Two revisions of the same template: pods of the one become pods of the other.
    // Differs from upstream, which relabels every pod, also those of older templates, which then never get updated.
    async fn merge_twin(
        &self,
        writer: &Writer,
        twin: &Arc<ControllerRevision>,
        present: &ControllerRevision,
        pods: &[Arc<Pod>],
    ) -> Result<(), ReconcileError> {
        let label = |pod: &Pod| pod.metadata.label(revisions::POD_LABEL) == Some(plan::hash_of(twin));
        for pod in pods.iter().filter(|pod| label(pod)) {
            let patch = json!({"metadata": {
                "uid": pod.metadata.uid, "labels": {revisions::POD_LABEL: plan::hash_of(present)},
            }});
            match writer.patch::<Pod>(&pod.metadata, &patch).await {
                Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        revisions::delete(writer, std::slice::from_ref(twin)).await
    }

    async fn apply(&self, writer: &Writer, set: &DaemonSet, plan: &Plan, hash: &str) -> Result<(), ReconcileError> {
        for ended in &plan.ended {
            let pod = &ended.pod.metadata;
            let (place, node) = (format!("{}/{}", pod.namespace, pod.name), &ended.node);
            if ended.pod.status.phase == "Failed" {
                let note = format!("Found failed daemon pod {place} on node {node}, will try to kill it");
                self.recorder.warning(set, "FailedDaemonPod", note);
                let place = failures::BackoffKey {
                    uid: set.metadata.uid.clone(),
                    generation: set.status.observed_generation,
                    node: node.clone(),
                };
                self.failures.lock().replaced(place, self.clock.now());
            } else {
                let note = format!("Found succeeded daemon pod {place} on node {node}, will try to delete it");
                self.recorder.normal(set, "SucceededDaemonPod", note);
            }
        }
        let made = self.create(writer, set, &plan.create, hash).await;
        let gone = self.delete(writer, set, &plan.delete).await;
        made.and(gone)
    }

    /// In batches that double as long as all goes well, so that a quota or a bad template costs a few requests, not hundreds.
    async fn create(
        &self,
        writer: &Writer,
        set: &DaemonSet,
        nodes: &[String],
        hash: &str,
    ) -> Result<(), ReconcileError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let pod = daemon_pod(set, hash);
        let (mut left, mut batch) = (nodes, 1);
        while !left.is_empty() {
            let (now, later) = left.split_at(batch.min(left.len()));
            let made = join_all(now.iter().map(|node| {
                let mut pod = pod.clone();
                placement::bind(&mut pod["spec"], node);
                writer.create_encoded::<Pod>(&set.metadata.namespace, pod_template::encoded(&pod))
            }));
            let mut failed = None;
            for made in made.await {
                match made {
                    Ok(pod) => {
                        let note = format!("Created pod: {}", pod.metadata.name);
                        self.recorder.normal(set, "SuccessfulCreate", note);
                    }
                    // Nothing more can come to life here.
                    Err(Error::Forbidden(status)) if pod_template::is_namespace_ending(&status) => return Ok(()),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                self.recorder
                    .warning(set, "FailedCreate", format!("Error creating: {error}"));
                return Err(error.into());
            }
            (left, batch) = (later, batch * 2);
        }
        Ok(())
    }

    async fn delete(&self, writer: &Writer, set: &DaemonSet, pods: &[Arc<Pod>]) -> Result<(), ReconcileError> {
        let gone = join_all(pods.iter().map(|pod| writer.delete::<Pod>(&pod.metadata))).await;
        let mut failed = Ok(());
        for (pod, gone) in pods.iter().zip(gone) {
            match gone {
                Ok(()) => {
                    let note = format!("Deleted pod: {}", pod.metadata.name);
                    self.recorder.normal(set, "SuccessfulDelete", note);
                }
                Err(Error::NotFound(_)) => {}
                Err(error) => {
                    self.recorder
                        .warning(set, "FailedDelete", format!("Error deleting: {error}"));
                    failed = Err(error.into());
                }
            }
        }
        failed
    }
}

fn template(set: &DaemonSet) -> PodTemplate {
    serde_json::from_value(set.spec.template.clone()).unwrap_or_default()
}

/// The set's pod before it is bound to a node.
fn daemon_pod(set: &DaemonSet, hash: &str) -> Value {
    let mut template = template(set);
    let labels = &mut template.metadata.labels;
    if let Some(generation) = plan::template_generation(set) {
        labels.insert(plan::TEMPLATE_GENERATION_LABEL.to_string(), generation.to_string());
    }
    labels.insert(revisions::POD_LABEL.to_string(), hash.to_string());
    template.spec["tolerations"] = json!(placement::tolerations(&template.spec));
    pod_template::pod(set, &template)
}
