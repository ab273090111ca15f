//! Changes made in the core's own state, the question asked, and everything put back.

use std::sync::Arc;

use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::cycle::ScheduleFailure;
use orlop_scheduler::model::{Node, Pod};

use super::edit::{Edit, edited_node, edited_pod, node_like};
use crate::world::World;

/// What came of a trial that placed the pod.
#[derive(Clone, Debug)]
pub struct Trial {
    pub node: String,
    pub side_effects: Vec<String>,
}

/// What was changed.
#[derive(Default)]
pub(super) struct Undo {
    nodes: Vec<Node>,
    added: Vec<String>,
    evicted: Vec<Arc<PodInfo>>,
}

/// Makes those of the changes that are about the cluster.
pub(super) fn apply(world: &mut World, edits: &[Edit]) -> Undo {
    let mut undo = Undo::default();
    for edit in edits {
        match edit {
            Edit::Uncordon { node }
            | Edit::RemoveTaint { node, .. }
            | Edit::SetLabel { node, .. }
            | Edit::RemoveLabel { node, .. } => {
                // All changes of a node at once.
                let Some(before) = world.nodes.get(node) else { continue };
                if undo.nodes.iter().any(|n| n.metadata.name == *node) {
                    continue;
                }
                world.cluster.observe_node(&edited_node(before, edits));
                undo.nodes.push(before.clone());
            }
            Edit::AddNode { like, name } => {
                if let Some(model) = world.nodes.get(like) {
                    world.cluster.observe_node(&node_like(model, name));
                    undo.added.push(name.clone());
                }
            }
            Edit::Evict { uid, .. } => {
                let victim = world.cluster.placed(uid).map(|(pod, _)| pod.clone());
                world.cluster.remove_pod(uid);
                undo.evicted.extend(victim);
            }
            _ => {}
        }
    }
    undo
}

pub(super) fn revert(world: &mut World, undo: Undo) {
    for pod in undo.evicted {
        world.cluster.add_pod(pod);
    }
    for name in undo.added {
        world.cluster.remove_node(&name);
    }
    for node in undo.nodes {
        world.cluster.observe_node(&node);
    }
}

/// Makes the changes, lets the scheduler decide, and takes the changes back. None if it places the pod nowhere.
pub fn place_with(world: &mut World, pod: &Pod, edits: &[Edit]) -> Option<Trial> {
    world.reseed();
    let edited = edited_pod(pod, edits)?;
    let profile = world.profile_of(&edited.spec.scheduler_name)?;
    let info = world.cluster.decode(edited);
    let plugins = &world.core.profiles[profile];
    let mut gates = plugins
        .pre_enqueue
        .iter()
        .filter_map(|place| plugins.plugins[*place].pre_enqueue());
    if gates.any(|gate| gate.pre_enqueue(&info).is_err()) {
        return None;
    }
    let undo = apply(world, edits);
    let trial = decide(world, profile, &info, &undo);
    revert(world, undo);
    trial
}

fn decide(world: &mut World, profile: usize, pod: &Arc<PodInfo>, undo: &Undo) -> Option<Trial> {
    let choice = match world.core.schedule(profile, &world.cluster, pod) {
        Ok(choice) => choice,
        Err(ScheduleFailure::Unfit(_) | ScheduleFailure::Error(_)) => return None,
    };
    let node = world.node_name(choice.node);
    let mut side_effects = vec![];
    if !undo.evicted.is_empty() {
        world.cluster.assume(pod, choice.node);
        for victim in &undo.evicted {
            side_effects.extend(displaced(world, victim));
        }
        world.cluster.forget(&pod.uid);
    }
    Some(Trial { node, side_effects })
}

/// What becomes of a pod that was evicted, once the other one has its place.
fn displaced(world: &mut World, victim: &Arc<PodInfo>) -> Vec<String> {
    let mut effects = vec![];
    let again = Arc::new(victim.unbound());
    let profile = world.profile_of(&victim.class.spec.scheduler_name);
    let name = &victim.key;
    let owner = victim.controller.as_ref();
    effects.push(match (owner, profile) {
        (None, _) => format!("{name} has no owner: nothing makes it anew"),
        (Some(_), None) => format!("{name} is made anew by its owner, and placed by another scheduler"),
        (Some(owner), Some(profile)) => match world.core.schedule(profile, &world.cluster, &again) {
            Ok(choice) => format!(
                "{name} is made anew by {} {} and goes to {}",
                owner.kind,
                owner.name,
                world.node_name(choice.node)
            ),
            Err(_) => format!("{name} is made anew by {} {} and stays pending", owner.kind, owner.name),
        },
    });
    let budgets = world.cluster.budgets.iter().filter(|(key, budget)| {
        let selects = budget
            .spec
            .selector
            .as_ref()
            .is_some_and(|s| s.matches(victim.label_set()));
        key.namespace == *victim.namespace() && selects && budget.status.disruptions_allowed < 1
    });
    effects.extend(budgets.map(|(key, _)| format!("PodDisruptionBudget {key} allows no eviction of {name} now")));
    effects
}
