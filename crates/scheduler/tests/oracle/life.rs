//! One random cluster's life, lived by the core and by the oracle.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_base::Random;
use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::pod::{PodInfo, PodKey};
use orlop_scheduler::config::Config;
use orlop_scheduler::cycle::{Core, ScheduleFailure, ScheduleResult};
use orlop_scheduler::fit_error::FitError;
use orlop_scheduler::model::{Pod, PodSpec};
use orlop_scheduler::plugins;
use orlop_scheduler::preemption::{self as core_preemption, DefaultPreemption, Preemption};

use crate::filters::{Cycle, Rejected, Verdicts};
use crate::generate::{self, Dice, NAMESPACES};
use crate::preemption::{self, Plan, Victims};
use crate::scores::{scores, total};
use crate::world::World;

/// How often what happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub placed: usize,
    pub unfit: usize,
    pub preempting: usize,
    pub hopeless: usize,
    pub compared_scores: usize,
    pub promised: usize,
    /// By plugin.
    pub rejected: BTreeMap<&'static str, usize>,
    /// By plugin: how often its scores were not the same for all nodes.
    pub told_apart: BTreeMap<&'static str, usize>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.placed += other.placed;
        self.unfit += other.unfit;
        self.preempting += other.preempting;
        self.hopeless += other.hopeless;
        self.compared_scores += other.compared_scores;
        self.promised += other.promised;
        for (plugin, n) in &other.rejected {
            *self.rejected.entry(plugin).or_default() += n;
        }
        for (plugin, n) in &other.told_apart {
            *self.told_apart.entry(plugin).or_default() += n;
        }
    }
}

struct Life {
    seed: u64,
    loud: bool,
    dice: Dice,
    specs: Vec<PodSpec>,
    pods_made: usize,
    pending: Vec<Pod>,
    /// Uids of pods that are assumed, not yet confirmed.
    assumed: Vec<String>,
    world: World,
    cluster: Cluster,
    core: Core,
    tally: Tally,
    events: Vec<String>,
}

pub(crate) fn live(seed: u64, loud: bool) -> Tally {
    let profiles = plugins::profiles(&Config::default()).expect("the default configuration is sound");
    let mut dice = Dice(Random::seeded(seed));
    let specs = (0..2 + dice.below(5)).map(|_| generate::spec(&mut dice)).collect();
    let mut life = Life {
        seed,
        loud,
        dice,
        specs,
        pods_made: 0,
        pending: vec![],
        assumed: vec![],
        world: World::default(),
        cluster: Cluster::default(),
        core: Core::new(profiles, seed),
        tally: Tally::default(),
        events: vec![],
    };
    life.begin();
    for _ in 0..8 + life.dice.below(12) {
        for _ in 0..life.dice.below(4) {
            life.event();
        }
        life.schedule();
    }
    life.tally
}

impl Life {
    fn tell(&mut self, event: impl Into<String>) {
        let event = event.into();
        if self.loud {
            println!("{event}");
        }
        self.events.push(event);
    }

    fn begin(&mut self) {
        for name in NAMESPACES {
            self.relabel(name);
        }
        for i in 0..1 + self.dice.below(7) {
            self.put_node(&format!("node-{i}"));
        }
        for _ in 0..self.dice.below(12) {
            self.place_pod();
        }
        for _ in 0..self.dice.below(3) {
            self.change_owners();
        }
        for _ in 0..self.dice.below(3) {
            self.change_budget();
        }
        for _ in 0..2 {
            self.new_pod();
        }
    }

    fn event(&mut self) {
        match self.dice.below(22) {
            0 | 1 => {
                let name = format!("node-{}", self.dice.below(7));
                self.put_node(&name);
            }
            2 => self.remove_node(),
            3..=5 => self.place_pod(),
            6..=8 => self.change_placed(),
            9 | 10 => self.remove_placed(),
            11 => {
                let name = self.dice.pick(&NAMESPACES);
                self.relabel(name);
            }
            12 => self.change_owners(),
            13 => self.change_budget(),
            14 | 15 => self.confirm(),
            16 => self.forget(),
            17 | 18 => self.nominate(),
            _ => self.new_pod(),
        }
    }

