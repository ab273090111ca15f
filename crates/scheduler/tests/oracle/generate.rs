//! Random nodes, pods and all that: of few values, so that they have to do with each other.

use jiff::Timestamp;
use orlop_api::objects::pod_disruption_budget::{BudgetSpec, BudgetStatus};
use orlop_base::Random;
use orlop_scheduler::model::{
    Affinity, Container, ContainerImage, ContainerPort, ContainerResources, ContainerStatus, LabelSelector, Labels,
    Meta, Node, NodeAffinity, NodeSelector, NodeSelectorTerm, ObjectMeta, Op, OwnerReference, Pod, PodAffinity,
    PodAffinityTerm, PodCondition, PodDisruptionBudget, PodSpec, PreferredNodeTerm, Requirement, ResourceList, Taint,
    Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};

use crate::spread::{HOSTNAME, ZONE};

pub(crate) const NAMESPACES: [&str; 3] = ["ant", "bee", "cat"];
const IMAGES: [(&str, i64); 4] = [
    ("app:1", 300 << 20),
    ("db:latest", 900 << 20),
    ("web:latest", 50 << 20),
    ("reg.io:5000/tool:latest", 3000 << 20),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(crate) struct Dice(pub Random);

impl Dice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    /// True this often out of a hundred times.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    fn several<T>(&mut self, most: usize, mut make: impl FnMut(&mut Dice) -> T) -> Vec<T> {
        let n = self.below(most + 1);
        (0..n).map(|_| make(self)).collect()
    }
}

fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
    pairs.into_iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

pub(crate) fn node(dice: &mut Dice, name: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = name.to_string();
    let mut put = |key: &str, value: &str| drop(node.metadata.labels.insert(key.into(), value.into()));
    if dice.chance(92) {
        put(HOSTNAME, name);
    }
    if dice.chance(85) {
        put(ZONE, dice.pick(&["z1", "z2", "z3"]));
    }
    if dice.chance(50) {
        put("disk", dice.pick(&["ssd", "hdd"]));
    }
    if dice.chance(40) {
        put("rank", dice.pick(&["1", "2", "3", "x"]));
    }
    node.spec.unschedulable = dice.chance(8);
    if dice.chance(28) {
        node.spec.taints = dice.several(2, |dice| Taint {
            key: dice.pick(&["dedicated", "dedicated", "flaky", UNSCHEDULABLE]).into(),
            value: dice.pick(&["gpu", "db", ""]).into(),
            effect: dice
                .pick(&["NoSchedule", "PreferNoSchedule", "PreferNoSchedule", "NoExecute"])
                .into(),
            time_added: None,
        });
    }
    node.status.allocatable = allocatable(dice);
    for (name, size_bytes) in IMAGES {
        if dice.chance(35) {
            node.status.images.push(ContainerImage {
                names: vec![name.into()],
                size_bytes,
            });
        }
    }
    if dice.chance(30) {
        node.status
            .declared_features
            .push("UserNamespacesHostNetworkSupport".into());
    }
    node
}

fn allocatable(dice: &mut Dice) -> ResourceList {
    // Room for everything, so that other plugins have their say.
    if dice.chance(45) {
        return labels([
            ("pods", "110"),
            ("cpu", "32"),
            ("memory", "64Gi"),
            ("ephemeral-storage", "10Gi"),
            ("example.com/gpu", "8"),
            ("hugepages-2Mi", "64Mi"),
        ]);
    }
    let mut list = labels([("pods", dice.pick(&["2", "4", "8", "110", "110"]))]);
    if dice.chance(97) {
        list.insert("cpu".into(), dice.pick(&["500m", "1", "2", "4", "3500m", "8"]).into());
    }
    if dice.chance(97) {
        list.insert(
            "memory".into(),
            dice.pick(&["512Mi", "1Gi", "2Gi", "4Gi", "3000Mi", "16Gi"]).into(),
        );
    }
    if dice.chance(40) {
        list.insert("ephemeral-storage".into(), dice.pick(&["1Gi", "10Gi"]).into());
    }
    if dice.chance(30) {
        list.insert("example.com/gpu".into(), dice.pick(&["1", "2"]).into());
    }
    if dice.chance(20) {
        list.insert("hugepages-2Mi".into(), dice.pick(&["4Mi", "64Mi"]).into());
    }
    list
}

