//! Which pods to create, delete or update, in which order, and the events about it.
//!
//! First the pods that are to be there, from the lowest ordinal up; then those beyond them, from the highest down; then old
//! ones that an update replaces, from the highest down. With `OrderedReady` each waits until all before it are well.
// Upstream: pkg/controller/statefulset/stateful_set_control.go (v1.36)

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::int_or_string::{IntOrPercent, Round};

use super::identity;
use super::retention::{self, Holder, Owners};
use crate::objects::stateful_set::StatefulSetStatus;
use crate::objects::{ControllerRevision, OwnerReference, PersistentVolumeClaim, Pod, StatefulSet};
use crate::revisions;

/// What a reconcile sees.
pub(super) struct View<'a> {
    pub set: &'a StatefulSet,
    /// The names of two revisions: what pods were made from, and what they are to be made from.
    pub current: &'a str,
    pub update: &'a str,
    pub pods: &'a [Arc<Pod>],
    pub claim: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Sync),
    pub now: Timestamp,
}

/// Phases one after the other; in a phase, with `Parallel`, everything at once.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub phases: [Vec<Step>; 4],
    pub status: StatefulSetStatus,
    pub look_again: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Step {
    pub ordinal: i64,
    /// Comes first.
    pub claims: Claims,
    pub act: PodAction,
}

#[derive(Debug)]
pub(super) enum PodAction {
    Nothing,
    Create(Which),
    Delete(Arc<Pod>),
    /// Its labels are not those of its name.
    Label(Arc<Pod>),
    /// It should have claims as volumes and has not; that can't be changed.
    LacksStorage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Current,
    Update,
}

/// What a pod's claims need.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Numbers of templates, and who is to own the claim.
    pub create: Vec<(usize, Vec<OwnerReference>)>,
    pub owners: Vec<(Arc<PersistentVolumeClaim>, Vec<OwnerReference>)>,
    /// Names of those that somebody else manages.
    pub conflicts: Vec<String>,
    /// One that is on its way out: no pod can be made on it.
    pub leaving: Option<String>,
}

impl Claims {
    fn is_empty(&self) -> bool {
        self.create.is_empty() && self.owners.is_empty() && self.conflicts.is_empty()
    }
}

/// A place in the set, with its pod if there is one.
struct Slot<'a> {
    ordinal: i64,
    pod: Option<&'a Arc<Pod>>,
}

impl Slot<'_> {
    fn is_leaving(&self) -> bool {
        self.pod.is_some_and(|pod| pod.metadata.is_deleted())
    }
}

impl View<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        let min_ready = Duration::from_secs(self.set.spec.min_ready_seconds.into());
        pod.is_available(min_ready, self.now)
    }

    /// Serves, and is not about to stop.
    fn is_well(&self, slot: &Slot<'_>) -> bool {
        slot.pod.is_some_and(|pod| pod.is_active() && self.is_available(pod))
    }

    fn in_order(&self) -> bool {
        self.set.spec.pod_management_policy != "Parallel"
    }

    fn partition(&self) -> i64 {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        rolling.map_or(0, |rolling| rolling.partition)
    }

    /// What a pod of this ordinal is made from.
    fn revision_for(&self, ordinal: i64) -> Which {
        let strategy = &self.set.spec.update_strategy;
        let kept = match &strategy.rolling_update {
            Some(rolling) => rolling.partition,
            None if strategy.r#type == "RollingUpdate" => self.set.status.current_replicas,
            None => 0,
        };
        match ordinal < self.set.spec.ordinals.start + kept {
            true => Which::Current,
            false => Which::Update,
        }
    }
}

fn revision(pod: &Pod) -> &str {
    pod.metadata.label(revisions::POD_LABEL).unwrap_or_default()
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pod.status.phase == "Running" && pod.is_ready()
}

pub(super) fn plan(view: &View<'_>) -> Plan {
    let (slots, condemned) = slots(view);
    let mut plan = Plan {
        status: status(view, &slots, &condemned),
        look_again: next_available(view),
        ..Plan::default()
    };
    if !view.set.metadata.is_deleted() {
        plan_pods(view, &slots, &condemned, &mut plan);
    }
    complete_update(view, &mut plan.status);
    plan
}

fn plan_pods(view: &View<'_>, slots: &[Slot<'_>], condemned: &[Slot<'_>], plan: &mut Plan) {
    if !fill(view, slots, &mut plan.phases[0]) {
        return;
    }
    plan.phases[1] = condemned
        .iter()
        .map(|slot| step(slot, claims(view, slot, true), PodAction::Nothing))
        .filter(|step| !step.claims.is_empty())
        .collect();
    if !shrink(view, condemned, &mut plan.phases[2]) {
        return;
    }
    if view.set.spec.update_strategy.r#type != "OnDelete" {
        update(view, slots, plan);
    }
}