    fn put_node(&mut self, name: &str) {
        let mut node = generate::node(&mut self.dice, name);
        // Mostly one thing changes at a time.
        if let Some(before) = self.world.nodes.get(name).cloned()
            && self.dice.chance(80)
        {
            let fresh = std::mem::replace(&mut node, before);
            match self.dice.below(5) {
                0 => node.metadata.labels = fresh.metadata.labels,
                1 => node.spec.taints = fresh.spec.taints,
                2 => node.spec.unschedulable = !node.spec.unschedulable,
                3 => node.status.allocatable = fresh.status.allocatable,
                _ => node.status.images = fresh.status.images,
            }
        }
        self.tell(format!("put {name}: {node:?}"));
        self.cluster.observe_node(&node);
        self.world.nodes.insert(name.to_string(), node);
    }

    fn remove_node(&mut self) {
        let name = format!("node-{}", self.dice.below(7));
        self.tell(format!("remove {name}"));
        self.cluster.remove_node(&name);
        self.world.nodes.remove(&name);
    }

    fn make_pod(&mut self) -> Pod {
        self.pods_made += 1;
        let spec = self.specs[self.dice.below(self.specs.len())].clone();
        generate::pod(&mut self.dice, self.pods_made, spec)
    }

    fn new_pod(&mut self) {
        if self.pending.len() < 4 {
            let pod = self.make_pod();
            self.tell(format!("pending {}", pod.metadata.uid));
            self.pending.push(pod);
        }
    }

    /// A pod shows up on a node, which may not be there.
    fn place_pod(&mut self) {
        if self.world.placed.len() >= 24 {
            return self.remove_placed();
        }
        let mut pod = self.make_pod();
        let node = format!("node-{}", self.dice.below(7));
        generate::run(&mut self.dice, &mut pod, self.pods_made, &node);
        self.show(pod, node);
    }

    fn show(&mut self, pod: Pod, node: String) {
        self.tell(format!(
            "{} on {node}: {:?} {:?}",
            pod.metadata.uid, pod.metadata, pod.status
        ));
        let info = self.cluster.decode(pod.clone());
        self.cluster.add_pod(info);
        self.world.placed.insert(pod.metadata.uid.clone(), (pod, node));
    }

    fn some_placed(&mut self, assumed: bool) -> Option<String> {
        let wanted = |uid: &&String| self.assumed.contains(uid) == assumed;
        let uids: Vec<String> = self.world.placed.keys().filter(wanted).cloned().collect();
        (!uids.is_empty()).then(|| uids[self.dice.below(uids.len())].clone())
    }

    fn change_placed(&mut self) {
        let Some(uid) = self.some_placed(false) else { return };
        let (mut pod, node) = self.world.placed[&uid].clone();
        match self.dice.below(4) {
            0 => generate::terminate(&mut self.dice, &mut pod),
            1 => generate::run(&mut self.dice, &mut pod, self.pods_made, &node),
            _ => pod.metadata.labels = generate::pod_labels(&mut self.dice),
        }
        self.show(pod, node);
    }

    fn remove_placed(&mut self) {
        if let Some(uid) = self.some_placed(false) {
            self.tell(format!("remove {uid}"));
            assert!(self.cluster.remove_pod(&uid));
            self.world.placed.remove(&uid);
        }
    }

    fn confirm(&mut self) {
        let Some(uid) = self.some_placed(true) else { return };
        self.assumed.retain(|u| *u != uid);
        let (mut pod, node) = self.world.placed[&uid].clone();
        if self.dice.chance(15) {
            // Somebody else was faster.
            let other = format!("node-{}", self.dice.below(7));
            pod.spec.node_name = other.clone();
            return self.show(pod, other);
        }
        pod.spec.node_name = node.clone();
        self.show(pod, node);
    }

    fn forget(&mut self) {
        let Some(uid) = self.some_placed(true) else { return };
        self.tell(format!("forget {uid}"));
        assert!(self.cluster.forget(&uid));
        self.assumed.retain(|u| *u != uid);
        let (pod, _) = self.world.placed.remove(&uid).expect("it is placed");
        self.pending.push(pod);
    }

