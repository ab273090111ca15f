//! Random schedules over the model.

use orlop_base::Random;
use serde_json::json;

use super::invariants::{self, Limits};
use super::model::{NODES, World, WriteResult, new_deployment};
use crate::objects::{Deployment, OwnerReference, Pod};

/// Names the seed if the schedule fails.
pub(super) struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule failed; run it alone with ORLOP_SEED={}", self.0);
        }
    }
}

/// Rounds in which all must have come to rest.
const ROUNDS_MAX: u32 = 300;

pub(super) fn run(seed: u64) {
    let _seed = Seed(seed);
    let mut world = World::new(seed);
    // Every second schedule: nobody but the controllers takes pods away, so that the limits must hold.
    let calm = seed.is_multiple_of(2);
    add_foreign_pod(&mut world);
    let mut deployment = new_deployment(&mut world);
    draw_size(&mut world.random, &mut deployment);
    draw_strategy(&mut world.random, &mut deployment);
    if !calm && world.pick(4) == 0 {
        deployment.spec.min_ready_seconds = 3;
    }
    world.limits = calm.then(|| Limits::from_deployment(&deployment));
    world.put_deployment(deployment);
    if world.pick(2) == 0 {
        quiesce(&mut world);
    }
    for _ in 0..1 + world.pick(4) {
        for _ in 0..1 + world.pick(2) {
            user_acts(&mut world, calm);
            for _ in 0..world.pick(60) {
                step(&mut world, calm);
                invariants::not_too_many(&world);
            }
        }
        if world.pick(2) == 0 {
            quiesce(&mut world);
        }
    }
    quiesce(&mut world);
}

fn add_foreign_pod(world: &mut World) {
    let mut pod = Pod {
        metadata: world.new_meta("foreign"),
        ..Pod::default()
    };
    pod.metadata.labels.insert("app".to_string(), "web".to_string());
    pod.metadata.owner_references = vec![OwnerReference {
        uid: "foreign".to_string(),
        controller: Some(true),
        ..OwnerReference::default()
    }];
    world.put_pod(pod);
}

pub(super) fn draw_size(random: &mut Random, deployment: &mut Deployment) {
    deployment.spec.replicas = Some(random.below(9) as i64);
}

fn draw_strategy(random: &mut Random, deployment: &mut Deployment) {
    let strategy = &mut deployment.spec.strategy;
    if random.below(5) == 0 {
        strategy.r#type = "Recreate".to_string();
        return;
    }
    strategy.r#type = "RollingUpdate".to_string();
    let (surge, unavailable) = draw_limits(random);
    strategy.rolling_update.max_surge = Some(surge);
    strategy.rolling_update.max_unavailable = Some(unavailable);
}

/// Numbers and percentages; not both nothing.
pub(super) fn draw_limits(random: &mut Random) -> (serde_json::Value, serde_json::Value) {
    let mut draw = |least: u64| match random.below(2) {
        0 => json!(least + random.below(3)),
        _ => json!(format!("{}%", least * 10 + 25 * random.below(4))),
    };
    let surge = draw(0);
    let least = u64::from(surge == 0 || surge == "0%");
    (surge, draw(least))
}

fn user_acts(world: &mut World, calm: bool) {
    let Some(deployment) = world.deployment().cloned() else {
        let mut deployment = new_deployment(world);
        draw_size(&mut world.random, &mut deployment);
        draw_strategy(&mut world.random, &mut deployment);
        return world.put_deployment(deployment);
    };
    let mut deployment = Deployment::clone(&deployment);
    match world.pick(if calm { 10 } else { 11 }) {
        0..=2 => draw_size(&mut world.random, &mut deployment),
        3..=6 => deployment.spec.template.spec = json!({"image": world.pick(4)}),
        7 => draw_strategy(&mut world.random, &mut deployment),
        8 => deployment.spec.paused = !deployment.spec.paused,
        9 => {
            draw_size(&mut world.random, &mut deployment);
            deployment.spec.template.spec = json!({"image": world.pick(4)});
        }
        _ => {
            let name = deployment.metadata.name.clone();
            return world.remove_deployment(&name);
        }
    }
    deployment.metadata.generation += 1;
    world.limits = world
        .limits
        .map(|limits| limits.or(Limits::from_deployment(&deployment)));
    world.put_deployment(deployment);
}