/// Pods by ordinal: those that are to be there, lowest first, and the others, highest first.
fn slots<'a>(view: &View<'a>) -> (Vec<Slot<'a>>, Vec<Slot<'a>>) {
    let wanted = identity::wanted(view.set);
    let mut slots: Vec<Slot<'a>> = wanted.clone().map(|ordinal| Slot { ordinal, pod: None }).collect();
    let mut condemned = vec![];
    for pod in view.pods {
        let Some(ordinal) = identity::ordinal(&view.set.metadata.name, &pod.metadata.name) else {
            continue;
        };
        match usize::try_from(ordinal - wanted.start)
            .ok()
            .and_then(|i| slots.get_mut(i))
        {
            Some(slot) => slot.pod = Some(pod),
            None => condemned.push(Slot {
                ordinal,
                pod: Some(pod),
            }),
        }
    }
    condemned.sort_by_key(|slot| Reverse(slot.ordinal));
    (slots, condemned)
}

fn step(slot: &Slot<'_>, claims: Claims, act: PodAction) -> Step {
    Step {
        ordinal: slot.ordinal,
        claims,
        act,
    }
}

/// Every place gets its pod. False: one is not well yet, and what comes after it must wait.
fn fill(view: &View<'_>, slots: &[Slot<'_>], steps: &mut Vec<Step>) -> bool {
    let in_order = view.in_order();
    for slot in slots {
        let Some(pod) = slot.pod else {
            if !must_wait_for_claims(view, slot) {
                let act = PodAction::Create(view.revision_for(slot.ordinal));
                steps.push(step(slot, claims(view, slot, false), act));
            }
            if in_order {
                return false;
            }
            continue;
        };
        if pod.is_terminal() {
            // Whatever its exit code says: the place is to be taken by a pod that runs.
            if !slot.is_leaving() {
                steps.push(step(slot, Claims::default(), PodAction::Delete(pod.clone())));
            }
            if in_order {
                return false;
            }
            continue;
        }
        let waits = slot.is_leaving() || !is_running_and_ready(pod) || !view.is_available(pod);
        if in_order && waits {
            if pod.status.phase == "Pending" {
                steps.extend(put_right(view, slot, pod).filter(|step| matches!(step.act, PodAction::Nothing)));
            }
            return false;
        }
        steps.extend(put_right(view, slot, pod));
    }
    true
}

/// What an existing pod lacks, if anything.
fn put_right(view: &View<'_>, slot: &Slot<'_>, pod: &Arc<Pod>) -> impl Iterator<Item = Step> {
    let mut claims = claims(view, slot, false);
    if pod.status.phase != "Pending" {
        // Claims are made for pods that can't start without them, and not behind the back of those that run.
        claims.create.clear();
    }
    let act = if !identity::has_its_label(pod) {
        PodAction::Label(pod.clone())
    } else if !identity::has_its_storage(view.set, slot.ordinal, pod) {
        PodAction::LacksStorage
    } else {
        PodAction::Nothing
    };
    let idle = claims.is_empty() && matches!(act, PodAction::Nothing);
    (!idle).then(|| step(slot, claims, act)).into_iter()
}

fn holder<'a>(slot: &'a Slot<'_>, name: &'a str, condemned: bool) -> Holder<'a> {
    let uid = slot.pod.map_or("", |pod| &pod.metadata.uid);
    Holder { name, uid, condemned }
}

/// A claim of this place still belongs to a pod that was to take it along.
fn must_wait_for_claims(view: &View<'_>, slot: &Slot<'_>) -> bool {
    let name = identity::pod_name(view.set, slot.ordinal);
    let holder = holder(slot, &name, false);
    identity::claim_names(view.set, slot.ordinal)
        .filter_map(|(_, claim)| (view.claim)(&claim))
        .any(|claim| retention::is_left_over(view.set, &holder, &claim.metadata))
}

fn claims(view: &View<'_>, slot: &Slot<'_>, condemned: bool) -> Claims {
    let name = identity::pod_name(view.set, slot.ordinal);
    let holder = holder(slot, &name, condemned);
    let mut claims = Claims::default();
    for (template, (_, name)) in identity::claim_names(view.set, slot.ordinal).enumerate() {
        let Some(claim) = (view.claim)(&name) else {
            if !condemned {
                let owners = retention::wanted(view.set, &holder);
                claims.create.push((template, owners));
            }
            continue;
        };
        if claim.metadata.is_deleted() {
            claims.leaving = Some(name.clone());
        }
        match retention::plan(view.set, &holder, &claim.metadata) {
            Owners::AsTheyAre => {}
            Owners::Set(owners) => claims.owners.push((claim, owners)),
            Owners::Conflict(owners) => {
                // Once it is as it stays, there is nothing more to be said.
                if let Some(owners) = owners {
                    claims.conflicts.push(name);
                    claims.owners.push((claim, owners));
                }
            }
        }
    }
    claims
}

