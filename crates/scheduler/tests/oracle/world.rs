//! The cluster as plain objects, and the small rules that everything else is made of.

use std::collections::BTreeMap;

use orlop_scheduler::model::{
    LabelSelector, Labels, Node, NodeSelectorTerm, Op, Pod, PodDisruptionBudget, ResourceList, Taint, Toleration,
};

#[derive(Clone, Default)]
pub(crate) struct World {
    pub nodes: BTreeMap<String, Node>,
    /// By uid: pods that count on a node (which need not be there), assumed ones too.
    pub placed: BTreeMap<String, (Pod, String)>,
    pub namespaces: BTreeMap<String, Labels>,
    /// (namespace, name) → selector.
    pub services: BTreeMap<(String, String), Labels>,
    /// (kind, namespace, name) → selector.
    pub workloads: BTreeMap<(String, String, String), LabelSelector>,
    /// Pods that were promised a node, in the order of the promises.
    pub nominated: Vec<(Pod, String)>,
    pub budgets: Vec<PodDisruptionBudget>,
}

impl World {
    pub(crate) fn pods_on(&self, node: &str) -> Vec<&Pod> {
        let on = self.placed.values().filter(|(_, n)| n == node);
        on.map(|(pod, _)| pod).collect()
    }
}

/// One node as it would be with other pods on it.
#[derive(Clone, Default)]
pub(crate) struct WhatIf<'a> {
    pub added: Vec<&'a Pod>,
    pub removed: Vec<&'a Pod>,
}

impl WhatIf<'_> {
    pub(crate) fn pods<'b>(&'b self, world: &'b World, node: &str) -> Vec<&'b Pod> {
        let mut pods = world.pods_on(node);
        pods.retain(|p| self.removed.iter().all(|r| r.metadata.uid != p.metadata.uid));
        pods.extend(&self.added);
        pods
    }
}

pub(crate) fn priority(pod: &Pod) -> i32 {
    pod.spec.priority.unwrap_or(0)
}

pub(crate) fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    for (key, value) in &selector.match_labels {
        if labels.get(key) != Some(value) {
            return false;
        }
    }
    for r in &selector.match_expressions {
        let holds = match (labels.get(&r.key), &r.op) {
            (Some(value), Op::In(values)) => values.contains(value),
            (None, Op::In(_)) => false,
            (Some(value), Op::NotIn(values)) => !values.contains(value),
            (None, Op::NotIn(_)) => true,
            (value, Op::Exists) => value.is_some(),
            (value, Op::DoesNotExist) => value.is_none(),
            (_, other) => panic!("not generated: {other:?}"),
        };
        if !holds {
            return false;
        }
    }
    true
}

pub(crate) fn term_holds(term: &NodeSelectorTerm, node: &Node) -> bool {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    for r in &term.match_expressions {
        let value = node.metadata.labels.get(&r.key);
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        let holds = match &r.op {
            Op::In(values) => value.is_some_and(|v| values.contains(v)),
            Op::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Op::Exists => value.is_some(),
            Op::DoesNotExist => value.is_none(),
            Op::Gt(bound) => matches!(number(), Some(n) if n > *bound),
            Op::Lt(bound) => matches!(number(), Some(n) if n < *bound),
            Op::Unknown => panic!("not generated"),
        };
        if !holds {
            return false;
        }
    }
    for r in &term.match_fields {
        assert_eq!(r.key, "metadata.name");
        let holds = match &r.op {
            Op::In(names) if names.len() == 1 => names[0] == node.metadata.name,
            Op::NotIn(names) if names.len() == 1 => names[0] != node.metadata.name,
            other => panic!("not generated: {other:?}"),
        };
        if !holds {
            return false;
        }
    }
    true
}

/// nodeSelector and required node affinity.
pub(crate) fn wants_node(pod: &Pod, node: &Node) -> bool {
    for (key, value) in &pod.spec.node_selector {
        if node.metadata.labels.get(key) != Some(value) {
            return false;
        }
    }
    match pod
        .spec
        .affinity
        .node_affinity
        .as_ref()
        .and_then(|a| a.required.as_ref())
    {
        Some(required) => required.node_selector_terms.iter().any(|t| term_holds(t, node)),
        None => true,
    }
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key.is_empty() || toleration.key == taint.key;
    let value = match toleration.operator.as_str() {
        "Exists" => true,
        _ => toleration.value == taint.value,
    };
    effect && key && value
}