    fn relabel(&mut self, name: &str) {
        let labels = (!self.dice.chance(5)).then(|| generate::namespace_labels(&mut self.dice));
        self.tell(format!("namespace {name}: {labels:?}"));
        self.cluster.observe_namespace(name, labels.clone());
        match labels {
            Some(labels) => drop(self.world.namespaces.insert(name.into(), labels)),
            None => drop(self.world.namespaces.remove(name)),
        }
    }

    fn change_owners(&mut self) {
        let namespace = self.dice.pick(&NAMESPACES);
        let there = self.dice.chance(80);
        let selector = generate::selector(&mut self.dice);
        if self.dice.chance(50) {
            let selector = there.then_some(selector.match_labels);
            self.tell(format!("service {namespace}: {selector:?}"));
            self.cluster.owners.observe_service(namespace, "svc", selector.clone());
            let key = (namespace.to_string(), "svc".to_string());
            match selector {
                Some(selector) => drop(self.world.services.insert(key, selector)),
                None => drop(self.world.services.remove(&key)),
            }
            return;
        }
        let (kind, name) = (
            self.dice.pick(&["ReplicaSet", "StatefulSet"]),
            self.dice.pick(&["one", "two"]),
        );
        let selector = there.then_some(selector);
        self.tell(format!("{kind} {namespace}/{name}: {selector:?}"));
        self.cluster
            .owners
            .observe_workload(kind, PodKey::new(namespace, name), selector.clone());
        let key = (kind.to_string(), namespace.to_string(), name.to_string());
        match selector {
            Some(selector) => drop(self.world.workloads.insert(key, selector)),
            None => drop(self.world.workloads.remove(&key)),
        }
    }

    fn change_budget(&mut self) {
        let name = self.dice.pick(&["b1", "b2"]);
        let budget = generate::budget(&mut self.dice, name);
        self.tell(format!("budget {budget:?}"));
        let known = |b: &orlop_scheduler::model::PodDisruptionBudget| {
            (b.metadata.namespace.clone(), b.metadata.name.clone()) == (budget.metadata.namespace.clone(), name.into())
        };
        self.world.budgets.retain(|b| !known(b));
        self.cluster
            .budgets
            .insert(PodKey::new(&budget.metadata.namespace, name), budget.clone());
        self.world.budgets.push(budget);
    }

    /// A pending pod is promised a node, or not any more.
    fn nominate(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let at = self.dice.below(self.pending.len());
        let node = if self.dice.chance(75) {
            format!("node-{}", self.dice.below(7))
        } else {
            String::new()
        };
        self.promise(at, node);
    }

    fn promise(&mut self, at: usize, node: String) {
        self.pending[at].status.nominated_node_name = node.clone();
        let pod = self.pending[at].clone();
        self.tell(format!("nominate {} to {node:?}", pod.metadata.uid));
        self.denominate(&pod.metadata.uid);
        if !node.is_empty() {
            let info = self.cluster.decode(pod.clone());
            self.cluster.nominated.add(info, &node.as_str().into());
            self.world.nominated.push((pod, node));
        }
    }

    /// Does what preemption decided: its victims go, and the node is promised to the pod.
    fn evict(&mut self, pod: &Pod, node: &str, victims: &Victims) {
        for uid in &victims.pods {
            self.tell(format!("evict {uid}"));
            assert!(self.cluster.remove_pod(uid));
            self.world.placed.remove(uid);
            self.assumed.retain(|u| u != uid);
        }
        let at = self.pending.iter().position(|p| p.metadata.uid == pod.metadata.uid);
        self.promise(at.expect("it is pending"), node.to_string());
    }

    fn denominate(&mut self, uid: &str) {
        self.cluster.nominated.remove(uid);
        self.world.nominated.retain(|(p, _)| p.metadata.uid != uid);
    }

    // ---- decisions ----

    fn wrong(&self, pod: &Pod, what: &str) -> ! {
        panic!(
            "seed {} (ORLOP_ORACLE_SEED={}), after {} events, pod {}: {what}\n{pod:?}",
            self.seed,
            self.seed,
            self.events.len(),
            pod.metadata.uid
        );
    }

