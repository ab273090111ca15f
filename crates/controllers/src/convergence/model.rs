//! A cluster small enough to be run ten thousand times: a Deployment, its ReplicaSets and pods, what the caches show of them,
//! and pending of controllers, taken apart into their writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use orlop_base::Random;
use orlop_base::clock::Shift;
use serde_json::json;

use super::invariants::{self, Limits};
use crate::deployment::plan as deployment_plan;
use crate::deployment::sets::{Sets, same_template};
use crate::deployment::status::{self as deployment_status, Made};
use crate::objects::deployment::DeploymentStatus;
use crate::objects::replica_set::ReplicaSetStatus;
use crate::objects::{Condition, Deployment, Kind, Meta, Pod, ReplicaSet};
use crate::ownership::{controller_reference, plan_claims};
use crate::replica_set::plan as set_plan;

pub(super) const NODES: u64 = 3;

/// Objects of a kind by name, and what the cache shows of them.
pub(super) struct Objects<T> {
    pub all: BTreeMap<String, Arc<T>>,
    pub shown: BTreeMap<String, Arc<T>>,
    /// What the cache does not show yet.
    news: VecDeque<(u64, String, Option<Arc<T>>)>,
    /// Up to where it does.
    shown_to: u64,
}

impl<T: Kind> Objects<T> {
    fn new() -> Objects<T> {
        Objects {
            all: BTreeMap::new(),
            shown: BTreeMap::new(),
            news: VecDeque::new(),
            shown_to: 0,
        }
    }

    fn put(&mut self, revision: u64, object: T) {
        let name = object.meta().name.clone();
        let object = Arc::new(object);
        self.news.push_back((revision, name.clone(), Some(object.clone())));
        self.all.insert(name, object);
    }

    fn remove(&mut self, revision: u64, name: &str) {
        self.all.remove(name);
        self.news.push_back((revision, name.to_string(), None));
    }

    pub(super) fn show(&mut self, count: usize) {
        for _ in 0..count {
            let Some((revision, name, object)) = self.news.pop_front() else {
                return;
            };
            self.shown_to = revision;
            match object {
                Some(object) => self.shown.insert(name, object),
                None => self.shown.remove(&name),
            };
        }
    }

    /// As after a new list.
    fn show_all(&mut self) {
        self.show(self.news.len());
    }

    fn shows(&self, revision: u64) -> bool {
        self.news.is_empty() || self.shown_to >= revision
    }
}

/// What a pending_reconcile still has to write.
enum Write {
    CreatePod(Arc<ReplicaSet>),
    DeletePod(Arc<ReplicaSet>, Arc<Pod>),
    AdoptPod(Arc<ReplicaSet>, Arc<Pod>),
    ReleasePod(Arc<Pod>),
    SetStatus(Arc<ReplicaSet>),
    CreateSet(Arc<Deployment>, deployment_plan::NewSet),
    UpdateSet(deployment_plan::Update),
    DeleteSet(Arc<Deployment>, Arc<ReplicaSet>),
    DeploymentStatus(Arc<Deployment>, Box<DeploymentStatus>, Option<String>),
}

/// A controller at work on one key.
#[derive(Default)]
pub(super) struct PendingReconcile {
    writes: VecDeque<Write>,
    /// For the status of a set: the set and its pods as seen, and what was done to them.
    set: Option<Arc<ReplicaSet>>,
    pods: Vec<Arc<Pod>>,
    made: Vec<Pod>,
    deleted: Vec<Arc<Pod>>,
}

/// How a write goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteResult {
    Done,
    /// Refused; nothing is written.
    Failed,
    /// Written, but the answer is lost.
    Lost,
}

