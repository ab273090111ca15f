//! How many pods a second the core places, by kind of pod and number of nodes. Prints a table; nothing else is running.
//!
//! `cargo bench -p orlop-scheduler --bench core [-- NAME]`

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::config::Config;
use orlop_scheduler::cycle::{Core, ScheduleFailure};
use orlop_scheduler::model::{Node, Pod};
use orlop_scheduler::plugins;
use serde_json::{Value, json};

fn node(i: usize) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{i}"), "labels": {
            "kubernetes.io/hostname": format!("node-{i}"),
            "topology.kubernetes.io/zone": format!("zone-{}", i % 3),
        }},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    }))
    .unwrap()
}

fn pod(i: usize, labels: &Value, extra: &Value) -> Pod {
    let mut spec = json!({
        "schedulerName": "default-scheduler",
        "containers": [{"name": "c", "image": "pause",
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}],
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{i}"), "namespace": "default", "uid": format!("uid-{i}"), "labels": labels},
        "spec": spec,
    }))
    .unwrap()
}

struct Workload {
    name: &'static str,
    labels: Value,
    extra: Value,
    pods: usize,
}

fn terms(key: &str, topology: &str) -> Value {
    json!({"affinity": {key: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": topology}]}}})
}

fn workloads() -> Vec<Workload> {
    let app = json!({"app": "x"});
    let spread = |when: &str| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "x"}}}]})
    };
    vec![
        Workload {
            name: "plain",
            labels: json!({}),
            extra: json!({}),
            pods: 100_000,
        },
        Workload {
            name: "anti-affinity (host)",
            labels: app.clone(),
            extra: terms("podAntiAffinity", "kubernetes.io/hostname"),
            pods: 900,
        },
        Workload {
            name: "affinity (zone)",
            labels: app.clone(),
            extra: terms("podAffinity", "topology.kubernetes.io/zone"),
            pods: 5_000,
        },
        Workload {
            name: "zone spreading",
            labels: app.clone(),
            extra: spread("DoNotSchedule"),
            pods: 5_000,
        },
        Workload {
            name: "preferred spreading",
            labels: app,
            extra: spread("ScheduleAnyway"),
            pods: 5_000,
        },
    ]
}

/// Places the pods one after the other; pods per second.
fn run(workload: &Workload, nodes: usize) -> f64 {
    let mut cluster = Cluster::default();
    for i in 0..nodes {
        cluster.observe_node(&node(i));
    }
    let mut core = Core::new(plugins::profiles(&Config::default()).unwrap(), 1);
    let pods: Vec<_> = (0..workload.pods)
        .map(|i| {
            let pod = pod(i, &workload.labels, &workload.extra);
            cluster.decode(pod)
        })
        .collect();
    let start = orlop_base::clock::monotonic();
    for pod in &pods {
        match core.schedule(0, &cluster, pod) {
            Ok(choice) => cluster.assume(pod, choice.node),
            Err(ScheduleFailure::Unfit(error)) => panic!("{}: {}", workload.name, error.message()),
            Err(ScheduleFailure::Error(error)) => panic!("{}: {error}", workload.name),
        }
    }
    pods.len() as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let sizes = [1_000, 5_000, 20_000, 100_000];
    println!(
        "{:24}{:>12}{:>12}{:>12}{:>12}   pods/s by number of nodes",
        "", "1,000", "5,000", "20,000", "100,000"
    );
    for workload in workloads() {
        if wanted.as_ref().is_some_and(|w| !workload.name.contains(w.as_str())) {
            continue;
        }
        print!("{:24}", workload.name);
        for nodes in sizes {
            print!("{:>12.0}", run(&workload, nodes));
        }
        println!();
    }
}
