//! Changes of the cluster: one node's cordon, taints and labels, the eviction of one pod, one more node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::cluster::resources::Resources;
use orlop_scheduler::cluster::topology::PodSelector;

use super::atoms::{admission, node_atoms};
use super::budget::Budget;
use super::edit::{Edit, edited_pod, is_of_condition};
use super::pod_search::subsets;
use super::trial::{apply, place_with, revert};
use super::{CHANGES_MAX, Fix, Search, Target};
use crate::pod::{NodeRow, PluginRejection};
use crate::world::World;

const NODE_CHANGES: &str = "changes of nodes";
const EVICTIONS: &str = "evictions";
/// Fixes of a kind that are reported, at most.
const MAX_FIXES: usize = 3;
/// Evictions that are compared; the one with the least harm is reported first.
const COMPARED: usize = 12;
/// Nodes that evictions are tried for, those that lack least, and pods of each.
const ROWS: usize = 16;
const VICTIMS: usize = 64;
/// Shapes of nodes that are tried.
const SHAPES: usize = 16;
/// Kept for the changes of the pod, which are searched last.
const RESERVE: usize = 4;

impl Search<'_> {
    pub(super) fn on_cluster(&self, world: &mut World, budget: &mut Budget) -> Vec<Fix> {
        let first = admission(world, self.pod);
        let Some(asked) = self.asked(world, &first) else {
            return vec![];
        };
        let mut found = vec![];
        for size in 1..=CHANGES_MAX.saturating_sub(first.len()) {
            self.of_size(world, budget, &asked, size, &mut found);
            if !found.is_empty() {
                break;
            }
        }
        self.verified(world, &first, found)
    }

    /// The pod as it would be without what keeps it from being tried, and the profile that decides.
    fn asked(&self, world: &mut World, first: &[Edit]) -> Option<Asked> {
        let edited = edited_pod(self.pod, first)?;
        let profile = world.profile_of(&edited.spec.scheduler_name)?;
        Some(Asked {
            pod: world.cluster.decode(edited),
            profile,
        })
    }

    /// Sets of exactly this size.
    fn of_size(&self, world: &mut World, budget: &mut Budget, asked: &Asked, size: usize, found: &mut Vec<Vec<Edit>>) {
        let reserve = budget.left() / RESERVE;
        let mut kinds: BTreeMap<Vec<&'static str>, usize> = BTreeMap::new();
        for row in &self.explanation.node_details {
            let Some(atoms) = node_atoms(world, &asked.pod, &row.name) else {
                continue;
            };
            for set in subsets(atoms.len(), size) {
                let edits: Vec<Edit> = set.iter().map(|i| atoms[*i].clone()).collect();
                let kind: Vec<&'static str> = edits.iter().map(kind).collect();
                if labels_twice(&edits) || kinds.get(&kind).is_some_and(|n| *n >= MAX_FIXES) || !covers(row, &edits) {
                    continue;
                }
                if !budget.take(1, reserve, NODE_CHANGES) {
                    return;
                }
                if asked.fits_with(world, &row.name, &edits) {
                    *kinds.entry(kind).or_default() += 1;
                    found.push(edits);
                }
            }
        }
        self.with_eviction(world, budget, asked, size, found);
    }

    /// Sets of this size of which one change is an eviction.
    fn with_eviction(
        &self,
        world: &mut World,
        budget: &mut Budget,
        asked: &Asked,
        size: usize,
        found: &mut Vec<Vec<Edit>>,
    ) {
        let reserve = budget.left() / RESERVE;
        let mut evictions = 0;
        let rows: Vec<&NodeRow> = (self.explanation.node_details.iter())
            .filter(|row| some_may_go(row))
            .collect();
        if rows.len() > ROWS {
            budget.exhaust(EVICTIONS);
        }
        for row in rows.into_iter().take(ROWS) {
            let Some(atoms) = node_atoms(world, &asked.pod, &row.name) else {
                continue;
            };
            for set in subsets(atoms.len(), size - 1) {
                let mut edits: Vec<Edit> = set.iter().map(|i| atoms[*i].clone()).collect();
                if labels_twice(&edits) || !covers_but_evictable(row, &edits) {
                    continue;
                }
                let victims = victims(world, &asked.pod, row);
                if victims.len() > VICTIMS {
                    budget.exhaust(EVICTIONS);
                }
                for victim in victims.into_iter().take(VICTIMS) {
                    if evictions >= COMPARED {
                        return;
                    }
                    if !budget.take(1, reserve, EVICTIONS) {
                        return;
                    }
                    edits.push(evict(&victim));
                    if asked.fits_with(world, &row.name, &edits) {
                        evictions += 1;
                        found.push(edits.clone());
                    }
                    edits.pop();
                }
            }
        }
    }

    fn verified(&self, world: &mut World, first: &[Edit], found: Vec<Vec<Edit>>) -> Vec<Fix> {
        let mut fixes: Vec<(usize, Fix)> = vec![];
        for set in found {
            let edits: Vec<Edit> = first.iter().cloned().chain(set).collect();
            let Some(trial) = place_with(world, self.pod, &edits) else {
                continue;
            };
            let pending = (trial.side_effects.iter()).filter(|text| !text.contains(" and goes to "));
            let harm = pending.count();
            fixes.push((harm, Fix::new(Target::Cluster, self.key, trial, edits)));
        }
        // Least harm first; of evictions only the best.
        fixes.sort_by_key(|(harm, _)| *harm);
        let mut evictions = 0;
        fixes.retain(|(_, fix)| {
            let evicts = fix
                .changes
                .iter()
                .any(|change| matches!(change.edit, Edit::Evict { .. }));
            evictions += usize::from(evicts);
            !evicts || evictions <= MAX_FIXES
        });
        fixes.into_iter().map(|(_, fix)| fix).collect()
    }

    /// One more node like one that is there: the smallest that will do.
    pub(super) fn new_node(&self, world: &mut World, budget: &mut Budget) -> Option<Fix> {
        let first = admission(world, self.pod);
        let asked = self.asked(world, &first)?;
        let name = (1..)
            .map(|n| format!("new-node-{n}"))
            .find(|name| !world.nodes.contains_key(name))?;
        for like in shapes(world).into_iter().take(SHAPES) {
            let add = Edit::AddNode {
                like,
                name: name.clone(),
            };
            if !budget.take(1, 0, "new nodes") {
                return None;
            }
            if asked.fits_with(world, &name, std::slice::from_ref(&add)) {
                let edits: Vec<Edit> = first.iter().cloned().chain([add]).collect();
                let trial = place_with(world, self.pod, &edits)?;
                return Some(Fix::new(Target::NewNode, self.key, trial, edits));
            }
        }
        None
    }
}

