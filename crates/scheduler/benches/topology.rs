//! What pod (anti-)affinity and spreading cost per pod: filtering and scoring all nodes, then counting the pod in.
//!
//! `cargo bench -p orlop-scheduler --bench topology [-- NAME]`

use std::time::Duration;

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::node::NodeId;
use orlop_scheduler::framework::points::Plugin;
use orlop_scheduler::framework::verdict::{PreFilter, PreScore};
use orlop_scheduler::model::{Labels, Node, Pod};
use orlop_scheduler::plugins::inter_pod_affinity::InterPodAffinity;
use orlop_scheduler::plugins::pod_topology_spread::{Defaults, PodTopologySpread};
use serde_json::{Value, json};

const NODES: usize = 5_000;
const PODS: usize = 2_000;

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

fn node(i: usize) -> Node {
    let labels = json!({HOST: format!("node-{i}"), ZONE: format!("zone-{}", i % 3)});
    serde_json::from_value(json!({"metadata": {"name": format!("node-{i}"), "labels": labels}})).unwrap()
}

fn pod(i: usize, labels: &Value, spec: &Value) -> Pod {
    let name = format!("pod-{i}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
        "spec": spec,
    }))
    .unwrap()
}

fn required(kind: &str, key: &str, app: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}]}}})
}

fn preferred() -> Value {
    let term = |key: &str| json!({"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": key});
    let list = |key: &str, weight| {
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": weight, "podAffinityTerm": term(key)}]})
    };
    json!({"affinity": {"podAffinity": list(ZONE, 10), "podAntiAffinity": list(HOST, 5)}})
}

fn spread(key: &str, when: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "x"}}})
}

fn spreads(constraints: &[Value]) -> Value {
    json!({"topologySpreadConstraints": constraints})
}

/// (name, app and spec of the i-th pod)
type Workload = (&'static str, fn(usize) -> (String, Value));

fn workloads() -> Vec<Workload> {
    vec![
        ("nothing", |_| ("y".into(), json!({}))),
        ("a service, nothing else", |_| ("x".into(), json!({}))),
        ("anti-affinity, node", |_| {
            ("x".into(), required("podAntiAffinity", HOST, "x"))
        }),
        ("anti-affinity, 500 groups", |i| {
            let app = format!("app-{}", i % 500);
            (app.clone(), required("podAntiAffinity", HOST, &app))
        }),
        ("affinity, zone", |_| ("x".into(), required("podAffinity", ZONE, "x"))),
        ("preferred, zone and node", |_| ("x".into(), preferred())),
        ("spread, zone", |_| {
            ("x".into(), spreads(&[spread(ZONE, "DoNotSchedule")]))
        }),
        ("spread, node", |_| {
            ("x".into(), spreads(&[spread(HOST, "DoNotSchedule")]))
        }),
        ("spread preferred, both", |_| {
            (
                "x".into(),
                spreads(&[spread(ZONE, "ScheduleAnyway"), spread(HOST, "ScheduleAnyway")]),
            )
        }),
    ]
}

#[derive(Default)]
struct Cost {
    filter: Vec<Duration>,
    score: Vec<Duration>,
    count: Vec<Duration>,
}

fn cycle(cluster: &mut Cluster, plugins: &[Box<dyn Plugin>], pod: &Pod, cost: &mut Cost, all: &[NodeId]) {
    let pod = cluster.decode(pod.clone());
    let mut nodes = all.to_vec();
    let start = orlop_base::clock::monotonic();
    for filter in plugins.iter().filter_map(|p| p.filter()) {
        if let PreFilter::Run(state) = filter.pre_filter(&pod, cluster) {
            filter.retain(&state, &pod, cluster, &mut nodes, &mut |_, _| {});
        }
    }
    cost.filter.push(start.elapsed());
    let start = orlop_base::clock::monotonic();
    let mut scores = vec![];
    let mut totals = vec![0; nodes.len()];
    for score in plugins.iter().filter_map(|p| p.score()) {
        if let PreScore::Run(state) = score.pre_score(&pod, cluster, &nodes) {
            score.score_all(&state, &pod, cluster, &nodes, &mut scores);
            score.normalize(&state, &pod, &nodes, &mut scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += 2 * score;
            }
        }
    }
    let best = (0..nodes.len()).max_by_key(|i| totals[*i]).expect("some node fits");
    cost.score.push(start.elapsed());
    let start = orlop_base::clock::monotonic();
    cluster.assume(&pod, nodes[best]);
    cost.count.push(start.elapsed());
}

fn run(name: &str, make: fn(usize) -> (String, Value)) {
    let mut cluster = Cluster::default();
    let nodes: Vec<NodeId> = (0..NODES).map(|i| cluster.observe_node(&node(i))).collect();
    let selector = Labels::from([("app".to_string(), "x".to_string())]);
    cluster.owners.observe_service("default", "x", Some(selector));
    let plugins: Vec<Box<dyn Plugin>> = vec![
        Box::new(PodTopologySpread::new(Defaults::System)),
        Box::new(InterPodAffinity::new(1, false)),
    ];
    let pod = |i| {
        let (app, spec) = make(i);
        pod(i, &json!({"app": app}), &spec)
    };
    let mut cost = Cost::default();
    for i in 0..PODS {
        cycle(&mut cluster, &plugins, &pod(i), &mut cost, &nodes);
    }
    let mut cost = Cost::default();
    for i in PODS..2 * PODS {
        cycle(&mut cluster, &plugins, &pod(i), &mut cost, &nodes);
    }
    // The median: other work on the machine does not count.
    let each = |mut all: Vec<Duration>| {
        all.sort();
        all[all.len() / 2].as_secs_f64() * 1e6
    };
    println!(
        "{name:28}{:>10.1}{:>10.1}{:>10.1}",
        each(cost.filter),
        each(cost.score),
        each(cost.count)
    );
}

fn main() {
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    println!(
        "{:28}{:>10}{:>10}{:>10}   µs per pod, {NODES} nodes, from {PODS} pods on",
        "", "filter", "score", "count"
    );
    for (name, make) in workloads() {
        if wanted.as_ref().is_none_or(|w| name.contains(w.as_str())) {
            run(name, make);
        }
    }
}
