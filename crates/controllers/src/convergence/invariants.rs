//! What must never happen, and what must be so when all is quiet.

use std::sync::Arc;

use super::model::{World, is_owned_by};
use crate::deployment::sets::{Sets, size};
use crate::deployment::status;
use crate::objects::{Deployment, Pod, ReplicaSet};

/// What the Deployment allowed since all was quiet last: orders that were given stay in force for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub most: i64,
    pub least_available: i64,
    /// So many have been available since all was quiet last: before, nobody can say which pods are not missed.
    pub established: bool,
    /// Replaces all at once, all the time.
    pub recreates: bool,
}

impl Limits {
    pub(super) fn from_deployment(deployment: &Deployment) -> Limits {
        Limits {
            most: deployment.max_replicas(),
            least_available: match deployment.is_rolling() {
                true => deployment.min_available(),
                false => 0,
            },
            established: false,
            recreates: !deployment.is_rolling(),
        }
    }

    pub(super) fn or(self, other: Limits) -> Limits {
        Limits {
            most: self.most.max(other.most),
            least_available: self.least_available.min(other.least_available),
            established: self.established,
            recreates: self.recreates && other.recreates,
        }
    }
}

/// The Deployment's sets.
fn owned_sets(world: &World) -> Vec<Arc<ReplicaSet>> {
    let Some(deployment) = world.deployment() else {
        return vec![];
    };
    let sets = world.sets.all.values();
    let owned = sets.filter(|set| is_owned_by(&set.metadata, &deployment.metadata.uid));
    owned.cloned().collect()
}

fn pods_of<'a>(world: &'a World, sets: &'a [Arc<ReplicaSet>]) -> impl Iterator<Item = &'a Arc<Pod>> {
    let owned = |pod: &&Arc<Pod>| sets.iter().any(|set| is_owned_by(&pod.metadata, &set.metadata.uid));
    world.pods.all.values().filter(owned)
}

pub(super) fn not_too_many(world: &World) {
    let Some(limits) = world.limits else { return };
    let active = pods_of(world, &owned_sets(world)).filter(|pod| pod.is_active()).count() as i64;
    assert!(active <= limits.most, "{active} pods, {limits:?}");
}

pub(super) fn may_create_pod(world: &World, set: &ReplicaSet) {
    let Some(limits) = world.limits else { return };
    let sets = owned_sets(world);
    let other = |pod: &&Arc<Pod>| !is_owned_by(&pod.metadata, &set.metadata.uid) && !pod.is_terminal();
    let others = pods_of(world, &sets).filter(other).count();
    assert!(
        !limits.recreates || others == 0,
        "a pod of {} beside {others} others",
        set.metadata.name
    );
}

pub(super) fn may_delete_pod(world: &World, set: &ReplicaSet, seen: &Pod) {
    let now = world.pods.all.get(&seen.metadata.name);
    let Some(pod) = now.filter(|pod| pod.metadata.uid == seen.metadata.uid) else {
        return;
    };
    assert!(
        is_owned_by(&pod.metadata, &set.metadata.uid),
        "{} is not of {}",
        pod.metadata.name,
        set.metadata.name
    );
    let Some(limits) = world.limits else { return };
    let serves = |pod: &Pod| pod.is_active() && pod.is_ready();
    let sets = owned_sets(world);
    let serving = pods_of(world, &sets).filter(|pod| serves(pod)).count() as i64;
    // One that has become ready a moment ago may go by mistake; one that was seen to serve may not.
    let missed = serves(pod) && serves(seen) && sets.iter().any(|set| is_owned_by(&pod.metadata, &set.metadata.uid));
    assert!(
        !missed || !limits.established || serving > limits.least_available,
        "{serving} serve, {limits:?}, and one goes"
    );
}

