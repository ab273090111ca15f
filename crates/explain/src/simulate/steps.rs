//! What each step does.

use std::sync::Arc;

use orlop_scheduler::cluster::pod::{PodInfo, PodKey};
use orlop_scheduler::model::{Node, Taint};
use serde_json::Value;

use super::{Simulation, Step, StepError, TEMPLATED};
use crate::fix::node_like;
use crate::snapshot::{ObjectError, Snapshot};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn text<'a>(object: &'a Value, at: &str) -> &'a str {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

impl Simulation<'_> {
    pub(super) fn take(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::Apply(objects) => self.apply(objects),
            Step::Drain(node) => self.drain(node),
            Step::RemoveNode(node) => self.remove_node(node),
            Step::AddNodes { count, like } => self.add_nodes(*count, like),
            Step::Cordon(node) => self.change_node(node, cordon),
            Step::Uncordon(node) => self.change_node(node, |node| {
                node.spec.unschedulable = false;
                node.spec.taints.retain(|taint| taint.key != UNSCHEDULABLE);
            }),
            Step::Taint { node, taint } => self.taint(node, taint),
            Step::Scale {
                kind,
                namespace,
                name,
                replicas,
            } => self.scale(kind, namespace, name, *replicas),
            Step::Evict { namespace, name } => self.evict(&PodKey::new(namespace, name)),
            Step::Repack => self.repack(),
        }
    }

    // ---- nodes ----

    fn node(&self, name: &str) -> Result<&Node, StepError> {
        self.world.nodes.get(name).ok_or_else(|| {
            let mut names: Vec<&str> = self.world.nodes.keys().map(String::as_str).take(5).collect();
            if self.world.nodes.len() > names.len() {
                names.push("…");
            }
            StepError::NoNode(name.to_string(), names.join(", "))
        })
    }

    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) -> Result<(), StepError> {
        let mut node = self.node(name)?.clone();
        change(&mut node);
        self.world.cluster.observe_node(&node);
        self.world.nodes.insert(name.to_string(), node);
        Ok(())
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<PodInfo>> {
        let mut pods = self
            .world
            .cluster
            .node_named(node)
            .map_or(vec![], |node| node.pods.clone());
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        pods
    }

    /// As `kubectl drain --ignore-daemonsets --force`: pods of DaemonSets and static pods stay.
    fn drain(&mut self, name: &str) -> Result<(), StepError> {
        self.change_node(name, cordon)?;
        for pod in self.pods_on(name).into_iter().filter(|pod| !stays(pod)) {
            self.displace(&pod.uid, "drained");
        }
        Ok(())
    }

    fn remove_node(&mut self, name: &str) -> Result<(), StepError> {
        self.node(name)?;
        for pod in self.pods_on(name) {
            self.displace(&pod.uid, "its node is removed");
        }
        self.world.cluster.remove_node(name);
        self.world.nodes.remove(name);
        self.removed_nodes.insert(name.to_string());
        Ok(())
    }

    fn add_nodes(&mut self, count: usize, like: &str) -> Result<(), StepError> {
        let model = self.node(like)?.clone();
        for _ in 0..count {
            let name = loop {
                let name = format!("new-node-{}", self.next_name());
                if !self.world.nodes.contains_key(&name) {
                    break name;
                }
            };
            let node = node_like(&model, &name);
            self.world.cluster.observe_node(&node);
            self.world.nodes.insert(name, node);
        }
        self.notes
            .insert("pods that DaemonSets would put on new nodes are not counted".into());
        Ok(())
    }

    fn taint(&mut self, name: &str, taint: &Taint) -> Result<(), StepError> {
        self.change_node(name, |node| {
            node.spec
                .taints
                .retain(|t| t.key != taint.key || t.effect != taint.effect);
            node.spec.taints.push(taint.clone());
        })?;
        if taint.effect == "NoExecute" {
            for pod in self.pods_on(name) {
                let tolerated = pod
                    .class
                    .spec
                    .tolerations
                    .iter()
                    .any(|toleration| toleration.tolerates(taint));
                if !tolerated {
                    self.displace(&pod.uid, "does not tolerate the new taint");
                }
            }
        }
        Ok(())
    }

    // ---- pods and workloads ----

    fn evict(&mut self, key: &PodKey) -> Result<(), StepError> {
        let pod = self
            .world
            .placed_pod(key)
            .ok_or_else(|| StepError::NoPod(key.clone()))?;
        self.displace(&pod.uid, "evicted");
        Ok(())
    }

    /// Pods with and without a node whose controller is one of these.
    fn pods_of(&self, namespace: &str, owners: &[(String, String)]) -> Vec<Arc<PodInfo>> {
        let pods = self.world.cluster.pods().filter(|pod| is_owned(pod, namespace, owners));
        let mut pods: Vec<Arc<PodInfo>> = pods.cloned().collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        pods
    }

    /// The controllers that own a workload's pods.
    fn controllers(&self, kind: &str, namespace: &str, name: &str) -> Vec<(String, String)> {
        if kind != "Deployment" {
            return vec![(kind.to_string(), name.to_string())];
        }
        let sets = self.workloads.objects.iter().filter(|((k, ns, _), set)| {
            let owners = set["metadata"]["ownerReferences"].as_array();
            k == "ReplicaSet"
                && ns == namespace
                && owners.is_some_and(|all| all.iter().any(|o| o["kind"] == "Deployment" && o["name"] == name))
        });
        // The newest revision last: that one gets the new pods.
        let revision = |set: &Value| {
            text(set, "/metadata/annotations/deployment.kubernetes.io~1revision")
                .parse::<u64>()
                .unwrap_or(0)
        };
        let mut sets: Vec<(u64, String)> = sets.map(|((.., name), set)| (revision(set), name.clone())).collect();
        sets.sort();
        let mut all: Vec<(String, String)> = sets
            .into_iter()
            .map(|(_, name)| ("ReplicaSet".to_string(), name))
            .collect();
        if all.is_empty() {
            all.push(("ReplicaSet".into(), format!("{name}-new")));
        }
        all
    }

    fn scale(&mut self, kind: &str, namespace: &str, name: &str, replicas: usize) -> Result<(), StepError> {
        if !["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"].contains(&kind) {
            return Err(StepError::NotScalable(kind.to_string()));
        }
        let Some(workload) = self.workloads.get(kind, namespace, name).cloned() else {
            return Err(StepError::NoWorkload {
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            });
        };
        let owners = self.controllers(kind, namespace, name);
        // A Deployment's pods are made by its newest ReplicaSet, whose selector is known already.
        let newest = owners
            .last()
            .and_then(|(kind, name)| self.workloads.get(kind, namespace, name))
            .cloned();
        if newest.is_none() {
            self.observe_selectors(&workload, &owners);
        }
        let template = newest.unwrap_or(workload);
        self.resize(
            &template,
            &owners,
            replicas,
            &format!("{kind} {name} is scaled to {replicas}"),
        )?;
        Ok(())
    }

    fn observe_selectors(&mut self, workload: &Value, owners: &[(String, String)]) {
        if let Some((kind, owner)) = owners.last() {
            self.observe_selector(workload, kind, owner);
        }
    }

    /// As many pods of these owners as wanted, new ones from the template and of the last owner.
    fn resize(
        &mut self,
        workload: &Value,
        owners: &[(String, String)],
        replicas: usize,
        because: &str,
    ) -> Result<(), ObjectError> {
        let namespace = text(workload, "/metadata/namespace");
        let Some((kind, owner)) = owners.last() else {
            return Ok(());
        };
        // Those without a node go first.
        let mut waiting: Vec<usize> = (0..self.waiting.len())
            .filter(|i| is_owned(&self.waiting[*i].pod, namespace, owners))
            .collect();
        let mut placed = self.pods_of(namespace, owners);
        let mut surplus = (placed.len() + waiting.len()).saturating_sub(replicas);
        while surplus > 0 && !waiting.is_empty() {
            let at = waiting.pop().expect("checked");
            self.waiting.remove(at);
            surplus -= 1;
        }
        if kind == "StatefulSet" {
            let ordinal = |pod: &PodInfo| pod.key.name.rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
            placed.sort_by_key(|pod| ordinal(pod));
        } else {
            // Upstream: from nodes with more of them, then the newest. Pods that are not ready are not told apart here.
            let mut on: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
            for pod in &placed {
                *on.entry(pod.node_name.as_deref().unwrap_or_default().to_string())
                    .or_default() += 1;
            }
            placed.sort_by_key(|pod| {
                (
                    on.get(pod.node_name.as_deref().unwrap_or_default()).copied(),
                    pod.creation_time,
                    pod.key.clone(),
                )
            });
        }
        for _ in 0..surplus {
            if let Some(pod) = placed.pop() {
                self.world.cluster.remove_pod(&pod.uid);
            }
        }
        let there = placed.len() + waiting.len();
        self.make_pods(workload, (kind, owner), there, replicas.saturating_sub(there), because)
    }

    // ---- objects ----

    fn apply(&mut self, objects: &[Value]) -> Result<(), StepError> {
        // What pods refer to comes before them.
        let is_workload =
            |object: &&Value| TEMPLATED.contains(&text(object, "/kind")) || text(object, "/kind") == "Pod";
        let (workloads, others): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(is_workload);
        let mut snapshot = Snapshot::default();
        for object in others {
            if !self.workloads.add(object) && !snapshot.add(object)? {
                self.notes
                    .insert(format!("{} objects do not change where pods go", text(object, "/kind")));
            }
        }
        self.world.add(snapshot);
        for object in workloads {
            self.apply_workload(object)?;
        }
        Ok(())
    }

    fn apply_workload(&mut self, object: &Value) -> Result<(), StepError> {
        let (kind, namespace, name) = (
            text(object, "/kind"),
            text(object, "/metadata/namespace"),
            text(object, "/metadata/name"),
        );
        let because = format!("{kind} {name} is applied");
        let number = |at: &str| object.pointer(at).and_then(Value::as_u64).map(|n| n as usize);
        match kind {
            "Pod" => {
                let key = PodKey::new(namespace, name);
                if let Some(before) = self.world.placed_pod(&key) {
                    self.world.cluster.remove_pod(&before.uid);
                }
                self.make_pod(object.clone(), &because)?;
                return Ok(());
            }
            "DaemonSet" => {
                self.notes
                    .insert("pods of DaemonSets that are applied are not counted".into());
                return Ok(());
            }
            _ => {}
        }
        // The end of the rollout: all pods are of the new template.
        let owners = self.controllers(kind, namespace, name);
        for pod in self.pods_of(namespace, &owners) {
            self.world.cluster.remove_pod(&pod.uid);
        }
        self.waiting
            .retain(|waiting| !is_owned(&waiting.pod, namespace, &owners));
        let wanted = match kind {
            "Job" => number("/spec/parallelism")
                .unwrap_or(1)
                .min(number("/spec/completions").unwrap_or(usize::MAX)),
            _ => number("/spec/replicas").unwrap_or(1),
        };
        self.workloads.add(object);
        let owners = match kind {
            "Deployment" => vec![("ReplicaSet".to_string(), format!("{name}-new"))],
            kind => vec![(kind.to_string(), name.to_string())],
        };
        self.observe_selectors(object, &owners);
        self.resize(object, &owners, wanted, &because)?;
        Ok(())
    }

    // ---- repacking ----

    /// Empties one node after the other, those with least on them first, as long as all of its pods find a place elsewhere.
    fn repack(&mut self) -> Result<(), StepError> {
        self.place_all();
        let load = |simulation: &Self, name: &str| {
            let node = simulation.world.cluster.node_named(name);
            node.map_or((0, 0), |node| (node.requested.milli_cpu, node.requested.memory))
        };
        let mut names: Vec<String> = self.world.nodes.keys().cloned().collect();
        names.sort_by_key(|name| (load(self, name), name.clone()));
        for name in names {
            self.try_to_empty(&name)?;
        }
        Ok(())
    }

    fn try_to_empty(&mut self, name: &str) -> Result<(), StepError> {
        let pods = self.pods_on(name);
        let movable: Vec<Arc<PodInfo>> = pods.into_iter().filter(|pod| !stays(pod)).collect();
        // A pod without a controller would be lost, and one that a budget keeps may not go.
        let keeps = |pod: &Arc<PodInfo>| pod.controller.is_none() || pod.is_terminating() || self.is_kept(pod);
        if movable.is_empty() || movable.iter().any(keeps) {
            return Ok(());
        }
        let before = self.node(name)?.clone();
        let (moves, waiting, evictions) = (self.moves.len(), self.waiting.clone(), self.evictions.clone());
        let bound = self.bound.len();
        self.change_node(name, cordon)?;
        for pod in &movable {
            self.displace(&pod.uid, "repacked");
        }
        self.may_preempt = false;
        self.place_all();
        self.may_preempt = true;
        if self.waiting.iter().all(|waiting| waiting.from.as_deref() != Some(name)) {
            self.notes.insert(format!("node {name} can be removed"));
            return Ok(());
        }
        // Back to how it was.
        self.unbind_after(bound);
        for pod in movable {
            self.world.cluster.add_pod(pod);
        }
        self.world.cluster.observe_node(&before);
        self.world.nodes.insert(name.to_string(), before);
        self.moves.truncate(moves);
        (self.waiting, self.evictions) = (waiting, evictions);
        Ok(())
    }

    fn is_kept(&self, pod: &PodInfo) -> bool {
        (self.world.cluster.budgets.iter()).any(|(key, budget)| {
            let selects = budget
                .spec
                .selector
                .as_ref()
                .is_some_and(|s| s.matches(pod.label_set()));
            key.namespace == *pod.namespace() && selects && budget.status.disruptions_allowed < 1
        })
    }
}

fn is_owned(pod: &PodInfo, namespace: &str, owners: &[(String, String)]) -> bool {
    let owner = pod.controller.as_ref();
    **pod.namespace() == *namespace
        && owner.is_some_and(|o| owners.iter().any(|(kind, name)| o.kind == *kind && o.name == *name))
}

fn cordon(node: &mut Node) {
    node.spec.unschedulable = true;
    if !node.spec.taints.iter().any(|taint| taint.key == UNSCHEDULABLE) {
        node.spec.taints.push(Taint {
            key: UNSCHEDULABLE.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        });
    }
}

/// Pods of DaemonSets and static pods.
fn stays(pod: &PodInfo) -> bool {
    let kind = pod.controller.as_ref().map_or("", |owner| owner.kind.as_str());
    matches!(kind, "DaemonSet" | "Node")
}