struct Asked {
    pod: Arc<PodInfo>,
    profile: usize,
}

impl Asked {
    /// Whether the pod fits on that node once the changes are made.
    fn fits_with(&self, world: &mut World, node: &str, edits: &[Edit]) -> bool {
        let undo = apply(world, edits);
        let id = world.cluster.node_named(node).map(|node| node.id);
        let fits = id.is_some_and(|id| world.core.fits_on(self.profile, &world.cluster, &self.pod, id));
        revert(world, undo);
        fits
    }
}

fn kind(edit: &Edit) -> &'static str {
    match edit {
        Edit::Uncordon { .. } => "uncordon",
        Edit::RemoveTaint { .. } => "taint",
        Edit::SetLabel { .. } | Edit::RemoveLabel { .. } => "label",
        _ => "",
    }
}

/// A label can have one value only.
fn labels_twice(edits: &[Edit]) -> bool {
    let key = |edit: &Edit| match edit {
        Edit::SetLabel { key, .. } | Edit::RemoveLabel { key, .. } => Some(key.clone()),
        _ => None,
    };
    let mut seen = BTreeSet::new();
    edits.iter().filter_map(key).any(|key| !seen.insert(key))
}

/// Whether these changes are about everything that rejects the node. Labels also decide about what is counted.
fn covers(row: &NodeRow, edits: &[Edit]) -> bool {
    let labels = edits
        .iter()
        .any(|edit| matches!(edit, Edit::SetLabel { .. } | Edit::RemoveLabel { .. }));
    let taints = edits
        .iter()
        .any(|edit| matches!(edit, Edit::RemoveTaint { .. } | Edit::Uncordon { .. }));
    let cordon = edits.iter().any(|edit| matches!(edit, Edit::Uncordon { .. }));
    row.rejections.iter().all(|rejection| match rejection.plugin {
        "TaintToleration" => taints,
        "NodeUnschedulable" => cordon,
        "NodeAffinity" => labels,
        "PodTopologySpread" => labels || taints,
        "InterPodAffinity" | "VolumeZone" | "VolumeBinding" => labels,
        _ => false,
    })
}