pub(super) struct World {
    pub random: Random,
    pub now: Timestamp,
    revision: u64,
    uids: u64,
    pub deployments: Objects<Deployment>,
    pub sets: Objects<ReplicaSet>,
    pub pods: Objects<Pod>,
    /// By the name of the set; of the Deployment under the empty name.
    pub pending: BTreeMap<String, PendingReconcile>,
    /// Up to where the caches of deployments, sets and pods must be before the key's next pending_reconcile.
    waits: BTreeMap<String, [u64; 3]>,
    pub partitioned: Option<u64>,
    /// What must hold, as long as nobody but the controllers takes pods away.
    pub limits: Option<Limits>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World {
            random: Random::seeded(seed),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            revision: 1,
            uids: 0,
            deployments: Objects::new(),
            sets: Objects::new(),
            pods: Objects::new(),
            pending: BTreeMap::new(),
            waits: BTreeMap::new(),
            partitioned: None,
            limits: None,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn pick(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.now = self.now.later_by_seconds(seconds);
    }

    fn stamp(&mut self, meta: &mut Meta) -> u64 {
        self.revision += 1;
        meta.resource_version = self.revision.to_string();
        self.revision
    }

    pub(super) fn new_meta(&mut self, name: &str) -> Meta {
        self.uids += 1;
        Meta {
            name: name.to_string(),
            namespace: "ns".to_string(),
            uid: format!("u{}", self.uids),
            generation: 1,
            creation_timestamp: Some(self.now),
            ..Meta::default()
        }
    }

    pub(super) fn put_deployment(&mut self, mut deployment: Deployment) {
        let revision = self.stamp(&mut deployment.metadata);
        self.deployments.put(revision, deployment);
    }

    pub(super) fn put_set(&mut self, mut set: ReplicaSet) {
        let revision = self.stamp(&mut set.metadata);
        self.sets.put(revision, set);
    }

    pub(super) fn put_pod(&mut self, mut pod: Pod) {
        let revision = self.stamp(&mut pod.metadata);
        self.pods.put(revision, pod);
    }

    pub(super) fn remove_deployment(&mut self, name: &str) {
        self.revision += 1;
        self.deployments.remove(self.revision, name);
    }

    pub(super) fn remove_set(&mut self, name: &str) {
        self.revision += 1;
        self.sets.remove(self.revision, name);
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        self.revision += 1;
        self.pods.remove(self.revision, name);
    }

    pub(super) fn deployment(&self) -> Option<&Arc<Deployment>> {
        self.deployments.all.values().next()
    }

    /// All controllers end where they are, and begin anew with fresh caches.
    pub(super) fn restart(&mut self) {
        self.pending.clear();
        self.waits.clear();
        self.deployments.show_all();
        self.sets.show_all();
        self.pods.show_all();
    }

    pub(super) fn show_everything(&mut self) {
        self.deployments.show_all();
        self.sets.show_all();
        self.pods.show_all();
    }

    fn may_begin(&self, key: &str) -> bool {
        let [deployments, sets, pods] = self.waits.get(key).copied().unwrap_or_default();
        let caches = self.deployments.shows(deployments) && self.sets.shows(sets) && self.pods.shows(pods);
        caches && !self.pending.contains_key(key)
    }

    pub(super) fn begin_deployment_turn(&mut self) {
        let Some(deployment) = self.deployments.shown.values().next().cloned() else {
            return;
        };
        if !self.may_begin("") {
            return;
        }
        let owned = self.sets.shown.values();
        let owned = owned.filter(|set| is_owned_by(&set.metadata, &deployment.metadata.uid));
        let sets = Sets::classify(&deployment, owned.cloned().collect());
        let old_pods_run = sets.old.iter().any(|set| {
            let mut pods = self.pods.shown.values();
            pods.any(|pod| is_owned_by(&pod.metadata, &set.metadata.uid) && !pod.is_terminal())
        });
        let plan = deployment_plan::plan(&deployment, &sets, old_pods_run);
        let (total, planned_revision) = (plan.total(&sets), plan.revision(&sets));
        let mut pending_reconcile = PendingReconcile::default();
        let made = match &plan.create {
            Some(new) => Made::Created(new.name.clone()),
            None => Made::Nothing,
        };
        let revision = plan
            .create
            .as_ref()
            .map(|new| new.revision.clone())
            .or(planned_revision);
        let status = deployment_status::status(&deployment, &sets, total, &made, self.now);
        pending_reconcile
            .writes
            .extend(plan.create.map(|new| Write::CreateSet(deployment.clone(), new)));
        pending_reconcile
            .writes
            .extend(plan.updates.into_iter().map(Write::UpdateSet));
        let deletes = plan.deletes.into_iter();
        pending_reconcile
            .writes
            .extend(deletes.map(|set| Write::DeleteSet(deployment.clone(), set)));
        let revision =
            revision.filter(|r| deployment.metadata.annotation("deployment.kubernetes.io/revision") != Some(r));
        if status != deployment.status || revision.is_some() {
            pending_reconcile
                .writes
                .push_back(Write::DeploymentStatus(deployment, Box::new(status), revision));
        }
        self.pending.insert(String::new(), pending_reconcile);
    }

    pub(super) fn begin_set_turn(&mut self, name: &str) {
        let Some(set) = self.sets.shown.get(name).cloned() else {
            return;
        };
        if !self.may_begin(name) {
            return;
        }
        let (managed, rest): (Vec<_>, Vec<_>) = {
            let pods = self.pods.shown.values().cloned();
            pods.partition(|pod| is_owned_by(&pod.metadata, &set.metadata.uid))
        };
        let mut free = rest;
        free.retain(|pod| pod.metadata.controller().is_none() && pod.is_active());
        let selector = crate::objects::replica_set::Replicated::selector(&*set).unwrap();
        let mut claims = plan_claims(set.metadata.is_deleted(), &selector, managed, free);
        claims.released.retain(|pod| pod.is_active());
        let mut pending_reconcile = PendingReconcile::default();
        let adopted = claims.adopted.iter().cloned();
        pending_reconcile
            .writes
            .extend(adopted.map(|pod| Write::AdoptPod(set.clone(), pod)));
        pending_reconcile
            .writes
            .extend(claims.released.into_iter().map(Write::ReleasePod));
        pending_reconcile.pods = claims.kept;
        pending_reconcile.pods.extend(claims.adopted);
        match set_plan::plan(&*set, &pending_reconcile.pods, || self.family(&set), self.now) {
            set_plan::Plan::Nothing => {}
            set_plan::Plan::Create(count) => {
                pending_reconcile
                    .writes
                    .extend((0..count).map(|_| Write::CreatePod(set.clone())));
            }
            set_plan::Plan::Delete(pods) => {
                let pods = pods.into_iter();
                pending_reconcile
                    .writes
                    .extend(pods.map(|pod| Write::DeletePod(set.clone(), pod)));
            }
        }
        pending_reconcile.set = Some(set.clone());
        pending_reconcile.writes.push_back(Write::SetStatus(set));
        self.pending.insert(name.to_string(), pending_reconcile);
    }

    /// Pods of all sets with the same owner, as the caches show them.
    fn family(&self, set: &ReplicaSet) -> Vec<Arc<Pod>> {
        let owner = set.metadata.controller().map(|owner| owner.uid.clone());
        let of_family = |pod: &&Arc<Pod>| {
            let of = pod.metadata.controller().and_then(|o| self.sets.shown.get(&o.name));
            of.is_some_and(|set| set.metadata.controller().map(|o| o.uid.clone()) == owner)
        };
        self.pods.shown.values().filter(of_family).cloned().collect()
    }

    /// The next write of the key's pending_reconcile. False if there is no pending_reconcile.
    pub(super) fn step_turn(&mut self, key: &str, fate: WriteResult) -> bool {
        let Some(mut pending_reconcile) = self.pending.remove(key) else {
            return false;
        };
        let Some(write) = pending_reconcile.writes.pop_front() else {
            return true;
        };
        let is_status = matches!(write, Write::SetStatus(_));
        let (made, deleted) = (pending_reconcile.made.len(), pending_reconcile.deleted.len());
        let done = match fate {
            WriteResult::Failed => false,
            WriteResult::Done | WriteResult::Lost => {
                self.write(key, write, &mut pending_reconcile, fate == WriteResult::Done)
            }
        };
        if fate == WriteResult::Lost {
            pending_reconcile.made.truncate(made);
            pending_reconcile.deleted.truncate(deleted);
        }
        // A pending_reconcile that fails ends; a set's says so in its status first.
        if !done || fate != WriteResult::Done {
            pending_reconcile.writes.clear();
            let status = pending_reconcile
                .set
                .clone()
                .filter(|_| !is_status)
                .map(Write::SetStatus);
            pending_reconcile.writes.extend(status);
        }
        if !pending_reconcile.writes.is_empty() {
            self.pending.insert(key.to_string(), pending_reconcile);
        }
        true
    }

    /// Does it, if that is possible; `heard` of it, the key's next pending_reconcile waits until the caches show it.
    fn write(&mut self, key: &str, write: Write, pending_reconcile: &mut PendingReconcile, heard: bool) -> bool {
        let before = self.revision;
        let kind = match &write {
            Write::DeploymentStatus(..) => 0,
            Write::SetStatus(_) | Write::CreateSet(..) | Write::UpdateSet(_) | Write::DeleteSet(..) => 1,
            _ => 2,
        };
        let done = match write {
            Write::CreatePod(set) => {
                invariants::may_create_pod(self, &set);
                let pod = self.pod_of(&set);
                pending_reconcile.made.push(pod.clone());
                self.put_pod(pod);
                true
            }
            Write::DeletePod(set, pod) => {
                invariants::may_delete_pod(self, &set, &pod);
                self.delete_pod(&pod);
                pending_reconcile.deleted.push(pod);
                true
            }
            Write::AdoptPod(set, seen) => self.edit_pod(&seen, |pod| {
                pod.metadata.owner_references.push(controller_reference(&*set));
            }),
            Write::ReleasePod(seen) => self.edit_pod(&seen, |pod| pod.metadata.owner_references.clear()),
            Write::SetStatus(seen) => {
                let pods = std::mem::take(&mut pending_reconcile.pods);
                let made = std::mem::take(&mut pending_reconcile.made);
                let pods = set_plan::pods_after(pods, &pending_reconcile.deleted, made, self.now);
                let status = set_plan::status(&*seen, &pods, None, self.now);
                self.write_set_status(&seen, status)
            }
            Write::CreateSet(deployment, new) => self.create_set(&deployment, new),
            Write::UpdateSet(update) => self.update_set(&update),
            Write::DeleteSet(deployment, seen) => {
                invariants::may_delete_set(&deployment, &seen);
                let same = self.sets.all.get(&seen.metadata.name);
                if same.is_some_and(|set| set.metadata.uid == seen.metadata.uid) {
                    self.remove_set(&seen.metadata.name);
                }
                true
            }
            Write::DeploymentStatus(seen, status, revision) => self.write_deployment_status(&seen, *status, revision),
        };
        if self.revision != before && heard {
            self.waits.entry(key.to_string()).or_default()[kind] = self.revision;
        }
        done
    }

    fn pod_of(&mut self, set: &ReplicaSet) -> Pod {
        let name = format!("{}-{}", set.metadata.name, self.random.name_suffix(5));
        let mut metadata = self.new_meta(&name);
        metadata.labels.clone_from(&set.spec.template.metadata.labels);
        metadata.owner_references = vec![controller_reference(set)];
        let mut pod = Pod {
            metadata,
            ..Pod::default()
        };
        pod.status.phase = "Pending".to_string();
        pod
    }

    /// As the API server does: a pod without a node, or that has ended, is gone at once.
    pub(super) fn delete_pod(&mut self, seen: &Pod) {
        let Some(pod) = self.pods.all.get(&seen.metadata.name).cloned() else {
            return;
        };
        if pod.metadata.uid != seen.metadata.uid || pod.metadata.is_deleted() {
            return;
        }
        if pod.spec.node_name.is_empty() || pod.is_terminal() {
            return self.remove_pod(&pod.metadata.name);
        }
        let mut pod = Pod::clone(&pod);
        pod.metadata.deletion_timestamp = Some(self.now);
        self.put_pod(pod);
    }

    /// Only if it is as it was seen.
    fn edit_pod(&mut self, seen: &Pod, change: impl FnOnce(&mut Pod)) -> bool {
        let now = self.pods.all.get(&seen.metadata.name);
        let Some(pod) = now.filter(|pod| pod.metadata.resource_version == seen.metadata.resource_version) else {
            return false;
        };
        let mut pod = Pod::clone(pod);
        change(&mut pod);
        self.put_pod(pod);
        true
    }

    fn same_set(&self, seen: &ReplicaSet) -> Option<ReplicaSet> {
        let now = self.sets.all.get(&seen.metadata.name)?;
        let same = now.metadata.resource_version == seen.metadata.resource_version;
        same.then(|| ReplicaSet::clone(now))
    }

    fn write_set_status(&mut self, seen: &ReplicaSet, status: ReplicaSetStatus) -> bool {
        if status == seen.status {
            return true;
        }
        let Some(mut set) = self.same_set(seen) else {
            return false;
        };
        set.status = status;
        self.put_set(set);
        true
    }

    fn update_set(&mut self, update: &deployment_plan::Update) -> bool {
        let Some(mut set) = self.same_set(&update.set) else {
            return false;
        };
        let min_ready = update.min_ready_seconds.unwrap_or(set.spec.min_ready_seconds);
        if set.spec.replicas != Some(update.replicas) || set.spec.min_ready_seconds != min_ready {
            set.metadata.generation += 1;
        }
        set.spec.replicas = Some(update.replicas);
        set.spec.min_ready_seconds = min_ready;
        set.metadata.annotations.extend(update.annotations.clone());
        self.put_set(set);
        true
    }

    fn create_set(&mut self, deployment: &Deployment, new: deployment_plan::NewSet) -> bool {
        if let Some(there) = self.sets.all.get(&new.name) {
            let ours = is_owned_by(&there.metadata, &deployment.metadata.uid);
            if !(ours && same_template(&there.spec.template, &deployment.spec.template)) {
                self.count_collision(deployment);
            }
            return false;
        }
        let mut set: ReplicaSet = serde_json::from_value(new.body).unwrap();
        let meta = self.new_meta(&new.name);
        set.metadata = Meta {
            labels: set.metadata.labels,
            annotations: set.metadata.annotations,
            owner_references: set.metadata.owner_references,
            ..meta
        };
        self.put_set(set);
        true
    }

    fn count_collision(&mut self, seen: &Deployment) {
        let mut status = seen.status.clone();
        status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
        self.write_deployment_status(seen, status, None);
    }

    fn write_deployment_status(
        &mut self,
        seen: &Deployment,
        status: DeploymentStatus,
        revision: Option<String>,
    ) -> bool {
        let now = self.deployments.all.get(&seen.metadata.name);
        let same = |d: &&Arc<Deployment>| d.metadata.resource_version == seen.metadata.resource_version;
        let Some(now) = now.filter(same) else { return false };
        let mut deployment = Deployment::clone(now);
        deployment.status = status;
        let annotation = revision.map(|r| ("deployment.kubernetes.io/revision".to_string(), r));
        deployment.metadata.annotations.extend(annotation);
        self.put_deployment(deployment);
        true
    }

    /// A node starts the pod, or ends it.
    pub(super) fn run_pod(&mut self, name: &str) -> bool {
        let Some(pod) = self.pods.all.get(name).cloned() else {
            return false;
        };
        let node = pod.spec.node_name.strip_prefix('n').and_then(|n| n.parse().ok());
        if node.is_some() && node == self.partitioned {
            return false;
        }
        if pod.metadata.is_deleted() {
            self.remove_pod(name);
            return true;
        }
        let mut next = Pod::clone(&pod);
        if pod.spec.node_name.is_empty() {
            let node = self.pick(NODES);
            if self.partitioned == Some(node) {
                return false;
            }
            next.spec.node_name = format!("n{node}");
        } else if !pod.is_ready() && !pod.is_terminal() {
            next.status.phase = "Running".to_string();
            next.status.conditions = vec![self.ready(true)];
        } else {
            return false;
        }
        self.put_pod(next);
        true
    }

    pub(super) fn ready(&self, ready: bool) -> Condition {
        Condition {
            r#type: "Ready".to_string(),
            status: if ready { "True" } else { "False" }.to_string(),
            last_transition_time: Some(self.now),
            ..Condition::default()
        }
    }

    /// What nobody owns any more goes, as by the garbage collector.
    pub(super) fn collect_garbage(&mut self) -> bool {
        let gone = |meta: &Meta, owners: &[&str]| {
            let mut references = meta.owner_references.iter();
            references.any(|owner| owner.uid != "foreign" && !owners.contains(&owner.uid.as_str()))
        };
        let deployments: Vec<&str> = self.deployments.all.values().map(|d| d.metadata.uid.as_str()).collect();
        let sets = self.sets.all.values().filter(|set| gone(&set.metadata, &deployments));
        let sets: Vec<String> = sets.map(|set| set.metadata.name.clone()).collect();
        let owners: Vec<&str> = self.sets.all.values().map(|set| set.metadata.uid.as_str()).collect();
        let pods = self.pods.all.values().filter(|pod| gone(&pod.metadata, &owners));
        let pods: Vec<Arc<Pod>> = pods.filter(|pod| !pod.metadata.is_deleted()).cloned().collect();
        let some = !sets.is_empty() || !pods.is_empty();
        sets.iter().for_each(|set| self.remove_set(set));
        pods.iter().for_each(|pod| self.delete_pod(pod));
        some
    }
}

pub(super) fn is_owned_by(meta: &Meta, uid: &str) -> bool {
    meta.controller().is_some_and(|owner| owner.uid == uid)
}

/// A Deployment as a user writes it.
pub(super) fn new_deployment(world: &mut World) -> Deployment {
    let labels = json!({"app": "web"});
    let value = json!({
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"image": 0}},
                 "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
                 "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    });
    let mut deployment: Deployment = serde_json::from_value(value).unwrap();
    deployment.metadata = world.new_meta("web");
    deployment
}
