//! What is to be written, given what is there.

use std::sync::Arc;

use serde_json::{Value, json};

use super::history::{self, Annotations};
use super::sets::{Sets, is_active, new_set, size};
use super::sizes::{Sizes, plan_sizes};
use super::status;
use crate::objects::{Deployment, ReplicaSet};

#[derive(Default)]
pub(crate) struct Plan {
    /// A ReplicaSet for the present template.
    pub create: Option<NewSet>,
    /// In this order.
    pub updates: Vec<Update>,
    pub deletes: Vec<Arc<ReplicaSet>>,
}

pub(crate) struct NewSet {
    pub name: String,
    pub replicas: i64,
    pub revision: String,
    pub body: Value,
}

/// A change to a ReplicaSet that is there.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub set: Arc<ReplicaSet>,
    pub replicas: i64,
    /// To be added or changed.
    pub annotations: Annotations,
    pub min_ready_seconds: Option<u32>,
}

impl Update {
    /// Only takes if the set is as it was seen: nothing that others wrote meanwhile is undone.
    pub(crate) fn patch(&self) -> Value {
        let mut spec = json!({});
        if self.replicas != size(&self.set) {
            spec["replicas"] = json!(self.replicas);
        }
        if let Some(seconds) = self.min_ready_seconds {
            spec["minReadySeconds"] = json!(seconds);
        }
        let mut metadata = crate::runtime::precondition(&self.set.metadata);
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        json!({"metadata": metadata, "spec": spec})
    }

    /// For the event, if the size changes.
    pub(crate) fn described(&self) -> Option<String> {
        let before = size(&self.set);
        let direction = match before.cmp(&self.replicas) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Less => "up",
            std::cmp::Ordering::Greater => "down",
        };
        let name = &self.set.metadata.name;
        Some(format!(
            "Scaled {direction} replica set {name} from {before} to {}",
            self.replicas
        ))
    }
}

/// `old_pods_run`: whether pods of old sets are still there, even if on their way out.
pub(crate) fn plan(deployment: &Deployment, sets: &Sets, old_pods_run: bool) -> Plan {
    // The garbage collector has the word.
    if deployment.metadata.is_deleted() {
        return Plan::default();
    }
    let sizes = plan_sizes(deployment, sets, old_pods_run);
    let mut plan = Plan::default();
    match (&sets.new, sizes.new) {
        (Some(new), Some(replicas)) => {
            let missing = history::missing_annotations(deployment, Some(new), &sets.old);
            plan.update(deployment, new, replicas, &sizes, missing);
        }
        (None, Some(replicas)) => plan.create = Some(create(deployment, sets, replicas)),
        (_, None) => {}
    }
    for (set, replicas) in sets.old.iter().zip(&sizes.old) {
        plan.update(deployment, set, *replicas, &sizes, Annotations::new());
    }
    if deployment.spec.paused || status::is_complete(deployment, &status::counts(deployment, sets)) {
        plan.deletes = history::outdated(deployment, sets);
        plan.updates
            .retain(|update| !plan.deletes.iter().any(|set| Arc::ptr_eq(set, &update.set)));
    }
    plan
}

fn create(deployment: &Deployment, sets: &Sets, replicas: i64) -> NewSet {
    let mut annotations = history::missing_annotations(deployment, None, &sets.old);
    let sizes = history::size_annotations(deployment);
    annotations.extend(sizes.map(|(key, value)| (key.to_string(), value)));
    let (name, body) = new_set(deployment, replicas, json!(annotations));
    NewSet {
        name,
        replicas,
        revision: history::next_revision(&sets.old).to_string(),
        body,
    }
}

impl Plan {
    fn update(
        &mut self,
        deployment: &Deployment,
        set: &Arc<ReplicaSet>,
        replicas: i64,
        sizes: &Sizes,
        mut annotations: Annotations,
    ) {
        let is_new = !annotations.is_empty() || is_new(deployment, set);
        let resized = replicas != size(set);
        if resized || (sizes.remember && is_active(set)) {
            let wanted = history::size_annotations(deployment);
            let wanted = wanted
                .into_iter()
                .filter(|(key, value)| set.metadata.annotation(key) != Some(value));
            annotations.extend(wanted.map(|(key, value)| (key.to_string(), value)));
        }
        let seconds = deployment.spec.min_ready_seconds;
        let min_ready_seconds = (is_new && set.spec.min_ready_seconds != seconds).then_some(seconds);
        if resized || !annotations.is_empty() || min_ready_seconds.is_some() {
            self.updates.push(Update {
                set: set.clone(),
                replicas,
                annotations,
                min_ready_seconds,
            });
        }
    }

    /// The revision of the set of the present template, as it will be.
    pub(crate) fn revision(&self, sets: &Sets) -> Option<String> {
        let new = sets.new.as_ref()?;
        let update = self.updates.iter().find(|update| Arc::ptr_eq(&update.set, new));
        let changed = update.and_then(|update| update.annotations.get(history::REVISION));
        let has = || new.metadata.annotations.get(history::REVISION);
        changed.or_else(has).cloned()
    }

    /// The sum of the replicas in the specs of all sets.
    pub(crate) fn total(&self, sets: &Sets) -> i64 {
        let planned = |set: &Arc<ReplicaSet>| {
            let update = self.updates.iter().find(|update| Arc::ptr_eq(&update.set, set));
            update.map_or_else(|| size(set), |update| update.replicas)
        };
        sets.all().map(planned).sum::<i64>() + self.create.as_ref().map_or(0, |new| new.replicas)
    }
}

fn is_new(deployment: &Deployment, set: &ReplicaSet) -> bool {
    super::sets::same_template(&deployment.spec.template, &set.spec.template)
}
