//! What would happen if: changes are made to a world, the displaced and the new pods are scheduled by the core, and a report
//! says who went where. Nothing is written anywhere; the world itself is changed.
//!
//! `manifests` makes objects and pods of files, `steps` carries the steps out, `placing` schedules, `report` compares before
//! and after. What controllers do between is the shortest way to where they end: a pod that is evicted is made anew by its
//! controller, a workload that is scaled has as many pods as it says.
//!
//! Left out on purpose: quotas and limit ranges, rollouts in steps, and DaemonSets' pods on nodes that are added (the report
//! says so).

mod manifests;
mod placing;
mod report;
mod steps;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use orlop_scheduler::cluster::pod::{PodInfo, PodKey};
use orlop_scheduler::model::Taint;
use serde_json::Value;

pub use manifests::{ManifestError, defaulted, objects};
pub use report::{BudgetRow, Move, NodeUse, OneNode, PendingRow, Share, SimulationReport, Use};

use crate::snapshot::{ObjectError, Snapshot};
use crate::world::World;
use placing::{Binding, WaitingPod};

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Objects are created or replaced.
    Apply(Vec<Value>),
    Drain(String),
    RemoveNode(String),
    AddNodes {
        count: usize,
        like: String,
    },
    Cordon(String),
    Uncordon(String),
    Taint {
        node: String,
        taint: Taint,
    },
    Scale {
        kind: String,
        namespace: String,
        name: String,
        replicas: usize,
    },
    Evict {
        namespace: String,
        name: String,
    },
    /// Pods are moved until no further node can be emptied.
    Repack,
}

/// A step that can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("there is no node {0:?}; nodes are: {1}")]
    NoNode(String, String),
    #[error("there is no pod {0} with a node")]
    NoPod(PodKey),
    #[error("there is no {kind} {namespace}/{name}, or it may not be read")]
    NoWorkload {
        kind: String,
        namespace: String,
        name: String,
    },
    #[error("can't scale a {0}: kinds are Deployment, ReplicaSet, StatefulSet and ReplicationController")]
    NotScalable(String),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// Objects beside the scheduler's that steps need: workloads and PriorityClasses, as JSON.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// By kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    priority_classes: BTreeMap<String, (i32, bool)>,
}

/// Kinds whose pods are made from a template.
pub(crate) const TEMPLATED: [&str; 6] = [
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "ReplicationController",
    "Job",
    "DaemonSet",
];

impl Workloads {
    /// Takes an object if it is of a kind that matters here.
    pub fn add(&mut self, object: &Value) -> bool {
        let text = |at: &str| {
            object
                .pointer(at)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string()
        };
        let kind = text("/kind");
        if kind == "PriorityClass" {
            let value = object["value"].as_i64().unwrap_or(0) as i32;
            let is_default = object["globalDefault"] == true;
            self.priority_classes
                .insert(text("/metadata/name"), (value, is_default));
            return true;
        }
        if !TEMPLATED.contains(&kind.as_str()) {
            return false;
        }
        self.objects.insert(
            (kind, text("/metadata/namespace"), text("/metadata/name")),
            object.clone(),
        );
        true
    }

    fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects
            .get(&(kind.to_string(), namespace.to_string(), name.to_string()))
    }

    /// Of a class by name; None for the default one.
    fn priority(&self, class: Option<&str>) -> i32 {
        match class {
            Some("system-node-critical") => 2_000_001_000,
            Some("system-cluster-critical") => 2_000_000_000,
            Some(name) => self.priority_classes.get(name).map_or(0, |(value, _)| *value),
            None => (self.priority_classes.values())
                .find(|(_, is_default)| *is_default)
                .map_or(0, |(value, _)| *value),
        }
    }
}

/// A simulation under way.
pub(crate) struct Simulation<'a> {
    world: &'a mut World,
    workloads: &'a mut Workloads,
    waiting: Vec<WaitingPod>,
    moves: Vec<Move>,
    pending: Vec<PendingRow>,
    /// Pods that nobody makes anew.
    lost: Vec<String>,
    evictions: BTreeMap<PodKey, usize>,
    removed_nodes: BTreeSet<String>,
    notes: BTreeSet<String>,
    /// For names of new pods and nodes.
    named: usize,
    /// For the order of the queue.
    queued: usize,
    /// Placements up to now, for those that are taken back.
    bound: Vec<Binding>,
    /// Grows with every change of the cluster state.
    changes: usize,
    /// Why pods of a class and with these labels fit nowhere, and at which change that was so.
    refused: HashMap<(u64, u64), (usize, String)>,
    /// Repacking moves pods, and evicts none for it.
    may_preempt: bool,
}

/// The cluster that a folder of manifests describes. Workloads whose pods are not among them are still to get theirs.
pub fn world_of(
    objects: Vec<Value>,
    config: &orlop_scheduler::config::Config,
) -> Result<(World, Workloads, Vec<Step>), FolderError> {
    let mut snapshot = Snapshot::default();
    let (mut workloads, mut later) = (Workloads::default(), vec![]);
    for object in &objects {
        workloads.add(object);
    }
    let has_pods = |workload: &Value| {
        let uid = &workload["metadata"]["uid"];
        let is_owner = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
        };
        !uid.is_null() && objects.iter().any(is_owner)
    };
    for object in &objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let placed = object.pointer("/spec/nodeName").is_some();
        let owned = object.pointer("/metadata/ownerReferences/0").is_some();
        let is_template = TEMPLATED.contains(&kind) && !owned && !has_pods(object);
        if is_template || (kind == "Pod" && !placed && object.pointer("/metadata/uid").is_none()) {
            later.push(object.clone());
        } else {
            snapshot.add(object)?;
        }
    }
    let world = World::new(snapshot, config)?;
    let steps = if later.is_empty() {
        vec![]
    } else {
        vec![Step::Apply(later)]
    };
    Ok((world, workloads, steps))
}

/// Why manifests are no cluster.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Profile(#[from] orlop_scheduler::plugins::ProfileError),
}

/// Takes the steps, one after the other; pods are placed after each.
pub fn simulate(world: &mut World, workloads: &mut Workloads, steps: &[Step]) -> Result<SimulationReport, StepError> {
    world.reseed();
    let before = report::usage(world);
    let already: BTreeSet<String> = world.pending.keys().map(PodKey::to_string).collect();
    let mut simulation = Simulation {
        world,
        workloads,
        waiting: vec![],
        moves: vec![],
        pending: vec![],
        lost: vec![],
        evictions: BTreeMap::new(),
        removed_nodes: BTreeSet::new(),
        notes: BTreeSet::new(),
        named: 0,
        queued: 0,
        bound: vec![],
        changes: 0,
        refused: HashMap::new(),
        may_preempt: true,
    };
    simulation.queue_pending();
    for step in steps {
        simulation.take(step)?;
        simulation.changes += 1;
        simulation.place_all();
    }
    Ok(simulation.report(before, &already))
}

impl Simulation<'_> {
    fn next_name(&mut self) -> usize {
        self.named += 1;
        self.named
    }

    /// Pods that were pending before: they are tried again after each step, as new room may be theirs.
    fn queue_pending(&mut self) {
        let pods: Vec<_> = self.world.pending.values().cloned().collect();
        let mut pods: Vec<Arc<PodInfo>> = pods.into_iter().map(|pod| self.world.cluster.decode(pod)).collect();
        pods.sort_by_key(|pod| (pod.creation_time, pod.key.clone()));
        for pod in pods.into_iter().filter(|pod| !pod.is_terminating()) {
            self.wait(pod, None, "was pending");
        }
    }
}