/// Pods beyond the wanted ones go, the highest first. False: one of them is awaited.
fn shrink(view: &View<'_>, condemned: &[Slot<'_>], steps: &mut Vec<Step>) -> bool {
    let delete = |slot: &Slot<'_>| {
        let pod = slot.pod.expect("only pods are condemned");
        step(slot, Claims::default(), PodAction::Delete(pod.clone()))
    };
    if !view.in_order() {
        steps.extend(condemned.iter().filter(|slot| !slot.is_leaving()).map(delete));
        return true;
    }
    let Some(highest) = condemned.first() else { return true };
    // In order, and only while all below it are well: it may be the lowest one that is not, but no other.
    let lowest_unwell = condemned.iter().rev().find(|slot| !view.is_well(slot));
    let is_lowest = lowest_unwell.is_some_and(|slot| slot.ordinal == highest.ordinal);
    // Differs from upstream in letting one go that has ended: nobody can wait for it to be well.
    let may_go = highest
        .pod
        .is_some_and(|pod| is_lowest || pod.is_terminal() || (is_running_and_ready(pod) && view.is_available(pod)));
    if !highest.is_leaving() && may_go {
        steps.push(delete(highest));
    }
    false
}

/// Old pods that the update is to replace, as many as may be missing.
fn update(view: &View<'_>, slots: &[Slot<'_>], plan: &mut Plan) {
    let rolling = view.set.spec.update_strategy.rolling_update.as_ref();
    let limit = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let first = usize::try_from(view.partition()).unwrap_or(0).min(slots.len());
    let candidates = slots[first..].iter().rev();
    let outdated = |slot: &&Slot<'_>| {
        let pod = slot.pod.filter(|pod| !pod.metadata.is_deleted() && !pod.is_terminal());
        pod.is_some_and(|pod| revision(pod) != view.update)
    };
    let goes: Vec<&Slot<'_>> = match limit {
        // One at a time, and only if all above it are well.
        // Differs from upstream in nothing but its gate: there, too, this is what is done without `maxUnavailable`.
        None => {
            let reached = candidates.clone().find(|slot| outdated(slot) || !view.is_well(slot));
            reached.into_iter().filter(outdated).collect()
        }
        Some(limit) => {
            let total = identity::replicas(view.set);
            let limit = IntOrPercent::parse(limit).map_or(1, |limit| limit.of(total, Round::Down).max(1));
            let missing = slots.iter().filter(|slot| !view.is_well(slot)).count();
            let more = usize::try_from(limit).unwrap_or(0).saturating_sub(missing);
            candidates.filter(outdated).take(more).collect()
        }
    };
    for slot in goes {
        let pod = slot.pod.expect("only a pod can be outdated");
        plan.status.current_replicas -= i64::from(revision(pod) == view.current);
        plan.phases[3].push(step(slot, Claims::default(), PodAction::Delete(pod.clone())));
    }
}

fn status(view: &View<'_>, slots: &[Slot<'_>], condemned: &[Slot<'_>]) -> StatefulSetStatus {
    let mut status = StatefulSetStatus {
        observed_generation: view.set.metadata.generation,
        current_revision: view.current.to_string(),
        update_revision: view.update.to_string(),
        collision_count: Some(view.set.status.collision_count.unwrap_or(0)),
        ..StatefulSetStatus::default()
    };
    for pod in slots.iter().chain(condemned).filter_map(|slot| slot.pod) {
        status.replicas += 1;
        if is_running_and_ready(pod) {
            status.ready_replicas += 1;
            status.available_replicas += i64::from(view.is_available(pod));
        }
        if !pod.metadata.is_deleted() {
            status.current_replicas += i64::from(revision(pod) == view.current);
            status.updated_replicas += i64::from(revision(pod) == view.update);
        }
    }
    status
}

/// When all pods are of the new revision, and ready, it is the current one.
fn complete_update(view: &View<'_>, status: &mut StatefulSetStatus) {
    let wanted = identity::replicas(view.set);
    let all = [status.updated_replicas, status.ready_replicas, status.replicas] == [wanted; 3];
    if all && view.set.spec.update_strategy.r#type == "RollingUpdate" {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
}

/// Ready pods that do not count as available yet will, without any change to them.
fn next_available(view: &View<'_>) -> Option<Duration> {
    let min_ready = Duration::from_secs(view.set.spec.min_ready_seconds.into());
    let times = view.pods.iter().filter_map(|pod| pod.available_at(min_ready));
    let next = times.filter(|at| *at > view.now).min()?;
    Some(next.duration_since(view.now).try_into().unwrap_or_default())
}

/// Revisions beyond the limit that nothing is made from. `sorted`: all, the oldest first.
pub(super) fn revisions_to_forget(view: &View<'_>, sorted: &[Arc<ControllerRevision>]) -> Vec<Arc<ControllerRevision>> {
    let in_use = |r: &ControllerRevision| {
        let name = r.metadata.name.as_str();
        name == view.current || name == view.update || view.pods.iter().any(|pod| revision(pod) == name)
    };
    let limit = usize::try_from(view.set.spec.revision_history_limit.unwrap_or(10)).unwrap_or(usize::MAX);
    let unused = sorted.iter().filter(|r| !in_use(r)).count();
    revisions::oldest_unused(sorted, in_use, unused.saturating_sub(limit))
}