/// The same, but for what evicting a pod could change.
fn covers_but_evictable(row: &NodeRow, edits: &[Edit]) -> bool {
    let mut rest = row.clone();
    rest.rejections.retain(|rejection| !is_evictable(rejection.plugin));
    covers(&rest, edits)
}

/// Plugins whose verdict depends on which pods there are.
fn is_evictable(plugin: &str) -> bool {
    const PLUGINS: [&str; 6] = [
        "NodeResourcesFit",
        "NodePorts",
        "PodTopologySpread",
        "InterPodAffinity",
        "VolumeRestrictions",
        "NodeVolumeLimits",
    ];
    PLUGINS.contains(&plugin)
}

fn some_may_go(row: &NodeRow) -> bool {
    row.rejections
        .iter()
        .any(|rejection| is_evictable(rejection.plugin) && may_change(rejection))
}

/// Upstream's preemption takes unmet affinity for final. Yet the first pod of a group may go anywhere, so that evicting the
/// others helps.
fn may_change(rejection: &PluginRejection) -> bool {
    rejection.preemption_may_help || rejection.plugin == "InterPodAffinity"
}

/// Pods that could be evicted for it, the least important first: those on the node, then those that the pod minds elsewhere.
fn victims(world: &World, pod: &PodInfo, row: &NodeRow) -> Vec<Arc<PodInfo>> {
    let Some(node) = world.cluster.node_named(&row.name) else {
        return vec![];
    };
    let mut here: Vec<Arc<PodInfo>> = node.pods.iter().filter(|p| may_go(p)).cloned().collect();
    here.sort_by(|a, b| a.priority().cmp(&b.priority()).then_with(|| a.key.cmp(&b.key)));
    let elsewhere = ["PodTopologySpread", "InterPodAffinity", "VolumeRestrictions"];
    if row
        .rejections
        .iter()
        .any(|r| elsewhere.contains(&r.plugin) && may_change(r))
    {
        let others = world
            .cluster
            .pods()
            .filter(|p| may_go(p) && p.node_name.as_deref() != Some(&*row.name));
        let mut others: Vec<Arc<PodInfo>> = others.filter(|p| minds(world, pod, p)).cloned().collect();
        others.sort_by(|a, b| a.priority().cmp(&b.priority()).then_with(|| a.key.cmp(&b.key)));
        here.extend(others);
    }
    here
}

/// Pods of DaemonSets come back where they were, and static pods can't be evicted.
fn may_go(pod: &PodInfo) -> bool {
    let owner = pod.controller.as_ref().map_or("", |owner| owner.kind.as_str());
    !matches!(owner, "DaemonSet" | "Node") && !pod.is_terminating()
}

/// Whether some rule of one of them could be about the other.
fn minds(world: &World, pod: &PodInfo, other: &PodInfo) -> bool {
    let spec = &pod.class.spec;
    let namespaces = &world.cluster.namespaces;
    let near = spec.affinity.pod_affinity.required.iter();
    let terms = near.chain(&spec.affinity.pod_anti_affinity.required);
    let mut terms = terms.map(|term| PodSelector::asked(term, pod.namespace()));
    let same_namespace = pod.namespace() == other.namespace();
    let mut spread = spec.topology_spread_constraints.iter();
    terms.any(|selector| selector.matches(&other.labels.set, namespaces))
        || !other.class.spec.affinity.pod_anti_affinity.required.is_empty()
        || (same_namespace
            && (!pod.volumes.is_empty() && !other.volumes.is_empty()
                || spread.any(|c| c.label_selector.as_ref().is_some_and(|s| s.matches(other.label_set())))))
}

fn evict(pod: &PodInfo) -> Edit {
    Edit::Evict {
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.uid.to_string(),
        node: pod.node_name.as_deref().unwrap_or_default().to_string(),
    }
}

/// A node of each shape, the smallest first.
fn shapes(world: &World) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut all = vec![];
    for (name, node) in &world.nodes {
        let mut labels = node.metadata.labels.clone();
        labels.remove("kubernetes.io/hostname");
        let taints = node.spec.taints.iter().filter(|taint| !is_of_condition(taint));
        let taints: Vec<String> = taints.map(|t| format!("{}={}:{}", t.key, t.value, t.effect)).collect();
        if seen.insert(format!("{:?} {labels:?} {taints:?}", node.status.allocatable)) {
            let size = Resources::of_node(&node.status.allocatable);
            all.push(((size.milli_cpu, size.memory, name.clone()), name.clone()));
        }
    }
    all.sort();
    all.into_iter().map(|(_, name)| name).collect()
}