/// The limits from here on, if there are any.
pub(super) fn limits_when_quiet(world: &World) -> Option<Limits> {
    let mut limits = world
        .limits
        .zip(world.deployment())
        .map(|(_, d)| Limits::from_deployment(d))?;
    let sets = owned_sets(world);
    let serving = pods_of(world, &sets).filter(|pod| pod.is_active() && pod.is_ready());
    limits.established = serving.count() as i64 >= limits.least_available;
    Some(limits)
}

pub(super) fn may_delete_set(deployment: &Deployment, set: &ReplicaSet) {
    assert!(is_owned_by(&set.metadata, &deployment.metadata.uid));
    assert!(
        size(set) == 0 && set.status.replicas == 0,
        "{} has pods",
        set.metadata.name
    );
}

/// The actual state is the desired state, and nothing else is there.
pub(super) fn is_as_wanted(deployment: Option<&Deployment>, sets: Vec<Arc<ReplicaSet>>, pods: &[Arc<Pod>]) {
    let Some(deployment) = deployment else {
        assert!(
            sets.is_empty() && pods.is_empty(),
            "{} sets, {} pods are left",
            sets.len(),
            pods.len()
        );
        return;
    };
    let sets = Sets::classify(deployment, sets);
    for set in sets.all() {
        let mine = pods.iter().filter(|pod| is_owned_by(&pod.metadata, &set.metadata.uid));
        let mine: Vec<_> = mine.filter(|pod| !pod.is_terminal()).collect();
        let name = &set.metadata.name;
        assert_eq!(mine.len() as i64, size(set), "{name}: pods and size");
        assert!(
            mine.iter().all(|pod| pod.is_active() && pod.is_ready()),
            "{name}: all are ready"
        );
        let of = &set.status;
        let counts = (
            of.replicas,
            of.ready_replicas,
            of.available_replicas,
            of.terminating_replicas,
        );
        assert_eq!(counts, (size(set), size(set), size(set), Some(0)), "{name}: status");
        assert_eq!(of.observed_generation, set.metadata.generation, "{name}");
    }
    let counts = status::counts(deployment, &sets);
    let said = &deployment.status;
    assert_eq!(
        (said.replicas, said.updated_replicas, said.available_replicas),
        (counts.replicas, counts.updated_replicas, counts.available_replicas)
    );
    assert_eq!(said.observed_generation, deployment.metadata.generation);
    let total: i64 = sets.all().map(|set| size(set)).sum();
    if deployment.spec.paused {
        assert!(total <= deployment.max_replicas(), "{total} are told, paused");
        return;
    }
    let new = sets.new.as_ref().expect("a set of the present template");
    assert_eq!((size(new), total), (deployment.replicas(), deployment.replicas()));
    assert!(status::is_complete(deployment, said));
    assert!(
        sets.old.len() <= deployment.history_limit().unwrap_or(usize::MAX),
        "history"
    );
    let revision = |annotations: &std::collections::BTreeMap<String, String>| -> i64 {
        annotations["deployment.kubernetes.io/revision"].parse().unwrap()
    };
    let newest = revision(&new.metadata.annotations);
    assert_eq!(revision(&deployment.metadata.annotations), newest);
    assert!(
        sets.old.iter().all(|set| revision(&set.metadata.annotations) < newest),
        "revisions"
    );
    let progressing = crate::objects::condition::find(&said.conditions, "Progressing").expect("a condition");
    assert_eq!(progressing.reason, "NewReplicaSetAvailable");
}

pub(super) fn quiet_world_is_as_wanted(world: &World) {
    let sets = match world.deployment() {
        Some(_) => owned_sets(world),
        None => world.sets.all.values().cloned().collect(),
    };
    let pods = world.pods.all.values();
    let pods = pods.filter(|pod| pod.metadata.controller().is_some_and(|owner| owner.uid != "foreign"));
    let pods: Vec<_> = pods.cloned().collect();
    is_as_wanted(world.deployment().map(|d| &**d), sets, &pods);
    assert!(
        world.pods.all.contains_key("foreign"),
        "what belongs to somebody else is left alone"
    );
}