fn requests(dice: &mut Dice) -> ResourceList {
    let mut list = ResourceList::new();
    if dice.chance(65) {
        list.insert(
            "cpu".into(),
            dice.pick(&["50m", "100m", "250m", "500m", "1", "2", "0"]).into(),
        );
    }
    if dice.chance(65) {
        list.insert(
            "memory".into(),
            dice.pick(&["64Mi", "128Mi", "500Mi", "1Gi", "2Gi", "0"]).into(),
        );
    }
    if dice.chance(8) {
        list.insert("ephemeral-storage".into(), dice.pick(&["100Mi", "2Gi"]).into());
    }
    if dice.chance(8) {
        list.insert("example.com/gpu".into(), dice.pick(&["0", "1", "2"]).into());
    }
    if dice.chance(5) {
        list.insert("hugepages-2Mi".into(), dice.pick(&["4Mi", "32Mi"]).into());
    }
    list
}

fn container(dice: &mut Dice, name: String) -> Container {
    let ports = if dice.chance(12) {
        dice.several(2, |dice| ContainerPort {
            host_port: if dice.chance(60) { 80 } else { 443 },
            host_ip: dice.pick(&["", "", "0.0.0.0", "10.0.0.1", "10.0.0.2"]).into(),
            protocol: dice.pick(&["", "TCP", "UDP"]).into(),
        })
    } else {
        vec![]
    };
    Container {
        name,
        image: dice
            .pick(&["app:1", "db", "web", "web:latest", "reg.io:5000/tool", "app:2"])
            .into(),
        ports,
        resources: ContainerResources {
            requests: requests(dice),
            limits: ResourceList::new(),
        },
        restart_policy: None,
        ..Container::default()
    }
}

pub(crate) fn pod_labels(dice: &mut Dice) -> Labels {
    let mut all = Labels::new();
    if dice.chance(85) {
        all.insert("app".into(), dice.pick(&["x", "y", "z"]).into());
    }
    if dice.chance(40) {
        all.insert("tier".into(), dice.pick(&["1", "2"]).into());
    }
    all
}

pub(crate) fn namespace_labels(dice: &mut Dice) -> Labels {
    let mut all = Labels::new();
    if dice.chance(70) {
        all.insert("team".into(), dice.pick(&["red", "blue"]).into());
    }
    all
}

fn requirement(dice: &mut Dice, key: &str, values: &[&str]) -> Requirement {
    let operator = dice.pick(&["In", "In", "NotIn", "Exists", "DoesNotExist"]);
    let mut some = || (0..1 + dice.below(2)).map(|_| dice.pick(values).to_string()).collect();
    let op = match operator {
        "In" => Op::In(some()),
        "NotIn" => Op::NotIn(some()),
        "Exists" => Op::Exists,
        _ => Op::DoesNotExist,
    };
    Requirement { key: key.into(), op }
}

/// Of pods.
pub(crate) fn selector(dice: &mut Dice) -> LabelSelector {
    let mut selector = LabelSelector::default();
    if dice.chance(75) {
        selector
            .match_labels
            .insert("app".into(), dice.pick(&["x", "x", "y", "z"]).into());
    }
    if dice.chance(20) {
        selector.match_expressions.push(requirement(dice, "tier", &["1", "2"]));
    }
    if dice.chance(10) {
        selector.match_expressions.push(requirement(dice, "app", &["x", "y"]));
    }
    selector
}

fn namespace_selector(dice: &mut Dice) -> LabelSelector {
    let mut selector = LabelSelector::default();
    if dice.chance(75) {
        selector
            .match_expressions
            .push(requirement(dice, "team", &["red", "blue"]));
    }
    selector
}

fn term(dice: &mut Dice) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: dice.chance(95).then(|| selector(dice)),
        namespaces: if dice.chance(25) {
            vec![dice.pick(&NAMESPACES).into()]
        } else {
            vec![]
        },
        namespace_selector: dice.chance(25).then(|| namespace_selector(dice)),
        topology_key: dice.pick(&[HOSTNAME, ZONE, ZONE, "disk"]).into(),
    }
}

fn pod_affinity(dice: &mut Dice, required: u64, preferred: u64) -> PodAffinity {
    let mut affinity = PodAffinity::default();
    if dice.chance(required) {
        affinity.required.push(term(dice));
        if dice.chance(25) {
            affinity.required.push(term(dice));
        }
    }
    if dice.chance(preferred) {
        affinity.preferred = dice.several(2, |dice| WeightedPodAffinityTerm {
            weight: 1 + dice.below(100) as i32,
            pod_affinity_term: term(dice),
        });
    }
    affinity
}

