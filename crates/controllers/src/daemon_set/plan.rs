//! On which nodes to make a pod, which pods to delete, and what to say of it.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::int_or_string::{Round, scaled};
use rustc_hash::{FxHashMap, FxHashSet};

use super::failures::{BackoffKey, Failures};
use super::placement::{self, Fit, Placement};
use super::rolling;
use crate::objects::daemon_set::DaemonSetStatus;
use crate::objects::{ControllerRevision, DaemonSet, Node, Pod};
use crate::revisions;

/// Pods made, and pods deleted, in one reconcile at most. Upstream: BurstReplicas.
const BURST: usize = 250;
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
pub(super) const TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// What a reconcile sees.
pub(super) struct View<'a> {
    pub set: &'a DaemonSet,
    /// Of the present revision.
    pub hash: &'a str,
    pub placement: &'a Placement,
    pub nodes: &'a [Arc<Node>],
    pub pods: &'a [Arc<Pod>],
    pub failures: &'a Failures,
    pub now: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Names of nodes.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Of those to delete, the ones that ended.
    pub ended: Vec<Ended>,
    pub status: DaemonSetStatus,
    pub look_again: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub pod: Arc<Pod>,
    pub node: String,
}

/// A node and the set's pods there, the one that counts first.
pub(super) struct Site<'a> {
    pub node: &'a Node,
    pub fit: Fit,
    pub pods: Vec<&'a Arc<Pod>>,
}

impl View<'_> {
    pub(super) fn min_ready(&self) -> Duration {
        Duration::from_secs(self.set.spec.min_ready_seconds.into())
    }

    pub(super) fn is_available(&self, pod: &Pod) -> bool {
        pod.is_available(self.min_ready(), self.now)
    }

    /// Made from the present template.
    pub(super) fn is_updated(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        let by_hash = !self.hash.is_empty() && meta.label(revisions::POD_LABEL) == Some(self.hash);
        let generation = template_generation(self.set);
        by_hash || (generation.is_some() && meta.label(TEMPLATE_GENERATION_LABEL) == generation)
    }

    pub(super) fn is_rolling(&self) -> bool {
        self.set.spec.update_strategy.r#type == "RollingUpdate"
    }

    /// Pods beyond one a node, of so many nodes.
    pub(super) fn max_surge(&self, nodes: i64) -> i64 {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let rolling = rolling.filter(|_| self.is_rolling());
        rolling.map_or(0, |r| scaled(r.max_surge.as_ref(), nodes, Round::Up))
    }

    pub(super) fn max_unavailable(&self, nodes: i64) -> i64 {
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let rolling = rolling.filter(|_| self.is_rolling());
        rolling.map_or(0, |r| scaled(r.max_unavailable.as_ref(), nodes, Round::Up))
    }

    pub(super) fn place(&self, node: &str) -> BackoffKey {
        BackoffKey {
            uid: self.set.metadata.uid.clone(),
            generation: self.set.status.observed_generation,
            node: node.to_string(),
        }
    }
}

/// What the API server counts template changes with, for clients from before there were revisions.
pub(super) fn template_generation(set: &DaemonSet) -> Option<&str> {
    let text = set.metadata.annotation(TEMPLATE_GENERATION)?;
    text.parse::<i64>().is_ok().then_some(text)
}

/// First that every node has what it should; only then, step by step, that it has the newest.
pub(super) fn plan(view: &View<'_>) -> Plan {
    let (sites, strays) = sites(view);
    let mut plan = Plan {
        status: status(view, &sites),
        ..Plan::default()
    };
    for site in &sites {
        plan_site(view, site, &mut plan);
    }
    // Nobody else deletes a pod that waits for a node which is gone.
    let waiting = |pod: &&&Arc<Pod>| pod.spec.node_name.is_empty() && !pod.metadata.is_deleted();
    plan.delete
        .extend(strays.iter().filter(waiting).map(|pod| (*pod).clone()));
    if plan.create.is_empty() && plan.delete.is_empty() && view.is_rolling() {
        rolling::plan(view, &sites, &mut plan);
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan.look_again = sooner(plan.look_again, next_available(view));
    plan
}

/// The nodes with their pods, and the pods whose node is not there.
fn sites<'a>(view: &View<'a>) -> (Vec<Site<'a>>, Vec<&'a Arc<Pod>>) {
    let mut on_node: FxHashMap<&str, Vec<&Arc<Pod>>> = FxHashMap::default();
    for pod in view.pods {
        // One that ended and is on its way out (a finalizer may hold it) is nobody's concern here.
        if pod.is_terminal() && pod.metadata.is_deleted() {
            continue;
        }
        if let Some(node) = placement::target(pod) {
            on_node.entry(node).or_default().push(pod);
        }
    }
    let sites = view.nodes.iter().map(|node| {
        let mut pods = on_node.remove(node.metadata.name.as_str()).unwrap_or_default();
        pods.sort_by(|a, b| by_age(a, b));
        let fit = view.placement.fit(node);
        Site { node, fit, pods }
    });
    let sites = sites.collect();
    let mut strays: Vec<_> = on_node.into_values().flatten().collect();
    strays.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    (sites, strays)
}