    fn schedule(&mut self) {
        if self.pending.is_empty() {
            self.new_pod();
        }
        let at = self.dice.below(self.pending.len());
        let pod = self.pending[at].clone();
        let info = self.cluster.decode(pod.clone());
        self.tell(format!("schedule {}", pod.metadata.uid));
        let world = self.world.clone();
        let cycle = Cycle::new(&world, &pod);
        let verdicts = cycle.verdicts();
        // Scores before the decision, sometimes: what one leaves behind must not matter to the other.
        if self.dice.chance(50) {
            self.compare_scores(&pod, &info, &verdicts);
        }
        match self.core.schedule(0, &self.cluster, &info) {
            Ok(choice) => self.fits(&pod, &info, &verdicts, choice, at),
            Err(ScheduleFailure::Unfit(error)) => {
                self.fits_nowhere(&cycle, &info, &verdicts, &error);
                // Some pods are given up, lest only hopeless ones be left.
                if self.dice.chance(60) {
                    self.tell(format!("delete {}", pod.metadata.uid));
                    self.denominate(&pod.metadata.uid);
                    self.pending.retain(|p| p.metadata.uid != pod.metadata.uid);
                }
            }
            Err(ScheduleFailure::Error(error)) => self.wrong(&pod, &error.to_string()),
        }
    }

    fn fits(&mut self, pod: &Pod, info: &Arc<PodInfo>, verdicts: &Verdicts, choice: ScheduleResult, at: usize) {
        self.compare_feasible(pod, info, verdicts);
        self.compare_scores(pod, info, verdicts);
        let chosen = self
            .cluster
            .node(choice.node)
            .expect("the chosen node is there")
            .name
            .to_string();
        let scores = scores(&self.world, pod, &verdicts.feasible);
        let totals: BTreeMap<&String, i64> = scores.iter().map(|(n, lines)| (n, total(lines))).collect();
        let best = totals.values().max();
        if best.is_none() || totals.get(&chosen) != best {
            self.wrong(
                pod,
                &format!("{chosen} is not one of the best: {totals:?}\n{scores:#?}"),
            );
        }
        if choice.feasible != verdicts.feasible.len() {
            self.wrong(
                pod,
                &format!("{} nodes fit, not {}", verdicts.feasible.len(), choice.feasible),
            );
        }
        self.tally.placed += 1;
        self.tally.promised += usize::from(!self.world.nominated.is_empty());
        if self.dice.chance(80) {
            self.tell(format!("assume {} on {chosen}", pod.metadata.uid));
            self.denominate(&pod.metadata.uid);
            let mut pod = self.pending.swap_remove(at);
            pod.status.nominated_node_name = String::new();
            self.cluster.assume(info, choice.node);
            self.assumed.push(pod.metadata.uid.clone());
            self.world.placed.insert(pod.metadata.uid.clone(), (pod, chosen));
        }
    }

    fn compare_feasible(&mut self, pod: &Pod, info: &PodInfo, verdicts: &Verdicts) {
        let Ok(feasible) = self.core.feasible(0, &self.cluster, info) else {
            self.wrong(pod, "schedule finds a node, feasible does not");
        };
        let mut names: Vec<String> = (feasible.nodes.iter())
            .map(|id| {
                self.cluster
                    .node(*id)
                    .expect("a feasible node is there")
                    .name
                    .to_string()
            })
            .collect();
        names.sort();
        if names != verdicts.feasible {
            self.wrong(
                pod,
                &format!("feasible: {names:?} in the core\n{verdicts:#?} in the oracle"),
            );
        }
    }

    /// Asks for the core's full account. It leaves promises aside, so it is asked only where they do not matter.
    fn compare_scores(&mut self, pod: &Pod, info: &PodInfo, verdicts: &Verdicts) {
        let account = match self.core.explain(0, &self.cluster, info) {
            Ok(account) => account,
            Err(error) => self.wrong(pod, &error.to_string()),
        };
        let mut fitting: Vec<String> = (account.nodes.iter())
            .filter(|n| n.fits())
            .map(|n| n.name.clone())
            .collect();
        fitting.sort();
        if fitting.is_empty() || fitting != verdicts.feasible {
            return;
        }
        let scores = scores(&self.world, pod, &verdicts.feasible);
        for node in account.nodes.iter().filter(|n| n.fits()) {
            let theirs: Vec<_> = (node.scores.iter())
                .map(|s| (s.plugin, s.raw, s.normalized, s.weight))
                .collect();
            // Plugins that the oracle does not know say nothing about these pods.
            let ours = &scores[&node.name];
            let theirs: Vec<_> = theirs.into_iter().filter(|l| l.0 != "DynamicResources").collect();
            if theirs != *ours || node.total != Some(total(ours)) {
                self.wrong(
                    pod,
                    &format!("{}: {theirs:#?} in the core\n{ours:#?} in the oracle", node.name),
                );
            }
        }
        self.tally.compared_scores += 1;
        for (i, line) in scores.values().next().into_iter().flatten().enumerate() {
            if scores.values().any(|lines| lines[i].2 != line.2) {
                *self.tally.told_apart.entry(line.0).or_default() += 1;
            }
        }
    }