fn step(world: &mut World, calm: bool) {
    match world.pick(if calm { 34 } else { 40 }) {
        0..=5 => show_some(world),
        6..=8 => world.begin_deployment_turn(),
        9..=13 => {
            if let Some(name) = pick_name(world, |w| w.sets.shown.keys().cloned().collect()) {
                world.begin_set_turn(&name);
            }
        }
        14..=24 => step_some_turn(world, calm),
        25..=30 => {
            if let Some(name) = pick_name(world, |w| w.pods.all.keys().cloned().collect()) {
                world.run_pod(&name);
            }
        }
        31 => {
            world.collect_garbage();
        }
        32 => {
            let seconds = world.pick(5) as i64;
            world.pass(seconds);
        }
        33 => {
            if world.pick(4) == 0 {
                world.restart();
            }
        }
        _ => something_breaks(world),
    }
}

fn pick_name(world: &mut World, names: impl Fn(&World) -> Vec<String>) -> Option<String> {
    let mut names = names(world);
    let place = match names.len() {
        0 => return None,
        some => world.pick(some as u64) as usize,
    };
    Some(names.swap_remove(place))
}

fn show_some(world: &mut World) {
    let count = 1 + world.pick(4) as usize;
    match world.pick(3) {
        0 => world.deployments.show(count),
        1 => world.sets.show(count),
        _ => world.pods.show(count),
    }
}

fn step_some_turn(world: &mut World, calm: bool) {
    let Some(key) = pick_name(world, |w| w.pending.keys().cloned().collect()) else {
        return;
    };
    let fate = match world.pick(20) {
        0 | 1 => WriteResult::Failed,
        2 => WriteResult::Lost,
        _ => WriteResult::Done,
    };
    // What nobody was told of may be one too many for a while: the limits are for those who know what they did.
    let fate = if calm && fate == WriteResult::Lost {
        WriteResult::Failed
    } else {
        fate
    };
    world.step_turn(&key, fate);
}

/// Pods are killed, fail, or are no longer ready; a node is cut off; somebody meddles with sets and labels.
fn something_breaks(world: &mut World) {
    if world.pick(3) == 0 {
        world.partitioned = match world.partitioned {
            Some(_) => None,
            None => Some(world.pick(NODES)),
        };
        return;
    }
    if world.pick(8) == 0 {
        return meddle_with_set(world);
    }
    let Some(name) = pick_name(world, |w| {
        w.pods.all.keys().filter(|name| *name != "foreign").cloned().collect()
    }) else {
        return;
    };
    let pod = world.pods.all[&name].clone();
    let mut changed = Pod::clone(&pod);
    match world.pick(4) {
        0 | 1 => return world.delete_pod(&pod),
        2 if !pod.spec.node_name.is_empty() => {
            changed.status.phase = "Failed".to_string();
            changed.status.conditions = vec![world.ready(false)];
        }
        3 if pod.is_ready() => changed.status.conditions = vec![world.ready(false)],
        _ => {
            // Out of the set's sight, or back again.
            let hidden = changed.metadata.labels.remove("app").is_some();
            if !hidden {
                changed.metadata.labels.insert("app".to_string(), "web".to_string());
            }
        }
    }
    world.put_pod(changed);
}

fn meddle_with_set(world: &mut World) {
    let Some(name) = pick_name(world, |w| w.sets.all.keys().cloned().collect()) else {
        return;
    };
    if world.pick(2) == 0 {
        return world.remove_set(&name);
    }
    let mut set = crate::objects::ReplicaSet::clone(&world.sets.all[&name]);
    set.spec.replicas = Some(world.pick(6) as i64);
    set.metadata.generation += 1;
    world.put_set(set);
}

/// Every request works and every watch is served until nothing changes any more; then the desired state must be there.
fn quiesce(world: &mut World) {
    world.partitioned = None;
    let mut quiet = 0;
    for _ in 0..ROUNDS_MAX {
        let before = world.revision();
        world.show_everything();
        world.collect_garbage();
        for name in world.pods.all.keys().cloned().collect::<Vec<_>>() {
            while name != "foreign" && world.run_pod(&name) {}
        }
        world.show_everything();
        for name in world.sets.shown.keys().cloned().collect::<Vec<_>>() {
            world.begin_set_turn(&name);
        }
        world.begin_deployment_turn();
        while let Some(key) = world.pending.keys().next_back().cloned() {
            world.step_turn(&key, WriteResult::Done);
            invariants::not_too_many(world);
        }
        world.pass(1);
        quiet = if world.revision() == before { quiet + 1 } else { 0 };
        // Longer than pods must be ready to count.
        if quiet > 5 {
            invariants::quiet_world_is_as_wanted(world);
            world.limits = invariants::limits_when_quiet(world);
            return;
        }
    }
    panic!("no rest after {ROUNDS_MAX} rounds");
}