fn node_term(dice: &mut Dice) -> NodeSelectorTerm {
    let mut term = NodeSelectorTerm::default();
    if dice.chance(70) {
        term.match_expressions.push(requirement(dice, "disk", &["ssd", "hdd"]));
    }
    if dice.chance(30) {
        let operator = dice.pick(&["Gt", "Lt"]);
        let bound = dice.pick(&[&1, &2]);
        term.match_expressions.push(Requirement {
            key: "rank".into(),
            op: if operator == "Gt" {
                Op::Gt(*bound)
            } else {
                Op::Lt(*bound)
            },
        });
    }
    if dice.chance(25) {
        term.match_expressions
            .push(requirement(dice, ZONE, &["z1", "z2", "z3"]));
    }
    term.match_fields = if dice.chance(25) {
        dice.several(2, by_name)
    } else {
        vec![]
    };
    term
}

fn by_name(dice: &mut Dice) -> Requirement {
    let operator = dice.pick(&["In", "In", "NotIn"]);
    let names = vec![format!("node-{}", dice.below(7))];
    Requirement {
        key: "metadata.name".into(),
        op: if operator == "In" {
            Op::In(names)
        } else {
            Op::NotIn(names)
        },
    }
}

fn node_affinity(dice: &mut Dice) -> Option<NodeAffinity> {
    let mut affinity = NodeAffinity::default();
    if dice.chance(10) {
        let terms = if dice.chance(30) {
            (0..1 + dice.below(3))
                .map(|_| NodeSelectorTerm {
                    match_fields: vec![by_name(dice)],
                    ..NodeSelectorTerm::default()
                })
                .collect()
        } else {
            dice.several(2, node_term)
        };
        affinity.required = Some(NodeSelector {
            node_selector_terms: terms,
        });
    }
    if dice.chance(20) {
        affinity.preferred = dice.several(3, |dice| PreferredNodeTerm {
            weight: 1 + dice.below(100) as i32,
            preference: node_term(dice),
        });
    }
    dice.chance(80).then_some(affinity)
}

fn toleration(dice: &mut Dice) -> Toleration {
    let effect = dice
        .pick(&["", "", "NoSchedule", "PreferNoSchedule", "NoExecute"])
        .to_string();
    if dice.chance(15) {
        return Toleration {
            operator: "Exists".into(),
            effect,
            ..Toleration::default()
        };
    }
    let operator = dice.pick(&["", "Equal", "Exists"]);
    Toleration {
        key: dice.pick(&["dedicated", "dedicated", "flaky", UNSCHEDULABLE]).into(),
        operator: operator.into(),
        value: if operator == "Exists" {
            ""
        } else {
            dice.pick(&["gpu", "db", ""])
        }
        .into(),
        effect,
        toleration_seconds: None,
    }
}

fn constraint(dice: &mut Dice) -> TopologySpreadConstraint {
    let hard = dice.chance(50);
    let policy = |dice: &mut Dice| dice.chance(40).then(|| dice.pick(&["Honor", "Ignore"]).to_string());
    TopologySpreadConstraint {
        max_skew: 1 + dice.below(3) as i32,
        topology_key: dice.pick(&[HOSTNAME, ZONE, ZONE, "disk"]).into(),
        when_unsatisfiable: if hard { "DoNotSchedule" } else { "ScheduleAnyway" }.into(),
        label_selector: dice.chance(95).then(|| selector(dice)),
        min_domains: (hard && dice.chance(30)).then(|| 1 + dice.below(4) as i32),
        node_affinity_policy: policy(dice),
        node_taints_policy: policy(dice),
        match_label_keys: if dice.chance(20) { vec!["tier".into()] } else { vec![] },
    }
}