/// Those that the scheduler has placed first, then the oldest.
fn by_age(a: &Pod, b: &Pod) -> Ordering {
    let order = |pod: &Pod| (pod.spec.node_name.is_empty(), pod.metadata.creation_timestamp);
    order(a)
        .cmp(&order(b))
        .then_with(|| a.metadata.name.cmp(&b.metadata.name))
}

fn plan_site(view: &View<'_>, site: &Site<'_>, plan: &mut Plan) {
    let name = &site.node.metadata.name;
    match site.fit {
        Fit::Not => {
            let alive = site.pods.iter().filter(|pod| !pod.metadata.is_deleted());
            plan.delete.extend(alive.map(|pod| (*pod).clone()));
        }
        Fit::Runs if site.pods.is_empty() => plan.create.push(name.clone()),
        Fit::Runs | Fit::Keeps => {
            let living = clear_ended(view, site, plan);
            if view.max_surge(1) == 0 {
                // All but the oldest.
                plan.delete.extend(living.iter().skip(1).map(|pod| (*pod).clone()));
            } else if living.is_empty() && site.fit == Fit::Runs {
                // While a surge is allowed, a pod on its way out does not hold up the next one.
                plan.create.push(name.clone());
            } else {
                thin_out(view, &living, plan);
            }
        }
    }
}

/// Pods that ended make room, failed ones with a growing wait in between. What is left: the living.
fn clear_ended<'a>(view: &View<'_>, site: &Site<'a>, plan: &mut Plan) -> Vec<&'a Arc<Pod>> {
    let node = &site.node.metadata.name;
    let mut living = vec![];
    for pod in site.pods.iter().copied().filter(|pod| !pod.metadata.is_deleted()) {
        if !pod.is_terminal() {
            living.push(pod);
            continue;
        }
        if pod.status.phase == "Failed"
            && let Some(left) = view.failures.left(&view.place(node), view.now)
        {
            plan.look_again = sooner(plan.look_again, Some(left));
            continue;
        }
        plan.ended.push(Ended {
            pod: pod.clone(),
            node: node.clone(),
        });
        plan.delete.push(pod.clone());
    }
    living
}

/// With a surge a node may have two pods for a while: an old one that serves, and a new one that does not yet.
// Differs from upstream in keeping, of two of one kind, the one that serves, and not always the oldest: after two changes
// in a row both are old.
fn thin_out(view: &View<'_>, living: &[&Arc<Pod>], plan: &mut Plan) {
    if living.len() <= 1 {
        return;
    }
    let is_new = |pod: &Pod| pod.metadata.label(revisions::POD_LABEL) == Some(view.hash);
    let (mut new, mut old): (Vec<&Arc<Pod>>, Vec<_>) = living.iter().partition(|pod| is_new(pod));
    for alike in [&mut new, &mut old] {
        alike.sort_by_key(|pod| !view.is_available(pod));
        plan.delete.extend(alike.iter().skip(1).map(|pod| (*pod).clone()));
    }
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (!old.is_ready() || view.is_available(new))
    {
        plan.delete.push((*old).clone());
    }
}

fn status(view: &View<'_>, sites: &[Site<'_>]) -> DaemonSetStatus {
    let mut status = DaemonSetStatus {
        observed_generation: view.set.metadata.generation,
        collision_count: view.set.status.collision_count,
        ..DaemonSetStatus::default()
    };
    for site in sites {
        let runs = site.fit == Fit::Runs;
        status.desired_number_scheduled += i64::from(runs);
        let Some(pod) = site.pods.first() else { continue };
        if !runs {
            status.number_misscheduled += 1;
            continue;
        }
        status.current_number_scheduled += 1;
        status.number_ready += i64::from(pod.is_ready());
        status.number_available += i64::from(view.is_available(pod));
        status.updated_number_scheduled += i64::from(view.is_updated(pod));
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    status
}

/// Ready pods that do not count as available yet will, without any change to them.
fn next_available(view: &View<'_>) -> Option<Duration> {
    if view.min_ready().is_zero() {
        return None;
    }
    let times = view.pods.iter().filter_map(|pod| pod.available_at(view.min_ready()));
    let next = times.filter(|at| *at > view.now).min()?;
    Some(next.duration_since(view.now).try_into().unwrap_or_default())
}

fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// Revisions beyond the limit that no pod is made from. `old`: all but the present one, the oldest first.
pub(super) fn revisions_to_forget(
    set: &DaemonSet,
    old: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
) -> Vec<Arc<ControllerRevision>> {
    let limit = set.spec.revision_history_limit.unwrap_or(10);
    let too_many = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    if too_many == 0 {
        return vec![];
    }
    let live: FxHashSet<&str> = pods
        .iter()
        .filter_map(|pod| pod.metadata.label(revisions::POD_LABEL))
        .collect();
    revisions::oldest_unused(old, |revision| live.contains(hash_of(revision)), too_many)
}

/// One from before there was the label goes by its name.
pub(super) fn hash_of(revision: &ControllerRevision) -> &str {
    let meta = &revision.metadata;
    meta.label(revisions::POD_LABEL).unwrap_or(&meta.name)
}