pub(crate) fn tolerated(pod: &Pod, taint: &Taint) -> bool {
    pod.spec.tolerations.iter().any(|t| tolerates(t, taint))
}

/// Some taint keeps the pod off the node.
pub(crate) fn repelled(pod: &Pod, node: &Node) -> bool {
    let keeps_off = |t: &&Taint| t.effect == "NoSchedule" || t.effect == "NoExecute";
    node.spec.taints.iter().filter(keeps_off).any(|t| !tolerated(pod, t))
}

/// Thousandths for cpu, units for all else. Of the ways to write amounts only those that are generated.
pub(crate) fn amount(name: &str, text: &str) -> i64 {
    let (digits, milli) = match text.strip_suffix('m') {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let (digits, unit) = match digits {
        d if d.ends_with("Ki") => (&d[..d.len() - 2], 1 << 10),
        d if d.ends_with("Mi") => (&d[..d.len() - 2], 1 << 20),
        d if d.ends_with("Gi") => (&d[..d.len() - 2], 1 << 30),
        d => (d, 1),
    };
    let n: i64 = digits.parse().expect("a generated amount");
    match (name, milli) {
        ("cpu", true) => n,
        ("cpu", false) => n * 1000 * unit,
        (_, false) => n * unit,
        (_, true) => panic!("not generated: {text}"),
    }
}

pub(crate) type Amounts = BTreeMap<String, i64>;

pub(crate) fn amounts(list: &ResourceList) -> Amounts {
    list.iter()
        .map(|(name, text)| (name.clone(), amount(name, text)))
        .collect()
}

pub(crate) fn plus(to: &mut Amounts, from: &Amounts) {
    for (name, n) in from {
        *to.entry(name.clone()).or_default() += n;
    }
}

fn at_least(to: &mut Amounts, from: &Amounts) {
    for (name, n) in from {
        let slot = to.entry(name.clone()).or_insert(*n);
        *slot = (*slot).max(*n);
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Counting {
    /// A resize under way counts.
    pub status: bool,
    pub pod_level: bool,
    pub default_cpu: bool,
    pub default_memory: bool,
}

/// What a pod asks for, counted one way or another.
pub(crate) fn requests(pod: &Pod, how: Counting) -> Amounts {
    let infeasible = (pod.status.conditions.iter()).any(|c| c.kind == "PodResizePending" && c.reason == "Infeasible");
    let own = |c: &orlop_scheduler::model::Container| {
        let mut own = amounts(&c.resources.requests);
        let status = (pod.status.container_statuses.iter()).find(|s| s.name == c.name);
        if let (true, Some(status)) = (how.status, status)
            && let Some(actual) = &status.resources
        {
            let mut held = amounts(&actual.requests);
            at_least(&mut held, &amounts(&status.allocated_resources));
            if !infeasible {
                at_least(&mut held, &own);
            }
            own = held;
        }
        if how.default_cpu {
            own.entry("cpu".into()).or_insert(100);
        }
        if how.default_memory {
            own.entry("memory".into()).or_insert(200 << 20);
        }
        own
    };
    let mut running = Amounts::new();
    for c in &pod.spec.containers {
        plus(&mut running, &own(c));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for c in &pod.spec.init_containers {
        let own = own(c);
        let mut now = sidecars.clone();
        plus(&mut now, &own);
        at_least(&mut starting, &now);
        if c.restart_policy.as_deref() == Some("Always") {
            plus(&mut running, &own);
            sidecars = now;
        }
    }
    at_least(&mut running, &starting);
    if how.pod_level {
        for (name, n) in amounts(&pod.spec.resources.requests) {
            running.insert(name, n);
        }
    }
    plus(&mut running, &amounts(&pod.spec.overhead));
    running
}

pub(crate) fn exact(pod: &Pod, placed: bool) -> Amounts {
    let how = Counting {
        status: placed,
        pod_level: true,
        default_cpu: false,
        default_memory: false,
    };
    requests(pod, how)
}

/// Cpu and memory as "least allocated" counts what is on a node.
pub(crate) fn nonzero(pod: &Pod) -> (i64, i64) {
    let exact = exact(pod, true);
    let whole = !pod.spec.resources.requests.is_empty();
    let how = Counting {
        status: true,
        pod_level: true,
        default_cpu: !whole || !exact.contains_key("cpu"),
        default_memory: !whole || !exact.contains_key("memory"),
    };
    let counted = requests(pod, how);
    (counted["cpu"], counted["memory"])
}
