//! What questions cost at 5,000 nodes and 50,000 pods, the snapshot loaded: explain a pending pod, search for fixes, drain.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use orlop_explain::fix::{self, Budget};
use orlop_explain::pod::explain;
use orlop_explain::simulate::{Step, Workloads, simulate};
use orlop_explain::{PodFacts, Snapshot, World};
use orlop_scheduler::config::Config;
use serde_json::{Value, json};

const NODES: usize = 5_000;
const PODS: usize = 50_000;

fn node(n: usize) -> Value {
    let taints = if n.is_multiple_of(10) {
        json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}])
    } else {
        json!([])
    };
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("n{n}"), "uid": format!("n{n}"), "labels": {
            "kubernetes.io/hostname": format!("n{n}"), "topology.kubernetes.io/zone": format!("z{}", n % 3),
            "disk": if n.is_multiple_of(4) { "ssd" } else { "hdd" }}},
        "spec": {"taints": taints, "unschedulable": n % 50 == 7},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}})
}

fn pod(name: &str, node: Option<usize>, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true}]},
        "spec": {"schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "web", "resources": {"requests": {"cpu": "700m", "memory": "1Gi"}}}]},
        "status": {"phase": "Pending"}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = format!("n{node}").into();
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Pods that fit nowhere, by ever more rules.
fn questions() -> Vec<(&'static str, Value)> {
    let large = json!([{"name": "c", "image": "web", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]);
    let zone =
        json!([{"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let spread = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    vec![
        ("cpu", json!({"containers": large})),
        (
            "selector and cpu",
            json!({"containers": large, "nodeSelector": {"disk": "nvme", "pool": "a"}}),
        ),
        (
            "anti-affinity",
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": zone}}}),
        ),
        (
            "everything",
            json!({"containers": large, "nodeSelector": {"disk": "nvme"}, "topologySpreadConstraints": spread,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": zone}}}),
        ),
    ]
}

fn snapshot(asked: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for n in 0..NODES {
        snapshot.add(&node(n)).expect("a node");
    }
    for p in 0..PODS {
        snapshot
            .add(&pod(&format!("web-{p}"), Some(p % NODES), json!({})))
            .expect("a pod");
    }
    for pod in asked {
        snapshot.add(pod).expect("a pod");
    }
    snapshot
}

fn bench(c: &mut Criterion) {
    let asked: Vec<(&str, Value)> = (questions().into_iter().enumerate())
        .map(|(n, (name, more))| (name, pod(&format!("asked-{n}"), None, more)))
        .collect();
    let pods: Vec<Value> = asked.iter().map(|(_, pod)| pod.clone()).collect();
    let loaded = snapshot(&pods);
    let mut group = c.benchmark_group("5,000 nodes, 50,000 pods");
    group.sample_size(10);
    group.bench_function("load the snapshot", |b| {
        b.iter_batched(
            || loaded.clone(),
            |s| World::new(s, &Config::default()).expect("a valid configuration"),
            BatchSize::PerIteration,
        );
    });
    let mut world = World::new(loaded.clone(), &Config::default()).expect("a valid configuration");
    for (name, pod) in &asked {
        let facts = PodFacts::new(pod, &[]);
        group.bench_function(format!("explain: {name}"), |b| b.iter(|| explain(&mut world, &facts)));
        let answer = explain(&mut world, &facts);
        let report = fix::search(&mut world, &answer, &mut Budget::default());
        println!(
            "{}\n{}",
            answer.verdict,
            orlop_explain::render::fixes(&report, Default::default())
        );
        println!("judged {}", report.judged);
        group.bench_function(format!("fix: {name}"), |b| {
            b.iter(|| fix::search(&mut world, &answer, &mut Budget::default()));
        });
    }
    let placed = PodFacts::new(&pod("web-77", Some(77), json!({})), &[]);
    group.bench_function("explain: placed", |b| b.iter(|| explain(&mut world, &placed)));
    let drains: Vec<Step> = (100..200).map(|n| Step::Drain(format!("n{n}"))).collect();
    group.bench_function("simulate: drain 100 nodes", |b| {
        b.iter_batched(
            || World::new(loaded.clone(), &Config::default()).expect("a valid configuration"),
            |mut world| simulate(&mut world, &mut Workloads::default(), &drains).expect("nodes that are there"),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