/// Pods are made of few of these, as pods of a Deployment are.
pub(crate) fn spec(dice: &mut Dice) -> PodSpec {
    let mut spec = PodSpec {
        scheduler_name: "default-scheduler".into(),
        ..PodSpec::default()
    };
    spec.containers = (0..1 + dice.below(2))
        .map(|i| container(dice, format!("c{i}")))
        .collect();
    if dice.chance(20) {
        for i in 0..1 + dice.below(3) {
            let mut c = container(dice, format!("i{i}"));
            c.restart_policy = dice.chance(50).then(|| "Always".to_string());
            spec.init_containers.push(c);
        }
    }
    if dice.chance(8) {
        spec.overhead = labels([("cpu", dice.pick(&["50m", "200m"])), ("memory", "32Mi")]);
    }
    if dice.chance(10) {
        spec.resources
            .requests
            .insert("cpu".into(), dice.pick(&["500m", "1500m"]).into());
        if dice.chance(50) {
            spec.resources
                .requests
                .insert("memory".into(), dice.pick(&["256Mi", "1Gi"]).into());
        }
    }
    if dice.chance(10) {
        spec.node_selector
            .insert("disk".into(), dice.pick(&["ssd", "hdd"]).into());
    }
    if dice.chance(40) {
        spec.tolerations = dice.several(3, toleration);
    }
    if dice.chance(4) {
        (spec.host_network, spec.host_users) = (true, Some(dice.chance(30)));
    }
    let quiet = dice.chance(35);
    spec.affinity = Affinity {
        node_affinity: node_affinity(dice),
        pod_affinity: if quiet {
            PodAffinity::default()
        } else {
            pod_affinity(dice, 10, 20)
        },
        pod_anti_affinity: if quiet {
            PodAffinity::default()
        } else {
            pod_affinity(dice, 10, 20)
        },
    };
    if !quiet && dice.chance(40) {
        spec.topology_spread_constraints = dice.several(3, constraint);
    }
    spec.priority = match dice.below(5) {
        0 => None,
        1 | 2 => Some(0),
        3 => Some(10),
        _ => Some(100),
    };
    spec.preemption_policy = dice.chance(5).then(|| "Never".to_string());
    spec
}

pub(crate) fn pod(dice: &mut Dice, number: usize, spec: PodSpec) -> Pod {
    let mut pod = Pod { spec, ..Pod::default() };
    pod.metadata = ObjectMeta {
        name: format!("pod-{number}"),
        namespace: dice.pick(&["ant", "ant", "bee", "cat"]).into(),
        uid: format!("uid-{number}"),
        labels: pod_labels(dice),
        ..ObjectMeta::default()
    };
    if dice.chance(25) {
        pod.metadata.owner_references.push(OwnerReference {
            api_version: "apps/v1".into(),
            kind: dice.pick(&["ReplicaSet", "StatefulSet"]).into(),
            name: dice.pick(&["one", "two"]).into(),
            uid: "owner".into(),
            controller: dice.chance(90).then_some(true),
            block_owner_deletion: None,
        });
    }
    pod
}

/// Makes it look as if it had run for a while.
pub(crate) fn run(dice: &mut Dice, pod: &mut Pod, number: usize, node: &str) {
    pod.spec.node_name = node.to_string();
    pod.status.phase = "Running".into();
    if dice.chance(90) {
        let at = 1_700_000_000 + (number * 7919 % 1000) as i64;
        pod.status.start_time = Some(Timestamp::from_second(at).expect("a time"));
    }
    pod.status.container_statuses.clear();
    pod.status.conditions.retain(|c| c.kind != "PodResizePending");
    if dice.chance(6) {
        let actual = ContainerResources {
            requests: requests(dice),
            limits: ResourceList::new(),
        };
        pod.status.container_statuses.push(ContainerStatus {
            name: "c0".into(),
            allocated_resources: if dice.chance(50) {
                requests(dice)
            } else {
                actual.requests.clone()
            },
            resources: Some(actual),
        });
        if dice.chance(30) {
            pod.status.conditions.push(PodCondition {
                kind: "PodResizePending".into(),
                status: "True".into(),
                reason: dice.pick(&["Infeasible", "Deferred"]).into(),
            });
        }
    }
    if dice.chance(6) {
        terminate(dice, pod);
    }
}

pub(crate) fn terminate(dice: &mut Dice, pod: &mut Pod) {
    pod.metadata.deletion_timestamp = Some(Timestamp::from_second(1_700_009_000).expect("a time"));
    pod.status.conditions.retain(|c| c.kind != "DisruptionTarget");
    if dice.chance(50) {
        pod.status.conditions.push(PodCondition {
            kind: "DisruptionTarget".into(),
            status: "True".into(),
            reason: "PreemptionByScheduler".into(),
        });
    }
}

pub(crate) fn budget(dice: &mut Dice, name: &str) -> PodDisruptionBudget {
    let disrupted = dice.several(2, |dice| format!("pod-{}", dice.below(20)));
    PodDisruptionBudget {
        metadata: Meta {
            name: name.into(),
            namespace: dice.pick(&NAMESPACES).into(),
            ..Meta::default()
        },
        spec: BudgetSpec {
            selector: dice.chance(95).then(|| selector(dice)),
            ..BudgetSpec::default()
        },
        status: BudgetStatus {
            disruptions_allowed: dice.below(3) as i64,
            disrupted_pods: disrupted.into_iter().map(|pod| (pod, Timestamp::UNIX_EPOCH)).collect(),
            ..BudgetStatus::default()
        },
    }
}