    fn fits_nowhere(&mut self, cycle: &Cycle, info: &PodInfo, verdicts: &Verdicts, error: &FitError) {
        let pod = cycle.pod;
        if !verdicts.feasible.is_empty() {
            self.wrong(
                pod,
                &format!("fits in the oracle: {verdicts:#?}\ncore: {}", error.message()),
            );
        }
        self.tally.unfit += 1;
        for rejected in verdicts.nodes.values().flatten() {
            *self.tally.rejected.entry(rejected.plugin).or_default() += 1;
        }
        let said: BTreeMap<String, Option<Rejected>> = (error.diagnosis.nodes.iter())
            .map(|(id, plugin, rejection)| {
                let name = self
                    .cluster
                    .node(*id)
                    .expect("a rejected node is there")
                    .name
                    .to_string();
                let reasons = rejection.reasons().map(str::to_string).collect();
                (
                    name,
                    Some(Rejected {
                        plugin,
                        reasons,
                        unresolvable: rejection.unresolvable,
                    }),
                )
            })
            .collect();
        if said != verdicts.nodes {
            self.wrong(
                pod,
                &format!("{said:#?} in the core\n{:#?} in the oracle", verdicts.nodes),
            );
        }
        if error.message() != verdicts.message(cycle.world) {
            let (core, oracle) = (error.message(), verdicts.message(cycle.world));
            self.wrong(pod, &format!("{core} in the core\n{oracle} in the oracle"));
        }
        if !cycle.world.nodes.is_empty() {
            self.compare_preemption(cycle, info, verdicts, error);
        }
    }

    fn compare_preemption(&mut self, cycle: &Cycle, info: &PodInfo, verdicts: &Verdicts, error: &FitError) {
        let (pod, world) = (cycle.pod, cycle.world);
        let args = DefaultPreemption::default();
        let outcome = self.core.preempt(0, &self.cluster, info, &error.diagnosis, &args);
        match (outcome, preemption::plan(cycle, verdicts)) {
            (Preemption::Hopeless { message, .. }, Plan::Hopeless(wanted)) if message == wanted => {
                self.tally.hopeless += 1;
            }
            (Preemption::Candidates(found), Plan::Candidates(wanted)) => {
                self.tally.preempting += 1;
                let uid = |p: &Arc<PodInfo>| p.uid.to_string();
                let said: BTreeMap<String, Victims> = (found.iter())
                    .map(|c| {
                        let pods = c.victims.iter().map(uid).collect();
                        (
                            c.name.to_string(),
                            Victims {
                                pods,
                                violations: c.violations,
                            },
                        )
                    })
                    .collect();
                if said != wanted {
                    self.wrong(
                        pod,
                        &format!("victims: {said:#?} in the core\n{wanted:#?} in the oracle"),
                    );
                }
                let best = core_preemption::best(found)
                    .expect("there are candidates")
                    .name
                    .to_string();
                let harms: BTreeMap<&String, _> = wanted.iter().map(|(n, v)| (n, preemption::harm(world, v))).collect();
                if harms.get(&best) != harms.values().min() {
                    self.wrong(pod, &format!("{best} does not do least harm: {harms:#?}"));
                }
                if self.dice.chance(50) {
                    self.evict(pod, &best, &wanted[&best]);
                }
            }
            (outcome, plan) => {
                let plan = match plan {
                    Plan::Candidates(candidates) => format!("{candidates:?}"),
                    Plan::Hopeless(message) => message,
                };
                self.wrong(
                    pod,
                    &format!("preemption: {outcome:?} in the core\n{plan} in the oracle"),
                );
            }
        }
    }
}
